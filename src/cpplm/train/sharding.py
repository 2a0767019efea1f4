"""FSDP2: weights, gradients and optimizer state of one model divided among the ranks (`--shard`).

`torch.distributed.fsdp.fully_shard` (after Zhao et al. 2023, arXiv 2304.11277, by parameter) divides the rows
of every matrix; a block's matrices are gathered before it computes and forgotten after it. What stays whole
on every rank, with its gradient averaged by the optimizer: vectors and scalars, which are small, matrices
with fewer rows than ranks, and tables with sparse gradients, of which a step touches few rows.

The numbers are those of one process, up to the order of sums: the blocks' matrices travel in the dtype in
which they are multiplied anyway, and gradients are summed in float32. One exception: in bfloat16 the
gradients of value embeddings are rounded to it before they are summed over the ranks.

All functions here but `shard_model` and `compile_blocks` take a model whether it is sharded or not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.experimental import implicit_replication

from cpplm.core.errors import UserError
from cpplm.core.workers import partition_by_size
from cpplm.model.transformer import Transformer
from cpplm.train.distributed import DistContext, TorchDistContext

# Entered without the model's own forward. `loss` enters by `hidden_states`, which leaves embedding and head
# gathered, as long as no backward pass follows: so `logits` can be called after it.
ENTRIES = ("training_losses", "hidden_states")


def shard_model(model: Transformer, dist: TorchDistContext) -> None:
    """Divide the parameters of `model` among the ranks, in place. All ranks must call it.

    Best on the meta device, before `to_empty`: then no rank ever holds the whole model.

    Raises:
        UserError: there is nothing to divide among.
    """
    if dist.process_group is None:
        raise UserError(
            "--shard divides a model among processes, and this is one", fix="Start with torchrun."
        )
    mesh = DeviceMesh.from_group(dist.process_group, dist.device.type)
    whole = replicated_params(model, dist.world_size)
    policy = MixedPrecisionPolicy(
        param_dtype=model.compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    for block in (*model.blocks, *model.multi_token):
        fully_shard(block, mesh=mesh, mp_policy=policy, ignored_params=whole)
    fully_shard(model, mesh=mesh, ignored_params=whole)  # embedding and head stay float32 on their way
    for name in ENTRIES:
        register_fsdp_forward_method(model, name)


def replicated_params(model: nn.Module, ranks: int) -> set[nn.Parameter]:
    """Tables with sparse gradients, and what has too few dimensions or rows to be divided."""
    tables = [module for module in model.modules() if isinstance(module, nn.Embedding) and module.sparse]
    small = [parameter for parameter in model.parameters() if parameter.dim() < 2 or len(parameter) < ranks]
    return {*small, *(parameter for table in tables for parameter in table.parameters())}


def init_weights(model: Transformer, seed: int) -> None:
    """`Transformer.init_weights`, with the same values on any number of ranks, sharded or not.

    Each rank draws all numbers and keeps its own: at no time is there more than one whole parameter.
    """
    with implicit_replication():
        model.init_weights(seed)


def compile_blocks(model: Transformer) -> None:
    """Have torch.compile compile each block by itself, for a sharded model, in place, when it first runs.

    The gathering around a block cannot be part of a graph, so the loss as a whole cannot be compiled. Blocks
    that are alike share their graphs.
    """
    for block in model.blocks:
        block.forward = torch.compile(block.forward, dynamic=False, fullgraph=True)


def set_gradient_sync(model: nn.Module, now: bool) -> None:
    """Say before a backward pass whether it sums the gradients over the ranks: the last one of a step does.

    Until then each rank of a sharded model keeps its own gradients of all parameters, whole. Without sharding
    it is the optimizer that sums them, once per step.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(now)


def local_state_dict(model: nn.Module, dist: DistContext) -> dict[str, Tensor]:
    """The weights and buffers of the model that fall to this rank (`partition_by_size`), whole.

    What is divided among the ranks comes to the CPU, one tensor after the other; what is not, stays where it
    is. All ranks must call it.
    """
    state = model.state_dict()
    own = set(
        partition_by_size({name: value.nbytes for name, value in state.items()}, dist.world_size)[dist.rank]
    )
    local = {}
    for name, value in state.items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value  # from all ranks
        if name in own:
            local[name] = whole.cpu() if isinstance(value, DTensor) else whole
    return local


def load_full_state_dict(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Fill a model with what the `local_state_dict`s of all ranks are together. All ranks must call it.

    Args:
        model: on its device.
        tensors: the whole state; of a sharded model only the first rank's is read, the others may have none.

    Raises:
        RuntimeError: they are not those of this model.
    """
    if not isinstance(model, FSDPModule):
        model.load_state_dict(tensors, strict=True)
        return
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=True)
    set_model_state_dict(model, dict(tensors), options=options)
