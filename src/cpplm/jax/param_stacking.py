"""From a checkpoint's weights, one by one, to those of the JAX model, where layers are stacked, and back.

`blocks.3.mlp.up.weight` of the checkpoint is entry 3 of `blocks.mlp.up.weight`: the dimension in front counts
the layers that have such a weight, in their order. The tables of n-gram memories differ in size from layer to
layer, so they keep their names, and so do the heads for further tokens. Quantised weights have the names of
`cpplm.model.quantized.layers`. Integers (the hash functions) are
int64 in a checkpoint and uint32 here: JAX has no int64 unless told, and hashing is 32-bit arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import torch

from cpplm.core.errors import UserError
from cpplm.jax.layers import Params
from cpplm.model.config import ModelConfig
from cpplm.model.quantized.layers import SCALES, quantize_layers
from cpplm.model.quantized.recipe import Recipe, role_of
from cpplm.model.transformer import Transformer

Array = jax.Array | np.ndarray
_OF_LAYER = re.compile(r"blocks\.(\d+)\.(.+)")
_ALONE = "engram.table."


def checkpoint_names(names: Iterable[str]) -> dict[str, list[str]]:
    """For each name here, the checkpoint's names, in order of their layers; one, unless they are stacked."""
    found: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        match = _OF_LAYER.fullmatch(name)
        stacked = name if match is None or match[2].startswith(_ALONE) else f"blocks.{match[2]}"
        found.setdefault(stacked, []).append((int(match[1]) if match else 0, name))
    return {stacked: [name for _, name in sorted(those)] for stacked, those in found.items()}


def is_stacked(name: str) -> bool:
    """True where the first dimension of a weight here counts layers."""
    return name.startswith("blocks.") and _OF_LAYER.fullmatch(name) is None


def checkpoint_shapes(config: ModelConfig, recipe: Recipe | None = None) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the checkpoint of a model, quantised by a recipe or not, in its order."""
    return {name: tuple(tensor.shape) for name, tensor in meta_model(config, recipe).state_dict().items()}


def abstract_params(config: ModelConfig, recipe: Recipe | None = None) -> dict[str, jax.ShapeDtypeStruct]:
    """Shapes and dtypes here, without any memory."""
    tensors = meta_model(config, recipe).state_dict()
    shapes = {}
    for stacked, names in checkpoint_names(tensors).items():
        first = tensors[names[0]]
        shape = (len(names), *first.shape) if is_stacked(stacked) else tuple(first.shape)
        shapes[stacked] = jax.ShapeDtypeStruct(
            shape, jnp.float32 if first.is_floating_point() else jnp.uint32
        )
    return shapes


def init_params(
    config: ModelConfig, seed: int = 0, canonical_V: torch.Tensor | None = None
) -> dict[str, np.ndarray]:
    """The weights with which training starts: those of the PyTorch model for the same seed.

    Args:
        config: of the model.
        seed: of its random numbers.
        canonical_V: for n-gram memories, the id that stands for each id (`token_normalization`).
    """
    model = Transformer(config)
    model.init_weights(seed)
    if canonical_V is not None:
        model.set_canonical_ids(canonical_V)
    return stack_params({name: tensor.numpy() for name, tensor in model.state_dict().items()}, config)


def stack_params(
    named: Mapping[str, Array], config: ModelConfig, recipe: Recipe | None = None
) -> dict[str, np.ndarray]:
    """The weights here, in the memory of the host: to be divided among devices.

    Args:
        named: the checkpoint's weights by name, any float dtype; integers int64, or uint32.
        config: of the model.
        recipe: by which it is quantised, if it is.

    Raises:
        UserError: a name is missing or unknown, or a shape is not the model's.
    """
    _check(named, checkpoint_shapes(config, recipe))
    stacked = {}
    for name, those in checkpoint_names(named).items():
        arrays = [_to_jax_dtype(member, np.asarray(named[member])) for member in those]
        stacked[name] = np.stack(arrays) if is_stacked(name) else arrays[0]
    return stacked


def to_checkpoint_dtype(array: Array) -> Array:
    """Integers as a checkpoint has them."""
    return array if jnp.issubdtype(array.dtype, jnp.floating) else np.asarray(array).astype(np.int64)


def partition_params(params: Mapping[str, jax.Array]) -> tuple[Params, Params]:
    """Split weights into those that learn, for which gradients are taken, and those that do not: integers,
    and the scales of quantised tables."""
    learning = {name: array for name, array in params.items() if _learns(name, array)}
    return learning, {name: array for name, array in params.items() if name not in learning}


def _learns(name: str, array: jax.Array) -> bool:
    layer, _, part = name.rpartition(".")
    return jnp.issubdtype(array.dtype, jnp.floating) and not (part == SCALES and role_of(layer) == "embed")


def meta_model(config: ModelConfig, recipe: Recipe | None) -> Transformer:
    """The PyTorch model, quantised by a recipe or not, without any memory."""
    with torch.device("meta"):
        model = Transformer(config)
    if recipe is not None:
        quantize_layers(model, recipe, init="absmax")
    return model


def _check(named: Mapping[str, Array], expected: Mapping[str, tuple[int, ...]]) -> None:
    for name in expected:
        if name not in named:
            raise UserError(f"the checkpoint has no {name}", fix="It is another model's, or damaged.")
    for name, array in named.items():
        if name not in expected:
            raise UserError(
                f"the checkpoint's {name} is not part of this model", fix="It is another model's."
            )
        if tuple(array.shape) != expected[name]:
            raise UserError(
                f"the checkpoint's {name} has the shape {tuple(array.shape)}, the model {expected[name]}",
                fix="It is another model's.",
            )


def _to_jax_dtype(name: str, array: np.ndarray) -> np.ndarray:
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array
    if array.size and (array.min() < 0 or array.max() > np.iinfo(np.uint32).max):
        raise UserError(f"the checkpoint's {name} does not fit 32 bits", fix="It is damaged.")
    return array.astype(np.uint32)
