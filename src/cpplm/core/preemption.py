"""The notice that Google's metadata server gives before it takes a spot machine away.

https://cloud.google.com/compute/docs/instances/create-use-spot: `instance/preempted` turns from FALSE to TRUE
some 30 seconds before the machine stops; it is looked at each second.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from cpplm.core.progress import log_info

METADATA_HOST = "GCE_METADATA_HOST"  # what Google's libraries read
FLAVOR = {"Metadata-Flavor": "Google"}
_PRODUCT = Path("/sys/class/dmi/id/product_name")
_TIMEOUT = 5.0  # seconds, of one request
_PAUSES = (1.0, 60.0)  # seconds between requests, and at most after some that failed


def metadata_host(product: Path = _PRODUCT) -> str | None:
    """The address of the metadata server; None on a machine that has none."""
    if given := os.environ.get(METADATA_HOST):
        return given
    try:
        on_google = "Google" in product.read_text(encoding="utf-8")
    except OSError:
        return None
    return "metadata.google.internal" if on_google else None


def read_metadata(host: str, path: str) -> tuple[str, http.client.HTTPMessage]:
    """One value below `computeMetadata/v1/`, and the headers of the answer.

    Raises:
        OSError: no answer, or none of a metadata server.
    """
    try:
        with contextlib.closing(http.client.HTTPConnection(host, timeout=_TIMEOUT)) as connection:
            connection.request("GET", f"/computeMetadata/v1/{path}", headers=FLAVOR)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
    if response.status != http.client.OK or response.headers["Metadata-Flavor"] != FLAVOR["Metadata-Flavor"]:
        raise OSError(f"status {response.status} for {path}")
    return text.strip(), response.headers


@contextlib.contextmanager
def watch_preemption(notify: Callable[[], None]) -> Iterator[None]:
    """Call `notify`, in a thread, when this machine is about to be taken away; nothing on other machines."""
    host = metadata_host()
    if host is None:
        yield
        return
    closing = threading.Event()
    thread = threading.Thread(
        target=_wait_for_notice, args=(host, notify, closing), name="preemption", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        closing.set()
        thread.join(1.0)  # it may be amid a request


def _wait_for_notice(host: str, notify: Callable[[], None], closing: threading.Event) -> None:
    first, longest = _PAUSES
    pause, said = first, False
    while not closing.is_set():
        try:
            value, _ = read_metadata(host, "instance/preempted")
            pause = first
        except OSError as error:
            if not said:
                log_info(f"the metadata server of this machine does not answer, trying again: {error}")
            value, said, pause = "", True, min(2 * pause, longest)
        if value == "TRUE":
            log_info("this machine is about to be taken away (the notice of its metadata server)")
            notify()
            return
        closing.wait(pause)
