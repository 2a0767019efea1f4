"""Which tokens may come and how often, against the definitions; random numbers; bad settings."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.generate import sampling
from cpplm.generate.sampling import apply_penalties, random_stream, sample
from cpplm.generate.settings import SamplingSettings


def allowed(logits: list[float], choice: SamplingSettings) -> dict[int, float]:
    """Probabilities by the definition: one filter after the other, each on what the last one left."""
    scaled = {token: logit / choice.temperature for token, logit in enumerate(logits)}
    if choice.top_k:
        least = sorted(scaled.values(), reverse=True)[: choice.top_k][-1]
        scaled = {token: logit for token, logit in scaled.items() if logit >= least}
    highest = max(scaled.values())
    weights = {token: math.exp(logit - highest) for token, logit in scaled.items()}
    total, sum_, least = sum(weights.values()), 0.0, 0.0
    for weight in sorted(weights.values(), reverse=True):
        if sum_ / total >= choice.top_p:
            break
        sum_, least = sum_ + weight, weight
    least = max(least, choice.min_p)
    kept = {token: weight for token, weight in weights.items() if weight >= least}
    return {token: weight / sum(kept.values()) for token, weight in kept.items()}


@settings(max_examples=60)
@given(
    logits=st.lists(st.integers(-40, 40), min_size=2, max_size=30, unique=True),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.integers(0, 32),
    top_p=st.sampled_from([0.05, 0.5, 0.83, 0.99, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.4, 1.0]),
    ranked=st.sampled_from([1, 4, 512]),
)
def test_filters_follow_their_definitions(logits, temperature, top_k, top_p, min_p, ranked) -> None:
    """Evenly spread numbers hit each token as often as it is likely."""
    choice = SamplingSettings(1, temperature, top_k, 0, top_p, min_p)
    logits = [logit / 7 for logit in logits]
    expected, draws = allowed(logits, choice), 2000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampling, "_RANKED", ranked)
        numbers = [(draw + 0.5) / draws for draw in range(draws)]
        tokens = sample(torch.tensor(logits).expand(draws, -1), choice, numbers)
    share = np.bincount(tokens, minlength=len(logits)) / draws
    for token in range(len(logits)):
        assert abs(share[token] - expected.get(token, 0.0)) <= 1.01 / draws


def test_what_cannot_come_never_comes() -> None:
    """Not even at the ends of the random numbers, nor under filters that it would pass."""
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, -90.0, -math.inf]])
    for top_p in (1.0, 0.999999):
        for number in (0.0, 0.5, 1 - 2**-53):
            choice = SamplingSettings(temperature=1, top_k=0, top_p=top_p)
            assert sample(logits, choice, [number])[0] in (1, 3)
    assert sample(logits, SamplingSettings(temperature=0), [0.9]) == [1]


def test_random_numbers_depend_on_seed_and_sample_alone() -> None:
    streams = {(seed, n): random_stream(seed, n).random(4).tolist() for seed in (0, 1, 9) for n in range(5)}
    assert len({tuple(numbers) for numbers in streams.values()}) == 15
    assert random_stream(9, 4).random(4).tolist() == streams[9, 4]


def test_penalties_and_bias() -> None:
    """Repetition: of what was read and written. Frequency and presence: of what was written, as OpenAI's.
    The bias is added to what these leave, so -100 forbids a token whatever else is asked for.
    """
    logits = torch.tensor([2.0, -2.0, 0.0, 1.0])

    def changed(**change: Any) -> list[float]:
        return apply_penalties(logits, SamplingSettings(**change), prompt=[0], written=[1, 3, 3]).tolist()

    assert changed() == [2.0, -2.0, 0.0, 1.0]
    assert changed(repetition_penalty=2.0) == [1.0, -4.0, 0.0, 0.5]
    assert changed(frequency_penalty=0.5) == [2.0, -2.5, 0.0, 0.0]
    assert changed(presence_penalty=0.5) == [2.0, -2.5, 0.0, 0.5]
    assert changed(frequency_penalty=-1.0, presence_penalty=2.0) == [2.0, -3.0, 0.0, 1.0]
    assert changed(logit_bias=((2, 5.0), (3, -100.0))) == [2.0, -2.0, 5.0, -99.0]
    every = {"repetition_penalty": 2.0, "frequency_penalty": 0.5, "presence_penalty": 1.0}
    assert changed(**every, logit_bias=((1, 3.0),)) == [1.0, -2.5, 0.0, -1.5]
    assert logits.tolist() == [2.0, -2.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": -1}, {"top_k": -2}, {"max_new_tokens": 0}, {"top_p": 0.0}, {"top_p": 1.1},
        {"min_p": -0.1}, {"repetition_penalty": 0.0}, {"frequency_penalty": 2.1}, {"presence_penalty": -2.1},
        {"frequency_penalty": math.nan}, {"logit_bias": ((-1, 0.0),)}, {"logit_bias": ((70, 100.5),)},
        {"logit_bias": ((70, math.nan),)}, {"stop": ("x", "")}, {"seed": -1},
    ],
)  # fmt: skip
def test_bad_settings(change: dict) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        SamplingSettings(**change)
