"""One thread runs the model; the requests of an asyncio loop talk to it through this.

    driver = Driver(engine, limits, most_waiting=128)
    driver.start()                                   # in the loop
    async with driver.write([request]) as writing:   # left early, it is cancelled and its memory given back
        while (news := await writing.next()) is not None:
            print(news.event.text)
    await driver.stop()

What is asked of the thread goes into a queue that it empties between two steps, so nobody else touches the
scheduler. What it has written goes to the loop once per step. A step that fails ends all requests under way
with `Failed` and begins anew with an empty cache: a fault in one must not end the server.
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
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.scheduler import Scheduler, TokenEvent
from cpplm.generate.sequence import GenerationRequest, TokenLogprob
from cpplm.generate.settings import SchedulerLimits
from cpplm.serve.prompt_scoring import Scoring

_log = logging.getLogger("cpplm.serve")
_LONGEST_RETRY = 60  # seconds that a client is asked to wait at most
_REMEMBERED = 64  # requests whose durations say how long a place in the queue takes


class Overloaded(Exception):  # noqa: N818  (an outcome, not a fault)
    """Too many wait already."""

    def __init__(self, waiting: int, seconds: int) -> None:
        who = "1 request is" if waiting == 1 else f"{waiting} requests are"
        super().__init__(f"{who} waiting already; try again in {seconds} s")
        self.seconds = seconds


class Failed(Exception):  # noqa: N818
    """The model's thread failed at this, or at what it did beside it."""


class Cut(Exception):  # noqa: N818
    """The server stops."""


@dataclass(frozen=True)
class News:
    """What was written of one of the requests."""

    number: int
    """Which, from 0."""
    event: TokenEvent


