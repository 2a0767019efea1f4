"""The shape of a model: pure data, the contract between trainer, engine, checkpoint and backends.

No torch here, so that any backend can read it. One dial, the depth, sets everything else:
`model_dim = 64 * depth`, heads of 128; learning rates and horizon follow in the trainer.

A field's default is the plain choice, so that a record written before the field existed means what it meant.
The presets turn features on: `ModelConfig.from_depth` is our default (LOG.md says how it was chosen),
`ModelConfig.seed` and `ModelConfig.nanochat` are the recipes that it is measured against,
`ModelConfig.llama` is what other software runs, too.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, Literal

from cpplm.core.errors import UserError

VERSION = 1
VOCAB_MULTIPLE = 64  # tensor cores want matrix sides that are multiples of this
WINDOW_MULTIPLE = 128  # the tile of flash kernels; quarter windows are rounded up to it
MLP_MULTIPLE = 64  # of a hidden layer whose width is not a multiple of the model's
VALUE_GATE_INPUTS = 12  # channels of the residual stream that gate value embeddings, as in nanochat
SMEAR_GATE_INPUTS = 24  # channels that gate the token before, likewise
NORM_EPSILON = 2.0**-23  # of every RMSNorm: that of float32, torch's default, also for bfloat16 inputs
INDUCTION_LENGTHS = (1, 2, 4, 8)  # of matches that are told apart: each the double of the one before


def _at_least(settings: object, minimum: int, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < minimum:
            owner = type(settings).__name__
            raise UserError(f"{owner}: {name} is {getattr(settings, name)}, it must be at least {minimum}")


@dataclass(frozen=True)
class EngramConfig:
    """Memory of n-grams beside the transformer's own, read in some layers.

    "memory" is the conditional memory of Cheng et al. 2026 (arXiv 2601.07372): hashed n-grams address tables
    of embeddings. "local" is a causal branch without tables: weighted sums of the last n states in a
    bottleneck.
    """

    kind: Literal["memory", "local"] = "memory"
    """Tables of hashed n-grams, or a branch over the last states."""
    layers: tuple[int, ...] = (1,)
    """Layers, from 0, before whose attention it is read."""
    ngram_orders: tuple[int, ...] = (2, 3)
    """Lengths of the n-grams."""
    bottleneck_dim: int = 64
    """Width of the local branch."""
    num_heads: int = 8
    """Memory: hash functions, each with a table, per order."""
    head_dim: int = 16
    """Memory: width of one embedding."""
    table_size: int = 20_000
    """Memory: least rows of a table; each table has another prime number of rows."""
    kernel_size: int = 4
    """Memory: taps of the convolution behind the gate."""

    @classmethod
    def for_model(
        cls,
        num_layers: int,
        model_dim: int,
        *,
        kind: Literal["memory", "local"] = "memory",
        layers: tuple[int, ...] = (),
        ngram_orders: tuple[int, ...] = (),
        bottleneck_dim: int = 0,
        num_heads: int = 8,
        head_dim: int = 0,
        **rest: Any,
    ) -> EngramConfig:
        """Derive what is not given from the model: in its second and middle layer, as wide as it is."""
        orders = ngram_orders or ((2, 3) if kind == "memory" else (2, 3, 4))
        return cls(
            kind=kind,
            layers=layers or tuple(sorted({min(1, num_layers - 1), num_layers // 2})),
            ngram_orders=orders,
            bottleneck_dim=bottleneck_dim or max(1, model_dim // 4),
            num_heads=num_heads,
            head_dim=head_dim or max(1, model_dim // max(1, len(orders) * num_heads)),
            **rest,
        )

    def __post_init__(self) -> None:
        _at_least(self, 1, "bottleneck_dim", "num_heads", "head_dim", "table_size", "kernel_size")
        if not self.layers or min(self.layers) < 0 or len(set(self.layers)) < len(self.layers):
            raise UserError(f"engram layers {self.layers}", fix="Name each layer once, counted from 0.")
        if not self.ngram_orders or not all(2 <= order <= 8 for order in self.ngram_orders):
            raise UserError(f"engram orders {self.ngram_orders}", fix="Use lengths from 2 to 8.")


@dataclass(frozen=True)
class HyperConnectionsConfig:
    """Residual streams, mixed by doubly stochastic matrices (mHC, Xie et al. 2025, arXiv 2512.24880)."""

    num_streams: int = 4
    """Copies of the residual stream."""
    sinkhorn_iterations: int = 20
    """Alternating normalizations of rows and columns."""

    def __post_init__(self) -> None:
        _at_least(self, 2, "num_streams")
        _at_least(self, 1, "sinkhorn_iterations")


@dataclass(frozen=True)
class MultiTokenConfig:
    """Heads that predict tokens further ahead (MTP, DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

    depth: int = 1
    """Additional tokens predicted at each position, one after the other."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "depth")


@dataclass(frozen=True)
class SparseAttentionConfig:
    """Attention to the keys that an indexer scores highest (DSA, DeepSeek-V3.2, arXiv 2512.02556)."""

    start_layer: int = 7
    """First layer with it, from 0; all later layers have it too, and look at the whole context."""
    top_k: int = 1024
    """Keys that a query attends to, the local window included."""
    local_window: int = 128
    """The nearest earlier tokens, which are always among them."""
    indexer_heads: int = 16
    """Heads of the indexer."""
    indexer_dim: int = 32
    """Width of an indexer head."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "indexer_heads", "indexer_dim")
        _at_least(self, 0, "start_layer", "local_window")
        if self.indexer_dim % 2:
            raise UserError(f"dsa indexer_dim {self.indexer_dim} is odd", fix="Make it even.")
        if self.top_k <= self.local_window:
            raise UserError(
                f"dsa top_k {self.top_k} leaves no choice beside a local window of {self.local_window}",
                fix="Raise --dsa_top_k_ratio or lower --dsa_local_window.",
            )


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
    """Attention span per layer, tiled: L = full context, S = short. The last layer is always L."""
    short_window: Literal["half", "quarter"] = "half"
    """Span of S: half the context, or a quarter of it rounded up to 128."""
    window_size: int = 0
    """Span of S in tokens, whatever the context (0 = as `short_window` says)."""
    mlp: Literal["relu2", "swiglu"] = "relu2"
    """Two matrices around a squared ReLU, or SwiGLU: three, one of which gates."""
    mlp_ratio: int = 4
    """Width of the MLP's hidden layer over `model_dim`; of SwiGLU's two thirds of it, rounded up to 64."""
    rope_base: float = 10_000.0
    """Base of the rotary position frequencies."""
    qk_norm: bool = True
    """Queries and keys are normalised."""
    qk_scale: float = 1.0
    """Normalised queries and keys are multiplied by this, so attention scores by its square."""
    embedding_norm: bool = True
    """The token embedding is normalised before the first layer."""
    layer_scales: bool = True
    """Before each layer learned scalars scale the residual stream and mix the embedding in again."""
    logit_softcap: float = 15.0
    """Logits pass through cap * tanh(logits / cap); 0 is no cap."""
    value_embeddings: bool = False
    """Every second layer, the last included, adds a gated embedding of the token to its values."""
    smear: bool = False
    """Each token's embedding takes in a gated share of the one before it."""
    backout: bool = False
    """A learned share of the middle layer's output is taken off the last one's."""
    induction: bool = False
    """The model is told which token followed the longest earlier match of the last ones."""
    residual_scales: tuple[float, float] = (1.0, 1.0)
    """Initial scale of the residual stream before the first and the last layer; linear between them."""
    embedding_scales: tuple[float, float] = (0.0, 0.0)
    """Initial share of the embedding that is mixed in again, likewise."""
    embedding_init: float = 1.0
    """Standard deviation of the token embedding at the start."""
    mlp_init: float = 1.0
    """Scale of the MLP's first matrix at the start; 1 is a standard deviation of 1/sqrt(model_dim)."""
    engram: EngramConfig | None = None
    """N-gram memory."""
    hyper_connections: HyperConnectionsConfig | None = None
    """Several residual streams."""
    mtp: MultiTokenConfig | None = None
    """Prediction of further tokens."""
    dsa: SparseAttentionConfig | None = None
    """Sparse attention."""
    version: int = VERSION
    """Format of this record."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "vocab_size", "num_layers", "model_dim", "num_heads", "num_kv_heads", "head_dim")
        _at_least(self, 1, "max_seq_len", "mlp_ratio")
        _at_least(self, 0, "window_size")
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
                f"window pattern {self.window_pattern!r}", fix="Use only L (full) and S (short), as SSSL."
            )
        if not 0 <= self.logit_softcap < float("inf"):
            raise UserError(f"logit_softcap {self.logit_softcap}", fix="Use a number from 0 (no cap) up.")
        if not self.qk_norm and self.qk_scale != 1.0:
            raise UserError(
                f"qk_scale {self.qk_scale} is of normalised queries and keys, which this model does not have",
                fix="Leave out --qk_scale.",
            )
        if not self.layer_scales and (self.residual_scales, self.embedding_scales) != ((1, 1), (0, 0)):
            raise UserError("residual_scales and embedding_scales do nothing without layer_scales")
        if self.engram and max(self.engram.layers) >= self.num_layers:
            raise UserError(
                f"engram layers {list(self.engram.layers)}; the model has layers 0 to {self.num_layers - 1}",
                fix="Name other --engram_layers.",
            )
        if self.dsa and self.dsa.start_layer >= self.num_layers:
            raise UserError(
                f"sparse attention begins at layer {self.dsa.start_layer}, "
                f"but the model has layers 0 to {self.num_layers - 1}",
                fix="Lower --dsa_start_layer.",
            )
        if self.version != VERSION:
            raise UserError(
                f"model format {self.version} is not known", fix=f"This cpplm reads format {VERSION}."
            )

    @classmethod
    def seed(
        cls, depth: int, *, vocab_size: int, aspect_ratio: int = 64, head_dim: int = 128, **rest: Any
    ) -> ModelConfig:
        """The first recipe: width `depth * aspect_ratio`, rounded up to whole heads, nothing turned on."""
        num_heads = max(1, -(-depth * aspect_ratio // head_dim))
        rest.setdefault("num_kv_heads", num_heads)
        return cls(
            vocab_size=vocab_size,
            num_layers=depth,
            model_dim=num_heads * head_dim,
            num_heads=num_heads,
            head_dim=head_dim,
            **rest,
        )

    @classmethod
    def nanochat(cls, depth: int, **rest: Any) -> ModelConfig:
        """The recipe of nanochat in July 2026: value embeddings, smear, backout, decaying scales."""
        recipe = cls.seed(depth, **rest)
        return replace(
            recipe,
            short_window="quarter",
            rope_base=100_000.0,
            qk_scale=1.2,
            value_embeddings=True,
            smear=True,
            backout=True,
            residual_scales=(1.15, 1.05),
            embedding_scales=(0.20, 0.05),
            embedding_init=0.8,
            mlp_init=0.4,
        )

    @classmethod
    def from_depth(cls, depth: int, **rest: Any) -> ModelConfig:
        """Our default: nanochat's recipe, a memory of n-grams, induction (LOG.md, 2026-11-21 and 22)."""
        recipe = cls.nanochat(depth, **rest)
        memory = EngramConfig.for_model(recipe.num_layers, recipe.model_dim)
        return replace(recipe, engram=memory, induction=True)

    @classmethod
    def llama(cls, depth: int, **rest: Any) -> ModelConfig:
        """A plain Llama (Touvron et al. 2023, arXiv 2302.13971) whose norms have weights of one."""
        recipe = cls.seed(depth, **{"window_pattern": "L", **rest})
        return replace(
            recipe, mlp="swiglu", qk_norm=False, embedding_norm=False, layer_scales=False, logit_softcap=0.0
        )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding and of the output head."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def mlp_dim(self) -> int:
        """Width of the MLP's hidden layer. That of SwiGLU is smaller, so that both have about as many
        weights (Shazeer 2020, arXiv 2002.05202)."""
        if self.mlp == "relu2":
            return self.mlp_ratio * self.model_dim
        return -(-2 * self.mlp_ratio * self.model_dim // (3 * MLP_MULTIPLE)) * MLP_MULTIPLE

    def windows(self) -> list[int | None]:
        """Per layer, how many earlier tokens a token sees besides itself; None is all of them."""
        short = self.window_size or self._share_of_context()
        full_from = min(self.num_layers - 1, self.dsa.start_layer if self.dsa else self.num_layers)
        letters = itertools.islice(itertools.cycle(self.window_pattern), self.num_layers)
        return [
            short if letter == "S" and layer < full_from else None for layer, letter in enumerate(letters)
        ]

    def _share_of_context(self) -> int:
        if self.short_window == "half":
            return max(1, self.max_seq_len // 2)
        return -(-self.max_seq_len // (4 * WINDOW_MULTIPLE)) * WINDOW_MULTIPLE

    def with_context(self, max_seq_len: int, rope_base: float) -> ModelConfig:
        """The same model for another context: what was a share of the old one keeps its size in tokens.

        So for texts up to the old length nothing changes but what `rope_base` does.
        """
        window_size = self.window_size or self._share_of_context()
        return replace(self, max_seq_len=max_seq_len, rope_base=rope_base, window_size=window_size)

    def ntk_rope_base(self, max_seq_len: int) -> float:
        """The rotary base that stretches the slowest frequency from this context to another, by NTK-aware
        scaling: `base * (new / old) ** (d / (d - 2))` for heads of width d (Peng et al. 2023, YaRN,
        arXiv 2309.00071, section 3.1); the same base for a context that is no longer.

        Raises:
            UserError: heads of width 2, which have one frequency whatever the base.
        """
        if self.head_dim == 2:
            raise UserError(
                "heads of width 2 have one rotary frequency, which no base stretches",
                fix="Leave out --rope_scaling ntk.",
            )
        stretch = max(1.0, max_seq_len / self.max_seq_len)
        return float(self.rope_base * stretch ** (self.head_dim / (self.head_dim - 2)))

    def has_value_embedding(self, layer: int) -> bool:
        """True if the layer adds an embedding to its values: every second one, counted from the last."""
        return self.value_embeddings and layer % 2 == (self.num_layers - 1) % 2

    def is_sparse(self, layer: int) -> bool:
        """True if the layer attends to the indexer's choice."""
        return self.dsa is not None and layer >= self.dsa.start_layer

    def multi_token_block(self) -> ModelConfig:
        """The plain transformer block of the heads that predict further tokens."""
        return replace(
            self, num_layers=1, window_pattern="L", value_embeddings=False, smear=False, backout=False,
            induction=False, engram=None, hyper_connections=None, mtp=None, dsa=None,
        )  # fmt: skip

    def backout_layer(self) -> int:
        """The layer whose output is taken off the last one's."""
        return self.num_layers // 2
