"""Files by name under one root: a local folder, a bucket (s3://, gs://, az://), or a place on the hub (hf://).

Every write is atomic: a reader sees the old object or the new one, never half of one. Backed by obstore; the
hub is only read, by `cpplm.core.hub`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from obstore import open_writer
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import LocalStore, ObjectStore, from_url

from cpplm.core import hub
from cpplm.core.errors import UserError

if TYPE_CHECKING:
    from obstore import WritableFile
    from obstore.store import ClientConfig, RetryConfig

# A missing credential is looked for over the network: fail within seconds, not after minutes of retries.
_CLIENT: ClientConfig = {"timeout": timedelta(seconds=120), "connect_timeout": timedelta(seconds=5)}
_RETRY: RetryConfig = {"max_retries": 4, "retry_timeout": timedelta(seconds=60)}
_MISSING = (NotFoundError, FileNotFoundError)
_FAILED = (BaseError, OSError, ValueError)  # ValueError: a name that no object can have
_MAKE_ROOM = "Free some space or check the permissions, then run the same command again."


def is_bucket(location: str | Path) -> bool:
    """True for a URL such as s3://bucket/run, False for a local path."""
    return "://" in str(location)


def is_hf_folder(location: str) -> bool:
    """True for hf:DIR, a folder of transformers; False for hf://OWNER/NAME, a place on the hub."""
    return location.startswith("hf:") and not is_bucket(location)


def restore_url(path: str | Path) -> str:
    """A URL that became a `Path`, which makes one slash of two, as it was; anything else as it is."""
    return re.sub(r"^([a-z][a-z0-9]+):/(?!/)", r"\1://", str(path))


def split_step(run: str) -> tuple[str, int | None]:
    """The location and the step of RUN:STEP; no step for RUN."""
    location, _, step = run.rpartition(":")
    if not location or not step.isdecimal() or (is_bucket(run) and not is_bucket(location)):
        return run, None
    return location, int(step)


def require_path(location: str | Path) -> None:
    """Refuse with UserError a local path, also of hf:DIR, at which nothing is; no bucket is looked at."""
    path = str(location).removeprefix("hf:")
    if not is_bucket(location) and not Path(path).expanduser().exists():
        raise UserError(f"no such folder or file: {path}", fix="Check the path.")


