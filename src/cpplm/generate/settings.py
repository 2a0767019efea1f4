"""Settings of `cpplm generate` and `cpplm chat`, and those that all commands with a model share."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, Precision, group, short_flag
from cpplm.core.storage import require_path
from cpplm.train.checkpoint.format import check_run

CURSOR = "<|cursor|>"
"""Where `cpplm generate --fim` writes, in a text on standard input."""


def require_at_least(settings: object, **minimums: float) -> None:
    """Check that settings are finite numbers and none is below its minimum, else UserError."""
    for name, minimum in minimums.items():
        value = getattr(settings, name)
        if not minimum <= value < math.inf:
            raise UserError(f"--{name} {value} must be at least {minimum}")


@dataclass(frozen=True)
class ModelSource:
    """The model, and the device it computes on."""

    run: Annotated[str, Argument("RUN", positional=True, letters=("i", "g"))]
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints."""
    step: Annotated[int, short_flag("s")] = -1
    """Checkpoint step (-1 = the newest)."""
    device_type: Literal["", "cuda", "mps", "cpu"] = ""
    """Device (empty = the best one present)."""
    precision: Precision = "auto"
    """Number format of matrix products; auto = bf16 where the hardware has it."""

    def __post_init__(self) -> None:
        if self.step < -1:
            raise UserError(f"--step {self.step}", fix="Use -1 for the newest checkpoint, or a step.")

    def check_paths(self) -> None:
        """Refuse a run that is not there."""
        check_run(self.run, None if self.step < 0 else self.step)


@dataclass(frozen=True)
class SamplingSettings:
    """Sampling: limits, filters and penalties of the tokens of a completion."""

    max_new_tokens: int = 256
    """Tokens to write at most; the context length of the model is a limit too."""
    temperature: Annotated[float, short_flag("t")] = 0.8
    """Divides the logits; 0 takes the likeliest token."""
    top_k: Annotated[int, short_flag("k")] = 50
    """Sample among this many likeliest tokens (0 = all)."""
    seed: int = 0
    """Seed; the same one gives the same text, sample by sample."""
    top_p: float = 1.0
    """Sample among the fewest likeliest tokens that have this share of the probability together (1 = all)."""
    min_p: float = 0.0
    """Leave out tokens less likely than this share of the likeliest one's probability."""
    repetition_penalty: float = 1.0
    """Logits of tokens that were read or written already: positive ones are divided by it, negative ones
    multiplied (CTRL, Keskar et al. 2019, arXiv 1909.05858, section 4.1)."""
    frequency_penalty: float = 0.0
    """Taken from a token's logit for each time that it was written; -2 to 2, as in OpenAI's API."""
    presence_penalty: float = 0.0
    """Taken from a token's logit once it was written; -2 to 2."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Token ids, each with what is added to its logit, -100 to 100: these two forbid and force it."""
    stop: tuple[str, ...] = ()
    """Texts that end a completion; they are no part of it."""

    def __post_init__(self) -> None:
        require_at_least(self, max_new_tokens=1)
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"--temperature {self.temperature}", fix="Use 0 (greedy) or a positive number.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed {self.seed}", fix="Use a number from 0 to 4294967295.")
        if self.top_k < 0:
            raise UserError(f"--top_k {self.top_k}", fix="Use 0 for all tokens, or a positive number.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top_p {self.top_p}", fix="Use a share above 0, 1 for all tokens.")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"--min_p {self.min_p}", fix="Use a share from 0 (all tokens) to 1.")
        if not 0 < self.repetition_penalty < math.inf:
            raise UserError(
                f"--repetition_penalty {self.repetition_penalty}", fix="Use 1 for none, or a number above 1."
            )
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a number from -2 to 2, 0 for none."
                )
        for id_, bias in self.logit_bias:
            if id_ < 0 or not -100 <= bias <= 100:
                raise UserError(
                    f"--logit_bias {id_} {bias}", fix="Use a token's id and a number from -100 to 100."
                )
        if "" in self.stop:
            raise UserError("--stop with an empty text would end every completion at once")


@dataclass(frozen=True)
class DraftSettings:
    """Drafting of tokens. It changes how fast text is written, not which."""

    kind: Literal["off", "lookup", "heads"] = "off"
    """Repeat what followed the same tokens before (lookup), or ask the model's multi-token head (heads)."""
    tokens: int = 2
    """Tokens drafted at a time, at most: with the last one written as many as a CPU's kernels take."""
    max_batch: int = 4
    """With more samples than this none is drafted: reading several tokens of each would take too long."""

    def __post_init__(self) -> None:
        require_at_least(self, tokens=1, max_batch=1)


@dataclass(frozen=True)
class SchedulerLimits:
    """Limits of a scheduler: batch, memory, chunks, drafts."""

    max_batch: int = 16
    """Samples that write at the same time."""
    cache_tokens: int = 0
    """Tokens in the cache, of all that is read and written now; 0 for as many as all rows can take."""
    prefill_chunk: int = 512
    """Tokens of prompts read per step."""
    prefix_cache_tokens: int = 8192
    """Tokens kept beyond these of what has ended, for prompts that begin alike."""
    draft: DraftSettings = field(default_factory=DraftSettings)
    """Tokens guessed ahead."""

    def __post_init__(self) -> None:
        require_at_least(self, max_batch=1, cache_tokens=0, prefill_chunk=1, prefix_cache_tokens=0)


@dataclass(frozen=True)
class ToolLimits:
    """Limits of the tools, for one answer."""

    tool_calls: int = 8
    """Maximum number of tool calls; further calls return an error to the model."""
    tool_seconds: float = 30.0
    """Time of all calls together; a tool that takes longer is stopped."""
    tool_characters: int = 2000
    """Length of a result that the model gets to read; the rest is cut off."""

    def __post_init__(self) -> None:
        require_at_least(self, tool_calls=0, tool_seconds=0, tool_characters=100)


