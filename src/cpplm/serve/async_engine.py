"""One thread runs the model; the requests of an asyncio loop talk to it through this.

    engine = AsyncEngine(Engine(model, tokenizer), limits, max_waiting=128)
    engine.start()                                   # in the loop
    async with engine.generate([request]) as stream: # left early, it is cancelled and its memory given back
        async for index, event in stream:
            print(event.text)
    await engine.stop()

Commands for the thread go into a queue that it empties between two steps, so nobody else touches the
scheduler. New tokens go to the loop once per step. A step that fails ends all requests under way with
`EngineError` and begins anew with an empty cache: a fault in one must not end the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.prompt_scoring import PromptScorer
from cpplm.generate.scheduler import TokenEvent
from cpplm.generate.sequence import GenerationRequest, TokenLogprob
from cpplm.generate.settings import SchedulerLimits
from cpplm.model.transformer import Transformer
from cpplm.serve.errors import EngineError, OverloadedError, ShutdownError

Result = TypeVar("Result")

_log = logging.getLogger("cpplm.serve")
_MAX_RETRY_SECONDS = 60  # that a client is asked to wait at most
_NUM_DURATIONS = 64  # requests whose durations say how long a place in the queue takes


class RequestStream:
    """Some requests under way, all of one client: iterates over (index of the request, token event)."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self.requests = tuple(requests)
        self.indices: dict[int, int] = {}
        """Indices of the requests by their id in the scheduler; only the thread looks here."""
        self.begun = False
        """True once something was published."""
        self._num_open = len(self.requests)
        self._events: asyncio.Queue[tuple[int, TokenEvent] | Exception] = asyncio.Queue()

    def publish(self, event: tuple[int, TokenEvent] | Exception) -> None:
        """Hand over an event, or the error that ends the stream; in the loop's thread."""
        self.begun = True
        self._events.put_nowait(event)

    def __aiter__(self) -> RequestStream:
        """Iterate once."""
        return self

    async def __anext__(self) -> tuple[int, TokenEvent]:
        """Wait for the next event.

        Raises:
            StopAsyncIteration: all requests have ended.
            UserError: the scheduler does not take a request.
            EngineError: a step of the model failed.
            ShutdownError: the server stops.
        """
        if self._num_open == 0:
            raise StopAsyncIteration
        event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        self._num_open -= event[1].last
        return event


