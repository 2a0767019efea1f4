"""Runs the application: listens, says where, and stops so that nobody who is being served notices.

At the first signal no new work is taken (503), and who is being answered has a grace time; what is not done
then is cut off, at a second signal at once. A new process can listen meanwhile on another port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.serve.app import Application, build
from cpplm.serve.request_builder import ServedModel
from cpplm.serve.settings import LOOPBACK, NetworkSettings, ServeSettings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_POLL_SECONDS = 0.05  # seconds between two looks whether all is done
_ABORT_SECONDS = 3.0  # seconds in which cut requests are told
_BACKLOG = 2048  # connections that may wait to be taken
_SPARE_FILES = 64  # beside those of connections


class IdleTimeoutProtocol(H11Protocol):
    """HTTP/1.1 that also closes connections on which nothing was ever sent."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the idle timer, as after a response."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )


class UvicornServer(uvicorn.Server):
    """uvicorn's, with an end that is gentler on clients."""

    def __init__(self, application: Application, settings: ServeSettings) -> None:
        """Not listening yet."""
        network = settings.network
        super().__init__(
            uvicorn.Config(
                application.asgi, http=IdleTimeoutProtocol, ws="none", loop="asyncio", lifespan="on",
                log_config=None, access_log=network.access_log, server_header=False, proxy_headers=False,
                limit_concurrency=network.max_connections + 1, backlog=_BACKLOG,
                timeout_keep_alive=math.ceil(network.idle_timeout),
                timeout_graceful_shutdown=math.ceil(_ABORT_SECONDS),
            )
        )  # fmt: skip
        self._application, self._grace = application, settings.requests.grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None
        self._signals = 0

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Until it is stopped."""
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def stop(self) -> None:
        """Begin to stop, or stop at once if that was said before; from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        self._signals += 1
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        services, gate = self._application.services, self._application.gate
        for service in services:
            service.stopping = True
        if gate.num_active:
            who = "1 request has" if gate.num_active == 1 else f"{gate.num_active} requests have"
            log_info(f"stopping: {who} {self._grace:g} s; a second signal cuts off what is left")
        await self._until(lambda: not gate.num_active or self._signals > 1, self._grace)
        for service in services:
            service.abort_all()
        await self._until(lambda: not gate.num_active, _ABORT_SECONDS)
        self.should_exit = True

    @staticmethod
    async def _until(done: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not done():
                    await asyncio.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Both signals stop it; afterwards they mean what they meant."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def on_signal(number: int, frame: FrameType | None) -> None:
            del number, frame
            self.stop()

        before = {number: signal.signal(number, on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(network: NetworkSettings) -> tuple[socket.socket, str]:
    """A socket that is bound, and a URL that a browser on this machine can open.

    Raises:
        UserError: no such address here, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            network.host, network.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise UserError(
            f"cannot listen on {network.host} port {network.port}: {error.strerror or error}",
            fix="Use another --port (0 = any that is free) or --host.",
        ) from error
    host_ip, port = bound.getsockname()[:2]
    if ipaddress.ip_address(host_ip).is_unspecified:  # every address of this machine: no name for a browser
        return bound, f"http://localhost:{port}"
    host = f"[{network.host}]" if ":" in network.host else network.host
    return bound, f"http://{host}:{port}"


def allow_connections(count: int) -> None:
    """Raise this process's limit on open files so that it can hold so many connections, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < needed:
            log_info(
                f"only {allowed} files may be open here, so fewer than {count} connections; see ulimit -n"
            )


def serve_until_stopped(
    model: ServedModel,
    settings: ServeSettings,
    bound: socket.socket,
    url: str,
    *,
    ready: Callable[[], None],
    adapters: Sequence[ServedModel] = (),
) -> dict[str, Any]:
    """Serve in this thread until a signal comes; returns how much was written.

    Args:
        model: what is served.
        settings: how.
        bound: see `listen`.
        url: its address.
        ready: called as soon as connections are taken.
        adapters: of the model, served beside it.

    Raises:
        UserError: it cannot start.
    """
    network = settings.network
    application = build(model, settings, adapters)
    allow_connections(network.max_connections)
    bound.listen(_BACKLOG)
    if network.access_log:
        _log_access()
    if network.host not in LOOPBACK and not network.keys():
        log_info(f"--host {network.host} lets everybody in who reaches it: --api_key_file asks for a key")
    what = f"{model.name}, {model.stage} model, context {model.context}"
    what += "".join(f", adapter {adapter.name}" for adapter in adapters)
    log_info(f"{what}, at {url} (page), {url}/v1 (OpenAI's API); Ctrl-C stops")
    ready()
    asyncio.run(UvicornServer(application, settings).serve([bound]))
    services = application.services
    return {
        "url": url,
        "prompt_tokens": _value(services[0].metrics.prompt_tokens),
        "generated_tokens": sum(service.engine.num_generated for service in services),
    }


def _value(counter: Any) -> int:
    return int(next(iter(counter.collect())).samples[0].value)


def _log_access() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("uvicorn.access")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
