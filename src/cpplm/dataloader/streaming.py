"""Training shards that arrive while training runs, until `_COMPLETE` stands beside them.

Shards are taken in the order of their numbers, whenever they come, so that batches do not depend on it. A
shard is used once it could be read whole: one that is missing, or cannot be read yet, is named and waited
for. Once `_COMPLETE` is there nothing more will come, and the same is an error. Validation is with
`val_00000.parquet` alone, so that its figures can be compared over the whole run.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.shards import (
    COMPLETE,
    MANIFEST,
    Shard,
    ShardReader,
    Split,
    describe_shard,
    open_corpus,
    read_manifest,
    shard_names,
)
from cpplm.core.storage import sha256

_VALIDATION = "val_00000.parquet"
_REMIND_SECONDS = 300.0


class StreamingReader(ShardReader):
    """Reads shards as they come. A manifest is used once the set is complete, but need not be there."""

    first_epoch_in_order = True

    def __init__(
        self, location: str | Path, *, poll_seconds: float = 30.0, needs_validation: bool = True
    ) -> None:
        """Open a folder or bucket URL; waits for the first shard of each split.

        Args:
            location: the folder or URL.
            poll_seconds: between two looks at what has come.
            needs_validation: whether there has to be a validation shard.

        Raises:
            UserError: the folder does not exist, or `_COMPLETE` is there and a shard is missing or damaged.
        """
        self.storage = open_corpus(location)
        self.manifest: dict[str, Any] = {}
        self._poll_seconds = poll_seconds
        self._known: dict[str, Shard] = {}
        self._names: set[str] = set()
        self._count: int | None = None  # of the training shards, once nothing more will come
        self._unreadable: dict[str, str] = {}  # at the last look, and why
        self._next_look = self._next_reminder = 0.0
        self._waiting_for = self._reported = ""
        for name in [_train_name(0)] + [_VALIDATION] * needs_validation:
            while self._find(name) is None:
                self.wait(threading.Event())

    def shards(self, split: Split | None = None) -> list[Shard]:
        """For training those that are known by now, for validation the one."""
        known = [entry for entry in sorted(self._known.items()) if split in (None, entry[1].split)]
        return [shard for name, shard in known if shard.split == "train" or name == _VALIDATION]

    def num_train_shards(self) -> int | None:
        """Number of training shards once `_COMPLETE` is there, None before."""
        self._look()
        return self._count

    def train_shard(self, number: int) -> Shard | None:
        """The training shard of that number; None until it has come whole.

        Raises:
            UserError: it will not come any more, or is damaged for good.
        """
        return self._find(_train_name(number))

    def wait(self, stop: threading.Event) -> None:
        """Let time pass until the next look. Says what is awaited, once and then every five minutes."""
        if self._waiting_for != self._reported or time.monotonic() >= self._next_reminder:
            log_info(f"waiting for {self._waiting_for}")
            self._reported, self._next_reminder = self._waiting_for, time.monotonic() + _REMIND_SECONDS
        stop.wait(self._poll_seconds)

    def fingerprint(self) -> str:
        """Hash of the first training shard: the others are not known from the start."""
        return sha256(f"streaming {self._known[_train_name(0)].sha256}".encode())

    def _find(self, name: str) -> Shard | None:
        """The shard of that name, once it is there and whole."""
        self._look()
        if name not in self._known:
            problem = self._describe(name)
            if problem and self._count is not None:
                raise UserError(
                    f"{self.storage.path(name)} {problem}, though {COMPLETE} says that all is there",
                    fix="Copy the shard again.",
                )
            if problem:
                self._waiting_for = f"{self.storage.path(name)}, which {problem}"
        return self._known.get(name)

    def _look(self) -> None:
        """List what is there, unless that was done a moment ago or nothing more will come."""
        if self._count is not None or time.monotonic() < self._next_look:
            return
        complete = self.storage.exists(COMPLETE)  # asked first: what it promises is then in the list
        self._names = set(shard_names(self.storage))
        self._unreadable.clear()
        if complete:
            listed = self._adopt_manifest() if self.storage.exists(MANIFEST) else self._names
            self._count = sum(name.startswith("train") for name in listed)
        self._next_look = time.monotonic() + self._poll_seconds

    def _describe(self, name: str) -> str:
        """Read a whole shard and enter it, or tell why that cannot be."""
        if name not in self._names:
            return "is missing"
        if name not in self._unreadable:
            data = self.storage.read(name)
            try:
                self._known[name] = describe_shard(name, data, pq.ParquetFile(pa.BufferReader(data)).read())
            except (pa.ArrowException, OSError, KeyError) as error:
                self._unreadable[name] = f"cannot be read ({' '.join(str(error).split())})"
        return self._unreadable.get(name, "")

    def _adopt_manifest(self) -> set[str]:
        """Take all shards from the manifest, which must describe those in use; their names."""
        self.manifest, shards = read_manifest(self.storage)
        listed = {shard.name: shard for shard in shards}
        for name in sorted(self._known.keys() | listed.keys()):
            if name not in self._names or listed.get(name) != self._known.get(name, listed.get(name)):
                raise UserError(
                    f"{self.storage.path(name)} is not the file that {MANIFEST} describes",
                    fix="Copy the shard again, or train on the finished folder from the start.",
                )
        self._known = listed
        return set(listed)


def _train_name(number: int) -> str:
    return f"train_{number:05d}.parquet"
