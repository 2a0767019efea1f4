"""Supervised fine-tuning: the training loop of `cpplm train` on conversations, from another run's model.

The loss of a step is the mean over all tokens that the assistant writes, its end token included; prompts and
results of tools are context. Conversations are packed whole, and those of one row do not see each other.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.settings import from_dict
from cpplm.core.storage import Storage
from cpplm.dataloader.settings import DataSettings
from cpplm.optim.schedules import LearningRates, Schedule
from cpplm.post_training.conversations import ConversationCounts, describe_dropped, prepare_conversations
from cpplm.post_training.settings import SftSettings
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.pretrain import RunSummary, pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback

_TOKENS_PER_BATCH = 16_384  # of a model that has no record of its own


def fine_tune(settings: SftSettings, extra_callbacks: Sequence[Callback] = ()) -> RunSummary:
    """Fine-tune a model, or go on with the run that `settings.out` holds.

    Raises:
        UserError: bad settings or data, or `out` holds a run that these settings do not continue.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    parent = open_parent(settings.init_from)
    is_new = not settings.out.exists()
    try:
        training = train_settings(settings, parent)
    except BaseException:
        if is_new:
            shutil.rmtree(settings.out, ignore_errors=True)
        raise
    return pretrain(training, extra_callbacks)


def train_settings(settings: SftSettings, parent: Checkpoint) -> TrainSettings:
    """The training run that the settings describe, on data that is checked and written here.

    Raises:
        UserError: the data are no conversations, or too few.
    """
    tokenizer = parent.tokenizer()
    path = settings.out / "tokenizer.json"
    Storage(settings.out, create=True).write(path.name, tokenizer.to_json())
    context = settings.max_seq_len if settings.max_seq_len > 0 else parent.config().max_seq_len
    folder, counts = prepare_conversations(
        settings.data,
        settings.out / "data",
        tokenizer,
        max_tokens=context,
        val_share=settings.val_share,
        skip_bad=settings.skip_bad,
    )
    _report(counts, settings)
    record = parent.json("settings.json") if "settings.json" in parent.files else {}
    batch = settings.total_batch_size
    if batch == -1:
        batch = _whole_rows(record.get("total_batch_size", _TOKENS_PER_BATCH), settings, context)
    steps = settings.num_iterations
    if steps == -1 and settings.max_minutes == -1:
        steps = math.ceil(settings.num_epochs * counts.tokens / batch)
    return TrainSettings(
        data_dir=(str(folder),),
        tokenizer=path,
        out=settings.out,
        init_from=settings.init_from,
        init_optimizer=settings.init_optimizer,
        stage="sft",
        max_seq_len=context,
        num_iterations=steps,
        max_minutes=settings.max_minutes,
        device_batch_size=settings.device_batch_size,
        total_batch_size=batch,
        rates=_rates(record, settings.lr_scale, parent.path("settings.json")),
        schedule=Schedule(warmdown_ratio=settings.warmdown_ratio),
        data=DataSettings(document_mask=True),
        eval_every=settings.eval_every,
        eval_tokens=settings.eval_tokens,
        sample_every=-1,
        save_every=settings.save_every,
        save_minutes=settings.save_minutes,
        keep_last=settings.keep_last,
        upload_dir=settings.upload_dir,
        seed=settings.seed,
        backend=settings.backend,
        device_type=settings.device_type,
        precision=settings.precision,
        no_compile=settings.no_compile,
        jax=settings.jax,
    )


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


def _rates(record: Mapping[str, Any], scale: float, where: str) -> LearningRates:
    """The parent's learning rates, scaled, without weight decay."""
    rates = from_dict(LearningRates, record["rates"], where=where) if "rates" in record else LearningRates()
    return replace(
        rates,
        matrix_lr=scale * rates.matrix_lr,
        embedding_lr=scale * rates.embedding_lr,
        unembedding_lr=scale * rates.unembedding_lr,
        scalar_lr=scale * rates.scalar_lr,
        weight_decay=0.0,
    )


def _whole_rows(tokens: int, settings: SftSettings, context: int) -> int:
    """The nearest number of tokens that are whole forward passes."""
    rows = max(1, settings.device_batch_size) * context
    return max(1, round(tokens / rows)) * rows
