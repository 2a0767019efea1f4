"""Memory of one rank in training, by part, without training (see `cpplm.train.estimate`).

Weights and optimizer state are exact: which rank has what follows from names and shapes. Activations are
traced: the training loss runs on the meta device, where tensors have shapes and no memory, and what autograd
saves is added up. Gradients, gathered shards and what loss and optimizer hold for a moment are estimates.

The peak of a step lies where the forward pass ends, where the backward pass enters the last block, where it
leaves the first one, or in the optimizer; not all parts are there at once. Not counted: what an allocator
loses to fragments, and the copies that 8-bit and 4-bit products make. What torch's allocator on the CPU
handed out, without compiling and on one rank, is within 15 percent (tests/train/test_memory_estimate.py).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cpplm.model.config import ModelConfig
from cpplm.model.kernels.chunked_loss import chunk_rows
from cpplm.model.lora import add_lora
from cpplm.model.settings import KernelSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.buckets import SHARDED_FROM
from cpplm.optim.groups import MATRIX, param_role
from cpplm.optim.muon import IN_FLIGHT
from cpplm.train.settings import TrainSettings
from cpplm.train.sharding import replicated_params

FULL = 4  # bytes of a float32


@dataclass(frozen=True)
class MemoryPlan:
    """A run with chosen batch sizes: its settings, its model, and the dtype of its matrix products."""

    settings: TrainSettings
    config: ModelConfig
    compute_dtype: torch.dtype


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes that one forward pass keeps for the backward pass, on one rank.

    `recomputed` is one block's: computed again when its turn comes, with gradient checkpointing, when of each
    block only its input is kept. `loss` is what the loss holds of a chunk of rows, `work` what the backward
    pass of one block holds beside all that: three gradients of the MLP's hidden layer.
    """

    saved: int
    recomputed: int
    block: int
    loss: int
    work: int


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on the rank that has most, by part, and the `peak`, when not all parts are there."""

    weights: int
    gathered: int
    gradients: int
    optimizer_state: int
    optimizer_work: int
    activations: int
    loss: int
    peak: int


def estimate_memory(plan: MemoryPlan, world_size: int, *, device_type: str = "cuda") -> MemoryEstimate:
    """Bytes on the first of `world_size` ranks, which has most; devices are named as torch names them."""
    settings = plan.settings
    model = _meta_model(plan, settings.kernels)
    shares = _RankParameters(model, world_size, shard=settings.shard)
    accumulates = settings.forward_passes(world_size) > 1
    activations = trace_activations(plan, device_type)
    gradients = _gradients(shares, plan, accumulates=accumulates)
    gathered = _gathered(shares, plan.compute_dtype, accumulates=accumulates) if settings.shard else 0
    weights = shares.weights() + sum(buffer.nbytes for buffer in model.buffers())
    state, work = _optimizer(shares, plan)
    before = gradients if accumulates else 0
    moments = (
        before + activations.saved + activations.loss,
        before + activations.saved + activations.recomputed + activations.work,
        gradients + activations.block + activations.work,
    )
    return MemoryEstimate(
        weights=weights,
        gathered=gathered,
        gradients=gradients,
        optimizer_state=state,
        optimizer_work=work,
        activations=activations.saved + activations.recomputed + activations.work,
        loss=activations.loss,
        peak=weights + state + max(max(moments) + gathered, gradients + work),
    )


def trace_activations(plan: MemoryPlan, device_type: str = "cuda") -> ActivationBytes:
    """Trace what one forward pass of a rank keeps.

    Attention is traced as the chunked kernel computes it: as flash attention, it keeps queries, keys, values
    and the result. That checkpointed blocks keep their inputs only is added to what is kept around them.
    """
    config, size, settings = plan.config, plan.compute_dtype.itemsize, plan.settings
    kernel = settings.kernels.kernel if settings.kernels.kernel == "native" else "auto"
    kernels = KernelSettings(kernel=kernel, attention="chunked")
    around = _saved_bytes(plan, replace(kernels, gradient_checkpointing=True))
    blocks = _saved_bytes(plan, kernels) - around
    tokens = settings.device_batch_size * config.max_seq_len
    streams = config.hyper_connections.num_streams if config.hyper_connections else 1
    inputs = config.num_layers * tokens * streams * config.model_dim * size
    again = settings.kernels.gradient_checkpointing
    block = blocks // config.num_layers
    logits = min(tokens, chunk_rows(device_type)) * config.vocab_size * (2 * size + 2 * FULL)
    return ActivationBytes(
        saved=around + (inputs if again else blocks),
        recomputed=block if again else 0,
        block=block,
        loss=0 if kernel == "native" else logits,
        work=3 * tokens * config.mlp_dim * size,
    )


def _meta_model(plan: MemoryPlan, kernels: KernelSettings) -> Transformer:
    """The model that is trained, without memory, with its adapter."""
    with torch.device("meta"):
        model = Transformer(plan.config, compute_dtype=plan.compute_dtype, kernels=kernels)
    if plan.settings.lora.lora_rank:
        add_lora(model, plan.settings.lora, seed=0)
    return model


def _saved_bytes(plan: MemoryPlan, kernels: KernelSettings) -> int:
    """Bytes of all tensors that autograd saves in one forward pass, but for parameters and buffers."""
    model = _meta_model(plan, kernels)
    shape = (plan.settings.device_batch_size, plan.config.max_seq_len)
    ids = torch.zeros(shape, dtype=torch.int64, device="meta")
    owned = [tensor.untyped_storage() for tensor in (*model.parameters(), *model.buffers())]
    saved: dict[int, torch.UntypedStorage] = {}  # held, so that no other storage gets the same identity

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[id(storage)] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.training_losses(ids, ids, 0.0)
    for storage in owned:
        saved.pop(id(storage), None)
    return sum(storage.nbytes() for storage in saved.values())


class _RankParameters:
    """The parts of the parameters that the first of some ranks has."""

    def __init__(self, model: Transformer, ranks: int, *, shard: bool) -> None:
        self.ranks = ranks
        self.parameters = dict(model.named_parameters())
        whole = replicated_params(model, ranks) if shard else set(self.parameters.values())
        self.sharded = {name for name, parameter in self.parameters.items() if parameter not in whole}
        self.sparse = {
            f"{name}.weight"
            for name, module in model.named_modules()
            if isinstance(module, nn.Embedding) and module.sparse
        }

    def rows(self, parameter: Tensor) -> int:
        """Elements of a share of the rows."""
        return -(-len(parameter) // self.ranks) * parameter[0].numel()

    def weights(self) -> int:
        """Bytes of weights."""
        return FULL * sum(
            self.rows(parameter) if name in self.sharded else parameter.numel()
            for name, parameter in self.parameters.items()
        )


def _gradients(shares: _RankParameters, plan: MemoryPlan, *, accumulates: bool) -> int:
    """Bytes of gradients. Those of shards are whole until a step's last pass; of tables, rows looked up."""
    total = 0
    for name, parameter in shares.parameters.items():
        if name in shares.sparse or not parameter.requires_grad:
            continue
        total += shares.rows(parameter) if name in shares.sharded else parameter.numel()
        total += parameter.numel() if accumulates and name in shares.sharded else 0
    total *= FULL
    engram = plan.config.engram
    if engram is not None and shares.sparse and not plan.settings.lora.lora_rank:
        tokens = plan.settings.total_batch_size // shares.ranks
        looked_up = tokens * len(engram.ngram_orders) * engram.num_heads
        total += len(shares.sparse) * looked_up * (8 + FULL * engram.head_dim)
    return total


