"""Meshes: what they divide, which rows a host reads, and what is refused."""

import dataclasses
import types

import jax
import numpy as np
import pytest

from cpplm.core.errors import UserError
from cpplm.jax.mesh import (
    HostBatchSharder,
    batch_sharding,
    check_mesh,
    host_rows,
    layers_spec,
    mesh_sizes,
    put_on_mesh,
    rows_sharding,
    state_spec,
    weight_spec,
)
from cpplm.jax.param_stacking import abstract_params
from cpplm.model.config import ModelConfig
from cpplm.train.settings import MESH_AXES, JaxSettings
from tests.jax.devices import mesh_of

CONFIG = ModelConfig.nanochat(16, vocab_size=32768, num_kv_heads=4)


@pytest.mark.parametrize(
    ("text", "chips", "sizes"),
    [
        ("", 8, (8, 1, 1, 1)), ("fsdp=8", 8, (1, 8, 1, 1)), ("model=2", 8, (4, 1, 1, 2)),
        ("data=2,context=4", 8, (2, 1, 4, 1)), ("data=3", 8, (3, 1, 1, 1)),
        ("data=2, model=2", 4, (2, 1, 1, 2)),
    ],
)  # fmt: skip
def test_what_is_not_named_goes_to_data(text: str, chips: int, sizes: tuple[int, ...]) -> None:
    assert tuple(mesh_sizes(JaxSettings(mesh=text).axes(), chips).values()) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data=4,model=4", "asks for data 4 x model 4 = 16 chips, and there are 8"),
        ("model=3", "does not divide the 8 chips"),
        ("tensor=2", "is not an axis"), ("data", "is not an axis"), ("data=0", "is not an axis"),
        ("data=-2", "is not an axis"), ("data=2,data=4", "twice"), ("data=two", "is not an axis"),
    ],
)  # fmt: skip
def test_meshes_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        mesh_sizes(JaxSettings(mesh=text).axes(), 8)


def test_meshes_that_do_not_divide() -> None:
    narrow = dataclasses.replace(CONFIG, model_dim=3, mlp_ratio=3)
    for config, sizes, message in (
        (CONFIG, {"model": 3}, "attention heads"),
        (CONFIG, {"model": 8}, "key-value heads"),
        (narrow, {"model": 2}, "hidden units"),
        (CONFIG, {"context": 4}, "rows of 2046 tokens"),
    ):
        with pytest.raises(UserError, match=message):
            check_mesh({**dict.fromkeys(MESH_AXES, 1), **sizes}, config, [2046, 2048])


def test_where_weights_and_states_lie() -> None:
    mesh = mesh_of(data=2, fsdp=2, model=2)
    P = jax.sharding.PartitionSpec
    shapes = {name: shape.shape for name, shape in abstract_params(CONFIG).items()}
    found = {name: weight_spec(name, shape, mesh) for name, shape in shapes.items()}
    assert found["blocks.attention.query.weight"] == P(None, "model", "fsdp")
    assert found["blocks.attention.output.weight"] == P(None, "fsdp", "model")
    assert found["blocks.mlp.up.weight"] == P(None, "model", "fsdp")
    assert found["blocks.mlp.down.weight"] == P(None, "fsdp", "model")
    assert found["lm_head.weight"] == P("model", "fsdp")
    assert found["residual_scales"] == P()
    whole = mesh_of(data=8)
    assert weight_spec("lm_head.weight", shapes["lm_head.weight"], whole) == P(None, None)
    assert state_spec("lm_head.weight", shapes["lm_head.weight"], whole) == P("data", None)
    for name, shape in shapes.items():  # what it says can be done
        jax.sharding.NamedSharding(mesh, found[name]).shard_shape(shape)


@pytest.mark.parametrize(
    ("layers", "axes"), [(16, ("data", "model")), (4, ("data",)), (8, ("data", "model")), (6, ()), (1, ())]
)
def test_layers_are_dealt_evenly(layers: int, axes: tuple[str, ...]) -> None:
    P = jax.sharding.PartitionSpec
    assert layers_spec(layers, mesh_of(data=4, model=2)) == (P(axes) if axes else P())


@pytest.mark.parametrize(
    "named", [{}, {"data": 8}, {"data": 2, "fsdp": 2, "context": 2}, {"model": 4}], ids=str
)
def test_rows_there_and_back(named: dict[str, int]) -> None:
    mesh = mesh_of(**named)
    sharder = HostBatchSharder.of(mesh)
    rows = np.arange(8 * 6, dtype=np.int32).reshape(8, 6)
    sent = sharder.shard(rows, mesh)
    assert sent.sharding == batch_sharding(mesh)
    np.testing.assert_array_equal(np.asarray(sent), rows)
    computed = jax.jit(lambda x: 2 * x, out_shardings=rows_sharding(mesh))(sent)
    np.testing.assert_array_equal(host_rows(computed), 2 * rows)
    np.testing.assert_array_equal(np.asarray(put_on_mesh(rows, batch_sharding(mesh))), rows)


def on_hosts(processes: list[int], **named: int) -> jax.sharding.Mesh:
    """What a mesh over several hosts looks like; the first axes of the mesh go across them."""
    sizes = {axis: named.get(axis, 1) for axis in MESH_AXES}
    devices = np.array([types.SimpleNamespace(process_index=number) for number in processes], object)
    return types.SimpleNamespace(devices=devices.reshape(tuple(sizes.values())), shape=sizes)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("processes", "named", "sharder"),
    [
        ([0, 0, 1, 1], {"data": 4}, HostBatchSharder(4, 0, 2)),
        ([1, 1, 0, 0], {"data": 4}, HostBatchSharder(4, 1, 2)),
        ([0, 1, 0, 1], {"data": 2, "fsdp": 2}, HostBatchSharder(4, 0, 2)),
        ([0, 0, 1, 1], {"data": 1, "context": 4}, HostBatchSharder(1, 0, 1)),
        ([0, 0, 1, 1, 2, 2, 3, 3], {"data": 2, "model": 4}, HostBatchSharder(2, 0, 2)),
    ],
)
def test_which_rows_a_host_reads(
    processes: list[int], named: dict[str, int], sharder: HostBatchSharder
) -> None:
    assert HostBatchSharder.of(on_hosts(processes, **named)) == sharder


def test_hosts_that_share_some_rows_only_or_have_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="share some of their rows"):
        HostBatchSharder.of(on_hosts([0, 0, 0, 1, 1, 1], data=3, model=2))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UserError, match="leaves out all chips of 1 hosts"):
        HostBatchSharder.of(on_hosts([0, 0, 0, 0], data=4))
