"""The checkpoint that a run of post-training starts from, and the learning rates that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.settings import from_dict
from cpplm.optim.schedules import LearningRates
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.resume import earlier_checkpoint
from cpplm.train.settings import TrainSettings

_TOKENS_PER_BATCH = 16_384  # of a model that has no record of its own


def find_source(init_from: str, out: Path, upload_dir: str, lr_scale: float) -> tuple[Checkpoint, float]:
    """The checkpoint that says what the settings of a run do not, and a factor for its learning rates.

    It is the parent's; once that is gone, the last one of the run itself, whose rates are scaled already.

    Raises:
        UserError: there is neither.
    """
    try:
        return open_parent(init_from), lr_scale
    except UserError as error:
        earlier = earlier_checkpoint(out / "checkpoints", upload_dir)
        if earlier is None:
            raise
        log_info(f"going on without the parent, with the learning rates of this run ({error})")
        return earlier, 1.0


def batch_tokens(
    record: Mapping[str, Any], total_batch_size: int, device_batch_size: int, context: int
) -> int:
    """The tokens of a batch: `total_batch_size`; at -1 about a record's, in whole forward passes."""
    if total_batch_size != -1:
        return total_batch_size
    rows = max(1, device_batch_size) * context
    return max(1, round(record.get("total_batch_size", _TOKENS_PER_BATCH) / rows)) * rows


def train_settings_of(settings: Any, **changes: Any) -> TrainSettings:
    """The training run that the settings of a command stand for: the names that both have, but for some."""
    names = {field.name for field in fields(TrainSettings)} & {field.name for field in fields(settings)}
    return TrainSettings(**{name: getattr(settings, name) for name in names - changes.keys()}, **changes)


def scaled_rates(source: Checkpoint, scale: float) -> LearningRates:
    """The learning rates that a checkpoint records, scaled, without weight decay."""
    record = source.json("settings.json") if "settings.json" in source.files else {}
    where = source.path("settings.json")
    rates = from_dict(LearningRates, record["rates"], where=where) if "rates" in record else LearningRates()
    names = [field.name for field in fields(rates) if field.name.endswith("_lr")]
    return replace(rates, weight_decay=0.0, **{name: scale * getattr(rates, name) for name in names})
