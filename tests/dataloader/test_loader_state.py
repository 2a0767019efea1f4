"""States survive JSON, merge over ranks, and refuse what does not belong together."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.dataloader.loader_state import LANES, LaneState, LoaderState, Position, Reference

numbers = st.integers(0, 10**9)
lane_states = st.builds(
    LaneState,
    st.builds(Position, numbers, numbers, numbers),
    numbers,
    st.lists(st.builds(Reference, numbers, numbers, numbers, numbers, numbers), max_size=3).map(tuple),
)
states = st.builds(
    LoaderState,
    numbers,
    st.dictionaries(st.integers(0, LANES - 1), st.tuples(st.none() | lane_states, st.none() | lane_states)),
    numbers,
    numbers,
)


@given(states)
def test_json_and_back(state: LoaderState) -> None:
    assert LoaderState.from_json(json.loads(json.dumps(state.to_json()))) == state


@given(states, st.integers(1, 5))
def test_merging_parts_gives_the_whole(state: LoaderState, parts: int) -> None:
    def part(number: int) -> LoaderState:
        lanes = {lane: known for lane, known in state.lanes.items() if lane % parts == number}
        return LoaderState(state.rows, lanes, state.seq_len, state.seed)

    assert LoaderState.merge(part(number) for number in range(parts)) == state
    assert LoaderState.merge([state, part(0), state]) == state


def test_other_steps_cannot_be_merged() -> None:
    one = LaneState(Position(), 1, ())
    two = LaneState(Position(), 2, ())
    for other in (LoaderState(9, {0: (one,)}), LoaderState(8, {0: (two,)}), LoaderState(8, {}, seed=1)):
        with pytest.raises(ValueError, match="cannot be merged"):
            LoaderState.merge([LoaderState(8, {0: (one,)}), other])


def test_a_state_without_lanes_is_refused() -> None:
    LoaderState().check(seq_len=7, seed=7, num_sources=7)
    with pytest.raises(UserError, match="saved position"):
        LoaderState(5, {}, seq_len=8).check(seq_len=8, seed=0, num_sources=1)
