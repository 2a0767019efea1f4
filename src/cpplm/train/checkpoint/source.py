"""The checkpoint that a run of post-training starts from, and the learning rates that follow from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.settings import from_dict
from cpplm.optim.schedules import LearningRates
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.resume import earlier_checkpoint


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


def scaled_rates(source: Checkpoint, scale: float) -> LearningRates:
    """The learning rates that a checkpoint records, scaled, without weight decay."""
    record = source.json("settings.json") if "settings.json" in source.files else {}
    where = source.path("settings.json")
    rates = from_dict(LearningRates, record["rates"], where=where) if "rates" in record else LearningRates()
    return replace(
        rates,
        matrix_lr=scale * rates.matrix_lr,
        embedding_lr=scale * rates.embedding_lr,
        unembedding_lr=scale * rates.unembedding_lr,
        scalar_lr=scale * rates.scalar_lr,
        weight_decay=0.0,
    )
