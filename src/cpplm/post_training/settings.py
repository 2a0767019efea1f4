"""Settings of `cpplm sft`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, group
from cpplm.core.storage import is_hf_folder, require_path, split_step
from cpplm.model.settings import LoraSettings
from cpplm.train.session_settings import SessionSettings
from cpplm.train.settings import JaxSettings


@dataclass(frozen=True)
class SftSettings(SessionSettings):
    """Supervised fine-tuning of one model. What is not here is as the run of --init_from had it."""

    data: Annotated[tuple[Path, ...], Argument("FILE", positional=True)]
    """Conversations: JSON lines with `messages` (OpenAI's form, tools and their results included) or
    `conversations` (ShareGPT's), plain or gzip; or folders of `cpplm tasks build`."""
    init_from: Annotated[str, Argument("RUN")]
    """Model to start from: RUN or RUN:STEP, a folder or bucket URL, or hf:DIR of transformers."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder of the run: log, checkpoints, data. Holding a checkpoint, it is continued."""

    skip_bad: bool = False
    """Leave out and count what is no conversation instead of refusing it."""
    val_share: float = 0.02
    """Share of the conversations held out."""

    num_epochs: float = 2.0
    """Train on each conversation so many times."""
    num_iterations: int = -1
    """Train for this many optimizer steps instead (-1 = by epochs)."""
    max_minutes: float = -1.0
    """Train for this long instead (-1 = by epochs)."""
    max_seq_len: int = -1
    """Tokens of a row; longer conversations are left out (-1 = the model's context)."""
    device_batch_size: int = -1
    """Rows per forward pass (-1 = 32; on a CPU about what it computes in a second)."""
    total_batch_size: int = -1
    """Tokens per optimizer step, padding included (-1 = as in the run of --init_from)."""
    lr_scale: float = 0.2
    """Learning rates, as a multiple of those in the run of --init_from."""
    warmdown_ratio: float = 0.5
    """Share of the run, at its end, in which the learning rate falls to zero."""
    init_optimizer: bool = False
    """Also start with the moments of its optimizer."""

    lora: Annotated[LoraSettings, group("LoRA")] = field(default_factory=LoraSettings)
    """Train an adapter, not the whole model."""

    eval_every: int = 50
    """Measure the loss on held-out conversations every so many steps, and at start and end (-1 = never)."""
    eval_tokens: int = -1
    """Tokens per measurement, padding included (-1 = 10485760; on a CPU about ten seconds)."""

    seed: int = 0
    """Of the order of the conversations."""
    backend: Literal["auto", "torch", "jax"] = "auto"
    """Library: PyTorch for CPU, CUDA and MPS, JAX for TPUs (auto = JAX where a TPU is present)."""
    device_type: Literal["", "cuda", "mps", "cpu", "tpu"] = ""
    """Device (empty = the best one present)."""
    no_compile: bool = False
    """Run without torch.compile: slower steps, instant start."""
    jax: Annotated[JaxSettings, group("JAX")] = field(default_factory=JaxSettings)
    """Of JAX."""

    def __post_init__(self) -> None:
        if not self.data:
            raise UserError("no conversations were given", fix="Write cpplm sft FILE.jsonl.")
        for name in ("num_epochs", "lr_scale"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"--{name} {getattr(self, name)}", fix="Use a positive number.")
        for name in ("max_seq_len", "device_batch_size"):
            if not (getattr(self, name) > 0 or getattr(self, name) == -1):
                raise UserError(
                    f"--{name} {getattr(self, name)}", fix="Use a positive number, or -1 to leave it out."
                )
        if not 0 <= self.val_share < 1 or not 0 <= self.warmdown_ratio <= 1:
            raise UserError("--val_share and --warmdown_ratio are shares", fix="Use numbers from 0 to 1.")

        if is_hf_folder(self.init_from):
            self._check_hf()
        if self.lora.lora_rank:
            for name in ("lr_scale", "init_optimizer"):
                if getattr(self, name) != getattr(type(self), name):
                    raise UserError(
                        f"--{name} is of whole models, and --lora_rank trains an adapter",
                        fix="Leave it out; --lora_lr is the adapter's learning rate.",
                    )

    def _check_hf(self) -> None:
        """Refuse what does nothing for models of transformers."""
        if self.backend == "jax" or self.device_type == "tpu":
            raise UserError("models of transformers are trained with PyTorch", fix="Use --backend torch.")
        for name in ("init_optimizer", "no_compile"):
            if getattr(self, name):
                raise UserError(f"--{name} does nothing for a model of transformers", fix="Leave it out.")

    def check_paths(self) -> None:
        """Refuse files and a run that are not there."""
        for file in self.data:
            require_path(file)
        if not (self.out.exists() or self.upload_dir):  # a run goes on after its parent is gone
            require_path(split_step(self.init_from)[0])
