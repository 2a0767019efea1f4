"""From requests to answers: what the model writes, piece by piece, as one body or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cpplm.core.errors import UserError
from cpplm.generate.sequence import FinishReason, GenerationRequest, TokenLogprob
from cpplm.serve.async_engine import Cut, Driver, Failed, News, Overloaded
from cpplm.serve.errors import ApiError
from cpplm.serve.logprobs import Token, TokenTrail
from cpplm.serve.metrics import Metrics
from cpplm.serve.model_info import ServedModel
from cpplm.serve.response_models import Answer, Ended, Usage
from cpplm.serve.settings import RequestSettings
from cpplm.serve.sse import ClientGone, EventStream, record, unless, unless_gone

ENDED: dict[FinishReason, Ended] = {"end": "stop", "stop": "stop", "length": "length"}
Result = TypeVar("Result")

_READ_PATIENCE = 30.0  # seconds that a client may leave what was sent to it unread
_GONE = 499  # nobody reads it; for the counters


@dataclass(frozen=True)
class Call:
    """A tool that the client is to call."""

    name: str
    arguments: str
    """JSON."""


@dataclass(frozen=True)
class Piece:
    """What one choice gained."""

    choice: int
    text: str = ""
    tokens: tuple[Token, ...] | None = None
    """With their probabilities, where these were asked for."""
    calls: tuple[Call, ...] = ()
    ended: Ended | None = None


Pieces = AsyncGenerator[Piece, None]


@dataclass
class Tally:
    """Tokens of one HTTP request."""

    prompt: int = 0
    written: int = 0

    @property
    def usage(self) -> Usage:
        """As OpenAI counts them."""
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.written,
            total_tokens=self.prompt + self.written,
        )


@dataclass
class Choice:
    """A whole choice."""

    texts: list[str] = field(default_factory=list)
    tokens: list[Token] | None = None
    calls: list[Call] = field(default_factory=list)
    ended: Ended = "length"

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)

    def add(self, piece: Piece) -> None:
        """Put a piece behind it."""
        self.texts.append(piece.text)
        self.calls += piece.calls
        if piece.tokens is not None:
            self.tokens = self.tokens or []
            self.tokens += piece.tokens
        self.ended = piece.ended or self.ended


class Style(Protocol):
    """How an endpoint puts pieces into JSON."""

    ends_with: str
    """The last record of a stream, besides."""

    def whole(self, choices: Sequence[Choice], tally: Tally) -> Answer:
        """The one body."""

    def opening(self, choice: int) -> Answer | None:
        """The record with which a choice begins, if there is one."""

    def piece(self, piece: Piece) -> Answer:
        """One record."""

    def closing(self, tally: Tally) -> Answer | None:
        """The record behind all choices, if there is one."""


@dataclass
class Service:
    """What all endpoints share."""

    model: ServedModel
    settings: RequestSettings
    driver: Driver
    metrics: Metrics
    stopping: bool = False
    """No new work is taken."""
    _cut: asyncio.Event = field(default_factory=asyncio.Event)

    def cut(self) -> None:
        """End all that is under way."""
        self._cut.set()
        self.driver.cut()

    async def unless_cut(self, work: Awaitable[Result]) -> Result:
        """What some other work than the model's gives.

        Raises:
            ApiError: everything was cut off before.
        """
        return await unless(self._cut.wait(), work, explained(Cut("the server stops"), begun=True))

    def since(self, before: float | None = None) -> float:
        """When a request began: `before`, or now."""
        return asyncio.get_running_loop().time() if before is None else before

    async def news(
        self, requests: Sequence[GenerationRequest], *, since: float | None = None
    ) -> AsyncGenerator[News, None]:
        """What is written of some requests, token by token, in time.

        Args:
            requests: all of one client.
            since: when that began which they go on with; nothing if not given. Such are never turned away.

        Raises:
            ApiError: it cannot be, or not in time.
        """
        now = asyncio.get_running_loop().time
        begin, last = self.since(since), now()
        begun = since is not None
        deadline = begin + self.settings.request_timeout
        first = min(deadline, begin + self.settings.first_token_timeout)
        try:
            async with self.driver.write(requests, admitted=begun) as writing:
                while True:
                    async with asyncio.timeout_at(deadline if begun else first):
                        news = await writing.next()
                    if news is None:
                        return
                    if not begun:
                        self.metrics.first_token.observe(now() - begin)
                    elif news.number == news.event.sample == 0:
                        self.metrics.gap.observe(now() - last)
                    begun, last = True, now()
                    yield news
        except (Overloaded, UserError, Failed, Cut, TimeoutError) as error:
            raise explained(error, begun=begun) from error

    async def score(self, ids: Sequence[int], count: int) -> list[TokenLogprob]:
        """How likely a prompt is, token by token, from the second on.

        Raises:
            ApiError: it cannot be, or not in time.
        """
        try:
            async with asyncio.timeout(self.settings.request_timeout):
                return await self.driver.score(ids, count)
        except (Overloaded, Failed, Cut, TimeoutError) as error:
            raise explained(error, begun=True) from error

    async def pieces(
        self, requests: Sequence[GenerationRequest], tally: Tally, *, offsets: Sequence[int] | None = None
    ) -> Pieces:
        """The same as pieces of choices, the samples of each request behind those of the one before.

        Args:
            requests: all with as many samples.
            tally: counts what is written.
            offsets: characters in front of each one's text; none if not given.
        """
        trails: dict[int, TokenTrail] = {}
        tally.prompt += sum(map(self.model.prompt_tokens, requests))
        self.metrics.prompt_tokens.inc(tally.prompt)
        async with contextlib.aclosing(self.news(requests)) as source:
            async for news in source:
                event, request = news.event, requests[news.number]
                choice = news.number * request.num_samples + event.sample
                done, tokens = event.completion, None
                if request.logprobs is not None:
                    trail = trails.get(choice)
                    if trail is None:
                        offset = offsets[news.number] if offsets else 0
                        trail = TokenTrail(
                            self.model.engine.tokenizer, skip=len(request.prefix), offset=offset
                        )
                        trails[choice] = trail
                    if event.logprob is not None and not (done and done.finish_reason == "end"):
                        trail.push(event.logprob)
                    tokens = trail.show(len(event.text), last=done is not None)
                tally.written += event.is_new
                if event.text or tokens or done:
                    ended = ENDED[done.finish_reason] if done else None
                    yield Piece(choice, event.text, tokens, ended=ended)

    async def respond(
        self, http: HttpRequest, pieces: Pieces, style: Style, tally: Tally, *, stream: bool
    ) -> Response:
        """The answer to a request, whole or as a stream.

        Raises:
            ApiError: there is none.
        """
        try:
            if not stream:
                choices = await unless_gone(http.receive, _collected(pieces))
                return Response(style.whole(choices, tally).json_text(), media_type="application/json")
            records = _records(pieces, style, tally)
            first = await unless_gone(http.receive, anext(records))
            return EventStream(first, records, patience=_READ_PATIENCE, on_gone=self.metrics.cancelled.inc)
        except ClientGone:
            self.metrics.cancelled.inc()
            return Response(status_code=_GONE)


async def _collected(pieces: Pieces) -> list[Choice]:
    choices: dict[int, Choice] = {}
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            choices.setdefault(piece.choice, Choice()).add(piece)
    return [choices[number] for number in sorted(choices)]


async def _records(pieces: Pieces, style: Style, tally: Tally) -> AsyncGenerator[str, None]:
    """The events of a stream. A failure behind the first of them can only be told in the stream."""
    begun: set[int] = set()
    sent = False
    try:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                if piece.choice not in begun:
                    begun.add(piece.choice)
                    opening = style.opening(piece.choice)
                    if opening is not None:
                        yield record(opening.json_text())
                sent = True
                yield record(style.piece(piece).json_text())
    except ApiError as error:
        if not sent:
            raise
        yield record(_json(error))
        return
    closing = style.closing(tally)
    if closing is not None:
        yield record(closing.json_text())
    if style.ends_with:
        yield style.ends_with


def _json(error: ApiError) -> str:
    return bytes(error.response().body).decode()


def explained(error: Exception, *, begun: bool) -> ApiError:
    """What a client is told of a failure; `begun`: whether something was written already."""
    match error:
        case Overloaded():
            return ApiError(429, str(error), code="overloaded", headers={"Retry-After": str(error.seconds)})
        case UserError():
            return ApiError(400, str(error), code="invalid_value")
        case Cut():
            return ApiError(503, str(error), code="stopping", headers={"Retry-After": "5"})
        case TimeoutError() if begun:
            return ApiError(504, "the request took too long", code="timeout")
        case TimeoutError():
            return ApiError(
                503, "nothing was written in time: the server is busy", code="first_token_timeout",
                headers={"Retry-After": "10"},
            )  # fmt: skip
        case _:
            return ApiError(500, str(error), code="model_failed")


async def merged(sources: Sequence[Pieces]) -> Pieces:
    """Pieces of several choices as they come."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as source:
            async for piece in source:
                yield piece
        return
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_pump(source, queue)) for source in sources]
    try:
        left = len(tasks)
        while left:
            found = await queue.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(source: Pieces, queue: asyncio.Queue[Piece | Exception | None]) -> None:
    try:
        async with contextlib.aclosing(source):
            async for piece in source:
                queue.put_nowait(piece)
        queue.put_nowait(None)
    except Exception as error:  # for whoever reads
        queue.put_nowait(error)
