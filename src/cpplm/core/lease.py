"""Attempts at a run, numbered in its bucket: of two machines that think the run theirs, one can commit.

    RUN/lease/attempt_000007.json    {"attempt": 7, "owner": ..., "created": unix seconds, "token": ...}

An attempt is claimed by creating its object, which a bucket does for one of several who try. Numbers only
grow, objects are never deleted; whoever holds a lower number than the highest is fenced: it looks before each
write, and stops. The one request that is on its way while the next attempt is claimed still arrives.
"""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.core.settings import from_dict
from cpplm.core.storage import Storage

if TYPE_CHECKING:
    from obstore import WritableFile

LEASE_FOLDER = "lease"


class FencedError(UserError):
    """A later attempt has taken over: this one must not write any more."""


@dataclass(frozen=True)
class Lease:
    """One attempt; `token` tells it from others of the same owner and second."""

    attempt: int
    owner: str
    created: float
    token: str = ""
    folder: str = LEASE_FOLDER

    def check(self, storage: Storage) -> None:
        """Return if this is the last attempt.

        Raises:
            FencedError: a later one was claimed.
            UserError: the listing failed, so that nobody knows.
        """
        newest = max(_attempts(storage, self.folder), default=0)
        if newest > self.attempt:
            raise FencedError(
                f"attempt {self.attempt} of {storage.location} is over: attempt {newest} has taken it over",
                fix="Nothing of this one is written there any more.",
            )


def claim(storage: Storage, owner: str, now: float, *, folder: str = LEASE_FOLDER) -> Lease:
    """Claim the next attempt.

    Args:
        storage: of the run.
        owner: who claims it, for people.
        now: Unix seconds.
        folder: of the attempts, below the run's.

    Raises:
        UserError: the bucket cannot be listed or written.
    """
    attempt = max(_attempts(storage, folder), default=0)
    while (lease := claim_after(attempt, storage, owner, now, folder=folder)) is None:  # somebody else has it
        attempt = max(attempt + 1, *_attempts(storage, folder))
    return lease


def claim_after(
    attempt: int, storage: Storage, owner: str, now: float, *, folder: str = LEASE_FOLDER
) -> Lease | None:
    """Claim the attempt that follows this one; None if somebody has it."""
    lease = Lease(attempt + 1, owner, now, secrets.token_hex(8), folder)
    return lease if storage.create(_name(folder, attempt + 1), _content(lease)) else None


def current(storage: Storage, *, folder: str = LEASE_FOLDER) -> Lease | None:
    """The last attempt; None if there was none.

    Raises:
        UserError: the listing failed, which never reads as "none".
    """
    attempts = _attempts(storage, folder)
    return open_lease(storage, attempts[-1], folder=folder) if attempts else None


def open_lease(storage: Storage, attempt: int, *, folder: str = LEASE_FOLDER) -> Lease:
    """One attempt.

    Raises:
        UserError: nobody has claimed it, or its object cannot be read.
    """
    name = _name(folder, attempt)
    lease = from_dict(Lease, storage.read_json(name), where=storage.path(name))
    return dataclasses.replace(lease, folder=folder)


class FencedStorage(Storage):
    """A place in which one attempt writes: each write and each deletion looks at the lease before.

    Nothing is cleaned up after killed writers, as others write to the place as well.
    """

    def __init__(self, location: str | Path, lease: Lease, run: Storage, *, create: bool = False) -> None:
        """As `Storage`; `run` is where the lease lies."""
        super().__init__(location, create=create)
        self._lease, self._run = lease, run

    @override
    def write(self, name: str, data: bytes) -> None:
        self._lease.check(self._run)
        super().write(name, data)

    @override
    def create(self, name: str, data: bytes) -> bool:
        self._lease.check(self._run)
        return super().create(name, data)

    @override
    def commit(self, name: str, data: bytes) -> None:
        """Create the object: what was committed already, the other attempt cannot replace.

        Raises:
            UserError: somebody has committed it.
        """
        if not self.create(name, data):
            raise UserError(f"{self.path(name)} was written by another attempt meanwhile")

    @override
    @contextmanager
    def open_write(self, name: str) -> Iterator[WritableFile]:
        self._lease.check(self._run)
        with super().open_write(name) as file:
            yield file
            self._lease.check(self._run)  # hours may have passed; only now does the object appear

    @override
    def delete(self, names: list[str]) -> None:
        if names:
            self._lease.check(self._run)
        super().delete(names)

    @override
    def cleanup_partial_writes(self) -> None:
        """Do nothing."""


def _attempts(storage: Storage, folder: str) -> list[int]:
    """Numbers that were claimed, ascending."""
    found = (re.fullmatch(rf"{re.escape(folder)}/attempt_(\d+)\.json", n) for n in storage.list_names(folder))
    return sorted(int(match.group(1)) for match in found if match)


def _name(folder: str, attempt: int) -> str:
    return f"{folder}/attempt_{attempt:06d}.json"


def _content(lease: Lease) -> bytes:
    values = dataclasses.asdict(lease)
    del values["folder"]
    return (json.dumps(values, indent=1, sort_keys=True) + "\n").encode()
