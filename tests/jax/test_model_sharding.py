"""Losses and gradients of the whole model on meshes of eight devices are those of one."""

import dataclasses
import functools
from typing import Any

import pytest

from tests.jax.devices import mesh_of
from tests.jax.twins import (
    EXACT,
    TWINS,
    Found,
    assert_twins,
    by_jax,
    checkpoint,
    make_batch,
    torch_model,
)

MIXED = {"data": 1, "fsdp": 2, "context": 2, "model": 2}
CONFIGS = {name: dataclasses.replace(TWINS[name], num_layers=4) for name in ("plain", "all", "all, local")}


@functools.cache
def alone(name: str) -> tuple[dict[str, Any], dict[str, Any], Found]:
    """Weights, a batch, and what one device makes of them."""
    config = CONFIGS[name]
    named, batch = checkpoint(torch_model(config)), make_batch(config, 8, 16, documents=True)
    return named, batch, by_jax(named, batch, config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "axes"),
    [("plain", {"data": 4, "model": 2}), ("all", MIXED), ("all, local", {"data": 2, "context": 4})],
    ids=str,
)
def test_meshes(name: str, axes: dict[str, int]) -> None:
    named, batch, expected = alone(name)
    assert_twins(by_jax(named, batch, CONFIGS[name], EXACT, mesh_of(**axes)), expected)
