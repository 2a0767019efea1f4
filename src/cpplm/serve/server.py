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
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Protocol

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.serve.middleware import RequestGate
from cpplm.serve.settings import NetworkSettings

_POLL_SECONDS = 0.05  # seconds between two looks whether all is done
_ABORT_SECONDS = 3.0  # seconds in which cut requests are told
_BACKLOG = 2048  # connections that may wait to be taken
_SPARE_FILES = 64  # beside those of connections


class Servable(Protocol):
    """An application, as its server sees it."""

    @property
    def asgi(self) -> ASGIApp:
        """Application that answers."""

    @property
    def gate(self) -> RequestGate:
        """Counts the requests under way."""

    def abort_all(self) -> None:
        """End what is under way."""


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

    def __init__(self, application: Servable, network: NetworkSettings, grace: float) -> None:
        """Not listening yet.

        Args:
            application: what answers.
            network: limits of connections.
            grace: seconds that running requests have when the server is told to stop.
        """
        super().__init__(
            uvicorn.Config(
                application.asgi, http=IdleTimeoutProtocol, ws="none", loop="asyncio", lifespan="on",
                log_config=None, access_log=network.access_log, server_header=False, proxy_headers=False,
                limit_concurrency=network.max_connections + 1, backlog=_BACKLOG,
                timeout_keep_alive=math.ceil(network.idle_timeout),
                timeout_graceful_shutdown=math.ceil(_ABORT_SECONDS),
            )
        )  # fmt: skip
        self._application, self._grace = application, grace
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
        gate = self._application.gate
        gate.stopping = True
        if gate.num_active and self._grace:
            who = "1 request has" if gate.num_active == 1 else f"{gate.num_active} requests have"
            log_info(f"stopping: {who} {self._grace:g} s; a second signal cuts off what is left")
        await self._until(lambda: not gate.num_active or self._signals > 1, self._grace)
        self._application.abort_all()
        await self._until(lambda: not gate.num_active, _ABORT_SECONDS)
        self.should_exit = True

    @staticmethod
    async def _until(done: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not done():
                    await asyncio.sleep(_POLL_SECONDS)

    @override
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.stop()


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


def run_server(
    application: Servable,
    network: NetworkSettings,
    bound: socket.socket,
    *,
    grace: float,
    what: str,
    ready: Callable[[], None],
) -> None:
    """Serve in this thread until a signal comes.

    Args:
        application: what answers.
        network: as `listen` got it.
        bound: see `listen`.
        grace: seconds that running requests have then.
        what: is served, for the user.
        ready: called as soon as connections are taken.

    Raises:
        UserError: it cannot start.
    """
    allow_connections(network.max_connections)
    bound.listen(_BACKLOG)
    if network.access_log:
        _log_access()
    log_info(f"{what}; Ctrl-C stops")
    ready()
    asyncio.run(UvicornServer(application, network, grace).serve([bound]))


def _log_access() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("uvicorn.access")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
