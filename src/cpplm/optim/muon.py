"""Muon for matrices and AdamW for everything else, as one optimizer on one or more ranks.

Muon (Jordan et al. 2024): momentum, then the nearest orthogonal matrix by Polar Express iterations (Amsel et
al. 2025, arXiv 2505.16932), so that every singular direction of a weight learns at one rate; optionally
NorMuon's normalisation of rows (Li et al. 2025, arXiv 2510.05491). Weight decay is cautious (arXiv
2510.12402). AdamW (Loshchilov and Hutter 2019) for embedding, head and scalars.

Several ranks average their gradients inside `step` and divide its work and its state (ZeRO stage 1,
Rajbhandari et al. 2020, arXiv 1910.02054): the matrices of one shape are dealt to the ranks, and so are the
rows of large AdamW parameters; what each has updated is gathered. Small parameters are updated everywhere.
Parameters that FSDP2 has sharded, and whose gradients it has averaged, keep their state where their rows are.

State is addressed by parameter name, so that a checkpoint can be read without the optimizer's history, by
any number of ranks, sharded or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from cpplm.core.partition import partition_by_size
from cpplm.optim.buckets import AdamW, Bundle, Group, Matrices, Schedule, ShardedMatrices, Stepping
from cpplm.optim.collectives import Ranks

IN_FLIGHT = 2  # bundles, on several ranks: one computes while the other's messages travel


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
            model: whose named parameters are trained, already on their device, and sharded if they will be.
            groups: what learns how.
            product_dtype: of Muon's matrix products; bfloat16 suffices where the hardware has it.
            process_group: of the ranks that train copies of `model`, equal at the start, or shards of it,
                each with the gradient of its own part of the batch. None: one rank.

        Raises:
            ValueError: a parameter in no group or in two, or one that is not a matrix in a Muon group, or
                sharded parameters without their ranks.
        """
        parameters = dict(model.named_parameters())
        groups = list(groups)
        named = [name for group in groups for name in group.names]
        if sorted(named) != sorted(parameters):
            raise ValueError(f"groups must name each parameter once: {set(named) ^ set(parameters)}")
        if process_group is None and any(isinstance(p, DTensor) for p in parameters.values()):
            raise ValueError("sharded parameters need the process group of their ranks")
        super().__init__(
            [{"params": [parameters[name] for name in group.names], "group": group} for group in groups], {}
        )
        self._ranks = Ranks(process_group)
        self._bundles: list[Bundle] = [
            kind(group, {name: parameters[name] for name in names}, self._ranks, self.state, product_dtype)
            for group in groups
            for kind, names in _bundles(group, parameters)
        ]
        self.lr_multiplier = 1.0
        self.weight_decay_multiplier = 1.0
        self.muon_momentum: float | None = None
        self.gradient_norm = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient. All ranks must call it.

        Raises:
            ValueError: on several ranks, a parameter without a gradient; a sparse gradient of a matrix under
                Muon, or sparse over more than rows. Nothing is changed then.
        """
        if closure is not None:
            raise ValueError("closures are not supported")
        self._check_gradients()
        schedule = Schedule(self.lr_multiplier, self.weight_decay_multiplier, self.muon_momentum)
        steps = (
            bundle.step(present, schedule)
            for bundle in self._bundles
            if (present := [name for name, p in bundle.parameters.items() if p.grad is not None])
        )
        squares = _interleaved(steps, IN_FLIGHT if self._ranks.count > 1 else 1)
        if squares:
            self.gradient_norm = self._ranks.sum(torch.stack(squares).sum())().sqrt()

    def _check_gradients(self) -> None:
        """Before anything changes, and before one rank waits for another."""
        several = self._ranks.count > 1
        for bundle in self._bundles:
            for name, parameter in bundle.parameters.items():
                gradient = parameter.grad
                if several and gradient is None:
                    raise ValueError(f"{name} has no gradient; on several ranks every parameter needs one")
                if gradient is None or not gradient.is_sparse:
                    continue
                if bundle.group.muon or gradient.sparse_dim() != 1:
                    raise ValueError(f"{name} has a sparse gradient; only AdamW takes one, and only of rows")

    @torch.no_grad()
    def named_state(self, *, own_share: bool = False) -> dict[str, Tensor]:
        """All state tensors, whole, as "parameter name/state name": "momentum" and, under NorMuon, a
        "second_moment" of one value per row or column; "step", "first_moment", "second_moment" of AdamW.

        All ranks must call it, and each gets all of it unless `own_share`. On one rank the tensors are the
        optimizer's own.

        Args:
            own_share: give each rank, on the CPU, only its part of the tensors (`partition_by_size`); no
                rank's device then holds more than one bundle of them whole.
        """
        sizes = {
            f"{name}/{key}": shape.numel()
            for bundle in self._bundles
            for name in bundle.parameters
            for key, shape in bundle.whole_shapes(name).items()
        }
        own = set(partition_by_size(sizes, self._ranks.count)[self._ranks.index])
        tensors: dict[str, Tensor] = {}
        for bundle in self._bundles:
            for key in bundle.whole_shapes(next(iter(bundle.parameters))):
                for name, value in zip(bundle.parameters, bundle.whole(key), strict=True):
                    if not own_share:
                        tensors[f"{name}/{key}"] = value
                    elif f"{name}/{key}" in own:
                        tensors[f"{name}/{key}"] = value.to("cpu", copy=self._ranks.count > 1)
        return tensors

    @torch.no_grad()
    def load_named_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `named_state` gave, on any number of ranks; the next step is then the one that would
        have followed. Each rank takes its part of the whole. Without any tensors all state is as before the
        first step; without those of NorMuon, as plain Muon saves, its second moments are.

        Raises:
            ValueError: tensors of only some of the parameters, of others, or of other shapes; nothing is
                changed then.
        """
        names = {name for bundle in self._bundles for name in bundle.parameters}
        if tensors and {key.rpartition("/")[0] for key in tensors} != names:
            raise ValueError("the optimizer state is not that of these parameters")
        for bundle in self._bundles:
            for name in bundle.parameters:
                _check_stored(bundle, name, tensors)
        for bundle in self._bundles:
            for name in bundle.parameters:
                for key, target in bundle.state(name).items():
                    whole = tensors.get(f"{name}/{key}")
                    target.zero_() if whole is None else target.copy_(bundle.part(key, whole))


