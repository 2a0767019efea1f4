"""Whole training steps against PyTorch's, on meshes, and compiled once."""

import dataclasses
import functools
import re
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax.sharding import NamedSharding, PartitionSpec

from cpplm.dataloader.loader import Batch
from cpplm.jax import mesh
from cpplm.jax.mesh import make_mesh
from cpplm.jax.step import TrainStep
from cpplm.jax.train_module import JaxTrainModule, to_device
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.train.backend import StepLosses
from cpplm.train.settings import MESH_AXES
from tests.jax.training import (
    EXACT,
    assert_close,
    jax_module,
    make_batches,
    numpy_state,
    optimizer_of,
    plan,
    torch_module,
    train,
)
from tests.jax.twins import TWINS, checkpoint, torch_model

Arrays = dict[str, np.ndarray]


def pair(name: str) -> tuple[Transformer, Arrays]:
    model = torch_model(TWINS[name])
    return model, {key: array.copy() for key, array in checkpoint(model).items()}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("swiglu", 2), ("all", 1)])
def test_five_steps_are_those_of_torch(name: str, count: int) -> None:
    model, named = pair(name)
    batches = make_batches(TWINS[name], 5 * count, 8, 16, documents=name == "all")
    ours = jax_module(named, TWINS[name], batches, count=count)
    theirs = torch_module(model)
    assert_close(train(ours, batches, count=count), train(theirs, batches, count=count), relative=1e-4)
    (weights, state), (their_weights, their_state) = numpy_state(ours), numpy_state(theirs)
    assert list(weights) == list(their_weights)
    assert set(state) == set(their_state)
    for key, array in their_weights.items():
        assert weights[key].dtype == array.dtype
    other_weights, other_state = by_torch_from_rounded_weights(name, batches, count)
    assert_near(weights, their_weights, other_weights)
    assert_near(state, their_state, other_state)


def by_torch_from_rounded_weights(name: str, batches: list[Batch], count: int) -> tuple[Arrays, Arrays]:
    """Weights and state of PyTorch, had each weight been off by one rounding to begin with."""
    model, _ = pair(name)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            signs = 2 * torch.randint(2, weight.shape, generator=generator) - 1
            weight.mul_(1 + torch.finfo(torch.float32).eps * signs)
    train_module = torch_module(model)
    train(train_module, batches, count=count)
    return numpy_state(train_module)


def assert_near(found: Arrays, expected: Arrays, other: Arrays) -> None:
    """To 1e-2 in norm, or as near as PyTorch comes to itself.

    That is less closely than losses: what is next to nothing, an element for AdamW, a singular value for
    Muon, becomes as large as all else, and so does its rounding. One element of a thousand may. Gradients of
    single scales are sums that cancel: on some processors they differ by 3e-3 after five steps.
    """
    for key, array in expected.items():
        allowed = max(1e-2 * (np.linalg.norm(array) + 1e-12), 4 * distance(other[key], array))
        assert distance(found[key], array) <= allowed, key


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Euclidean, but for the farthest element of each thousand."""
    squares = np.sort(np.square(one.astype(np.float64) - other), axis=None)
    return float(np.sqrt(squares[: one.size - one.size // 1000].sum()))


@pytest.fixture
def divide_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small weights and states, too."""
    monkeypatch.setattr(mesh, "MIN_SHARDED_SIZE", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("divide_all")
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("plain", {"data": 2, "context": 4}),
        ("plain", {"data": 2, "model": 4}),
        ("plain", {"fsdp": 8}),
        ("all", {"fsdp": 2, "context": 2, "model": 2}),
    ],
    ids=str,
)
def test_every_mesh_gives_the_losses_of_one_device(name: str, axes: dict[str, int]) -> None:
    config, named, batches, single, token_losses = on_one_device(name)
    train_module = jax_module(named, config, batches, **axes)
    assert_divided(train_module, batches[0], axes)
    np.testing.assert_allclose(validate(train_module, batches[0]), token_losses, rtol=1e-4, atol=1e-5)
    assert_close(train(train_module, batches), single, relative=1e-5)


