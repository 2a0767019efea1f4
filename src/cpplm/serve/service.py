"""From engine requests to HTTP responses: deltas of choices, as one body or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cpplm.core.errors import UserError
from cpplm.generate.scheduler import TokenEvent
from cpplm.generate.sequence import FinishReason as EngineFinishReason
from cpplm.generate.sequence import GenerationRequest, TokenLogprob
from cpplm.serve.async_engine import AsyncEngine
from cpplm.serve.errors import ApiError, ShutdownError, to_api_error
from cpplm.serve.logprobs import LogprobBuffer
from cpplm.serve.metrics import Metrics
from cpplm.serve.request_builder import RequestBuilder, ServedModel
from cpplm.serve.request_models import SamplingParams
from cpplm.serve.response_formatters import ChoiceBuffer, Delta, ResponseFormatter
from cpplm.serve.response_models import FinishReason, Usage
from cpplm.serve.settings import RequestSettings
from cpplm.serve.sse import ClientDisconnected, EventStream, cancel_on_disconnect, cancel_when, sse_event

FINISH_REASONS: dict[EngineFinishReason, FinishReason] = {"end": "stop", "stop": "stop", "length": "length"}
"""OpenAI's name of each of the engine's."""
Result = TypeVar("Result")
DeltaStream = AsyncGenerator[Delta, None]

_CLIENT_CLOSED_REQUEST = 499  # nobody reads it; for the counters


@dataclass
class UsageCounter:
    """Counts the tokens of one HTTP request."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def usage(self) -> Usage:
        """The counts as OpenAI names them."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            total_tokens=self.prompt_tokens + self.completion_tokens,
        )


@dataclass
class Service:
    """The engine with its time limits and counters, which all endpoints share."""

    model: ServedModel
    settings: RequestSettings
    engine: AsyncEngine
    metrics: Metrics
    _shutdown: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.builder = RequestBuilder(self.model, self.settings)

    def abort_all(self) -> None:
        """End all that is under way with `ShutdownError`."""
        self._shutdown.set()
        self.engine.abort_all()

    async def run_until_shutdown(self, work: Awaitable[Result]) -> Result:
        """Await some work that is not the model's.

        Raises:
            ShutdownError: the server stopped before it was done.
        """
        return await cancel_when(self._shutdown.wait(), work, ShutdownError())

    async def token_events(
        self, requests: Sequence[GenerationRequest], *, since: float | None = None
    ) -> AsyncGenerator[tuple[int, TokenEvent], None]:
        """Yield each token of some requests with the request's index, within the time limits.

        Args:
            requests: all of one client.
            since: the loop's time when that began which they go on with; such are never turned away.

        Raises:
            ApiError: the engine fails or refuses, or the time is up.
        """
        now = asyncio.get_running_loop().time
        begun = since is not None
        begin, last = now() if since is None else since, now()
        deadline = begin + self.settings.request_timeout
        first_deadline = min(deadline, begin + self.settings.first_token_timeout)
        try:
            async with self.engine.generate(requests, admitted=begun) as stream:
                while True:
                    try:
                        async with asyncio.timeout_at(deadline if begun else first_deadline):
                            index, event = await anext(stream)
                    except StopAsyncIteration:
                        return
                    if not begun:
                        self.metrics.time_to_first_token.observe(now() - begin)
                    elif index == event.sample == 0:
                        self.metrics.inter_token_latency.observe(now() - last)
                    begun, last = True, now()
                    yield index, event
        except (UserError, TimeoutError) as error:
            raise to_api_error(error, begun=begun) from error

    async def score(self, ids: Sequence[int], count: int) -> list[TokenLogprob]:
        """Log-probabilities of a prompt's tokens, from the second on.

        Raises:
            ApiError: the engine fails or refuses, or the time is up.
        """
        try:
            async with asyncio.timeout(self.settings.request_timeout):
                return await self.engine.score(ids, count)
        except TimeoutError as error:
            raise to_api_error(error, begun=True) from error

    async def deltas(
        self,
        requests: Sequence[GenerationRequest],
        counter: UsageCounter,
        *,
        offsets: Sequence[int] | None = None,
        has_ids: bool = False,
        has_end: bool = False,
    ) -> DeltaStream:
        """Generate; the samples of each request are choices behind those of the request before.

        Args:
            requests: all with as many samples.
            counter: counts tokens.
            offsets: characters in front of each one's text; none if not given.
            has_ids, has_end: see `LogprobBuffer`.
        """
        buffers: dict[int, LogprobBuffer] = {}
        counter.prompt_tokens += sum(map(self.model.engine.num_prompt_tokens, requests))
        self.metrics.prompt_tokens.inc(counter.prompt_tokens)
        async with contextlib.aclosing(self.token_events(requests)) as events:
            async for number, event in events:
                request, done, tokens = requests[number], event.completion, None
                choice = number * request.num_samples + event.sample
                if request.logprobs is not None:
                    if choice not in buffers:
                        offset = offsets[number] if offsets else 0
                        tokenizer = self.model.engine.tokenizer
                        buffers[choice] = LogprobBuffer(
                            tokenizer, skip=len(request.prefix), offset=offset,
                            has_ids=has_ids, has_end=has_end,
                        )  # fmt: skip
                    tokens = buffers[choice].append(event)
                counter.completion_tokens += event.is_new
                if event.text or tokens or done:
                    finish_reason = FINISH_REASONS[done.finish_reason] if done else None
                    yield Delta(choice, event.text, tokens, finish_reason=finish_reason)

    async def respond(
        self,
        http: HttpRequest,
        deltas: DeltaStream,
        formatter: ResponseFormatter,
        counter: UsageCounter,
        *,
        stream: bool | None,
    ) -> Response:
        """Put deltas into the response to a request, whole or as a stream.

        Raises:
            ApiError: there was an error before the first of them.
        """
        try:
            if not stream:
                choices = await cancel_on_disconnect(http.receive, _collect(deltas))
                body = formatter.response(choices, counter.usage).json_text()
                return Response(body, media_type="application/json")
            events = _sse_events(deltas, formatter, counter)
            first = await cancel_on_disconnect(http.receive, anext(events))
            return EventStream(first, events, on_disconnect=self.metrics.cancelled.inc)
        except ClientDisconnected:
            self.metrics.cancelled.inc()
            return Response(status_code=_CLIENT_CLOSED_REQUEST)


def pick_service(services: Sequence[Service], params: SamplingParams) -> Service:
    """The service of the model that a request names, else ApiError; the first where it names none."""
    if not params.model:
        return services[0]
    by_name = {service.model.name: service for service in services}
    if params.model not in by_name:
        raise ApiError(
            404, f"there is no model {params.model!r} here, only {', '.join(map(repr, by_name))}",
            code="model_not_found", param="model",
        )  # fmt: skip
    return by_name[params.model]


async def _collect(deltas: DeltaStream) -> list[ChoiceBuffer]:
    choices: dict[int, ChoiceBuffer] = {}
    async with contextlib.aclosing(deltas):
        async for delta in deltas:
            choices.setdefault(delta.index, ChoiceBuffer()).append(delta)
    return [choices[index] for index in sorted(choices)]


async def _sse_events(
    deltas: DeltaStream, formatter: ResponseFormatter, counter: UsageCounter
) -> AsyncGenerator[str, None]:
    """Yield the events of a stream. A failure behind the first delta can only be told in the stream."""
    begun: set[int] = set()
    try:
        async with contextlib.aclosing(deltas):
            async for delta in deltas:
                if delta.index not in begun:
                    begun.add(delta.index)
                    first = formatter.first_chunk(delta.index)
                    if first is not None:
                        yield sse_event(first.json_text())
                yield sse_event(formatter.chunk(delta).json_text())
    except ApiError as error:
        if not begun:
            raise
        yield sse_event(bytes(error.response().body).decode())
        return
    last = formatter.last_chunk(counter.usage)
    if last is not None:
        yield sse_event(last.json_text())
    if formatter.end_of_stream:
        yield formatter.end_of_stream


async def merge_streams(streams: Sequence[DeltaStream]) -> DeltaStream:
    """Yield the deltas of several choices as they come; the first error ends all."""
    queue: asyncio.Queue[Delta | Exception | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_forward(stream, queue)) for stream in streams]
    try:
        num_open = len(tasks)
        while num_open:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(stream: DeltaStream, queue: asyncio.Queue[Delta | Exception | None]) -> None:
    try:
        async with contextlib.aclosing(stream):
            async for delta in stream:
                queue.put_nowait(delta)
        queue.put_nowait(None)
    except Exception as error:  # for whoever reads the queue
        queue.put_nowait(error)
