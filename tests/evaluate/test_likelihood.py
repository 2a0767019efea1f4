"""Likelihood of solutions: shares, intervals, borders; on a model whose bits are known and on a real one."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.likelihood import Solution, measure_likelihood, table
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.models.code_model import TokenBits
from cpplm.evaluate.problems import Problem, load_problems
from cpplm.generate.engine import Engine
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.evaluate.models.test_checkpoint_model import random_model


class Unigram:
    """Bytes by themselves: an `x` costs 1 bit, all else 4."""

    name, supports_fim, max_context = "unigram", False, 1000
    identity: dict[str, Any] = {}

    def score(self, texts: Sequence[str], *, context: int | None = None) -> Iterator[TokenBits]:
        for text in texts:
            data = np.frombuffer(text.encode(), dtype=np.uint8)
            yield TokenBits(
                np.arange(1, len(data) + 1), np.where(data == ord("x"), 1.0, 4.0), np.arange(1, len(data) + 1)
            )


def problem(right: str, wrong: str, name: str = "p") -> Problem:
    return Problem(name, "easy", "int f() {\n", "", right, wrong)


def test_figures_by_hand() -> None:
    problems = [
        problem("xx}", "aa}"),  # likelier
        problem("aaaa}", "a}"),  # less likely, as it is longer; equal per byte
        problem("xxxxa}", "}"),  # less likely, though likelier per byte
        problem("xa}", "ax}"),  # a tie
    ]
    found = measure_likelihood(Unigram(), problems)
    assert found["problems"] == 4
    bits, size = 6 + 20 + 12 + 9, 3 + 5 + 6 + 3
    assert found["bits_per_byte"] == pytest.approx(bits / size)
    assert found["bug_ranking"]["share"] == pytest.approx((1 + 0 + 0 + 0.5) / 4)
    assert found["bug_ranking_per_byte"]["share"] == pytest.approx((1 + 0.5 + 1 + 0.5) / 4)
    assert [(d["bits"], d["bytes"], d["buggy_bits"], d["buggy_bytes"]) for d in found["details"]] == [
        (6, 3, 12, 3), (20, 5, 8, 2), (12, 6, 4, 1), (9, 3, 9, 3),
    ]  # fmt: skip
    low, high = found["bug_ranking"]["interval"]
    assert 0 <= low < found["bug_ranking"]["share"] < high <= 1
    shown = table(found)
    for part in ("canonical bodies", "bug ranking", "37.5%", "75.0%", "(4 problems)"):
        assert part in shown


def test_problems_without_a_buggy_or_without_any_solution() -> None:
    found = measure_likelihood(
        Unigram(), [problem("xx}", ""), problem("", "", "none"), problem("x}", "a}", "q")]
    )
    assert (found["problems"], found["bug_ranking"]["pairs"], found["bug_ranking"]["share"]) == (2, 1, 1.0)
    assert found["bits_per_byte"] == pytest.approx((6 + 5) / 5)
    alone = measure_likelihood(Unigram(), [problem("xx}", "")])
    assert alone["bug_ranking"] is None
    assert "bug ranking" not in table(alone)
    with pytest.raises(UserError, match="solution"):
        measure_likelihood(Unigram(), [problem("", "")])


def test_a_token_across_the_border_counts_with_the_body() -> None:
    found = TokenBits(np.array([3, 6, 9]), np.array([1.0, 2.0, 4.0]), np.array([1, 2, 3]))
    assert Solution.of(found, "abcd") == Solution(7.0, 6.0, 5)
    assert Solution.of(found, "abcdef") == Solution(7.0, 4.0, 3)
    assert Solution.of(found, "äc") == Solution(7.0, 6.0, 6)


def test_a_real_model_on_the_problems_that_come_with_cpplm(tokenizer: Tokenizer) -> None:
    """Its figures do not depend on batches, and bodies as their own bugs are ties."""
    model = random_model(tokenizer)
    problems = load_problems("small")[:4]
    first = measure_likelihood(CheckpointModel(Engine(model, tokenizer), rows=8), problems)
    other = measure_likelihood(CheckpointModel(Engine(model, tokenizer), rows=1), problems)
    assert first["bits_per_byte"] == pytest.approx(other["bits_per_byte"], rel=1e-4)
    assert first["bug_ranking"] == other["bug_ranking"]
    same = [dataclasses.replace(each, buggy_solution=each.canonical_solution) for each in problems]
    tied = measure_likelihood(CheckpointModel(Engine(model, tokenizer), rows=3), same)
    assert tied["bug_ranking"]["share"] == tied["bug_ranking_per_byte"]["share"] == 0.5
