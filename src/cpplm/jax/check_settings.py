"""Settings of `cpplm tpu check` and `cpplm tpu bench`: those of `cpplm train`, and what they ask besides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.settings import TrainSettings

NOWHERE = "-"  # nothing is read or written


@dataclass(frozen=True)
class UntrainedSettings(TrainSettings):
    """A run whose step alone is looked at: batches are made up, and of the tokenizer only its size counts.

    A recipe or the flags of `cpplm train` can be given as they are.
    """

    data_dir: Annotated[tuple[str, ...], Argument("CORPUS")] = (NOWHERE,)
    """Not read: it may stand among the flags of a run."""
    tokenizer: Annotated[Path, Argument("FILE")] = Path("cpp-65k")
    """File of `cpplm tokenizer train`, or the name of one that comes with cpplm: its size counts."""
    out: Annotated[Path, Argument("FOLDER")] = Path(NOWHERE)
    """Not written: it may stand among the flags of a run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backend == "torch" or self.device_type in ("cuda", "mps"):
            raise UserError(
                "this looks at the training step of JAX", fix="Leave out --backend and --device_type."
            )
        if self.lora.lora_rank:
            raise UserError("--lora_rank is PyTorch's, and this is a step of JAX", fix="Leave it out.")

    def check_paths(self) -> None:
        """Refuse a tokenizer that is not there."""
        Tokenizer.load(self.tokenizer)


@dataclass(frozen=True, kw_only=True)
class CheckSettings(UntrainedSettings):
    """Settings of `cpplm tpu check`: those of `cpplm train`, and the slice."""

    target: Annotated[str, Argument("SLICE", positional=True)]
    """Slice of TPUs: v4, v5e, v5p, v6e or v7x with a number, as in v6e-4, v5e-8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jax.multi_host:
            raise UserError("--multi_host does nothing here", fix="SLICE counts the chips of all hosts.")


@dataclass(frozen=True)
class BenchSettings(UntrainedSettings):
    """Settings of `cpplm tpu bench`: those of `cpplm train`, and how many steps."""

    steps: int = 20
    """Steps to measure."""
    warm_up: int = 3
    """Steps before them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 1 or self.warm_up < 0:
            raise UserError(
                f"--steps {self.steps} --warm_up {self.warm_up}", fix="Measure at least one step."
            )
