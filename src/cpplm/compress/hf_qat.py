"""Quantisation-aware training of models of the transformers library; what it leaves is a packed directory.

RUN/checkpoints/step_000200   as of any run: weights before rounding, and scales
RUN/hf                        the model at the end, packed, for 'cpplm evaluate --hf_dir'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from cpplm.compress.distill import teacher_of
from cpplm.compress.held_out_rows import text_rows
from cpplm.compress.hf import load_for_rounding, open_hf, write_packed
from cpplm.compress.kd.losses import distillation_loss
from cpplm.compress.kd.sparse_head import OutputHead
from cpplm.compress.kd.teacher import TeacherForward
from cpplm.compress.qat import (
    CachedRun,
    DistillationLog,
    open_teacher,
    refuse_other_tokenizer,
    train_settings,
)
from cpplm.compress.quantize import round_layers
from cpplm.compress.settings import QatSettings
from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.settings import to_dict
from cpplm.core.shards import ShardReader
from cpplm.core.storage import Storage
from cpplm.dataloader.encoding import DocumentEncoder
from cpplm.dataloader.loader import Batch
from cpplm.dataloader.settings import DataSettings
from cpplm.model.hf_config import HfModelConfig
from cpplm.model.quantized.recipe import Recipe
from cpplm.post_training.hf_backend import HfBackend, HfTrainModule, load_trained
from cpplm.post_training.hf_documents import document_encoder, document_tokenizer
from cpplm.post_training.hf_folder import HfFolder
from cpplm.post_training.hf_run import HfRun, write_once
from cpplm.post_training.hf_states import HfStates
from cpplm.post_training.hf_tokenizer import HfTokenizer
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from cpplm.train.backend import StepLosses, StepPlan, TrainModule
from cpplm.train.checkpoint.format import Checkpoint, open_checkpoint
from cpplm.train.checkpoint.parent import parent_record
from cpplm.train.distributed import TorchDistContext
from cpplm.train.pretrain import RunSummary, pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback

_CALIBRATION_TOKENS = 4096


def train_hf_quantized(settings: QatSettings, extra_callbacks: Sequence[Callback] = ()) -> RunSummary:
    """Train the rounded weights of a model, or go on, and write it packed when it is trained to the end.

    Raises:
        UserError: as `cpplm.compress.qat.train_quantized`.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    source = open_hf(settings.run)
    tokenizer = document_tokenizer(source)
    refuse_other_tokenizer(settings, tokenizer.hash)
    training = train_settings(settings, source, settings.lr_scale)
    if isinstance(tokenizer, HfTokenizer):  # whose documents do not say where the next one begins
        training = replace(training, data=DataSettings(document_mask=True))
    Storage(settings.out, create=True).write("tokenizer.json", tokenizer.to_json())
    backend = HfDistillBackend(training, source, settings)
    run_type = partial(CachedHfRun, settings) if settings.kd_cache else HfQatRun
    summary = pretrain(training, [DistillationLog(), *extra_callbacks], backend=backend, run_type=run_type)
    checkpoint = open_checkpoint(Storage(settings.out / "checkpoints"))
    _write_packed(training, source, checkpoint)
    return summary


def _rounded_model(settings: TrainSettings, source: HfFolder) -> Any:
    """The model as training begins with it: the same at each call."""
    quantization, reader = settings.quantization, ShardReader(settings.data_dir[0])
    texts = reader.table(reader.shards("train")[0], ["text"])["text"].to_pylist()
    rows = text_rows(source.tokenizer().encode_batch, settings.max_seq_len, texts, _CALIBRATION_TOKENS)
    model = load_for_rounding(source)
    round_layers(
        model, Recipe.parse(quantization.quantize), quantization.quantize_init, rows,
        freeze_codes=quantization.freeze_codes,
    )  # fmt: skip
    return model


def _write_packed(settings: TrainSettings, source: HfFolder, checkpoint: Checkpoint) -> None:
    """Write the model of a checkpoint packed: see `write_once`."""
    out, record = settings.out / "hf", parent_record(checkpoint)

    def write(folder: Path) -> None:
        model = _rounded_model(settings, source)
        load_trained(model, checkpoint)
        write_packed(folder, source, model, settings.quantization.quantize, record)

    if write_once(out, record, write):
        log_info(f"the packed model is in {out}, for 'cpplm evaluate --hf_dir'")


