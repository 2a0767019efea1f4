"""One lane of one data set: every `LANES`-th window, row by row, the next one packed ahead of time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.dataloader.loader_state import LANES, LaneState, Position, Reference
from cpplm.dataloader.pack_worker import PackedWindow, Unread
from cpplm.dataloader.sampler import Window, WindowOrder

# Has a window packed somewhere, with what the window before it left over.
Submit = Callable[[Window, tuple[Unread, ...]], "Future[PackedWindow]"]


class Lane:
    """Gives rows. `state` is where it stands, None before the first row."""

    def __init__(
        self, order: WindowOrder, submit: Submit, stop: threading.Event, number: int, state: LaneState | None
    ) -> None:
        """Start with the window of that number, or from `state`; `stop` ends waiting for shards."""
        self._order, self._submit, self._stop = order, submit, stop
        self.state = state
        self._window: PackedWindow | None = None
        self._references: tuple[Reference, ...] = ()  # of what the window began with
        self._pending: tuple[Position, Future[PackedWindow]] | None = None
        # The window to begin next is `_steps` after `_position`; `_rows` of it are taken already.
        if state is None:
            self._position, self._steps, self._rows = Position(), number, 0
            self._carry: tuple[Unread, ...] = ()
        else:
            self._position, self._steps, self._rows = state.position, 0, state.row
            self._carry = tuple(_reopened(order.reader, reference) for reference in state.carry)

    def begin_next(self) -> bool:
        """Have the next window packed, unless that has begun; False if its shard has not come yet."""
        if self._pending is None:
            position = self._order.forward(self._position, self._steps)
            if position is None:
                return False
            self._pending = position, self._submit(self._order.window(position), self._carry)
        return True

    def next_row(self) -> tuple[PackedWindow, int]:
        """The next row, as its window and its number there; waits for shards and packing if needed."""
        while self._window is None or self._rows == len(self._window.inputs):
            while not self.begin_next():
                if self._stop.is_set():
                    raise RuntimeError("the loader was closed while it waited for a shard")
                self._order.reader.wait(self._stop)
            self._move_on()
        window, position, row = self._window, self._position, self._rows
        self._rows += 1
        self.state = LaneState(position, self._rows, self._references)
        self.begin_next()
        return window, row

    def _move_on(self) -> None:
        """To the window that is being packed."""
        assert self._pending is not None  # noqa: S101  (the caller has begun it)
        position, future = self._pending
        window = future.result()
        if self._window is not None:
            self._rows = 0
        self._references = tuple(unread.reference for unread in self._carry)
        self._window, self._position, self._steps = window, position, LANES
        self._carry, self._pending = window.rest, None


def _reopened(reader: ShardReader, reference: Reference) -> Unread:
    shard = reader.train_shard(reference.shard)
    if shard is None:
        raise UserError(
            f"{reader.storage.location} lacks train shard {reference.shard}, which the saved position is in",
            fix="Copy it there again.",
        )
    return Unread(reference, shard, None)
