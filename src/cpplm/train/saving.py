"""Writing, copying and deleting checkpoints. `cpplm.train.checkpoint` says what one is.

Invariants: the manifest is the last file written and the first one deleted, so that no folder with a manifest
lacks anything; tensors go to the storage piece by piece, hashed on the way, without a second copy of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.progress import say
from cpplm.core.storage import Storage
from cpplm.train.checkpoint import MANIFEST, Checkpoint, committed_steps, folder, manifest_bytes

MAX_FILE_BYTES = 5_000_000_000  # many tools and some file systems dislike larger ones
_CHUNK = 16 << 20  # bytes handed over at once: large enough to cost no calls, small beside the tensors
# The names of types in safetensors files.
_TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class KeepRules:
    """Which checkpoints stay: the newest `last`, and for ever those of every `every`-th step (-1 = none)."""

    last: int
    every: int = -1

    def for_ever(self, step: int) -> bool:
        """Whether this step is never deleted."""
        return self.every > 0 and step % self.every == 0

    def kept(self, steps: list[int]) -> set[int]:
        """Of ascending `steps`, those that stay."""
        return {*steps[-self.last :], *(step for step in steps if self.for_ever(step))}


def write_checkpoint(
    storage: Storage,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    files: Mapping[str, bytes],
    *,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Checkpoint:
    """Write all files, then the manifest.

    Args:
        storage: gets the folder of the step; an older one of the same step is replaced.
        step: optimizer steps taken.
        tensors: per file name, such as `model.safetensors`, tensors on the CPU by name.
        files: per file name, its bytes.
        max_file_bytes: a tensors file is split before it grows larger; a single tensor never is.

    Raises:
        UserError: no space or no permission. Nothing of this step is left then, and older ones are intact.
    """
    groups = {
        file: part
        for name, group in tensors.items()
        for file, part in _split(name, group, max_file_bytes).items()
    }
    with _committing(storage, step) as entries:
        for name, data in files.items():
            entries[name] = _write(storage, f"{folder(step)}/{name}", [data])
        for name, part in groups.items():
            entries[name] = _write(storage, f"{folder(step)}/{name}", _tensors_file(part))
    return Checkpoint(storage, step, entries)


def copy_checkpoint(checkpoint: Checkpoint, target: Storage) -> Checkpoint:
    """Copy to another storage, verifying each file on the way, the manifest last.

    Raises:
        DamagedError: a file is not what was saved.
        UserError: reading or writing failed. Nothing of this step is left in `target` after either.
    """
    with _committing(target, checkpoint.step) as entries:
        for name in checkpoint.files:
            entries[name] = _write(target, f"{folder(checkpoint.step)}/{name}", checkpoint.chunks(name))
    return Checkpoint(target, checkpoint.step, entries)


@contextlib.contextmanager
def _committing(storage: Storage, step: int) -> Iterator[dict[str, dict[str, Any]]]:
    """Takes the entries of the files written in the block; commits them, or removes what is there."""
    manifest = f"{folder(step)}/{MANIFEST}"
    storage.delete([manifest])  # the same step again: gone first, so that it never covers a mixture
    entries: dict[str, dict[str, Any]] = {}
    try:
        yield entries
        storage.sync([f"{folder(step)}/{name}" for name in entries])
        storage.write(manifest, manifest_bytes(step, entries))
        storage.sync([manifest])
    except BaseException:
        with contextlib.suppress(UserError):  # a storage that fails may do so again; the first error counts
            delete_files(storage, storage.names(folder(step)))
        raise


def _write(storage: Storage, path: str, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """One file; returns its entry in the manifest."""
    digest, size = hashlib.sha256(), 0
    with storage.writing(path) as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
            size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _split(name: str, tensors: Mapping[str, Tensor], most: int) -> dict[str, dict[str, Tensor]]:
    """Tensors by file, in their order, as few files as that allows."""
    parts: list[dict[str, Tensor]] = [{}]
    room = most
    for key, tensor in tensors.items():
        room -= tensor.nbytes
        if room < 0 and parts[-1]:
            parts.append({})
            room = most - tensor.nbytes
        parts[-1][key] = tensor
    if len(parts) == 1:
        return {name: parts[0]}
    stem = name.removesuffix(".safetensors")
    return {
        f"{stem}-{number:05d}-of-{len(parts):05d}.safetensors": part
        for number, part in enumerate(parts, start=1)
    }


def _tensors_file(tensors: Mapping[str, Tensor]) -> Iterator[bytes | memoryview]:
    """A safetensors file, piece by piece: eight bytes of header length, the header in JSON, the data.

    The library itself writes to a path or into memory; neither can be hashed or uploaded on the way.
    """
    aligned = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {}
    position = 0
    for name, tensor in aligned:
        end = position + tensor.nbytes
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for _, tensor in aligned:
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]


def prune(storage: Storage, keep: KeepRules, *, also: Iterable[int] = ()) -> None:
    """Delete the checkpoints that no rule keeps, and what was never finished; what fails is tried next time.

    Args:
        storage: nobody else may be writing to it.
        keep: the rules.
        also: steps to keep besides.
    """
    try:
        kept = {folder(step) for step in (*keep.kept(committed_steps(storage)), *also)}
        names = [n for n in storage.names() if re.match(r"step_\d+/", n) and n.split("/")[0] not in kept]
        delete_files(storage, names)
    except UserError as error:
        say(f"old checkpoints in {storage.location} stay for now: {error}")


def delete_files(storage: Storage, names: list[str]) -> None:
    """Delete files of checkpoints, the manifests first, and what killed processes have left."""
    storage.delete(sorted(names, key=lambda name: (not name.endswith(f"/{MANIFEST}"), name)))
    storage.remove_leftovers()