class HfQatRun(HfRun):
    """A run on documents instead of conversations."""

    @override
    def _open_tokenizer(self, settings: TrainSettings) -> Any:
        return document_tokenizer(self._source)

    @override
    def _document_encoder(self) -> DocumentEncoder | None:
        return document_encoder(self.tokenizer, self.settings.max_seq_len)


class CachedHfRun(CachedRun, HfQatRun):
    """A run with the batches of a cache."""


class HfDistillBackend(HfBackend):
    """Makes `HfDistillModule`s."""

    def __init__(self, settings: TrainSettings, source: HfFolder, qat: QatSettings) -> None:
        """Nothing is loaded yet."""
        super().__init__(settings, source)
        self._qat = qat

    @override
    def build(self, settings: TrainSettings, config: Any, tokenizer: Any, weights: Checkpoint | None,
              optimizer: Checkpoint | None, budget: Any) -> TrainModule:  # fmt: skip
        if weights is not None:
            before = weights.json("settings.json")["quantization"]
            if differing := [k for k, v in to_dict(settings.quantization).items() if before[k] != v]:
                raise UserError(
                    f"{settings.out} was begun with another --{differing[0]}", fix="Name another --out."
                )
        return super().build(settings, config, tokenizer, weights, optimizer, budget)

    @override
    def _load(self, settings: TrainSettings, dtype: torch.dtype) -> Any:
        return _rounded_model(settings, self.source)

    @override
    def _hf_module(
        self, model: Any, config: HfModelConfig, settings: TrainSettings, dtype: torch.dtype, *, packs: bool
    ) -> HfTrainModule:
        teacher = None
        if not self._qat.kd_cache:
            teacher = open_teacher(self._qat.teacher, settings.init_from).load(
                self._dist.device, dtype, False
            )
        return HfDistillModule(
            model, config, settings, dtype, self._dist,
            qat=self._qat, vocab_size=document_tokenizer(self.source).vocab_size, teacher=teacher,
        )  # fmt: skip


class HfDistillModule(HfTrainModule):
    """Trains a model towards the distributions of a teacher."""

    def __init__(
        self, model: Any, config: HfModelConfig, settings: TrainSettings, dtype: torch.dtype,
        dist: TorchDistContext, *, qat: QatSettings, vocab_size: int, teacher: TeacherForward | None,
    ) -> None:  # fmt: skip
        """Take a model of rounded layers; without a teacher batches come from a cache."""
        super().__init__(
            model, config, settings.rates.matrix_lr, dtype, dist,
            packs=True, scale_rate=settings.quantization.scale_lr,
        )  # fmt: skip
        self._states = HfStates(model, config.architecture)
        self._kd, self._vocab_size, self._teacher, self._progress = qat.kd, vocab_size, teacher, 0.0
        self.parts: dict[str, float] = {}
        """Parts of the last step's loss, by name."""

    @override
    def step(self, batches: Iterator[Batch], count: int, plan: StepPlan) -> StepLosses:
        self._progress, self.parts, self._count = plan.progress, {}, count
        return super().step(batches, count, plan)

    @override
    def _sums_of_nats(self, batch: Batch) -> Iterator[Tensor]:
        ids_BT, labels_N = batch.inputs.to(self.device), batch.targets.to(self.device).flatten()
        documents_BT = None if batch.documents is None else batch.documents.to(self.device)
        with torch.autocast(self.device_type, self._dtype, enabled=self._dtype != torch.float32):
            hidden_BTC = self._states(ids_BT, documents_BT)
        states_NC = hidden_BTC.flatten(0, 1).to(self._dtype)
        loss = distillation_loss(
            OutputHead(states_NC, self._states.head_VC, self._vocab_size), labels_N,
            teacher_of(batch, ids_BT, documents_BT, self._teacher), self._kd, progress=self._progress,
        )  # fmt: skip
        for name, value in loss.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + float(value) / self._count
        yield loss.total * (labels_N != IGNORE_INDEX).sum()
