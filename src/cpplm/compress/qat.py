"""Quantisation-aware training of a model that there is, by distillation from what it was before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from typing_extensions import override

from cpplm.compress.auto_snap import AutoSnap
from cpplm.compress.kd.losses import distillation_loss
from cpplm.compress.kd.settings import KDLossSettings
from cpplm.compress.kd.targets import OnlineTeacher
from cpplm.compress.settings import QatSettings
from cpplm.core.settings import from_dict
from cpplm.core.storage import Storage
from cpplm.dataloader.fim import FimSettings
from cpplm.dataloader.loader import Batch
from cpplm.model.settings import QuantizationSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.muon import MuonAdamW
from cpplm.optim.schedules import LearningRates, Schedule
from cpplm.train.backend import StepLosses, StepPlan
from cpplm.train.checkpoint.format import QUANTIZATION, Checkpoint, open_checkpoint
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.source import find_source, scaled_rates
from cpplm.train.checkpoint.weights import load_model
from cpplm.train.compile import LossFunction, can_compile
from cpplm.train.distributed import TorchDistContext
from cpplm.train.pretrain import RunSummary, pretrain
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
    return pretrain(training, callbacks, backend=DistillBackend(training, settings))


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
    def _module(self, model: Transformer, optimizer: MuonAdamW, settings: TrainSettings) -> TorchTrainModule:
        unrounded = open_teacher(self._qat.teacher, settings.init_from)
        teacher = load_model(unrounded, device=model.device, compute_dtype=model.compute_dtype)
        teacher.requires_grad_(False)
        return DistillTrainModule(
            model, optimizer, self._dist, teacher, self._qat.kd, compiling=not settings.no_compile
        )


class DistillTrainModule(TorchTrainModule):
    """Trains a model towards the distributions of a teacher."""

    def __init__(
        self,
        model: Transformer,
        optimizer: MuonAdamW,
        dist: TorchDistContext,
        teacher: Transformer,
        settings: KDLossSettings,
        *,
        compiling: bool,
    ) -> None:
        """Args: the student with its optimizer, the ranks, the teacher, and how the two are compared."""
        super().__init__(model, optimizer, model.training_losses, dist)
        self._teacher, self._settings = teacher, settings
        self._compiling = compiling and can_compile(model.device)
        self._student_states, self._teacher_states = self._compiled(model), self._compiled(teacher)
        self._progress = 0.0
        self.parts: dict[str, float] = {}
        """Of the last step's loss, by name."""

    def _compiled(self, model: Transformer) -> Callable[..., tuple[Tensor, Tensor]]:
        """States and divergence of indexers, of ids, documents and what `embed_ngrams` gave for them."""

        def states(
            ids_BT: Tensor, documents_BT: Tensor | None, ngrams: dict[int, Tensor]
        ) -> tuple[Tensor, Tensor]:
            return model.states(model.forward_context(ids_BT, None, documents_BT, ngrams))

        return torch.compile(states, dynamic=False, fullgraph=True) if self._compiling else states

    @override
    def compile_losses(self) -> LossFunction:
        self._student_states = self._compiled(self.model)
        return self.model.training_losses

    @override
    def step(self, batches: Iterator[Batch], count: int, plan: StepPlan) -> StepLosses:
        self._progress = plan.progress
        return super().step(batches, count, plan)

    @override
    def _forward_backward(self, passes: list[Batch], count: int, multi_token_weight: float) -> Tensor:
        sums = torch.zeros(4, device=self.device)
        shares = self._target_shares(passes)
        self.parts = {}
        for batch, share in zip(passes, shares, strict=True):
            loss, parts = self._loss_of(batch)
            (share[0] * loss / count).backward()
            for name, value in parts.items():
                self.parts[name] = self.parts.get(name, 0.0) + float(share[0] * value) / count
            sums[:2] += share[0] * loss.detach() / count
        return sums

    def _loss_of(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        ids_BT, targets_BT = batch.inputs.to(self.device), batch.targets.to(self.device)
        documents_BT = None if batch.documents is None else batch.documents.to(self.device)
        hidden_BTC, divergence = self._student_states(
            ids_BT, documents_BT, self.model.embed_ngrams(ids_BT, None, documents_BT)
        )
        with torch.no_grad():
            of_teacher_BTC, _ = self._teacher_states(
                ids_BT, documents_BT, self._teacher.embed_ngrams(ids_BT, None, documents_BT)
            )
        softcap = self.config.logit_softcap
        loss = distillation_loss(
            hidden_BTC.flatten(0, 1), self.model.lm_head.weight, targets_BT.flatten(),
            OnlineTeacher(of_teacher_BTC.flatten(0, 1), self._teacher.lm_head.weight, softcap),
            self._settings,
            progress=self._progress, vocab_size=self.config.vocab_size, softcap=softcap,
        )  # fmt: skip
        return loss.total + divergence, loss.parts
