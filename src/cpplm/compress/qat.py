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
from cpplm.compress.settings import QatSettings
from cpplm.core.errors import UserError
from cpplm.core.settings import from_dict
from cpplm.core.storage import Storage
from cpplm.dataloader.fim import FimSettings
from cpplm.dataloader.loader import Batch
from cpplm.model.config import ModelConfig
from cpplm.model.settings import QuantizationSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.muon import MuonAdamW
from cpplm.optim.schedules import LearningRates, Schedule
from cpplm.train.backend import TrainBackend
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint, open_checkpoint
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.source import find_source, scaled_rates
from cpplm.train.checkpoint.weights import load_model
from cpplm.train.data import corpus_fingerprint
from cpplm.train.distributed import DistContext
from cpplm.train.pretrain import PretrainRun, RunSummary, pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import TorchBackend, TorchTrainModule
from cpplm.train.trainer import Callback, StepMetrics, Trainer

_TOKENS_PER_BATCH = 16_384  # of a model that has no record of its own


def train_quantized(settings: QatSettings, extra_callbacks: Sequence[Callback] = ()) -> RunSummary:
    """Train the rounded weights of a run's model, or go on with the run that `settings.out` holds.

    Raises:
        UserError: bad settings or data, or `out` holds a run that these settings do not continue.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    source, lr_scale = find_source(settings.run, settings.out, settings.upload_dir, settings.lr_scale)
    training = train_settings(settings, source, lr_scale)
    Storage(settings.out, create=True).write("tokenizer.json", source.tokenizer().to_json())
    callbacks = [DistillationLog(), *extra_callbacks]
    if settings.snap.auto_snap:
        callbacks.insert(0, AutoSnap(settings.snap))
    run_type = partial(CachedRun, settings) if settings.kd_cache else None
    return pretrain(training, callbacks, backend=DistillBackend(training, settings), run_type=run_type)


def train_settings(settings: QatSettings, source: Checkpoint, lr_scale: float) -> TrainSettings:
    """The training run that the settings describe; what they leave open is as the run of the model had it."""
    record = source.json("settings.json") if "settings.json" in source.files else {}
    context = settings.max_seq_len if settings.max_seq_len > 0 else source.config().max_seq_len
    batch = settings.total_batch_size
    if batch == -1:
        rows = max(1, settings.device_batch_size) * context
        batch = max(1, round(record.get("total_batch_size", _TOKENS_PER_BATCH) / rows)) * rows
    quantization, rates = QuantizationSettings(), LearningRates()  # of an adapter
    if not settings.lora.lora_rank:
        rates = scaled_rates(source, lr_scale)
        quantization = QuantizationSettings(
            quantize=settings.recipe,
            quantize_init=settings.init,
            freeze_codes=settings.freeze_codes,
            scale_lr=settings.scale_lr,
        )
    fim = FimSettings()
    if "fim" in record:
        fim = from_dict(FimSettings, record["fim"], where=source.path("settings.json"))
    return TrainSettings(
        data_dir=settings.data_dir,
        tokenizer=settings.out / "tokenizer.json",
        out=settings.out,
        init_from=settings.run,
        stage=source.stage if source.stage in ("base", "mid") else "mid",
        quantization=quantization,
        lora=settings.lora,
        max_seq_len=context,
        num_iterations=settings.num_iterations,
        max_minutes=settings.max_minutes,
        device_batch_size=settings.device_batch_size,
        total_batch_size=batch,
        rates=rates,
        schedule=Schedule(warmdown_ratio=settings.warmdown_ratio, warmup_steps=settings.warmup_steps),
        fim=fim,
        eval_every=settings.eval_every,
        sample_every=-1,
        save_every=settings.save_every,
        save_minutes=settings.save_minutes,
        keep_last=settings.keep_last,
        upload_dir=settings.upload_dir,
        seed=settings.seed,
        backend="torch",
        device_type=settings.device_type,
        precision=settings.precision,
        no_compile=settings.no_compile,
    )


def open_teacher(teacher: str, run: str) -> Checkpoint:
    """The checkpoint of the teacher: the one that is named, else what the run is, or was before rounding.

    Raises:
        UserError: it is not there.
    """
    checkpoint = open_parent(teacher or run)
    while not teacher and QUANTIZATION in checkpoint.files and checkpoint.parent is not None:
        location, step = checkpoint.parent["location"], checkpoint.parent["step"]
        checkpoint = open_checkpoint(Storage(location), step)
    return checkpoint


class DistillationLog(Callback):
    """Writes the parts of each step's loss into the run log."""

    @override
    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        module = trainer.train_module
        assert isinstance(module, DistillTrainModule)  # noqa: S101  (for mypy)
        trainer.log.write("distillation", step=trainer.state.step, parts=module.parts)


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
        load = partial(load_model, device=model.device, compute_dtype=model.compute_dtype)
        if not qat.kd_cache:
            teacher = load(open_teacher(qat.teacher, settings.init_from))
            teacher.requires_grad_(False)
        if qat.kd.uses("anchor_weight"):
            start = open_teacher("", settings.init_from)
            anchor = make_anchor(load(start), start, qat.data_dir[0])
        return DistillTrainModule(
            model, optimizer, self._dist, qat.kd, teacher=teacher, anchor=anchor,
            compiling=not settings.no_compile,
        )  # fmt: skip


class CachedRun(PretrainRun):
    """As `PretrainRun`, with the batches of a cache."""

    def __init__(
        self, qat: QatSettings, settings: TrainSettings, backend: TrainBackend, dist: DistContext
    ) -> None:
        super().__init__(settings, backend, dist)
        with dist.raise_on_all_ranks():
            self._cache = KDCache.open(qat.kd_cache)
            teacher = open_teacher(qat.teacher, settings.init_from)
            self._cache.check(
                tokenizer=self.tokenizer.hash,
                teacher=teacher.manifest_hash,
                corpus=corpus_fingerprint(self.readers),
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