class Storage:
    """Objects under `location`, addressed by relative names such as "checkpoints/step_000100/state.json"."""

    def __init__(self, location: str | Path, *, create: bool = False) -> None:
        """Open a root; a local folder must exist unless `create`.

        Raises:
            UserError: the folder does not exist, cannot be made, or the URL cannot be used.
        """
        self.location = str(location)
        self._store: ObjectStore
        try:
            if self.location.startswith(hub.PREFIX):
                there = hub.HubStore(self.location)
                if create:
                    there.put("")
                self.location, self._store = str(there.location), cast("ObjectStore", there)
            elif is_bucket(location):
                self._store = from_url(self.location, client_options=_client(), retry_config=_RETRY)
            else:
                root = Path(location).expanduser()
                if create:
                    root.mkdir(parents=True, exist_ok=True)
                if not root.is_dir():
                    raise UserError(f"no such folder: {root}")
                self.location = str(root)
                self._store = LocalStore(root, mkdir=True)
        except _FAILED as error:
            raise UserError(f"cannot use {location}: {_reason(error)}") from error

    def __repr__(self) -> str:
        return f"Storage({self.location!r})"

    def path(self, name: str) -> str:
        """The full path or URL of `name`, for messages."""
        return f"{self.location.rstrip('/')}/{name}"

    @contextlib.contextmanager
    def _explained(self, action: str, name: str, about: str = "") -> Iterator[None]:
        """Whatever the store raises while it does this becomes a `UserError`."""
        try:
            yield
        except _FAILED as error:
            if action == "read" and isinstance(error, _MISSING):
                raise UserError(f"no such file: {self.path(name)}") from error
            raise UserError(
                f"cannot {action} {self.path(name)}{about}: {_reason(error)}",
                fix=_MAKE_ROOM if action == "write" else "",
            ) from error

    def exists(self, name: str) -> bool:
        """True if the object is there. A failing listing raises instead of answering False."""
        with self._explained("look up", name):
            try:
                self._store.head(name)
            except _MISSING:
                return False
        return True

    def read(self, name: str) -> bytes:
        """The whole object.

        Raises:
            UserError: it is not there or cannot be read.
        """
        with self._explained("read", name):
            return bytes(self._store.get(name).bytes())

    def chunks(self, name: str) -> Iterator[bytes]:
        """The object piece by piece, each some megabytes, so that it need not fit into memory.

        Raises:
            UserError: as `read`, also between two pieces.
        """
        with self._explained("read", name):
            yield from self._store.get(name).stream()

    def write(self, name: str, data: bytes) -> None:
        """Write the object atomically, replacing an older one.

        Raises:
            UserError: no space left, no permission, or the bucket refused. Nothing is left behind.
        """
        with self._explained("write", name, f" ({len(data):,} bytes)"):
            self._store.put(name, data)

    def create(self, name: str, data: bytes) -> bool:
        """Write the object only if there is none of that name; of several who try at once, one does.

        A lost answer is asked for again, and then finds its own object: data that nobody else would write
        tell that apart.

        Returns:
            False if an object of that name was there.

        Raises:
            UserError: as `write`.
        """
        with self._explained("write", name, f" ({len(data):,} bytes)"):
            try:
                self._store.put(name, data, mode="create")
            except (AlreadyExistsError, PreconditionError):
                return bytes(self._store.get(name).bytes()) == data
        return True

    def commit(self, name: str, data: bytes) -> None:
        """Write the object that makes others count, replacing an older one where this is the only writer.

        Raises:
            UserError: as `write`.
        """
        self.write(name, data)

    @contextlib.contextmanager
    def open_write(self, name: str) -> Iterator[WritableFile]:
        """A file for bytes of any length: the object appears when the block ends, and only without an error.

        Raises:
            UserError: as `write`.
        """
        if isinstance(self._store, hub.HubStore):
            self._store.put(name)
        try:
            with open_writer(self._store, name) as file:
                yield file
        except (BaseError, OSError) as error:  # not ValueError: that would be the caller's
            raise UserError(f"cannot write {self.path(name)}: {_reason(error)}", fix=_MAKE_ROOM) from error

    def list_names(self, prefix: str = "") -> list[str]:
        """All object names below the folder `prefix`, sorted.

        Raises:
            UserError: the listing failed; a failed listing is never taken for an empty one.
        """
        return sorted(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Bytes of each object below the folder `prefix`, by name; UserError as of `list_names`."""
        with self._explained("list", prefix):
            batches = list(self._store.list(prefix=prefix or None))
        return {entry["path"]: entry["size"] for batch in batches for entry in batch}

    def modified(self, name: str) -> datetime:
        """Time at which the object was written, by the clock of the store; UserError as of `read`."""
        with self._explained("read", name):
            return self._store.head(name)["last_modified"]

    def delete(self, names: list[str]) -> None:
        """Delete objects; those already gone are fine."""
        for name in names:
            with self._explained("delete", name), contextlib.suppress(*_MISSING):
                self._store.delete(name)

    def sync(self, names: list[str]) -> None:
        """Wait until these local files would survive a power cut; a bucket keeps what it has accepted.

        Raises:
            UserError: the disk reports a late failure.
        """
        if is_bucket(self.location) or os.name != "posix":  # Windows cannot open folders
            return
        paths = [Path(self.location, name) for name in names]
        for path in [*paths, *{path.parent for path in paths}]:
            try:
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
            except OSError as error:
                raise UserError(f"cannot write {path}: {error.strerror}", fix="Free some space.") from error

    def cleanup_partial_writes(self) -> None:
        """Delete what a killed process left of its writes and deletions: halves of files, empty folders.

        Only for the one process that writes here. A bucket keeps no such things.
        """
        if is_bucket(self.location):
            return
        for folder, _, files in os.walk(self.location, topdown=False):
            for name in files:
                if re.search(r"#\d+$", name):  # how the local store names a file that is being written
                    Path(folder, name).unlink(missing_ok=True)
            if folder != self.location:
                with contextlib.suppress(OSError):  # not empty
                    Path(folder).rmdir()

    def read_json(self, name: str) -> Any:
        """The object parsed as JSON.

        Raises:
            UserError: it is missing or not JSON.
        """
        try:
            return json.loads(self.read(name))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UserError(
                f"{self.path(name)} is not valid JSON: {error}",
                fix="Delete it and run the step that wrote it.",
            ) from error

    def write_json(self, name: str, value: Any) -> None:
        """Write `value` as indented JSON with sorted keys, so that equal values give equal bytes."""
        self.write(name, (json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())


def _client() -> ClientConfig:
    """AWS_ALLOW_HTTP=true lets AWS_ENDPOINT be a plain http:// URL, such as a MinIO server's."""
    return {**_CLIENT, "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true")}


def _reason(error: Exception) -> str:
    """The first paragraph of an obstore message, on one line; what follows is for its developers."""
    return " ".join(str(error).split("\n\nDebug source:")[0].split())


def sha256(data: bytes) -> str:
    """Hex digest, as stored in manifests."""
    return hashlib.sha256(data).hexdigest()
