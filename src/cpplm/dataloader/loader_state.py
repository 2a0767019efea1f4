"""The state of a loader: small JSON from which the very batches follow that would have followed.

Rows come from `NUM_STREAMS` streams in turn; a stream reads every `NUM_STREAMS`-th group of documents (see
`sampler`). The state of a stream is the group of its last row, how many rows of it are taken, and which
documents were left over from the groups before. Packing is a pure function of these, so nothing else needs to
be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cpplm.core.errors import UserError

# A fixed number: the order of rows depends neither on the batch size nor on the number of ranks or workers.
NUM_STREAMS = 16


class StreamCursor(NamedTuple):
    """A group's place in a data set: shard and group count in the epoch's order, not the stored one."""

    epoch: int = 0
    shard: int = 0
    group: int = 0


class DocumentRef(NamedTuple):
    """The end of a document from token `first` on; shard and document by their numbers in stored order.

    `piece` counts what the encoder made of the document.
    """

    epoch: int
    shard: int
    document: int
    piece: int
    first: int


@dataclass(frozen=True)
class StreamState:
    """The group of a stream's last row, the rows taken of it, and what the group before it left over."""

    cursor: StreamCursor
    row: int
    carry: tuple[DocumentRef, ...]


@dataclass(frozen=True)
class LoaderState:
    """Rows given out by all ranks together, and the streams by number.

    Attributes:
        rows: rows of the run's endless sequence that are past.
        streams: per stream, for each data set where it stands, None where it has not begun. A rank knows the
            streams that it reads; see `merge`. Empty at the start.
        seq_len: tokens per row. Cursors mean something for this row length and seed alone.
        seed: of all orders.
        prompts: of reinforcement learning, that were asked so far by all ranks together.
    """

    rows: int = 0
    streams: dict[int, tuple[StreamState | None, ...]] = field(default_factory=dict)
    seq_len: int = 0
    seed: int = 0
    prompts: int = 0

    def to_json(self) -> dict[str, Any]:
        """Lists and integers for a checkpoint."""
        streams = {
            str(stream): [s and [[*s.cursor], s.row, [[*r] for r in s.carry]] for s in states]
            for stream, states in sorted(self.streams.items())
        }
        prompts = {"prompts": self.prompts} if self.prompts else {}
        return {"rows": self.rows, "seq_len": self.seq_len, "seed": self.seed, "streams": streams} | prompts

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LoaderState:
        """The inverse of `to_json`; older checkpoints call the streams lanes."""
        entries = values["streams"] if "streams" in values else values["lanes"]
        streams = {
            int(stream): tuple(_stream_state(*state) if state else None for state in states)
            for stream, states in entries.items()
        }
        return cls(values["rows"], streams, values["seq_len"], values["seed"], values.get("prompts", 0))

    @classmethod
    def merge(cls, states: Iterable[LoaderState]) -> LoaderState:
        """The states of several ranks after the same step, put together.

        Raises:
            ValueError: they are not of the same step of the same run.
        """
        first, *others = states
        streams = dict(first.streams)
        for state in others:
            same = replace(state, streams={}) == replace(first, streams={})
            if not same or any(
                streams.get(stream, known) != known for stream, known in state.streams.items()
            ):
                raise ValueError("loader states of different steps or runs cannot be merged")
            streams |= state.streams
        return replace(first, streams=dict(sorted(streams.items())))

    def check(self, *, seq_len: int, seed: int, num_sources: int) -> None:
        """Refuse to start a loader from the state of another kind of run.

        Raises:
            UserError: other row length, seed or number of data sets, or the state of some ranks only.
        """
        if self.rows == 0:
            return
        sources = {len(states) for states in self.streams.values()}
        if (self.seq_len, self.seed, sources) != (seq_len, seed, {num_sources}):
            raise UserError(
                f"the saved position is of rows of {self.seq_len} tokens, seed {self.seed} and "
                f"{max(sources, default=0)} data sets; asked for are {seq_len}, {seed} and {num_sources}",
                fix="Continue with the settings of the run, or start a new one.",
            )
        if len(self.streams) != NUM_STREAMS:
            raise UserError(
                f"the saved position knows {len(self.streams)} of {NUM_STREAMS} streams: those of some ranks",
                fix="Merge the states of all ranks (LoaderState.merge) before saving.",
            )


def _stream_state(cursor: list[int], row: int, carry: list[list[int]]) -> StreamState:
    return StreamState(StreamCursor(*cursor), row, tuple(DocumentRef(*ref) for ref in carry))
