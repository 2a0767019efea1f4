"""Single layers where parity of whole models says too little: small numbers, far positions, scalars."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.jax.layers import norm, rotary_angles, rotate, scale_by
from cpplm.jax.settings import RunSettings
from cpplm.model import layers
from tests.jax.twins import TWINS, torch_model


@pytest.mark.parametrize("size", [1e-3, 1e-6])
def test_the_epsilon_of_norms_is_torchs(size: float) -> None:
    """That of float32, also for bfloat16: at 1e-3 it still matters little, at 1e-6 it is everything."""
    x = size * np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    expected = layers.norm(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(np.asarray(norm(jnp.asarray(x))), expected, rtol=1e-5)
    half = torch.from_numpy(x).bfloat16()
    ours = norm(jnp.asarray(half.float().numpy(), jnp.bfloat16)).astype(jnp.float32)
    np.testing.assert_allclose(np.asarray(ours), layers.norm(half).float().numpy(), rtol=2**-7)


def test_rotary_positions() -> None:
    x = np.random.default_rng(0).standard_normal((2, 5000, 1, 8)).astype(np.float32)
    angles = layers.rotary_angles(torch.arange(5000, dtype=torch.float32), 8, 10_000.0)
    expected = layers.rotate(torch.from_numpy(x).transpose(1, 2), angles).transpose(1, 2)
    ours = rotate(jnp.asarray(x), rotary_angles(5000, 8, 10_000.0))
    np.testing.assert_allclose(np.asarray(ours), expected.numpy(), atol=2e-3)
    np.testing.assert_allclose(np.asarray(ours)[:, :100], expected.numpy()[:, :100], atol=2e-5)


def test_a_scalar_is_not_rounded_before_it_multiplies() -> None:
    """1.002 is 1.0 in bfloat16. Its gradient is a sum of products in float32, too."""
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 64)), jnp.bfloat16) * 100
    scale = jnp.float32(1.002)
    assert float(jnp.bfloat16(scale)) == 1.0
    wide = (scale * x.astype(jnp.float32)).astype(jnp.bfloat16)
    assert (scale_by(x, scale) == wide).all()
    assert (scale_by(x, scale) != x).any()

    def total(scale: jax.Array) -> jax.Array:
        return (scale_by(x, scale).astype(jnp.float32) * x).sum()

    exact = jnp.square(x.astype(jnp.float32)).sum()
    assert float(jax.grad(total)(scale)) == pytest.approx(float(exact), rel=1e-4)


def test_swiglu_of_torch_is_the_papers() -> None:
    mlp = torch_model(TWINS["swiglu"]).blocks[0].mlp
    x = torch.randn(3, TWINS["swiglu"].model_dim)
    gate = x @ mlp.gate.weight.T
    expected = (gate * torch.sigmoid(gate) * (x @ mlp.up.weight.T)) @ mlp.down.weight.T
    torch.testing.assert_close(mlp(x), expected)
    assert mlp.up.weight.shape == mlp.gate.weight.shape == (128, 32)  # 2/3 of 4 * 32, to 64s


def test_settings_that_cannot_be() -> None:
    assert hash(RunSettings()) == hash(RunSettings())
    with pytest.raises(UserError, match="from 1 up"):
        RunSettings(loss_chunk=0)
