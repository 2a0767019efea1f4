"""States survive JSON, merge over ranks, and refuse what does not belong together."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.dataloader.loader_state import NUM_STREAMS, DocumentRef, LoaderState, StreamCursor, StreamState

numbers = st.integers(0, 10**9)
stream_states = st.builds(
    StreamState,
    st.builds(StreamCursor, numbers, numbers, numbers),
    numbers,
    st.lists(st.builds(DocumentRef, numbers, numbers, numbers, numbers, numbers), max_size=3).map(tuple),
)
states = st.builds(
    LoaderState,
    numbers,
    st.dictionaries(
        st.integers(0, NUM_STREAMS - 1), st.tuples(st.none() | stream_states, st.none() | stream_states)
    ),
    numbers,
    numbers,
)


@given(states)
def test_json_and_back(state: LoaderState) -> None:
    assert LoaderState.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_older_checkpoints_call_the_streams_lanes() -> None:
    state = LoaderState(
        8, {3: (StreamState(StreamCursor(1, 2, 3), 4, (DocumentRef(1, 2, 5, 0, 7),)), None)}, 16, 9
    )
    lanes = [[[1, 2, 3], 4, [[1, 2, 5, 0, 7]]], None]
    assert LoaderState.from_json({"rows": 8, "seq_len": 16, "seed": 9, "lanes": {"3": lanes}}) == state


@given(states, st.integers(1, 5))
def test_merging_parts_gives_the_whole(state: LoaderState, parts: int) -> None:
    def part(number: int) -> LoaderState:
        streams = {stream: known for stream, known in state.streams.items() if stream % parts == number}
        return LoaderState(state.rows, streams, state.seq_len, state.seed)

    assert LoaderState.merge(part(number) for number in range(parts)) == state
    assert LoaderState.merge([state, part(0), state]) == state


def test_other_steps_cannot_be_merged() -> None:
    one = StreamState(StreamCursor(), 1, ())
    two = StreamState(StreamCursor(), 2, ())
    for other in (LoaderState(9, {0: (one,)}), LoaderState(8, {0: (two,)}), LoaderState(8, {}, seed=1)):
        with pytest.raises(ValueError, match="cannot be merged"):
            LoaderState.merge([LoaderState(8, {0: (one,)}), other])


def test_a_state_without_streams_is_refused() -> None:
    LoaderState().check(seq_len=7, seed=7, num_sources=7)
    with pytest.raises(UserError, match="saved position"):
        LoaderState(5, {}, seq_len=8).check(seq_len=8, seed=0, num_sources=1)