class Writing:
    """Some requests under way, all of one client."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        """Not begun."""
        self.requests = tuple(requests)
        self.tickets: dict[int, int] = {}
        """Numbers of the requests by their ticket; only the thread looks here."""
        self.begun = False
        self._left = len(self.requests)
        self._news: asyncio.Queue[News | Exception] = asyncio.Queue()

    def tell(self, news: News | Exception) -> None:
        """In the loop: there is something new."""
        self.begun = True
        self._news.put_nowait(news)

    async def next(self) -> News | None:
        """What comes next; None when all has been written.

        Raises:
            UserError: the scheduler does not take the request.
            Failed: see there.
            Cut: see there.
        """
        if self._left == 0:
            return None
        news = await self._news.get()
        if isinstance(news, Exception):
            raise news
        self._left -= news.event.last
        return news


class Driver:
    """The thread and its scheduler."""

    def __init__(self, engine: Engine, limits: SchedulerLimits, *, most_waiting: int) -> None:
        """Not running yet.

        Raises:
            UserError: the model cannot be driven that way.
        """
        self.engine, self._limits, self._most_waiting = engine, limits, most_waiting
        self.scheduler = engine.scheduler(limits)
        self.failures = 0
        """Steps that failed."""
        self.written = 0
        """Tokens written, also for clients that went away meanwhile."""
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._open: set[Writing] = set()
        self._scoring_here: set[asyncio.Future[list[TokenLogprob]]] = set()
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._thread = threading.Thread(target=self._run, name="cpplm-model", daemon=True)
        self._stopping = False
        # Only the thread looks at these.
        self._by_ticket: dict[int, Writing] = {}
        self._scorings: deque[Scoring] = deque()
        self._batch: list[Callable[[], None]] = []

    # ---- in the loop ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; requests come from the loop that runs now."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self, patience: float = 10.0) -> None:
        """Cut off what is under way and end the thread, as soon as its step is over."""
        self.cut()
        self._stopping = True
        self._commands.put(lambda: None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, patience)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Requests of which nothing was written yet."""
        return sum(not writing.begun for writing in self._open) + len(self._scoring_here)

    def cut(self) -> None:
        """End all that is under way with `Cut`."""
        for writing in self._open:
            writing.tell(Cut("the server stops"))
        for future in self._scoring_here:
            if not future.done():
                future.set_exception(Cut("the server stops"))

    @contextlib.asynccontextmanager
    async def write(
        self, requests: Sequence[GenerationRequest], *, admitted: bool = False
    ) -> AsyncIterator[Writing]:
        """Have requests written, behind those that wait; what is unfinished when the block ends is cancelled.

        Args:
            requests: of one client.
            admitted: go on with something, so that it is no matter how many wait.

        Raises:
            Overloaded: too many wait.
            Failed: the thread does not run.
        """
        self._refuse_too_many(admitted=admitted)
        writing = Writing(requests)
        self._open.add(writing)
        begin = time.monotonic()
        self._commands.put(lambda: self._submit(writing))
        try:
            yield writing
        finally:
            self._open.discard(writing)
            self._commands.put(lambda: self._forget(writing))
            self._seconds.append(time.monotonic() - begin)

    async def score(self, ids: Sequence[int], count: int) -> list[TokenLogprob]:
        """How likely each token of a prompt but the first is, with `count` likeliest ones beside it.

        Raises:
            Overloaded: too many wait.
            Failed: see there.
            Cut: see there.
        """
        self._refuse_too_many()
        future: asyncio.Future[list[TokenLogprob]] = self._loop.create_future()
        scoring = Scoring(self.engine.model, ids, count)
        self._scoring_here.add(future)

        def finish() -> None:
            if not future.done():
                if scoring.failed is None:
                    future.set_result(scoring.result)
                else:
                    future.set_exception(Failed(scoring.failed))

        scoring.finish = finish
        self._commands.put(lambda: self._scorings.append(scoring))
        try:
            return await future
        finally:
            scoring.unwanted = True
            self._scoring_here.discard(future)

    def _refuse_too_many(self, *, admitted: bool = False) -> None:
        if not self._thread.is_alive() or self._stopping:
            raise Failed("the model does not run")
        waiting = self.waiting
        if waiting >= self._most_waiting and not admitted:
            each = sum(self._seconds) / len(self._seconds) if self._seconds else 1.0
            seconds = math.ceil(each * waiting / self._limits.max_batch)
            raise Overloaded(waiting, max(1, min(seconds, _LONGEST_RETRY)))

    # ---- in the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._obey()
            try:
                self._step()
            except Exception as error:
                _log.exception("a step of the model failed")
                self._begin_anew(error)
            self._hand_over()
        for ticket in list(self._by_ticket):
            self.scheduler.cancel(ticket)

    def _obey(self) -> None:
        """Do what was asked for; wait for something when there is nothing to do."""
        if self.scheduler.idle and not self._scorings:
            self._commands.get()()
        with contextlib.suppress(Empty):
            while True:
                self._commands.get_nowait()()

    def _step(self) -> None:
        if self._scorings:
            self._score(self._scorings[0])
        for event in self.scheduler.step():
            self.written += event.is_new
            writing = self._by_ticket[event.request_id]
            self._tell(writing, News(writing.tickets[event.request_id], event))
            if event.last:
                del self._by_ticket[event.request_id]

    def _score(self, scoring: Scoring) -> None:
        """Read one chunk of a prompt."""
        try:
            ended = scoring.unwanted or scoring.advance(self._limits.prefill_chunk)
        except Exception as error:
            _log.exception("a prompt could not be scored")
            scoring.failed, ended = _reason(error), True
        if ended:
            self._scorings.popleft()
            self._batch.append(scoring.finish)

    def _submit(self, writing: Writing) -> None:
        try:
            for number, request in enumerate(writing.requests):
                ticket = self.scheduler.submit(request)
                self._by_ticket[ticket] = writing
                writing.tickets[ticket] = number
        except UserError as error:
            self._forget(writing)
            self._tell(writing, error)

    def _forget(self, writing: Writing) -> None:
        for ticket in writing.tickets:
            if self._by_ticket.pop(ticket, None) is not None:
                self.scheduler.cancel(ticket)

    def _begin_anew(self, error: Exception) -> None:
        """The scheduler is in no state to go on."""
        self.failures += 1
        for writing in set(self._by_ticket.values()):
            self._tell(writing, Failed(_reason(error)))
        self._by_ticket.clear()
        self.scheduler = Scheduler(self.engine.model, self.engine.tokenizer, self._limits)

    def _tell(self, writing: Writing, news: News | Exception) -> None:
        self._batch.append(lambda: writing.tell(news))

    def _hand_over(self) -> None:
        """All that is new, at once: waking the loop costs more than what it then does."""
        batch, self._batch = self._batch, []
        if batch:
            with contextlib.suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(_call_all, batch)


def _call_all(batch: list[Callable[[], None]]) -> None:
    for each in batch:
        each()


def _reason(error: Exception) -> str:
    """What clients may know: ours are meant for people, others would tell of the inside."""
    return str(error) if isinstance(error, UserError) else f"the model failed ({type(error).__name__})"