def _check_stored(bundle: Bundle, name: str, tensors: dict[str, Tensor]) -> None:
    """Whether `tensors` has the state of one parameter; all of it may be missing, and so may NorMuon's."""
    for key, shape in bundle.whole_shapes(name).items():
        whole = tensors.get(f"{name}/{key}")
        if whole is None and (not tensors or (bundle.group.muon and key == "second_moment")):
            continue
        if whole is None or whole.shape != shape:
            raise ValueError(f"the optimizer state has no {name}/{key} of this parameter's shape")


def _bundles(group: Group, parameters: dict[str, nn.Parameter]) -> list[tuple[type[Bundle], list[str]]]:
    """What steps together: under Muon all matrices of one shape, under AdamW each parameter alone."""
    if not group.muon:
        return [(AdamW, [name]) for name in group.names]
    alike: dict[tuple[type[Bundle], torch.Size], list[str]] = {}
    for name in group.names:
        parameter = parameters[name]
        if parameter.dim() != 2:
            raise ValueError(f"Muon learns matrices, and {name} has the shape {tuple(parameter.shape)}")
        kind = ShardedMatrices if isinstance(parameter, DTensor) else Matrices
        alike.setdefault((kind, parameter.shape), []).append(name)
    return [(kind, names) for (kind, _), names in alike.items()]


def _interleaved(steps: Iterable[Stepping], in_flight: int) -> list[Tensor]:
    """What the steps return. So many run at once, in turn, each up to where it waits for other ranks."""
    waiting, results = iter(steps), list[Tensor]()
    running: deque[Stepping] = deque()
    while True:
        while len(running) < in_flight and (step := next(waiting, None)) is not None:
            running.append(step)
        if not running:
            return results
        step = running.popleft()
        try:
            next(step)
            running.append(step)
        except StopIteration as end:
            results.append(end.value)
