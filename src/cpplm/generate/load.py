"""A run's checkpoint as an engine."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_device, choose_dtype
from cpplm.core.storage import split_step
from cpplm.generate.engine import Engine
from cpplm.generate.settings import ModelSource
from cpplm.model.attention import Attention
from cpplm.model.block import TransformerBlock
from cpplm.model.fused_decode import enable_decode_kernels
from cpplm.model.kernels.onednn_linear import pack_linear_layers
from cpplm.model.kernels.quantized_linear import CompactLinear, can_compact
from cpplm.model.quantized.packing import QuantizedWeight, dense_weights
from cpplm.model.transformer import Transformer
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint, open_run
from cpplm.train.checkpoint.weights import load_model, load_quantized


def load_engine(source: ModelSource) -> tuple[Engine, Checkpoint]:
    """The engine, and the checkpoint it was loaded from.

    Raises:
        UserError: no such run, checkpoint or device.
    """
    device = choose_device(source.device_type)
    checkpoint = open_run(source.run, None if source.step < 0 else source.step)
    dtype = choose_dtype(source.precision, device)
    weights = quantized = None
    if QUANTIZATION in checkpoint.files and device.type == "cpu" and dtype == torch.bfloat16:
        tensors, quantized = load_quantized(checkpoint)
        weights = dense_weights(tensors, quantized)
    model = load_model(checkpoint, device=device, compute_dtype=dtype, weights=weights)
    prepare_for_inference(model, quantized)
    return Engine(model, checkpoint.tokenizer()), checkpoint


def load_adapter(run: str, base: Engine, base_checkpoint: Checkpoint) -> tuple[Engine, Checkpoint]:
    """The engine of an adapter, merged, for use beside that of its base, and its checkpoint.

    What the adapter leaves as it is (embeddings, output head, tables) both have in the same memory.

    Args:
        run: RUN or RUN:STEP.
        base: see `load_engine`.
        base_checkpoint: it was loaded from.

    Raises:
        UserError: no such run, or it is no adapter of this base.
    """
    checkpoint = open_run(*split_step(run))
    parent = checkpoint.parent if checkpoint.is_adapter else None
    if parent is None or parent["manifest"] != base_checkpoint.manifest_hash:
        raise UserError(
            f"{checkpoint.path()} is no adapter of {base_checkpoint.path()}",
            fix="Serve the run that --init_from of the adapter named.",
        )
    model = load_model(checkpoint, device=base.model.device, compute_dtype=base.model.compute_dtype)
    prepare_for_inference(model)
    shared = dict(base.model.named_parameters())
    for name, parameter in model.named_parameters():
        if name in shared and torch.equal(parameter, shared[name]):
            parameter.data = shared[name].data
    return Engine(model, base.tokenizer), checkpoint


def prepare_for_inference(model: Transformer, quantized: Mapping[str, QuantizedWeight] | None = None) -> None:
    """Make a model ready to decode, in place; afterwards it cannot be trained.

    Matrices and tables are kept in the dtype in which they are used anyway: training keeps them in float32
    and rounds them for each pass, which token by token would take most of the time. Those of queries, keys
    and values become one, on a CPU all are packed, and in bfloat16 few tokens at a time have kernels of
    their own. Weights of few bits stay so where there are kernels for them.

    Args:
        model: with its weights.
        quantized: those of its linear layers that have few bits, by the layers' names.
    """
    for module in list(model.modules()):
        if isinstance(module, Attention):
            module.fuse_qkv()
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.to(model.compute_dtype)
    compact_layers(model, quantized or {}, model.device, model.compute_dtype)
    pack_linear_layers(model, keep_weights=("lm_head",))  # whose weight the loss reads
    for module in model.modules():
        if isinstance(module, TransformerBlock) and model.compute_dtype == torch.bfloat16:
            enable_decode_kernels(module)


def compact_layers(
    model: nn.Module, quantized: Mapping[str, QuantizedWeight], device: torch.device, dtype: torch.dtype
) -> None:
    """Put layers of few bits in the place of linear ones, in place, where there are kernels for them."""
    for name, module in list(model.named_modules()):
        parts = [name]
        if name.endswith(".qkv"):
            parts = [f"{name.removesuffix('qkv')}{part}" for part in ("query", "key", "value")]
        weights = [quantized[part] for part in parts if part in quantized]
        is_whole = isinstance(module, nn.Linear) and module.bias is None and len(weights) == len(parts)
        if is_whole and can_compact(weights, device, dtype):
            model.set_submodule(name, CompactLinear(weights))
