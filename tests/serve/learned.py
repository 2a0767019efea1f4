"""A small model that learned conversations by heart, with calls of a client's and of the server's tools."""

import functools
from typing import Any

import torch

from cpplm.generate.engine import Engine
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.serve.api.chat import signature
from cpplm.serve.request_models import FunctionTool
from cpplm.tokenizer.conversations import render_conversation
from cpplm.tokenizer.special_tokens import IGNORE_INDEX, PAD
from cpplm.tokenizer.tokenizer import Tokenizer

CONTEXT = 320
ENDLESS = "int main(){for(;;);}"
SEARCH = {
    "name": "search",
    "description": "Lines with a text.",
    "parameters": {
        "type": "object",
        "properties": {"text": {"type": "string"}, "folder": {"type": "string"}},
    },
}
USAGE = f"You may call these functions:\n{signature(FunctionTool.model_validate(SEARCH))}"
FOUND = "shapes.h:1: int area();"
GREETED = "int é;\n"


def said(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def asked(question: str, *parts: dict[str, str], system: str = "") -> list[dict[str, Any]]:
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": question}, {"role": "assistant", "content": list(parts)}]


CONVERSATIONS = [
    asked("hello", said(GREETED)),
    asked(
        "12*34?", said("It is "), {"type": "python", "text": "12*34"},
        {"type": "python_output", "text": "408"}, said("408."),
    ),
    asked(
        "where?", said("Let me see. "), {"type": "query_tool", "text": 'search("area")'},
        {"type": "tool_result", "text": FOUND}, said("In shapes.h."), system=USAGE,
    ),
    asked(
        "spin", {"type": "query_tool", "text": f'run("{ENDLESS}")'},
        {"type": "tool_result", "text": "was stopped: wall time"}, said("It spins."),
    ),
]  # fmt: skip


@functools.cache
def learned(tokenizer: Tokenizer) -> Engine:
    """The model; training it takes a few seconds, once per process."""
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=2, model_dim=64, num_heads=4, num_kv_heads=4, head_dim=16,
        max_seq_len=CONTEXT,
    )  # fmt: skip
    model = Transformer(config)
    model.init_weights(0)
    rows = [render_conversation(tokenizer, {"messages": messages}) for messages in CONVERSATIONS]
    longest = max(len(row.ids) for row in rows)
    assert longest < CONTEXT - 20
    ids = torch.tensor([row.ids + [PAD] * (longest - len(row.ids)) for row in rows])
    targets = torch.tensor(
        [
            [id_ if learnt else IGNORE_INDEX for id_, learnt in zip(row.ids[1:], row.mask[1:], strict=True)]
            + [IGNORE_INDEX] * (longest - len(row.ids) + 1)
            for row in rows
        ]
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    learnt = targets != IGNORE_INDEX
    for step in range(400):
        if step % 10 == 0 and _by_heart(model, ids, targets, learnt):
            return Engine(model.eval(), tokenizer)
        loss = model.loss(ids, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    raise AssertionError("it does not learn")


@torch.no_grad()
def _by_heart(model: Transformer, ids: torch.Tensor, targets: torch.Tensor, learnt: torch.Tensor) -> bool:
    """Whether each token is by far the likeliest."""
    likeliest = model(ids).softmax(-1).max(-1)
    return bool(((likeliest.indices == targets) & (likeliest.values > 0.8))[learnt].all())
