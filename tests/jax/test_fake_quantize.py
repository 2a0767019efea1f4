"""Rounded weights in JAX: the numbers and gradients of PyTorch, and runs that go on with either library."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from cpplm.core.errors import UserError
from cpplm.jax.quantizer import Quantizer
from cpplm.model.config import ModelConfig
from cpplm.model.quantized.layers import quantize_layers
from cpplm.model.quantized.recipe import Recipe
from cpplm.model.settings import QuantizationSettings
from cpplm.train.checkpoint.format import QUANTIZATION, open_run
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from tests.jax.test_backend import TORCH, divide_all, losses, settings, small  # noqa: F401  (fixtures)
from tests.jax.twins import by_jax, by_torch, checkpoint, make_batch, torch_model
from tests.model.features import CONFIGS, MEMORY
from tests.train.test_pretrain import StopAt, assert_same_weights

# Uniform levels and others, scales per group, per weight and of a rank, tables, the head.
RECIPE = Recipe.parse("mlp=half2:g32,attn=nf4:g1:r3,embed=half4:g32,head=int4:g32")


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_pytorch() -> None:
    engram = dataclasses.replace(MEMORY, layers=(1,))
    config = ModelConfig(100, 2, 64, 4, 4, 8, max_seq_len=16, value_embeddings=True, engram=engram)
    model = torch_model(config)
    quantize_layers(model, RECIPE, init="absmax")  # whose largest weights lie on the outermost levels
    batch = make_batch(config, 2, 16)
    theirs, their_gradients = by_torch(model, batch)
    ours, our_gradients = by_jax(checkpoint(model), batch, config, recipe=RECIPE)
    assert ours["total"] == pytest.approx(theirs["total"], rel=1e-6)
    assert {"blocks.0.mlp.up.scales", "blocks.1.attention.query.rank_magnitude"} < set(their_gradients)
    for name, gradient in their_gradients.items():
        largest = np.abs(gradient).max()
        np.testing.assert_allclose(our_gradients[name], gradient, atol=2e-4 * largest + 1e-7, err_msg=name)


@pytest.mark.slow
def test_a_run_rounds_as_pytorch_does_and_goes_on_with_either(
    small: TrainSettings,  # noqa: F811
    tmp_path: Path,
) -> None:
    """From step 3 on, in each library alone; killed in step 5; begun by one and ended by the other."""
    quantized = dataclasses.replace(
        small, quantization=QuantizationSettings("all=half4:g32", quantize_from=0.25), aspect_ratio=32,
    )  # fmt: skip
    pretrain(quantized)
    by_torch = dataclasses.replace(quantized, **TORCH, out=tmp_path / "torch", device_batch_size=8)
    pretrain(by_torch)
    np.testing.assert_allclose(losses(quantized.out), losses(by_torch.out), rtol=5e-3)
    ours, theirs = open_run(quantized.out), open_run(by_torch.out)
    assert ours.json(QUANTIZATION) == theirs.json(QUANTIZATION)
    assert "embedding" in ours.json(QUANTIZATION)["layers"]

    killed = dataclasses.replace(quantized, out=tmp_path / "killed", save_every=2)
    with pytest.raises(ConnectionAbortedError):
        pretrain(killed, [StopAt(5, die=True)])
    pretrain(killed)
    assert_same_weights(quantized.out, killed.out)

    mixed = dataclasses.replace(by_torch, out=tmp_path / "mixed")
    with pytest.raises(KeyboardInterrupt):
        pretrain(dataclasses.replace(quantized, out=mixed.out), [StopAt(4)])
    assert pretrain(mixed).step == 8
    np.testing.assert_allclose(losses(mixed.out), losses(by_torch.out), rtol=5e-3)


def test_what_was_not_made_for_jax(small: TrainSettings) -> None:  # noqa: F811
    frozen = dataclasses.replace(small, quantization=QuantizationSettings("int4", freeze_codes=True))
    with pytest.raises(UserError, match="--freeze_codes is PyTorch's"):
        Quantizer(frozen, CONFIGS["all"], lambda _: pytest.fail("not reached"), 1)
    with pytest.raises(UserError, match="is of one host"):
        Quantizer(frozen, CONFIGS["all"], lambda _: pytest.fail("not reached"), 2)
