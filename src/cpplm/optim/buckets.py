"""Parameter buckets: communication, sharded state and update of parameters that step together.

A step takes each bucket through three phases: `reduce_gradients` launches the averaging of gradients over the
ranks, `update` computes new values and launches their exchange, `gather_parameters` puts them into place.
While one bucket computes, the messages of others travel. Every rank has the same buckets in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from typing_extensions import override

from cpplm.optim.collectives import Collectives, Handle
from cpplm.optim.update_rules import (
    adamw_,
    adamw_rows_,
    cautious_step_,
    normalize_variance,
    orthogonalize,
    variance_like,
)

SHARDED_FROM = 2**16  # elements; below, a parameter's update costs less than another message

StateLayout = Literal["replicated", "rows", "matrices"]
"""One kind of state on the ranks: whole on each; of each parameter, each rank's rows; or each rank's
parameters, whole."""


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that share their rates. `muon` says by which of the two rules they learn."""

    names: tuple[str, ...]
    muon: bool
    learning_rate: float
    beta1: float = 0.95
    """Momentum (Muon) or decay of the first moment (AdamW)."""
    beta2: float | None = None
    """Decay of the second moment: AdamW needs one; Muon with one is NorMuon, without is plain."""
    weight_decay: float = 0.0
    """Per step and unit of learning rate; cautious for Muon, of every element for AdamW."""

    def __post_init__(self) -> None:
        if not self.muon and self.beta2 is None:
            raise ValueError(f"AdamW needs a beta2: {self.names}")


@dataclass(frozen=True)
class StepRates:
    """Multipliers of all groups' rates in one step, and Muon's momentum (None: each group's own)."""

    learning_rate: float = 1.0
    weight_decay: float = 1.0
    momentum: float | None = None


class ParamBucket(ABC):
    """Some parameters of one group, by name in order."""

    def __init__(
        self,
        group: ParamGroup,
        parameters: dict[str, nn.Parameter],
        comm: Collectives,
        states: MutableMapping[Any, dict[str, Tensor]],
        product_dtype: torch.dtype,
    ) -> None:
        """`states` is the optimizer's: this rank's tensors by parameter."""
        self.group = group
        self.parameters = parameters
        self.comm = comm
        self.product_dtype = product_dtype
        self._states = states
        self._handle: Handle | None = None  # of the messages of the phase before
        self._names: list[str] = []  # parameters of this step
        self._rates = StepRates()

    # ---- one step --------------------------------------------------------------------------------------

    def reduce_gradients(self, rates: StepRates) -> None:
        """Phase 1: launch the averaging of the gradients that there are over the ranks."""
        self._names = [name for name, parameter in self.parameters.items() if parameter.grad is not None]
        self._rates = rates
        self._handle = self._launch_reduce()

    @abstractmethod
    def _launch_reduce(self) -> Handle | None: ...

    @abstractmethod
    def update(self) -> Tensor:
        """Phase 2: wait for phase 1, compute, launch the exchange of the results.

        Returns:
            The squared norm of this rank's part of the gradient.
        """

    @abstractmethod
    def gather_parameters(self) -> None:
        """Phase 3: wait for phase 2 and write the results into the parameters."""

    def _received(self) -> Tensor:
        handle, self._handle = self._handle, None
        assert handle is not None  # noqa: S101  (the phase before launched it)
        return handle()

    def _value(self, name: str) -> Tensor:
        return local(self.parameters[name].detach())

    def _gradient(self, name: str) -> Tensor:
        gradient = self.parameters[name].grad
        assert gradient is not None  # noqa: S101  (`names` of the step have one)
        return local(gradient)

    # ---- state -----------------------------------------------------------------------------------------

    @abstractmethod
    def state_shapes(self, name: str) -> dict[str, torch.Size]:
        """The kinds of state of one parameter, and their full shapes."""

    @abstractmethod
    def layout(self, key: str) -> StateLayout:
        """The layout of one kind of state."""

    @property
    def owned(self) -> list[str]:
        """The parameters of which this rank has what is laid out by matrices."""
        return list(self.parameters)[self.comm.local_slice(len(self.parameters))]

    def state(self, name: str) -> dict[str, Tensor]:
        """This rank's state of a parameter, zeros before the first step; empty when it has none."""
        state = self._states[self.parameters[name]]
        if not state:
            for key, shape in self.state_shapes(name).items():
                if self.layout(key) == "matrices" and name not in self.owned:
                    continue
                full = self._value(name).new_empty(1, dtype=torch.float32 if key == "step" else None)
                state[key] = torch.zeros_like(self.shard_state(key, full[0].expand(shape))).contiguous()
        return state

    def gather_state(self, key: str) -> list[Tensor]:
        """One kind of state of all parameters, in full. All ranks must call it, and get it."""
        layout = self.layout(key)
        if layout == "rows":
            sizes = {name: len(parameter) for name, parameter in self.parameters.items()}
            return [self.comm.all_gather(self.state(name)[key], rows)() for name, rows in sizes.items()]
        if layout == "replicated" or self.comm.world_size == 1:
            return [self.state(name)[key] for name in self.parameters]
        name = next(iter(self.parameters))
        nothing = self._value(name).new_zeros((0, *self.state_shapes(name)[key]))
        owned = [self.state(name)[key] for name in self.owned]
        return list(self.comm.all_gather(torch.stack(owned) if owned else nothing, len(self.parameters))())

    def shard_state(self, key: str, full: Tensor) -> Tensor:
        """This rank's part of one parameter's state, given in full."""
        return full[self.comm.local_slice(len(full))] if self.layout(key) == "rows" else full


