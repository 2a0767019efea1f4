"""Heartbeat of a run: RUN/heartbeat.json, in which the machine that works on it says how it is doing."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from cpplm.core.settings import from_dict
from cpplm.core.storage import Storage

HEARTBEAT = "heartbeat.json"


@dataclass(frozen=True)
class Heartbeat:
    """State of a trainer, or of its machine before and after.

    Attributes:
        attempt: number of its lease (`cpplm.core.lease`); 0 of a run without.
        state: setup, compiling, training, saving, done, preempted or failed.
        step: optimizer steps made.
        time: Unix seconds, by the machine's clock.
        loss: of the last step, nats per token.
        tokens_per_second: likewise.
        message: for people.
    """

    attempt: int
    state: str
    step: int = 0
    time: float = 0.0
    loss: float | None = None
    tokens_per_second: float | None = None
    message: str = ""

    def write(self, run: Storage) -> None:
        """Write the object.

        Raises:
            FencedError: another attempt has taken over, if `run` is fenced.
            UserError: the bucket refuses.
        """
        run.write_json(HEARTBEAT, asdict(self))


def read_heartbeat(run: Storage) -> Heartbeat | None:
    """The last heartbeat; None if there was none yet.

    Raises:
        UserError: the bucket cannot be read, or something else lies there.
    """
    if not run.exists(HEARTBEAT):
        return None
    return from_dict(Heartbeat, run.read_json(HEARTBEAT), where=run.path(HEARTBEAT))
