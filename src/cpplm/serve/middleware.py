"""What every request passes before anything reads it: who may come, how much it may send, in what time.

Bodies are read whole, up to a bound, and handed on: a client that sends slowly, too much or nothing costs a
connection and no more. Plain ASGI, so that streams pass through untouched.
"""

from __future__ import annotations

import asyncio
import hmac
import time

from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from cpplm.serve.errors import ApiError, ShutdownError, paths_of
from cpplm.serve.metrics import Metrics
from cpplm.serve.settings import LOOPBACK, NetworkSettings

# Without a key anybody may look whether the server lives, and load the page that then asks for the key.
_PUBLIC_PATHS = ("/health", "/", "/favicon.ico")
_PUBLIC_PREFIX = "/page/"
# A client that sends too much is listened to a while, so that it reads the answer: it would see a broken
# connection otherwise.
_MAX_DISCARDED_BYTES = 64 << 20


class RequestGate:
    """ASGI middleware around the whole application."""

    def __init__(self, app: FastAPI, network: NetworkSettings, metrics: Metrics) -> None:
        """Wrap an application.

        Args:
            app: what is behind.
            network: keys, sizes and times.
            metrics: where answers are counted, by the application's paths.

        Raises:
            UserError: keys that are not there.
        """
        self._app, self._network, self._metrics = app, network, metrics
        self._keys, self._paths = network.keys(), paths_of(app)
        self._hosts: frozenset[str] | None = None
        if network.host in LOOPBACK:  # a page of anybody's may point its own name here (DNS rebinding)
            self._hosts = frozenset(name.lower() for name in (*LOOPBACK, *network.host_names))
        self.num_active = 0
        """Requests under way."""
        self.stopping = False
        """True if no new work is taken."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin, status = time.monotonic(), 0
        path = scope["path"] if scope["path"] in self._paths else "other"

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.num_active += 1
        self._metrics.active.set(self.num_active)
        try:
            await self._pass(scope, receive, counted)
        finally:
            self.num_active -= 1
            self._metrics.active.set(self.num_active)
            self._metrics.requests.labels(path, str(status or "none")).inc()
            self._metrics.seconds.labels(path).observe(time.monotonic() - begin)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope)
        try:
            async with asyncio.timeout(self._network.idle_timeout):
                body = await self._body(receive, keep=refusal is None)
        except TimeoutError:
            body, refusal = b"", ApiError(408, "the request did not come in time", code="request_timeout")
        if body is None:  # gone in the middle
            return
        if len(body) > self._network.max_request_bytes:
            limit = self._network.max_request_bytes
            refusal = ApiError(
                413, f"the body has more than {limit:,} bytes: send less", code="request_too_large"
            )
        if refusal is not None:
            refusal.headers["Connection"] = "close"
            await refusal.response()(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # as GET; the HTTP server keeps the body back
            scope = {**scope, "method": "GET"}
        await self._app(scope, _replay(body, receive), send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = {name: value for name, value in scope["headers"] if name in (b"host", b"authorization")}
        host = _host_of(headers.get(b"host", b""))
        if self._hosts is not None and host and host not in self._hosts:
            return ApiError(
                403,
                f"this server is not {host!r}: it is for {', '.join(sorted(self._hosts))}",
                code="wrong_host",
            )
        path = scope["path"]
        if self._keys and not (path in _PUBLIC_PATHS or path.startswith(_PUBLIC_PREFIX)):
            kind, _, sent = headers.get(b"authorization", b"").partition(b" ")
            # All are compared, each in constant time, so that the answer's time tells nothing.
            matches = [hmac.compare_digest(sent.strip(), key) for key in self._keys]
            if kind.lower() != b"bearer" or not any(matches):
                return ApiError(
                    401,
                    "no key, or not the right one: send 'Authorization: Bearer KEY'",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": "Bearer"},
                )
        if self.stopping and scope["method"] == "POST":
            return ShutdownError("the server stops and takes no new requests")
        return None

    async def _body(self, receive: Receive, *, keep: bool) -> bytes | None:
        """The body, or a little more than is allowed; None when the client went away."""
        body, size = bytearray(), 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            chunk = message.get("body", b"")
            size += len(chunk)
            if keep and len(body) <= self._network.max_request_bytes:
                body += chunk
            if not message.get("more_body", False) or size > _MAX_DISCARDED_BYTES:
                return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """`receive` of ASGI that gives the body at once, then what comes: that the client went away."""
    replayed = False

    async def again() -> Message:
        nonlocal replayed
        if not replayed:
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return again


def _host_of(header: bytes) -> str:
    """The name in a Host header, without its port."""
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]
