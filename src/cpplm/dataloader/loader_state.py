"""Where a loader stands: small JSON from which the very batches follow that would have followed.

Rows come from `LANES` lanes in turn; a lane reads every `LANES`-th window of the data (see
`sampler`). Of each lane it is known which window its last row came from, how many rows of it are
taken, and which documents were left over from the windows before. Packing is a pure function of these, so
nothing else needs to be kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cpplm.core.errors import UserError

# A fixed number: the order of rows depends neither on the batch size nor on the number of ranks or workers.
LANES = 16


class Position(NamedTuple):
    """A window's place in the stream: shard and window count in the epoch's order, not the stored one."""

    epoch: int = 0
    shard: int = 0
    window: int = 0


class Reference(NamedTuple):
    """The end of a document from token `first` on; shard and document by their numbers in stored order.

    `piece` counts what the encoder made of the document.
    """

    epoch: int
    shard: int
    document: int
    piece: int
    first: int


@dataclass(frozen=True)
class LaneState:
    """The window of a lane's last row, the rows taken of it, and what the window before it left over."""

    position: Position
    row: int
    carry: tuple[Reference, ...]


@dataclass(frozen=True)
class LoaderState:
    """Rows given out by all ranks together, and the lanes by number.

    Attributes:
        rows: so many rows of the run's endless sequence are past.
        lanes: per lane, for each data set where it stands, None where it has not begun. A rank knows the
            lanes that it reads; see `merge`. Empty at the start.
        seq_len: tokens per row. Positions mean something for this row length and seed alone.
        seed: of all orders.
    """

    rows: int = 0
    lanes: dict[int, tuple[LaneState | None, ...]] = field(default_factory=dict)
    seq_len: int = 0
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """Lists and integers for a checkpoint."""
        lanes = {
            str(lane): [s and [[*s.position], s.row, [[*r] for r in s.carry]] for s in states]
            for lane, states in sorted(self.lanes.items())
        }
        return {"rows": self.rows, "seq_len": self.seq_len, "seed": self.seed, "lanes": lanes}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LoaderState:
        """The inverse of `to_json`."""
        lanes = {
            int(lane): tuple(_lane_state(*entry) if entry else None for entry in entries)
            for lane, entries in values["lanes"].items()
        }
        return cls(values["rows"], lanes, values["seq_len"], values["seed"])

    @classmethod
    def merge(cls, states: Iterable[LoaderState]) -> LoaderState:
        """What several ranks know after the same step, put together.

        Raises:
            ValueError: they are not of the same step of the same run.
        """
        first, *others = states
        lanes = dict(first.lanes)
        for state in others:
            same = (state.rows, state.seq_len, state.seed) == (first.rows, first.seq_len, first.seed)
            if not same or any(lanes.get(lane, known) != known for lane, known in state.lanes.items()):
                raise ValueError("loader states of different steps or runs cannot be merged")
            lanes |= state.lanes
        return cls(first.rows, dict(sorted(lanes.items())), first.seq_len, first.seed)

    def check(self, *, seq_len: int, seed: int, num_sources: int) -> None:
        """Refuse to start a loader from the state of another kind of run.

        Raises:
            UserError: other row length, seed or number of data sets, or the state of some ranks only.
        """
        if self.rows == 0:
            return
        sources = {len(states) for states in self.lanes.values()}
        if (self.seq_len, self.seed, sources) != (seq_len, seed, {num_sources}):
            raise UserError(
                f"the saved position is of rows of {self.seq_len} tokens, seed {self.seed} and "
                f"{max(sources, default=0)} data sets; asked for are {seq_len}, {seed} and {num_sources}",
                fix="Continue with the settings of the run, or start a new one.",
            )
        if len(self.lanes) != LANES:
            raise UserError(
                f"the saved position knows {len(self.lanes)} of {LANES} lanes: it is that of some ranks only",
                fix="Merge the states of all ranks (LoaderState.merge) before saving.",
            )


def _lane_state(position: list[int], row: int, carry: list[list[int]]) -> LaneState:
    return LaneState(Position(*position), row, tuple(Reference(*reference) for reference in carry))
