"""No special token is written but one that ends: in every form of request, whoever drafts."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cpplm.generate.conversation import chat_request
from cpplm.generate.engine import Engine
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import DraftSettings, SamplingSettings, SchedulerLimits
from cpplm.tokenizer.special_tokens import BOS, EOS, NUM_SPECIAL, SPECIAL_TOKENS
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.test_every_feature import engine_of
from tests.generate.test_speculative import HEADS, LOOKUP, with_head
from tests.model.features import CONFIGS, random_ids

HISTORY = [{"role": "user", "content": "int x;"}]
TEMPERATURES = pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])


def fond_of(engine: Engine, ids: list[int]) -> Engine:
    """The model with these tokens by far the likeliest, the first of them most."""
    with torch.no_grad():
        hidden_C = engine.model.hidden_states(random_ids(8, 30, engine.model.config)).mean((0, 1))
        for rank, id_ in enumerate(ids):
            engine.model.lm_head.weight[id_] = (40 - 0.1 * rank) * hidden_C / hidden_C.square().sum()
    return engine


@pytest.fixture
def engine(tokenizer: Tokenizer) -> Engine:
    """Fond of everything special that does not end a text."""
    engine = engine_of(with_head(CONFIGS["plain"]), tokenizer)
    return fond_of(engine, [id_ for id_ in range(NUM_SPECIAL) if id_ not in (BOS, EOS)])


def requests(engine: Engine, settings: SamplingSettings) -> Iterator[GenerationRequest]:
    """Of every form; the prompts hold special tokens twice, so that a lookup finds them."""
    yield engine.request("int x; int x; int x; in", settings=settings, num_samples=2)  # its end is spelt anew
    for spm in (False, True):
        yield engine.request("int x;", "int x;", settings=settings, spm=spm)
    yield chat_request(engine, HISTORY, settings)
    for id_ in range(NUM_SPECIAL):
        yield GenerationRequest((BOS, 80, 81, id_, 80, 81, id_, 80, 81), settings)


def assert_text(completion: CompletionOutput, ends: tuple[int, ...] = ()) -> None:
    *before, last = completion.ids or (BOS,)
    assert all(id_ >= NUM_SPECIAL for id_ in before)
    assert last >= NUM_SPECIAL or (last in ends and completion.finish_reason == "end") or not completion.ids
    assert not any(name in completion.text for name in SPECIAL_TOKENS)


@pytest.mark.parametrize(
    ("draft", "temperature", "more"),
    [
        (DraftSettings(), 0.0, {}),
        (DraftSettings(), 0.8, {"top_p": 0.5}),
        (LOOKUP, 0.0, {"repetition_penalty": 0.5, "frequency_penalty": -2.0}),
        (LOOKUP, 0.8, {"repetition_penalty": 1.5}),
        (HEADS, 0.0, {"logit_bias": tuple((id_, 100.0) for id_ in range(4, NUM_SPECIAL))}),
        (HEADS, 0.8, {"min_p": 0.5}),
    ],
    ids=str,
)
def test_none_is_written(
    engine: Engine, draft: DraftSettings, temperature: float, more: dict[str, Any]
) -> None:
    settings = SamplingSettings(12, **{"temperature": temperature, "top_k": 0, **more})
    asked = list(requests(engine, settings))
    drafted: list[int] = []
    scheduler = engine.scheduler(SchedulerLimits(max_batch=8, draft=draft))
    draft_of = scheduler._proposer.draft

    def seen(*arguments: Any) -> list[list[int]]:
        found = draft_of(*arguments)
        drafted.extend(id_ for row in found for id_ in row)
        return found

    scheduler._proposer.draft = seen  # type: ignore[method-assign]
    tickets = {scheduler.submit(request): request for request in asked}
    written = 0
    while not scheduler.idle:
        for event in scheduler.step():
            if event.completion is not None:
                assert_text(event.completion, tickets[event.request_id].end_ids)
                written += len(event.completion.ids)
    assert written > 500
    assert all(id_ >= NUM_SPECIAL for id_ in drafted)
    assert bool(drafted) == (draft.kind != "off")


@TEMPERATURES
def test_the_end_of_each_form_is_written(engine: Engine, temperature: float) -> None:
    """What ends a text in training is no more masked than an ordinary token, and ends it."""
    settings = SamplingSettings(12, temperature)
    for request in requests(engine, settings):
        for end in (BOS, EOS, *request.end_ids):
            fond = fond_of(engine_of(with_head(CONFIGS["plain"]), engine.tokenizer), [end])
            (answer,) = fond.complete_many([dataclasses.replace(request, prefix=b"", num_samples=1)])
            (completion,) = answer.completions
            assert (completion.finish_reason, completion.text) == ("end", "")
            assert completion.ids == ((end,) if end in request.end_ids else ())
        if request.ids[1] == 80:
            break  # the others are alike


def test_probabilities_stay_the_models_own(engine: Engine) -> None:
    """Special tokens have their share in them, though they are never chosen."""
    request = GenerationRequest((BOS, 80), SamplingSettings(1, 0), logprobs=3)
    (answer,) = engine.complete_many([request])
    (found,) = answer.completions[0].logprobs
    with torch.no_grad():
        logprobs_V = engine.model(torch.tensor([request.ids]))[0, -1].log_softmax(-1)
    assert found.token >= NUM_SPECIAL
    assert found.logprob == pytest.approx(float(logprobs_V[found.token]), abs=1e-4)
    assert all(id_ < NUM_SPECIAL for id_, _ in found.likeliest)
    assert [value for _, value in found.likeliest] == pytest.approx(
        logprobs_V.topk(3).values.tolist(), abs=1e-4
    )
