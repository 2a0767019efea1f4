"""Drafts change no token: greedy and sampled, for every feature, whoever drafts; and they do save steps."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch

from cpplm.generate.engine import Engine
from cpplm.generate.scheduler import Scheduler
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import DraftSettings, SamplingSettings, SchedulerLimits
from cpplm.generate.speculative import Proposer
from cpplm.model.config import ModelConfig
from cpplm.model.kv_cache.cache import KVCache
from cpplm.tokenizer.special_tokens import BOS, NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.naive import greedy
from tests.generate.test_every_feature import EACH, assert_plain, engine_of, requests
from tests.model.features import CONFIGS, DECODED, random_model

LOOKUP, HEADS = (
    DraftSettings("lookup", tokens=5, max_batch=32),
    DraftSettings("heads", tokens=3, max_batch=32),
)


PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.2, "frequency_penalty": 0.7, "presence_penalty": -0.5, "logit_bias": ((90, 6.0),),
}  # fmt: skip


def with_head(config: ModelConfig) -> ModelConfig:
    return dataclasses.replace(config, mtp=CONFIGS["further"].mtp)


def answers(
    engine: Engine, asked: list[GenerationRequest], limits: SchedulerLimits
) -> list[tuple[CompletionOutput, ...]]:
    done = {answer.number: answer.completions for answer in engine.complete_many(asked, limits)}
    return [done[number] for number in range(len(asked))]


def run(scheduler: Scheduler, request: GenerationRequest) -> tuple[dict[int, CompletionOutput], int]:
    scheduler.submit(request)
    done, steps = {}, 0
    while not scheduler.idle:
        steps += 1
        done |= {event.sample: event.completion for event in scheduler.step() if event.completion}
    return done, steps


@EACH
@pytest.mark.parametrize("draft", [LOOKUP, HEADS], ids=["lookup", "heads"])
def test_greedy_tokens_are_those_of_the_plain_loop(
    config: ModelConfig, tokenizer: Tokenizer, draft: DraftSettings
) -> None:
    """Alone and side by side; prompts that repeat themselves give the lookup something to find."""
    engine = engine_of(with_head(config), tokenizer)
    asked = [
        dataclasses.replace(request, ids=(BOS, *(request.ids[1:] * 3)[:50]), settings=greedy(12))
        for request in requests(tokenizer, 4)
    ]
    for some, rows in ((asked[:1], 1), (asked, 3)):
        found = answers(engine, some, SchedulerLimits(max_batch=rows, prefill_chunk=30, draft=draft))
        for request, completions in zip(some, found, strict=True):
            assert_plain(engine.model, request, completions[0])


@pytest.mark.parametrize("draft", [LOOKUP, HEADS], ids=["lookup", "heads"])
def test_samples_are_the_same_token_for_token(tokenizer: Tokenizer, draft: DraftSettings) -> None:
    """Random numbers belong to places, not to passes: with healing, filters, penalties, stops alike."""
    config = dataclasses.replace(DECODED["all"], hyper_connections=None)  # which take most of the time
    engine = engine_of(config, tokenizer)
    asked = [
        engine.request("int x; " * 6 + "in", settings=SamplingSettings(20, temperature, 4, seed, **kind),
                       num_samples=2, logprobs=1)
        for seed, (temperature, kind) in enumerate(itertools.product(
            (1.0,), ({}, PENALTIES, {"stop": (";",)}, {"top_p": 0.7})))
    ]  # fmt: skip
    plain, drafted = (
        answers(engine, asked, SchedulerLimits(max_batch=4, draft=kind)) for kind in (DraftSettings(), draft)
    )
    for one, other in zip(itertools.chain(*plain), itertools.chain(*drafted), strict=True):
        assert (one.text, one.ids, one.finish_reason) == (other.text, other.ids, other.finish_reason)
        for a, b in zip(one.logprobs, other.logprobs, strict=True):
            assert a.logprob == pytest.approx(b.logprob, abs=1e-4)


def test_lookup_saves_steps(tokenizer: Tokenizer) -> None:
    """A model that repeats itself writes several tokens per step."""
    engine = engine_of(CONFIGS["plain"], tokenizer)
    prompt = GenerationRequest((BOS, 100), greedy(60))
    plain, steps = run(engine.scheduler(), prompt)
    scheduler = engine.scheduler(SchedulerLimits(draft=LOOKUP))
    drafted, fewer = run(scheduler, prompt)
    assert drafted == plain
    assert len(set(plain[0].ids)) < 30  # greedy texts of a random model go in circles
    assert steps - fewer == scheduler.num_accepted > 10
    assert scheduler.num_drafted >= scheduler.num_accepted
    assert scheduler.cache.num_used_blocks == 0


def test_a_head_that_knows_the_model_is_always_right(tokenizer: Tokenizer) -> None:
    """Made so that its states are the model's at the next place: all its drafts are kept."""
    config = dataclasses.replace(with_head(CONFIGS["plain"]), num_layers=1, window_pattern="L")
    engine = engine_of(config, tokenizer)
    model = engine.model
    with torch.no_grad():  # the model without layers: a state is the embedding of its token
        for block in (model.blocks[0], model.multi_token[0].block):
            block.attention.output.weight.zero_()
            block.mlp.down.weight.zero_()
        model.residual_scales.fill_(1.0)
        model.embedding_scales.zero_()
        width = config.model_dim
        model.multi_token[0].merge.weight.zero_()
        model.multi_token[0].merge.weight[:, width:].fill_diagonal_(1.0)
    scheduler = engine.scheduler(SchedulerLimits(draft=HEADS))
    done, steps = run(scheduler, GenerationRequest((BOS, 80, 99, 120), greedy(41), num_samples=2))
    assert scheduler.num_accepted == scheduler.num_drafted
    assert steps == 10  # the first writes five tokens, each of the others four
    assert (
        done == run(engine.scheduler(), GenerationRequest((BOS, 80, 99, 120), greedy(41), num_samples=2))[0]
    )


