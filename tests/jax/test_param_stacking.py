"""A checkpoint becomes the JAX model's weights and the same checkpoint again."""

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
    is_stacked,
    partition_params,
    stack_params,
    stack_params_numpy,
    unstack_params,
)
from cpplm.model.config import EngramConfig
from cpplm.model.transformer import Transformer
from tests.jax.twins import TWINS, checkpoint, torch_model

EACH = pytest.mark.parametrize("name", ["all", "all, local"])


@EACH
def test_there_and_back_is_the_same_bits(name: str) -> None:
    config = TWINS[name]
    named = checkpoint(torch_model(config))
    back = unstack_params(stack_params(named, config), config)
    assert list(back) == list(named)
    for key, array in named.items():
        found = np.asarray(back[key])
        assert (found.dtype, found.tobytes()) == (array.dtype, array.tobytes()), key


def test_other_dtypes_and_layers_in_any_order() -> None:
    engram = EngramConfig(layers=(3, 0), num_heads=2, head_dim=4, table_size=50)
    config = dataclasses.replace(TWINS["all"], engram=engram, num_layers=12)
    named = checkpoint(torch_model(config))
    half = {
        key: array.astype(ml_dtypes.bfloat16) if array.dtype == np.float32 else array
        for key, array in named.items()
    }
    shuffled = dict(reversed(half.items()))
    back = unstack_params(stack_params_numpy(shuffled, config), config)
    assert list(back) == list(named)  # the checkpoint's own order
    for key, array in half.items():
        assert (back[key].dtype, back[key].tobytes()) == (array.dtype, array.tobytes()), key


@EACH
def test_shapes_are_known_beforehand(name: str) -> None:
    params = stack_params(checkpoint(torch_model(TWINS[name])), TWINS[name])
    expected = abstract_params(TWINS[name])
    assert {key: (array.shape, array.dtype) for key, array in params.items()} == {
        key: (shape.shape, shape.dtype) for key, shape in expected.items()
    }
    learning, constants = partition_params(params)
    assert {*learning, *constants} == set(params)
    assert all(jnp.issubdtype(array.dtype, jnp.floating) for array in learning.values())
    assert bool(constants) == (name == "all")


def test_layers_are_stacked_in_their_order() -> None:
    config = dataclasses.replace(TWINS["values"], num_layers=11)
    named = checkpoint(torch_model(config))
    params = stack_params(named, config)
    for layer in range(11):
        ours = params["blocks.mlp.up.weight"][layer]
        assert np.array_equal(ours, named[f"blocks.{layer}.mlp.up.weight"])
    with_values = checkpoint_names(named)["blocks.attention.value_embedding.weight"]
    assert with_values == [f"blocks.{layer}.attention.value_embedding.weight" for layer in range(0, 11, 2)]
    assert is_stacked("blocks.mlp.up.weight")
    assert not is_stacked("blocks.1.engram.table.weight")
    assert not is_stacked("embedding.weight")


def test_training_starts_from_the_weights_of_the_pytorch_trainer() -> None:
    config = TWINS["all"]
    model = Transformer(config)
    model.init_weights(3)
    canonical = torch.arange(config.vocab_size) // 2
    model.set_canonical_ids(canonical)
    ours = unstack_params(init_params(config, 3, canonical), config)
    for key, array in checkpoint(model).items():
        assert np.array_equal(ours[key], array), key


def test_what_is_not_this_models_is_refused() -> None:
    config = TWINS["memory"]
    named = checkpoint(torch_model(config))
    lacking = {key: array for key, array in named.items() if key != "blocks.1.mlp.up.weight"}
    with pytest.raises(UserError, match=r"no blocks\.1\.mlp\.up\.weight"):
        stack_params(lacking, config)
    with pytest.raises(UserError, match="other is not part"):
        stack_params({**named, "other": named["lm_head.weight"]}, config)
    with pytest.raises(UserError, match=r"lm_head\.weight has the shape"):
        stack_params({**named, "lm_head.weight": named["lm_head.weight"][:-1]}, config)
    negative = {**named, "blocks.0.engram.rows_K": -named["blocks.0.engram.rows_K"]}
    with pytest.raises(UserError, match="32 bits"):
        stack_params(negative, config)
    params = stack_params(named, config)
    del params["embedding.weight"]
    with pytest.raises(UserError, match=r"embedding\.weight"):
        unstack_params(params, config)


def test_shapes_take_no_memory() -> None:
    config = dataclasses.replace(TWINS["plain"], model_dim=2**15, vocab_size=2**24)
    shapes = abstract_params(config)
    assert shapes["embedding.weight"] == jax.ShapeDtypeStruct((2**24, 2**15), jnp.float32)
