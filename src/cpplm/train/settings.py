"""Settings of `cpplm train`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cpplm.core.errors import UserError
from cpplm.core.hardware import Precision
from cpplm.model.settings import ArchitectureSettings, KernelSettings
from cpplm.optim.groups import Rates


@dataclass(frozen=True)
class TrainSettings:
    """One pre-training run. Lengths and batch sizes are in tokens unless they say otherwise."""

    data_dir: str
    """Corpus: a folder or bucket URL written by `cpplm corpus build`."""
    tokenizer: Path
    """File of `cpplm tokenizer train`, or the name of one that comes with cpplm, such as `cpp-32k`."""
    out: Path
    """Folder of the run: log, checkpoints, page. Holding a checkpoint, it is continued."""

    depth: int = 20
    """The one dial: transformer layers; width and learning rates follow from it."""
    aspect_ratio: int = 64
    """Width is depth times this, rounded up to whole heads."""
    head_dim: int = 128
    """Width of one attention head."""
    num_kv_heads: int = -1
    """Key-value heads; fewer than the query heads is grouped-query attention (-1 = as many)."""
    max_seq_len: int = 2048
    """Context length."""
    window_pattern: str = "SSSL"
    """Attention span per layer, tiled: L = full, S = short; the last layer is always L."""
    architecture: ArchitectureSettings = field(default_factory=ArchitectureSettings)
    """Features of the model."""
    kernels: KernelSettings = field(default_factory=KernelSettings)
    """How it is computed."""

    num_iterations: int = -1
    """Train for this many optimizer steps (-1 = decide by the settings below)."""
    max_minutes: float = -1.0
    """Train for this long; schedules follow the clock (-1 = no limit)."""
    target_flops: float = -1.0
    """Train for this many floating-point operations (-1 = decide by the data:parameter ratio)."""
    target_param_data_ratio: float = 8.0
    """Train for this many tokens per parameter, when nothing above is given (Chinchilla: 20)."""

    device_batch_size: int = 32
    """Rows of `max_seq_len` tokens per forward pass; lower it when memory runs out."""
    total_batch_size: int = 524_288
    """Tokens per optimizer step; gradients accumulate over several forward passes to reach it."""
    rates: Rates = field(default_factory=Rates)
    """Learning rates."""
    warmup_ratio: float = 0.0
    """Share of the run in which the learning rate rises."""
    warmdown_ratio: float = 0.4
    """Share of the run, at its end, in which the learning rate falls."""
    final_lr_frac: float = 0.0
    """Learning rate at the end over its peak."""

    eval_every: int = 250
    """Measure validation bits per byte every so many steps, and at start and end (-1 = never)."""
    eval_tokens: int = 20 * 524_288
    """Validation tokens per measurement."""
    sample_every: int = 2000
    """Write sample completions into the log every so many steps (-1 = never)."""
    save_every: int = -1
    """Checkpoint every so many steps (-1 = by time only)."""
    save_minutes: float = 10.0
    """Checkpoint at least this often; the end and an interrupt always save (-1 = not by time)."""
    keep_last: int = 2
    """Checkpoints to keep; older ones are deleted."""
    checkpoint_dir: str = ""
    """Where checkpoints go: a folder or bucket URL (empty = `checkpoints` inside --out)."""

    seed: int = 0
    """Of the initial weights and the document order."""
    device_type: Literal["", "cuda", "mps", "cpu"] = ""
    """Device (empty = the best one present)."""
    precision: Precision = "auto"
    """Of matrix products; weights stay float32. auto = bf16 where the hardware has it."""
    no_compile: bool = False
    """Run without torch.compile: slower steps, instant start."""
    tokenizer_threads: int = 4
    """Threads that tokenise ahead of the training step."""

    run_name: str = ""
    """Name for Weights & Biases (empty = the folder's name)."""
    wandb_project: str = ""
    """Also log to this Weights & Biases project."""
    tensorboard: bool = False
    """Also write TensorBoard events into --out."""

    def __post_init__(self) -> None:
        self._check_ranges()
        self._check_batch()
        self._check_horizon()
        if self.warmup_ratio + self.warmdown_ratio > 1:
            raise UserError(
                f"--warmup_ratio {self.warmup_ratio} and --warmdown_ratio {self.warmdown_ratio} overlap",
                fix="Their sum may be at most 1.",
            )
        if self.run_name and not self.wandb_project:
            raise UserError(
                "--run_name names a Weights & Biases run", fix="Add --wandb_project, or leave it out."
            )

    def _check_ranges(self) -> None:
        for name in ("depth", "aspect_ratio", "head_dim", "max_seq_len", "device_batch_size", "keep_last",
                     "tokenizer_threads", "eval_tokens"):  # fmt: skip
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)} must be at least 1")
        for name in ("eval_every", "sample_every", "save_every", "num_kv_heads", "num_iterations",
                     "max_minutes", "target_flops", "target_param_data_ratio", "save_minutes"):  # fmt: skip
            if not (getattr(self, name) > 0 or getattr(self, name) == -1):
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a positive number, or -1 to leave it out."
                )
        for name in ("warmup_ratio", "warmdown_ratio", "final_lr_frac"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(
                    f"--{name} {getattr(self, name)} is not a share", fix="Use a number from 0 to 1."
                )
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed {self.seed}", fix="Use a number from 0 to 4294967295.")

    def _check_batch(self) -> None:
        rows = self.device_batch_size * self.max_seq_len
        if self.total_batch_size < 1 or self.total_batch_size % rows:
            raise UserError(
                f"--total_batch_size {self.total_batch_size:,} is not a multiple of --device_batch_size x "
                f"--max_seq_len = {rows:,} tokens",
                fix=f"Use {max(1, round(self.total_batch_size / rows)) * rows}.",
            )

    def _check_horizon(self) -> None:
        given = [
            name for name in ("num_iterations", "max_minutes", "target_flops") if getattr(self, name) > 0
        ]
        if len(given) > 1:
            raise UserError(
                f"--{' and --'.join(given)} both set the length of the run", fix="Give one of them."
            )
        if not given and not self.target_param_data_ratio > 0:
            raise UserError("nothing says how long to train", fix="Give --num_iterations or --max_minutes.")

    @property
    def accumulation_steps(self) -> int:
        """Forward passes per optimizer step."""
        return self.total_batch_size // (self.device_batch_size * self.max_seq_len)
