"""Settings of `cpplm train` about the model, beyond the depth."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from cpplm.core.errors import UserError
from cpplm.model.config import (
    EngramConfig,
    HyperConnectionsConfig,
    ModelConfig,
    MultiTokenConfig,
    SparseAttentionConfig,
)
from cpplm.model.quantized.recipe import InitMethod, Recipe

Switch = Literal["preset", "on", "off"]


@dataclass(frozen=True)
class ArchitectureSettings:
    """Features of the model; those that are not given follow from the preset."""

    preset: Literal["cpplm", "seed", "nanochat", "llama"] = "cpplm"
    """Architecture: nanochat = that of July 2026; cpplm = nanochat with n-gram memory and induction; seed =
    the same shape without nanochat's additions; llama = a plain Llama (the one that llama.cpp can run)."""
    mlp: Literal["preset", "relu2", "swiglu"] = "preset"
    """Squared ReLU between two matrices, or SwiGLU with as many weights."""
    short_window: Literal["preset", "half", "quarter"] = "preset"
    """Span of the S layers of --window_pattern: half or a quarter of the context."""
    rope_base: float = -1.0
    """Base of the rotary frequencies (-1 = the preset's)."""
    qk_scale: float = -1.0
    """Factor on normalized queries and keys (-1 = the preset's)."""
    value_embeddings: Switch = "preset"
    """Gated embeddings of the token among the values of every second layer."""
    smear: Switch = "preset"
    """Add to each token embedding a gated share of the previous token's (as nanochat)."""
    backout: Switch = "preset"
    """Subtract a learned share of the middle layer's output from the last layer's (as nanochat)."""
    induction: Switch = "preset"
    """Add to each embedding that of the token which followed the longest earlier match of the last tokens,
    as an induction head would copy it."""

    engram: Literal["preset", "off", "memory", "local"] = "preset"
    """N-gram memory (Engram): memory = embedding tables addressed by hashed n-grams; local = a causal branch
    over the last hidden states, without tables."""
    engram_layers: tuple[int, ...] = ()
    """Engram: indices of the layers that have it, from 0 (empty = the second and the middle layer)."""
    engram_ngram_orders: tuple[int, ...] = ()
    """Engram: lengths of n-grams (empty = 2 3 for memory, 2 3 4 for local)."""
    engram_bottleneck_dim: int = 0
    """Width of the local branch (0 = a quarter of the model's)."""
    engram_heads: int = 8
    """Hash functions per order."""
    engram_head_dim: int = 0
    """Width of one table's embedding (0 = so that all together are as wide as the model)."""
    engram_table_size: int = 20_000
    """Least rows of each table."""

    mhc: bool = False
    """Several residual streams with doubly stochastic mixing (hyper-connections)."""
    mhc_num_branches: int = 4
    """Residual streams."""
    mhc_sinkhorn_iters: int = 20
    """Normalizations of rows and columns."""

    mtp: bool = False
    """Multi-token prediction: also train to predict tokens after the next one (DeepSeek-V3)."""
    mtp_depth: int = 1
    """MTP: number of additional tokens predicted at each position."""
    mtp_lambda: float = 0.3
    """MTP: weight of the additional loss in the first two thirds of the run."""
    mtp_final_lambda: float = 0.1
    """MTP: weight of the additional loss in the last third of the run."""

    dsa: bool = False
    """Sparse attention: an indexer chooses the keys."""
    dsa_start_layer: int = 7
    """First layer with it, from 0."""
    dsa_top_k_ratio: float = 0.5
    """Share of the context that a query attends to."""
    dsa_local_window: int = 128
    """Nearest tokens that are always attended to."""
    dsa_indexer_heads: int = 16
    """Heads of the indexer."""
    dsa_indexer_dim: int = 32
    """Width of an indexer head."""
    dsa_warmup_ratio: float = 0.1
    """Share of the run, at its start, with full attention while the indexer learns it."""

    def __post_init__(self) -> None:
        for feature in ("mhc", "mtp", "dsa"):
            self._refuse_idle(feature, getattr(self, feature), f"--{feature}")
        kind = self._engram_kind()
        self._refuse_idle("engram", kind != "off", "--engram memory")
        if kind == "memory" and self.engram_bottleneck_dim:
            raise UserError(
                "--engram_bottleneck_dim does nothing with --engram memory", fix="Use --engram local."
            )
        if kind == "local":
            for name in ("engram_heads", "engram_head_dim", "engram_table_size"):
                if getattr(self, name) != getattr(type(self), name):
                    raise UserError(f"--{name} does nothing with --engram local", fix="Use --engram memory.")
        for name in ("rope_base", "qk_scale"):
            value = getattr(self, name)
            if not (0 < value < float("inf") or value == -1):
                raise UserError(f"--{name} {value}", fix="Use a positive number, or -1 for the preset's.")
        for name in ("dsa_top_k_ratio", "dsa_warmup_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"--{name} {getattr(self, name)}", fix="Use a share from 0 to 1.")
        for name in ("mtp_lambda", "mtp_final_lambda"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"--{name} {getattr(self, name)}", fix="Use a number from 0 up.")

    def _engram_kind(self) -> Literal["off", "memory", "local"]:
        """The kind that was asked for, or that the preset has."""
        if self.engram != "preset":
            return self.engram
        return "memory" if self.preset == "cpplm" else "off"

    def _refuse_idle(self, feature: str, on: bool, switch: str) -> None:
        """A value of a feature that is off would do nothing."""
        for field in dataclasses.fields(self):
            is_set = getattr(self, field.name) != field.default
            if not on and is_set and field.name.startswith(f"{feature}_"):
                raise UserError(
                    f"--{field.name} does nothing without {switch}", fix=f"Add {switch}, or leave it out."
                )

    def config(self, depth: int, **shape: Any) -> ModelConfig:
        """The model of these settings.

        Args:
            depth: layers.
            shape: vocab_size, and what else of `ModelConfig` the command line names.
        """
        presets = {
            "cpplm": ModelConfig.from_depth,
            "seed": ModelConfig.seed,
            "nanochat": ModelConfig.nanochat,
            "llama": ModelConfig.llama,
        }
        base: ModelConfig = presets[self.preset](depth, **shape)
        scales = {"rope_base": self.rope_base, "qk_scale": self.qk_scale}
        changes: dict[str, Any] = {name: value for name, value in scales.items() if value > 0}
        choices = {
            "value_embeddings": self.value_embeddings, "smear": self.smear, "backout": self.backout,
            "induction": self.induction, "mlp": self.mlp, "short_window": self.short_window,
        }  # fmt: skip
        for name, choice in choices.items():
            if choice != "preset":
                changes[name] = choice == "on" if choice in ("on", "off") else choice
        kind = self._engram_kind()
        changes["engram"] = None
        if kind != "off":
            changes["engram"] = EngramConfig.for_model(
                base.num_layers,
                base.model_dim,
                kind=kind,
                layers=self.engram_layers,
                ngram_orders=self.engram_ngram_orders,
                bottleneck_dim=self.engram_bottleneck_dim,
                num_heads=self.engram_heads,
                head_dim=self.engram_head_dim,
                table_size=self.engram_table_size,
            )
        if self.mhc:
            changes["hyper_connections"] = HyperConnectionsConfig(
                self.mhc_num_branches, self.mhc_sinkhorn_iters
            )
        if self.mtp:
            changes["mtp"] = MultiTokenConfig(self.mtp_depth)
        if self.dsa:
            changes["dsa"] = SparseAttentionConfig(
                start_layer=self.dsa_start_layer,
                top_k=round(self.dsa_top_k_ratio * base.max_seq_len),
                local_window=self.dsa_local_window,
                indexer_heads=self.dsa_indexer_heads,
                indexer_dim=self.dsa_indexer_dim,
            )
        return dataclasses.replace(base, **changes)

    def multi_token_weight(self, progress: float) -> float:
        """Weight of the further tokens' loss: high first, low in the last third (as DeepSeek-V3)."""
        return self.mtp_lambda if progress < 2 / 3 else self.mtp_final_lambda

    def dense_attention(self, progress: float) -> bool:
        """True while sparse layers still attend to everything."""
        return self.dsa and progress < self.dsa_warmup_ratio


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adaptation: W + alpha / rank * B A, of which only A and B learn (see `cpplm.model.lora`)."""

    lora_rank: int = 0
    """LoRA: rank of the matrices that are trained beside the frozen ones (0 = train the whole model)."""
    lora_alpha: float = 32.0
    """LoRA: their product counts alpha / rank times."""
    lora_targets: tuple[str, ...] = ()
    """LoRA: adapted matrices by the ends of their names, such as query mlp.up (empty = all of attention and
    MLP)."""
    lora_lr: float = -1.0
    """LoRA: AdamW's learning rate (-1 = 0.01 at width 256, less for wider models; of transformers 0.0002)."""

    def __post_init__(self) -> None:
        if self.lora_rank < 0:
            raise UserError(f"--lora_rank {self.lora_rank}", fix="Use a number from 1 up, or 0 for no LoRA.")
        for name in ("lora_alpha", "lora_lr"):
            value = getattr(self, name)
            if not 0 < value < float("inf") and value != getattr(type(self), name):
                raise UserError(f"--{name} {value}", fix="Use a positive number.")
        for name in ("lora_alpha", "lora_targets", "lora_lr"):
            if not self.lora_rank and getattr(self, name) != getattr(type(self), name):
                raise UserError(f"--{name} does nothing without --lora_rank", fix="Add --lora_rank 16.")


@dataclass(frozen=True)
class QuantizationSettings:
    """Training with weights that are rounded in each forward pass (see `cpplm.model.quantized`)."""

    quantize: str = ""
    """Quantisation-aware training: formats by role, as mlp=half2:g32,attn=half4:g32, or a preset, as int4."""
    quantize_from: float = -1.0
    """Share of the run from which weights are rounded (-1 = with --init_from 0, else where the learning rate
    begins to fall)."""
    quantize_init: InitMethod = "activation"
    """Initialization of scales: absmax = largest magnitude of each group; mse = least squared error;
    activation = least squared error, weighted by the activations of that step's batch."""
    freeze_codes: bool = False
    """Train the scales only; the integer codes stay as they were first rounded."""
    scale_lr: float = 1e-4
    """AdamW's learning rate of scales."""

    def __post_init__(self) -> None:
        if self.quantize:
            Recipe.parse(self.quantize)
        for field in dataclasses.fields(self)[1:] if not self.quantize else ():
            if getattr(self, field.name) != field.default:
                raise UserError(f"--{field.name} does nothing without --quantize", fix="Add --quantize int4.")
        if not (0 <= self.quantize_from < 1 or self.quantize_from == -1):
            raise UserError(
                f"--quantize_from {self.quantize_from}", fix="Use a share from 0 up to, but below, 1."
            )
        if not 0 <= self.scale_lr < float("inf"):
            raise UserError(f"--scale_lr {self.scale_lr}", fix="Use a number from 0 up.")


@dataclass(frozen=True)
class KernelSettings:
    """Ways to compute the model; they change nothing but rounding."""

    kernel: Literal["auto", "native", "chunked", "cce", "liger"] = "auto"
    """Loss kernel; `cpplm doctor` shows what auto is here."""
    attention: Literal["auto", "sdpa", "flex", "flash2", "flash3", "chunked"] = "auto"
    """Attention kernel, likewise."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: less memory, more time."""
    fp8: bool = False
    """Matrix products of the blocks in 8 bits by torchao, on GPUs that have them."""
    fp8_recipe: Literal["tensorwise", "rowwise"] = "tensorwise"
    """One scale per tensor (faster) or per row (more exact)."""
    nvfp4: bool = False
    """Matrix products of the blocks in 4 bits by Transformer Engine, on Blackwell GPUs."""

    def __post_init__(self) -> None:
        if self.fp8_recipe != "tensorwise" and not self.fp8:
            raise UserError("--fp8_recipe does nothing without --fp8", fix="Add --fp8, or leave it out.")
        if self.fp8 and self.nvfp4:
            raise UserError("--fp8 and --nvfp4 exclude each other", fix="Leave one out.")


DEFAULT_KERNELS = KernelSettings()
