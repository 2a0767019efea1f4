"""moto's S3 on the loopback: conditional writes are enforced there, as in the real one."""

import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class _Silent(WSGIRequestHandler):
    def log(self, type: str, message: str, *arguments: Any) -> None:
        pass


def _one_at_a_time(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    """moto looks whether an object is there, then writes it: not in one step, as S3 does."""
    lock = threading.Lock()

    def locked(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            return list(app(environ, start_response))

    return locked


@contextmanager
def serve_moto() -> Iterator[str]:
    """The address of a server with the empty bucket "runs"."""
    app = _one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Silent)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        for path, method in (("moto-api/reset", "POST"), ("runs", "PUT")):
            urllib.request.urlopen(urllib.request.Request(f"{address}/{path}", method=method)).close()
        yield address
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def moto_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket, to which `Storage` finds its way by the environment."""
    with serve_moto() as address:
        for name, value in environment(address).items():
            monkeypatch.setenv(name, value)
        yield "s3://runs"


def environment(address: str) -> dict[str, str]:
    """Environment by which a process finds the bucket."""
    return {
        "AWS_ENDPOINT": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
