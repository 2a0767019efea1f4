"""The decoder layers, with the n-gram memories that some of them read.

Shapes: B batch, T tokens, C model_dim, L layers with an n-gram memory, X embeddings of all n-gram tables; `x`
is the residual stream BTC, or streams NBTC.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from cpplm.jax.attention.layer import ForwardContext
from cpplm.jax.block import add_sublayer, block
from cpplm.jax.engram import embed_ngrams, engram_branch, engram_memory
from cpplm.jax.layer_scan import LayerIndex, LayerKind, layer_kinds, scan_layers
from cpplm.jax.layers import Params, norm, subtree
from cpplm.jax.settings import RunSettings

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Carry = tuple[jax.Array, jax.Array, jax.Array]
"""The stream or streams; those behind the layer that backout takes; the indexers' divergences, added up."""


def decoder_layers(params: Params, embedded: jax.Array, context: ForwardContext) -> Carry:
    """The embedded tokens after all layers, not yet normalized."""
    config = context.config
    blocks = subtree(params, "blocks.")
    ngrams = _Ngrams.of(params, context)
    scales: tuple[jax.Array, ...] = ()
    if config.layer_scales:
        scales = (params["residual_scales"], params["embedding_scales"])

    def layer(carry: Carry, weights: Params, kind: LayerKind, index: LayerIndex) -> Carry:
        x, middle, divergence = carry

        def compute(
            weights: Params, x: jax.Array, embedded: jax.Array, scales: tuple[jax.Array, ...]
        ) -> tuple[jax.Array, jax.Array]:
            if scales:  # in float32, as `scale_by`
                of_residual, of_embedded = (scale[index.number].astype(jnp.float32) for scale in scales)
                mixed = of_residual * x.astype(jnp.float32) + of_embedded * embedded.astype(jnp.float32)
                x = mixed.astype(x.dtype)
            return block(weights, ngrams.add_to(x, index), kind, context)

        x, of_layer = remat(compute, context.run, in_loop=index.in_loop)(weights, x, embedded, scales)
        if config.backout and config.backout_layer() in index.candidates:
            middle = jnp.where(index.number == config.backout_layer(), x, middle)
        return x, middle, divergence + of_layer

    # Weights of n-gram memories are handed in apart, and so are the tables, which have a name for each layer.
    of_blocks = {
        name: array for name, array in blocks.items() if not (_is_of_ngrams(name) or name[0].isdigit())
    }
    start = (embedded, embedded, jnp.zeros(()))
    return scan_layers(layer, start, of_blocks, layer_kinds(config))


def remat(
    function: Callable[Arguments, Result], run: RunSettings, *, in_loop: bool
) -> Callable[Arguments, Result]:
    """The function, with what the settings say computed again in the backward pass (Chen et al. 2016, arXiv
    1604.06174)."""
    if run.remat == "none":
        return function
    policies = {
        "full": jax.checkpoint_policies.nothing_saveable,
        "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
        "attention": jax.checkpoint_policies.save_only_these_names("attention"),
    }
    # In a loop the compiler cannot mistake the second computation for the first one.
    return jax.checkpoint(function, policy=policies[run.remat], prevent_cse=not in_loop)


@dataclass(frozen=True)
class _Ngrams:
    """The n-gram memories of all layers that have one.

    Attributes:
        layers: their numbers, ascending.
        weights: of all of them, stacked.
        embedded_LBTX: the n-grams' embeddings, looked up before the layers; None for `local` ones.
        context: of the pass.
    """

    layers: list[int]
    weights: Params
    embedded_LBTX: jax.Array | None
    context: ForwardContext

    @classmethod
    def of(cls, params: Params, context: ForwardContext) -> _Ngrams:
        """Those of a model, which may have none."""
        engram, blocks = context.config.engram, subtree(params, "blocks.")
        layers = sorted(engram.layers) if engram else []
        weights = {name: array for name, array in blocks.items() if _is_of_ngrams(name)}
        if engram is None or engram.kind == "local":
            return cls(layers, weights, None, context)
        hashes = {name: array for name, array in weights.items() if array.dtype == jnp.uint32}
        with jax.named_scope("engram_tables"):
            embedded = [
                embed_ngrams(
                    params[f"blocks.{layer}.engram.table.weight"],
                    {name.removeprefix("engram."): array[number] for name, array in hashes.items()},
                    context.ids_BT,
                    context.documents_BT,
                    context.run.dtype,
                )
                for number, layer in enumerate(layers)
            ]
            return cls(layers, weights, jnp.stack(embedded), context)

    def add_to(self, x: jax.Array, index: LayerIndex) -> jax.Array:
        """The stream or streams with the memory of a layer, if it has one."""
        having = [layer for layer in self.layers if layer in index.candidates]
        if not having:
            return x
        if not index.in_loop:
            return self._add_memory(x, self.layers.index(having[0]))
        of_layers = [self.layers.index(n) if n in having else -1 for n in range(max(index.candidates) + 1)]
        number = jnp.asarray(of_layers)[index.number]
        if len(having) == len(index.candidates):
            return self._add_memory(x, number)
        return jax.lax.cond(number >= 0, self._add_memory, lambda x, _: x, x, number)

    def _add_memory(self, x: jax.Array, number: jax.Array | int) -> jax.Array:
        engram, weights = self.context.config.engram, {n: a[number] for n, a in self.weights.items()}
        documents_BT = self.context.documents_BT
        assert engram is not None  # noqa: S101  (there is a layer that has it)

        def read(x_BTC: jax.Array) -> tuple[jax.Array, None]:
            own = subtree(weights, "engram.")
            if self.embedded_LBTX is None:
                return engram_branch(own, norm(x_BTC), documents_BT, engram), None
            return engram_memory(own, norm(x_BTC), self.embedded_LBTX[number], documents_BT, engram), None

        return add_sublayer("engram", weights, x, read, self.context)[0]


def _is_of_ngrams(name: str) -> bool:
    """True where a weight, without its prefix, is of a layer's n-gram memory."""
    return name.startswith(("engram.", "connections.engram."))
