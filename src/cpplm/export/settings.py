"""Settings of `cpplm export`; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.train.checkpoint.format import check_run


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
