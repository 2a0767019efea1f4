"""Tokens that end a continuation, and continuations that go on with another's random numbers."""

import dataclasses

import pytest

from cpplm.generate.engine import Engine
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.tokenizer.special_tokens import BOS
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import babbler
from tests.generate.test_sequence import write

SAMPLING = SamplingSettings(40, 1.0, 0, seed=3)


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    return babbler(tokenizer)


@pytest.fixture(scope="module")
def end(tokenizer: Tokenizer) -> int:
    return tokenizer.encode_special("<|assistant_end|>")


def completions(engine: Engine, request: GenerationRequest) -> list[CompletionOutput]:
    """Of all samples; what was streamed is the text."""
    scheduler = engine.scheduler(SchedulerLimits(max_batch=3))
    scheduler.submit(request)
    done: dict[int, CompletionOutput] = {}
    shown: dict[int, str] = {}
    while not scheduler.idle:
        for event in scheduler.step():
            shown[event.sample] = shown.get(event.sample, "") + event.text
            if event.completion is not None:
                done[event.sample] = event.completion
    assert shown == {number: completion.text for number, completion in done.items()}
    return [done[number] for number in sorted(done)]


def test_the_end_is_in_the_ids_and_not_in_the_text(tokenizer: Tokenizer, end: int) -> None:
    tokens = tokenizer.encode("int }")
    request = GenerationRequest((BOS,), SamplingSettings(90, stop=("}\n}",)), end_ids=(end,))
    shown, completion = write(tokenizer, request, [*tokens, end, *tokens])
    assert completion == CompletionOutput("int }", (*tokens, end), "end")
    assert "".join(shown) == "int }"
    assert shown[-1] == "}"  # might have begun a stop text


def test_it_wins_over_the_limit_and_a_stop_text_comes_first(tokenizer: Tokenizer, end: int) -> None:
    tokens = tokenizer.encode("int")
    last = GenerationRequest((BOS,), SamplingSettings(len(tokens) + 1), end_ids=(end,))
    assert write(tokenizer, last, [*tokens, end])[1].finish_reason == "end"
    stopped = GenerationRequest((BOS,), SamplingSettings(90, stop=("nt",)), end_ids=(end,))
    assert write(tokenizer, stopped, [*tokens, end])[1] == CompletionOutput("i", tuple(tokens), "stop")


def test_each_sample_ends_at_its_own(engine: Engine) -> None:
    """The same tokens as without, up to the first that ends; so are the probabilities."""
    request = GenerationRequest((BOS, 100, 101), SAMPLING, num_samples=5, logprobs=2)
    free = completions(engine, request)
    ends = (free[0].ids[7], free[3].ids[20])
    found = completions(engine, dataclasses.replace(request, end_ids=ends))
    assert {completion.finish_reason for completion in found} >= {"end"}
    for whole, cut in zip(free, found, strict=True):
        place = next((place for place, id_ in enumerate(whole.ids) if id_ in ends), None)
        count = len(whole.ids) if place is None else place + 1
        assert cut.ids == whole.ids[:count]
        assert cut.finish_reason == (whole.finish_reason if place is None else "end")
        assert cut.text == engine.tokenizer.decode(whole.ids[:place])
        assert [each.token for each in cut.logprobs] == list(cut.ids)
        for one, other in zip(cut.logprobs, whole.logprobs, strict=False):
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
