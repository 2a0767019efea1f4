"""One training step as one compiled program: forward, backward, sums over several batches, optimizer.

Weights and state are donated: the new ones take the memory of the old. What changes from step to step (rates,
momentum, weight decay, weight of further tokens) comes as arrays, so nothing is ever compiled again; and the
program is compiled before the first step, for given shapes, so nothing can be.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cpplm.jax.engram import table_rows
from cpplm.jax.fake_quantize import round_params
from cpplm.jax.layers import Params, subtree
from cpplm.jax.mesh import batch_sharding, weight_spec
from cpplm.jax.model import TrainBatch, count_targets, loss
from cpplm.jax.optimizer import Optimizer, State
from cpplm.jax.param_stacking import abstract_params, partition_params
from cpplm.jax.settings import RunSettings
from cpplm.model.config import ModelConfig
from cpplm.model.quantized.recipe import Recipe
from cpplm.train.backend import StepPlan

Tokens = dict[str, jax.Array]
"""`inputs`, `targets` and perhaps `documents`, each BT, int32."""


@dataclass(frozen=True)
class TrainStep:
    """One training step, ready to be compiled for shapes of batches.

    Attributes:
        config: of the model.
        run: how it is computed.
        optimizer: by which rules it learns.
        mesh: of chips; one may be all of it.
        recipe: by which weights are rounded in each step; None where they are not.
    """

    config: ModelConfig
    run: RunSettings
    optimizer: Optimizer
    mesh: Mesh
    recipe: Recipe | None = None

    def weight_shardings(self) -> dict[str, NamedSharding]:
        """Shardings of all weights, the integers included."""
        return {
            name: NamedSharding(self.mesh, weight_spec(name, shape.shape, self.mesh))
            for name, shape in abstract_params(self.config, self.recipe).items()
        }

    def state_shardings(self) -> dict[str, NamedSharding]:
        """Shardings of the optimizer's state."""
        return {key: NamedSharding(self.mesh, spec) for key, spec in self.optimizer.state_specs().items()}

    def lower(self, rows: int, length: int, *, count: int = 1, documents: bool = False) -> Any:
        """The step for batches of one shape, ready to be compiled; no memory of a chip is needed.

        Args:
            rows: of one batch, on all chips together.
            length: tokens of a row.
            count: batches whose gradients are summed.
            documents: whether batches say which document each token belongs to.

        Returns:
            What `jax.jit(...).lower` gives. Compiled, it takes learning weights, constant weights, state,
            `count` `Tokens` in a tuple and a plan (see `plan_arrays`), and gives new learning weights, new
            state and an array: the losses of `StepLosses` in order, the gradient's norm last.
        """
        shardings = self.weight_shardings()
        weights = {
            name: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=shardings[name])
            for name, shape in abstract_params(self.config, self.recipe).items()
        }
        learning, constants = partition_params(weights)  # type: ignore[arg-type]
        of_state = self.state_shardings()
        state = {
            key: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=of_state[key])
            for key, shape in self.optimizer.state_shapes().items()
        }
        names = ("inputs", "targets", *(["documents"] if documents else []))
        tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32, sharding=batch_sharding(self.mesh))
        batches = tuple(dict.fromkeys(names, tokens) for _ in range(count))
        whole = NamedSharding(self.mesh, P())
        out = ({name: shardings[name] for name in learning}, of_state, whole)
        step = jax.jit(self._step, donate_argnums=(0, 2), out_shardings=out)
        with matmul_precision(self.run):
            return step.lower(learning, constants, state, batches, plan_arrays(NEUTRAL_PLAN))

    def _step(
        self,
        learning: Params,
        constants: Params,
        state: State,
        batches: tuple[Tokens, ...],
        plan: Mapping[str, jax.Array],
    ) -> tuple[Params, State, jax.Array]:
        rounded, pull_back = jax.vjp(lambda own: self.round(own, constants), learning)
        losses, of_rounded = self._gradients(rounded, constants, batches, plan)
        (gradients,) = pull_back(of_rounded)
        with jax.named_scope("optimizer"):
            squares = [jnp.sum(jnp.square(gradient)) for gradient in gradients.values()]
            touched = self._touched(rounded, constants, batches)
            learning, state = self.optimizer.update(learning, gradients, state, plan, touched)
        return learning, state, jnp.concatenate([losses, jnp.sqrt(sum(squares))[None]])

    def round(self, learning: Params, constants: Params) -> Params:
        """The weights that learn as passes read them (`round_params`)."""
        return round_params(learning, constants, self.config, self.recipe)

    def _gradients(
        self, learning: Params, constants: Params, batches: tuple[Tokens, ...], plan: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, Params]:
        """Means over the batches: losses, shape (4,), and gradients."""
        scheduled = {key: plan[key] for key in ("multi_token_weight", "dense_attention")}
        mesh = self.mesh if self.mesh.size > 1 else None

        def total(learning: Params, tokens: Tokens) -> tuple[jax.Array, jax.Array]:
            batch: TrainBatch = {**tokens, **scheduled}  # type: ignore[typeddict-item]
            value, parts = loss({**learning, **constants}, batch, self.config, self.run, mesh=mesh)
            return value, jnp.stack([value, parts["next_token"], parts["multi_token"], parts["indexer"]])

        gradient = jax.grad(total, has_aux=True)
        if len(batches) == 1:
            gradients, losses = gradient(learning, batches[0])
            return losses, gradients

        counts = [count_targets(tokens["targets"], self.config) for tokens in batches]
        mean = jnp.maximum(sum(counts) / len(batches), 1e-9)
        batches = tuple(
            {**tokens, "target_shares": each / mean} for tokens, each in zip(batches, counts, strict=True)
        )

        def add(sums: Any, tokens: Tokens) -> tuple[Any, None]:
            return jax.tree.map(lambda a, b: a + b / len(batches), sums, gradient(learning, tokens)), None

        start = (jax.tree.map(jnp.zeros_like, learning), jnp.zeros(4))
        stacked = jax.tree.map(lambda *each: jnp.stack(each), *batches)
        (gradients, losses), _ = jax.lax.scan(add, start, stacked)
        return losses, gradients

    def _touched(
        self, learning: Params, constants: Params, batches: tuple[Tokens, ...]
    ) -> dict[str, jax.Array]:
        """The rows of each n-gram table that the batches read."""
        engram = self.config.engram
        if engram is None or engram.kind != "memory":
            return {}
        own, found = subtree(constants, "blocks.engram."), {}
        for index, layer in enumerate(sorted(engram.layers)):
            name = f"blocks.{layer}.engram.table.weight"
            hashes = {key: array[index] for key, array in own.items()}
            rows = jnp.zeros(learning[name].shape[0], bool)
            for tokens in batches:
                rows = rows.at[table_rows(hashes, tokens["inputs"], tokens.get("documents")).reshape(-1)].set(
                    True
                )
            found[name] = rows
        return found


NEUTRAL_PLAN = StepPlan(
    learning_rate=1.0, weight_decay=1.0, momentum=0.95, multi_token_weight=0.0, dense_attention=False
)


def plan_arrays(plan: StepPlan) -> dict[str, Any]:
    """The plan as the compiled step takes it."""
    return {
        "learning_rate": np.float32(plan.learning_rate),
        "weight_decay": np.float32(plan.weight_decay),
        "momentum": np.float32(plan.momentum),
        "multi_token_weight": np.float32(plan.multi_token_weight),
        "dense_attention": np.bool_(plan.dense_attention),
    }


def matmul_precision(run: RunSettings) -> AbstractContextManager[Any]:
    """float32 products in float32: a TPU would else round their factors to bfloat16."""
    return jax.default_matmul_precision("highest") if run.compute_dtype == "float32" else nullcontext()
