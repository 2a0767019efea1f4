"""`cpplm.optim` in JAX: Muon for matrices, AdamW for everything else, with the same rules and the same state.

optax has neither: its Muon corrects the momentum's bias and moves elsewhere by five to ten per cent in the
first steps, its AdamW keeps one count of steps for all weights and has no rows that stay untouched.

State is addressed as in a checkpoint, "name/kind", with the names of the JAX model: the states of stacked
weights are stacked. A checkpoint's is that of `cpplm.optim`: a run may go on with the other library. On a
mesh the matrices of a stack are dealt to the chips for Muon's products (five iterations of three products
each, which every chip would else repeat), and so is their momentum.

Shapes: L matrices of a stack, R rows, C columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from cpplm.core.errors import UserError
from cpplm.jax.layers import Params
from cpplm.jax.mesh import layers_spec, state_spec, weight_spec
from cpplm.jax.param_stacking import (
    abstract_params,
    checkpoint_names,
    checkpoint_shapes,
    is_stacked,
    partition_params,
)
from cpplm.model.config import ModelConfig
from cpplm.model.quantized.layers import plain_name
from cpplm.model.quantized.recipe import Recipe
from cpplm.optim.buckets import ParamGroup
from cpplm.optim.groups import param_groups
from cpplm.optim.schedules import LearningRates
from cpplm.optim.update_rules import POLAR_EXPRESS

State = dict[str, jax.Array]
EPSILON = 1e-10  # AdamW's, as in cpplm.optim.update_rules


@dataclass(frozen=True)
class Optimizer:
    """The rule by which each weight learns, and its rate; made by `Optimizer.of`.

    Attributes:
        groups: for each weight of the JAX model that learns.
        shapes: likewise.
        members: likewise, its names in a checkpoint, in order of their layers.
        product_dtype: of Muon's products.
        mesh: of chips.
    """

    groups: Mapping[str, ParamGroup]
    shapes: Mapping[str, tuple[int, ...]]
    members: Mapping[str, list[str]]
    product_dtype: jnp.dtype
    mesh: Mesh

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        rates: LearningRates,
        *,
        batch_tokens: int,
        budget: float | None,
        product_dtype: jnp.dtype,
        mesh: Mesh,
        recipe: Recipe | None = None,
        scale_lr: float = 0.0,
    ) -> Optimizer:
        """For a model, quantised by a recipe or not; other arguments are those of `param_groups`.

        Raises:
            UserError: weight decay follows a budget that is not known.
        """
        whole = abstract_params(config, recipe)
        learning, _ = partition_params(whole)  # type: ignore[arg-type]
        names = {
            stacked: those
            for stacked, those in checkpoint_names(checkpoint_shapes(config, recipe)).items()
            if stacked in learning
        }
        groups = param_groups(
            (name for those in names.values() for name in those),
            config,
            rates,
            batch_tokens=batch_tokens,
            budget=budget,
            scale_lr=scale_lr,
        )
        by_name = {name: group for group in groups for name in group.names}
        return cls(
            {stacked: by_name[those[0]] for stacked, those in names.items()},
            {stacked: whole[stacked].shape for stacked in names},
            names,
            product_dtype,
            mesh,
        )

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all state, float32, by "name/kind"."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, group in self.groups.items():
            shape = self.shapes[name]
            if not group.muon:
                shapes[f"{name}/step"] = shape[:1] if is_stacked(name) else ()
                shapes |= {f"{name}/{kind}": shape for kind in ("first_moment", "second_moment")}
                continue
            shapes[f"{name}/momentum"] = shape
            if group.beta2 is not None:
                *front, rows, columns = shape
                shapes[f"{name}/second_moment"] = (*front, *((rows, 1) if rows >= columns else (1, columns)))
        return shapes

    def state_specs(self) -> dict[str, P]:
        """Partitions of the state on the mesh."""
        specs: dict[str, P] = {}
        for key, shape in self.state_shapes().items():
            name, _, kind = key.rpartition("/")
            if kind == "step" or not shape:
                specs[key] = P()
            elif self.groups[name].muon and is_stacked(name):
                dealt = layers_spec(shape[0], self.mesh)
                specs[key] = (
                    dealt if dealt != P() or kind != "momentum" else weight_spec(name, shape, self.mesh)
                )
            elif self.groups[name].muon and kind == "second_moment":
                specs[key] = P()
            else:
                specs[key] = state_spec(name, shape, self.mesh)
        return specs

    def stack_state(self, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The state of a checkpoint, in the memory of the host; zeros, as before the first step, for none.

        Args:
            named: by "parameter/kind"; all of it, or nothing, or without NorMuon's second moments.

        Raises:
            UserError: it is another model's.
        """
        known = {name for names in self.members.values() for name in names}
        if named and {key.rpartition("/")[0] for key in named} != known:
            raise UserError(
                "the optimizer state is not that of these parameters", fix="It is another model's."
            )
        stacks = {}
        for key, shape in self.state_shapes().items():
            stacked, _, kind = key.rpartition("/")
            arrays = [named[f"{name}/{kind}"] for name in self.members[stacked] if f"{name}/{kind}" in named]
            if not arrays and (not named or (self.groups[stacked].muon and kind == "second_moment")):
                stacks[key] = np.zeros(shape, np.float32)
                continue
            member = shape[1:] if is_stacked(stacked) else shape
            if [array.shape for array in arrays] != [member] * len(self.members[stacked]):
                raise UserError(
                    f"the optimizer state has no {key} of this parameter's shape",
                    fix="It is another model's.",
                )
            stacks[key] = np.stack(arrays) if is_stacked(stacked) else arrays[0]
        return stacks

    def state_members(self) -> dict[str, list[str]]:
        """For each key of the state, the checkpoint's keys, in order of their layers."""
        keys = {}
        for key in self.state_shapes():
            stacked, _, kind = key.rpartition("/")
            keys[key] = [f"{name}/{kind}" for name in self.members[stacked]]
        return keys

    def update(
        self,
        weights: Params,
        gradients: Params,
        state: State,
        plan: Mapping[str, jax.Array],
        touched: Mapping[str, jax.Array],
    ) -> tuple[Params, State]:
        """One step.

        Args:
            weights: those that learn.
            gradients: of all of them.
            state: as `state_shapes` lists it.
            plan: "learning_rate", "weight_decay" and "momentum", scalars.
            touched: for tables of which a batch reads few rows: which, shape (rows,), by the name of the
                plain weight. The others, and their moments, stay as they are.

        Returns:
            New weights and state.
        """
        new_weights: Params = {}
        new_state: State = {}
        for name, group in self.groups.items():
            prefix = f"{name}/"
            own = {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
            with jax.named_scope("muon" if group.muon else "adamw"):
                if group.muon:
                    changed = self._muon(name, weights[name], gradients[name], own, plan)
                else:
                    rows = touched.get(plain_name(name))
                    changed = _adamw(group, weights[name], gradients[name], own, plan, rows)
            new_weights[name] = changed[0]
            new_state |= {prefix + kind: value for kind, value in changed[1].items()}
        return new_weights, new_state

    def _muon(
        self, name: str, weight: jax.Array, gradient: jax.Array, state: State, plan: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, State]:
        group, new = self.groups[name], {}
        beta = plan["momentum"]
        gradient = self._distribute(name, gradient)
        momentum = self._distribute(name, state["momentum"])
        new["momentum"] = momentum = momentum + (1 - beta) * (gradient - momentum)
        update = gradient + beta * (momentum - gradient)  # Nesterov's
        direction = orthogonalize(update.astype(self.product_dtype)).astype(update.dtype)
        if group.beta2 is not None:
            direction, new["second_moment"] = normalize_variance(
                direction, state["second_moment"], group.beta2
            )
        rows, columns = weight.shape[-2:]
        rate = group.learning_rate * plan["learning_rate"] * max(1.0, rows / columns) ** 0.5
        decay = group.weight_decay * plan["weight_decay"] * rate
        weight = jnp.where(direction * weight > 0, weight - decay * weight, weight)  # cautious
        return weight - rate * direction, new

    def _distribute(self, name: str, matrices: jax.Array) -> jax.Array:
        """The matrices of a stack, whole ones, on as many chips as there are."""
        if self.mesh.size == 1 or not is_stacked(name):
            return matrices
        axes = layers_spec(matrices.shape[0], self.mesh)
        if axes == P():  # unevenly, which costs nothing more: the last chips have none
            axes = P(tuple(axis for axis in self.mesh.axis_names if self.mesh.shape[axis] > 1))
        return jax.lax.with_sharding_constraint(matrices, NamedSharding(self.mesh, axes))


def orthogonalize(matrices_LRC: jax.Array) -> jax.Array:
    """Polar factors, as in `cpplm.optim.update_rules`; any number of dimensions in front, float32 norms."""
    rows, columns = matrices_LRC.shape[-2:]
    norms = jnp.linalg.norm(matrices_LRC.astype(jnp.float32), axis=(-2, -1), keepdims=True)
    x = (matrices_LRC / (norms * 1.02 + 1e-6)).astype(matrices_LRC.dtype)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.mT if rows <= columns else x.mT @ x
        factor = b * gram + c * (gram @ gram)
        x = a * x + (factor @ x if rows <= columns else x @ factor)
    return x


def normalize_variance(
    directions_LRC: jax.Array, second_moment: jax.Array, beta2: float
) -> tuple[jax.Array, jax.Array]:
    """NorMuon's normalization, as in `cpplm.optim.update_rules`; gives the new second moment, too."""
    axis = -1 if directions_LRC.shape[-2] >= directions_LRC.shape[-1] else -2
    mean_square = jnp.mean(jnp.square(directions_LRC), axis=axis, keepdims=True)
    second_moment = second_moment + (1 - beta2) * (mean_square - second_moment)
    inverse = 1 / jnp.maximum(second_moment, 1e-10)
    before = mean_square.sum(axis=(-2, -1), keepdims=True)
    after = (mean_square * inverse).sum(axis=(-2, -1), keepdims=True)
    return directions_LRC * jnp.sqrt(inverse * before / jnp.maximum(after, 1e-10)), second_moment


def _adamw(
    group: ParamGroup,
    weight: jax.Array,
    gradient: jax.Array,
    state: State,
    plan: Mapping[str, jax.Array],
    touched: jax.Array | None,
) -> tuple[jax.Array, State]:
    """One step of `adamw_` and `adamw_rows_` of `cpplm.optim.update_rules`."""
    assert group.beta2 is not None  # noqa: S101  (ParamGroup checked)
    rate = group.learning_rate * plan["learning_rate"]
    step = state["step"] + 1
    first = state["first_moment"] + (1 - group.beta1) * (gradient - state["first_moment"])
    second = group.beta2 * state["second_moment"] + (1 - group.beta2) * jnp.square(gradient)
    each = step.reshape(*step.shape, *[1] * (weight.ndim - step.ndim))  # of a stack, each its own
    denominator = jnp.sqrt(second) / jnp.sqrt(1 - group.beta2**each) + EPSILON
    kept = weight - weight * rate * group.weight_decay * plan["weight_decay"]
    moved = kept - rate / (1 - group.beta1**each) * first / denominator
    if touched is not None:
        rows = touched.reshape(-1, *[1] * (weight.ndim - 1))
        moved = jnp.where(rows, moved, weight)
        first = jnp.where(rows, first, state["first_moment"])
        second = jnp.where(rows, second, state["second_moment"])
    return moved, {"step": step, "first_moment": first, "second_moment": second}