@functools.cache
def on_one_device(
    name: str,
) -> tuple[ModelConfig, Arrays, list[Batch], list[StepLosses], np.ndarray]:
    """A model, its weights, batches, and what a mesh is compared with."""
    config = TWINS[name]
    if name == "plain":  # heads enough to divide
        config = dataclasses.replace(config, num_kv_heads=config.num_heads)
    named = {key: array.copy() for key, array in checkpoint(torch_model(config)).items()}
    batches = make_batches(config, 5, 8, 16, documents=name == "all")
    train_module = jax_module(named, config, batches)
    token_losses = validate(train_module, batches[0])
    return config, named, batches, train(train_module, batches), token_losses


def validate(train_module: JaxTrainModule, batch: Batch) -> np.ndarray:
    return train_module.loss(batch.inputs, batch.targets).numpy()


def assert_divided(train_module: JaxTrainModule, batch: Batch, axes: dict[str, int]) -> None:
    """On every axis something is divided: otherwise the comparison would show nothing."""
    arrays = [*train_module._learning.values(), *train_module._state.values()]
    arrays += to_device(batch, train_module._sharder, train_module._step.mesh).tokens.values()
    specs = [part for array in arrays for part in array.sharding.spec]
    divided = {axis for part in specs for axis in (part if isinstance(part, tuple) else (part,))}
    assert divided >= set(axes)


@pytest.mark.slow
def test_a_trace_can_be_read() -> None:
    """The names that docs/tpu.md lists are in the program."""
    config, mesh = TWINS["all"], make_mesh(dict.fromkeys(MESH_AXES, 1), jax.devices("cpu"))
    step = TrainStep(config, EXACT, optimizer_of(config, mesh), mesh)
    text = step.lower(2, 16).as_text(debug_info=True)
    for name in ("embedding", "engram_tables", "attention", "mlp", "lm_head", "multi_token_0", "optimizer",
                 "muon", "adamw"):  # fmt: skip
        assert re.search(rf'[(/]{name}[)/"]', text), name


@pytest.mark.slow
def test_many_steps_are_compiled_once_and_donate_their_memory() -> None:
    """Each with other rates, momentum and weights; XLA counts what it compiles."""
    _, named = pair("plain")
    batches = make_batches(TWINS["plain"], 4, 2, 16)
    compiled: list[str] = []

    def count(event: str, duration: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        train_module = jax_module(named, TWINS["plain"], batches)
        first = [*train_module._learning.values(), *train_module._state.values()]
        assert compiled
        compiled.clear()
        for step in range(20):
            changing = dataclasses.replace(
                plan(step % 5), learning_rate=0.01 / (1 + step), momentum=0.8 + step / 200
            )
            train_module.step(iter(batches[step % 4 : step % 4 + 1]), 1, changing)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert not compiled
    assert all(array.is_deleted() for array in first)  # no second copy of weights and state outlives a step


@pytest.mark.slow
def test_the_products_of_muon_are_divided_among_the_chips() -> None:
    """As XLA counts the operations of one chip; every chip else orthogonalises every matrix."""
    config = dataclasses.replace(TWINS["plain"], num_layers=8, model_dim=128)
    alone, together = (operations_of_an_update(config, chips) for chips in (1, 8))
    assert together < alone / 6


def operations_of_an_update(config: ModelConfig, chips: int) -> float:
    made = make_mesh({**dict.fromkeys(MESH_AXES, 1), "data": chips}, jax.devices("cpu"))
    optimizer = optimizer_of(config, made)
    whole = NamedSharding(made, PartitionSpec())
    weights = {
        name: jax.ShapeDtypeStruct(shape, np.float32, sharding=whole)
        for name, shape in optimizer.shapes.items()
    }
    specs = optimizer.state_specs()
    state = {
        key: jax.ShapeDtypeStruct(shape, np.float32, sharding=NamedSharding(made, specs[key]))
        for key, shape in optimizer.state_shapes().items()
    }
    rates = {key: np.float32(1) for key in ("learning_rate", "weight_decay", "momentum")}
    update = jax.jit(lambda *arguments: optimizer.update(*arguments, {}))
    return float(update.lower(weights, weights, state, rates).compile().cost_analysis()["flops"])
