"""Parameters that step together: how their gradients, their state and their new values lie on the ranks.

A step is a generator that pauses where it waits for other ranks, so that another bundle computes meanwhile.
What all of them rely on: every rank has the same bundles in the same order, and pauses at the same places.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from cpplm.optim.collectives import Ranks
from cpplm.optim.update_rules import (
    adamw_,
    adamw_rows_,
    cautious_step_,
    equilibrate_rows,
    normalize_variance,
    orthogonalize,
    snap_norm,
    variance_like,
)

SHARED_FROM = 2**16  # elements; below, a parameter's update costs less than another message

Stepping = Generator[None, None, Tensor]
"""Pauses while messages travel; in the end, the squared norm of this rank's share of the gradient."""


@dataclass(frozen=True)
class Group:
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
    equilibrate_rows: bool = False
    """Muon only: rows of one norm before the polar factor (MuonEq, arXiv 2603.28254)."""
    snap_norm: bool = False
    """Muon only: the polar factor's Frobenius norm made exact (after Muon+, arXiv 2602.21545)."""

    def __post_init__(self) -> None:
        if not self.muon and self.beta2 is None:
            raise ValueError(f"AdamW needs a beta2: {self.names}")


@dataclass(frozen=True)
class Schedule:
    """Of one step: multipliers of all groups' rates, and Muon's momentum (None: each group's own)."""

    learning_rate: float
    weight_decay: float
    momentum: float | None


class Bundle(ABC):
    """Some parameters of one group, by name in order."""

    def __init__(
        self,
        group: Group,
        parameters: dict[str, nn.Parameter],
        ranks: Ranks,
        states: MutableMapping[Any, dict[str, Tensor]],
        product_dtype: torch.dtype,
    ) -> None:
        """`states` is the optimizer's: by parameter, what this rank has."""
        self.group = group
        self.parameters = parameters
        self.ranks = ranks
        self.product_dtype = product_dtype
        self._states = states

    @abstractmethod
    def step(self, names: list[str], schedule: Schedule) -> Stepping:
        """Update those of `names`, which have a gradient."""

    @abstractmethod
    def fresh_state(self, name: str) -> dict[str, Tensor]:
        """What this rank has of one parameter's state before the first step; empty when nothing."""

    @abstractmethod
    def whole(self, key: str) -> list[Tensor]:
        """One kind of state of all parameters, whole. All ranks must call it, and get it."""

    @abstractmethod
    def part(self, key: str, whole: Tensor) -> Tensor:
        """Of one parameter's whole state, what this rank has."""

    @abstractmethod
    def whole_shapes(self, name: str) -> dict[str, torch.Size]:
        """The kinds of state of one parameter, and their shapes."""

    def state(self, name: str) -> dict[str, Tensor]:
        """What this rank has of a parameter's state, made when first asked for."""
        state = self._states[self.parameters[name]]
        if not state:
            state.update(self.fresh_state(name))
        return state

    def _value(self, name: str) -> Tensor:
        return local(self.parameters[name].detach())

    def _gradient(self, name: str) -> Tensor:
        gradient = self.parameters[name].grad
        assert gradient is not None  # noqa: S101  (step() was told)
        return local(gradient)


