"""Files of a directory of Hugging Face: weights, and what it has beside those and its configuration."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from torch import Tensor

from cpplm.core.storage import Storage
from cpplm.train.checkpoint.weights import MAX_FILE_BYTES, safetensors_file, split_tensors

_COPIED = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "chat_template*", "vocab.json",
           "merges.txt", "generation_config.json", "LICENSE*")  # fmt: skip


def is_of_folder(name: str) -> bool:
    """True for a file of a directory that we write."""
    return any(fnmatch(name, pattern) for pattern in (*_COPIED, "*.json", "*.safetensors"))


def copy_companions(source: Path, folder: Path) -> None:
    """Copy what a directory has beside configuration and weights."""
    for path in (path for pattern in _COPIED for path in source.glob(pattern)):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)


def write_weights(storage: Storage, weights: Mapping[str, Tensor], stem: str = "model") -> None:
    """Write weights in one file or in several with their index, as `transformers` names them."""
    parts = split_tensors(weights, MAX_FILE_BYTES)
    names = [f"{stem}.safetensors"]
    if len(parts) > 1:
        names = [f"{stem}-{n:05d}-of-{len(parts):05d}.safetensors" for n in range(1, len(parts) + 1)]
        index = {
            "metadata": {"total_size": sum(weight.nbytes for weight in weights.values())},
            "weight_map": {key: name for name, part in zip(names, parts, strict=True) for key in part},
        }
        storage.write_json(f"{stem}.safetensors.index.json", index)
    for name, part in zip(names, parts, strict=True):
        with storage.open_write(name) as file:
            for piece in safetensors_file(part, {"format": "pt"}):
                file.write(piece)
