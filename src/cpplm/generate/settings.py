"""Settings that commands with a model share: which model, how tokens are chosen and drafted, how many."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, Precision, short_flag
from cpplm.train.checkpoint.format import check_run


@dataclass(frozen=True)
class ModelSource:
    """Which model, and where it computes."""

    run: Annotated[str, Argument("RUN", positional=True, letters=("i", "g"))]
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints."""
    step: Annotated[int, short_flag("s")] = -1
    """Checkpoint step (-1 = the newest)."""
    device_type: Literal["", "cuda", "mps", "cpu"] = ""
    """Device (empty = the best one present)."""
    precision: Precision = "auto"
    """Of matrix products; auto = bf16 where the hardware has it."""

    def __post_init__(self) -> None:
        if self.step < -1:
            raise UserError(f"--step {self.step}", fix="Use -1 for the newest checkpoint, or a step.")

    def check_paths(self) -> None:
        """Refuse a run that is not there."""
        check_run(self.run, None if self.step < 0 else self.step)


@dataclass(frozen=True)
class SamplingSettings:
    """How tokens are chosen, and how many."""

    max_new_tokens: int = 256
    """Tokens to write at most; the context length of the model is a limit too."""
    temperature: Annotated[float, short_flag("t")] = 0.8
    """Divides the logits; 0 takes the likeliest token."""
    top_k: Annotated[int, short_flag("k")] = 50
    """Sample among this many likeliest tokens (0 = all)."""
    seed: int = 0
    """The same seed gives the same text, sample by sample."""
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
        if self.max_new_tokens < 1:
            raise UserError(f"--max_new_tokens {self.max_new_tokens} must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"--temperature {self.temperature}", fix="Use 0 (greedy) or a positive number.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed {self.seed}", fix="Use a number from 0 to 4294967295.")
        if self.top_k < 0:
            raise UserError(f"--top_k {self.top_k}", fix="Use 0 for all tokens, or a positive number.")
        if not 0 < self.top_p <= 1:
            raise UserError(f"--top_p {self.top_p}", fix="Use a share above 0, 1 for all tokens.")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"--min_p {self.min_p}", fix="Use a share from 0 (all tokens) to 1.")
        if not 0 < self.repetition_penalty < float("inf"):
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
    """How tokens are drafted. It changes how fast text is written, not which."""

    kind: Literal["off", "lookup", "heads"] = "off"
    """Repeat what followed the same tokens before (lookup), or ask the model's multi-token head (heads)."""
    tokens: int = 2
    """Tokens drafted at a time, at most: with the last one written as many as a CPU's kernels take."""
    max_batch: int = 4
    """With more samples than this none is drafted: reading several tokens of each would take too long."""

    def __post_init__(self) -> None:
        for name in ("tokens", "max_batch"):
            if getattr(self, name) < 1:
                raise UserError(f"--draft.{name} {getattr(self, name)} must be at least 1")


@dataclass(frozen=True)
class SchedulerLimits:
    """What a scheduler may use."""

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
        for name, least in {
            "max_batch": 1,
            "cache_tokens": 0,
            "prefill_chunk": 1,
            "prefix_cache_tokens": 0,
        }.items():
            if getattr(self, name) < least:
                raise UserError(f"{name} is {getattr(self, name)}, it must be at least {least}")


@dataclass(frozen=True)
class ToolLimits:
    """Limits of the tools, for one answer."""

    tool_calls: int = 8
    """Calls; what is called beyond these is told so."""
    tool_seconds: float = 30.0
    """Time of all calls together; a tool that takes longer is stopped."""
    tool_characters: int = 2000
    """Length of a result that the model gets to read; the rest is cut off."""

    def __post_init__(self) -> None:
        for name, least in {"tool_calls": 0, "tool_seconds": 0.0, "tool_characters": 100}.items():
            if not least <= getattr(self, name) < float("inf"):
                raise UserError(f"--{name} {getattr(self, name)} must be at least {least}")
