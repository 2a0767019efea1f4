"""Which layers of a model are compiled once and run several times.

Layers differ in what cannot change within one compiled loop: the span of their attention, whether their
values take in an embedding, whether they are sparse. The layers are cut into stretches that repeat a period,
as SSSL SSSL SSSL, each of which is one loop, and into single layers, so that as few layers as can be are
compiled.
"""

from __future__ import annotations

from typing import NamedTuple

from cpplm.model.config import ModelConfig


class LayerKind(NamedTuple):
    """What is fixed when a layer is compiled. `window` counts earlier tokens; None is all of them."""

    window: int | None
    has_value_embedding: bool
    is_sparse: bool


class Segment(NamedTuple):
    """Layers `first` to `first + period * repeats - 1`."""

    first: int
    period: int
    repeats: int

    def layers(self, position: int) -> range:
        """Those at one position of the period."""
        return range(self.first + position, self.first + self.period * self.repeats, self.period)


def layer_kinds(config: ModelConfig) -> list[LayerKind]:
    """Of each layer."""
    return [
        LayerKind(window, config.has_value_embedding(layer), config.is_sparse(layer))
        for layer, window in enumerate(config.windows())
    ]


def segments(kinds: list[LayerKind]) -> list[Segment]:
    """The cut with the fewest compiled layers; of equal ones, that with the fewest segments."""
    count = len(kinds)
    best: list[tuple[int, int, list[Segment]]] = [(0, 0, [])] * (count + 1)
    for first in range(count - 1, -1, -1):
        candidates = []
        for period in range(1, count - first + 1):
            repeats = 1
            while kinds[first : first + period] == _after(kinds, first, period, repeats):
                repeats += 1
                compiled, cuts, rest = best[first + period * repeats]
                segment = Segment(first, period, repeats)
                candidates.append((period + compiled, 1 + cuts, [segment, *rest]))
            if period == 1:
                compiled, cuts, rest = best[first + 1]
                candidates.append((1 + compiled, 1 + cuts, [Segment(first, 1, 1), *rest]))
        best[first] = min(candidates, key=lambda candidate: candidate[:2])
    return best[0][2]


def unrolled(kinds: list[LayerKind]) -> list[Segment]:
    """Every layer on its own."""
    return [Segment(layer, 1, 1) for layer in range(len(kinds))]


def _after(kinds: list[LayerKind], first: int, period: int, repeats: int) -> list[LayerKind]:
    return kinds[first + period * repeats : first + period * (repeats + 1)]
