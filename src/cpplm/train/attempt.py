"""One session's part in a run that machines take over from each other: its lease, and its heartbeat.

Whoever keeps the run going claims an attempt (`cpplm.core.lease`) and starts training with

    CPPLM_ATTEMPT    the number of the attempt; without it, nothing is fenced
    CPPLM_RUN        the folder or bucket of lease and heartbeat; unless given, --upload_dir, else --out

The heartbeat (`cpplm.core.heartbeat`) is written by a thread, so that a slow bucket slows no step. The first
process writes it where training uploads to a bucket or is an attempt.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.core.heartbeat import Heartbeat
from cpplm.core.lease import FencedError, FencedStorage, Lease, open_lease
from cpplm.core.preemption import watch_preemption
from cpplm.core.progress import log_info
from cpplm.core.shutdown import ATTEMPT, RUN
from cpplm.core.storage import Storage, is_bucket
from cpplm.train.distributed import DistContext
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback, StepMetrics, Trainer

State = Literal["setup", "compiling", "training", "saving", "done", "preempted", "failed"]
_LAST_SECONDS = 10.0  # that the end of a session waits for its last heartbeat


@dataclass
class Attempt:
    """Place that a run's machines share, and this session's lease on it, if any."""

    run: str
    lease: Lease | None = None
    heartbeat: HeartbeatCallback | None = None

    @classmethod
    def from_environment(cls, settings: TrainSettings) -> Attempt:
        """As the environment says; without a heartbeat.

        Raises:
            FencedError: a later attempt has taken over.
            UserError: nobody has claimed this attempt, or the run's place cannot be read.
        """
        run = os.environ.get(RUN) or settings.upload_dir or str(settings.out)
        given = os.environ.get(ATTEMPT)
        if given is None:
            return cls(run)
        if not given.isdecimal():
            raise UserError(f"{ATTEMPT}={given} is no number", fix="Unset it, to train without a lease.")
        storage = Storage(run)
        lease = open_lease(storage, int(given))
        lease.check(storage)
        return cls(run, lease)

    def open_storage(self, location: str | Path) -> Storage:
        """A place, made if it is not there, in which only the last attempt can write.

        Raises:
            UserError: it cannot be used.
        """
        if self.lease is None:
            return Storage(location, create=True)
        return FencedStorage(location, self.lease, Storage(self.run), create=True)

    @property
    def callbacks(self) -> list[Callback]:
        """Callbacks that join the run."""
        return [] if self.heartbeat is None else [self.heartbeat]

    def report(self, state: State, **values: Any) -> None:
        """Let the heartbeat say this."""
        if self.heartbeat is not None:
            self.heartbeat.update(state, **values)

    @contextmanager
    def report_end(self) -> Iterator[None]:
        """Let the last heartbeat say how the block has ended.

        Raises:
            FencedError: another attempt has taken over meanwhile.
        """
        state: State = "done"
        try:
            yield
        except BaseException as error:
            state = "preempted" if isinstance(error, KeyboardInterrupt) else "failed"
            self.report(state, message=str(error))
            raise
        finally:
            if self.heartbeat is not None:
                self.heartbeat.close(state)
                if self.heartbeat.fenced is not None:
                    raise self.heartbeat.fenced


@contextmanager
def join_attempt(settings: TrainSettings, dist: DistContext) -> Iterator[Attempt]:
    """Take part in the run as the environment says; what takes this machine away stops the block as SIGTERM.

    Raises:
        UserError: as `Attempt.from_environment`, on all processes.
        FencedError: also later, when the block has ended because of it.
    """
    with dist.raise_on_all_ranks():
        attempt = Attempt.from_environment(settings)
    if dist.is_first and (attempt.lease is not None or is_bucket(settings.upload_dir)):
        number = attempt.lease.attempt if attempt.lease else 0
        place = attempt.open_storage(attempt.run)
        attempt.heartbeat = HeartbeatCallback(place, number, settings.heartbeat_seconds)
    notice = nullcontext() if attempt.lease is None else watch_preemption(_stop_this_process)
    with attempt.report_end(), notice:
        yield attempt


def _stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


class HeartbeatCallback(Callback):
    """Writes the heartbeat of a session, by a thread, at most every so many seconds.

    Attributes:
        fenced: set when another attempt has taken over; training then stops.
    """

    def __init__(self, storage: Storage, attempt: int, seconds: float) -> None:
        """Begin with the state "setup"."""
        self._storage, self._seconds = storage, seconds
        self._beat = Heartbeat(attempt, "setup")
        self.fenced: FencedError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="heartbeat", daemon=True)
        self._thread.start()

    def update(self, state: State, **values: Any) -> None:
        """Change the next heartbeat."""
        self._beat = replace(self._beat, state=state, **values)  # in one step: the thread sees old or new

    def close(self, state: State) -> None:
        """Write the last one, unless that takes too long."""
        self.update(state)
        self._closing.set()
        self._thread.join(_LAST_SECONDS)

    @override
    def on_start(self, trainer: Trainer) -> None:
        self.update("compiling", step=trainer.state.step)

    @override
    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        self.update(
            "training",
            step=trainer.state.step,
            loss=round(metrics.losses.next_token, 5),
            tokens_per_second=round(metrics.tokens / metrics.seconds, 1),
        )
        if self.fenced is not None:
            trainer.stopping = True

    @override
    def on_end(self, trainer: Trainer) -> None:
        self.update("saving")

    def _work(self) -> None:
        said = False
        while True:
            last = self._closing.is_set()
            try:
                replace(self._beat, time=round(time.time(), 3)).write(self._storage)
            except FencedError as error:
                self.fenced = error
                return
            except UserError as error:
                if not said:
                    log_info(f"no heartbeat, trying again: {error}")
                said = True
            if last:
                return
            self._closing.wait(self._seconds)
