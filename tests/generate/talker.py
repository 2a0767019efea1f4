"""A small model that learned a few conversations by heart, calls of tools included."""

import functools
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.generate.engine import Engine
from cpplm.generate.settings import SamplingSettings
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.conversations import render_conversation
from cpplm.tokenizer.special_tokens import IGNORE_INDEX, PAD
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.save import write_checkpoint
from tests.model.features import random_model

CONTEXT = 256
GREEDY = SamplingSettings(max_new_tokens=60, temperature=0)
PROJECT = {"shapes.h": "int area(int width, int height);\n", "main.cpp": "int main() {}\n"}
HITS = "shapes.h:1: int area(int width, int height);\n1 lines found, 2 files searched"


def said(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


# By question: the parts of the answer. What tools answer here is what they really answer in PROJECT.
LEARNED: dict[str, list[dict[str, str]]] = {
    "hello": [said("int é;\n")],
    "12*34?": [
        said("It is "), {"type": "python", "text": "12*34"}, {"type": "python_output", "text": "408"},
        said("408."),
    ],
    "where?": [
        {"type": "query_tool", "text": 'search("area")'}, {"type": "tool_result", "text": HITS},
        said("shapes.h"),
    ],
}  # fmt: skip


def messages(question: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": LEARNED[question]}]


@functools.cache
def talker(tokenizer: Tokenizer) -> Engine:
    """The model that learned `LEARNED`."""
    return engine_by_heart(tokenizer, list(map(messages, LEARNED)), context=CONTEXT, num_layers=1)


def engine_by_heart(
    tokenizer: Tokenizer, conversations: list[list[dict[str, Any]]], *, context: int, num_layers: int
) -> Engine:
    """A model that gives each token of the answers by far the likeliest; training it takes a few seconds."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=num_layers, model_dim=64, num_heads=4, num_kv_heads=4,
        head_dim=16, max_seq_len=context,
    )  # fmt: skip
    model = Transformer(config)
    model.init_weights(0)
    rows = [render_conversation(tokenizer, {"messages": each}) for each in conversations]
    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([row.ids + [PAD] * (longest - len(row.ids)) for row in rows])
    learnt = torch.tensor([[*row.mask[1:], *[False] * (longest - len(row.ids) + 1)] for row in rows]).bool()
    targets = ids.roll(-1, dims=1).masked_fill(~learnt, IGNORE_INDEX)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(400):
        if step % 10 == 0:
            with torch.no_grad():
                likeliest = model(ids).softmax(-1).max(-1)
            if bool(((likeliest.indices == targets) & (likeliest.values > 0.8))[learnt].all()):
                return Engine(model.eval(), tokenizer)
        loss = model.loss(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError("it does not learn")


def babbler(tokenizer: Tokenizer, context: int = CONTEXT) -> Engine:
    """A random model, which hardly ever ends by itself."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=2, model_dim=32, num_heads=4, num_kv_heads=2, head_dim=8,
        max_seq_len=context,
    )  # fmt: skip
    model = random_model(config)
    with torch.no_grad():
        model.lm_head.weight[:64] = 0
    return Engine(model, tokenizer)


@contextmanager
def project() -> Iterator[Path]:
    """A folder that everybody may read: the sandbox may run as somebody else, who may not read pytest's."""
    with tempfile.TemporaryDirectory(prefix="cpplm-project-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for file, text in PROJECT.items():
            (folder / file).write_text(text)
        yield folder


def write_run(folder: Path, engine: Engine, settings: dict[str, Any] | None = None) -> Path:
    """A checkpoint of the model, as a run has it."""
    files = {
        "config.json": to_dict(engine.model.config),
        "state.json": {"step": 1},
        "settings.json": settings or {},
    }
    written = {name: json.dumps(value).encode() for name, value in files.items()}
    written["tokenizer.json"] = engine.tokenizer.to_json()
    weights = {"model.safetensors": engine.model.state_dict()}
    write_checkpoint(Storage(folder, create=True), 1, weights, written)
    return folder
