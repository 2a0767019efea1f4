"""`cpplm export`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.export.hf import export_to_hf
from cpplm.export.remote_code import ARCHITECTURE
from cpplm.export.settings import ModelExportSettings
from cpplm.train.checkpoint.format import open_run


def export(settings: ModelExportSettings) -> Report:
    """Write the folder and say what is special about it."""
    checkpoint = open_run(settings.run, None if settings.step < 0 else settings.step)
    result = export_to_hf(
        checkpoint, settings.out, run=settings.run, dtype=settings.dtype, overwrite=settings.overwrite
    )
    figures = {
        "out": str(result.folder),
        "format": settings.to,
        "step": result.step,
        "architecture": ARCHITECTURE,
        "left_out": result.left_out,
        "parameters": result.parameters,
        "bytes": result.bytes,
    }
    lines = [
        f"{result.folder}: step {result.step:,}, {result.parameters:,} parameters, "
        f"{result.bytes / 1e6:,.1f} MB in {settings.dtype}",
        f"{ARCHITECTURE}, by the modeling code in the folder (trust_remote_code=True)",
        *(f"left out: {part}" for part in result.left_out),
    ]
    return Report("\n".join(lines), figures)
