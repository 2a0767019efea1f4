"""Packed weights in a directory of Hugging Face's, beside its `config.json`.

DIR/packed.safetensors    as `packing` says; above 5 GB several files
    quantization.json     its record
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from cpplm.core.errors import UserError

STEM, RECORD = "packed", "quantization.json"


def is_packed(folder: Path) -> bool:
    """True for a directory with weights of few bits, in our format."""
    return (folder / RECORD).is_file()


def read_packed(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a packed directory, and their record.

    Raises:
        UserError: a file is damaged; names it.
    """
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob(f"{STEM}*.safetensors")):
        try:
            tensors |= safetensors.torch.load_file(path)
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(f"{path} is damaged: {error}", fix="Pack the model again.") from error
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        record["layers"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / RECORD} is damaged: {error!r}", fix="Pack the model again.") from error
    return tensors, record
