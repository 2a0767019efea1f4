"""`cpplm generate`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from cpplm.cli.report import Report
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.generate.engine import Engine
from cpplm.generate.load import ModelSource, load_engine
from cpplm.generate.samples import example_completions
from cpplm.generate.sampling import SamplingSettings
from cpplm.train.pretrain import run_folder


@dataclass(frozen=True)
class GenerateSettings:
    """Settings of `cpplm generate`."""

    model: ModelSource
    """The model."""
    prompt: str | None = None
    """Text to complete (default: what comes on standard input)."""
    examples: bool = False
    """Complete a few built-in prompts instead."""
    save: bool = False
    """With --examples: keep the completions in the run folder, for its page."""
    num_samples: int = 1
    """Completions of the prompt; a single one is printed as it is written."""
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


def generate(settings: GenerateSettings) -> Report:
    """Complete a prompt or the examples."""
    engine, checkpoint = load_engine(settings.model)
    step = checkpoint.step
    if settings.examples:
        samples = example_completions(engine, settings.sampling)
        if not samples:
            raise UserError("no example fits into the model's context", fix="Give a shorter --prompt.")
        if settings.save:
            Storage(run_folder(settings.model.run)).write_json(
                "samples.json", {"step": step, "samples": samples}
            )
        blocks = [f"--- {s['reason']} ---\n{s['prompt']}\x1b[1m{s['completion']}\x1b[0m" for s in samples]
        text = "\n".join(blocks)
        return Report(text if sys.stdout.isatty() else _plain(text), {"step": step, "samples": samples})

    prompt = _from_stdin() if settings.prompt is None else settings.prompt
    if settings.num_samples == 1:
        text = _print_as_written(engine, prompt, settings.sampling)
        return Report("", {"step": step, "prompt": prompt, "completions": [text]})
    completions = engine.complete(prompt, settings.sampling, settings.num_samples)
    text = "\n".join(
        f"--- sample {i} ({c.reason}) ---\n{prompt}{c.text}" for i, c in enumerate(completions, 1)
    )
    return Report(text, {"step": step, "prompt": prompt, "completions": [c.text for c in completions]})


def _plain(text: str) -> str:
    return text.replace("\x1b[1m", "").replace("\x1b[0m", "")


def _from_stdin() -> str:
    if sys.stdin.isatty():
        raise UserError("no prompt", fix="Give --prompt TEXT or --examples, or pipe the text in.")
    prompt = sys.stdin.read()
    if not prompt:
        raise UserError("the prompt on standard input is empty")
    return prompt


def _print_as_written(engine: Engine, prompt: str, sampling: SamplingSettings) -> str:
    """Print the prompt and each token at once, never half a UTF-8 character; returns the completion."""
    pieces: list[str] = []
    stream = engine.stream(prompt, sampling)
    sys.stdout.write(prompt)  # it was not refused
    for piece in stream:
        pieces.append(piece)
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return "".join(pieces)
