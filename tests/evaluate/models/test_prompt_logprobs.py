"""Lists of tokens in a server's answers: where each ends in the text, and lists that say nothing."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.evaluate.models.prompt_logprobs import align_tokens, parse_prompt_logprobs


@given(st.text("aé漢🙂 \ufffd\n", max_size=20), st.data())
def test_tokens_of_any_bytes_spell_their_text(text: str, data: st.DataObject) -> None:
    """Cut the bytes anywhere; characters that no cut divides keep their places."""
    raw = text.encode()
    cuts = (
        sorted(data.draw(st.sets(st.integers(1, max(1, len(raw) - 1)), max_size=8))) if len(raw) > 1 else []
    )
    edges = [0, *cuts, len(raw)]
    tokens = [raw[a:b].decode("utf-8", "replace") for a, b in itertools.pairwise(edges)]
    ends = align_tokens(text, tokens if text else [])
    if ends is None:  # a run of parts may look like the clear text behind it; then nothing is claimed
        assert any("\ufffd" in token for token in tokens)
        return
    assert ends == sorted(ends)
    assert not text or ends[-1] == len(raw)
    if "\ufffd" not in "".join(tokens):
        assert ends == edges[1 : len(ends) + 1]


@pytest.mark.parametrize(
    ("text", "tokens", "ends"),
    [
        ("ab", ["a", "b"], [1, 2]),
        ("ab", ["a", "c"], None),
        ("ab", ["a"], None),
        ("é", ["\ufffd", "\ufffd"], [0, 2]),
        ("aéb", ["a", "bytes:\\xc3", "bytes:\\xa9", "b"], [1, 2, 3, 4]),
        ("bytes:\\x", ["bytes", ":\\x"], [5, 8]),
        (" é b", [" \ufffd", "\ufffd", " b"], [0, 3, 5]),
        ("漢 漢 x", ["\ufffd", "\ufffd", " 漢", " x"], [0, 3, 7, 9]),
        ("", [], []),
    ],
)
def test_spelling(text: str, tokens: list[str], ends: list[int] | None) -> None:
    assert align_tokens(text, tokens) == ends


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        (None, "no log-probabilities"),
        ({"tokens": ["a", "b"], "token_logprobs": [-1.0]}, "malformed"),
        ({"tokens": ["a", 3], "token_logprobs": [-1.0, -1.0]}, "malformed"),
        ({"tokens": ["a", "b"], "token_logprobs": [-1.0, None]}, "leaves out"),
        ({"tokens": ["a", "b"], "token_logprobs": [-1.0, float("-inf")]}, "leaves out"),
        ({"tokens": ["x", "y"], "token_logprobs": [-1.0, -1.0]}, "do not spell"),
    ],
)
def test_lists_that_say_nothing(logprobs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_prompt_logprobs("ab", {"choices": [{"logprobs": logprobs}]})


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": None}, [], None, {"choices": [3]}])
def test_answers_without_a_list(answer: Any) -> None:
    with pytest.raises(ValueError, match="no log-probabilities"):
        parse_prompt_logprobs("ab", answer)
