"""Muon for matrices and AdamW for everything else, as one optimizer on one or more ranks.

Muon (Jordan et al. 2024): momentum, then the nearest orthogonal matrix by Polar Express iterations (Amsel et
al. 2025, arXiv 2505.16932), so that every singular direction of a weight learns at one rate; optionally
NorMuon's normalisation of rows (Li et al. 2025, arXiv 2510.05491). Weight decay is cautious (arXiv
2510.12402). AdamW (Loshchilov and Hutter 2019) for embedding, head and scalars.

Several ranks average their gradients inside `step` and divide its work and its state (ZeRO stage 1,
Rajbhandari et al. 2020, arXiv 1910.02054): the matrices of one shape are dealt to the ranks, and so are the
rows of large AdamW parameters; what each has updated is gathered. Small parameters are updated everywhere.

State is addressed by parameter name, so that a checkpoint can be read without the optimizer's history, by
any number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from cpplm.optim.ranks import Ranks
from cpplm.optim.rules import (
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


class MuonAdamW(torch.optim.Optimizer):
    """One optimizer over named parameters.

    Schedules set `lr_multiplier`, `weight_decay_multiplier` (both for all groups) and `muon_momentum` (None:
    each group's own) between steps. After a step, `gradient_norm` is the norm of the whole gradient, averaged
    over the ranks; None before.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Iterable[Group],
        *,
        product_dtype: torch.dtype = torch.float32,
        process_group: ProcessGroup | None = None,
    ) -> None:
        """Every parameter of `model` must be in exactly one group.

        Args:
            model: whose named parameters are trained, already on their device.
            groups: what learns how.
            product_dtype: of Muon's matrix products; bfloat16 suffices where the hardware has it.
            process_group: of the ranks that train copies of `model`, equal at the start, each with the
                gradient of its own part of the batch. None: one rank.

        Raises:
            ValueError: a parameter in no group or in two, or one that is not a matrix in a Muon group.
        """
        parameters = dict(model.named_parameters())
        groups = list(groups)
        named = [name for group in groups for name in group.names]
        if sorted(named) != sorted(parameters):
            raise ValueError(f"groups must name each parameter once: {set(named) ^ set(parameters)}")
        super().__init__(
            [{"params": [parameters[name] for name in group.names], "group": group} for group in groups], {}
        )
        self._parameters = parameters
        self._bundles = [(group, names) for group in groups for names in _bundles(group, parameters)]
        self._product_dtype = product_dtype
        self._ranks = Ranks(process_group)
        self.lr_multiplier = 1.0
        self.weight_decay_multiplier = 1.0
        self.muon_momentum: float | None = None
        self.gradient_norm = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient. All ranks must call it.

        Raises:
            ValueError: on several ranks, a parameter without a gradient or with a sparse one; a sparse
                gradient of a matrix under Muon, or sparse over more than rows. Nothing is changed then.
        """
        if closure is not None:
            raise ValueError("closures are not supported")
        self._check_gradients()
        squares = []
        for group, names in self._bundles:
            present = [name for name in names if self._parameters[name].grad is not None]
            if present:
                squares.append((self._muon_step if group.muon else self._adamw_step)(present, group))
        if squares:
            self.gradient_norm = self._ranks.sum(torch.stack(squares).sum()).sqrt()

    def _check_gradients(self) -> None:
        """Before anything changes, and before one rank waits for another."""
        several = self._ranks.count > 1
        for group, names in self._bundles:
            for name in names:
                gradient = self._parameters[name].grad
                if several and gradient is None:
                    raise ValueError(f"{name} has no gradient; on several ranks every parameter needs one")
                if gradient is None or not gradient.is_sparse:
                    continue
                if several or group.muon or gradient.sparse_dim() != 1:
                    raise ValueError(f"{name} has a sparse gradient; only AdamW takes its rows, on one rank")

    def _muon_step(self, names: list[str], group: Group) -> Tensor:
        """Matrices of one shape at once: few large products instead of many small ones.

        Returns:
            The squared norm of this rank's share of the gradient.
        """
        gradients = self._ranks.mean_share(torch.stack([self._gradient(name) for name in names]))
        square = _square(gradients)
        own = self._own(group, names)
        if own:
            self._muon_update(own, gradients, group)
        if self._ranks.count > 1:
            mine = torch.stack([self._parameters[name].detach() for name in own]) if own else gradients
            updated = self._ranks.gather(mine, len(names))
            for name, value in zip(names, updated, strict=True):
                self._parameters[name].copy_(value)
        return square

    def _muon_update(self, own: list[str], gradients: Tensor, group: Group) -> None:
        """Step this rank's matrices; `gradients`, shape (matrices, rows, columns), is used up."""
        beta = group.beta1 if self.muon_momentum is None else self.muon_momentum
        states = [self._state(group, name) for name in own]
        for state, gradient in zip(states, gradients, strict=True):
            state["momentum"].lerp_(gradient, 1 - beta)
            gradient.lerp_(state["momentum"], beta)  # Nesterov
        if group.equilibrate_rows:
            gradients = equilibrate_rows(gradients)
        directions = orthogonalize(gradients.to(self._product_dtype)).to(gradients.dtype)
        if group.snap_norm:
            directions = snap_norm(directions)
        if group.beta2 is not None:
            variances = torch.stack([state["second_moment"] for state in states])
            directions = normalize_variance(directions, variances, group.beta2)
            for state, variance in zip(states, variances, strict=True):
                state["second_moment"].copy_(variance)
        rows, columns = gradients.shape[1:]
        rate = group.learning_rate * self.lr_multiplier * max(1.0, rows / columns) ** 0.5
        decay = group.weight_decay * self.weight_decay_multiplier * rate
        for name, direction in zip(own, directions, strict=True):
            cautious_step_(self._parameters[name], direction, rate=rate, decay=decay)

    def _adamw_step(self, names: list[str], group: Group) -> Tensor:
        """One parameter: its touched rows, this rank's rows of a large one, or a small one whole.

        Returns:
            The squared norm of this rank's share of the gradient.
        """
        (name,) = names
        parameter, gradient = self._parameters[name], self._gradient(name)
        assert group.beta2 is not None  # noqa: S101  (Group checked)
        settings = {
            "rate": group.learning_rate * self.lr_multiplier,
            "beta1": group.beta1,
            "beta2": group.beta2,
            "weight_decay": group.weight_decay * self.weight_decay_multiplier,
        }
        state = self._state(group, name)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            adamw_rows_(parameter, gradient, state, **settings)
            return _square(gradient.values())
        if not self._is_shared(parameter):
            gradient = self._ranks.mean(gradient)
            adamw_(parameter, gradient, state, **settings)
            return _square(gradient) / self._ranks.count  # every rank counts the same gradient
        gradient = self._ranks.mean_share(gradient)
        adamw_(self._part(parameter), gradient, state, **settings)
        parameter.copy_(self._ranks.gather(self._part(parameter), len(parameter)))
        return _square(gradient)

    def _gradient(self, name: str) -> Tensor:
        gradient = self._parameters[name].grad
        assert gradient is not None  # noqa: S101  (step() filtered)
        return gradient

    def _is_shared(self, tensor: Tensor) -> bool:
        """Whether the ranks split the rows of this AdamW parameter."""
        return self._ranks.count > 1 and tensor.numel() >= SHARED_FROM

    def _part(self, tensor: Tensor) -> Tensor:
        """Of an AdamW parameter, or what is shaped like it: the rows that this rank updates."""
        return tensor[self._ranks.share(len(tensor))] if self._is_shared(tensor) else tensor

    def _own(self, group: Group, names: list[str]) -> list[str]:
        """Of one bundle, the parameters whose state this rank has, all of it or its rows."""
        return names[self._ranks.share(len(names))] if group.muon else names

    def _state(self, group: Group, name: str) -> dict[str, Tensor]:
        """What this rank has of a parameter, made when first asked for."""
        state = self.state[self._parameters[name]]
        if not state:
            state.update(self._fresh_state(group, name))
        return state

    def _fresh_state(self, group: Group, name: str) -> dict[str, Tensor]:
        parameter = self._parameters[name].detach()
        if group.muon:
            state = {"momentum": torch.zeros_like(parameter)}
            return state if group.beta2 is None else {**state, "second_moment": variance_like(parameter)}
        return {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "first_moment": torch.zeros_like(self._part(parameter)),
            "second_moment": torch.zeros_like(self._part(parameter)),
        }

    @torch.no_grad()
    def named_state(self) -> dict[str, Tensor]:
        """All state tensors, whole, as "parameter name/state name": "momentum" and, under NorMuon, a
        "second_moment" of one value per row or column; "step", "first_moment", "second_moment" of AdamW.

        All ranks must call it, and each gets all of it. On one rank the tensors are the optimizer's own.
        """
        tensors = {}
        for group, names in self._bundles:
            for key, values in self._whole_state(group, names).items():
                tensors.update({f"{name}/{key}": value for name, value in zip(names, values, strict=True)})
        return tensors

    def _whole_state(self, group: Group, names: list[str]) -> dict[str, list[Tensor]]:
        """Per state name, the tensors of one bundle."""
        parameter = self._parameters[names[0]]
        own = [self._state(group, name) for name in self._own(group, names)]
        if self._ranks.count == 1 or not (group.muon or self._is_shared(parameter)):
            return {key: [state[key] for state in own] for key in own[0]}
        if not group.muon:
            return {
                key: [value if key == "step" else self._ranks.gather(value, len(parameter))]
                for key, value in own[0].items()
            }
        whole = {}
        for key, like in self._fresh_state(group, names[0]).items():  # a rank may have none to take keys from
            stack = torch.stack([state[key] for state in own]) if own else like.new_empty((0, *like.shape))
            whole[key] = list(self._ranks.gather(stack, len(names)))
        return whole

    @torch.no_grad()
    def load_named_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `named_state` gave, on any number of ranks; the next step is then the one that would
        have followed. Each rank takes its part of the whole. Without any tensors all state is as before the
        first step; without those of NorMuon, as plain Muon saves, its second moments are.

        Raises:
            ValueError: tensors of only some of the parameters, of others, or of other shapes; nothing is
                changed then.
        """
        if tensors and {key.rpartition("/")[0] for key in tensors} != set(self._parameters):
            raise ValueError("the optimizer state is not that of these parameters")
        restored = [
            (target, self._stored(tensors, group, f"{name}/{key}", target))
            for group, names in self._bundles
            for name in self._own(group, names)
            for key, target in self._state(group, name).items()
        ]
        for target, value in restored:
            target.copy_(value)

    def _stored(self, tensors: dict[str, Tensor], group: Group, key: str, target: Tensor) -> Tensor:
        """This rank's part of a loaded tensor, zeros for one that may be missing."""
        whole = tensors.get(key)
        if whole is None and (not tensors or (group.muon and key.endswith("/second_moment"))):
            return target.new_zeros(()).expand_as(target)
        part = whole if whole is None or group.muon else self._part(whole)
        if part is None or part.shape != target.shape:
            raise ValueError(f"the optimizer state has no {key} of this parameter's shape")
        return part


def _bundles(group: Group, parameters: dict[str, nn.Parameter]) -> list[list[str]]:
    """What steps together: under Muon all matrices of one shape, under AdamW each parameter alone."""
    if not group.muon:
        return [[name] for name in group.names]
    by_shape: dict[torch.Size, list[str]] = {}
    for name in group.names:
        if parameters[name].dim() != 2:
            raise ValueError(
                f"Muon learns matrices, and {name} has the shape {tuple(parameters[name].shape)}"
            )
        by_shape.setdefault(parameters[name].shape, []).append(name)
    return list(by_shape.values())


def _square(gradient: Tensor) -> Tensor:
    """The squared norm, float32 as ranks and dtypes are summed."""
    return gradient.norm().float().square()