def test_the_first_draft_is_what_the_head_says(tokenizer: Tokenizer) -> None:
    """At every place the same as the head over the whole text without a cache."""
    engine = engine_of(with_head(DECODED["all"]), tokenizer)
    model, asked = (
        engine.model,
        GenerationRequest(requests(tokenizer, 3)[2].ids * 2, SamplingSettings(25, 1.0, 0)),
    )
    scheduler, seen = engine.scheduler(SchedulerLimits(prefill_chunk=7, draft=HEADS)), {}
    draft = scheduler._proposer.draft

    def noted(states, sequences):
        found = draft(states, sequences)
        seen[tuple(states[0].ids)] = found[0]
        return found

    scheduler._proposer.draft = noted  # type: ignore[method-assign]
    done, _ = run(scheduler, asked)
    ids = torch.tensor([[*asked.ids, *done[0].ids]])
    with torch.no_grad():
        states = model.draft_states(0, model.hidden_states(ids[:, :-1]), ids[:, 1:])
        expected = (model.logits(states)[0, :, NUM_SPECIAL:].argmax(-1) + NUM_SPECIAL).tolist()
    assert len(seen) > 5
    for text, found in seen.items():
        assert found[0] == expected[len(text) - 2]


def test_lookup_finds_what_came_last(tokenizer: Tokenizer) -> None:
    model = random_model(CONFIGS["plain"])
    cache = KVCache(model.cache_specs(), device=model.device, dtype=torch.float32)
    drafter = Proposer(model, cache, DraftSettings("lookup", tokens=3))

    def draft(ids: list[int]) -> list[int]:
        """Ids count from the first that is not special; special ones are negative."""
        found = drafter.draft([drafter.begin([NUM_SPECIAL + id_ for id_ in ids])], [cache.begin()])[0]
        return [id_ - NUM_SPECIAL for id_ in found]

    assert draft([1, 2, 3, 4, 5, 6, 1, 2, 3]) == [4, 5, 6]
    assert draft([1, 2, 3, 4, 1, 2, 3, 9, 1, 2, 3]) == [9, 1, 2]  # the last time counts
    assert draft([9, 2, 3, 4, 5, 6, 1, 2, 3]) == [4, 5, 6]  # two tokens are enough
    assert draft([1, 2, 3, 7, 5, 2, 3, 8, 1, 2, 3]) == [7, 5, 2]  # three tell more
    assert draft([1, 2, 3]) == draft([5]) == []
    assert draft([1, 2, 3, 4, -1, 6, 1, 2, 3]) == [4]  # special tokens are never drafted
    assert draft([1, 2, 3, -1, 5, 6, 1, 2, 3]) == []
    drafter = Proposer(model, cache, DraftSettings("lookup"))  # two, where nobody says how many
    assert draft([1, 2, 3, 4, 5, 6, 1, 2, 3]) == [4, 5]
