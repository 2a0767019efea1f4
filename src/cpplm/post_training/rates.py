"""Learning rates of a run that goes on from another one."""

from __future__ import annotations

from dataclasses import replace

from cpplm.core.settings import from_dict
from cpplm.optim.schedules import LearningRates
from cpplm.train.checkpoint.format import Checkpoint


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
