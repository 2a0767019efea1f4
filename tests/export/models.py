"""Models of ours, as checkpoints and as `transformers` computes them."""

import dataclasses
import functools
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationMixin
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.export.hf import ENDS, SUPPRESSED
from cpplm.export.remote_code import exported_config, exported_weights, source_files
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
from tests.model.features import CHANGES, DECODED, PLAIN, random_model

CONTEXT = 64
# Windows of 32 tokens in the S layers. "others" has what excludes a part of "all".
CONFIGS = {
    name: dataclasses.replace(config, max_seq_len=CONTEXT)
    for name, config in {
        "plain": PLAIN,
        "all": DECODED["all"],
        "others": dataclasses.replace(
            DECODED["all, local"], num_kv_heads=1, window_pattern="SL", **CHANGES["swiglu"]
        ),
    }.items()
}
EACH = pytest.mark.parametrize("name", CONFIGS)


def random_of(config: ModelConfig, vocab_size: int = PLAIN.vocab_size, seed: int = 0) -> Transformer:
    """Random weights; it hardly ever ends a text by itself."""
    model = random_model(dataclasses.replace(config, vocab_size=vocab_size), seed)
    with torch.no_grad():
        model.lm_head.weight[list(ENDS)] = 0
    return model


@functools.cache
def modeling_code() -> type:
    """The class for `transformers`, from the files of an export."""
    with tempfile.TemporaryDirectory() as folder:
        for name, source in source_files().items():
            Path(folder, name).write_bytes(source)
        return get_class_from_dynamic_module("modeling_cpplm.CpplmForCausalLM", folder)


def as_exported(model: Transformer) -> GenerationMixin:
    """The modeling code with a model's weights, without a folder between."""
    architecture = modeling_code()
    config = architecture.config_class(**exported_config(model.config), attn_implementation="sdpa")
    theirs = architecture(config)
    theirs.load_state_dict(exported_weights(model.config, model.state_dict()), strict=True)
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
    ids = {answer.number: list(answer.completions[0].ids) for answer in answers}
    return [ids[number] for number in range(len(rows))]


def prompts(vocab_size: int, *lengths: int) -> list[list[int]]:
    chance = random.Random(5)
    return [[BOS, *(chance.randrange(64, vocab_size) for _ in range(length))] for length in lengths]


def ids_of(config: ModelConfig, *shape: int, seed: int = 1) -> torch.Tensor:
    """No special tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(64, config.vocab_size, shape, generator=generator)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Logits to 1e-4, of which there is something to compare."""
    assert expected.std() > 0.3
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
