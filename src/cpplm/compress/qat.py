"""Quantisation-aware training of a model that there is, by distillation from what it was before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from typing_extensions import override

from cpplm.compress.auto_snap import AutoSnap
from cpplm.compress.distill import DistillTrainModule, make_anchor
from cpplm.compress.kd.cache import KDCache
from cpplm.compress.kd.teacher import Teacher, checkpoint_teacher, find_teacher
from cpplm.compress.settings import QatSettings
from cpplm.core.errors import UserError
from cpplm.core.settings import from_dict
from cpplm.core.storage import Storage, is_hf_folder
from cpplm.dataloader.fim import FimSettings
from cpplm.dataloader.loader import Batch
from cpplm.model.config import ModelConfig
from cpplm.model.settings import QuantizationSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.muon import MuonAdamW
from cpplm.optim.schedules import Schedule
from cpplm.post_training.hf_folder import HfFolder
from cpplm.post_training.sft import inherited
from cpplm.train.backend import TrainBackend
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint, Stage, open_checkpoint
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.source import batch_tokens, find_source, train_settings_of
from cpplm.train.checkpoint.weights import load_model
from cpplm.train.compile import can_compile
from cpplm.train.data import corpus_fingerprint
from cpplm.train.distributed import DistContext
from cpplm.train.pretrain import PretrainRun, RunSummary, pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import TorchBackend, TorchTrainModule
from cpplm.train.trainer import Callback, StepMetrics, Trainer


def train_quantized(settings: QatSettings, extra_callbacks: Sequence[Callback] = ()) -> RunSummary:
    """Train the rounded weights of a run's model, or go on with the run that `settings.out` holds.

    Raises:
        UserError: bad settings or data, or `out` holds a run that these settings do not continue.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    source, lr_scale = find_source(settings.run, settings.out, settings.upload_dir, settings.lr_scale)
    refuse_other_tokenizer(settings, source.tokenizer().hash)
    training = train_settings(settings, source, lr_scale)
    Storage(settings.out, create=True).write("tokenizer.json", source.tokenizer().to_json())
    callbacks = [DistillationLog(), *extra_callbacks]
    if settings.snap.auto_snap:
        callbacks.insert(0, AutoSnap(settings.snap))
    run_type = partial(CachedRun, settings) if settings.kd_cache else None
    return pretrain(training, callbacks, backend=DistillBackend(training, settings), run_type=run_type)


def refuse_other_tokenizer(settings: QatSettings, tokenizer_hash: str) -> None:
    """Refuse a teacher that runs beside and has another tokenizer than the student.

    Raises:
        UserError: it has, or it is not there.
    """
    beside = settings.teacher if not settings.kd_cache else ""
    if beside and find_teacher(beside).tokenizer.hash != tokenizer_hash:
        raise UserError(f"{beside} has another tokenizer than {settings.run}", fix="Name another --teacher.")


def train_settings(settings: QatSettings, source: Checkpoint | HfFolder, lr_scale: float) -> TrainSettings:
    """The training run that the settings describe; what they leave open is as the run of the model had it."""
    record, context, rates, _ = inherited(source, settings.max_seq_len, settings.lora, lr_scale)
    stage: Stage = "mid"
    if not isinstance(source, HfFolder) and source.stage in ("base", "mid"):
        stage = source.stage
    quantization = QuantizationSettings()
    if not settings.lora.lora_rank:
        quantization = QuantizationSettings(
            quantize=settings.recipe,
            quantize_init=settings.init,
            freeze_codes=settings.freeze_codes,
            scale_lr=settings.scale_lr,
        )
    fim = FimSettings()
    if "fim" in record:
        fim = from_dict(FimSettings, record["fim"], where=f"settings.json of {settings.run}")
    return train_settings_of(
        settings,
        tokenizer=settings.out / "tokenizer.json",
        init_from=settings.run,
        stage=stage,
        quantization=quantization,
        max_seq_len=context,
        total_batch_size=batch_tokens(record, settings.total_batch_size, settings.device_batch_size, context),
        rates=rates,
        schedule=Schedule(warmdown_ratio=settings.warmdown_ratio, warmup_steps=settings.warmup_steps),
        fim=fim,
        sample_every=-1,
        backend="torch",
    )


