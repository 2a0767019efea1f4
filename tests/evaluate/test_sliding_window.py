"""Windows of long texts: what is scored in which, and that batches decide nothing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cpplm.evaluate.sliding_window import EncodedText, score_in_windows, sliding_windows
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

START = 7


def losses(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """A causal model: the loss of a token depends on it and on all inputs up to it, and on nothing else."""
    seen_BT = (inputs_BT * torch.arange(1, inputs_BT.size(1) + 1)).cumsum(1)
    return ((seen_BT * 31 + targets_BT * 17) % 97 / 10) * (targets_BT != IGNORE_INDEX)


def by_hand(ids: list[int], context: int) -> tuple[list[float], list[int]]:
    """Bits and tokens in view, token by token, each in the first window that has it."""
    bits, view = [], []
    step = max(1, context // 2)
    for place, target in enumerate(ids):
        begin = 0 if place < context else math.ceil((place + 1 - context) / step) * step
        seen = [START, *ids][begin : place + 1]
        total = sum(id_ * number for number, id_ in enumerate(seen, 1))
        bits.append((total * 31 + target * 17) % 97 / 10 / math.log(2))
        view.append(len(seen))
    return bits, view


@given(st.integers(0, 300), st.integers(1, 40))
def test_each_token_is_scored_once_behind_half_a_context(num_tokens: int, context: int) -> None:
    scored = []
    for window in sliding_windows(num_tokens, context):
        assert window.end - window.begin <= context
        for place in range(window.fresh, window.end):
            scored.append(place)
            in_view = place - window.begin + 1  # with the start token, or the token before the window
            assert in_view >= min(place + 1, math.ceil(context / 2))
    assert scored == list(range(num_tokens))


@given(
    st.lists(st.lists(st.integers(0, 50), max_size=70), max_size=8),
    st.integers(1, 24),
    st.integers(1, 5),
    st.integers(1, 100),
)
def test_bits_do_not_depend_on_batches(
    documents: list[list[int]], context: int, rows: int, batch_tokens: int
) -> None:
    encoded = [EncodedText(ids, np.arange(1, len(ids) + 1)) for ids in documents]
    found = list(
        score_in_windows(
            encoded, losses, start_id=START, context=context, rows=rows, batch_tokens=batch_tokens
        )
    )
    assert len(found) == len(documents)
    for ids, scored in zip(documents, found, strict=True):
        bits, view = by_hand(ids, context)
        assert scored.bits.tolist() == pytest.approx(bits)
        assert scored.context.tolist() == view
        assert len(scored.ends) == len(ids)


def test_batches_stay_within_their_limits() -> None:
    shapes = []

    def watched(inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        shapes.append(tuple(inputs_BT.shape))
        return losses(inputs_BT, targets_BT)

    documents = [EncodedText([1] * size, np.arange(size)) for size in (5, 700, 300, 2, 1000, 40)]
    list(score_in_windows(documents, watched, start_id=START, context=512, rows=3, batch_tokens=1024))
    assert all(rows <= 3 and (rows == 1 or rows * length <= 1024) for rows, length in shapes)
    assert max(rows for rows, _ in shapes) == 3


def test_results_come_before_all_documents_are_read() -> None:
    read = []

    def endless() -> object:
        while True:
            read.append(0)
            yield EncodedText([1] * 10, np.arange(10))

    found = score_in_windows(endless(), losses, start_id=START, context=16, rows=2)  # type: ignore[arg-type]
    next(found)
    assert len(read) < 50