class Matrices(Bundle):
    """Matrices of one shape under Muon: few large products instead of many small ones.

    Every rank has all of them whole, with the gradient of its own batch. Each averages, steps and keeps the
    momentum of its share of them, then all gather the new values.
    """

    def step(self, names: list[str], schedule: Schedule) -> Stepping:
        """See `Bundle`."""
        mean = self.ranks.mean_share(torch.stack([self._gradient(name) for name in names]))
        yield
        gradients = mean()
        square = _square(gradients)
        own = names[self.ranks.share(len(names))]
        if own:
            updates = self._nesterov(own, gradients, schedule)
            for name, direction in zip(own, self._directions(own, updates), strict=True):
                self._move(name, direction, schedule)
        if self.ranks.count > 1:
            mine = torch.stack([self._value(name) for name in own]) if own else gradients
            gathered = self.ranks.gather(mine, len(names))
            yield
            for name, value in zip(names, gathered(), strict=True):
                self._value(name).copy_(value)
        return square

    def _nesterov(self, names: list[str], gradients: Tensor, schedule: Schedule) -> Tensor:
        """Take the gradients into the momentum and, in place, the momentum into the gradients."""
        beta = self.group.beta1 if schedule.momentum is None else schedule.momentum
        for name, gradient in zip(names, gradients, strict=True):
            momentum = self.state(name)["momentum"]
            momentum.lerp_(gradient, 1 - beta)
            gradient.lerp_(momentum, beta)
        return gradients

    def _directions(self, own: list[str], updates: Tensor) -> Tensor:
        """Where whole matrices, shape (matrices, rows, columns), go by a step of rate 1."""
        group = self.group
        if group.equilibrate_rows:
            updates = equilibrate_rows(updates)
        directions = orthogonalize(updates.to(self.product_dtype)).to(updates.dtype)
        if group.snap_norm:
            directions = snap_norm(directions)
        if group.beta2 is not None:
            stored = [self.state(name)["second_moment"] for name in own]
            variances = torch.stack(stored)
            directions = normalize_variance(directions, variances, group.beta2)
            for state, variance in zip(stored, variances, strict=True):
                state.copy_(variance)
        return directions

    def _move(self, name: str, direction: Tensor, schedule: Schedule) -> None:
        rows, columns = self.parameters[name].shape
        rate = self.group.learning_rate * schedule.learning_rate * max(1.0, rows / columns) ** 0.5
        decay = self.group.weight_decay * schedule.weight_decay * rate
        cautious_step_(self._value(name), direction, rate=rate, decay=decay)

    @property
    def own(self) -> list[str]:
        """The matrices that this rank orthogonalises."""
        return list(self.parameters)[self.ranks.share(len(self.parameters))]

    def whole_shapes(self, name: str) -> dict[str, torch.Size]:
        """See `Bundle`."""
        parameter = self.parameters[name]
        shapes = {"momentum": parameter.shape}
        if self.group.beta2 is not None:
            shapes["second_moment"] = variance_like(torch.empty(parameter.shape, device="meta")).shape
        return shapes

    def fresh_state(self, name: str) -> dict[str, Tensor]:
        """See `Bundle`."""
        if name not in self.own:
            return {}
        return {key: self._zeros(shape) for key, shape in self.whole_shapes(name).items()}

    def _zeros(self, shape: torch.Size) -> Tensor:
        return self._value(next(iter(self.parameters))).new_zeros(shape)

    def whole(self, key: str) -> list[Tensor]:
        """See `Bundle`."""
        mine = [self.state(name)[key] for name in self.own]
        if self.ranks.count == 1:
            return mine
        shape = self.whole_shapes(next(iter(self.parameters)))[key]
        stack = torch.stack(mine) if mine else self._zeros(torch.Size((0, *shape)))
        return list(self.ranks.gather(stack, len(self.parameters))())

    def part(self, key: str, whole: Tensor) -> Tensor:
        """See `Bundle`."""
        del key
        return whole


class ShardedMatrices(Matrices):
    """Matrices of one shape under Muon, of which every rank has its rows, with the averaged gradient's rows.

    The momentum stays where the rows are. Rows are exchanged so that each rank has its share of the matrices
    whole, for the polar factor, and back.
    """

    def step(self, names: list[str], schedule: Schedule) -> Stepping:
        """See `Bundle`."""
        gradients = torch.stack([self._gradient(name) for name in names])
        square = _square(gradients)
        updates = self._nesterov(names, gradients, schedule)
        exchange = self.ranks.rows_to_matrices(updates, len(self.parameters[names[0]]))
        yield
        updates = exchange()
        if self.own:
            updates = self._directions(self.own, updates)
        exchange = self.ranks.matrices_to_rows(updates, len(names))
        yield
        for name, direction in zip(names, exchange(), strict=True):
            self._move(name, direction, schedule)
        return square

    def fresh_state(self, name: str) -> dict[str, Tensor]:
        """See `Bundle`."""
        state = {"momentum": torch.zeros_like(self._value(name))}
        if self.group.beta2 is not None and name in self.own:
            state["second_moment"] = self._zeros(self.whole_shapes(name)["second_moment"])
        return state

    def whole(self, key: str) -> list[Tensor]:
        """See `Bundle`."""
        if key != "momentum":
            return super().whole(key)
        return [
            self.ranks.gather(self.state(name)[key], len(parameter))()
            for name, parameter in self.parameters.items()
        ]

    def part(self, key: str, whole: Tensor) -> Tensor:
        """See `Bundle`."""
        return whole[self.ranks.share(len(whole))] if key == "momentum" else whole


