"""Steps of the PyTorch train_module and of the JAX one, from the same weights, over the same batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh

from cpplm.dataloader.loader import Batch
from cpplm.dataloader.loader_state import LoaderState
from cpplm.jax.mesh import HostBatchSharder, make_mesh
from cpplm.jax.optimizer import Optimizer
from cpplm.jax.param_stacking import stack_params
from cpplm.jax.settings import RunSettings
from cpplm.jax.step import TrainStep
from cpplm.jax.train_module import JaxTrainModule
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_optimizer
from cpplm.optim.schedules import LearningRates
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from cpplm.train.backend import StepLosses, StepPlan, TrainModule
from cpplm.train.distributed import SINGLE_PROCESS
from cpplm.train.torch_backend import TorchTrainModule

RATES = LearningRates(matrix_lr=0.05, embedding_lr=0.2, unembedding_lr=0.02, scalar_lr=0.2)
BATCH_TOKENS = 2**12
EXACT = RunSettings(compute_dtype="float32", loss_chunk=16, sparse_block=8)


def torch_module(model: Transformer) -> TorchTrainModule:
    optimizer = build_optimizer(model, RATES, batch_tokens=BATCH_TOKENS)
    return TorchTrainModule(model, optimizer, model.training_losses, SINGLE_PROCESS)


def jax_module(
    named: dict[str, np.ndarray],
    config: ModelConfig,
    batches: Sequence[Batch],
    *,
    count: int = 1,
    state: dict[str, np.ndarray] | None = None,
    run: RunSettings = EXACT,
    **axes: int,
) -> JaxTrainModule:
    """On a mesh of these axes, compiled for such batches, `count` of which make a step."""
    sizes = {name: axes.get(name, 1) for name in ("data", "fsdp", "context", "model")}
    mesh = make_mesh(sizes, jax.devices("cpu"))
    optimizer = optimizer_of(config, mesh)
    step = TrainStep(config, run, optimizer, mesh)
    stacked = optimizer.stack_state(state or {})
    train_module = JaxTrainModule(step, HostBatchSharder.of(mesh), stack_params(named, config), stacked)
    rows, length = batches[0].inputs.shape
    train_module.compile(rows, length, count=count, documents=batches[0].documents is not None)
    return train_module


def optimizer_of(config: ModelConfig, mesh: Mesh) -> Optimizer:
    return Optimizer.of(
        config,
        RATES,
        batch_tokens=BATCH_TOKENS,
        budget=None,
        product_dtype=jnp.dtype("float32"),
        mesh=mesh,
    )


def make_batches(
    config: ModelConfig, number: int, rows: int, length: int, *, documents: bool = False
) -> list[Batch]:
    """With some targets that do not count, and perhaps two documents in each row."""
    chance = torch.Generator().manual_seed(5)
    batches = []
    for _ in range(number):
        ids = torch.randint(config.vocab_size, (rows, length + 1), generator=chance)
        inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].clone()
        targets[0, length // 2] = targets[-1, -1] = IGNORE_INDEX
        names_BT = (torch.arange(length) >= torch.arange(1, rows + 1)[:, None]).long()
        batches.append(Batch(inputs, targets, LoaderState(), names_BT if documents else None))
    return batches


def plan(step: int) -> StepPlan:
    """Another one at every step."""
    return StepPlan(
        learning_rate=1.0 - 0.1 * step,
        weight_decay=1.0 - 0.05 * step,
        momentum=0.85 + 0.02 * step,
        multi_token_weight=0.3 / (1 + step),
        dense_attention=step < 2,
    )


def train(
    train_module: TrainModule, batches: Sequence[Batch], *, count: int = 1, first: int = 0
) -> list[StepLosses]:
    """Steps, of `count` batches each, until there are no more batches."""
    source, losses = iter(batches), []
    for step in range(len(batches) // count):
        taken = (next(source) for _ in range(count))
        losses.append(train_module.step(taken, count, plan(first + step)))
    return losses


def numpy_state(train_module: TrainModule) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A copy of weights and optimizer state, by the names of checkpoints."""
    weights, state = train_module.state()
    return (
        {k: v.numpy().copy() for k, v in weights.items()},
        {k: v.numpy().copy() for k, v in state.items()},
    )


def assert_close(found: list[StepLosses], expected: list[StepLosses], *, relative: float) -> None:
    """Losses; and ten times less closely the norm of the gradient, a sum over all elements."""
    for ours, theirs in zip(found, expected, strict=True):
        *losses, norm = dataclasses.astuple(ours)
        *their_losses, their_norm = dataclasses.astuple(theirs)
        np.testing.assert_allclose(losses, their_losses, rtol=relative, atol=1e-7)
        np.testing.assert_allclose(norm, their_norm, rtol=10 * relative)