def open_teacher(teacher: str, run: str) -> Teacher:
    """The teacher: the one that is named, else what the run is, or was before rounding.

    Raises:
        UserError: it is not there.
    """
    if teacher or is_hf_folder(run):
        return find_teacher(teacher or run)
    return checkpoint_teacher(first_checkpoint(run))


def first_checkpoint(run: str) -> Checkpoint:
    """The checkpoint of a run, or that of the model before it was rounded.

    Raises:
        UserError: it is not there.
    """
    checkpoint = open_parent(run)
    while QUANTIZATION in checkpoint.files and checkpoint.parent is not None:
        location, step = checkpoint.parent["location"], checkpoint.parent["step"]
        checkpoint = open_checkpoint(Storage(location), step)
    return checkpoint


class DistillationLog(Callback):
    """Writes the parts of each step's loss into the run log."""

    @override
    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        trainer.log.write("distillation", step=trainer.state.step, parts=vars(trainer.train_module)["parts"])


class DistillBackend(TorchBackend):
    """Makes `DistillTrainModule`s."""

    def __init__(self, settings: TrainSettings, qat: QatSettings) -> None:
        """Args: settings of the run, and what it learns from."""
        super().__init__(settings)
        self._qat = qat

    @override
    def check(self, settings: TrainSettings, config: ModelConfig) -> dict[str, Any]:
        if self._qat.snap.auto_snap and self._dist.world_size > 1:
            raise UserError("--auto_snap is of one process", fix="Start without torchrun, or leave it out.")
        return super().check(settings, config)

    @override
    def _module(self, model: Transformer, optimizer: MuonAdamW, settings: TrainSettings) -> TorchTrainModule:
        qat, teacher, anchor = self._qat, None, None
        compiling = not settings.no_compile and can_compile(model.device)
        if not qat.kd_cache:
            source = open_teacher(qat.teacher, settings.init_from)
            teacher = source.load(model.device, model.compute_dtype, compiling)
        if qat.kd.uses("anchor_weight"):
            start = first_checkpoint(settings.init_from)
            before = load_model(start, device=model.device, compute_dtype=model.compute_dtype)
            anchor = make_anchor(before, start, qat.data_dir[0])
        return DistillTrainModule(
            model, optimizer, self._dist, qat.kd, teacher=teacher, anchor=anchor,
            compiling=compiling,
        )  # fmt: skip


class CachedRun(PretrainRun):
    """A run with the batches of a cache."""

    def __init__(
        self, qat: QatSettings, settings: TrainSettings, backend: TrainBackend, dist: DistContext
    ) -> None:
        super().__init__(settings, backend, dist)
        with dist.raise_on_all_ranks():
            self._cache = KDCache.open(qat.kd_cache)
            teacher = open_teacher(qat.teacher, settings.init_from)
            self._cache.check(
                tokenizer=self.tokenizer.hash, teacher=teacher.hash, corpus=corpus_fingerprint(self.readers)
            )
            if self._cache.manifest.seq_len != self.settings.max_seq_len:
                raise UserError(
                    f"the rows of {qat.kd_cache} have {self._cache.manifest.seq_len} tokens",
                    fix=f"Use --max_seq_len {self._cache.manifest.seq_len}.",
                )
            qat.kd.check_teacher(cached=True, negatives=self._cache.manifest.negatives > 0)

    @override
    @contextmanager
    def _open_batches(self) -> Iterator[Iterator[Batch]]:
        yield self._cache.batches(
            self.state.loader.rows, self.settings.device_batch_size, self.dist.rank, self.dist.world_size
        )
