"""Settings of `cpplm train`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from cpplm.core.device_specs import PEAK_TERAFLOPS
from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, group
from cpplm.core.storage import is_bucket, require_path, split_step
from cpplm.dataloader.fim import FimSettings
from cpplm.dataloader.settings import DataSettings
from cpplm.model.config import ModelConfig
from cpplm.model.settings import ArchitectureSettings, KernelSettings, LoraSettings, QuantizationSettings
from cpplm.optim.schedules import LearningRates, Schedule
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.session_settings import SessionSettings

MAX_SEQ_LEN = 2048  # of a model whose context nobody gives
MESH_AXES = ("data", "fsdp", "context", "model")
"""Axes of a mesh, from the one whose chips may be far apart to the one whose chips must be near."""


@dataclass(frozen=True)
class JaxSettings:
    """Computing a model on TPUs, and dividing it among their chips."""

    mesh: str = ""
    """JAX: chips per axis, as data=2,context=4. data and fsdp divide the batch, fsdp also weights and
    optimizer state, context the positions of a row, model the heads; chips not named go to data."""
    multi_host: bool = False
    """JAX: several hosts train together; start the same command on each."""
    jax_attention: Literal["auto", "einsum", "jax", "splash", "pallas"] = "auto"
    """JAX: attention kernel."""
    remat: Literal["none", "full", "dots", "attention"] = "none"
    """JAX: what of a layer is recomputed in the backward pass: none = nothing, full = everything, dots =
    everything but matrix products with weights, attention = everything but attention outputs."""
    loss_chunk: int = 1024
    """JAX: token positions whose logits one chip holds at once."""

    def __post_init__(self) -> None:
        self.axes()
        if self.loss_chunk < 1:
            raise UserError(f"--loss_chunk {self.loss_chunk}", fix="Use a number from 1 up.")

    def axes(self) -> dict[str, int]:
        """Chips per axis, those that are named.

        Raises:
            UserError: not of the form name=chips, an unknown axis, or one named twice.
        """
        chips_by_axis: dict[str, int] = {}
        for entry in filter(None, self.mesh.split(",")):
            name, equals, chips = (part.strip() for part in entry.partition("="))
            if name not in MESH_AXES or not equals or not chips.isdecimal() or int(chips) < 1:
                raise UserError(
                    f"--mesh {self.mesh!r}: {entry!r} is not an axis with its chips",
                    fix=f"Use {', '.join(MESH_AXES)}, as in data=2,context=4.",
                )
            if name in chips_by_axis:
                raise UserError(f"--mesh {self.mesh!r} names {name} twice", fix="Name each axis once.")
            chips_by_axis[name] = int(chips)
        return chips_by_axis


@dataclass(frozen=True)
class DryRunSettings:
    """A run that is estimated instead of started."""

    dry_run: bool = False
    """Print what the run would take, and train nothing."""
    world_size: int = 1
    """Dry run: processes, each with a device of its own."""
    gpu: str = ""
    """Dry run: the device, by its name in the table of peak rates (empty = this machine's)."""
    gpu_memory_gb: float = -1.0
    """Dry run: its memory in 10^9 bytes (-1 = the data sheet's)."""
    mfu: float = 0.4
    """Dry run: the share of its peak rate that is assumed."""

    def __post_init__(self) -> None:
        for name in ("world_size", "gpu", "gpu_memory_gb", "mfu"):
            if not self.dry_run and getattr(self, name) != getattr(type(self), name):
                raise UserError(f"--{name} does nothing without --dry_run", fix="Add it, or leave this out.")
        if self.world_size < 1:
            raise UserError(f"--world_size {self.world_size} must be at least 1")
        if self.gpu and self.gpu not in PEAK_TERAFLOPS:
            raise UserError(
                f"--gpu {self.gpu!r} is not known", fix=f"Known are: {', '.join(PEAK_TERAFLOPS)}."
            )
        for name in () if self.gpu else ("world_size", "gpu_memory_gb"):
            if getattr(self, name) != getattr(type(self), name):
                raise UserError(f"--{name} is of devices that --gpu names", fix="Add --gpu H100, or another.")
        if not (self.gpu_memory_gb > 0 or self.gpu_memory_gb == -1):
            raise UserError(f"--gpu_memory_gb {self.gpu_memory_gb}", fix="Use a positive number.")
        if not 0 < self.mfu <= 1:
            raise UserError(f"--mfu {self.mfu} is not a share", fix="Use a number above 0, up to 1.")


@dataclass(frozen=True)
class TrainSettings(SessionSettings):
    """One pre-training run. Lengths and batch sizes are in tokens unless they say otherwise."""

    data_dir: Annotated[tuple[str, ...], Argument("CORPUS", positional=True)]
    """Corpus: a folder, bucket URL or hf://datasets/OWNER/NAME of `cpplm corpus build`; several are mixed."""
    tokenizer: Annotated[Path, Argument("FILE")]
    """File or URL of `cpplm tokenizer train`, or the name of one that comes with cpplm, such as `cpp-32k`."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder of the run: log, checkpoints, page. Holding a checkpoint, it is continued."""

    init_from: str = ""
    """Start from the weights of another run, RUN or RUN:STEP, whose model and tokenizer this one keeps."""
    init_optimizer: bool = False
    """Also with the moments of its optimizer."""
    stage: Literal["base", "mid", "sft", "rl"] = "base"
    """Stage of training that the checkpoints record: base; mid, which goes on from a model on other documents
    or with a longer context; sft, on conversations (see `cpplm sft`); rl, by rewards (see `cpplm rl`)."""
    rope_scaling: Literal["none", "ntk"] = "none"
    """With a longer --max_seq_len than the parent's: its rotary base as it is, or NTK-aware."""

    lora: Annotated[LoraSettings, group("LoRA")] = field(default_factory=LoraSettings)
    """Train an adapter of the model of --init_from."""

    quantization: Annotated[QuantizationSettings, group("quantization")] = field(
        default_factory=QuantizationSettings
    )
    """Train weights of few bits."""

    depth: int = -1
    """The one dial: transformer layers; width and learning rates follow from it (-1 = 20; on a CPU the most
    that it can train in --max_minutes, or in four hours)."""
    aspect_ratio: int = 64
    """Width is depth times this, rounded up to whole heads."""
    head_dim: int = 128
    """Width of one attention head."""
    num_kv_heads: int = -1
    """Key-value heads; fewer than the query heads is grouped-query attention (-1 = as many)."""
    max_seq_len: int = -1
    """Context length (-1 = 2048, or that of --init_from)."""
    window_pattern: str = ""
    """Attention span per layer, tiled: L = full, S = short; the last is always L (empty = the preset's)."""
    architecture: ArchitectureSettings = field(default_factory=ArchitectureSettings)
    """Features of the model."""
    kernels: Annotated[KernelSettings, group("kernel")] = field(default_factory=KernelSettings)
    """How it is computed."""

    num_iterations: int = -1
    """Train for this many optimizer steps (-1 = decide by the settings below)."""
    max_minutes: float = -1.0
    """Train for this long; schedules follow the clock (-1 = no limit)."""
    target_flops: float = -1.0
    """Train for this many floating-point operations (-1 = decide by the data:parameter ratio)."""
    target_param_data_ratio: float = 8.0
    """Train for this many tokens per parameter, when nothing above is given (Chinchilla: 20)."""

    device_batch_size: int = -1
    """Rows of `max_seq_len` tokens per forward pass; lower it when memory runs out (-1 = 32; on a CPU about
    what it computes in a second)."""
    total_batch_size: int = -1
    """Tokens per optimizer step, reached by several forward passes (-1 = what suits the model's size)."""
    rates: Annotated[LearningRates, group("learning rate")] = field(default_factory=LearningRates)
    """Learning rates."""
    schedule: Schedule = field(default_factory=Schedule)
    """How they change during the run."""

    data: DataSettings = field(default_factory=DataSettings)
    """Rows."""
    fim: Annotated[FimSettings, group("fill in the middle")] = field(default_factory=FimSettings)
    """Fill-in-the-middle."""

    eval_every: int = 250
    """Measure bits per byte on the first --data_dir's validation documents every so many steps, and at start
    and end (-1 = never)."""
    eval_tokens: int = -1
    """Validation tokens per measurement (-1 = 10485760; on a CPU about what it computes in ten seconds)."""
    sample_every: int = 2000
    """Write sample completions into the log every so many steps (-1 = never)."""
    cpp_eval_every: int = -1
    """Try C++ problems on saved checkpoints at least so many steps apart, beside the run (-1 = never)."""
    cpp_eval_minutes: float = 30.0
    """Time after which one such trial is given up."""
    keep_every: int = -1
    """Also keep, for ever, the checkpoints of every so many steps (-1 = none)."""
    checkpoint_dir: str = ""
    """Where checkpoints go: a folder or bucket URL (empty = `checkpoints` inside --out)."""
    heartbeat_seconds: float = 10.0
    """Seconds between two heartbeats (`heartbeat.json`), where training uploads to a bucket or is managed."""
    resume_from_step: int = -1
    """Go on from this checkpoint and delete the later ones (-1 = from the newest)."""

    seed: int = 0
    """Of the initial weights and the document order."""
    backend: Literal["auto", "torch", "jax"] = "auto"
    """Library: PyTorch for CPU, CUDA and MPS, JAX for TPUs (auto = JAX where a TPU is present)."""
    device_type: Literal["", "cuda", "mps", "cpu", "tpu"] = ""
    """Device (empty = the best one present)."""
    no_compile: bool = False
    """Run without torch.compile: slower steps, instant start."""

    jax: Annotated[JaxSettings, group("JAX")] = field(default_factory=JaxSettings)
    """Of JAX."""

    shard: bool = False
    """Divide weights, gradients and optimizer state among the ranks that torchrun started (FSDP2)."""
    profile_step: int = -1
    """Write a profiler trace of three steps from this one on (-1 = when asked: touch OUT/profile)."""

    dry: Annotated[DryRunSettings, group("dry run")] = field(default_factory=DryRunSettings)
    """Estimate the run instead."""

    run_name: str = ""
    """Name for Weights & Biases (empty = the folder's name)."""
    wandb_project: str = ""
    """Also log to this Weights & Biases project."""
    tensorboard: bool = False
    """Also write TensorBoard events into --out."""

    def __post_init__(self) -> None:
        if not self.data_dir:
            fix = "Write cpplm train CORPUS, the folder of `cpplm corpus build`."
            raise UserError("no corpus was given", fix=fix)
        self._check_ranges()
        if self.total_batch_size != -1 and self.max_seq_len > 0:
            self.check_batch(ranks=1)
        self._check_horizon()
        self._check_parent()
        if self.upload_dir and (self.upload_dir == self.checkpoint_dir or is_bucket(self.checkpoint_dir)):
            raise UserError(
                "--upload_dir copies local checkpoints to another place",
                fix="Leave it out, or give a local --checkpoint_dir.",
            )
        for name in ("cpp_eval_minutes", "heartbeat_seconds"):
            if not getattr(self, name) > 0:
                raise UserError(f"--{name} {getattr(self, name)} is no time")
        if self.cpp_eval_every == -1 and self.cpp_eval_minutes != type(self).cpp_eval_minutes:
            raise UserError("--cpp_eval_minutes does nothing without --cpp_eval_every")
        if self.resume_from_step < -1:
            raise UserError(f"--resume_from_step {self.resume_from_step}", fix="Name a step, or none.")
        if self.max_seq_len > 0 and self.max_seq_len % self.data.row_length(0.0, self.max_seq_len):
            raise UserError(
                f"--short_seq_len {self.data.short_seq_len} does not divide --max_seq_len {self.max_seq_len}"
            )
        if self.run_name and not self.wandb_project:
            raise UserError(
                "--run_name names a Weights & Biases run", fix="Add --wandb_project, or leave it out."
            )

    def check_paths(self) -> None:
        """Refuse data and a tokenizer that are not there; of several processes, `pretrain` tells them all."""
        if self.jax.multi_host or os.environ.get("WORLD_SIZE", "1") != "1":
            return
        for location in self.data_dir:
            require_path(location)
        Tokenizer.load(self.tokenizer)
        goes_on = self.out.exists() or self.upload_dir  # also when its parent is gone
        if self.init_from and not goes_on:
            require_path(split_step(self.init_from)[0])

    def _check_ranges(self) -> None:
        for name in ("aspect_ratio", "head_dim", "keep_last"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} {getattr(self, name)} must be at least 1")
        for name in ("depth", "max_seq_len", "device_batch_size", "eval_tokens", "eval_every", "sample_every",
                     "cpp_eval_every", "save_every", "keep_every", "save_minutes",
                     "profile_step", "num_kv_heads", "num_iterations", "max_minutes", "target_flops",
                     "target_param_data_ratio"):  # fmt: skip
            if not (getattr(self, name) > 0 or getattr(self, name) == -1):
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a positive number, or -1 to leave it out."
                )
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed {self.seed}", fix="Use a number from 0 to 4294967295.")

    def check_batch(self, ranks: int) -> None:
        """A batch must be a whole number of forward passes of all ranks.

        Raises:
            UserError: it is not.
        """
        rows = max(1, self.device_batch_size) * self.max_seq_len * ranks  # chosen later, it may be one row
        if self.stage != "rl" and (self.total_batch_size < 1 or self.total_batch_size % rows):
            several = f" x {ranks} ranks" if ranks > 1 else ""
            raise UserError(
                f"--total_batch_size {self.total_batch_size:,} is not a multiple of --device_batch_size x "
                f"--max_seq_len{several} = {rows:,} tokens",
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

    def _check_parent(self) -> None:
        """Refuse what only a run with a parent may have."""
        for name in ("init_optimizer", "rope_scaling") if not self.init_from else ():
            if getattr(self, name) != getattr(type(self), name):
                raise UserError(f"--{name} does nothing without --init_from", fix="Leave it out.")
        if self.lora.lora_rank and not self.init_from:
            raise UserError("--lora_rank adapts a model that there is", fix="Add --init_from RUN.")
        given = [name for name in ("init_optimizer", "shard") if getattr(self, name)]
        given += [name for name in ("fp8", "nvfp4") if getattr(self.kernels, name)]
        for name in given if self.lora.lora_rank else ():
            raise UserError(
                f"--{name} is of whole models, and --lora_rank trains an adapter", fix="Leave one out."
            )
        if self.lora.lora_rank and self.rates != LearningRates():
            raise UserError(
                "learning rates are of whole models, and --lora_rank trains an adapter", fix="Use --lora_lr."
            )
        self._check_quantization()
        if self.stage != "base" and not self.init_from:
            raise UserError(f"--stage {self.stage} goes on from a model", fix="Add --init_from RUN.")
        if self.stage in ("sft", "rl") and (self.fim.enabled or not self.data.document_mask):
            raise UserError(
                f"--stage {self.stage} is without fill-in-the-middle and with --document_mask",
                fix=f"Use 'cpplm {self.stage}'.",
            )
        if self.rope_scaling == "ntk" and self.architecture.rope_base > 0:
            raise UserError(
                "--rope_base and --rope_scaling both set the rotary base", fix="Give one of them."
            )

    def _check_quantization(self) -> None:
        """Refuse what has not been made to work with rounded weights."""
        names = [name for name in ("fp8", "nvfp4") if getattr(self.kernels, name)]
        names += ["shard"] if self.shard else []
        names += ["lora_rank"] if self.lora.lora_rank else []
        if self.quantization.quantize and names:
            raise UserError(f"--{names[0]} does not go together with --quantize", fix="Leave one out.")

    @property
    def checkpoint_location(self) -> str:
        """Folder or bucket URL of the checkpoints."""
        return self.checkpoint_dir or str(self.out / "checkpoints")

    @property
    def quantize_from(self) -> float:
        """The share of the run from which weights are rounded."""
        if self.quantization.quantize_from >= 0:
            return self.quantization.quantize_from
        return 0.0 if self.init_from else 1.0 - self.schedule.warmdown_ratio

    def forward_passes(self, ranks: int) -> int:
        """Batches of each rank per optimizer step; of sampled answers there is one, of any number of rows."""
        if self.stage == "rl":
            return 1
        return self.total_batch_size // (self.device_batch_size * self.max_seq_len * ranks)


def model_config(settings: TrainSettings, vocab_size: int, parent: ModelConfig | None = None) -> ModelConfig:
    """The model that the settings describe; of a run with a parent its model, for the context of this run.

    Raises:
        UserError: the parent has another depth than the settings name.
    """
    context = settings.max_seq_len
    if context == -1:
        context = parent.max_seq_len if parent is not None else MAX_SEQ_LEN
    if parent is not None:
        if settings.depth not in (-1, parent.num_layers):
            raise UserError(
                f"--depth {settings.depth}: the model of --init_from has {parent.num_layers} layers",
                fix="Leave it out.",
            )
        base = settings.architecture.rope_base
        if settings.rope_scaling == "ntk":
            base = parent.ntk_rope_base(context)
        return parent.with_context(context, base if base > 0 else parent.rope_base)
    named: dict[str, Any] = {"window_pattern": settings.window_pattern, "num_kv_heads": settings.num_kv_heads}
    return settings.architecture.config(
        settings.depth,
        vocab_size=vocab_size,
        max_seq_len=context,
        aspect_ratio=settings.aspect_ratio,
        head_dim=settings.head_dim,
        **{name: value for name, value in named.items() if value not in ("", -1)},
    )