class MuonBucket(ParamBucket):
    """Matrices of one shape under Muon: few large products instead of many small ones.

    Every rank has all of them in full, with the gradient of its own batch. Each averages, steps and keeps the
    momentum of the matrices that it owns, then all gather the new values.
    """

    @override
    def _launch_reduce(self) -> Handle:
        return self.comm.reduce_scatter_mean(torch.stack([self._gradient(name) for name in self._names]))

    @override
    def update(self) -> Tensor:
        gradients = self._received()
        square = _square(gradients)
        owned = self._names[self.comm.local_slice(len(self._names))]
        if owned:
            updates = self._nesterov(owned, gradients)
            self._move(owned, self._directions(owned, updates))
        if self.comm.world_size > 1:
            values = torch.stack([self._value(name) for name in owned]) if owned else gradients
            self._handle = self.comm.all_gather(values, len(self._names))
        return square

    @override
    def gather_parameters(self) -> None:
        if self.comm.world_size > 1:
            for name, value in zip(self._names, self._received(), strict=True):
                self._value(name).copy_(value)

    def _nesterov(self, names: list[str], gradients: Tensor) -> Tensor:
        """Take the gradients into the momentum and, in place, the momentum into the gradients."""
        beta = self.group.beta1 if self._rates.momentum is None else self._rates.momentum
        momenta = [self.state(name)["momentum"] for name in names]
        torch._foreach_lerp_(momenta, gradients.unbind(), 1 - beta)
        torch._foreach_lerp_(gradients.unbind(), momenta, beta)
        return gradients

    def _directions(self, owned: list[str], updates: Tensor) -> Tensor:
        """Directions of full matrices, shape (matrices, rows, columns), for a step of rate 1."""
        group = self.group
        directions = orthogonalize(updates.to(self.product_dtype)).to(updates.dtype)
        if group.beta2 is not None:
            stored = [self.state(name)["second_moment"] for name in owned]
            variances = torch.stack(stored)
            directions = normalize_variance(directions, variances, group.beta2)
            torch._foreach_copy_(stored, variances.unbind())
        return directions

    def _move(self, names: list[str], directions: Tensor) -> None:
        rows, columns = self.parameters[names[0]].shape
        rate = self.group.learning_rate * self._rates.learning_rate * max(1.0, rows / columns) ** 0.5
        decay = self.group.weight_decay * self._rates.weight_decay * rate
        values = tuple(self._value(name) for name in names)
        cautious_step_(values, directions.unbind(), rate=rate, decay=decay)

    @override
    def state_shapes(self, name: str) -> dict[str, torch.Size]:
        parameter = self.parameters[name]
        shapes = {"momentum": parameter.shape}
        if self.group.beta2 is not None:
            shapes["second_moment"] = variance_like(torch.empty(parameter.shape, device="meta")).shape
        return shapes

    @override
    def layout(self, key: str) -> StateLayout:
        return "matrices"


class ShardedMuonBucket(MuonBucket):
    """Matrices of one shape under Muon, of which every rank has its rows, with the averaged gradient's rows.

    The momentum stays where the rows are. Rows are exchanged so that each rank has the matrices that it owns
    in full, for the polar factor, and back.
    """

    @override
    def _launch_reduce(self) -> Handle:
        gradients = torch.stack([self._gradient(name) for name in self._names])
        self._gradient_square = _square(gradients)
        updates = self._nesterov(self._names, gradients)
        return self.comm.all_to_all_to_matrices(updates, len(self.parameters[self._names[0]]))

    @override
    def update(self) -> Tensor:
        updates = self._received()
        if self.owned:
            updates = self._directions(self.owned, updates)
        self._handle = self.comm.all_to_all_to_rows(updates, len(self._names))
        return self._gradient_square

    @override
    def gather_parameters(self) -> None:
        self._move(self._names, self._received())

    @override
    def layout(self, key: str) -> StateLayout:
        return "rows" if key == "momentum" else "matrices"


