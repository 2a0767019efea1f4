"""A checkpoint becomes the JAX model's weights."""

import dataclasses

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.jax.param_stacking import (
    abstract_params,
    checkpoint_names,
    init_params,
    partition_params,
    stack_params,
)
from cpplm.model.config import EngramConfig
from cpplm.model.transformer import Transformer
from tests.jax.twins import TWINS, checkpoint, torch_model, unstacked


def test_layers_are_stacked_in_their_order_bit_for_bit() -> None:
    """Whatever the order in the checkpoint and the dtype; tables of n-grams stay apart."""
    engram = EngramConfig(layers=(3, 0), num_heads=2, head_dim=4, table_size=50)
    config = dataclasses.replace(TWINS["all"], engram=engram, num_layers=12)
    half = {
        name: array.astype(ml_dtypes.bfloat16) if array.dtype == np.float32 else array.astype(np.uint32)
        for name, array in checkpoint(torch_model(config)).items()
    }
    params = stack_params(dict(reversed(half.items())), config)
    assert checkpoint_names(half)["blocks.mlp.up.weight"] == [f"blocks.{n}.mlp.up.weight" for n in range(12)]
    assert {"blocks.0.engram.table.weight", "blocks.3.engram.table.weight"} < params.keys()
    back = unstacked(params, config)
    assert back.keys() == half.keys()
    for name, array in half.items():
        assert (back[name].dtype, back[name].tobytes()) == (array.dtype, array.tobytes()), name


@pytest.mark.parametrize("name", ["all", "all, local"])
def test_shapes_are_known_beforehand(name: str) -> None:
    params = stack_params(checkpoint(torch_model(TWINS[name])), TWINS[name])
    expected = abstract_params(TWINS[name])
    assert {key: (array.shape, array.dtype) for key, array in params.items()} == {
        key: (shape.shape, shape.dtype) for key, shape in expected.items()
    }
    learning, constants = partition_params(params)
    assert {*learning, *constants} == set(params)
    assert bool(constants) == (name == "all")
    huge = dataclasses.replace(TWINS["plain"], model_dim=2**15, vocab_size=2**24)  # takes no memory
    assert abstract_params(huge)["embedding.weight"] == jax.ShapeDtypeStruct((2**24, 2**15), jnp.float32)


def test_training_starts_from_the_weights_of_the_pytorch_trainer() -> None:
    config = TWINS["all"]
    model = Transformer(config)
    model.init_weights(3)
    canonical = torch.arange(config.vocab_size) // 2
    model.set_canonical_ids(canonical)
    ours = unstacked(init_params(config, 3, canonical), config)
    for key, array in checkpoint(model).items():
        assert np.array_equal(ours[key], array), key


def test_what_is_not_this_models_is_refused() -> None:
    config = TWINS["memory"]
    named = checkpoint(torch_model(config))
    head, rows = named["lm_head.weight"], named["blocks.0.engram.rows_K"]
    for wrong, message in (
        ({key: array for key, array in named.items() if "1.mlp.up" not in key}, "no blocks.1.mlp.up.weight"),
        ({**named, "other": head}, "other is not part"),
        ({**named, "lm_head.weight": head[:-1]}, "lm_head.weight has the shape"),
        ({**named, "blocks.0.engram.rows_K": -rows}, "32 bits"),
    ):
        with pytest.raises(UserError, match=message):
            stack_params(wrong, config)
