"""Uploading committed checkpoints in the background, in order, for as long as it takes.

A target that is down delays uploads, never training: an upload is tried again, after pauses that grow from a
second to a minute, until it is through. Meanwhile the local disk is not filled: of the checkpoints that wait
behind the one being uploaded, the two newest are held, older ones are given up, and that is said. What the
rules keep for ever is never given up. The remote folder has the layout and the rules of the local one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from cpplm.core.lease import FencedError
from cpplm.core.progress import log_info
from cpplm.core.storage import Storage
from cpplm.train.checkpoint.format import DamagedError, committed_steps, open_checkpoint
from cpplm.train.checkpoint.save import RetentionPolicy, copy_checkpoint, prune

HELD_BACK = 2  # checkpoints that wait behind the one being uploaded
EXIT_LIMIT = 600.0  # seconds that the end of a session waits for uploads
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between two attempts
Event = tuple[str, dict[str, Any]]  # for the run log: its name and values


def missing_steps(local: Storage, remote: Storage, retention: RetentionPolicy) -> list[int]:
    """Local checkpoints that an earlier session did not get uploaded, ascending.

    Raises:
        UserError: a listing failed.
    """
    there = committed_steps(remote)
    newest = there[-1] if there else -1
    return [
        step
        for step in committed_steps(local)
        if step > newest or (retention.is_permanent(step) and step not in there)
    ]


class Uploader:
    """A thread that uploads one checkpoint after the other; nobody else may write to `remote`.

    Attributes:
        events: for the run log: "upload" with step, path, seconds and attempts; "upload_failed" with step and
            error, once for each checkpoint; "upload_skipped" with step, and error if it is damaged.
    """

    def __init__(
        self, local: Storage, remote: Storage, retention: RetentionPolicy, *, missing: Sequence[int] = ()
    ) -> None:
        """Begin.

        Args:
            local: where checkpoints are committed.
            remote: where they go.
            retention: rules for the remote ones.
            missing: steps to upload first, see `missing_steps`.
        """
        self._local, self._remote, self._retention = local, remote, retention
        self._queue = list(missing)  # the first is being uploaded
        self._closing = self._abandoned = False
        self._fenced: FencedError | None = None
        self._changed = threading.Condition()
        self.events: SimpleQueue[Event] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def add(self, step: int) -> None:
        """Upload this checkpoint after those before it."""
        with self._changed:
            self._queue.append(step)
            for given_up in [s for s in self._queue[1:] if not self._retention.is_permanent(s)][:-HELD_BACK]:
                self._queue.remove(given_up)
                log_info(f"step {given_up}: not uploaded to {self._remote.location}, newer checkpoints wait")
                self.events.put(("upload_skipped", {"step": given_up}))
            self._changed.notify_all()

    def pending(self) -> list[int]:
        """Steps that still have to be uploaded, so must not be deleted."""
        with self._changed:
            return list(self._queue)

    def close(self) -> list[int]:
        """Wait until all is uploaded or the limit is over; returns the steps that are not, and says so.

        Raises:
            FencedError: another attempt at the run has taken over, and nothing more was uploaded.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            if self._queue and self._fenced is None:
                log_info(
                    f"uploading {_steps(self._queue)} to {self._remote.location}, "
                    f"for at most {EXIT_LIMIT:.0f} s; Ctrl-C to stop"
                )
            try:
                self._changed.wait_for(lambda: not self._queue or self._fenced, EXIT_LIMIT)
            finally:
                self._abandoned = True
                self._changed.notify_all()
            left = list(self._queue)
            if self._fenced is not None:
                raise self._fenced
        if left:
            log_info(f"not uploaded: {_steps(left)}; kept in {self._local.location} for the next session")
        return left

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closing)
                if not self._queue or self._abandoned:
                    return
                step = self._queue[0]
            if not self._upload(step):
                return
            with self._changed:
                self._queue.remove(step)
                self._changed.notify_all()

    def _upload(self, step: int) -> bool:
        """Try until it is uploaded, or cannot be; False when the session is over."""
        begin, attempts, pause = time.perf_counter(), 0, FIRST_PAUSE
        while True:
            attempts += 1
            try:
                copied = copy_checkpoint(open_checkpoint(self._local, step), self._remote)
            except FencedError as error:
                with self._changed:
                    self._fenced = error
                    self._changed.notify_all()
                return False
            except DamagedError as error:
                log_info(f"step {step}: not uploaded: {error}")
                self.events.put(("upload_skipped", {"step": step, "error": str(error)}))
                return True
            except Exception as error:  # whatever it is, training goes on
                if attempts == 1:
                    log_info(f"step {step}: upload failed, trying again: {error}")
                    self.events.put(("upload_failed", {"step": step, "error": str(error)}))
            else:
                seconds = round(time.perf_counter() - begin, 3)
                values = {"step": step, "path": copied.path(), "seconds": seconds, "attempts": attempts}
                self.events.put(("upload", values))
                prune(self._remote, self._retention)
                if attempts > 1:
                    log_info(f"step {step}: uploaded to {copied.path()} after {attempts} attempts")
                return True
            with self._changed:
                if self._changed.wait_for(lambda: self._abandoned, pause):
                    return False
            pause = min(2 * pause, LONGEST_PAUSE)


def _steps(steps: Sequence[int]) -> str:
    return f"the checkpoint{'s' if len(steps) > 1 else ''} of step {', '.join(map(str, steps))}"
