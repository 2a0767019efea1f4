"""Checkpoints in the background: training hands over a copy of its state and goes on.

Invariants: what training changes after `save` has returned is not in the checkpoint; one checkpoint is
written at a time; a checkpoint that waits for its upload is not deleted.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue
from types import TracebackType

import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.storage import Storage
from cpplm.train.checkpoint.format import step_folder
from cpplm.train.checkpoint.save import RankShard, RetentionPolicy, delete_files, prune, write_checkpoint
from cpplm.train.checkpoint.upload import Event, Uploader


class CheckpointWriter:
    """Saves while training goes on: `save` copies the tensors, a thread writes them.

    One checkpoint is written at a time, and one copy of the tensors is held, in memory that is used again.
    A failed save ends nothing: it is said, what was written of it is removed, and the next save is tried. But
    when the last one failed, `wait` raises its error. Use as a context manager: leaving it waits.

    With several processes each has one and writes its `RankShard`; that of the first one commits, deletes old
    checkpoints and has the uploader. Between two saves all of them have to
    `wait_for_previous`, then the first has to `clear_partial`, before any begins: what a process has begun to
    write, the first takes for what was never finished.
    """

    def __init__(
        self,
        storage: Storage,
        retention: RetentionPolicy,
        *,
        uploader: Uploader | None = None,
        upload_required: bool = False,
    ) -> None:
        """Save nothing yet; `upload_required`: the session fails if not all is uploaded at its end."""
        self.storage = storage
        self._upload_required = upload_required
        self._retention = retention
        self._uploader = uploader
        self._copies: dict[str, dict[str, Tensor]] = {}
        self._thread: threading.Thread | None = None
        self._step = -1
        self._failure: Exception | None = None
        self._events: SimpleQueue[Event] = SimpleQueue() if uploader is None else uploader.events
        self._leaving = threading.Event()

    def wait_for_previous(self, step: int) -> None:
        """Wait, and say so, while the checkpoint before that of `step` is still being written."""
        if self._thread is not None and self._thread.is_alive():
            log_info(f"step {step}: waiting until the checkpoint of step {self._step} is written")
        self.join()

    def clear_partial(self, step: int) -> None:
        """Delete what was never finished, and what there is of `step`; nobody may be writing."""
        self._prune()
        with contextlib.suppress(UserError):  # a storage that fails: the save will say so
            delete_files(self.storage, self.storage.list_names(step_folder(step)))

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        files: Mapping[str, bytes],
        shard: RankShard | None = None,
    ) -> None:
        """Begin to save; returns when the tensors may change. See `write_checkpoint`.

        Memory for copies is used again for tensors of the same names and shapes.
        """
        self.wait_for_previous(step)
        begin = time.perf_counter()
        self._copy(tensors)
        copying = time.perf_counter() - begin
        self._step = step
        self._thread = threading.Thread(target=self._write, args=(dict(files), shard, copying), daemon=True)
        self._thread.start()

    def _copy(self, tensors: Mapping[str, Mapping[str, Tensor]]) -> None:
        for file, group in tensors.items():
            copies = self._copies.setdefault(file, {})
            for name in copies.keys() - group.keys():  # of layers that were replaced
                del copies[name]
            for name, tensor in group.items():
                if name not in copies or copies[name].shape != tensor.shape:
                    copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
                copies[name].copy_(tensor.detach())

    def _write(self, files: dict[str, bytes], shard: RankShard | None, copying: float) -> None:
        begin, step = time.perf_counter(), self._step
        try:
            saved = write_checkpoint(
                self.storage, step, self._copies, files, shard=shard, leaving=self._leaving
            )
        except Exception as error:  # `wait` raises it
            self._failure = error
            log_info(f"step {step}: the checkpoint was not saved: {error}")
            self._events.put(("checkpoint_failed", {"step": step, "error": str(error)}))
            return
        self._failure = None
        if shard is not None and shard.process > 0:
            return  # the first process commits, and does the rest
        seconds = {"copy_seconds": round(copying, 4), "write_seconds": round(time.perf_counter() - begin, 4)}
        self._events.put(("checkpoint", {"step": step, "path": saved.path(), "bytes": saved.size, **seconds}))
        if self._uploader is not None:
            self._uploader.add(step)
        self._prune()

    def _prune(self) -> None:
        pending = self._uploader.pending() if self._uploader is not None else []
        prune(self.storage, self._retention, also=pending)

    def events(self) -> list[Event]:
        """Events since the last call, for the run log: names and values.

        "checkpoint" with its step, path, bytes, copy_seconds (training waited for these) and write_seconds;
        "checkpoint_failed" with step and error; those of the uploader.
        """
        return [self._events.get() for _ in range(self._events.qsize())]

    def wait(self) -> None:
        """Wait for the checkpoint that is being written.

        Raises:
            UserError: the last save failed.
        """
        self.join()
        if self._failure is not None:
            raise self._failure

    def join(self) -> None:
        """Wait as `wait` does, whether the save succeeds or not."""
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what is being written, then for the uploader, and delete what no rule keeps.

        After an error, other processes are not waited for as long: they may have ended.
        """
        if error is not None:
            self._leaving.set()
        self.join()
        left = []
        if self._uploader is not None:
            left = self._uploader.close()
            self._prune()
        if kind is None:
            self.wait()
            if left and self._upload_required:
                raise UserError(
                    f"the checkpoint of step {left[-1]} is not uploaded", fix="Start the same command again."
                )
