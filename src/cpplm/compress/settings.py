"""Settings of the commands `cpplm compress`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Literal

from cpplm.compress.kd.settings import KDLossSettings
from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, group
from cpplm.core.storage import is_hf_folder, require_path, split_step
from cpplm.generate.settings import require_at_least
from cpplm.model.quantized.recipe import InitMethod, Recipe
from cpplm.model.settings import LoraSettings
from cpplm.train.session_settings import SessionSettings


@dataclass(frozen=True)
class QuantizeSettings:
    """Rounding of a model without training: the baseline of everything else."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Model to quantise: RUN or RUN:STEP, a folder or bucket URL, or hf:DIR of transformers."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder for the packed model, which every command takes as a run, that of hf:DIR evaluate --hf_dir."""
    recipe: str = "int4"
    """Weight format by layer type, as mlp=half2:g32,attn=half4:g32 (2 and 4 bits, a scale per 32 weights), or
    a preset: int8, int4, int2, q4_0, or with low-rank scales q4_r32, q4a4_r32, q4a4, q2a4, q2a2. A run of
    `compress qat` keeps its own."""
    init: InitMethod = "mse"
    """Rule for scales: absmax = largest magnitude of each group; mse = least squared error; activation = the
    same, weighted by the activations on --data_dir."""
    data_dir: str = ""
    """Corpus whose activations count, for --init activation."""
    num_tokens: int = 16_384
    """So many tokens of it."""

    def __post_init__(self) -> None:
        Recipe.parse(self.recipe)
        if (self.init == "activation") != bool(self.data_dir):
            raise UserError(
                "--init activation and --data_dir go together", fix="Give both, or neither: --init mse."
            )
        require_at_least(self, num_tokens=1)
        if self.num_tokens != type(self).num_tokens and not self.data_dir:
            raise UserError("--num_tokens does nothing without --data_dir", fix="Leave it out.")

    def check_paths(self) -> None:
        """Refuse a run or a corpus that is not there."""
        require_path(split_step(self.run)[0])
        if self.data_dir:
            require_path(self.data_dir)


@dataclass(frozen=True)
class CompareSettings:
    """Measurement of quantised models against the model that they stand for."""

    teacher: Annotated[str, Argument("RUN", positional=True)]
    """The model before: RUN or RUN:STEP, or hf:DIR of transformers."""
    data_dir: Annotated[str, Argument("CORPUS")]
    """Held-out code: a corpus, whose validation documents are taken, or any that `evaluate bpb` takes."""
    students: Annotated[tuple[str, ...], Argument("RUN")] = ()
    """Quantised models: runs of `compress quantize`, `compress qat` or `train --quantize`, or hf:DIR."""
    recipes: tuple[str, ...] = ()
    """Further recipes to measure by rounding alone; those of the students are, anyway."""
    num_tokens: int = 50_000
    """Tokens to measure on."""
    evaluate: bool = False
    """Also have `cpplm evaluate` measure the runs: bits per byte of 1 MB of CORPUS, HumanEval's right
    solutions against buggy ones, holes in CORPUS filled exactly. Results are kept in the runs."""
    page: Path | None = None
    """Also write this HTML page, with bars."""

    def __post_init__(self) -> None:
        for recipe in self.recipes:
            Recipe.parse(recipe)
        if not self.students and not self.recipes:
            raise UserError("nothing to compare", fix="Add --students RUN or --recipes int4.")
        if len({is_hf_folder(run) for run in (self.teacher, *self.students)}) > 1:
            raise UserError("runs and models of transformers cannot be compared", fix="Name one kind.")
        if self.evaluate and is_hf_folder(self.teacher):
            raise UserError("--evaluate is of runs", fix="Use 'cpplm evaluate --hf_dir' for each.")
        require_at_least(self, num_tokens=1)

    def check_paths(self) -> None:
        """Refuse runs that are not there."""
        for run in (self.teacher, *self.students):
            require_path(split_step(run)[0])


@dataclass(frozen=True)
class AutoSnapSettings:
    """When scales count as settled; looked at whenever --save_every saves."""

    auto_snap: bool = False
    """Freeze scales once they no longer move."""
    auto_snap_target: Literal["mlp", "all"] = "mlp"
    """Scales that may be frozen: those of MLPs, or all."""
    auto_snap_threshold: float = 0.05
    """Most that a scale may change between two checkpoints, as a share of the layer's largest."""
    auto_snap_patience: int = 2
    """Checkpoints in a row without a larger change."""
    auto_snap_start_step: int = 100
    """First step at which they are looked at."""
    auto_snap_min_saves: int = 2
    """Comparisons before anything is frozen."""
    auto_snap_dry_run: bool = False
    """Look and write into the log, and freeze nothing."""

    def __post_init__(self) -> None:
        for each in fields(self) if not self.auto_snap else ():
            if getattr(self, each.name) != each.default:
                raise UserError(f"--{each.name} does nothing without --auto_snap", fix="Add it.")
        require_at_least(self, auto_snap_patience=1, auto_snap_min_saves=1, auto_snap_start_step=0)
        if not self.auto_snap_threshold > 0:
            raise UserError(f"--auto_snap_threshold {self.auto_snap_threshold} must be above 0")


