"""Layers that repeat are compiled once and run in a loop.

Layers differ in what cannot change within one compiled loop: the span of their attention, whether their
values take in an embedding, whether they are sparse. The layers are cut into stretches that repeat a period,
as SSSL SSSL SSSL, each of which is one loop, and into single layers, so that as few layers as can be are
compiled. What a layer computes is the business of `cpplm.jax.decoder`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from cpplm.jax.layers import Params
from cpplm.model.config import ModelConfig

Carry = TypeVar("Carry")


class LayerKind(NamedTuple):
    """Traits that are fixed when a layer is compiled. `window` counts earlier tokens; None is all of them."""

    window: int | None
    has_value_embedding: bool
    is_sparse: bool

    def has_weight(self, name: str) -> bool:
        """True where such layers have a weight of this name; the dimension in front counts those that do."""
        if name.startswith("attention.value_"):  # its embedding and that one's gate
            return self.has_value_embedding
        return self.is_sparse or not name.startswith("attention.indexer.")


class LayerIndex(NamedTuple):
    """The number of a layer, from 0: known when compiling, or the counter of a loop over the candidates."""

    number: jax.Array | int
    candidates: range

    @property
    def in_loop(self) -> bool:
        """True where the number is a loop's counter."""
        return len(self.candidates) > 1


class LayerSegment(NamedTuple):
    """Layers `first` to `first + period * repeats - 1`."""

    first: int
    period: int
    repeats: int

    def layers(self, position: int) -> range:
        """Layers at one position of the period."""
        return range(self.first + position, self.first + self.period * self.repeats, self.period)


def scan_layers(
    layer: Callable[[Carry, Params, LayerKind, LayerIndex], Carry],
    carry: Carry,
    weights: Params,
    kinds: list[LayerKind],
) -> Carry:
    """Run all layers, one after the other.

    Args:
        layer: computes one, given what the layer before it has handed on, and hands on as much.
        carry: for the first layer.
        weights: of all layers, stacked.
        kinds: of the layers.
    """
    for segment in segments(kinds):
        carry = _run_segment(layer, carry, _segment_weights(weights, segment, kinds), segment, kinds)
    return carry


def _run_segment(
    layer: Callable[[Carry, Params, LayerKind, LayerIndex], Carry],
    carry: Carry,
    weights: Params,
    segment: LayerSegment,
    kinds: list[LayerKind],
) -> Carry:
    def period(carry: Carry, group: tuple[Params, Any]) -> tuple[Carry, None]:
        weights, first = group
        for position, of_layer in enumerate(_period_weights(weights, segment, kinds)):
            index = LayerIndex(first + position, segment.layers(position))
            carry = layer(carry, of_layer, kinds[segment.first + position], index)
        return carry, None

    if segment.repeats == 1:
        return period(carry, ({name: array[0] for name, array in weights.items()}, segment.first))[0]
    firsts = segment.first + segment.period * jnp.arange(segment.repeats)
    return jax.lax.scan(period, carry, (weights, firsts))[0]


def _segment_weights(weights: Params, segment: LayerSegment, kinds: list[LayerKind]) -> Params:
    """Those of its layers, with two dimensions in front: repeats, layers of one period that have them."""
    end = segment.first + segment.period * segment.repeats
    grouped = {}
    for name, array in weights.items():
        start = sum(kind.has_weight(name) for kind in kinds[: segment.first])
        count = sum(kind.has_weight(name) for kind in kinds[segment.first : end])
        if count:
            grouped[name] = array[start : start + count].reshape(segment.repeats, -1, *array.shape[1:])
    return grouped


def _period_weights(weights: Params, segment: LayerSegment, kinds: list[LayerKind]) -> list[Params]:
    """Those of each layer of one period."""
    layers: list[Params] = [{} for _ in range(segment.period)]
    for name, array in weights.items():
        owners = [own for own in range(segment.period) if kinds[segment.first + own].has_weight(name)]
        # split, not indices: its gradient is one concatenation
        for own, weight in zip(owners, jax.lax.split(array, [1] * len(owners)), strict=True):
            layers[own][name] = weight[0]
    return layers


def layer_kinds(config: ModelConfig) -> list[LayerKind]:
    """The kind of each layer."""
    return [
        LayerKind(window, config.has_value_embedding(layer), config.is_sparse(layer))
        for layer, window in enumerate(config.windows())
    ]


def segments(kinds: list[LayerKind]) -> list[LayerSegment]:
    """The cut with the fewest compiled layers; of equal ones, that with the fewest segments."""
    count = len(kinds)
    best: list[tuple[int, int, list[LayerSegment]]] = [(0, 0, [])] * (count + 1)
    for first in range(count - 1, -1, -1):
        candidates = []
        for period in range(1, count - first + 1):
            repeats = 1
            while kinds[first : first + period] == _after(kinds, first, period, repeats):
                repeats += 1
                compiled, cuts, rest = best[first + period * repeats]
                segment = LayerSegment(first, period, repeats)
                candidates.append((period + compiled, 1 + cuts, [segment, *rest]))
            if period == 1:
                compiled, cuts, rest = best[first + 1]
                candidates.append((1 + compiled, 1 + cuts, [LayerSegment(first, 1, 1), *rest]))
        best[first] = min(candidates, key=lambda candidate: candidate[:2])
    return best[0][2]


def _after(kinds: list[LayerKind], first: int, period: int, repeats: int) -> list[LayerKind]:
    return kinds[first + period * repeats : first + period * (repeats + 1)]
