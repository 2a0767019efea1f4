"""`cpplm generate`."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from cpplm.cli.report import Report, sanitize
from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.run_log import run_folder
from cpplm.core.storage import Storage
from cpplm.generate.engine import Engine
from cpplm.generate.grammar import GrammarSpec
from cpplm.generate.load import load_engine
from cpplm.generate.project.context import ProjectContext, project_context, truncate_with_context
from cpplm.generate.project.line_retrieval import RetrievedLines
from cpplm.generate.samples import example_completions
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import CURSOR, DraftSettings, FormSettings, GenerateSettings, SchedulerLimits
from cpplm.generate.truncation import fit_prompt, token_ends
from cpplm.generate.valid_cpp import cpp_context


def generate(settings: GenerateSettings) -> Report:
    """Complete a prompt or the examples, or fill in."""
    texts = None if settings.examples else _texts(settings)
    engine, checkpoint = load_engine(settings.model)
    if texts is None:
        return _examples(engine, settings, checkpoint.step)
    prefix, suffix = texts
    if settings.fim and not checkpoint.supports_fim:
        log_info("cpplm: this model was not trained to fill in (--fim_rate): what it writes will hardly fit")
    context = None if suffix is None else project_context(engine.tokenizer, settings.project)
    lines = None
    if context is not None and settings.form == FormSettings() and settings.num_samples == 1:
        lines = context.lines(settings.file, prefix, suffix or "")
    if lines is not None and lines.probability >= settings.project.project_lines:
        return _retrieved(lines, checkpoint.step, prefix, suffix or "")
    streams = settings.num_samples == 1 and lines is None
    request = _request(engine, settings, prefix, suffix, context)
    if lines is not None:
        request = replace(request, logprobs=0)
    completions, drafts = _write(engine, settings, request, (prefix, suffix or "") if streams else None)
    written = [(engine.tokenizer.decode([token.token]), token.logprob) for token in completions[0].logprobs]
    if lines is not None and lines.is_preferred(written):
        return _retrieved(lines, checkpoint.step, prefix, suffix or "")
    figures = {
        "step": checkpoint.step,
        "prompt": prefix,
        **({} if suffix is None else {"suffix": suffix}),
        "completions": [completion.text for completion in completions],
        "finish_reasons": [completion.finish_reason for completion in completions],
        **drafts,
    }
    if streams:
        return Report("", figures)
    blocks = [_in_place(prefix, completion.text, suffix) for completion in completions]
    if len(completions) == 1:
        return Report(blocks[0].removesuffix("\n"), figures)
    for number, completion in enumerate(completions):
        blocks[number] = f"--- sample {number + 1} ({completion.finish_reason}) ---\n{blocks[number]}"
    return Report("\n".join(blocks), figures)


def _examples(engine: Engine, settings: GenerateSettings, step: int) -> Report:
    samples = example_completions(engine, settings.sampling)
    if not samples:
        raise UserError("no example fits into the model's context", fix="Use a short --prompt instead.")
    if settings.save:
        Storage(run_folder(settings.model.run)).write_json("samples.json", {"step": step, "samples": samples})
    blocks = [f"--- {s['finish_reason']} ---\n{s['prompt']}{sanitize(s['completion'], '1')}" for s in samples]
    return Report("\n".join(blocks), {"step": step, "samples": samples})


def _texts(settings: GenerateSettings) -> tuple[str, str | None]:
    """The texts before and behind the place to write at; the latter None where there is none."""
    if settings.prompt is not None:
        return settings.prompt, settings.suffix
    text = _from_stdin()
    if not settings.fim:
        return text, None
    parts = text.split(CURSOR)
    if len(parts) != 2:
        raise UserError(
            f"the text on standard input has {len(parts) - 1} times {CURSOR}",
            fix="Put it once, where the model is to write.",
        )
    return parts[0], parts[1]


def _from_stdin() -> str:
    if sys.stdin.isatty():
        raise UserError("no prompt", fix="Give --prompt TEXT or --examples, or pipe the text in.")
    try:
        prompt = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UserError(f"the prompt on standard input is no text: {error}", fix="Use UTF-8.") from error
    if not prompt:
        raise UserError("the prompt on standard input is empty")
    return prompt


def _write(
    engine: Engine, settings: GenerateSettings, request: GenerationRequest, shown: tuple[str, str] | None
) -> tuple[list[CompletionOutput], dict[str, Any]]:
    """All samples, and how many tokens were drafted.

    Args:
        engine: of the model.
        settings: of the command.
        request: of all samples.
        shown: text before and behind a single sample, to print both and the sample as it is written.
    """
    scheduler = engine.scheduler(_limits(settings))
    scheduler.submit(request)
    prefix, suffix = shown or ("", "")
    if shown:
        _print(sanitize(prefix))
    done: dict[int, CompletionOutput] = {}
    while not scheduler.idle:
        for event in scheduler.step():
            if shown:
                _print(sanitize(event.text, "1" if settings.fim else ""))
            if event.completion is not None:
                done[event.sample] = event.completion
    if shown:
        _print(sanitize(suffix))
        if not (prefix + done[0].text + suffix).endswith("\n"):
            _print("\n")
    drafts = {"drafted": scheduler.num_drafted, "accepted": scheduler.num_accepted}
    return [done[number] for number in sorted(done)], drafts if settings.draft != "off" else {}


def _grammar_spec(form: FormSettings) -> GrammarSpec | None:
    """Grammar of completions, None for any text; UserError if its file cannot be read or is no text."""
    if form.regex is not None:
        return GrammarSpec("regex", form.regex)
    path = form.schema or form.grammar
    if path is None:
        return None
    try:
        return GrammarSpec("json_schema" if form.schema else "grammar", path.expanduser().read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}", fix="Give a text file.") from error


def _request(
    engine: Engine,
    settings: GenerateSettings,
    prefix: str,
    suffix: str | None,
    project: ProjectContext | None,
) -> GenerationRequest:
    """The prompt; with --project cut to the context, with text of the project in front."""
    spec = _grammar_spec(settings.form)
    grammar = engine.grammars.compile(spec) if spec is not None else None

    ngrams = None
    if project is not None and suffix is not None:
        ngrams = project.ngrams(settings.file, prefix, suffix)

    def ask(before: str | bytes, behind: str | bytes | None) -> GenerationRequest:
        request = engine.request(
            before, behind, settings=settings.sampling, num_samples=settings.num_samples,
            spm=settings.fim_order == "spm", grammar=grammar, ngrams=ngrams,
        )  # fmt: skip
        return replace(request, valid=cpp_context(prefix, suffix) if settings.form.valid else None)

    if project is None or suffix is None:
        return ask(prefix, suffix)
    ends = token_ends(engine.tokenizer)
    source = project.source(settings.file, prefix, suffix)

    def attempt(room: int) -> tuple[GenerationRequest, int]:
        front, before, behind = truncate_with_context(prefix, suffix, room, ends, source)
        request = ask("".join(front).encode() + before, behind)
        return request, engine.num_prompt_tokens(request)

    return fit_prompt(engine.model.config.max_seq_len, settings.sampling.max_new_tokens, attempt)[0]


def _retrieved(lines: RetrievedLines, step: int, prefix: str, suffix: str) -> Report:
    figures = {
        "step": step, "prompt": prefix, "suffix": suffix, "completions": [lines.text],
        "finish_reasons": ["project"], "probability": lines.probability,
    }  # fmt: skip
    log_info(f"cpplm: lines of the project, right with probability {lines.probability:.2f}")
    return Report(_in_place(prefix, lines.text, suffix).removesuffix("\n"), figures)


def _in_place(prefix: str, text: str, suffix: str | None) -> str:
    """A completion for stdout, with the text around it."""
    return sanitize(prefix) + sanitize(text, "1") + sanitize(suffix or "")


def _print(text: str) -> None:
    print(text, end="", flush=True)


def _limits(settings: GenerateSettings) -> SchedulerLimits:
    """For a scheduler of this one request."""
    rows = settings.num_samples
    draft = DraftSettings(settings.draft, settings.draft_tokens, rows)
    return SchedulerLimits(max_batch=rows, prefix_cache_tokens=0, draft=draft)
