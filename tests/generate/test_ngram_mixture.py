"""Matches against a search of all places, the mixture's probabilities, and what a model writes with it."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch

from cpplm.generate.engine import Engine
from cpplm.generate.ngram_mixture import MAX_MATCH, NgramIndex, NgramMatch, NgramMixture
from cpplm.generate.settings import SamplingSettings
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.model.test_transformer import random_model


def search(texts: dict[str, list[int]], context: list[int], exclude: str) -> tuple[int, Counter[int]] | None:
    """The length of the longest match, and what follows its places, by looking at every place."""
    for length in range(min(MAX_MATCH, len(context)), 1, -1):
        end = context[-length:]
        followers = Counter(
            text[place + length]
            for name, text in texts.items() if name != exclude
            for place in range(len(text) - length) if text[place : place + length] == end
        )  # fmt: skip
        if followers:
            return length, followers
    return None


@pytest.mark.parametrize("seed", range(6))
def test_the_longest_match_is_that_of_a_search(seed: int) -> None:
    draw = random.Random(seed)
    alphabet = draw.choice((2, 3, 9))
    texts = {
        str(number): [draw.randrange(alphabet) for _ in range(draw.randrange(0, 120))] for number in range(6)
    }
    texts["6"] = texts["1"] + texts["2"]  # longer runs than chance gives
    index = NgramIndex(texts)
    for _ in range(60):
        text = texts[draw.choice(list(texts))]
        context = [draw.randrange(alphabet), *text[: draw.randrange(len(text) + 1)]]
        exclude = draw.choice(["", *texts])
        match, expected = index.longest_match(context, exclude), search(texts, context, exclude)
        assert (match is None) == (expected is None)
        if match is not None and expected is not None:
            length, followers = expected
            most = max(followers.values())
            assert (match.length, match.places, match.others) == (length, most, followers.total() - most)
            assert followers[match.follower] == most


def test_a_project_without_tokens_matches_nothing() -> None:
    assert NgramIndex({}).longest_match([1, 2]) is None
    assert NgramIndex({"a": [], "b": [1]}).longest_match([1]) is None


def test_more_evidence_weighs_more() -> None:
    evidence = ((2, 1, 9), (2, 1, 0), (8, 1, 0), (8, 9, 0), (32, 90, 0))
    weights = [NgramMatch(0, length, count, others).weight for length, count, others in evidence]
    assert weights == sorted(weights)
    assert 0 < weights[0] < 0.05
    assert 0.9 < weights[-1] < 1


def test_the_follower_gets_its_weight_of_the_probability() -> None:
    mixture = NgramMixture(NgramIndex({"a": [1, 2, 3, 1, 2, 3]}), NgramIndex({"near": [5, 2, 4]}))
    logits = torch.randn(8, generator=torch.Generator().manual_seed(0))
    mixed = mixture.mix(logits.clone(), [1, 2]).exp()
    weight = NgramMatch(3, 2, 2, 0).weight
    expected = (1 - weight) * logits.softmax(-1)
    expected[3] += weight
    torch.testing.assert_close(mixed, expected)
    assert torch.equal(mixture.mix(logits.clone(), [7, 7]), logits)
    assert mixture.longest_match([5, 2]) == NgramMatch(4, 2, 1, 0)  # around the cursor
    assert replace(mixture, exclude="a").longest_match([1, 2]) is None


def test_a_model_writes_what_the_project_has(tokenizer: Tokenizer) -> None:
    """Greedily, sampled, and drafted; each with the log-probability that the mixture gives."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=2, model_dim=32, num_heads=2, num_kv_heads=2, head_dim=16,
        max_seq_len=96,
    )  # fmt: skip
    engine = Engine(random_model(config), tokenizer)
    text = "int answer(int value) {\n    return value * 42;\n}\n"
    ids = tokenizer.encode(text)
    ngrams = NgramMixture(NgramIndex({str(each): ids for each in range(40)}), NgramIndex({}))
    prompt = "int answer(int value) {\n"
    for settings in (SamplingSettings(24, 0), SamplingSettings(24, 0.5, seed=1)):
        request = engine.request(prompt, "", settings=settings, logprobs=1, ngrams=ngrams)
        (answer,) = engine.complete_many([request])
        (completion,) = answer.completions
        assert completion.text.startswith(text[len(prompt) :])
        assert all(token.logprob > -2 for token in completion.logprobs[: len(ids) // 2])
    (alone,) = engine.complete_many([replace(request, ngrams=None)])
    assert not alone.completions[0].text.startswith(text[len(prompt) :])
