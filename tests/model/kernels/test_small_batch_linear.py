"""Kernels for few tokens: what the torch expressions beside them give."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cpplm.model.kernels.small_batch_linear import (
    MAX_TOKENS,
    fused_mlp,
    gemv,
    rms_norm,
    rope_write_cache,
    supports,
)
from cpplm.model.layers import norm, rotary_angles, rotate

SIZES = pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(768, 256, (1, 1)), (64, 31, (2, 1)), (37, 5, (1,)), (130, 1, (1, 3)), (31, 70, (2, 1))],
)


def random(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(shape)).bfloat16()


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """Sums in float64, then rounded as torch does."""
    return F.linear(x.double(), weight.double()).bfloat16()


def assert_rounded(found: Tensor, expected: Tensor) -> None:
    """The same but for the last bit here and there, which the order of sums decides."""
    assert found.shape == expected.shape and found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, atol=2**-7, rtol=2**-7)
    assert (found == expected).float().mean() > 0.8


def on_three_threads(compute: Callable[[], Tensor]) -> Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        return compute()
    finally:
        torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def torch_norm(x: Tensor) -> Tensor:
    """By torch."""
    return F.rms_norm(x, (x.size(-1),))


@pytest.mark.parametrize("width", [1, 31, 768])
def test_norm(width: int) -> None:
    for x in (random(2, 1, width), random(width), random(1, 3, width, scale=1e-4)):
        assert_rounded(rms_norm(x), torch_norm(x))
        assert_rounded(rms_norm(x.expand(1, *x.shape)), torch_norm(x)[None])
        with torch.no_grad():
            assert torch.equal(norm(x), rms_norm(x))


@SIZES
def test_gemv(width: int, height: int, tokens: tuple[int, ...]) -> None:
    x, weight, residual = random(*tokens, width), random(height, width), random(*tokens, height, scale=9)
    assert_rounded(gemv(x, weight), linear(x, weight))
    assert_rounded(gemv(x, weight, normalized=True), linear(torch_norm(x), weight))
    assert_rounded(gemv(x, weight, residual=residual), residual + linear(x, weight))
    assert torch.equal(on_three_threads(lambda: gemv(x, weight)), gemv(x, weight))


@SIZES
def test_mlp(width: int, height: int, tokens: tuple[int, ...]) -> None:
    x, up, down = random(*tokens, width), random(height, width, scale=0.1), random(width, height, scale=0.1)
    assert_rounded(fused_mlp(x, up, down), x + linear(F.relu(linear(torch_norm(x), up)).square(), down))
    assert torch.equal(on_three_threads(lambda: fused_mlp(x, up, down)), fused_mlp(x, up, down))


@pytest.mark.parametrize(("heads", "groups", "dim"), [(4, 4, 64), (6, 2, 22), (1, 1, 2)])
@pytest.mark.parametrize(
    ("shape", "normalized"), [((1, 1), True), ((3, 1), True), ((1, 2), True), ((3, 1), False)]
)
def test_rope_write_cache(
    heads: int, groups: int, dim: int, shape: tuple[int, int], normalized: bool
) -> None:
    projected, scale = random(*shape, (heads + 2 * groups) * dim, scale=3), 1.2
    query, key, value = (
        part.unflatten(-1, (-1, dim))
        for part in projected.split([heads * dim, groups * dim, groups * dim], dim=-1)
    )
    angles = rotary_angles(torch.randint(1000, shape).float(), dim, 1e4)
    slots = torch.tensor([5, 2, 7])[: shape[0] * shape[1]]
    pools = [torch.full((9, groups, dim), -1.0).bfloat16() for _ in range(2)]

    def turned(x_BTHD: Tensor) -> Tensor:
        rotated_BHTD = rotate(x_BTHD.transpose(1, 2), angles)
        return ((torch_norm(rotated_BHTD) if normalized else rotated_BHTD) * scale).transpose(1, 2)

    found = rope_write_cache(
        projected, projected[..., (heads + groups) * dim :], heads, angles, scale, slots, *pools,
        normalized=normalized,
    )  # fmt: skip
    assert_rounded(found, turned(query))
    assert_rounded(pools[0][slots].view_as(key), turned(key))
    assert torch.equal(pools[1][slots].view_as(value), value)
    for pool in pools:  # nothing else is written
        pool[slots] = -1
        assert (pool == -1).all()


def test_small_large_and_no_numbers() -> None:
    weight = random(40, 64)
    for scale in (1e-30, 1e-4, 1e20):
        x = random(1, 64, scale=scale)
        torch.testing.assert_close(
            gemv(x, weight, normalized=True), linear(torch_norm(x), weight), atol=0.1, rtol=0.01
        )
    weight[7, 3] = float("nan")
    found = gemv(random(64), weight)
    assert found[7].isnan() and found.isfinite().sum() == 39
    assert fused_mlp(random(1, 64), weight, random(64, 40)).isnan().all()  # through the ReLU


def test_only_what_it_can_do() -> None:
    assert supports(random(MAX_TOKENS, 8)) and supports(random(1, MAX_TOKENS, 8)) and supports(random(8))
    assert not supports(random(MAX_TOKENS + 1, 8))
    assert not supports(random(1, 8).float())
    assert not supports(random(1, 8).to("meta"))
