"""`cpplm export`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cpplm.cli.report import Report
from cpplm.core.errors import UserError
from cpplm.export.hf import Exported, export_to_hf
from cpplm.train.checkpoint import open_run


@dataclass(frozen=True)
class ModelExportSettings:
    """Settings of `cpplm export`."""

    run: str
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints."""
    out: Path
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


def export(settings: ModelExportSettings) -> Report:
    """Write the folder and say what is special about it."""
    checkpoint = open_run(settings.run, None if settings.step < 0 else settings.step)
    exported = export_to_hf(
        checkpoint, settings.out, run=settings.run, dtype=settings.dtype, overwrite=settings.overwrite
    )
    figures = {
        "out": str(exported.folder),
        "format": settings.to,
        "step": exported.step,
        "architecture": exported.architecture,
        "trust_remote_code": bool(exported.lacking),
        "not_native": exported.lacking,
        "left_out": exported.left_out,
        "parameters": exported.parameters,
        "bytes": exported.bytes,
    }
    return Report(_text(exported, settings.dtype), figures)


def _text(exported: Exported, dtype: str) -> str:
    lines = [
        f"{exported.folder}: step {exported.step:,}, {exported.parameters:,} parameters, "
        f"{exported.bytes / 1e6:,.1f} MB in {dtype}"
    ]
    if exported.lacking:
        lines.append(
            f"{exported.architecture}, by the modeling code in the folder (trust_remote_code=True), "
            "since no architecture of transformers has:"
        )
        lines += [f"  {what}" for what in exported.lacking]
    else:
        lines.append(f"{exported.architecture}, which transformers has itself")
    lines += [f"left out: {what}" for what in exported.left_out]
    return "\n".join(lines)
