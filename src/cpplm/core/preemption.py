"""The notice that Google's metadata server gives before it takes a spot machine away.

https://cloud.google.com/compute/docs/instances/create-use-spot: `instance/preempted` turns from FALSE to TRUE
some 30 seconds before the machine stops. A request may wait for the change.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cpplm.core.progress import log_info

METADATA_HOST = "GCE_METADATA_HOST"  # what Google's libraries read
FLAVOR = {"Metadata-Flavor": "Google"}
_PRODUCT = Path("/sys/class/dmi/id/product_name")
_WAIT_SECONDS = 60  # of one request; then the next
_PAUSES = (1.0, 60.0)  # the first and the longest after a request that failed


def metadata_host(product: Path = _PRODUCT) -> str | None:
    """The address of the metadata server; None on a machine that has none."""
    if given := os.environ.get(METADATA_HOST):
        return given
    try:
        on_google = "Google" in product.read_text(encoding="utf-8")
    except OSError:
        return None
    return "metadata.google.internal" if on_google else None


def read_metadata(host: str, path: str, *, timeout: float = 5.0) -> tuple[str, http.client.HTTPMessage]:
    """One value below `computeMetadata/v1/`, and the headers of the answer.

    Raises:
        OSError: no answer, or none of a metadata server.
    """
    with contextlib.closing(http.client.HTTPConnection(host, timeout=timeout)) as connection:
        return _get(connection, path)


def _get(connection: http.client.HTTPConnection, path: str) -> tuple[str, http.client.HTTPMessage]:
    try:
        connection.request("GET", f"/computeMetadata/v1/{path}", headers=FLAVOR)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    if response.status != http.client.OK or response.headers["Metadata-Flavor"] != FLAVOR["Metadata-Flavor"]:
        raise OSError(f"status {response.status} for {path}")
    return text.strip(), response.headers


class PreemptionWatcher:
    """A thread that waits for the notice and calls `notify` once. Use as a context manager."""

    def __init__(
        self, host: str, notify: Callable[[], None], *, pauses: tuple[float, float] = _PAUSES
    ) -> None:
        """Begin."""
        self._host, self._notify, self._pauses = host, notify, pauses
        self._closing = threading.Event()
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._work, name="preemption", daemon=True)

    def __enter__(self) -> PreemptionWatcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Break off the request that waits."""
        self._closing.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)

    def _work(self) -> None:
        pause, said = self._pauses[0], False
        seen = ""  # at first the present value is asked for: the change may be over
        while not self._closing.is_set():
            try:
                value, tag = self._ask(seen)
            except OSError as error:
                if not said and not self._closing.is_set():
                    log_info(f"the metadata server of this machine does not answer, trying again: {error}")
                    said = True
                self._closing.wait(pause)
                pause = min(2 * pause, self._pauses[1])
                continue
            pause = self._pauses[0]
            if value == "TRUE":
                log_info("this machine is about to be taken away (the notice of its metadata server)")
                self._notify()
                return
            if tag == seen or not tag:
                self._closing.wait(self._pauses[0])  # it does not wait: not to ask without end
            seen = tag

    def _ask(self, seen: str) -> tuple[str, str]:
        """The value and its tag; later than `seen`, or after a while."""
        path = "instance/preempted"
        if seen:
            path += f"?wait_for_change=true&timeout_sec={_WAIT_SECONDS}&last_etag={seen}"
        self._connection = http.client.HTTPConnection(self._host, timeout=_WAIT_SECONDS + 10)
        with contextlib.closing(self._connection) as connection:
            value, headers = _get(connection, path)
        return value, headers.get("ETag", "")


@contextlib.contextmanager
def watch_preemption(notify: Callable[[], None]) -> Iterator[None]:
    """Call `notify`, in a thread, when this machine is about to be taken away; nothing on other machines."""
    host = metadata_host()
    with PreemptionWatcher(host, notify) if host else contextlib.nullcontext():
        yield
