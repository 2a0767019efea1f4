"""`cpplm export`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.export.hf import Exported, export_to_hf
from cpplm.export.settings import ModelExportSettings
from cpplm.train.checkpoint.format import open_run


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
