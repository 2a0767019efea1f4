"""The training step that `cpplm tpu check` and `cpplm tpu bench` look at, in the words of `cpplm train`.

Nothing is read: the vocabulary is a number instead of a tokenizer, and batches are made up.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, Precision, group
from cpplm.dataloader.settings import DataSettings
from cpplm.model.config import ModelConfig
from cpplm.model.settings import ArchitectureSettings
from cpplm.optim.lr_settings import Rates
from cpplm.train.jax_settings import JaxSettings
from cpplm.train.settings import TrainSettings, model_config

NOWHERE = "-"  # no corpus, tokenizer or folder: nothing is read or written


@dataclass(frozen=True)
class StepSettings:
    """Names and meanings are those of `cpplm train`, but for --seq and --vocab_size."""

    seq: int = 16_384
    """Context length, --max_seq_len of `cpplm train`."""
    vocab_size: int = 65_536
    """Ids of the tokenizer."""
    depth: int = 16
    """Transformer layers; width and learning rates follow from it."""
    aspect_ratio: int = 64
    """Width is depth times this, rounded up to whole heads."""
    head_dim: int = 128
    """Width of one attention head."""
    num_kv_heads: int = -1
    """Key-value heads; fewer than the query heads is grouped-query attention (-1 = as many)."""
    window_pattern: str = "SSSL"
    """Attention span per layer, tiled: L = full, S = short; the last layer is always L."""
    architecture: ArchitectureSettings = field(default_factory=ArchitectureSettings)
    """Features of the model."""
    rates: Annotated[Rates, group("learning rate")] = field(default_factory=Rates)
    """Learning rates."""
    device_batch_size: int = 1
    """Rows of --seq tokens per forward pass, of each part into which --mesh divides a batch."""
    total_batch_size: int = -1
    """Tokens per optimizer step (-1 = one forward pass)."""
    document_mask: bool = False
    """Attention stays inside a document where several share a row."""
    precision: Precision = "auto"
    """Of matrix products; weights stay float32. auto = bf16 on TPUs."""
    jax: Annotated[JaxSettings, group("JAX")] = field(default_factory=JaxSettings)
    """How it is computed, and divided among chips."""

    def training(self, shares: int, device_type: Literal["", "cpu", "tpu"] = "") -> TrainSettings:
        """What `cpplm train` would be told.

        Args:
            shares: parts into which the mesh divides the rows of a batch.
            device_type: where to train.

        Raises:
            UserError: settings that it refuses.
        """
        one_pass = self.device_batch_size * self.seq * shares
        settings = TrainSettings(
            data_dir=(NOWHERE,),
            tokenizer=Path(NOWHERE),
            out=Path(NOWHERE),
            depth=self.depth,
            aspect_ratio=self.aspect_ratio,
            head_dim=self.head_dim,
            num_kv_heads=self.num_kv_heads,
            max_seq_len=self.seq,
            window_pattern=self.window_pattern,
            architecture=self.architecture,
            rates=self.rates,
            num_iterations=1000,
            device_batch_size=self.device_batch_size,
            data=DataSettings(document_mask=self.document_mask),
            backend="jax",
            device_type=device_type,
            precision=self.precision,
            jax=self.jax,
        )
        settings = replace(
            settings, total_batch_size=one_pass if self.total_batch_size == -1 else self.total_batch_size
        )
        settings.check_batch(shares)
        return settings

    def config(self, settings: TrainSettings) -> ModelConfig:
        """The model."""
        return model_config(settings, self.vocab_size)


@dataclass(frozen=True)
class CheckSettings:
    """Settings of `cpplm tpu check`."""

    target: Annotated[str, Argument("SLICE", positional=True)]
    """Slice of TPUs: v4, v5e, v5p, v6e or v7x with a number, as in v6e-4, v5e-8."""
    step: Annotated[StepSettings, group("")] = field(default_factory=StepSettings)
    """The step."""

    def __post_init__(self) -> None:
        if self.step.jax.multi_host:
            raise UserError("--multi_host does nothing here", fix="--target names the hosts' chips together.")


@dataclass(frozen=True)
class BenchSettings:
    """Settings of `cpplm tpu bench`."""

    steps: int = 20
    """Steps to measure."""
    warm_up: int = 3
    """Steps before them."""
    step: Annotated[StepSettings, group("")] = field(default_factory=StepSettings)
    """The step."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.warm_up < 0:
            raise UserError(
                f"--steps {self.steps} --warm_up {self.warm_up}", fix="Measure at least one step."
            )
