"""`cpplm generate`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from cpplm.cli.report import Report
from cpplm.cli.terminal import shown
from cpplm.core.errors import UserError
from cpplm.core.progress import say
from cpplm.core.settings import short
from cpplm.core.storage import Storage
from cpplm.generate.drafting import DraftSettings
from cpplm.generate.engine import Engine
from cpplm.generate.load import ModelSource, load_engine
from cpplm.generate.samples import example_completions
from cpplm.generate.sampling import SamplingSettings
from cpplm.generate.scheduler import Limits
from cpplm.generate.writing import Completion
from cpplm.train.checkpoint import Checkpoint
from cpplm.train.pretrain import run_folder

CURSOR = "<|cursor|>"
"""Where --fim writes, in a text on standard input."""


@dataclass(frozen=True)
class GenerateSettings:
    """Settings of `cpplm generate`."""

    model: ModelSource
    """The model."""
    prompt: Annotated[str | None, short("p")] = None
    """Text to complete (default: what comes on standard input)."""
    fim: bool = False
    """Write what belongs between --prompt and --suffix, or where a text on standard input has <|cursor|>; the
    model must have been trained to fill in (--fim_rate)."""
    suffix: str | None = None
    """With --fim and --prompt: the text behind the hole."""
    spm: bool = False
    """With --fim: the model reads the suffix before the prompt, for one that was trained mostly so."""
    examples: bool = False
    """Complete a few built-in prompts instead."""
    save: bool = False
    """With --examples: keep the completions in the run folder, for its page."""
    num_samples: int = 1
    """Completions of the prompt; a single one is printed as it is written."""
    draft: Literal["off", "lookup", "heads"] = "off"
    """Guess tokens ahead, to be quicker: what followed the same tokens before (lookup), or what the head of a
    model trained with --mtp says (heads). The text is the same."""
    draft_tokens: int = 2
    """With --draft: tokens guessed at a time, at most."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """How tokens are chosen."""

    def __post_init__(self) -> None:
        if self.examples and self.prompt is not None:
            raise UserError("--examples and --prompt exclude each other", fix="Give one of them.")
        if self.examples and self.num_samples != 1:
            raise UserError("--examples gives one completion each", fix="Leave out --num_samples.")
        if self.save and not self.examples:
            raise UserError("--save keeps the completions of --examples", fix="Add --examples.")
        if self.num_samples < 1:
            raise UserError(f"--num_samples {self.num_samples} must be at least 1")
        self._check_fim()
        if self.draft_tokens < 1:
            raise UserError(f"--draft_tokens {self.draft_tokens} must be at least 1")
        if self.draft == "off" and self.draft_tokens != GenerateSettings.draft_tokens:
            raise UserError("--draft_tokens has no effect at --draft off", fix="Add --draft lookup.")

    def _check_fim(self) -> None:
        if self.examples and (self.fim or self.draft != "off"):
            raise UserError("--examples are plain completions", fix="Leave out --fim and --draft.")
        if not self.fim and (self.spm or self.suffix is not None):
            raise UserError("--suffix and --spm are for filling in", fix="Add --fim.")
        if self.fim and (self.prompt is None) != (self.suffix is None):
            raise UserError(
                "--fim takes --prompt and --suffix together",
                fix=f"Give both, or neither and a text with {CURSOR} on standard input.",
            )

    def limits(self) -> Limits:
        """For a scheduler of this one request."""
        rows = self.num_samples
        draft = DraftSettings(self.draft, self.draft_tokens, rows)
        return Limits(rows=rows, kept_tokens=0, draft=draft)


def generate(settings: GenerateSettings) -> Report:
    """Complete a prompt or the examples, or fill in."""
    texts = None if settings.examples else _texts(settings)
    engine, checkpoint = load_engine(settings.model)
    if texts is None:
        return _examples(engine, settings, checkpoint.step)
    prefix, suffix = texts
    if settings.fim and not _trained_to_fill_in(checkpoint):
        say("cpplm: this model was not trained to fill in (--fim_rate): what it writes will hardly fit")
    completions, drafts = _write(engine, settings, prefix, suffix)
    figures = {
        "step": checkpoint.step,
        "prompt": prefix,
        **({} if suffix is None else {"suffix": suffix}),
        "completions": [completion.text for completion in completions],
        "reasons": [completion.reason for completion in completions],
        **drafts,
    }
    blocks = [] if len(completions) == 1 else [
        f"--- sample {number} ({completion.reason}) ---\n"
        + shown(prefix) + shown(completion.text, "1") + shown(suffix or "")
        for number, completion in enumerate(completions, 1)
    ]  # fmt: skip
    return Report("\n".join(blocks), figures)


def _trained_to_fill_in(checkpoint: Checkpoint) -> bool:
    if "settings.json" not in checkpoint.files:  # an imported model
        return False
    fim = checkpoint.json("settings.json").get("fim", {})
    return any(fim.get(rate, 0) > 0 for rate in ("fim_rate", "structured_fim_rate"))


def _examples(engine: Engine, settings: GenerateSettings, step: int) -> Report:
    samples = example_completions(engine, settings.sampling)
    if not samples:
        raise UserError("no example fits into the model's context", fix="Give a shorter --prompt.")
    if settings.save:
        Storage(run_folder(settings.model.run)).write_json("samples.json", {"step": step, "samples": samples})
    blocks = [f"--- {s['reason']} ---\n{s['prompt']}{shown(s['completion'], '1')}" for s in samples]
    return Report("\n".join(blocks), {"step": step, "samples": samples})


def _texts(settings: GenerateSettings) -> tuple[str, str | None]:
    """What stands before the place to write at, and what behind it; None where nothing does."""
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
) -> tuple[list[Completion], dict[str, Any]]:
    """All samples, and how many tokens were drafted; a single sample is printed as it is written.

    Raises:
        UserError: the prompt leaves no room in the context; nothing is printed then.
    """
    request = engine.request(
        prefix, suffix, settings=settings.sampling, num_samples=settings.num_samples, spm=settings.spm
    )
    scheduler = engine.scheduler(settings.limits())
    scheduler.submit(request)
    streams = settings.num_samples == 1
    if streams:
        _print(shown(prefix))
    done: dict[int, Completion] = {}
    while not scheduler.idle:
        for event in scheduler.step():
            if streams:
                _print(shown(event.text, "1" if suffix is not None else ""))
            if event.completion is not None:
                done[event.sample] = event.completion
    if streams:
        _print(shown(suffix or ""))
        if not (prefix + done[0].text + (suffix or "")).endswith("\n"):
            _print("\n")
    drafts = {"drafted": scheduler.drafted, "accepted": scheduler.accepted}
    return [done[number] for number in sorted(done)], drafts if settings.draft != "off" else {}


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