@dataclass(frozen=True)
class CheckSettings:
    """Layers of one quantised model."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """RUN or RUN:STEP, a folder or bucket URL."""

    def check_paths(self) -> None:
        """Refuse a run that is not there."""
        require_path(split_step(self.run)[0])


@dataclass(frozen=True)
class QatSettings(SessionSettings):
    """Quantisation-aware training of one model. What is not here is as its run had it."""

    data_dir: Annotated[tuple[str, ...], Argument("CORPUS", positional=True)]
    """Corpus: a folder or bucket URL written by `cpplm corpus build`; several are mixed."""
    run: Annotated[str, Argument("RUN")]
    """Model to quantise: RUN or RUN:STEP, a folder or bucket URL, or hf:DIR of transformers."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder of the run: log, checkpoints. Holding a checkpoint, it is continued."""

    recipe: str = "int4"
    """Formats by role, or a preset, as of `cpplm compress quantize`."""
    init: InitMethod = "activation"
    """Rule for the first scales; activations are those of the first batch."""
    freeze_codes: bool = False
    """Train the scales only; the integer codes stay as they were first rounded."""

    teacher: str = ""
    """Whose distributions are learned: RUN, RUN:STEP or hf:DIR (empty = the model before it was rounded)."""
    kd_cache: str = ""
    """Folder of `cpplm compress cache build`, whose rows are trained on; the teacher does not run."""
    kd: Annotated[KDLossSettings, group("distillation")] = field(
        default_factory=lambda: KDLossSettings(kd_loss="full")
    )
    """Loss between teacher and student."""

    snap: Annotated[AutoSnapSettings, group("auto snap")] = field(default_factory=AutoSnapSettings)
    """Freeze scales that have settled."""

    lora: Annotated[LoraSettings, group("LoRA")] = field(default_factory=LoraSettings)
    """Train an adapter beside the weights of a model that is quantised already (recovery)."""

    num_iterations: int = -1
    """Train for this many optimizer steps."""
    max_minutes: float = -1.0
    """Train for this long."""
    max_seq_len: int = -1
    """Tokens of a row (-1 = the model's context)."""
    device_batch_size: int = -1
    """Rows per forward pass (-1 = 32; on a CPU about what it computes in a second)."""
    total_batch_size: int = -1
    """Tokens per optimizer step (-1 = as the run of --run had it)."""
    lr_scale: float = 0.1
    """Learning rates, as a multiple of those of the run of --run."""
    scale_lr: float = 1e-4
    """Learning rate of scales."""
    warmup_steps: int = 0
    """Steps in which rates rise."""
    warmdown_ratio: float = 1.0
    """Share of the run, at its end, in which they fall to zero."""

    eval_every: int = -1
    """Measure bits per byte of held-out code every so many steps, and at start and end (-1 = never)."""

    seed: int = 0
    """Seed of the order of documents."""
    device_type: Literal["", "cuda", "mps", "cpu"] = ""
    """Device (empty = the best one present)."""
    no_compile: bool = False
    """Run without torch.compile: slower steps, instant start."""

    def __post_init__(self) -> None:
        Recipe.parse(self.recipe)
        require_at_least(self, lr_scale=0, scale_lr=0)
        for name in ("recipe", "init", "freeze_codes", "scale_lr", "lr_scale") if self.lora.lora_rank else ():
            if getattr(self, name) != getattr(type(self), name):
                raise UserError(
                    f"--{name} is of rounded weights, and --lora_rank leaves those as they are",
                    fix="Leave one out.",
                )
        if is_hf_folder(self.run):
            self._check_hf()
        self.kd.check_teacher(cached=bool(self.kd_cache), negatives=bool(self.kd_cache))
        if self.snap.auto_snap and not self.save_every > 0:
            raise UserError("--auto_snap looks whenever --save_every saves", fix="Add --save_every 200.")
        if self.snap.auto_snap and self.lora.lora_rank:
            raise UserError("--auto_snap is of scales, and --lora_rank trains none", fix="Leave one out.")
        if (self.num_iterations > 0) == (self.max_minutes > 0):
            raise UserError(
                "nothing says how long to train, or two settings do",
                fix="Give either --num_iterations or --max_minutes.",
            )

    def _check_hf(self) -> None:
        """Refuse what there is for our own models alone."""
        for name, given in (
            ("lora_rank", self.lora.lora_rank > 0),
            ("auto_snap", self.snap.auto_snap),
            ("anchor_weight", self.kd.uses("anchor_weight")),
            ("no_compile", self.no_compile),
        ):
            if given:
                raise UserError(f"--{name} is not for models of transformers", fix="Leave it out.")

    def check_paths(self) -> None:
        """Refuse a corpus or runs that are not there."""
        for location in self.data_dir:
            require_path(location)
        runs = [self.run] if not (self.out.exists() or self.upload_dir) else []
        if self.kd_cache:
            require_path(self.kd_cache)
        for run in (*runs, *filter(None, [self.teacher])):
            require_path(split_step(run)[0])