def _gathered(shares: _RankParameters, dtype: torch.dtype, *, accumulates: bool) -> int:
    """Bytes of whole weights while shards are used: two blocks, one computing and one on its way, with what
    is sent of their gradients; embedding and head, with their gradients where these do not stay anyway.
    """
    elements: Counter[str] = Counter()
    for name in shares.sharded:
        inside = name.startswith(("blocks.", "multi_token."))
        elements[".".join(name.split(".")[:2]) if inside else ""] += shares.parameters[name].numel()
    around = elements.pop("", 0)
    block = max(elements.values(), default=0)
    return 2 * block * (dtype.itemsize + FULL) + around * FULL * (1 if accumulates else 2)


def _optimizer(shares: _RankParameters, plan: MemoryPlan) -> tuple[int, int]:
    """Bytes of state between steps, exact, and of what a step needs beside it."""
    state = 0
    alike: dict[tuple[bool, torch.Size], int] = {}
    for name, parameter in shares.parameters.items():
        sharded = name in shares.sharded
        if not parameter.requires_grad:
            continue
        if param_role(name) == MATRIX and not plan.settings.lora.lora_rank:
            alike[sharded, parameter.shape] = alike.get((sharded, parameter.shape), 0) + 1
            continue
        dealt = shares.ranks > 1 and parameter.numel() >= SHARDED_FROM
        state += 2 * (shares.rows(parameter) if sharded or dealt else parameter.numel()) + 1
    stacks = []
    for (sharded, (rows, columns)), count in alike.items():
        own = -(-count // shares.ranks)
        momentum = count * -(-rows // shares.ranks) if sharded else own * rows
        state += momentum * columns + (own * max(rows, columns) if plan.settings.rates.muon_beta2 else 0)
        # The stack of gradients and, on several ranks, the exchanged one; the polar factor's own copies.
        stack = FULL * columns * (own * shares.ranks * -(-rows // shares.ranks) if sharded else count * rows)
        polar = own * _polar_bytes(rows, columns, plan.compute_dtype.itemsize)
        stacks.append(stack * (2 if shares.ranks > 1 else 1) + polar)
    in_flight = IN_FLIGHT if shares.ranks > 1 else 1
    return FULL * state, sum(sorted(stacks)[-in_flight:])


def _polar_bytes(rows: int, columns: int, size: int) -> int:
    """Bytes for a matrix: two iterates, their square and its polynomial; or the result twice."""
    elements, square = rows * columns, min(rows, columns) ** 2
    return max(size * 2 * (elements + square), size * elements + 2 * FULL * elements)
