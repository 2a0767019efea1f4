"""Values of the watcher's state machine: what it sees, remembers and can do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cpplm.cloud.backend import Fault, Node
from cpplm.core.heartbeat import Heartbeat

HOUR = 3600.0


class Phase(StrEnum):
    """Progress of an attempt's machine."""

    NONE = "none"
    """There was none, or its machine is gone."""
    REQUESTED = "requested"
    """A machine may have been asked for; the answer is not known."""
    MADE = "made"
    """The cloud has said that there is one."""


@dataclass(frozen=True)
class Observed:
    """One look at a run."""

    nodes: tuple[Node, ...] | None
    """Machines of this run; None when the listing failed."""
    fault: Fault | None = None
    """Kind of failure of the listing."""
    heartbeat: Heartbeat | None = None
    step: int = -1
    """Newest committed checkpoint; -1 for none."""
    stopped: bool = False
    """A person has asked for the end."""


@dataclass(frozen=True)
class WatchState:
    """Memory of a watcher."""

    attempt: int = 0
    phase: Phase = Phase.NONE
    zone: str = ""
    since: float = 0.0
    """Time at which the phase began."""
    listed: bool = False
    """Its machine has been seen."""
    ready_since: float = 0.0
    """Time at which its machine was first seen ready; 0 before."""
    asked: float = 0.0
    """Time of the request, while that has no answer; else 0."""
    unsure: float = 0.0
    """Time of an earlier request without an answer: then a refusal is of the later request alone."""
    deleted: float = 0.0
    """Time at which its machine was deleted; 0 before."""
    reason: str = ""
    """Reason of the deletion."""
    failed: bool = False
    """It ended by its own fault."""
    zone_index: int = 0
    failures: int = 0
    """Attempts in a row that brought no new checkpoint."""
    faults: int = 0
    """Requests in a row that failed."""
    list_faults: int = 0
    """Listings in a row that failed."""
    not_before: float = 0.0
    creates: tuple[float, ...] = ()
    """Times of requests for machines during the last hour."""
    heartbeat: str = ""
    """The last one, as a text to compare; clocks of machines are not trusted."""
    heartbeat_since: float = 0.0
    progress: str = ""
    """State and step of it."""
    progress_since: float = 0.0
    start_step: int = -1
    """Newest checkpoint when the attempt began."""
    spent: float = 0.0
    """Dollars for machines that are gone."""
    launch: str = ""
    """The `tpu run` that this is about: a later one begins anew after an end."""
    outcome: str = ""
    """Reason for which there shall be no machine any more: done, budget, stopped, failed."""
    message: str = ""

    def cost(self, hourly_price: float, now: float) -> float:
        """Dollars so far."""
        return self.spent + (
            max(0.0, now - self.ready_since) / HOUR * hourly_price if self.ready_since else 0.0
        )


@dataclass(frozen=True)
class Wait:
    """Look again after so many seconds."""

    seconds: float
    reason: str = ""


@dataclass(frozen=True)
class Create:
    """Ask for the machine of an attempt; 0 for a new attempt, whose number the lease gives."""

    attempt: int
    zone: str


@dataclass(frozen=True)
class Delete:
    """Delete a machine."""

    node: Node
    reason: str
    failed: bool = False
    """The attempt ended by its own fault."""
    next_zone: bool = False


@dataclass(frozen=True)
class Finish:
    """The run needs no machine any more, and there is none."""

    outcome: str
    message: str = ""


Action = Wait | Create | Delete | Finish
