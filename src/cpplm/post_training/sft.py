"""Supervised fine-tuning: the training loop of `cpplm train` on conversations, from another run's model.

The loss of a step is the mean over all tokens that the assistant writes, its end token included; prompts and
results of tools are context. Conversations are packed whole, and those of one row do not see each other.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.storage import Storage, is_hf_folder
from cpplm.dataloader.settings import DataSettings
from cpplm.model.lora import check_targets
from cpplm.model.settings import LoraSettings
from cpplm.optim.schedules import LearningRates, Schedule
from cpplm.post_training.conversations import ConversationCounts, describe_dropped, prepare_conversations
from cpplm.post_training.hf_folder import HfFolder
from cpplm.post_training.hf_run import train_hf
from cpplm.post_training.hf_tokenizer import HfChatTokenizer
from cpplm.post_training.settings import SftSettings
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.backend_registry import refuse_lora_with_jax
from cpplm.train.checkpoint.format import Checkpoint, Stage
from cpplm.train.checkpoint.source import batch_tokens, find_source, scaled_rates, train_settings_of
from cpplm.train.pretrain import RunSummary, pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback


def fine_tune(
    settings: SftSettings, extra_callbacks: Sequence[Callback] = (), *, stage: Stage = "sft"
) -> RunSummary:
    """Fine-tune a model, or go on with the run that `settings.out` holds; its checkpoints record `stage`.

    Raises:
        UserError: bad settings or data, or `out` holds a run that these settings do not continue.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    refuse_lora_with_jax(settings.lora.lora_rank, settings.backend, settings.device_type)
    source, lr_scale = _source(settings)
    training = replace(train_settings(settings, source, lr_scale), stage=stage)
    is_new = not settings.out.exists()
    try:
        tokenizer = source.chat_tokenizer() if isinstance(source, HfFolder) else source.tokenizer()
        training = _with_data(training, settings, tokenizer)
    except BaseException:
        if is_new:
            shutil.rmtree(settings.out, ignore_errors=True)
        raise
    if isinstance(source, HfFolder):
        return train_hf(training, source, extra_callbacks)
    return pretrain(training, extra_callbacks)


def _source(settings: SftSettings) -> tuple[Checkpoint | HfFolder, float]:
    """What says what the settings do not, and a factor for its learning rates; see `find_source`."""
    if is_hf_folder(settings.init_from):
        return HfFolder(settings.init_from, settings.lora), settings.lr_scale
    return find_source(settings.init_from, settings.out, settings.upload_dir, settings.lr_scale)


def train_settings(settings: SftSettings, source: Checkpoint | HfFolder, lr_scale: float) -> TrainSettings:
    """The training run that the settings describe, but for its data, which are not looked at yet.

    Args:
        settings: of the fine-tuning.
        source: has the tokenizer, the context and what else the settings leave open.
        lr_scale: multiplies its learning rates.

    Raises:
        UserError: settings that are no run.
    """
    if not isinstance(source, HfFolder):
        check_targets(source.config(), settings.lora)
    record, context, rates, lora = inherited(source, settings.max_seq_len, settings.lora, lr_scale)
    return train_settings_of(
        settings,
        data_dir=(str(settings.out / "data"),),
        tokenizer=settings.out / "tokenizer.json",
        stage="sft",
        lora=lora,
        max_seq_len=context,
        total_batch_size=batch_tokens(record, settings.total_batch_size, settings.device_batch_size, context),
        rates=rates,
        schedule=Schedule(warmdown_ratio=settings.warmdown_ratio),
        data=DataSettings(document_mask=True),
        sample_every=-1,
    )


def inherited(
    source: Checkpoint | HfFolder, max_seq_len: int, lora: LoraSettings, lr_scale: float
) -> tuple[dict[str, Any], int, LearningRates, LoraSettings]:
    """The record of a model's training, its context unless `max_seq_len` says another, rates and adapter."""
    if isinstance(source, HfFolder):
        return {}, source.row_length(max_seq_len), *source.rates(lr_scale, lora)
    record = source.json("settings.json") if "settings.json" in source.files else {}
    context = max_seq_len if max_seq_len > 0 else source.config().max_seq_len
    rates = LearningRates() if lora.lora_rank else scaled_rates(source, lr_scale)
    return record, context, rates, lora


def _with_data(
    training: TrainSettings, settings: SftSettings, tokenizer: Tokenizer | HfChatTokenizer
) -> TrainSettings:
    """The run with its data, which are checked and written here, and with a length.

    Raises:
        UserError: the data are no conversations, or too few.
    """
    Storage(settings.out, create=True).write(training.tokenizer.name, tokenizer.to_json())
    folder, counts = prepare_conversations(
        settings.data,
        settings.out / "data",
        tokenizer,
        max_tokens=training.max_seq_len,
        val_share=settings.val_share,
        skip_bad=settings.skip_bad,
    )
    _report(counts, settings)
    steps = settings.num_iterations
    if steps == -1 and settings.max_minutes == -1:
        steps = math.ceil(settings.num_epochs * counts.tokens / training.total_batch_size)
    return replace(training, data_dir=(str(folder),), num_iterations=steps)


def _report(counts: ConversationCounts, settings: SftSettings) -> None:
    """Say what the data are.

    Raises:
        UserError: none are held out though the run shall be measured.
    """
    held_out = counts.conversations.get("val", 0)
    log_info(
        f"{counts.conversations['train']:,} conversations, {counts.tokens:,} tokens, of which the assistant "
        f"writes {counts.supervised / counts.tokens:.0%}; {held_out:,} held out"
    )
    if counts.dropped:
        log_info(describe_dropped(counts))
    if settings.eval_every > 0 and not held_out:
        raise UserError(
            f"of {counts.conversations['train']} conversations none is held out",
            fix="Raise --val_share, or give --eval_every -1.",
        )