@dataclass(frozen=True)
class FormSettings:
    """Constraints on completions; schemas, regular expressions and grammars need cpplm[grammar]."""

    schema: Annotated[Path | None, Argument("FILE")] = None
    """File with a JSON schema: JSON of that form is written."""
    regex: str | None = None
    """Regular expression that all of a completion matches."""
    grammar: Annotated[Path | None, Argument("FILE")] = None
    """File with a grammar, Lark's form or llama.cpp's (GBNF)."""
    valid: Literal["", "cpp"] = ""
    """cpp draws tokens again that break the syntax of C++; it needs no package."""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.schema, self.regex, self.grammar)) > 1:
            raise UserError("--schema, --regex and --grammar exclude each other", fix="Give one of them.")


DEFAULT_PROJECT_LINES = 0.2


@dataclass(frozen=True)
class ProjectSettings:
    """The project that the file with the hole belongs to: its text stands in front of that file, in half of
    the prompt at most, and its lines are answers where they are likely right."""

    project: Path | None = None
    """Folder of the C++ project that the file with the hole belongs to; code from its files is put before
    that file in the prompt."""
    project_lines: float = DEFAULT_PROJECT_LINES
    """Lines copied from the project, names replaced, are the answer where their estimated probability of
    being exactly right is at least this (the model is not run), or unless the model's own text is twice
    as likely (1 = never copy)."""
    project_ngrams: Literal["on", "off"] = "on"
    """N-grams of the project: what follows the last tokens there gets a share of the probability; off
    for models that know the project, or that are much larger than those of an hour."""

    def __post_init__(self) -> None:
        if not 0 < self.project_lines <= 1:
            raise UserError(f"--project_lines {self.project_lines} is no probability", fix="Use 1 for never.")
        if self.project is None and self.project_lines != DEFAULT_PROJECT_LINES:
            raise UserError("--project_lines has no effect without --project")
        if self.project is None and self.project_ngrams != "on":
            raise UserError("--project_ngrams has no effect without --project")

    def check_paths(self) -> None:
        """Refuse a project that is not there."""
        if self.project is not None:
            require_path(self.project)


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
    fim_order: Literal["psm", "spm"] = "spm"
    """With --fim: psm puts --prompt before --suffix in the model's input, spm the suffix first; a model
    trained at --fim_spm_rate 0 needs psm."""
    file: str = ""
    """With --project: the file with the hole (empty = recognized by its lines)."""
    examples: bool = False
    """Complete a few built-in prompts instead."""
    save: bool = False
    """With --examples: keep the completions in the run folder, for its page."""
    num_samples: int = 1
    """Completions of the prompt; a single one is printed as it is written."""
    draft: Literal["off", "lookup", "heads"] = "off"
    """Speculative decoding: lookup = propose what followed the same tokens earlier; heads = use the head of a
    model trained with --mtp. The output is the same."""
    draft_tokens: int = 2
    """With --draft: maximum number of proposed tokens per step."""
    form: Annotated[FormSettings, group("form")] = field(default_factory=FormSettings)
    """Constraints on completions."""
    project: Annotated[ProjectSettings, group("project")] = field(default_factory=ProjectSettings)
    """Context of a project."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """Sampling settings."""

    def __post_init__(self) -> None:
        if self.examples and self.form != FormSettings():
            raise UserError(
                "--examples are plain completions", fix="Leave out --schema, --regex, --grammar, --valid."
            )
        if self.examples and self.prompt is not None:
            raise UserError("--examples and --prompt exclude each other", fix="Give one of them.")
        if self.examples and self.num_samples != 1:
            raise UserError("--examples gives one completion each", fix="Leave out --num_samples.")
        if self.save and not self.examples:
            raise UserError("--save keeps the completions of --examples", fix="Add --examples.")
        require_at_least(self, num_samples=1, draft_tokens=1)
        self._check_fim()
        if self.draft == "off" and self.draft_tokens != GenerateSettings.draft_tokens:
            raise UserError("--draft_tokens has no effect at --draft off", fix="Add --draft lookup.")

    def _check_fim(self) -> None:
        if self.examples and (self.fim or self.draft != "off"):
            raise UserError("--examples are plain completions", fix="Leave out --fim and --draft.")
        if not self.fim and (self.fim_order != "spm" or self.suffix is not None):
            raise UserError("--suffix and --fim_order are for filling in", fix="Add --fim.")
        if self.project.project is not None and not self.fim:
            raise UserError("--project is for filling in", fix="Add --fim.")
        if self.file and self.project.project is None:
            raise UserError("--file has no effect without --project", fix="Name the folder of the project.")
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
    """Text of the system: it stands before the first question."""
    tools: Path | None = None
    """Folder of a C++ project whose files the model may search and read, and whose headers programs that it
    compiles and runs in the sandbox may include. The calculator is always there."""
    unsafe: bool = False
    """With --tools: run these programs WITHOUT isolation. Never do this on a machine you care about."""
    limits: Annotated[ToolLimits, group("tool")] = field(default_factory=ToolLimits)
    """Limits of the tools."""
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    """Sampling settings."""

    def __post_init__(self) -> None:
        if self.prompt is not None and not self.prompt.strip():
            raise UserError("--prompt is empty", fix="Give a question, or leave it out to be asked for one.")
        if self.unsafe and self.tools is None:
            raise UserError("--unsafe is about programs that tools run", fix="Add --tools, or leave it out.")

    def check_paths(self) -> None:
        """Refuse a project that is not there."""
        if self.tools is not None:
            require_path(self.tools)
