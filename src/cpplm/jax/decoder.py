"""The decoder layers: those that repeat are compiled once and run in a loop (`cpplm.jax.layer_scan`).

Shapes: B batch, T tokens, C model_dim, X embeddings of all n-gram tables; `x` is the residual stream BTC, or
streams NBTC.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from cpplm.jax.attention.layer import ForwardContext
from cpplm.jax.block import add_sublayer, block
from cpplm.jax.engram import embed_ngrams, engram_branch, engram_memory
from cpplm.jax.layer_scan import LayerKind, Segment, layer_kinds, segments, unrolled
from cpplm.jax.layers import Params, norm, subtree
from cpplm.jax.settings import RunSettings

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Layer = jax.Array | int
"""Which layer, from 0: known when compiling, or the counter of a loop."""
Carry = tuple[jax.Array, jax.Array, jax.Array]
"""The stream or streams; those behind the layer that backout takes; the indexers' divergences, added up."""


def decoder_layers(params: Params, embedded: jax.Array, context: ForwardContext) -> Carry:
    """What the layers make of the embedded tokens, not yet normalised."""
    config = context.config
    kinds = layer_kinds(config)
    blocks = subtree(params, "blocks.")
    scales = (params["residual_scales"], params["embedding_scales"])
    ngrams = _Ngrams(params, context)
    carry: Carry = (embedded, embedded, jnp.zeros(()))
    for segment in segments(kinds) if context.run.scan else unrolled(kinds):
        in_loop = segment.repeats > 1

        def period(
            carry: Carry, group: tuple[Params, Layer], segment: Segment = segment
        ) -> tuple[Carry, None]:
            stacked, first = group
            x, middle, divergence = carry
            for position, weights in enumerate(_weights_of_period(stacked, segment, kinds)):
                layer, candidates = first + position, segment.layers(position)
                of_kind = partial(
                    _layer, kind=kinds[candidates[0]], candidates=candidates, ngrams=ngrams, context=context
                )
                run = remat(of_kind, context.run, in_loop=segment.repeats > 1)
                x, of_layer = run(weights, x, embedded, scales, layer)
                divergence = divergence + of_layer
                if config.backout and config.backout_layer() in candidates:
                    middle = jnp.where(layer == config.backout_layer(), x, middle)
            return (x, middle, divergence), None

        stacked = _weights_of_segment(blocks, segment, kinds)
        if in_loop:
            firsts = segment.first + segment.period * jnp.arange(segment.repeats)
            carry, _ = jax.lax.scan(period, carry, (stacked, firsts))
        else:
            carry, _ = period(carry, ({name: array[0] for name, array in stacked.items()}, segment.first))
    return carry


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


def _layer(
    weights: Params,
    x: jax.Array,
    embedded: jax.Array,
    scales: tuple[jax.Array, jax.Array],
    layer: Layer,
    *,
    kind: LayerKind,
    candidates: range,
    ngrams: _Ngrams,
    context: ForwardContext,
) -> tuple[jax.Array, jax.Array]:
    """One layer, with what is mixed into the stream before it; see `scaled` for the dtype of that."""
    residual_scale, embedding_scale = (scale[layer].astype(jnp.float32) for scale in scales)
    mixed = residual_scale * x.astype(jnp.float32) + embedding_scale * embedded.astype(jnp.float32)
    x = ngrams.read(mixed.astype(x.dtype), layer, candidates)
    return block(weights, x, kind, context)


class _Ngrams:
    """The n-gram memories of all layers that have one, ready to be read."""

    def __init__(self, params: Params, context: ForwardContext) -> None:
        self.context, self.engram = context, context.config.engram
        self.layers = sorted(self.engram.layers) if self.engram else []
        blocks = subtree(params, "blocks.")
        self.weights = {name: array for name, array in blocks.items() if _is_of_ngrams(name)}
        self.found: list[jax.Array] = []
        if self.engram and self.engram.kind == "memory":
            constants = {name: a for name, a in subtree(blocks, "engram.").items() if a.dtype == jnp.uint32}
            with jax.named_scope("engram_tables"):
                self.found = [
                    embed_ngrams(
                        params[f"blocks.{layer}.engram.table.weight"],
                        {name: array[index] for name, array in constants.items()},
                        context.ids_BT,
                        context.run.dtype,
                    )
                    for index, layer in enumerate(self.layers)
                ]

    def read(self, x: jax.Array, layer: Layer, candidates: range) -> jax.Array:
        """The streams with the memory of a layer that is one of the candidates, if it has one."""
        having = [index for index, own in enumerate(self.layers) if own in candidates]
        if not having:
            return x
        if isinstance(layer, int):
            return self._read(x, having[0])
        # One branch for each memory, and one for layers without, of which a loop takes the right one.
        choice = sum(jnp.where(layer == self.layers[index], at, 0) for at, index in enumerate(having, 1))
        branches: list[Callable[[jax.Array], jax.Array]] = [lambda x: x]
        branches += [partial(self._read, index=index) for index in having]
        read: jax.Array = jax.lax.switch(choice, branches, x)
        return read

    def _read(self, x: jax.Array, index: int) -> jax.Array:
        engram = self.engram
        assert engram is not None  # noqa: S101  (there is a layer that has it)
        weights = {name: array[index] for name, array in self.weights.items()}

        def remember(x_BTC: jax.Array) -> tuple[jax.Array, None]:
            own = subtree(weights, "engram.")
            if engram.kind == "local":
                return engram_branch(own, norm(x_BTC), engram), None
            return engram_memory(own, norm(x_BTC), self.found[index], engram), None

        return add_sublayer("engram", weights, x, remember, self.context)[0]


def _is_of_ngrams(name: str) -> bool:
    """Whether a weight, without its prefix, is of a layer's n-gram memory."""
    return name.startswith(("engram.", "connections.engram."))


def _has(kind: LayerKind, name: str) -> bool:
    """Whether a layer has a weight of this name."""
    if name.startswith("attention.value_"):  # its embedding and that one's gate
        return kind.has_value_embedding
    return kind.is_sparse or not name.startswith("attention.indexer.")


def _weights_of_segment(blocks: Params, segment: Segment, kinds: list[LayerKind]) -> Params:
    """The stacked weights of its layers, with two dimensions in front: repeats, layers of one period."""
    end = segment.first + segment.period * segment.repeats
    grouped = {}
    for name, array in blocks.items():
        if _is_of_ngrams(name) or name[0].isdigit():
            continue
        start = sum(_has(kind, name) for kind in kinds[: segment.first])
        count = sum(_has(kind, name) for kind in kinds[segment.first : end])
        if count:
            of_segment = array[start : start + count]
            grouped[name] = of_segment.reshape(segment.repeats, -1, *array.shape[1:])
    return grouped


def _weights_of_period(stacked: Params, segment: Segment, kinds: list[LayerKind]) -> list[Params]:
    """Those of each layer of one period."""
    layers: list[Params] = [{} for _ in range(segment.period)]
    for name, array in stacked.items():
        owners = [own for own in range(segment.period) if _has(kinds[segment.first + own], name)]
        # split, not indices: its gradient is one concatenation
        for own, weight in zip(owners, jax.lax.split(array, [1] * len(owners)), strict=True):
            layers[own][name] = weight[0]
    return layers
