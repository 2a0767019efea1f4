"""The shape of a model: pure data, the contract between trainer, engine and checkpoint.

No torch here, so that any backend can read it. One dial, the depth, sets everything else:
`model_dim = 64 * depth`, heads of 128, learning rates and horizon follow in the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpplm.core.errors import UserError

VERSION = 1
VOCAB_MULTIPLE = 64  # tensor cores want matrix sides that are multiples of this


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer. All sizes in elements, lengths in tokens."""

    vocab_size: int
    """Ids of the tokenizer; the embedding is padded to a multiple of 64."""
    num_layers: int
    """Transformer blocks."""
    model_dim: int
    """Width of the residual stream."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads; fewer than `num_heads` is grouped-query attention."""
    head_dim: int
    """Width of one head."""
    max_seq_len: int = 2048
    """Context length trained for."""
    window_pattern: str = "SSSL"
    """Attention span per layer, tiled: L = full context, S = half of it. The last layer is always L."""
    mlp_ratio: int = 4
    """Width of the MLP's hidden layer over `model_dim`."""
    rope_base: float = 10_000.0
    """Base of the rotary position frequencies."""
    logit_softcap: float = 15.0
    """Logits pass through cap * tanh(logits / cap)."""
    version: int = VERSION
    """Format of this record."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "num_layers", "model_dim", "num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}, it must be at least 1")
        if self.head_dim % 2:
            raise UserError(
                f"head_dim {self.head_dim} is odd", fix="Rotary positions turn pairs: make it even."
            )
        if self.num_heads % self.num_kv_heads:
            raise UserError(
                f"{self.num_heads} query heads cannot share {self.num_kv_heads} key-value heads",
                fix="Make --num_kv_heads a divisor of the number of heads.",
            )
        if not self.window_pattern or set(self.window_pattern) - {"S", "L"}:
            raise UserError(
                f"window pattern {self.window_pattern!r}", fix="Use only L (full) and S (half), as SSSL."
            )
        if self.version != VERSION:
            raise UserError(
                f"model format {self.version} is not known", fix=f"This cpplm reads format {VERSION}."
            )

    @classmethod
    def from_depth(
        cls,
        depth: int,
        *,
        vocab_size: int,
        max_seq_len: int = 2048,
        aspect_ratio: int = 64,
        head_dim: int = 128,
        num_kv_heads: int | None = None,
        window_pattern: str = "SSSL",
    ) -> ModelConfig:
        """The preset of one depth: width `depth * aspect_ratio`, rounded up to whole heads."""
        num_heads = max(1, -(-depth * aspect_ratio // head_dim))
        return cls(
            vocab_size=vocab_size,
            num_layers=depth,
            model_dim=num_heads * head_dim,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads or num_heads,
            head_dim=head_dim,
            max_seq_len=max_seq_len,
            window_pattern=window_pattern,
        )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding and of the output head."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def windows(self) -> list[int | None]:
        """Per layer, how many earlier tokens a token sees besides itself; None is all of them."""
        half = max(1, self.max_seq_len // 2)
        pattern = self.window_pattern * (self.num_layers // len(self.window_pattern) + 1)
        spans = [half if letter == "S" else None for letter in pattern[: self.num_layers]]
        return [*spans[:-1], None]

    def num_parameters(self) -> dict[str, int]:
        """Parameters by part; `total` is their sum."""
        attention = self.model_dim * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        mlp = 2 * self.mlp_ratio * self.model_dim**2
        parts = {
            "embedding": self.padded_vocab_size * self.model_dim,
            "lm_head": self.padded_vocab_size * self.model_dim,
            "matrices": self.num_layers * (attention + mlp),
            "scalars": 2 * self.num_layers,
        }
        return {**parts, "total": sum(parts.values())}

    def flops_per_token(self, seq_len: int | None = None) -> int:
        """Floating-point operations of training on one token: forward and backward, 6 per weight of a matrix
        product (Kaplan et al. 2020, section 2.1) plus 12 * heads * head_dim * visible keys for attention.
        """
        seq_len = seq_len or self.max_seq_len
        parameters = self.num_parameters()
        spans = [seq_len if window is None else min(window, seq_len) for window in self.windows()]
        attention = sum(12 * self.num_heads * self.head_dim * span for span in spans)
        return 6 * (parameters["matrices"] + parameters["lm_head"]) + attention