class AdamWBucket(ParamBucket):
    """One parameter under AdamW.

    Of a sharded one every rank steps its rows, with the averaged gradient's. Of a large one that every rank
    has in full, each averages, steps and keeps the moments of its rows, then all gather the new ones; of a
    sparse gradient only the rows that any rank touched. A small one is stepped everywhere.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        ((self._name, parameter),) = self.parameters.items()
        self._sharded = isinstance(parameter, DTensor)
        large = self.comm.world_size > 1 and parameter.numel() >= SHARDED_FROM
        self._divided = large and not self._sharded

    @override
    def _launch_reduce(self) -> Handle | None:
        gradient = self._gradient(self._name)
        if gradient.is_sparse or self._sharded:
            return None
        reduce = self.comm.reduce_scatter_mean if self._divided else self.comm.all_reduce_mean
        return reduce(gradient)

    @override
    def update(self) -> Tensor:
        value, gradient = self._value(self._name), self._gradient(self._name)
        if gradient.is_sparse:
            return self._step_rows(value, gradient.coalesce())
        if not self._sharded:
            gradient = self._received()
        own = self._local_rows(value)
        adamw_(own, gradient, self.state(self._name), **self._settings())
        if self._divided:
            self._handle = self.comm.all_gather(own, len(value))
        return self._square_once(gradient)

    @override
    def gather_parameters(self) -> None:
        if self._handle is not None:
            self._value(self._name).copy_(self._received())

    def _step_rows(self, value: Tensor, gradient: Tensor) -> Tensor:
        """Step this rank's part of the rows that any rank touched.

        It waits for its messages at once: their lengths are exchanged first.
        """
        rows, gradients = self._mean_rows(gradient)
        own = self.comm.local_slice(len(value)) if self._divided else slice(0, len(value))
        inside = (own.start <= rows) & (rows < own.stop)
        rows, gradients = rows[inside], gradients[inside]
        state = self.state(self._name)
        adamw_rows_(self._local_rows(value), rows - own.start, gradients, state, **self._settings())
        if self._divided:
            stepped, values = self.comm.all_gather_ragged(rows), self.comm.all_gather_ragged(value[rows])
            value.index_copy_(0, torch.cat(stepped), torch.cat(values))
        return self._square_once(gradients)

    def _mean_rows(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Rows that any rank touched, ascending, and their mean over the ranks."""
        rows, values = gradient.indices()[0], gradient.values()
        if self.comm.world_size == 1:
            return rows, values
        rows, values = (torch.cat(self.comm.all_gather_ragged(part)) for part in (rows, values))
        total = torch.sparse_coo_tensor(rows.unsqueeze(0), values, gradient.shape).coalesce()
        return total.indices()[0], total.values().div_(self.comm.world_size)

    def _square_once(self, gradient: Tensor) -> Tensor:
        """The squared norm, divided where every rank counts the same gradient."""
        square = _square(gradient)
        return square if self._sharded or self._divided else square / self.comm.world_size

    def _settings(self) -> dict[str, float]:
        group = self.group
        assert group.beta2 is not None  # noqa: S101  (ParamGroup checked)
        return {
            "rate": group.learning_rate * self._rates.learning_rate,
            "beta1": group.beta1,
            "beta2": group.beta2,
            "weight_decay": group.weight_decay * self._rates.weight_decay,
        }

    def _local_rows(self, value: Tensor) -> Tensor:
        """The rows that this rank steps, of those that it has."""
        return value[self.comm.local_slice(len(value))] if self._divided else value

    @override
    def state_shapes(self, name: str) -> dict[str, torch.Size]:
        shape = self.parameters[name].shape
        return {"step": torch.Size(), "first_moment": shape, "second_moment": shape}

    @override
    def layout(self, key: str) -> StateLayout:
        return "rows" if key != "step" and (self._sharded or self._divided) else "replicated"


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, a view; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _square(gradient: Tensor) -> Tensor:
    """The squared norm, float32 as ranks and dtypes are summed."""
    return gradient.norm().float().square()
