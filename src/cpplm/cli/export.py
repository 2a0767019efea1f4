"""`cpplm export`."""

from __future__ import annotations

from pathlib import Path

import torch

from cpplm.cli.report import Report
from cpplm.core import hub
from cpplm.core.errors import UserError
from cpplm.core.storage import is_hf_folder
from cpplm.export import llama, remote_code
from cpplm.export.compressed_tensors import export_packed_directory
from cpplm.export.gguf import export_to_gguf
from cpplm.export.hf import export_to_hf, is_exported
from cpplm.export.settings import ModelExportSettings
from cpplm.train.checkpoint.format import open_run

_COMPRESSED = "which transformers loads with the package compressed-tensors"


def export(settings: ModelExportSettings) -> Report:
    """Write folder or file, push it where asked, and say what is special about it."""
    if not settings.push:
        return _export(settings)
    hub.require_push(settings.push)
    report = _export(settings)
    out = settings.out.expanduser()
    try:
        url = hub.push(
            out, settings.push, revision=settings.revision, private=settings.private, stale=is_exported
        )
    except UserError as error:
        raise UserError(f"{out} is written, but not pushed: {error}", fix="Then add --overwrite.") from error
    return Report(f"{report.text}\npushed: {url}", report.figures | {"pushed": url})


def _export(settings: ModelExportSettings) -> Report:
    if is_hf_folder(settings.run) and settings.to == "compressed-tensors":
        return _export_directory(settings)
    checkpoint = open_run(settings.run, None if settings.step < 0 else settings.step)
    architecture = remote_code.ARCHITECTURE if settings.to == "hf" else llama.ARCHITECTURE
    if settings.to == "gguf":
        result = export_to_gguf(
            checkpoint, settings.out, run=settings.run,
            gguf_type=settings.gguf_type, license_expression=settings.license, overwrite=settings.overwrite,
        )  # fmt: skip
    else:
        result = export_to_hf(
            checkpoint, settings.out, run=settings.run,
            as_llama=settings.to != "hf", dtype=settings.dtype, overwrite=settings.overwrite,
            compressed=settings.to == "compressed-tensors",
        )  # fmt: skip
    kind = settings.gguf_type if settings.to == "gguf" else settings.dtype
    loaded_by = {
        "hf": "by the modeling code in the folder (trust_remote_code=True)",
        "llama": "which transformers has itself",
        "gguf": "for llama.cpp",
        "compressed-tensors": _COMPRESSED,
    }
    figures = {
        "out": str(result.out),
        "format": settings.to,
        "step": result.step,
        "architecture": architecture,
        "left_out": result.left_out,
        "parameters": result.parameters,
        "bytes": result.bytes,
    }
    lines = [
        f"{result.out}: step {result.step:,}, {result.parameters:,} parameters, "
        f"{result.bytes / 1e6:,.1f} MB in {kind}",
        f"{architecture}, {loaded_by[settings.to]}",
        *(f"left out: {part}" for part in result.left_out),
    ]
    return Report("\n".join(lines), figures)


def _export_directory(settings: ModelExportSettings) -> Report:
    source = Path(settings.run.removeprefix("hf:"))
    size = export_packed_directory(
        source, settings.out, dtype=getattr(torch, settings.dtype), overwrite=settings.overwrite
    )
    text = f"{settings.out}: {size / 1e6:,.1f} MB, {_COMPRESSED}"
    return Report(text, {"out": str(settings.out), "format": settings.to, "bytes": size})
