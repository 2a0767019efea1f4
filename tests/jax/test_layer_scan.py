"""Layers that repeat are found, whatever the model."""

import dataclasses

import pytest

from cpplm.jax.layer_scan import LayerKind, LayerSegment, layer_kinds, segments
from cpplm.model.config import ModelConfig, SparseAttentionConfig
from tests.model.features import random_config


@pytest.mark.parametrize("seed", range(10))
def test_every_layer_runs_once_and_is_compiled_as_its_kind(seed: int) -> None:
    config = random_config(seed)
    kinds = layer_kinds(config)
    cut = segments(kinds)
    order = [
        segment.first + position + segment.period * repeat
        for segment in cut
        for repeat in range(segment.repeats)
        for position in range(segment.period)
    ]
    assert order == list(range(config.num_layers))
    for segment in cut:
        for position in range(segment.period):
            assert len({kinds[layer] for layer in segment.layers(position)}) == 1
    assert sum(segment.period for segment in cut) <= config.num_layers


def compiled(config: ModelConfig) -> int:
    return sum(segment.period for segment in segments(layer_kinds(config)))


def test_as_few_layers_as_can_be_are_compiled() -> None:
    shape = {"vocab_size": 256, "max_seq_len": 512}
    assert segments(layer_kinds(ModelConfig.from_depth(16, **shape))) == [LayerSegment(0, 4, 4)]
    assert segments(layer_kinds(ModelConfig.seed(32, window_pattern="L", **shape))) == [
        LayerSegment(0, 1, 32)
    ]
    assert compiled(ModelConfig.seed(18, **shape)) == 4 + 2  # the last two layers are not SSSL any more
    assert compiled(ModelConfig.seed(1, **shape)) == 1
    sparse = SparseAttentionConfig(start_layer=8)
    assert compiled(dataclasses.replace(ModelConfig.seed(16, **shape), dsa=sparse)) == 4 + 1


def test_an_irregular_model_is_cut_at_the_right_places() -> None:
    a, b, c = (LayerKind(window, False, False) for window in (1, 2, None))
    assert segments([c, a, b, a, b, a, b, c, c]) == [
        LayerSegment(0, 1, 1),
        LayerSegment(1, 2, 3),
        LayerSegment(7, 1, 2),
    ]
    assert segments([]) == []
