"""Models as our own modeling code for `transformers` (`cpplm.export.modeling`) reads them: any of ours.

The heads that predict further tokens are left out: they only draft what the model then checks, and
`transformers` would not ask them.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from torch import Tensor

from cpplm.export import native
from cpplm.model.config import INDUCTION_LENGTHS, EngramConfig, ModelConfig
from cpplm.model.ngram_hash import hash_multipliers, table_rows

ARCHITECTURE = "CpplmForCausalLM"
SOURCES = ("configuration_cpplm.py", "modeling_cpplm.py", "attention_cpplm.py", "memory_cpplm.py")
NAMES = {
    **native.NAMES,
    ".mlp.gate.": ".mlp.gate_proj.",
    ".mlp.up.": ".mlp.up_proj.",
    ".mlp.down.": ".mlp.down_proj.",
    ".attention.value_": ".self_attn.value_",
    ".attention.indexer.": ".self_attn.indexer.",
}
TOP = ("residual_scales", "embedding_scales", "smear_", "backout_scale", "induction.")  # of the model itself


def sources() -> dict[str, bytes]:
    """The files of modeling code."""
    folder = files("cpplm.export").joinpath("modeling")
    return {name: folder.joinpath(name).read_bytes() for name in SOURCES}


def custom_weights(config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the names of the modeling code."""
    renamed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name.startswith("multi_token."):
            continue
        prefix = "model." if name.startswith(TOP) else ""
        renamed[prefix + native.rename(name, NAMES)] = native.unpadded(name, weight, config)
    return renamed


def custom_config(config: ModelConfig) -> dict[str, Any]:
    """What `config.json` says of the architecture; `CpplmConfig` explains each entry."""
    windows, streams, dsa = config.windows(), config.hyper_connections, config.dsa
    short = [window for window in windows if window is not None]
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "cpplm",
        "auto_map": {
            "AutoConfig": "configuration_cpplm.CpplmConfig",
            "AutoModel": "modeling_cpplm.CpplmModel",
            "AutoModelForCausalLM": "modeling_cpplm.CpplmForCausalLM",
        },
        "vocab_size": config.vocab_size,
        "hidden_size": config.model_dim,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "silu" if config.mlp == "swiglu" else "relu2",
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_seq_len,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
        "sliding_window": short[0] + 1 if short else None,  # there the token itself counts
        "rope_theta": config.rope_base,
        "qk_scale": config.qk_scale,
        "final_logit_softcapping": config.logit_softcap,
        "value_embedding_layers": [
            layer for layer in range(config.num_layers) if config.has_value_embedding(layer)
        ],
        "smear": config.smear,
        "induction_lengths": list(INDUCTION_LENGTHS) if config.induction else None,
        "backout_layer": config.backout_layer() if config.backout else None,
        "ngrams": None if config.engram is None else _ngrams(config.engram),
        "streams": streams and {"count": streams.num_streams, "iterations": streams.sinkhorn_iterations},
        "sparse_attention": dsa
        and {
            "first_layer": dsa.start_layer,
            "top_k": dsa.top_k,
            "local_window": dsa.local_window,
            "heads": dsa.indexer_heads,
            "head_dim": dsa.indexer_dim,
        },
    }


def _ngrams(engram: EngramConfig) -> dict[str, Any]:
    shape = {"kind": engram.kind, "layers": list(engram.layers), "orders": list(engram.ngram_orders)}
    if engram.kind == "local":
        return {**shape, "bottleneck_dim": engram.bottleneck_dim}
    return {
        **shape,
        "heads": engram.num_heads,
        "head_dim": engram.head_dim,
        "taps": engram.kernel_size,
        "table_rows": [table_rows(engram, layer) for layer in engram.layers],
        "multipliers": [hash_multipliers(engram, layer) for layer in engram.layers],
    }
