"""A model that is ready to decode gives what it gave before."""

import dataclasses
from unittest.mock import Mock

import pytest
import torch

from cpplm.generate.engine import Engine
from cpplm.generate.load import prepare_for_inference
from cpplm.generate.settings import SamplingSettings
from cpplm.model import fused_decode
from cpplm.model.config import ModelConfig
from cpplm.model.kernels import cpp_extension, onednn_linear
from cpplm.model.kernels.onednn_linear import PackedLinear, can_pack
from cpplm.model.layers import Linear
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.test_every_feature import EACH, engine_of
from tests.model.caches import Rows
from tests.model.features import random_ids, random_model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@EACH
def test_a_prepared_model_is_the_same(
    config: ModelConfig, dtype: torch.dtype, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every layer is packed here, however small."""
    monkeypatch.setattr(onednn_linear, "_LEAST_WEIGHTS", 1)
    config = dataclasses.replace(config, num_heads=2, num_kv_heads=1, head_dim=16)
    logits, losses, texts = [], [], []
    ids = random_ids(2, 40)
    for ready in (False, True):
        engine = engine_of(config, tokenizer)
        engine.model.compute_dtype = dtype
        if ready:
            prepare_for_inference(engine.model)
            assert engine.model.embedding.weight.dtype == dtype
            assert isinstance(engine.model.lm_head, PackedLinear) == can_pack(engine.model.device, dtype)
        with torch.no_grad():
            logits.append(engine.model(ids))
            losses.append(engine.model.loss(ids, ids.roll(-1, dims=1)))
        texts.append(Engine.complete(engine, "int", SamplingSettings(8, 1.0, 5)))
    close = {"atol": 0.05, "rtol": 0.05} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(*logits, **close)
    torch.testing.assert_close(*losses, **close)
    if torch.equal(*logits) or dtype == torch.float32:
        assert texts[0] == texts[1]


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "no compiler"])
@EACH
def test_few_tokens_are_what_all_at_once_give(
    config: ModelConfig, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, one, two and three at a time, of one row and of two; with a compiler and without."""
    config = dataclasses.replace(config, max_seq_len=96)
    close = 0.25 if config.dsa is None else 0.5  # rounding may change what an indexer chooses
    model = random_model(config)
    model.compute_dtype = torch.bfloat16
    if not kernels:
        monkeypatch.setattr(cpp_extension, "_library", lambda: None)
    cpp_extension.load_function.cache_clear()
    used = Mock(side_effect=fused_decode.fused_mlp)
    monkeypatch.setattr(fused_decode, "fused_mlp", used)
    try:
        prepare_for_inference(model)
        ids = random_ids(2, 40, config)
        with torch.no_grad():
            together = model(ids)
            for rows, widths in ((1, [1] * 20 + [2] * 7 + [3] * 2), (2, [26] + [1] * 14)):
                decoded = Rows(model, rows)
                pieces = [decoded(piece) for piece in ids[:rows].split(widths, dim=1)]
                torch.testing.assert_close(torch.cat(pieces, dim=1), together[:rows], atol=close, rtol=0.1)
    finally:
        cpp_extension.load_function.cache_clear()
    plain = sum(each.connections is None and each.attention.indexer is None for each in model.blocks)
    assert used.call_count == (plain * (29 + 14) if kernels else 0)


@pytest.mark.skipif(not can_pack(torch.device("cpu"), torch.float32), reason="needs oneDNN")
@pytest.mark.parametrize("tokens", [1, 2, 7, 64])
def test_packed_products(tokens: int) -> None:
    linear = Linear(96, 200)
    torch.nn.init.normal_(linear.weight)
    packed = PackedLinear(linear, keep_weight=False)
    x = torch.randn(3, tokens, 96)
    torch.testing.assert_close(packed(x), linear(x), atol=1e-4, rtol=1e-4)
    assert not list(packed.parameters())


def test_where_nothing_can_be_packed() -> None:
    assert not can_pack(torch.device("cuda"), torch.bfloat16)
    assert not can_pack(torch.device("cpu"), torch.float64)


@pytest.mark.skipif(not can_pack(torch.device("cpu"), torch.bfloat16), reason="needs bfloat16 of oneDNN")
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "no compiler"])
@pytest.mark.parametrize("shape", [(96,), (1, 96), (1, 1, 96)])
def test_one_row_in_bfloat16(shape: tuple[int, ...], kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another loop than many rows, and oneDNN is as it was before."""
    if not kernels:
        monkeypatch.setattr(onednn_linear, "supports", lambda x: False)
    linear = Linear(96, 200).bfloat16()
    torch.nn.init.normal_(linear.weight)
    packed = PackedLinear(linear, keep_weight=False)
    x = torch.randn(shape).bfloat16()
    with torch.inference_mode():
        for enabled in (True, False):
            with torch.backends.mkldnn.flags(enabled=enabled):
                found = packed(x)
                assert torch._C._get_mkldnn_enabled() is enabled
            assert found.shape == (*shape[:-1], 200)
            torch.testing.assert_close(
                found.float(), x.float() @ linear.weight.float().T, atol=0.1, rtol=0.01
            )
