"""Small models with each feature alone and all of them together, for tests."""

import dataclasses
import random

import torch

from cpplm.model.config import (
    EngramConfig,
    HyperConnectionsConfig,
    ModelConfig,
    MultiTokenConfig,
    SparseAttentionConfig,
)
from cpplm.model.quantized.recipe import WeightFormat
from cpplm.model.transformer import Transformer

PLAIN = ModelConfig(
    vocab_size=100, num_layers=4, model_dim=32, num_heads=4, num_kv_heads=2, head_dim=8, max_seq_len=16
)
MEMORY = EngramConfig(layers=(0, 2), num_heads=2, head_dim=4, table_size=50, kernel_size=3)
LOCAL = EngramConfig(kind="local", layers=(1, 3), ngram_orders=(2, 3, 4), bottleneck_dim=8)
SPARSE = SparseAttentionConfig(start_layer=2, top_k=5, local_window=2, indexer_heads=2, indexer_dim=4)

CHANGES = {
    "plain": {},
    "values": {"value_embeddings": True, "qk_scale": 1.2},
    "swiglu": {"mlp": "swiglu"},
    "smear": {"smear": True},
    "induction": {"induction": True},
    "backout": {"backout": True, "residual_scales": (1.15, 1.05), "embedding_scales": (0.2, 0.05)},
    "memory": {"engram": MEMORY},
    "local": {"engram": LOCAL},
    "streams": {"hyper_connections": HyperConnectionsConfig(num_streams=3)},
    "further": {"mtp": MultiTokenConfig(depth=2)},
    "sparse": {"dsa": SPARSE},
}
LLAMA = {
    "mlp": "swiglu", "window_pattern": "L", "qk_norm": False, "embedding_norm": False, "layer_scales": False,
    "logit_softcap": 0.0,
}  # fmt: skip
# SwiGLU takes the place of what all models have, so it is no part of "all"; a Llama leaves much of that out.
ADDED = [change for name, change in CHANGES.items() if name != "swiglu"]
ALL = {key: value for change in ADDED for key, value in change.items()} | {"engram": MEMORY}
CONFIGS = {
    name: dataclasses.replace(PLAIN, **change)
    for name, change in {**CHANGES, "llama": LLAMA, "all": ALL}.items()
}


def _mixture(seed: int) -> ModelConfig:
    """About half of the features, SwiGLU and both kinds of n-gram memory among them."""
    names = [name for name in CHANGES if random.Random(f"{seed} {name}").random() < 0.5]
    return dataclasses.replace(
        PLAIN, **{key: value for name in names for key, value in CHANGES[name].items()}
    )


MIXED = {name: CONFIGS[name] for name in ("plain", "llama", "all")}
MIXED |= {f"mixture {seed}": _mixture(seed) for seed in range(8)}
"""Instead of each feature alone: what breaks one of them breaks in half of the mixtures."""


def for_decoding(config: ModelConfig) -> ModelConfig:
    """With windows of one whole block and few iterations."""
    streams = config.hyper_connections and HyperConnectionsConfig(3, sinkhorn_iterations=2)
    return dataclasses.replace(config, max_seq_len=32, hyper_connections=streams)


DECODED = {
    name: for_decoding(config)
    for name, config in {**CONFIGS, "all, local": dataclasses.replace(CONFIGS["all"], engram=LOCAL)}.items()
}
DECODED_MIXED = {name: for_decoding(config) for name, config in MIXED.items()}


def random_config(seed: int) -> ModelConfig:
    """Any mixture of features, but for what float32 cannot compare.

    Norms of two channels are nearly signs: PyTorch's own gradients are then 4e-4 off those of float64. Taking
    a share of the last layer's output off itself (backout in a model of two layers) has no gradient.
    """
    chance = random.Random(seed)
    layers = chance.randint(1, 9)
    some = tuple(sorted(chance.sample(range(layers), chance.randint(1, layers))))
    engram = chance.choice(
        [
            None,
            EngramConfig(
                layers=some, num_heads=2, head_dim=4, table_size=20, kernel_size=chance.randint(1, 4)
            ),
            EngramConfig(
                kind="local", layers=some, ngram_orders=chance.choice([(2,), (2, 4)]), bottleneck_dim=5
            ),
        ]
    )
    sparse = SparseAttentionConfig(
        start_layer=chance.randrange(layers),
        top_k=chance.choice([4, 9, 40]),
        local_window=chance.randint(0, 3),
        indexer_heads=chance.randint(1, 3),
        indexer_dim=chance.choice([2, 6]),
    )
    config = ModelConfig(
        vocab_size=chance.randint(65, 140),
        num_layers=layers,
        model_dim=chance.choice([8, 24, 40]),
        num_heads=4,
        num_kv_heads=chance.choice([1, 2, 4]),
        head_dim=chance.choice([4, 8]),
        max_seq_len=chance.choice([9, 33]),
        window_pattern="".join(chance.choices("SL", k=chance.randint(1, 4))),
        mlp=chance.choice(["relu2", "swiglu"]),
        mlp_ratio=chance.randint(1, 4),
        rope_base=chance.choice([100.0, 100_000.0]),
        qk_scale=chance.choice([1.0, 1.2]),
        logit_softcap=chance.choice([5.0, 15.0]),
        value_embeddings=chance.random() < 0.5,
        smear=chance.random() < 0.5,
        backout=chance.random() < 0.5 and layers > 2,
        engram=engram,
        hyper_connections=chance.choice([None, HyperConnectionsConfig(chance.randint(2, 4), 5)]),
        mtp=chance.choice([None, MultiTokenConfig(chance.randint(1, 2))]),
        dsa=chance.choice([None, sparse]),
        induction=chance.random() < 0.5,
    )
    bare = {name: value for name, value in LLAMA.items() if name not in ("mlp", "window_pattern")}
    return config if chance.random() < 0.7 else dataclasses.replace(config, qk_scale=1.0, **bare)


def random_model(config: ModelConfig, seed: int = 0) -> Transformer:
    """A model whose every weight matters (the real initialisation has zeros)."""
    model = Transformer(config)
    model.init_weights(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def random_ids(batch: int, length: int, config: ModelConfig = PLAIN) -> torch.Tensor:
    return torch.randint(config.vocab_size, (batch, length), generator=torch.Generator().manual_seed(7))


def packed_bytes(weight_format: WeightFormat, rows: int, columns: int) -> int:
    """Bytes of a matrix in a packed file: codes of few bits, scales of two bytes."""
    groups, rank = columns // weight_format.group_size, weight_format.rank
    num_scales = rank * (rows + groups + 1) if rank else rows * groups
    return -(-rows * columns * weight_format.codebook.bits // 8) + 2 * num_scales
