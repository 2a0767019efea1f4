"""Interface to those who give machines: Cloud TPU, Slurm, local processes.

A backend keeps nothing of its own: what there is, it asks for. A listing that fails raises; an empty list
means that there is nothing. Whatever goes wrong is a `CloudError`; its `Fault` says whether the answer
is known. Compute Engine or GKE would be one more class with these five methods.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from cpplm.core.errors import UserError
from cpplm.core.storage import sha256


class NodeState(StrEnum):
    """State of a machine, as far as its backend says."""

    WAITING = "waiting"
    """Asked for; the cloud has none free, or has not decided."""
    CREATING = "creating"
    READY = "ready"
    PREEMPTED = "preempted"
    """Taken away; it can only be deleted."""
    SUSPENDED = "suspended"
    """A request that is not filled again; it can only be deleted."""
    FAILED = "failed"
    STOPPED = "stopped"
    """Ended by itself, or by a person."""
    DELETING = "deleting"
    UNKNOWN = "unknown"


class Fault(StrEnum):
    """Kind of failure of a request."""

    EXHAUSTED = "exhausted"
    """No quota or no stock: certainly nothing was made."""
    UNAVAILABLE = "unavailable"
    """No answer, or not in time: it may have been carried out."""
    REFUSED = "refused"
    """Credentials or permissions: certainly not carried out, until a person fixes it."""
    INVALID = "invalid"
    """It can never be carried out as it is."""
    EXISTS = "exists"
    MISSING = "missing"


class CloudError(UserError):
    """A request to a backend that failed."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(f"{fault}: {message}")
        self.fault, self.message = fault, message


@dataclass(frozen=True)
class Node:
    """A machine, or a request for one."""

    name: str
    zone: str
    state: NodeState
    type: str = ""
    spot: bool = False
    run: str = ""
    """Key of the run that it was made for, see `run_key`; empty for others."""
    attempt: int = 0
    created: float = 0.0
    """Unix seconds; 0 where the backend does not say."""
    message: str = ""
    """Reason of a failure, or its health."""
    address: str = ""


@dataclass(frozen=True)
class NodeRequest:
    """A machine to be made. The same request twice gives one machine: name and `request_id` follow from the
    run and the attempt."""

    name: str
    zone: str
    type: str = ""
    runtime: str = ""
    spot: bool = False
    run: str = ""
    attempt: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    """Attributes that the start-up script reads; never a credential."""

    @property
    def request_id(self) -> str:
        """The same for the same name: the cloud carries out one request of an id."""
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"cpplm:{self.zone}:{self.name}"))


class Backend(Protocol):
    """A place where machines can be had."""

    def create(self, request: NodeRequest) -> None:
        """Ask for a machine; it appears in `list`.

        Raises:
            CloudError: EXISTS if one of this name was made before, even if it is gone.
        """

    def list(self) -> list[Node]:
        """All machines, and requests for some, in all zones.

        Raises:
            CloudError: the listing failed, or a part of it is missing.
        """

    def delete(self, node: Node) -> None:
        """Delete a machine and the request for it, whatever it is doing.

        Raises:
            CloudError: MISSING if it is gone.
        """

    def stop(self, node: Node) -> None:
        """Stop a machine so that it can be started again.

        Raises:
            CloudError: INVALID where this is not possible.
        """
        raise CloudError(Fault.INVALID, f"{node.name} cannot be stopped and started again; delete it")


def find(backend: Backend, name: str, zone: str = "") -> Node:
    """The machine of a name.

    Raises:
        UserError: there is none, or there are several and no zone is named.
        CloudError: the listing failed.
    """
    there = backend.list()
    named = [node for node in there if node.name == name and zone in ("", node.zone)]
    if len(named) > 1:
        raise UserError(f"{name} is in {len(named)} zones", fix=f"Add --zone {named[0].zone}.")
    if not named:
        names = ", ".join(sorted(node.name for node in there)) or "none"
        raise UserError(f"no machine {name}", fix=f"There are: {names}.")
    return named[0]


def run_key(location: str) -> str:
    """A name of the run at `location` that can be part of a machine's."""
    last = re.sub(r"[^a-z0-9]+", "-", location.rstrip("/").rpartition("/")[2].lower()).strip("-")
    return f"cpplm-{last[:24] or 'run'}-{sha256(location.rstrip('/').encode())[:8]}"


def node_name(key: str, attempt: int) -> str:
    """The name of the machine of an attempt."""
    return f"{key}-{attempt}"
