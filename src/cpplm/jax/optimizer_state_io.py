"""Optimizer state from a checkpoint and into one: the names and tensors that `cpplm.optim` keeps.

A run may begin with either library and go on with the other: nothing of the state is JAX's own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from cpplm.core.errors import UserError
from cpplm.jax.optimizer import Optimizer
from cpplm.jax.param_stacking import checkpoint_names, checkpoint_shapes, is_stacked
from cpplm.model.config import ModelConfig


def stack_state(
    named: Mapping[str, np.ndarray], optimizer: Optimizer, config: ModelConfig
) -> dict[str, np.ndarray]:
    """The state here, in the memory of the host; zeros, as before the first step, where there is none.

    Args:
        named: by "parameter/kind"; all of it, or nothing, or without NorMuon's second moments.
        optimizer: whose state it is.
        config: of the model.

    Raises:
        UserError: it is another model's.
    """
    shapes, found = optimizer.state_shapes(), {}
    groups = checkpoint_names(checkpoint_shapes(config))
    known = {name for stacked in optimizer.groups for name in groups[stacked]}
    if named and {key.rpartition("/")[0] for key in named} != known:
        raise UserError("the optimizer state is not that of these parameters", fix="It is another model's.")
    for key, shape in shapes.items():
        stacked, _, kind = key.rpartition("/")
        own = [named.get(f"{name}/{kind}") for name in groups[stacked]]
        may_be_missing = not named or (optimizer.groups[stacked].muon and kind == "second_moment")
        if all(array is None for array in own) and may_be_missing:
            found[key] = np.zeros(shape, np.float32)
            continue
        member = shape[1:] if is_stacked(stacked) else shape
        if any(array is None or array.shape != member for array in own):
            raise UserError(
                f"the optimizer state has no {key} of this parameter's shape", fix="It is another model's."
            )
        found[key] = np.stack([a for a in own if a is not None]) if is_stacked(stacked) else own[0]  # type: ignore[assignment]
    return found


def state_members(optimizer: Optimizer, config: ModelConfig) -> dict[str, list[str]]:
    """For each key of the state here, the checkpoint's keys, in order of their layers."""
    groups, found = checkpoint_names(checkpoint_shapes(config)), {}
    for key in optimizer.state_shapes():
        stacked, _, kind = key.rpartition("/")
        found[key] = [f"{name}/{kind}" for name in groups[stacked]]
    return found
