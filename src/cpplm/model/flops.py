"""Counts of a model's parameters, and of floating-point operations per token.

Operations are those of training, forward and backward: 6 per weight of a matrix product (Kaplan et al. 2020,
arXiv 2001.08361, section 2.1), and 12 * heads * head_dim per visible key. Lookups and what is done element by
element are not counted.
"""

from __future__ import annotations

import functools
import re

import torch

from cpplm.model.config import ModelConfig
from cpplm.model.hf_config import HfModelConfig
from cpplm.model.transformer import Transformer

# The first that matches a weight's name says which part it is of.
_PARTS = {
    "multi_token": r"multi_token\.",
    "indexer": r".*\.indexer\.",
    "value_embeddings": r".*\.value_embedding\.",
    "engram_tables": r".*\.engram\.table\.",
    "connections": r".*\.scores\.weight",
    "engram": r".*\.engram\..*\.weight",
    "gates": r".*_gate\.weight",
    "induction": r"induction\..*\.weight",
    "embedding": r"embedding\.weight",
    "lm_head": r"lm_head\.weight",
    "matrices": r".*\.weight",
    "scalars": r"",
}


def count_parameters(config: ModelConfig | HfModelConfig) -> dict[str, int]:
    """Parameters by part; `total` is their sum."""
    if isinstance(config, HfModelConfig):
        return config.parameters()
    parts = dict(zip(_PARTS, _count(config), strict=True))
    return {**parts, "total": sum(parts.values())}


@functools.cache
def _count(config: ModelConfig) -> tuple[int, ...]:
    """The parts in their order, from a model without memory."""
    parts = dict.fromkeys(_PARTS, 0)
    with torch.device("meta"):
        model = Transformer(config)
    for name, weight in model.named_parameters():
        parts[next(part for part, pattern in _PARTS.items() if re.match(pattern, name))] += weight.numel()
    return tuple(parts.values())


def count_scaling_parameters(config: ModelConfig) -> int:
    """Parameters that a data:parameter ratio refers to: all but the tables that layers look up."""
    parts = count_parameters(config)
    return parts["total"] - parts["value_embeddings"] - parts["engram_tables"]


def count_flops(config: ModelConfig | HfModelConfig) -> dict[str, int]:
    """Floating-point operations of training on one token of a whole row, by part; `total` is their sum."""
    if isinstance(config, HfModelConfig):
        return config.flops()
    seq_len = config.max_seq_len
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


def _sublayers(config: ModelConfig) -> int:
    return 2 * config.num_layers + (len(config.engram.layers) if config.engram else 0)