class AdamW(Bundle):
    """One parameter under AdamW.

    Of a sharded one every rank steps its rows, with the averaged gradient's. Of a large one that every rank
    has whole, each averages, steps and keeps the moments of its share of the rows, then all gather the new
    ones; of a sparse gradient only the rows that any rank touched. A small one is stepped everywhere.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        ((self._name, parameter),) = self.parameters.items()
        self._sharded = isinstance(parameter, DTensor)
        self._dealt = not self._sharded and self.ranks.count > 1 and parameter.numel() >= SHARED_FROM

    def step(self, names: list[str], schedule: Schedule) -> Stepping:
        """See `Bundle`."""
        (name,) = names
        value, gradient, settings = self._value(name), self._gradient(name), self._settings(schedule)
        if gradient.is_sparse:
            return self._step_rows(value, gradient.coalesce(), settings)
        if self._sharded:
            adamw_(value, gradient, self.state(name), **settings)
            return _square(gradient)
        exchange = self.ranks.mean_share(gradient) if self._dealt else self.ranks.mean(gradient)
        yield
        gradient, own = exchange(), self._own(value)
        adamw_(own, gradient, self.state(name), **settings)
        if not self._dealt:
            return _square(gradient) / self.ranks.count  # every rank counts the same gradient
        exchange = self.ranks.gather(own, len(value))
        yield
        value.copy_(exchange())
        return _square(gradient)

    def _step_rows(self, value: Tensor, gradient: Tensor, settings: dict[str, float]) -> Tensor:
        """A sparse gradient: the rows that any rank touched, of these the ones that this rank steps.

        It waits for its messages at once: how long they are is asked first.
        """
        rows, gradients = self._mean_rows(gradient)
        share = self.ranks.share(len(value)) if self._dealt else slice(0, len(value))
        mine = (share.start <= rows) & (rows < share.stop)
        rows, gradients = rows[mine], gradients[mine]
        adamw_rows_(self._own(value), rows - share.start, gradients, self.state(self._name), **settings)
        if not self._dealt:
            return _square(gradients) / self.ranks.count
        stepped, values = self.ranks.gather_any(rows), self.ranks.gather_any(value[rows])
        value.index_copy_(0, torch.cat(stepped), torch.cat(values))
        return _square(gradients)

    def _mean_rows(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Rows that any rank touched, ascending, and their mean over the ranks."""
        rows, values = gradient.indices()[0], gradient.values()
        if self.ranks.count == 1:
            return rows, values
        rows, values = torch.cat(self.ranks.gather_any(rows)), torch.cat(self.ranks.gather_any(values))
        total = torch.sparse_coo_tensor(rows.unsqueeze(0), values, gradient.shape).coalesce()
        return total.indices()[0], total.values().div_(self.ranks.count)

    def _settings(self, schedule: Schedule) -> dict[str, float]:
        group = self.group
        assert group.beta2 is not None  # noqa: S101  (Group checked)
        return {
            "rate": group.learning_rate * schedule.learning_rate,
            "beta1": group.beta1,
            "beta2": group.beta2,
            "weight_decay": group.weight_decay * schedule.weight_decay,
        }

    def _own(self, value: Tensor) -> Tensor:
        """Of what this rank has of the values, the rows that it steps."""
        return value[self.ranks.share(len(value))] if self._dealt else value

    def whole_shapes(self, name: str) -> dict[str, torch.Size]:
        """See `Bundle`."""
        shape = self.parameters[name].shape
        return {"step": torch.Size(), "first_moment": shape, "second_moment": shape}

    def fresh_state(self, name: str) -> dict[str, Tensor]:
        """See `Bundle`."""
        own = self._own(self._value(name))
        return {
            "step": torch.zeros((), dtype=torch.float32, device=own.device),
            "first_moment": torch.zeros_like(own),
            "second_moment": torch.zeros_like(own),
        }

    def whole(self, key: str) -> list[Tensor]:
        """See `Bundle`."""
        mine = self.state(self._name)[key]
        if key == "step" or not (self._sharded or self._dealt):
            return [mine]
        return [self.ranks.gather(mine, len(self.parameters[self._name]))()]

    def part(self, key: str, whole: Tensor) -> Tensor:
        """See `Bundle`."""
        if key == "step" or not (self._sharded or self._dealt):
            return whole
        return whole[self.ranks.share(len(whole))]


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, a view; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _square(gradient: Tensor) -> Tensor:
    """The squared norm, float32 as ranks and dtypes are summed."""
    return gradient.norm().float().square()
