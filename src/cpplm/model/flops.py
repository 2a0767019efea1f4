"""Counts of parameters, and of floating-point operations per token, from the configuration alone.

Operations are those of training, forward and backward: 6 per weight of a matrix product (Kaplan et al. 2020,
arXiv 2001.08361, section 2.1), and 12 * heads * head_dim per visible key. Lookups and what is done element by
element are not counted.
"""

from __future__ import annotations

from cpplm.model.config import INDUCTION_LENGTHS, SMEAR_GATE_INPUTS, VALUE_GATE_INPUTS, ModelConfig
from cpplm.model.ngram_hash import table_rows


def count_parameters(config: ModelConfig) -> dict[str, int]:
    """Parameters by part; `total` is their sum."""
    width, vocabulary = config.model_dim, config.padded_vocab_size
    layers = range(config.num_layers)
    parts = {
        "embedding": vocabulary * width,
        "lm_head": vocabulary * width,
        "matrices": config.num_layers * _block_matrices(config),
        "scalars": 2 * config.num_layers + config.smear + config.backout,
        "induction": config.induction * width**2,
    }
    parts["scalars"] += config.induction * len(INDUCTION_LENGTHS)
    with_values = sum(config.has_value_embedding(layer) for layer in layers)
    parts["value_embeddings"] = with_values * vocabulary * config.num_kv_heads * config.head_dim
    parts["gates"] = with_values * min(VALUE_GATE_INPUTS, width) * config.num_kv_heads
    parts["gates"] += config.smear * min(SMEAR_GATE_INPUTS, width)
    parts["engram_tables"], parts["engram"], taps = _engram(config)
    parts["indexer"] = _indexer_matrices(config) * sum(config.is_sparse(layer) for layer in layers)
    parts["multi_token"] = _multi_token_matrices(config)
    parts["connections"] = _connections(config)
    if config.hyper_connections:
        count = config.hyper_connections.num_streams
        parts["scalars"] += _sublayers(config) * (count * (2 + count) + 3)
    parts["scalars"] += taps
    return {**parts, "total": sum(parts.values())}


def count_scaling_parameters(config: ModelConfig) -> int:
    """Parameters that a data:parameter ratio refers to: all but the tables that layers look up."""
    parts = count_parameters(config)
    return parts["total"] - parts["value_embeddings"] - parts["engram_tables"]


def count_flops(config: ModelConfig, seq_len: int | None = None) -> dict[str, int]:
    """Floating-point operations of training on one token by part; `total` is their sum.

    Args:
        config: the model.
        seq_len: tokens of a row; the context length unless given.
    """
    seq_len = seq_len or config.max_seq_len
    parameters = count_parameters(config)
    depth = config.mtp.depth if config.mtp else 0
    spans = [seq_len if window is None else min(window, seq_len) for window in config.windows()]
    spans += [seq_len] * depth
    per_key = 12 * config.num_heads * config.head_dim
    flops = {
        "matrices": 6 * sum(parameters[part] for part in ("matrices", "gates", "engram", "induction")),
        "lm_head": 6 * (1 + depth) * config.vocab_size * config.model_dim,  # padding is left out
        "multi_token": 6 * parameters["multi_token"],
        "attention": per_key * sum(spans),
        "indexer": 0,
        "connections": 6 * parameters["connections"],
    }
    if config.dsa:
        sparse_layers = config.num_layers - config.dsa.start_layer
        # Nothing flows from the indexer into the layers below: 4 instead of 6 per weight.
        flops["indexer"] = 4 * parameters["indexer"]
        flops["indexer"] += 6 * config.dsa.indexer_heads * config.dsa.indexer_dim * seq_len * sparse_layers
    if config.hyper_connections:  # reading N streams, mixing them N by N
        count = config.hyper_connections.num_streams
        flops["connections"] += 6 * _sublayers(config) * (count + count**2) * config.model_dim
    return {**flops, "total": sum(flops.values())}


def _block_matrices(config: ModelConfig) -> int:
    """Weights of attention and MLP of one layer."""
    attention = config.model_dim * config.head_dim * 2 * (config.num_heads + config.num_kv_heads)
    return attention + (3 if config.mlp == "swiglu" else 2) * config.mlp_dim * config.model_dim


def _sublayers(config: ModelConfig) -> int:
    return 2 * config.num_layers + (len(config.engram.layers) if config.engram else 0)


def _connections(config: ModelConfig) -> int:
    if config.hyper_connections is None:
        return 0
    count = config.hyper_connections.num_streams
    return _sublayers(config) * count * config.model_dim * count * (2 + count)


def _engram(config: ModelConfig) -> tuple[int, int, int]:
    """Table entries, weights of matrices, and taps."""
    if config.engram is None:
        return 0, 0, 0
    memory, width, layers = config.engram, config.model_dim, len(config.engram.layers)
    if memory.kind == "local":
        bottleneck = layers * memory.bottleneck_dim
        return 0, 2 * width * bottleneck, sum(memory.ngram_orders) * bottleneck
    entries = sum(sum(table_rows(memory, layer)) for layer in memory.layers) * memory.head_dim
    width_of_ngrams = len(memory.ngram_orders) * memory.num_heads * memory.head_dim
    return entries, layers * 2 * width_of_ngrams * width, layers * memory.kernel_size * width


def _indexer_matrices(config: ModelConfig) -> int:
    if config.dsa is None:
        return 0
    heads, width = config.dsa.indexer_heads, config.dsa.indexer_dim
    return config.model_dim * (heads * (width + 1) + width)


def _multi_token_matrices(config: ModelConfig) -> int:
    depth = config.mtp.depth if config.mtp else 0
    return depth * (2 * config.model_dim**2 + _block_matrices(config))
