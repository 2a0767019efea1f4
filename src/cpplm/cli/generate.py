"""`cpplm generate`."""

from __future__ import annotations

import sys
from typing import Any

from cpplm.cli.report import Report, sanitize
from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.run_log import run_folder
from cpplm.core.storage import Storage
from cpplm.generate.engine import Engine
from cpplm.generate.load import load_engine
from cpplm.generate.samples import example_completions
from cpplm.generate.sequence import CompletionOutput
from cpplm.generate.settings import CURSOR, DraftSettings, GenerateSettings, SchedulerLimits


def generate(settings: GenerateSettings) -> Report:
    """Complete a prompt or the examples, or fill in."""
    texts = None if settings.examples else _texts(settings)
    engine, checkpoint = load_engine(settings.model)
    if texts is None:
        return _examples(engine, settings, checkpoint.step)
    prefix, suffix = texts
    if settings.fim and not checkpoint.supports_fim:
        log_info("cpplm: this model was not trained to fill in (--fim_rate): what it writes will hardly fit")
    completions, drafts = _write(engine, settings, prefix, suffix)
    figures = {
        "step": checkpoint.step,
        "prompt": prefix,
        **({} if suffix is None else {"suffix": suffix}),
        "completions": [completion.text for completion in completions],
        "finish_reasons": [completion.finish_reason for completion in completions],
        **drafts,
    }
    blocks = [] if len(completions) == 1 else [
        f"--- sample {number} ({completion.finish_reason}) ---\n"
        + sanitize(prefix) + sanitize(completion.text, "1") + sanitize(suffix or "")
        for number, completion in enumerate(completions, 1)
    ]  # fmt: skip
    return Report("\n".join(blocks), figures)


def _examples(engine: Engine, settings: GenerateSettings, step: int) -> Report:
    samples = example_completions(engine, settings.sampling)
    if not samples:
        raise UserError("no example fits into the model's context", fix="Give a shorter --prompt.")
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
    engine: Engine, settings: GenerateSettings, prefix: str, suffix: str | None
) -> tuple[list[CompletionOutput], dict[str, Any]]:
    """All samples, and how many tokens were drafted; a single sample is printed as it is written.

    Raises:
        UserError: the prompt leaves no room in the context; nothing is printed then.
    """
    request = engine.request(
        prefix, suffix, settings=settings.sampling, num_samples=settings.num_samples, spm=settings.spm
    )
    scheduler = engine.scheduler(_limits(settings))
    scheduler.submit(request)
    streams = settings.num_samples == 1
    if streams:
        _print(sanitize(prefix))
    done: dict[int, CompletionOutput] = {}
    while not scheduler.idle:
        for event in scheduler.step():
            if streams:
                _print(sanitize(event.text, "1" if suffix is not None else ""))
            if event.completion is not None:
                done[event.sample] = event.completion
    if streams:
        _print(sanitize(suffix or ""))
        if not (prefix + done[0].text + (suffix or "")).endswith("\n"):
            _print("\n")
    drafts = {"drafted": scheduler.num_drafted, "accepted": scheduler.num_accepted}
    return [done[number] for number in sorted(done)], drafts if settings.draft != "off" else {}


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _limits(settings: GenerateSettings) -> SchedulerLimits:
    """For a scheduler of this one request."""
    rows = settings.num_samples
    draft = DraftSettings(settings.draft, settings.draft_tokens, rows)
    return SchedulerLimits(max_batch=rows, prefix_cache_tokens=0, draft=draft)
