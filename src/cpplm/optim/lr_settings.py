"""Settings of the learning rates; `groups.py` says which parameter learns at which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cpplm.core.errors import UserError


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
    muon_beta2: float = 0.9
    """Muon's decay of the second moment, which evens out rows (NorMuon); 0 turns it off."""
    weight_decay: float = 0.2
    """Cautious weight decay of the matrices at depth 12."""
    weight_decay_by: Literal["depth", "horizon"] = "depth"
    """What it follows: 1/depth^2, or sqrt(batch) / training tokens, which keeps its time scale in epochs."""
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
        for name in ("adam_beta1", "adam_beta2", "muon_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a number from 0 up to, but below, 1."
                )
