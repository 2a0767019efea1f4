"""The chunked loss against float64, whatever the chunks, and on a mesh: each device its own."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import Mesh

from cpplm.jax.loss import cross_entropy
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from tests.jax.devices import mesh_of

VOCAB, PADDED, WIDTH = 70, 128, 16


def inputs(rows: int = 2, length: int = 24) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    hidden = random.standard_normal((rows, length, WIDTH)).astype(np.float32)
    weight = 3 * random.standard_normal((PADDED, WIDTH)).astype(np.float32)
    targets = random.integers(VOCAB, size=(rows, length)).astype(np.int32)
    targets[0, 3:7] = IGNORE_INDEX
    return hidden, weight, targets


def reference(
    hidden: np.ndarray, weight: np.ndarray, targets: np.ndarray, softcap: float
) -> list[np.ndarray]:
    """Loss, gradients of hidden states and weight, by torch in float64."""
    states, head = (torch.from_numpy(x).double().requires_grad_() for x in (hidden, weight))
    logits = softcap * torch.tanh(states @ head[:VOCAB].T / softcap)
    flat = torch.from_numpy(targets).long().flatten()
    loss = F.cross_entropy(logits.flatten(0, 1), flat, ignore_index=IGNORE_INDEX)
    loss.backward()
    return [loss.detach().numpy(), states.grad.numpy(), head.grad.numpy()]


@cache
def compiled(chunk: int, softcap: float, mesh: Mesh | None = None) -> tuple[Callable[..., Any], ...]:
    """The loss alone, and with gradients of hidden states and weight; compiled once for all targets."""

    def loss(hidden: jax.Array, weight: jax.Array, targets: jax.Array) -> jax.Array:
        return cross_entropy(
            hidden, weight, targets, vocab_size=VOCAB, softcap=softcap, chunk=chunk, mesh=mesh
        )

    return jax.jit(loss), jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def ours(
    hidden: np.ndarray,
    weight: np.ndarray,
    targets: np.ndarray,
    softcap: float,
    chunk: int,
    mesh: Mesh | None = None,
) -> list[np.ndarray]:
    value, gradients = compiled(chunk, softcap, mesh)[1](hidden, weight, targets)
    return [np.asarray(x) for x in (value, *gradients)]


@pytest.mark.parametrize(("chunk", "softcap"), [(7, 5.0), (1000, 15.0)])
def test_against_float64(chunk: int, softcap: float) -> None:
    hidden, weight, targets = inputs()
    found = ours(hidden, weight, targets, softcap, chunk)
    for one, other in zip(found, reference(hidden, weight, targets, softcap), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6 * np.abs(other).max())
    assert (found[2][VOCAB:] == 0).all()  # padding


@pytest.mark.parametrize("axes", [None, {"fsdp": 2, "context": 2, "model": 2}], ids=str)
def test_the_loss_alone_is_that_with_gradients(axes: dict[str, int] | None) -> None:
    """Which is computed in another way."""
    rows, chunk, softcap, mesh = (2, 7, 5.0, None) if axes is None else (8, 5, 15.0, mesh_of(**axes))
    hidden, weight, targets = inputs(rows)
    found = float(compiled(chunk, softcap, mesh)[0](hidden, weight, targets))
    expected = float(ours(hidden, weight, targets, softcap, chunk, mesh)[0])
    assert found == pytest.approx(expected, rel=1e-6)


def test_no_target_at_all() -> None:
    hidden, weight, targets = inputs()
    for found in ours(hidden, weight, np.full_like(targets, IGNORE_INDEX), 5.0, 7):
        assert (found == 0).all()


@pytest.mark.parametrize("axes", [{"data": 8}, {"fsdp": 2, "context": 2, "model": 2}], ids=str)
def test_on_meshes(axes: dict[str, int]) -> None:
    hidden, weight, targets = inputs(8, 24)
    found = ours(hidden, weight, targets, 15.0, 5, mesh=mesh_of(**axes))
    for one, other in zip(found, reference(hidden, weight, targets, 15.0), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6 * np.abs(other).max())


def test_chunks_stay_on_their_device() -> None:
    """Nothing is gathered, and what is summed over devices is summed once, not in each chunk."""
    mesh = mesh_of(data=2, context=4)
    hidden, weight, targets = inputs(8, 64)

    def loss(hidden: jax.Array, weight: jax.Array, targets: jax.Array) -> jax.Array:
        return cross_entropy(hidden, weight, targets, vocab_size=VOCAB, softcap=15.0, chunk=8, mesh=mesh)

    rows = jax.NamedSharding(mesh, jax.P("data", "context"))
    whole = jax.NamedSharding(mesh, jax.P())
    step = jax.jit(
        jax.value_and_grad(loss, argnums=(0, 1)),
        in_shardings=(rows, whole, rows),
        out_shardings=(whole, (rows, whole)),
    )
    program = step.lower(hidden, weight, targets).compile().as_text()
    assert "all-gather" not in program
    assert "all-to-all" not in program
    assert "collective-permute" not in program
    loops = re.findall(r"\bbody=%?([\w.-]+)", program)
    inside = [part for part in program.split("\n\n") if part.lstrip("%").startswith(tuple(loops))]
    assert len(loops) == len(inside) == 1
    assert " dot(" in inside[0]
    assert " all-reduce(" not in inside[0]
    assert " all-reduce(" in program
