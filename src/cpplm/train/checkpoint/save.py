"""Writing, copying and deleting checkpoints. `cpplm.train.checkpoint.format` says what one is.

Several processes may write one together, each the tensors of its own: the first writes the manifest when the
others have reported theirs, by a small file each. Which of them wrote what, nothing says afterwards.

Invariants: the manifest is the last file written and the first one deleted, so that no folder with a manifest
lacks anything; tensors go to the storage piece by piece, hashed on the way, without a second copy of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.storage import Storage
from cpplm.train.checkpoint.format import MANIFEST, Checkpoint, committed_steps, manifest_bytes, step_folder
from cpplm.train.checkpoint.weights import MAX_FILE_BYTES, safetensors_file, split_tensors

# Seconds that the first process waits for the others' shares; and when it is about to end after an error.
PATIENCE, LAST_PATIENCE = 600.0, 60.0


@dataclass(frozen=True)
class RetentionPolicy:
    """Rules for old checkpoints: the newest `last` stay, and for ever each `every`-th step (-1 = none)."""

    last: int
    every: int = -1

    def is_permanent(self, step: int) -> bool:
        """True if this step is never deleted."""
        return self.every > 0 and step % self.every == 0

    def steps_to_keep(self, steps: list[int]) -> set[int]:
        """Those of ascending `steps` that stay."""
        return {*steps[-self.last :], *(step for step in steps if self.is_permanent(step))}


@dataclass(frozen=True)
class RankShard:
    """One process's part of a checkpoint.

    Attributes:
        process: its number; process 0 commits.
        files: per process, how many files its tensors take, by the file that they would make together.
        token: of this one save: what an earlier attempt has left is not taken for a report.
    """

    process: int
    files: Sequence[Mapping[str, int]]
    token: str

    def file_names(self, name: str) -> list[str]:
        """Names of the files of this process for `name`, such as `model.safetensors`."""
        counts = [files[name] for files in self.files]
        first, total = sum(counts[: self.process]), sum(counts)
        if total == 1:
            return [name]
        stem = name.removesuffix(".safetensors")
        numbers = range(first + 1, first + counts[self.process] + 1)
        return [f"{stem}-{number:05d}-of-{total:05d}.safetensors" for number in numbers]

    def report(self, process: int) -> str:
        """The file by which a process says that it has written its share."""
        return f"written-{self.token}-{process}.json"


def write_checkpoint(
    storage: Storage,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    files: Mapping[str, bytes],
    *,
    shard: RankShard | None = None,
    leaving: threading.Event | None = None,
) -> Checkpoint:
    """Write all files, then the manifest.

    With a `shard`, every process of it has to call this, and the step's folder has to be empty.

    Args:
        storage: gets the folder of the step; an older one of the same step is replaced.
        step: optimizer steps taken.
        tensors: per file name, such as `model.safetensors`, tensors on the CPU by name; a file is split
            before it grows larger than `MAX_FILE_BYTES`, a single tensor never is.
        files: per file name, its bytes.
        shard: of this process; None when it writes alone. What it is given then is its own: of `files`,
            those that no other process has.
        leaving: set when the other processes may have ended, and are not to be waited for as long.

    Returns:
        The checkpoint; but for the first process, only what it wrote itself.

    Raises:
        UserError: no space or no permission, here or with another process. Nothing of this step is left then,
            but for what other processes wrote, which the next `prune` removes; older ones are intact.
    """
    groups = {name: split_tensors(group, MAX_FILE_BYTES) for name, group in tensors.items()}
    shard = shard or RankShard(0, [count_files(tensors)], "")
    alone = len(shard.files) == 1
    committing = (
        _committing(storage, step, alone=alone) if shard.process == 0 else _reporting(storage, step, shard)
    )
    with committing as entries:
        for name, data in files.items():
            entries[name] = write_pieces(storage, f"{step_folder(step)}/{name}", [data])
        for name, parts in groups.items():
            for file, part in zip(shard.file_names(name), parts, strict=True):
                entries[file] = write_pieces(storage, f"{step_folder(step)}/{file}", safetensors_file(part))
        if shard.process == 0:
            entries.update(_reported(storage, step, shard, leaving or threading.Event()))
    return Checkpoint(storage, step, entries)


def count_files(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, int]:
    """Count the files that `write_checkpoint` will make of the tensors of each file name."""
    return {name: len(split_tensors(group, MAX_FILE_BYTES)) for name, group in tensors.items()}


def copy_checkpoint(checkpoint: Checkpoint, target: Storage) -> Checkpoint:
    """Copy to another storage, verifying each file on the way, the manifest last.

    Raises:
        DamagedError: a file is not what was saved.
        UserError: reading or writing failed. Nothing of this step is left in `target` after either.
    """
    with _committing(target, checkpoint.step) as entries:
        for name in checkpoint.files:
            entries[name] = write_pieces(
                target, f"{step_folder(checkpoint.step)}/{name}", checkpoint.chunks(name)
            )
    return Checkpoint(target, checkpoint.step, entries)


@contextlib.contextmanager
def _committing(storage: Storage, step: int, *, alone: bool = True) -> Iterator[dict[str, dict[str, Any]]]:
    """Takes the entries of the files written in the block; commits them, or removes what is there.

    Not `alone`, it removes only those: others may still be writing.
    """
    manifest = f"{step_folder(step)}/{MANIFEST}"
    storage.delete([manifest])  # the same step again: gone first, so that it never covers a mixture
    entries: dict[str, dict[str, Any]] = {}
    try:
        yield entries
        storage.sync([f"{step_folder(step)}/{name}" for name in entries])
        storage.commit(manifest, manifest_bytes(step, entries))
        storage.sync([manifest])
    except BaseException:
        with contextlib.suppress(UserError):  # a storage that fails may do so again; the first error counts
            if alone:
                delete_files(storage, storage.list_names(step_folder(step)))
            else:
                storage.delete([manifest, *(f"{step_folder(step)}/{name}" for name in entries)])
        raise


@contextlib.contextmanager
def _reporting(storage: Storage, step: int, shard: RankShard) -> Iterator[dict[str, dict[str, Any]]]:
    """Takes the entries of the files written in the block; reports them, or removes these and reports why."""
    report = f"{step_folder(step)}/{shard.report(shard.process)}"
    entries: dict[str, dict[str, Any]] = {}
    try:
        yield entries
        storage.sync([f"{step_folder(step)}/{name}" for name in entries])
        storage.write(report, json.dumps({"files": entries}).encode())
    except BaseException as error:
        with contextlib.suppress(UserError):  # then the first process waits in vain, and gives up
            storage.delete([f"{step_folder(step)}/{name}" for name in entries])
            storage.write(report, json.dumps({"error": str(error)}).encode())
        raise


def _reported(
    storage: Storage, step: int, shard: RankShard, leaving: threading.Event
) -> dict[str, dict[str, Any]]:
    """Wait for the entries of all other processes.

    Raises:
        UserError: one of them has failed, or says nothing.
    """
    entries: dict[str, dict[str, Any]] = {}
    reports = [f"{step_folder(step)}/{shard.report(process)}" for process in range(len(shard.files))]
    waiting, begin, pause = set(range(1, len(shard.files))), time.monotonic(), 0.05
    while waiting:
        for process in [process for process in waiting if storage.exists(reports[process])]:
            report = json.loads(storage.read(reports[process]))
            if "error" in report:
                raise UserError(f"process {process}: {report['error']}")
            entries |= report["files"]
            waiting.remove(process)
        if waiting:
            patience = LAST_PATIENCE if leaving.is_set() else PATIENCE
            if time.monotonic() - begin > patience:
                raise UserError(f"process {min(waiting)} has not written its share within {patience:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
    storage.delete(reports[1:])
    return entries


def write_pieces(storage: Storage, path: str, pieces: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """One file; returns its entry in the manifest."""
    digest, size = hashlib.sha256(), 0
    with storage.open_write(path) as file:
        for piece in pieces:
            digest.update(piece)
            file.write(piece)
            size += len(piece)
    return {"bytes": size, "sha256": digest.hexdigest()}


def prune(storage: Storage, retention: RetentionPolicy, *, also: Iterable[int] = ()) -> None:
    """Delete the checkpoints that no rule keeps, and what was never finished; what fails is tried next time.

    Args:
        storage: nobody else may be writing to it.
        retention: the rules.
        also: steps to keep besides.
    """
    try:
        kept = {step_folder(step) for step in (*retention.steps_to_keep(committed_steps(storage)), *also)}
        names = [n for n in storage.list_names() if re.match(r"step_\d+/", n) and n.split("/")[0] not in kept]
        delete_files(storage, names)
    except UserError as error:
        log_info(f"old checkpoints in {storage.location} stay for now: {error}")


def delete_files(storage: Storage, names: list[str]) -> None:
    """Delete files of checkpoints, the manifests first, and what killed processes have left."""
    storage.delete(sorted(names, key=lambda name: (not name.endswith(f"/{MANIFEST}"), name)))
    storage.cleanup_partial_writes()
