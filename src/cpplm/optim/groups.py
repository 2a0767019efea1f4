"""Which parameter learns by which rule at which rate.

Base rates hold at a batch of 2^19 tokens and a width of 768; others follow from them: all rates by the square
root of the batch, AdamW's also by width^-0.5, weight decay by 1/depth^2.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpplm.core.errors import UserError
from cpplm.model.transformer import Transformer
from cpplm.optim.muon import Group, MuonAdamW

REFERENCE_BATCH = 2**19  # tokens
REFERENCE_DIM = 768
REFERENCE_DEPTH = 12


@dataclass(frozen=True)
class Rates:
    """Learning rates, at the reference batch of 2^19 tokens, and AdamW's decays."""

    matrix_lr: float = 0.02
    """Muon's learning rate for the matrices."""
    embedding_lr: float = 0.3
    """AdamW's learning rate for the token embedding."""
    unembedding_lr: float = 0.004
    """AdamW's learning rate for the output head."""
    scalar_lr: float = 0.5
    """AdamW's learning rate for the per-layer scalars."""
    weight_decay: float = 0.2
    """Cautious weight decay of the matrices at depth 12; scales with 1/depth^2."""
    adam_beta1: float = 0.8
    """AdamW's decay of the first moment."""
    adam_beta2: float = 0.95
    """AdamW's decay of the second moment."""

    def __post_init__(self) -> None:
        for name in ("matrix_lr", "embedding_lr", "unembedding_lr", "scalar_lr", "weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(
                    f"--{name} {getattr(self, name)} is not a rate", fix="Use a number from 0 up."
                )
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a number from 0 up to, but below, 1."
                )


def build_optimizer(model: Transformer, rates: Rates, *, batch_tokens: int) -> MuonAdamW:
    """The optimizer for one model; `batch_tokens` is the number of tokens per step."""
    config = model.config
    batch_scale = (batch_tokens / REFERENCE_BATCH) ** 0.5
    adam_scale = batch_scale * (config.model_dim / REFERENCE_DIM) ** -0.5
    decay = rates.weight_decay * (REFERENCE_DEPTH / config.num_layers) ** 2

    def adamw(*names: str, learning_rate: float, beta1: float = rates.adam_beta1) -> Group:
        return Group(names, muon=False, learning_rate=learning_rate, beta1=beta1, beta2=rates.adam_beta2)

    matrices = tuple(name for name, _ in model.named_parameters() if name.startswith("blocks."))
    return MuonAdamW(
        model,
        [
            Group(matrices, muon=True, learning_rate=rates.matrix_lr * batch_scale, weight_decay=decay),
            adamw("embedding.weight", learning_rate=rates.embedding_lr * adam_scale),
            adamw("lm_head.weight", learning_rate=rates.unembedding_lr * adam_scale),
            # A residual scale multiplies through all layers: a hundredth of the rate.
            adamw("residual_scales", learning_rate=0.01 * rates.scalar_lr * batch_scale),
            adamw("embedding_scales", learning_rate=rates.scalar_lr * batch_scale, beta1=0.96),
        ],
        product_dtype=model.compute_dtype,
    )
