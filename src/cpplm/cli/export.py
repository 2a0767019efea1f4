"""`cpplm export`."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.export.gguf import export_to_gguf
from cpplm.export.hf import LLAMA, OURS, export_to_hf
from cpplm.export.settings import ModelExportSettings
from cpplm.train.checkpoint.format import open_run


def export(settings: ModelExportSettings) -> Report:
    """Write folder or file and say what is special about it."""
    checkpoint = open_run(settings.run, None if settings.step < 0 else settings.step)
    architecture = OURS if settings.to == "hf" else LLAMA
    if settings.to == "gguf":
        result = export_to_gguf(
            checkpoint, settings.out, run=settings.run,
            gguf_type=settings.gguf_type, license_expression=settings.license, overwrite=settings.overwrite,
        )  # fmt: skip
    else:
        result = export_to_hf(
            checkpoint, settings.out, run=settings.run,
            architecture=architecture, dtype=settings.dtype, overwrite=settings.overwrite,
        )  # fmt: skip
    kind = settings.gguf_type if settings.to == "gguf" else settings.dtype
    loaded_by = {
        "hf": "by the modeling code in the folder (trust_remote_code=True)",
        "llama": "which transformers has itself",
        "gguf": "for llama.cpp",
    }
    figures = {
        "out": str(result.out),
        "format": settings.to,
        "step": result.step,
        "architecture": architecture.name,
        "left_out": result.left_out,
        "parameters": result.parameters,
        "bytes": result.bytes,
    }
    lines = [
        f"{result.out}: step {result.step:,}, {result.parameters:,} parameters, "
        f"{result.bytes / 1e6:,.1f} MB in {kind}",
        f"{architecture.name}, {loaded_by[settings.to]}",
        *(f"left out: {part}" for part in result.left_out),
    ]
    return Report("\n".join(lines), figures)
