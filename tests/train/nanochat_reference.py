"""nanochat's two architectures on a state dictionary, in plain torch functions: nothing of ours is used.

Facts from `nanochat/gpt.py`: that of the C++ fork, and that of July 2026.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

State = dict[str, Tensor]
Record = dict[str, int | str]


def random_state(record: Record, *, newer: bool, rows: int, seed: int = 0) -> State:
    """Weights by nanochat's names, all of them random, scalars included; `rows` of the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    layers, width = int(record["n_layer"]), int(record["n_embd"])
    head = width // int(record["n_head"])
    kv_width = int(record["n_kv_head"]) * head

    def matrix(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator) / math.sqrt(shape[-1])

    state = {
        "transformer.wte.weight": matrix(rows, width),
        "lm_head.weight": 3 * matrix(rows, width),
        "resid_lambdas": 1 + 0.3 * torch.rand(layers, generator=generator),
        "x0_lambdas": 0.3 * torch.rand(layers, generator=generator),
    }
    for layer in range(layers):
        block = f"transformer.h.{layer}"
        state[f"{block}.attn.c_q.weight"] = matrix(width, width)
        state[f"{block}.attn.c_k.weight"] = matrix(kv_width, width)
        state[f"{block}.attn.c_v.weight"] = matrix(kv_width, width)
        state[f"{block}.attn.c_proj.weight"] = matrix(width, width)
        state[f"{block}.mlp.c_fc.weight"] = matrix(4 * width, width)
        state[f"{block}.mlp.c_proj.weight"] = matrix(width, 4 * width)
        if newer and layer % 2 == (layers - 1) % 2:
            state[f"{block}.attn.ve_gate.weight"] = matrix(int(record["n_kv_head"]), 12)
            state[f"value_embeds.{layer}.weight"] = matrix(rows, kv_width)
    if newer:
        state["smear_gate.weight"] = matrix(1, 24)
        state["smear_lambda"] = torch.tensor([0.7])
        state["backout_lambda"] = torch.tensor([0.4])
    return state


def logits(state: State, record: Record, ids: Tensor, *, newer: bool) -> Tensor:
    """Float32 logits of ids (batch, time), shape (batch, time, vocabulary)."""
    layers = int(record["n_layer"])
    x = _norm(state["transformer.wte.weight"].float()[ids])
    if newer:
        gate = torch.sigmoid(x[:, 1:, :24] @ state["smear_gate.weight"].float().T)
        smeared = x[:, 1:] + state["smear_lambda"].float() * gate * x[:, :-1]
        x = torch.cat((x[:, :1], smeared), dim=1)
    start, middle = x, x
    for layer in range(layers):
        x = state["resid_lambdas"][layer].float() * x + state["x0_lambdas"][layer].float() * start
        x = x + _attention(state, record, layer, _norm(x), ids, newer=newer)
        hidden = F.relu(_norm(x) @ state[f"transformer.h.{layer}.mlp.c_fc.weight"].float().T) ** 2
        x = x + hidden @ state[f"transformer.h.{layer}.mlp.c_proj.weight"].float().T
        if layer == layers // 2:
            middle = x
    if newer:
        x = x - state["backout_lambda"].float() * middle
    raw = _norm(x) @ state["lm_head.weight"].float().T
    return 15 * torch.tanh(raw[..., : int(record["vocab_size"])] / 15)


def _norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps)


def _attention(state: State, record: Record, layer: int, x: Tensor, ids: Tensor, *, newer: bool) -> Tensor:
    heads, kv_heads = int(record["n_head"]), int(record["n_kv_head"])
    batch, time, width = x.shape
    size = width // heads
    weight = {
        name: state[f"transformer.h.{layer}.attn.c_{name}.weight"].float() for name in ("q", "k", "v", "proj")
    }
    query = (x @ weight["q"].T).view(batch, time, heads, size)
    key = (x @ weight["k"].T).view(batch, time, kv_heads, size)
    value = (x @ weight["v"].T).view(batch, time, kv_heads, size)
    if f"value_embeds.{layer}.weight" in state:
        gate = 3 * torch.sigmoid(x[..., :12] @ state[f"transformer.h.{layer}.attn.ve_gate.weight"].float().T)
        embedded = state[f"value_embeds.{layer}.weight"].float()[ids].view(batch, time, kv_heads, size)
        value = value + gate[..., None] * embedded
    base, scale = (100_000, 1.2) if newer else (10_000, 1.0)
    query, key = (scale * _norm(_turn(part, base)) for part in (query, key))
    key, value = (part.repeat_interleave(heads // kv_heads, dim=2) for part in (key, value))
    scores = torch.einsum("bthd,bshd->bhts", query, key) / math.sqrt(size)
    scores = scores.masked_fill(~_visible(record, layer, time, newer=newer), -math.inf)
    mixed = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), value)
    return mixed.reshape(batch, time, width) @ weight["proj"].T


def _turn(x: Tensor, base: int) -> Tensor:
    """The first half of the channels with the second, by minus the angle of the position."""
    half = x.size(-1) // 2
    positions = torch.arange(x.size(1), dtype=torch.float32)
    angles = positions[:, None, None] * base ** -(torch.arange(half, dtype=torch.float32) / half)
    first, second = x[..., :half], x[..., half:]
    turned = (first * angles.cos() + second * angles.sin(), second * angles.cos() - first * angles.sin())
    return torch.cat(turned, dim=-1)


def _visible(record: Record, layer: int, time: int, *, newer: bool) -> Tensor:
    """Which keys (columns) a query (row) sees: itself and as many before it as the window holds."""
    context, pattern = int(record["sequence_len"]), str(record["window_pattern"])
    short = math.ceil(context / 4 / 128) * 128 if newer else context // 2
    last = layer == int(record["n_layer"]) - 1
    window = context if last or pattern[layer % len(pattern)] == "L" else short
    distance = torch.arange(time)[:, None] - torch.arange(time)[None, :]
    return (distance >= 0) & (distance <= window)
