"""Windows, presets, padding, ignored targets, refused shapes. Features: test_features.py."""

import dataclasses

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.core.settings import from_dict, to_dict
from cpplm.model.attention import ForwardContext
from cpplm.model.config import EngramConfig, ModelConfig, SparseAttentionConfig
from cpplm.model.transformer import Transformer
from tests.model.features import CONFIGS, PLAIN, random_ids, random_model

CONFIG = PLAIN


def test_window_limits_the_receptive_field() -> None:
    # One short layer below the last would mix further, so look at a model of one S layer under one L layer.
    config = dataclasses.replace(CONFIG, num_layers=2, window_pattern="SL", max_seq_len=8)
    assert config.windows() == [4, None]
    model = random_model(config)
    ids = random_ids(1, 12, config)
    x = torch.nn.functional.one_hot(ids % 32, 32).float()
    context = ForwardContext(ids, torch.arange(12.0), (torch.ones(12, 4), torch.ones(12, 4)))
    before, _ = model.blocks[0].attention(x, context)
    x[:, 3] += 1.0
    after, _ = model.blocks[0].attention(x, context)
    moved = (before - after).abs().sum(-1)[0] > 0
    assert moved.tolist() == [False] * 3 + [True] * 5 + [False] * 4  # itself and the 4 after it


def test_spans_of_short_windows() -> None:
    def first(length: int, span: str) -> int | None:
        return dataclasses.replace(CONFIG, max_seq_len=length, short_window=span).windows()[0]

    assert (first(2048, "half"), first(2048, "quarter"), first(2049, "quarter")) == (1024, 512, 640)


def test_depth_dial() -> None:
    for preset in (ModelConfig.from_depth, ModelConfig.seed, ModelConfig.nanochat, ModelConfig.llama):
        config = preset(12, vocab_size=32_768)
        assert (config.model_dim, config.num_heads, config.head_dim) == (768, 6, 128)
        assert preset(3, vocab_size=4096).model_dim == 256  # rounded up to whole heads


def test_presets() -> None:
    """Facts of the two recipes that ours is measured against."""
    seed = ModelConfig.seed(4, vocab_size=100)
    assert (seed.rope_base, seed.qk_scale, seed.value_embeddings, seed.smear) == (10_000, 1.0, False, False)
    nanochat = ModelConfig.nanochat(4, vocab_size=100)
    assert (nanochat.rope_base, nanochat.qk_scale, nanochat.short_window) == (100_000, 1.2, "quarter")
    assert [nanochat.has_value_embedding(layer) for layer in range(4)] == [False, True, False, True]
    model = Transformer(nanochat)
    model.init_weights()
    assert model.residual_scales.tolist() == pytest.approx([1.15, 1.15 - 0.1 / 3, 1.15 - 0.2 / 3, 1.05])
    torch.testing.assert_close(model.embedding_scales.detach(), torch.tensor([0.2, 0.15, 0.1, 0.05]))
    assert model.embedding.weight.std().item() == pytest.approx(0.8, rel=0.05)


def test_a_llama_has_the_weights_of_a_llama() -> None:
    """Those of `transformers` but for its norms."""
    config = ModelConfig.llama(4, vocab_size=100, num_kv_heads=1)
    assert config.windows() == [None] * 4
    mine = {name.removeprefix("blocks.0.") for name, _ in Transformer(config).named_parameters()}
    mine = {name for name in mine if not name.startswith("blocks.")}
    layer = {f"attention.{name}.weight" for name in ("query", "key", "value", "output")}
    layer |= {f"mlp.{name}.weight" for name in ("gate", "up", "down")}
    assert mine == {"embedding.weight", "lm_head.weight", *layer}


def test_a_record_holds_every_feature() -> None:
    for config in CONFIGS.values():
        assert from_dict(ModelConfig, to_dict(config), where="test") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, "cannot share"),
        ({"window_pattern": "SX"}, "window pattern"),
        ({"head_dim": 7}, "odd"),
        ({"version": 2}, "format 2"),
        ({"num_layers": 0}, "num_layers is 0"),
        ({"logit_softcap": -1.0}, "logit_softcap -1.0"),
        ({"qk_norm": False, "qk_scale": 1.2}, "qk_scale 1.2 is of normalised"),
        ({"layer_scales": False, "embedding_scales": (0.2, 0.05)}, "nothing without layer_scales"),
        ({"engram": EngramConfig(layers=(1, 4))}, "layers 0 to 3"),
        ({"dsa": SparseAttentionConfig(start_layer=7)}, "begins at layer 7"),
    ],
)
def test_bad_shapes_are_refused(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **change)
