"""Causality, cached decoding, windows, initial loss, parameter and operation counts."""

import dataclasses
import math

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cpplm.core.errors import UserError
from cpplm.core.settings import from_dict, to_dict
from cpplm.model.cache import KVCache
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special import IGNORED

CONFIG = ModelConfig(
    vocab_size=100, num_layers=4, model_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, max_seq_len=16
)


def random_model(config: ModelConfig, seed: int = 0) -> Transformer:
    """A model whose every weight matters (the real initialisation has zeros)."""
    model = Transformer(config)
    model.init_weights(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def random_ids(batch: int, length: int, config: ModelConfig = CONFIG) -> torch.Tensor:
    return torch.randint(config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("pattern", ["L", "SL", "SSSL"])
def test_causal(pattern: str) -> None:
    model = random_model(dataclasses.replace(CONFIG, window_pattern=pattern))
    ids = random_ids(2, 16)
    before = model(ids)
    changed = ids.clone()
    changed[:, 9] = (changed[:, 9] + 1) % CONFIG.vocab_size
    after = model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize("chunks", [[16], [1] * 16, [5, 1, 1, 9], [15, 1]])
def test_cached_decoding_gives_the_training_logits(chunks: list[int]) -> None:
    model = random_model(CONFIG)
    ids = random_ids(3, 16)
    cache = KVCache(CONFIG, 3, 16, device=model.device, dtype=torch.float32)
    pieces = [model(piece, cache) for piece in ids.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(ids), atol=1e-5, rtol=1e-5)


def test_cache_is_sized_by_key_value_heads_and_refuses_overflow() -> None:
    cache = KVCache(CONFIG, 1, 4, device=torch.device("cpu"), dtype=torch.float32)
    assert cache.keys.shape == (4, 1, 2, 4, 8)
    with pytest.raises(ValueError, match="holds 4 tokens"):
        random_model(CONFIG)(random_ids(1, 5), cache)


def test_expanded_cache_continues_each_row_alone() -> None:
    model = random_model(CONFIG)
    prompt, continuations = random_ids(1, 6), random_ids(3, 4)
    cache = KVCache(CONFIG, 1, 16, device=model.device, dtype=torch.float32)
    model(prompt, cache)
    logits = model(continuations, cache.expand(3))
    whole = model(torch.cat([prompt.expand(3, -1), continuations], dim=1))
    torch.testing.assert_close(logits, whole[:, 6:], atol=1e-5, rtol=1e-5)


def test_window_limits_the_receptive_field() -> None:
    # One short layer below the last would mix further, so look at a model of one S layer under one L layer.
    config = dataclasses.replace(CONFIG, num_layers=2, window_pattern="SL", max_seq_len=8)
    assert config.windows() == [4, None]
    model = random_model(config)
    layer, ids = model.blocks[0].attention, random_ids(1, 12, config)
    x = torch.nn.functional.one_hot(ids % 32, 32).float()
    angles = tuple(torch.ones(12, 4) for _ in range(2))
    before = layer(x, angles, None)
    x[:, 3] += 1.0
    after = layer(x, angles, None)
    moved = (before - after).abs().sum(-1)[0] > 0
    assert moved.tolist() == [False] * 3 + [True] * 5 + [False] * 4  # itself and the 4 after it


def test_untrained_loss_is_uniform() -> None:
    for vocab_size in (100, 128, 4096):
        model = Transformer(dataclasses.replace(CONFIG, vocab_size=vocab_size))
        model.init_weights()
        ids = random_ids(4, 16)
        assert model.loss(ids, ids.roll(1)).item() == pytest.approx(math.log(vocab_size), rel=0.01)


def test_padding_rows_never_matter() -> None:
    model = random_model(CONFIG)
    ids = random_ids(2, 16)
    assert CONFIG.padded_vocab_size == 128
    before = model.loss(ids, ids.roll(1))
    with torch.no_grad():
        model.lm_head.weight[CONFIG.vocab_size :] = 1e4
    assert torch.equal(before, model.loss(ids, ids.roll(1)))


def test_ignored_targets_count_nothing() -> None:
    model = random_model(CONFIG)
    ids = random_ids(2, 16)
    targets = ids.roll(-1, dims=1)
    targets[:, 10:] = IGNORED
    each = model.loss(ids, targets, reduction="none")
    assert each.shape == (2, 16)
    assert torch.all(each[:, 10:] == 0)
    torch.testing.assert_close(model.loss(ids, targets), each[:, :10].mean())


def test_initialisation_is_the_same_from_meta() -> None:
    direct = Transformer(CONFIG)
    direct.init_weights(3)
    with torch.device("meta"):
        deferred = Transformer(CONFIG)
    deferred.to_empty(device="cpu")
    deferred.init_weights(3)
    for (name, a), (_, b) in zip(direct.named_parameters(), deferred.named_parameters(), strict=True):
        assert torch.equal(a, b), name


def test_parameter_count_by_part() -> None:
    model = Transformer(CONFIG)
    parts = CONFIG.num_parameters()
    assert parts["total"] == sum(p.numel() for p in model.parameters())
    assert parts["matrices"] == sum(p.numel() for p in model.blocks.parameters())


def test_operation_count_matches_the_counter_of_torch() -> None:
    config = dataclasses.replace(CONFIG, window_pattern="L", num_kv_heads=4)
    model, ids = random_model(config), random_ids(2, 16)
    # The counter knows the plain formulation of attention, not the fused CPU kernel.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.loss(ids, ids).backward()
    assert counter.get_total_flops() == config.flops_per_token() * ids.numel()


def test_depth_dial() -> None:
    config = ModelConfig.from_depth(12, vocab_size=32_768)
    assert (config.model_dim, config.num_heads, config.head_dim) == (768, 6, 128)
    assert ModelConfig.from_depth(3, vocab_size=4096).model_dim == 256  # rounded up to whole heads
    assert from_dict(ModelConfig, to_dict(config), where="test") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_kv_heads": 3}, "cannot share"),
        ({"window_pattern": "SX"}, "window pattern"),
        ({"head_dim": 7}, "odd"),
        ({"version": 2}, "format 2"),
        ({"num_layers": 0}, "num_layers is 0"),
    ],
)
def test_bad_shapes_are_refused(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **change)
