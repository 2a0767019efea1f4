"""A Google metadata server on the loopback: values by path."""

import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class MetadataServer:
    """Values change by `set`. `clock_skew` seconds are added to its Date; `flavor` is how it calls itself."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {"instance/preempted": "FALSE"}
        self.requests: list[str] = []
        self.clock_skew = 0.0
        self.flavor = "Google"
        self.host = ""

    def set(self, path: str, value: str) -> None:
        self.values[path] = value


@contextmanager
def metadata_server() -> Iterator[MetadataServer]:
    """A running server; its address is `host`."""
    fake = MetadataServer()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": fake}))
    fake.host = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever waited for an answer was killed."""


class _Handler(BaseHTTPRequestHandler):
    fake: MetadataServer

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        fake = self.fake
        path = urllib.parse.urlsplit(self.path).path.removeprefix("/computeMetadata/v1/")
        fake.requests.append(self.path)
        value = fake.values.get(path)
        asked_right = self.headers.get("Metadata-Flavor") == "Google"
        body = (value or "").encode()
        self.send_response_only(403 if not asked_right else 404 if value is None else 200)
        self.send_header("Date", formatdate(time.time() + fake.clock_skew, usegmt=True))
        self.send_header("Metadata-Flavor", fake.flavor)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
