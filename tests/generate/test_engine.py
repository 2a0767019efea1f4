"""Completions against the plain loop: prompts that end anywhere, holes, many at once."""

import itertools

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.dataloader.fim import render_fim_prompt
from cpplm.generate.engine import Engine
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.healing import heal
from cpplm.tokenizer.special_tokens import BOS, EOS, NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.naive import greedy, naive_sample
from tests.model.test_transformer import random_model

PROMPTS = ["int", "#include <vector>\nint shift(int value", ""]


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=3, model_dim=32, num_heads=4, num_kv_heads=2, head_dim=8,
        max_seq_len=48, window_pattern="SL",
    )  # fmt: skip
    return Engine(random_model(config), tokenizer)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_completions_are_those_of_the_plain_loop(engine: Engine, prompt: str) -> None:
    for settings in (greedy(20), SamplingSettings(20, 1.0, 20, seed=7)):
        expected = [
            naive_sample(engine.model, engine.tokenizer, engine.request(prompt, settings=settings), number)
            for number in range(3)
        ]
        assert engine.complete(prompt, settings, num_samples=3) == expected


@pytest.mark.parametrize("cut", range(0, 60, 11))
def test_a_prompt_may_end_anywhere(engine: Engine, cut: int) -> None:
    """What is written goes on with the prompt, byte for byte, and the tokens together spell both."""
    prompt = "#include <vector>\n\nnamespace part_3 {\n\nint shift_3_1(int value) {"[:cut]
    healed = heal(engine.tokenizer, prompt)
    for settings in (SamplingSettings(8, 0), SamplingSettings(8, 1.0, 5, seed=cut)):
        for completion in engine.complete(prompt, settings, num_samples=2):
            written = engine.tokenizer.decode([*healed.ids, *completion.ids])
            assert written == prompt + completion.text or len(written) < len(prompt)
            spelling = len(completion.ids) - 8
            assert (completion.finish_reason == "length") == (
                len(engine.tokenizer.decode_bytes(completion.ids[:spelling])) >= len(healed.removed)
            )


def test_healing_takes_the_likeliest_token_that_spells_the_end(engine: Engine) -> None:
    """Token by token the same as the plain loop whose logits know only what begins with the rest."""
    prompt = "int shift_3_1(int value) {\n"
    healed = heal(engine.tokenizer, prompt)
    completion = engine.complete(prompt, SamplingSettings(6, 0))[0]
    ids, rest = [BOS, *healed.ids], healed.removed
    for token in completion.ids:
        logits = engine.model(torch.tensor([ids]))[0, -1]
        logits[[id_ for id_ in range(NUM_SPECIAL) if rest or id_ not in (BOS, EOS)]] = float("-inf")
        if rest:
            for id_, spelt in enumerate(engine.tokenizer.tokens, 64):
                if not (spelt.startswith(rest) or rest.startswith(spelt)):
                    logits[id_] = float("-inf")
        assert token == int(logits.argmax())
        ids.append(token)
        rest = rest[len(engine.tokenizer.decode_bytes([token])) :]
    assert rest == b""


@pytest.mark.parametrize("spm", [False, True])
def test_a_hole_is_read_as_in_training(engine: Engine, spm: bool) -> None:
    """Both cuts lie inside a token: nothing is taken back, nothing has to be spelt again."""
    request = engine.request("int area(int wi", "eight) {", settings=greedy(5), spm=spm)
    assert list(request.ids) == render_fim_prompt(engine.tokenizer, "int area(int wi", "eight) {", spm=spm)
    (answer,) = engine.complete_many([request])
    assert answer.completions == (naive_sample(engine.model, engine.tokenizer, request, 0),)


def test_stops_at_the_context_length(engine: Engine) -> None:
    (answer,) = engine.complete_many([GenerationRequest((BOS, *[100] * 40), greedy(100))])
    assert (answer.completions[0].finish_reason, len(answer.completions[0].ids)) == ("length", 48 - 41 + 1)
    with pytest.raises(UserError, match="tokens, the model's context 48"):
        engine.complete("int x; " * 40)


def test_many_requests_of_all_kinds(engine: Engine) -> None:
    """As if each were alone, in whatever order they are done; a bad one is answered and stops nobody."""
    kinds = [
        {"settings": greedy(9)}, {"settings": SamplingSettings(5, 1.0, 0, seed=2), "num_samples": 3},
        {"settings": SamplingSettings(12, 0.7, 30, seed=1, top_p=0.9, repetition_penalty=1.3)},
        {"settings": SamplingSettings(7, 1.2, 0, seed=3, min_p=0.05), "stop": lambda text: ";" in text},
    ]  # fmt: skip
    prompts = [*PROMPTS, "int x; " * 40]
    requests = [engine.request(prompt, **kind) for prompt, kind in itertools.product(prompts, kinds)]
    limits = SchedulerLimits(max_batch=5, prefill_chunk=7)
    answers = {answer.number: answer for answer in engine.complete_many(iter(requests), limits)}
    assert sorted(answers) == list(range(len(requests)))
    for number, request in enumerate(requests):
        if len(request.ids) > 48:
            assert "context 48" in answers[number].failed
            continue
        expected = [
            naive_sample(engine.model, engine.tokenizer, request, sample)
            for sample in range(request.num_samples)
        ]
        assert list(answers[number].completions) == expected


def test_requests_are_taken_as_there_is_room(engine: Engine) -> None:
    taken = 0

    def requests() -> object:
        nonlocal taken
        for number in itertools.count():
            taken += 1
            yield engine.request("int", settings=SamplingSettings(4, 1.0, seed=number))

    answers = engine.complete_many(requests(), SchedulerLimits(max_batch=4))
    for done in range(1, 21):
        next(answers)
        assert taken <= done + 2 * 4
