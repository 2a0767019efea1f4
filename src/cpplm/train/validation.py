"""Bits per byte: how many bits the model needs to encode one byte of held-out text.

Sum of cross-entropies in nats over the bytes of the predicted tokens, divided by ln 2. Special tokens have no
bytes and are left out of both sums, so figures of different tokenizers can be compared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from cpplm.train.backend import TrainModule
from cpplm.train.distributed import SINGLE_PROCESS, DistContext


@dataclass(frozen=True)
class ValidationResult:
    """`loss` is in nats per token, special tokens included."""

    bits_per_byte: float
    loss: float
    tokens: int
    bytes: int


@torch.no_grad()
def validate(
    model: TrainModule,
    batches: Iterable[tuple[Tensor, Tensor]],
    token_bytes: Tensor,
    dist: DistContext = SINGLE_PROCESS,
) -> ValidationResult:
    """Measure a model on (inputs, targets), each of shape BT. All ranks must call it, with the same batches.

    Args:
        model: in whatever dtype it computes.
        batches: token ids and targets; `IGNORE_INDEX` targets do not count.
        token_bytes: bytes of each id, shape (vocab_size,), 0 for special tokens.
        dist: ranks that share the work.
    """
    # Nats of tokens that have bytes, nats of all, tokens, bytes.
    sums = torch.zeros(4, dtype=torch.float64)
    for inputs_BT, targets_BT in _share(batches, dist):
        targets = targets_BT.to(model.device)
        losses = model.loss(inputs_BT.to(model.device), targets).cpu().double()
        counted = targets_BT != IGNORE_INDEX
        sizes = token_bytes[targets_BT.clamp(min=0)] * counted
        sums += torch.stack([(losses * (sizes > 0)).sum(), losses.sum(), counted.sum(), sizes.sum()])
    nats_with_bytes, nats, tokens, num_bytes = (dist.world_size * dist.mean(sums.to(dist.device))).tolist()
    return ValidationResult(
        bits_per_byte=nats_with_bytes / math.log(2) / max(1, num_bytes),
        loss=nats / max(1, tokens),
        tokens=round(tokens),
        bytes=round(num_bytes),
    )


def _share(batches: Iterable[tuple[Tensor, Tensor]], dist: DistContext) -> Iterator[tuple[Tensor, Tensor]]:
    """Every rank's own of the batches, dealt in turn; of equal number, since a sharded model needs all ranks.

    Where batches run out, a rank gets one again without targets.
    """
    remaining = iter(batches)
    while round_of_ranks := list(itertools.islice(remaining, dist.world_size)):
        if dist.rank < len(round_of_ranks):
            yield round_of_ranks[dist.rank]
        else:
            inputs_BT, targets_BT = round_of_ranks[0]
            yield inputs_BT, torch.full_like(targets_BT, IGNORE_INDEX)
