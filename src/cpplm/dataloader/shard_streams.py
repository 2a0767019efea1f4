"""One stream of one data set: every `NUM_STREAMS`-th group, row by row, the next one packed ahead of time."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future

from cpplm.core.errors import UserError
from cpplm.core.shards import ShardReader
from cpplm.dataloader.loader_state import NUM_STREAMS, DocumentRef, StreamCursor, StreamState
from cpplm.dataloader.pack_worker import Leftover, PackedRows, PackSource, pack_group
from cpplm.dataloader.sampler import EpochShuffler


class RowStream:
    """Iterates over the rows of one stream; `state` is where it stands, None before the first row."""

    def __init__(
        self,
        shuffler: EpochShuffler,
        executor: Executor,
        source: PackSource,
        stop: threading.Event,
        number: int,
        state: StreamState | None,
    ) -> None:
        """Start with the group of that number, or from `state`; `stop` ends waiting for shards.

        Groups of `source` are packed by `executor`.
        """
        self._shuffler, self._executor, self._source, self._stop = shuffler, executor, source, stop
        self.state = state
        self._packed: PackedRows | None = None
        self._refs: tuple[DocumentRef, ...] = ()  # of what the group began with
        self._pending: tuple[StreamCursor, Future[PackedRows]] | None = None
        # The group to begin next is `_steps` after `_cursor`; `_rows` of it are taken already.
        if state is None:
            self._cursor, self._steps, self._rows = StreamCursor(), number, 0
            self._carry: tuple[Leftover, ...] = ()
        else:
            self._cursor, self._steps, self._rows = state.cursor, 0, state.row
            self._carry = tuple(_reopen(shuffler.reader, ref) for ref in state.carry)

    def begin_next(self) -> bool:
        """Have the next group packed, unless that has begun; False if its shard has not come yet."""
        if self._pending is None:
            cursor = self._shuffler.advance(self._cursor, self._steps)
            if cursor is None:
                return False
            group = self._shuffler.group_at(cursor)
            self._pending = cursor, self._executor.submit(pack_group, self._source, group, self._carry)
        return True

    def next_row(self) -> tuple[PackedRows, int]:
        """The next row, as its group's rows and its number there; waits for shards and packing if needed."""
        while self._packed is None or self._rows == len(self._packed.inputs):
            while not self.begin_next():
                if self._stop.is_set():
                    raise RuntimeError("the loader was closed while it waited for a shard")
                self._shuffler.reader.wait(self._stop)
            self._enter_next()
        packed, row = self._packed, self._rows
        self._rows += 1
        self.state = StreamState(self._cursor, self._rows, self._refs)
        self.begin_next()
        return packed, row

    def _enter_next(self) -> None:
        """Wait for the group that is being packed and go on to it."""
        assert self._pending is not None  # noqa: S101  (the caller has begun it)
        cursor, future = self._pending
        packed = future.result()
        if self._packed is not None:
            self._rows = 0
        self._refs = tuple(leftover.ref for leftover in self._carry)
        self._packed, self._cursor, self._steps = packed, cursor, NUM_STREAMS
        self._carry, self._pending = packed.leftover, None


def _reopen(reader: ShardReader, ref: DocumentRef) -> Leftover:
    shard = reader.train_shard(ref.shard)
    if shard is None:
        raise UserError(
            f"{reader.storage.location} lacks train shard {ref.shard}, which the saved position is in",
            fix="Copy it there again.",
        )
    return Leftover(ref, shard, None)
