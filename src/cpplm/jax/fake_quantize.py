"""Weights that are rounded in each step, as `cpplm.model.quantized.layers` does it in PyTorch.

A quantised layer has `latent_weight` and scales in the place of `weight`; `round_params` computes the weight
from them before a pass, and gradients reach both. Names, numbers and gradients are those of PyTorch, so a run
may go on with the other library.

Shapes: L layers of a stack (in front, where there is one), O rows, I columns, G groups of a row, R rank.
"""

from __future__ import annotations

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import torch

from cpplm.jax.layers import Params
from cpplm.jax.param_stacking import checkpoint_names, is_stacked
from cpplm.model.config import ModelConfig
from cpplm.model.quantized.codebooks import Codebook
from cpplm.model.quantized.layers import LATENT, LOW_RANK, SCALES, quantizable
from cpplm.model.quantized.recipe import Recipe, WeightFormat, role_of
from cpplm.model.quantized.rounding import TINY
from cpplm.model.transformer import Transformer


@lru_cache(maxsize=8)
def layer_formats(config: ModelConfig, recipe: Recipe) -> dict[str, WeightFormat]:
    """Formats by the names of the layers that a recipe quantises, those of a stack as one."""
    with torch.device("meta"):
        formats = quantizable(Transformer(config), recipe)
    stacked = checkpoint_names(f"{name}.weight" for name in formats)
    return {
        name.removesuffix(".weight"): formats[members[0].removesuffix(".weight")]
        for name, members in stacked.items()
    }


def round_params(learning: Params, constants: Params, config: ModelConfig, recipe: Recipe | None) -> Params:
    """The weights that learn as passes read them: latent weights and scales replaced by rounded weights."""
    rounded = dict(learning)
    for name, weight_format in layer_formats(config, recipe).items() if recipe is not None else ():
        latent, of_table = rounded.pop(f"{name}.{LATENT}"), role_of(name) == "embed"
        names = [f"{name}.{part}" for part in (LOW_RANK if weight_format.rank else (SCALES,))]
        scales = [constants[each] if of_table else rounded.pop(each) for each in names]
        function = partial(_round_table if of_table else _round_matrix, weight_format=weight_format)
        if is_stacked(f"{name}.weight"):
            function = jax.vmap(function)
        with jax.named_scope("fake_quantize"):
            rounded[f"{name}.weight"] = function(latent, *scales)
    return rounded


def _round_matrix(latent_OI: jax.Array, *parts: jax.Array, weight_format: WeightFormat) -> jax.Array:
    """The rounded weight of a linear layer, OI; `parts` are scales OG, or OR, RG and R of a rank."""
    scales_OG = _to_half(parts[0])
    if weight_format.rank:
        left_OR, right_RG, magnitude_R = map(_to_half, parts)
        product_OG = jnp.matmul(left_OR * magnitude_R, right_RG, precision="highest")
        scales_OG = _at_least(product_OG, TINY)
    groups_OGN = latent_OI.reshape(*scales_OG.shape, -1)
    return _fake_quantize(groups_OGN, scales_OG[..., None], weight_format.codebook).reshape(latent_OI.shape)


def _round_table(latent_OI: jax.Array, scales_B: jax.Array, weight_format: WeightFormat) -> jax.Array:
    """The rounded table, OI: weights share scales in the order of memory."""
    flat, size = latent_OI.reshape(-1), weight_format.group_size
    blocks_BN = jnp.pad(flat, (0, -flat.size % size)).reshape(-1, size)
    rounded_BN = _fake_quantize(blocks_BN, scales_B[:, None], weight_format.codebook)
    return rounded_BN.reshape(-1)[: flat.size].reshape(latent_OI.shape)


def _fake_quantize(weights: jax.Array, scales: jax.Array, book: Codebook) -> jax.Array:
    """`cpplm.model.quantized.rounding.fake_quantize`, with its gradients."""
    scales = jnp.where(jnp.abs(scales) < TINY, TINY, scales)
    least, most = book.levels[0], book.levels[-1]
    ratio = weights / scales
    # Not jnp.clip, which halves the gradient of what lies on an outermost level.
    inside = jnp.where((ratio >= least) & (ratio <= most), ratio, jnp.where(ratio < least, least, most))
    fixed = jax.lax.stop_gradient(inside)
    return (_nearest_levels(fixed, book) + (inside - fixed)) * scales


def _nearest_levels(values: jax.Array, book: Codebook) -> jax.Array:
    if book.unit:
        steps = jnp.clip(jnp.round(values * book.unit + book.zero), 0, len(book.levels) - 1)
        return (steps - book.zero) / book.unit
    levels = jnp.asarray(book.levels)
    return levels[jnp.searchsorted((levels[1:] + levels[:-1]) / 2, values)]


def _at_least(values: jax.Array, least: float) -> jax.Array:
    """torch's clamp: without a gradient below."""
    return jnp.where(values >= least, values, least)


def _to_half(scales: jax.Array) -> jax.Array:
    """Scales as a packed file stores them, rounded to float16, with the gradient of the identity."""
    return scales + jax.lax.stop_gradient(scales.astype(jnp.float16).astype(jnp.float32) - scales)
