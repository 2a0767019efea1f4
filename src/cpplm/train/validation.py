"""Bits per byte: how many bits the model needs to encode one byte of held-out text.

Sum of cross-entropies in nats over the bytes of the predicted tokens, divided by ln 2. Special tokens have no
bytes and are left out of both sums, so figures of different tokenizers can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special import IGNORED


@dataclass(frozen=True)
class Validation:
    """`loss` is in nats per token, special tokens included."""

    bits_per_byte: float
    loss: float
    tokens: int
    bytes: int


@torch.no_grad()
def validate(model: Transformer, batches: Iterable[tuple[Tensor, Tensor]], token_bytes: Tensor) -> Validation:
    """Measure a model on (inputs, targets), each of shape BT.

    Args:
        model: in whatever dtype it computes.
        batches: token ids and targets; `IGNORED` targets do not count.
        token_bytes: bytes of each id, shape (vocab_size,), 0 for special tokens.
    """
    nats_with_bytes = nats = 0.0
    tokens = num_bytes = 0
    for inputs_BT, targets_BT in batches:
        targets = targets_BT.to(model.device)
        losses = model.loss(inputs_BT.to(model.device), targets, reduction="none").cpu().double()
        counted = targets_BT != IGNORED
        sizes = token_bytes[targets_BT.clamp(min=0)] * counted
        nats_with_bytes += float((losses * (sizes > 0)).sum())
        nats += float(losses.sum())
        tokens += int(counted.sum())
        num_bytes += int(sizes.sum())
    return Validation(
        bits_per_byte=nats_with_bytes / math.log(2) / max(1, num_bytes),
        loss=nats / max(1, tokens),
        tokens=tokens,
        bytes=num_bytes,
    )
