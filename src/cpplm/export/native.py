"""Which models the `nanochat` architecture of `transformers` expresses, and their weights under its names.

It has what our plain recipe has: rotary positions turned the same way, normalized queries and keys, squared
ReLU, norms without weights, capped logits. It has no per-layer scalars. Of these, the scales of the residual
stream can be absorbed: each sublayer reads the normalized stream, so the stream may be divided by the product
of all scales so far, if the matrices that write to it are divided by the same. A mixed-in embedding cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from cpplm.model.config import ModelConfig

ARCHITECTURE = "NanoChatForCausalLM"
SINCE = "5.0"  # version of transformers
# Parts of our names and theirs; those that begin with a dot may stand anywhere, the others in front.
NAMES = {
    "embedding.": "model.embed_tokens.",
    "blocks.": "model.layers.",
    ".attention.query.": ".self_attn.q_proj.",
    ".attention.key.": ".self_attn.k_proj.",
    ".attention.value.": ".self_attn.v_proj.",
    ".attention.output.": ".self_attn.o_proj.",
    ".mlp.up.": ".mlp.fc1.",
    ".mlp.down.": ".mlp.fc2.",
}


def lacking(config: ModelConfig, weights: Mapping[str, Tensor]) -> list[str]:
    """What a model has that `nanochat` does not, in words; empty when it can be expressed.

    Args:
        config: its shape.
        weights: its scalars, by our names.
    """
    layers, engram, streams, dsa = (
        range(config.num_layers),
        config.engram,
        config.hyper_connections,
        config.dsa,
    )
    most = config.max_seq_len - 1  # a window of so many earlier tokens hides none
    windows = [layer for layer, window in enumerate(config.windows()) if window is not None and window < most]
    values = [layer for layer in layers if config.has_value_embedding(layer)]
    mixed = [layer for layer in layers[1:] if weights["embedding_scales"][layer] != 0]
    found: list[str] = []
    if config.mlp == "swiglu":
        found.append("SwiGLU")
    if windows:
        found.append(f"sliding windows in {_named(windows)}")
    if config.qk_scale != 1:
        found.append(f"normalized queries and keys scaled by {config.qk_scale:g}")
    if mixed:
        found.append(f"a share of the embedding mixed in again before {_named(mixed)}")
    if not bool((_scales(weights) > 0).all()):
        found.append("scales of the residual stream that are not positive")
    if values:
        found.append(f"value embeddings in {_named(values)}")
    found += [name for name in ("smear", "induction", "backout") if getattr(config, name)]
    if engram is not None:
        found.append(f"n-gram memory of the kind {engram.kind!r} in {_named(engram.layers)}")
    if streams is not None:
        found.append(f"{streams.num_streams} residual streams (hyper-connections)")
    if dsa is not None:
        found.append(f"sparse attention from layer {dsa.start_layer} on")
    if config.num_heads * config.head_dim != config.model_dim:
        found.append("heads that together are not as wide as the model")
    return found


def _named(layers: Iterable[int]) -> str:
    numbers = list(layers)
    return f"layer{'s' * (len(numbers) != 1)} {', '.join(map(str, numbers))}"


def _scales(weights: Mapping[str, Tensor]) -> Tensor:
    """Per layer, how many times larger its stream is than that of `nanochat`, float64."""
    factors = weights["residual_scales"].double().clone()
    factors[0] += weights["embedding_scales"][0].double()  # before the first layer both are the same stream
    return factors.cumprod(0)


def native_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names of `transformers`, of a model that lacks nothing."""
    scales = _scales(weights)
    renamed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name in ("residual_scales", "embedding_scales") or name.startswith("multi_token."):
            continue
        written = unpadded(name, weight, config)
        if name.endswith((".attention.output.weight", ".mlp.down.weight")):
            written = (weight.double() / scales[int(name.split(".")[1])]).float()
        renamed[rename(name, NAMES)] = written
    return renamed


def rename(name: str, names: Mapping[str, str]) -> str:
    """A name with each part that `names` knows replaced."""
    for ours, theirs in names.items():
        if ours.startswith("."):
            name = name.replace(ours, theirs)
        elif name.startswith(ours):
            name = theirs + name.removeprefix(ours)
    return name


def unpadded(name: str, weight: Tensor, config: ModelConfig) -> Tensor:
    """Without the rows of padding that our tables of the vocabulary have."""
    of_vocabulary = name in ("embedding.weight", "lm_head.weight") or name.endswith(".value_embedding.weight")
    return weight[: config.vocab_size] if of_vocabulary else weight


def native_config(config: ModelConfig) -> dict[str, Any]:
    """What `config.json` says of the architecture."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "nanochat",
        "vocab_size": config.vocab_size,
        "hidden_size": config.model_dim,
        "intermediate_size": config.mlp_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "max_position_embeddings": config.max_seq_len,
        "hidden_act": "relu2",
        "rms_norm_eps": torch.finfo(torch.float32).eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "final_logit_softcapping": config.logit_softcap,
        "attention_bias": False,
    }
