"""The optimizer against a plain float64 reference, step by step."""

import numpy as np
import pytest
import torch
from torch import nn

from cpplm.optim.muon import POLAR_EXPRESS, Group, MuonAdamW, orthogonalize

BETA, RATE, DECAY = 0.9, 0.02, 0.3


def test_orthogonalize_brings_singular_values_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in [(3, 40, 24), (24, 40), (32, 32)]:
        matrix = torch.randn(shape, generator=generator)
        values = torch.linalg.svdvals(orthogonalize(matrix))
        assert values.median() == pytest.approx(1.0, abs=0.1)
        assert values.max() < 1.25
        u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
        polar = u @ vt
        assert (orthogonalize(matrix) * polar).sum() / (polar * polar).sum() > 0.95


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.a = nn.Parameter(torch.randn(12, 6, generator=generator, dtype=torch.float64))
        self.b = nn.Parameter(torch.randn(12, 6, generator=generator, dtype=torch.float64))
        self.c = nn.Parameter(torch.randn(4, 9, generator=generator, dtype=torch.float64))
        self.v = nn.Parameter(torch.randn(5, generator=generator, dtype=torch.float64))


def optimizer_of(model: Toy) -> MuonAdamW:
    return MuonAdamW(
        model,
        [
            Group(("a", "b", "c"), muon=True, learning_rate=RATE, beta1=BETA, weight_decay=DECAY),
            Group(("v",), muon=False, learning_rate=0.1, beta1=0.8, beta2=0.95),
        ],
        product_dtype=torch.float64,
    )


def reference_polar(matrix: np.ndarray) -> np.ndarray:
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (np.sqrt((x**2).sum()) * 1.02 + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def gradient(name: str, step: int, shape: torch.Size) -> torch.Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(ord(name) * 100 + step), dtype=torch.float64
    )


def run(model: Toy, optimizer: MuonAdamW, steps: range) -> None:
    for step in steps:
        for name, parameter in model.named_parameters():
            parameter.grad = gradient(name, step, parameter.shape)
        optimizer.lr_multiplier = 1.0 - 0.1 * step
        optimizer.weight_decay_multiplier = 1.0 - 0.05 * step
        optimizer.step()


def test_matches_the_reference() -> None:
    model = Toy()
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    momentum = {name: np.zeros_like(w) for name, w in weights.items()}
    second = np.zeros(5)
    run(model, optimizer_of(model), range(6))
    for step in range(6):
        for name in "abc":
            grad = gradient(name, step, weights[name].shape).numpy()
            momentum[name] = BETA * momentum[name] + (1 - BETA) * grad
            direction = reference_polar((1 - BETA) * grad + BETA * momentum[name])
            rows, columns = grad.shape
            rate = RATE * (1.0 - 0.1 * step) * max(1, rows / columns) ** 0.5
            shrink = DECAY * (1.0 - 0.05 * step) * rate * weights[name] * (direction * weights[name] > 0)
            weights[name] = weights[name] - shrink - rate * direction
        grad = gradient("v", step, weights["v"].shape).numpy()
        momentum["v"] = 0.8 * momentum["v"] + 0.2 * grad
        second = 0.95 * second + 0.05 * grad**2
        corrected = momentum["v"] / (1 - 0.8 ** (step + 1))
        scale = np.sqrt(second / (1 - 0.95 ** (step + 1))) + 1e-10
        weights["v"] = weights["v"] - 0.1 * (1.0 - 0.1 * step) * corrected / scale
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(parameter.detach().numpy(), weights[name], rtol=1e-9, atol=1e-11)


def test_state_round_trip_is_exact() -> None:
    whole, halves = Toy(), Toy()
    run(whole, optimizer_of(whole), range(6))
    first = optimizer_of(halves)
    run(halves, first, range(3))
    saved = {key: value.clone() for key, value in first.named_state().items()}
    second = optimizer_of(halves)
    second.load_named_state(saved)
    run(halves, second, range(3, 6))
    for a, b in zip(whole.parameters(), halves.parameters(), strict=True):
        assert torch.equal(a, b)


def test_every_parameter_needs_one_group() -> None:
    model = Toy()
    with pytest.raises(ValueError, match="each parameter once"):
        MuonAdamW(model, [Group(("a", "b", "c"), muon=True, learning_rate=RATE)])
