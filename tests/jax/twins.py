"""The PyTorch model and its twin on the same weights and tokens: losses and gradients, side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from cpplm.jax.fake_quantize import round_params
from cpplm.jax.model import loss
from cpplm.jax.param_stacking import (
    checkpoint_names,
    checkpoint_shapes,
    is_stacked,
    partition_params,
    stack_params,
)
from cpplm.jax.settings import RunSettings
from cpplm.model.config import (
    HyperConnectionsConfig,
    ModelConfig,
    MultiTokenConfig,
    SparseAttentionConfig,
)
from cpplm.model.quantized.recipe import Recipe
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from tests.model.features import CONFIGS, LOCAL, random_model

EXACT = RunSettings(compute_dtype="float32", loss_chunk=7, sparse_block=5)
# Layers of which some repeat, so that they run in a loop; some of those have an n-gram memory, others none.
ALL = dataclasses.replace(
    CONFIGS["all"],
    num_layers=5,
    window_pattern="LS",
    hyper_connections=HyperConnectionsConfig(num_streams=2),
    mtp=MultiTokenConfig(depth=1),
    dsa=SparseAttentionConfig(start_layer=1, top_k=5, local_window=2, indexer_heads=2, indexer_dim=4),
)
TWINS = {
    **{name: dataclasses.replace(config, window_pattern="SL") for name, config in CONFIGS.items()},
    "all": ALL,
    "all, local": dataclasses.replace(ALL, engram=LOCAL),
}

Found = tuple[dict[str, float], dict[str, np.ndarray]]
"""Losses by name, gradients by the checkpoint's names."""


def torch_model(config: ModelConfig, seed: int = 0) -> Transformer:
    """Every weight matters; ids that stand for others are among them."""
    model = random_model(config, seed)
    generator = torch.Generator().manual_seed(seed)
    model.set_canonical_ids(torch.randint(config.vocab_size, (config.vocab_size,), generator=generator))
    return model


def checkpoint(model: Transformer) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def unstacked(
    params: Mapping[str, Any], config: ModelConfig, recipe: Recipe | None = None
) -> dict[str, np.ndarray]:
    """By the checkpoint's names."""
    return {
        name: np.asarray(params[stacked])[index] if is_stacked(stacked) else np.asarray(params[stacked])
        for stacked, names in checkpoint_names(checkpoint_shapes(config, recipe)).items()
        for index, name in enumerate(names)
    }


def make_batch(
    config: ModelConfig, rows: int, length: int, *, documents: bool = False, seed: int = 0
) -> dict[str, Any]:
    """Ids, targets of which some do not count, and what else the losses take, as NumPy arrays."""
    chance = np.random.default_rng(seed)
    ids = chance.integers(config.vocab_size, size=(rows, length + 1)).astype(np.int32)
    targets = ids[:, 1:].copy()
    targets[0, length // 2] = targets[-1, -2:] = IGNORE_INDEX
    batch = {"inputs": ids[:, :-1], "targets": targets}
    if config.mtp:
        batch["multi_token_weight"] = np.float32(0.3)
    if documents:
        ends = np.sort(chance.integers(1, length, size=(rows, 2)))
        batch["documents"] = (np.arange(length)[None, :, None] >= ends[:, None]).sum(-1).astype(np.int32)
    return batch


def by_torch(model: Transformer, batch: dict[str, Any]) -> Found:
    model.dense_attention = bool(batch.get("dense_attention", False))
    ids, targets = (torch.from_numpy(batch[name]).long() for name in ("inputs", "targets"))
    documents = torch.from_numpy(batch["documents"]).long() if "documents" in batch else None
    model.zero_grad()
    losses = model.training_losses(ids, targets, float(batch.get("multi_token_weight", 0.0)), documents)
    losses.total.backward()
    gradients = {}
    for name, parameter in model.named_parameters():
        of_weight = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradients[name] = (of_weight.to_dense() if of_weight.is_sparse else of_weight).numpy()
    return {name: part.item() for name, part in losses._asdict().items()}, gradients


def by_jax(
    named: dict[str, np.ndarray],
    batch: dict[str, Any],
    config: ModelConfig,
    run: RunSettings = EXACT,
    recipe: Recipe | None = None,
) -> Found:
    learning, constants = partition_params(stack_params(named, config, recipe))

    @jax.jit
    def run_once(learning: Any, constants: Any, batch: Any) -> Any:
        def total(learning: Any) -> Any:
            rounded = round_params(learning, constants, config, recipe)
            return loss({**rounded, **constants}, batch, config, run)

        return jax.value_and_grad(total, has_aux=True)(learning)

    (value, parts), gradients = run_once(learning, constants, batch)
    named_gradients = unstacked({**gradients, **constants}, config, recipe)
    losses = {"total": float(value), **{name: float(part) for name, part in parts.items()}}
    return losses, {
        name: gradient
        for name, gradient in named_gradients.items()
        if jnp.issubdtype(gradient.dtype, jnp.floating)
    }


def rounding(model: Transformer, batch: dict[str, Any]) -> dict[str, float]:
    """How far PyTorch's own gradients in float32 are off those in float64, at most, by name.

    Sums whose terms cancel, as the gradient of a scalar can be, have few right digits in float32.
    """
    double = Transformer(model.config, compute_dtype=torch.float64).double()
    double.load_state_dict(model.state_dict())
    exact, rounded = by_torch(double, batch)[1], by_torch(model, batch)[1]
    return {name: float(np.abs(rounded[name] - exact[name]).max()) for name in exact}


def assert_twins(ours: Found, theirs: Found, noise: dict[str, float]) -> None:
    """Losses relative to each, gradients relative to the largest of their weight.

    Args:
        ours: what is tested.
        theirs: what it should be.
        noise: how much `theirs` are off themselves: gradients may be as far, and half as far again.
    """
    for name, value in theirs[0].items():
        np.testing.assert_allclose(ours[0][name], value, rtol=1e-5, atol=1e-7, err_msg=name)
    assert set(ours[1]) == set(theirs[1])
    for name, gradient in theirs[1].items():
        largest = np.abs(gradient).max()
        assert largest > 0, name
        allowed = max(1e-4 * largest, 1.5 * noise[name])
        np.testing.assert_allclose(ours[1][name], gradient, rtol=0, atol=allowed, err_msg=name)
