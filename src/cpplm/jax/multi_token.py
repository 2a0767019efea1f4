"""What the heads that predict further tokens are told (MTP): see `cpplm.model.multi_token`, whose twin this
is. The heads themselves are blocks of `cpplm.jax.model`.

Shapes: B batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from cpplm.tokenizer.special_tokens import IGNORE_INDEX


def shifted_targets(targets_BT: jax.Array, depth: int) -> Iterator[tuple[jax.Array, jax.Array]]:
    """For each head, the ids that it is told and the targets that it has, both BT.

    A head has a target where all tokens up to it are known: none is ignored, none lies behind the row's end.
    """
    known_BT = targets_BT
    for _ in range(depth):
        beyond_BT = jnp.pad(known_BT[:, 1:], ((0, 0), (0, 1)), constant_values=IGNORE_INDEX)
        target_BT = jnp.where(known_BT == IGNORE_INDEX, IGNORE_INDEX, beyond_BT)
        yield jnp.maximum(known_BT, 0), target_BT
        known_BT = target_BT
