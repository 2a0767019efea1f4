"""Models of ours, as checkpoints and as `transformers` computes them."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationMixin

from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.export.hf import ENDS, SUPPRESSED
from cpplm.export.modeling.configuration_cpplm import CpplmConfig
from cpplm.export.modeling.modeling_cpplm import CpplmForCausalLM
from cpplm.export.remote_code import custom_config, custom_weights
from cpplm.generate.engine import Engine
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import SchedulerLimits
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import BOS, PAD
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.save import write_checkpoint
from tests.generate.naive import greedy
from tests.model.features import DECODED, PLAIN, random_model

CONTEXT = 64
CLOSE = {"atol": 1e-4, "rtol": 0.0}
# Windows of 32 tokens in the S layers.
CONFIGS = {name: dataclasses.replace(config, max_seq_len=CONTEXT) for name, config in DECODED.items()} | {
    "shared": dataclasses.replace(PLAIN, max_seq_len=CONTEXT, num_kv_heads=1, window_pattern="SL")
}
# All features together, of the two kinds of n-gram memory, and attention alone.
MIXED = ("all", "all, local", "shared")
NATIVE = dataclasses.replace(PLAIN, max_seq_len=CONTEXT, window_pattern="L", rope_base=50_000.0)


def random_of(config: ModelConfig, vocab_size: int = PLAIN.vocab_size, seed: int = 0) -> Transformer:
    """Random weights; it hardly ever ends a text by itself."""
    model = random_model(dataclasses.replace(config, vocab_size=vocab_size), seed)
    with torch.no_grad():
        model.lm_head.weight[list(ENDS)] = 0
    return model


def native_model(config: ModelConfig = NATIVE, vocab_size: int = PLAIN.vocab_size) -> Transformer:
    """Random weights without a mixed-in embedding; the residual stream is scaled, up to the first layer's."""
    model = random_of(config, vocab_size)
    with torch.no_grad():
        model.residual_scales.copy_(torch.linspace(0.7, 1.4, config.num_layers))
        model.embedding_scales.zero_()
        model.embedding_scales[0] = 0.5
    return model


def as_custom(model: Transformer) -> CpplmForCausalLM:
    """The modeling code with a model's weights, without a folder between."""
    config = CpplmConfig(**custom_config(model.config), attn_implementation="sdpa")
    theirs = CpplmForCausalLM(config)
    theirs.load_state_dict(custom_weights(model.config, model.state_dict()), strict=True)
    return theirs.eval()


def save(model: Transformer, tokenizer: Tokenizer, folder: Path, step: int = 7, **files: bytes) -> Checkpoint:
    """The model as a checkpoint; `files` beside what every checkpoint has, `settings=b"..."`."""
    return write_checkpoint(
        Storage(folder, create=True),
        step,
        {"model.safetensors": model.state_dict()},
        {
            "config.json": (json.dumps(to_dict(model.config)) + "\n").encode(),
            "tokenizer.json": tokenizer.to_json(),
            **{f"{name}.json": data for name, data in files.items()},
        },
    )


def load(folder: Path, **options: Any) -> GenerationMixin:
    options = {"dtype": torch.float32, "trust_remote_code": True, **options}
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **options).eval()


def each_but_slowly(*fast: str) -> pytest.MarkDecorator:
    """Every configuration; those that are not named only where slow tests run."""
    names = [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in CONFIGS]
    return pytest.mark.parametrize("name", names)


def generate(
    theirs: GenerationMixin, rows: list[list[int]], count: int, **options: object
) -> list[list[int]]:
    """Greedy continuations of rows side by side, padded on the left; nothing ends them but the count."""
    longest = max(map(len, rows))
    ids = torch.tensor([[PAD] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    if theirs.generation_config.suppress_tokens is None:  # a model that was not loaded from an export
        options = {"suppress_tokens": SUPPRESSED, **options}
    options = {
        "do_sample": False, "max_new_tokens": count, "pad_token_id": PAD, "eos_token_id": None, **options
    }  # fmt: skip
    return theirs.generate(ids, attention_mask=mask, **options)[:, longest:].tolist()


def written_by_our_engine(
    model: Transformer, tokenizer: Tokenizer, rows: list[list[int]], count: int
) -> list[list[int]]:
    """Greedy continuations of all rows at once."""
    requests = [GenerationRequest(tuple(row), greedy(count)) for row in rows]
    answers = Engine(model, tokenizer).complete_many(requests, SchedulerLimits(max_batch=len(rows)))
    found = {answer.number: list(answer.completions[0].ids) for answer in answers}
    return [found[number] for number in range(len(rows))]


def prompts(vocab_size: int, *lengths: int) -> list[list[int]]:
    chance = random.Random(5)
    return [[BOS, *(chance.randrange(64, vocab_size) for _ in range(length))] for length in lengths]


def ids_of(config: ModelConfig, *shape: int, seed: int = 1) -> torch.Tensor:
    """No special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(64, config.vocab_size, shape, generator=generator)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Logits to 1e-4, of which there is something to compare."""
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, **CLOSE)
