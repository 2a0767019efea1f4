"""A model that is a plain Llama, in the terms of `LlamaForCausalLM` and of llama.cpp.

Norms there have weights: ones. Our rotation turns the other way round (`cpplm.model.layers.rotate`): that of
`transformers` turns the pair (second half, first half) as ours turns (first, second), so the halves of each
query and key head change places. llama.cpp wants the two of a pair side by side.

Shapes: H heads, D head width, C model_dim.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.model.config import NORM_EPSILON, ModelConfig

ARCHITECTURE = "LlamaForCausalLM"
_HEAD_NAMES = {"embedding.weight": "model.embed_tokens.weight", "lm_head.weight": "lm_head.weight"}
_LAYER_NAMES = {
    "attention.query.weight": "self_attn.q_proj.weight",
    "attention.key.weight": "self_attn.k_proj.weight",
    "attention.value.weight": "self_attn.v_proj.weight",
    "attention.output.weight": "self_attn.o_proj.weight",
    "mlp.gate.weight": "mlp.gate_proj.weight",
    "mlp.up.weight": "mlp.up_proj.weight",
    "mlp.down.weight": "mlp.down_proj.weight",
}
_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
_OF_LAYER = re.compile(r"blocks\.(\d+)\.(.+)")


def refuse_other_models(config: ModelConfig) -> None:
    """Refuse a model that a plain Llama does not compute.

    Raises:
        UserError: it names what stands in the way.
    """
    if features := _other_features(config):
        raise UserError(
            f"this model is no plain Llama: it has {', '.join(features)}",
            fix="Use --to hf, which brings its own code; llama.cpp runs what --preset llama trains.",
        )


def _other_features(config: ModelConfig) -> list[str]:
    """What a Llama does not have, in words. Heads for further tokens only draft: they are left out."""
    features = {
        "sliding windows": any(window is not None for window in config.windows()),
        "squared ReLU": config.mlp != "swiglu",
        "normalized queries and keys": config.qk_norm,
        "a normalized embedding": config.embedding_norm,
        "scalars of each layer": config.layer_scales,
        "capped logits": config.logit_softcap != 0,
        "value embeddings": config.value_embeddings,
        "smear": config.smear,
        "backout": config.backout,
        "induction": config.induction,
        "n-gram memory": config.engram is not None,
        "several residual streams": config.hyper_connections is not None,
        "sparse attention": config.dsa is not None,
    }
    return [name for name, there in features.items() if there]


def exported_config(config: ModelConfig) -> dict[str, Any]:
    """The architecture's part of `config.json`."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.model_dim,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": config.rope_base,
        "attention_bias": False,
        "mlp_bias": False,
    }


def exported_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of `LlamaForCausalLM`."""
    return renamed_weights(config, weights) | norm_weights(config)


def renamed_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names of `LlamaForCausalLM`, without the rows of padding that our tables have.

    Anything that has a row for each of a weight's will do.
    """
    exported: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name in _HEAD_NAMES:
            exported[_HEAD_NAMES[name]] = weight[: config.vocab_size]
        elif match := _OF_LAYER.fullmatch(name):
            rotated = match[2] in ("attention.query.weight", "attention.key.weight")
            exported[f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}"] = (
                _heads(weight, config).flip(1).reshape(weight.shape) if rotated else weight
            )
    return exported


def norm_weights(config: ModelConfig) -> dict[str, Tensor]:
    """Those of norms, which we do not have: ones."""
    names = [f"model.layers.{layer}.{norm}" for layer in range(config.num_layers) for norm in _NORMS]
    return {name: torch.ones(config.model_dim) for name in (*names, "model.norm.weight")}


def interleaved(config: ModelConfig, weight: Tensor) -> Tensor:
    """A query or key matrix of `exported_weights` with the two rows of each rotated pair side by side."""
    return _heads(weight, config).transpose(1, 2).reshape(weight.shape)


def _heads(weight: Tensor, config: ModelConfig) -> Tensor:
    """Shape H2(D/2)C: the halves of each head apart."""
    return weight.unflatten(0, (-1, 2, config.head_dim // 2))
