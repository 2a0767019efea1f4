"""Settings of the commands that the command line itself puts together; other parts have their own.

Nothing here needs torch, so that `--help` and a wrong flag are answered at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, group, short_flag
from cpplm.core.storage import require_path
from cpplm.generate.settings import ModelSource, SamplingSettings, ToolLimits
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import check_run

CURSOR = "<|cursor|>"
"""Where `cpplm generate --fim` writes, in a text on standard input."""


@dataclass(frozen=True)
class GenerateSettings:
    """Settings of `cpplm generate`."""

    model: ModelSource
    """The model."""
    prompt: Annotated[str | None, short_flag("p")] = None
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


@dataclass(frozen=True)
class ChatSettings:
    """Settings of `cpplm chat`."""

    model: ModelSource
    """The model."""
    prompt: Annotated[str | None, short_flag("p")] = None
    """Answer this and end, instead of asking for questions."""
    system: str = ""
    """What the model is told before the first question."""
    tools: Path | None = None
    """Folder of a C++ project whose files the model may search and read, and whose headers programs that it
    compiles and runs in the sandbox may include. The calculator is always there."""
    unsafe: bool = False
    """With --tools: run these programs WITHOUT isolation. Never do this on a machine you care about."""
    limits: Annotated[ToolLimits, group("tool")] = field(default_factory=ToolLimits)
    """Of the tools."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """How tokens are chosen."""

    def __post_init__(self) -> None:
        if self.prompt is not None and not self.prompt.strip():
            raise UserError("--prompt is empty", fix="Give a question, or leave it out to be asked for one.")
        if self.unsafe and self.tools is None:
            raise UserError("--unsafe is about programs that tools run", fix="Add --tools, or leave it out.")

    def check_paths(self) -> None:
        """Refuse a project that is not there."""
        if self.tools is not None:
            require_path(self.tools)


@dataclass(frozen=True)
class ModelExportSettings:
    """Settings of `cpplm export`."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder to write; it appears when everything is in it."""
    to: Literal["hf", "gguf"] = "hf"
    """hf: what `transformers` loads; gguf is refused, for every model, with the reason."""
    step: int = -1
    """Checkpoint step (-1 = the newest)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights; bfloat16 takes half the space and rounds them."""
    overwrite: bool = False
    """Replace an earlier export in --out."""

    def __post_init__(self) -> None:
        if self.to == "gguf":
            raise UserError(
                "GGUF can express no model of cpplm: none of llama.cpp's architectures caps the logits "
                "without also normalizing what attention and MLP give back (docs/export.md)",
                fix="Use --to hf, or serve the model with `cpplm serve`.",
            )
        if self.step < -1:
            raise UserError(f"--step {self.step}", fix="Use -1 for the newest checkpoint, or a step.")

    def check_paths(self) -> None:
        """Refuse a run that is not there."""
        check_run(self.run, None if self.step < 0 else self.step)


@dataclass(frozen=True)
class RunPageSettings:
    """Settings of `cpplm runs page`."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Run folder of `cpplm train`."""
    out: Path | None = None
    """Write the page to this file (default: page.html in the run folder; where that cannot be written, the
    present folder gets it)."""


@dataclass(frozen=True)
class RunCompareSettings:
    """Settings of `cpplm runs compare`."""

    runs: Annotated[tuple[str, ...], Argument("RUN", positional=True)] = ()
    """Run folders of `cpplm train`, two or more."""
    out: Path | None = None
    """Also write a page with their curves to this file."""


@dataclass(frozen=True)
class RunListSettings:
    """Settings of `cpplm runs list`."""

    folder: Annotated[str, Argument("FOLDER", positional=True)] = "runs"
    """Folder under which the runs lie."""


@dataclass(frozen=True)
class CheckpointListSettings:
    """Settings of `cpplm checkpoints list`."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints."""


@dataclass(frozen=True)
class VerifySettings:
    """Settings of `cpplm checkpoints verify`."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints."""
    step: int = -1
    """Only this one (-1 = all)."""


@dataclass(frozen=True)
class ImportSettings:
    """Settings of `cpplm checkpoints import`."""

    source: Annotated[Path, Argument("SOURCE", positional=True)]
    """Folder with nanochat's `model_*.pt` and `meta_*.json`, or one `model_*.pt`."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder for the checkpoint; `cpplm generate` and `cpplm evaluate` take it as a run."""
    tokenizer: Annotated[Path, Argument("FILE")]
    """File of `cpplm tokenizer train` that gives the ids which the model was trained with."""
    step: int = -1
    """Which of several (-1 = the newest)."""
    stage: Literal["auto", "base", "mid", "sft", "rl"] = "auto"
    """Stage of its training (auto = by the folder in which nanochat put it, base in any other)."""

    def check_paths(self) -> None:
        """Refuse a checkpoint or a tokenizer that is not there."""
        require_path(self.source)
        Tokenizer.load(self.tokenizer)


@dataclass(frozen=True)
class DoctorSettings:
    """Settings of `cpplm doctor`: none."""