class AsyncEngine:
    """The model's thread and its scheduler."""

    def __init__(self, engine: Engine, limits: SchedulerLimits, *, max_waiting: int) -> None:
        """Prepare; nothing runs yet.

        Raises:
            UserError: the model cannot be run with these limits.
        """
        self.engine, self._limits, self._max_waiting = engine, limits, max_waiting
        self.scheduler = engine.scheduler(limits)
        self.num_failures = 0
        """Steps that failed."""
        self.num_generated = 0
        """Tokens generated, also for clients that went away meanwhile."""
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._streams: set[RequestStream] = set()
        self._scores: set[asyncio.Future[list[TokenLogprob]]] = set()
        self._replacements: set[asyncio.Future[None]] = set()
        self._durations: deque[float] = deque(maxlen=_NUM_DURATIONS)
        self._thread = threading.Thread(target=self._run, name="cpplm-model", daemon=True)
        self._stopping = False
        # Only the thread looks at these.
        self._by_id: dict[int, RequestStream] = {}
        self._scorers: deque[tuple[PromptScorer, asyncio.Future[list[TokenLogprob]]]] = deque()
        self._callbacks: list[Callable[[], None]] = []

    # ---- in the loop ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; requests come from the loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self, timeout: float = 10.0) -> None:
        """Abort everything and end the thread, as soon as its step is over."""
        self.abort_all()
        self._stopping = True
        self._commands.put(lambda: None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout)

    @property
    def alive(self) -> bool:
        """True if the thread runs."""
        return self._thread.is_alive()

    @property
    def num_waiting(self) -> int:
        """Requests of which nothing was generated yet."""
        return sum(not stream.begun for stream in self._streams) + len(self._scores)

    def abort_all(self) -> None:
        """End all that is under way with `ShutdownError`."""
        for stream in self._streams:
            stream.publish(ShutdownError())
        for future in self._scores:
            resolve(future, ShutdownError())
        for replacement in self._replacements:
            resolve(replacement, ShutdownError())

    @contextlib.asynccontextmanager
    async def generate(
        self, requests: Sequence[GenerationRequest], *, admitted: bool = False
    ) -> AsyncIterator[RequestStream]:
        """Queue requests behind those that wait; what is unfinished when the block ends is cancelled.

        Args:
            requests: of one client.
            admitted: they go on with something, so that it is no matter how many wait.

        Raises:
            OverloadedError: too many wait.
            EngineError: the thread does not run.
        """
        self._check_capacity(admitted=admitted)
        stream = RequestStream(requests)
        self._streams.add(stream)
        begin = time.monotonic()
        self._commands.put(lambda: self._submit(stream))
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            self._commands.put(lambda: self._cancel(stream))
            self._durations.append(time.monotonic() - begin)

    async def replace_model(self, model: Transformer) -> None:
        """Go on with another model of the same shape; what is under way ends with `EngineError`.

        Raises:
            EngineError: the thread does not run.
            ShutdownError: the server stops.
        """
        self._check_capacity(admitted=True)
        future: asyncio.Future[None] = self._loop.create_future()

        def replace() -> None:
            self.engine.model = model
            self._restart(EngineError("the model was replaced by another"))
            self._callbacks.append(lambda: resolve(future, None))

        self._replacements.add(future)
        self._commands.put(replace)
        try:
            await future
        finally:
            self._replacements.discard(future)

    async def score(self, ids: Sequence[int], count: int) -> list[TokenLogprob]:
        """Log-probabilities of each token of a prompt but the first, with `count` likeliest ones beside it.

        Raises:
            OverloadedError: too many wait.
            EngineError: the model failed.
            ShutdownError: the server stops.
        """
        self._check_capacity()
        future: asyncio.Future[list[TokenLogprob]] = self._loop.create_future()
        scorer = PromptScorer(self.engine.model, ids, count)
        self._scores.add(future)
        self._commands.put(lambda: self._scorers.append((scorer, future)))
        try:
            return await future
        finally:
            self._scores.discard(future)

    def _check_capacity(self, *, admitted: bool = False) -> None:
        if not self._thread.is_alive() or self._stopping:
            raise EngineError("the model does not run")
        waiting = self.num_waiting
        if waiting >= self._max_waiting and not admitted:
            mean = sum(self._durations) / len(self._durations) if self._durations else 1.0
            seconds = math.ceil(mean * waiting / self._limits.max_batch)
            raise OverloadedError(waiting, max(1, min(seconds, _MAX_RETRY_SECONDS)))

    # ---- in the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._run_commands()
            try:
                self._step()
            except Exception as error:
                _log.exception("a step of the model failed")
                self.num_failures += 1
                self._restart(_for_clients(error))
            self._flush()
        for request_id in list(self._by_id):
            self.scheduler.cancel(request_id)

    def _run_commands(self) -> None:
        """Run what the loop has queued; wait for something when there is nothing to do."""
        if self.scheduler.idle and not self._scorers:
            self._commands.get()()
        with contextlib.suppress(Empty):
            while True:
                self._commands.get_nowait()()

    def _step(self) -> None:
        if self._scorers:
            self._score_chunk(*self._scorers[0])
        for event in self.scheduler.step():
            self.num_generated += event.is_new
            stream = self._by_id[event.request_id]
            self._publish(stream, (stream.indices[event.request_id], event))
            if event.last:
                del self._by_id[event.request_id]

    def _score_chunk(self, scorer: PromptScorer, future: asyncio.Future[list[TokenLogprob]]) -> None:
        """Read one chunk of a prompt, unless nobody waits for it any more."""
        result: list[TokenLogprob] | Exception = scorer.result
        try:
            done = future.done() or scorer.advance(self._limits.prefill_chunk)
        except Exception as error:
            _log.exception("a prompt could not be scored")
            result, done = _for_clients(error), True
        if done:
            self._scorers.popleft()
            self._callbacks.append(lambda: resolve(future, result))

    def _submit(self, stream: RequestStream) -> None:
        try:
            for index, request in enumerate(stream.requests):
                request_id = self.scheduler.submit(request)
                self._by_id[request_id] = stream
                stream.indices[request_id] = index
        except UserError as error:
            self._cancel(stream)
            self._publish(stream, error)

    def _cancel(self, stream: RequestStream) -> None:
        for request_id in stream.indices:
            if self._by_id.pop(request_id, None) is not None:
                self.scheduler.cancel(request_id)

    def _restart(self, error: EngineError) -> None:
        """Begin with a new scheduler, which remembers nothing of the old one."""
        for stream in set(self._by_id.values()):
            self._publish(stream, error)
        self._by_id.clear()
        self.scheduler = self.engine.scheduler(self._limits)

    def _publish(self, stream: RequestStream, event: tuple[int, TokenEvent] | Exception) -> None:
        self._callbacks.append(lambda: stream.publish(event))

    def _flush(self) -> None:
        """Run all callbacks in the loop at once: waking it costs more than what it then does."""
        callbacks, self._callbacks = self._callbacks, []
        if callbacks:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(_call_all, callbacks)


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


def resolve(future: asyncio.Future[Result], result: Result | Exception) -> None:
    """Hand over a result, or the error instead of one, unless nobody waits any more; in the loop's thread."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)


def _for_clients(error: Exception) -> EngineError:
    """The error without what clients must not know: our own texts are meant for people, others are not."""
    own = isinstance(error, UserError)
    return EngineError(str(error) if own else f"the model failed ({type(error).__name__})")
