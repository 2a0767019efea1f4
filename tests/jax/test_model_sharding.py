"""Losses and gradients of the whole model on meshes of eight devices are those of one."""

import pytest

from tests.jax.devices import mesh_of
from tests.jax.twins import EXACT, TWINS, assert_twins, by_jax, checkpoint, make_batch, torch_model

MESHES = [{"data": 8}, {"fsdp": 8}, {"data": 4, "model": 2}, {"data": 2, "fsdp": 2, "model": 2},
          {"data": 2, "context": 4}, {"data": 1, "fsdp": 2, "context": 2, "model": 2}]  # fmt: skip


@pytest.mark.parametrize("axes", MESHES, ids=str)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("plain", "all", "all, local")],
)
def test_meshes(name: str, axes: dict[str, int]) -> None:
    config = TWINS[name]
    named, batch = checkpoint(torch_model(config)), make_batch(config, 8, 16, documents=True)
    alone = by_jax(named, batch, config)
    assert_twins(by_jax(named, batch, config, EXACT, mesh_of(**axes)), alone)
