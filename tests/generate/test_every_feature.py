"""Greedy completions of every architecture feature: the same tokens as the plain loop, among 32."""

import dataclasses
import random

import pytest
import torch

from cpplm.generate.engine import Engine
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import SchedulerLimits
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import BOS, EOS, NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.naive import greedy
from tests.model.features import DECODED, random_model

NAMES = ("plain", "swiglu", "llama", "all", "all, local")
EACH = pytest.mark.parametrize("config", [DECODED[name] for name in NAMES], ids=NAMES)


def engine_of(config: ModelConfig, tokenizer: Tokenizer, device: str = "cpu") -> Engine:
    """Windows of 16 tokens, texts of up to 96; special tokens are never likely, masked or not."""
    config = dataclasses.replace(config, vocab_size=tokenizer.vocab_size, max_seq_len=96, short_window="half")
    model = random_model(config).to(device)
    with torch.no_grad():
        model.lm_head.weight[:NUM_SPECIAL] = 0
    for block in model.blocks:
        if block.attention.window is not None:
            block.attention.window = 16
    return Engine(model, tokenizer)


def assert_plain(model: Transformer, request: GenerationRequest, completion: CompletionOutput) -> None:
    """Each token is the likeliest of the whole pass over those before it: by induction, the plain loop's."""
    ids = torch.tensor([[*request.ids, *completion.ids]], device=model.device)
    with torch.no_grad():
        likeliest = model(ids)[0, len(request.ids) - 1 :].argmax(-1).tolist()
    end = likeliest.pop()
    assert list(completion.ids) == likeliest
    assert (completion.finish_reason == "end") == (end in (BOS, EOS)) or completion.finish_reason == "length"


def requests(tokenizer: Tokenizer, count: int) -> list[GenerationRequest]:
    """Some begin alike; all are of different lengths."""
    generator = random.Random(count)

    def ids(length: int) -> list[int]:
        return [generator.randrange(64, tokenizer.vocab_size) for _ in range(length)]

    header = ids(34)
    return [
        GenerationRequest((BOS, *(header if number % 3 else []), *ids(1 + number)), greedy(5 + number % 17))
        for number in range(count)
    ]


@EACH
def test_among_thirty_two(config: ModelConfig, tokenizer: Tokenizer) -> None:
    engine, asked = engine_of(config, tokenizer), requests(tokenizer, 36)
    answers = list(engine.complete_many(asked, SchedulerLimits(max_batch=32, prefill_chunk=50)))
    assert len(answers) == len(asked)
    for answer in answers:
        assert_plain(engine.model, asked[answer.number], answer.completions[0])
    assert sum(len(answer.completions[0].ids) for answer in answers) > 400


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@EACH
def test_on_a_gpu(config: ModelConfig, tokenizer: Tokenizer) -> None:
    engine, asked = engine_of(config, tokenizer, "cuda"), requests(tokenizer, 40)
    for answer in engine.complete_many(asked, SchedulerLimits(max_batch=32, prefill_chunk=50)):
        assert_plain(engine.model, asked[answer.number], answer.completions[0])
