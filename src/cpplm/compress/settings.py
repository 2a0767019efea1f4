"""Settings of the commands `cpplm compress`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.storage import require_path, split_step
from cpplm.model.quantized.recipe import Recipe
from cpplm.model.quantized.rounding import InitMethod


@dataclass(frozen=True)
class QuantizeSettings:
    """Rounding of a model without training: the baseline of everything else."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Model to quantise: RUN or RUN:STEP, a folder or bucket URL."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder for the packed model, which every command takes as a run."""
    recipe: str = "int4"
    """Formats by role, as mlp=half2:g32,attn=half4:g32,embed=int8, or a preset: int8, int4, int2, q4_0, and
    the seed method's q4_r32, q4a4_r32, q4a4, q2a4, q2a2. A run of `compress qat` keeps its own."""
    init: InitMethod = "mse"
    """How scales are found: largest magnitude, least squared error, or that weighted by activations."""
    data_dir: str = ""
    """Corpus whose activations count, for --init activation."""
    num_tokens: int = 16_384
    """So many tokens of it."""

    def __post_init__(self) -> None:
        Recipe.parse(self.recipe)
        if (self.init == "activation") != bool(self.data_dir):
            raise UserError(
                "--init activation and --data_dir go together", fix="Give both, or neither: --init mse."
            )
        if self.num_tokens < 1:
            raise UserError(f"--num_tokens {self.num_tokens}", fix="Use a number from 1 up.")
        if self.num_tokens != type(self).num_tokens and not self.data_dir:
            raise UserError("--num_tokens does nothing without --data_dir", fix="Leave it out.")

    def check_paths(self) -> None:
        """Refuse a run or a corpus that is not there."""
        require_path(split_step(self.run)[0])
        if self.data_dir:
            require_path(self.data_dir)


@dataclass(frozen=True)
class CompareSettings:
    """What quantised models lost, measured against the model that they stand for."""

    teacher: Annotated[str, Argument("RUN", positional=True)]
    """The model before: RUN or RUN:STEP."""
    data_dir: Annotated[str, Argument("CORPUS")]
    """Held-out code: a corpus, whose validation documents are taken, or any that `evaluate bpb` takes."""
    students: Annotated[tuple[str, ...], Argument("RUN")] = ()
    """Quantised models: runs of `compress quantize`, `compress qat` or `train --quantize`."""
    recipes: tuple[str, ...] = ()
    """Further recipes to measure by rounding alone; those of the students are, anyway."""
    num_tokens: int = 50_000
    """Tokens to measure on."""

    def __post_init__(self) -> None:
        for recipe in self.recipes:
            Recipe.parse(recipe)
        if not self.students and not self.recipes:
            raise UserError("nothing to compare", fix="Add --students RUN or --recipes int4.")
        if self.num_tokens < 1:
            raise UserError(f"--num_tokens {self.num_tokens}", fix="Use a number from 1 up.")

    def check_paths(self) -> None:
        """Refuse runs that are not there."""
        for run in (self.teacher, *self.students):
            require_path(split_step(run)[0])
