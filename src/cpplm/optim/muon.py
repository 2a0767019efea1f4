"""Muon for matrices and AdamW for everything else, as one optimizer on one or more ranks.

Muon (Jordan et al. 2024): momentum, then the nearest orthogonal matrix by Polar Express iterations (Amsel et
al. 2025, arXiv 2505.16932), so that every singular direction of a weight learns at one rate; optionally
NorMuon's normalization of rows (Li et al. 2025, arXiv 2510.05491). Weight decay is cautious (arXiv
2510.12402). AdamW (Loshchilov and Hutter 2019) for embedding, head and scalars.

Several ranks average their gradients inside `step` and divide its work and its state (ZeRO stage 1,
Rajbhandari et al. 2020, arXiv 1910.02054): the matrices of one shape are divided among the ranks, and
so are the rows of large AdamW parameters; the updated ones are gathered. Small parameters are updated
everywhere. Parameters that FSDP2 has sharded, and whose gradients it has averaged, keep their state where
their rows are.

State is addressed by parameter name, so that a checkpoint can be read without the optimizer's history, by
any number of ranks, sharded or not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor

from cpplm.core.workers import partition_by_size
from cpplm.optim.buckets import AdamWBucket, MuonBucket, ParamBucket, ParamGroup, ShardedMuonBucket, StepRates
from cpplm.optim.collectives import Collectives

IN_FLIGHT = 2  # buckets, on several ranks: one computes while the other's messages travel


class MuonAdamW(torch.optim.Optimizer):
    """One optimizer over named parameters.

    Schedules set `rates` between steps. After a step, `gradient_norm` is the norm of the whole gradient,
    averaged over the ranks; 0 before.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: Iterable[ParamGroup],
        *,
        product_dtype: torch.dtype = torch.float32,
        process_group: ProcessGroup | None = None,
    ) -> None:
        """Every parameter of `model` that is not frozen must be in exactly one group.

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
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        groups = list(groups)
        named = [name for group in groups for name in group.names]
        if sorted(named) != sorted(parameters):
            raise ValueError(f"groups must name each parameter once: {set(named) ^ set(parameters)}")
        if process_group is None and any(isinstance(p, DTensor) for p in parameters.values()):
            raise ValueError("sharded parameters need the process group of their ranks")
        super().__init__(
            [{"params": [parameters[name] for name in group.names], "group": group} for group in groups], {}
        )
        self._comm = Collectives(process_group)
        self._buckets: list[ParamBucket] = [
            kind(group, {name: parameters[name] for name in names}, self._comm, self.state, product_dtype)
            for group in groups
            for kind, names in _bucket_names(group, parameters)
        ]
        self.rates = StepRates()
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
        active = [b for b in self._buckets if any(p.grad is not None for p in b.parameters.values())]
        squares: list[Tensor] = []
        in_flight = IN_FLIGHT if self._comm.world_size > 1 else 1
        for first in range(0, len(active), in_flight):
            buckets = active[first : first + in_flight]
            for bucket in buckets:
                bucket.reduce_gradients(self.rates)
            squares += [bucket.update() for bucket in buckets]
            for bucket in buckets:
                bucket.gather_parameters()
        if squares:
            self.gradient_norm = self._comm.all_reduce(torch.stack(squares).sum())().sqrt()

    def _check_gradients(self) -> None:
        """Before anything changes, and before one rank waits for another."""
        several = self._comm.world_size > 1
        for bucket in self._buckets:
            for name, parameter in bucket.parameters.items():
                gradient = parameter.grad
                if several and gradient is None:
                    raise ValueError(f"{name} has no gradient; on several ranks every parameter needs one")
                if gradient is None or not gradient.is_sparse:
                    continue
                if bucket.group.muon or gradient.sparse_dim() != 1:
                    raise ValueError(f"{name} has a sparse gradient; only AdamW takes one, and only of rows")

    @torch.no_grad()
    def named_state(self, *, partitioned: bool = False) -> dict[str, Tensor]:
        """All state tensors, in full, as "parameter name/state name": "momentum" and, under NorMuon, a
        "second_moment" of one value per row or column; "step", "first_moment", "second_moment" of AdamW.

        All ranks must call it, and each gets all of it unless `partitioned`. On one rank the tensors are the
        optimizer's own.

        Args:
            partitioned: give each rank, on the CPU, only its part of the tensors (`partition_by_size`); no
                rank's device then holds more than one bucket of them whole.
        """
        sizes = {
            f"{name}/{key}": shape.numel()
            for bucket in self._buckets
            for name in bucket.parameters
            for key, shape in bucket.state_shapes(name).items()
        }
        own = set(partition_by_size(sizes, self._comm.world_size)[self._comm.rank])
        tensors: dict[str, Tensor] = {}
        for bucket in self._buckets:
            for key in bucket.state_shapes(next(iter(bucket.parameters))):
                for name, value in zip(bucket.parameters, bucket.gather_state(key), strict=True):
                    if not partitioned:
                        tensors[f"{name}/{key}"] = value
                    elif f"{name}/{key}" in own:
                        tensors[f"{name}/{key}"] = value.to("cpu", copy=self._comm.world_size > 1)
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
        names = {name for bucket in self._buckets for name in bucket.parameters}
        if tensors and {key.rpartition("/")[0] for key in tensors} != names:
            raise ValueError("the optimizer state is not that of these parameters")
        for bucket in self._buckets:
            for name in bucket.parameters:
                _check_stored(bucket, name, tensors)
        for bucket in self._buckets:
            for name in bucket.parameters:
                for key, target in bucket.state(name).items():
                    full = tensors.get(f"{name}/{key}")
                    target.zero_() if full is None else target.copy_(bucket.shard_state(key, full))


def _check_stored(bucket: ParamBucket, name: str, tensors: dict[str, Tensor]) -> None:
    """Check that `tensors` has one parameter's state; all of it may be missing, and so may NorMuon's."""
    for key, shape in bucket.state_shapes(name).items():
        full = tensors.get(f"{name}/{key}")
        if full is None and (not tensors or (bucket.group.muon and key == "second_moment")):
            continue
        if full is None or full.shape != shape:
            raise ValueError(f"the optimizer state has no {name}/{key} of this parameter's shape")


def _bucket_names(
    group: ParamGroup, parameters: dict[str, nn.Parameter]
) -> list[tuple[type[ParamBucket], list[str]]]:
    """The buckets of a group: under Muon all matrices of one shape, under AdamW each parameter alone."""
    if not group.muon:
        return [(AdamWBucket, [name]) for name in group.names]
    by_shape: dict[tuple[type[ParamBucket], torch.Size], list[str]] = {}
    for name in group.names:
        parameter = parameters[name]
        if parameter.dim() != 2:
            raise ValueError(f"Muon learns matrices, and {name} has the shape {tuple(parameter.shape)}")
        kind = ShardedMuonBucket if isinstance(parameter, DTensor) else MuonBucket
        by_shape.setdefault((kind, parameter.shape), []).append(name)
    return [(kind, names) for (kind, _), names in by_shape.items()]
