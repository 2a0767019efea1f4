"""`cpplm checkpoints import`."""

from __future__ import annotations

from cpplm.cli.checkpoints import ImportSettings
from cpplm.cli.report import Report
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.import_nanochat import import_nanochat


def import_checkpoint(settings: ImportSettings) -> Report:
    """Turn a checkpoint of nanochat into ours."""
    step = None if settings.step < 0 else settings.step
    stage = None if settings.stage == "auto" else settings.stage
    tokenizer = Tokenizer.load(settings.tokenizer)
    imported = import_nanochat(settings.source, settings.out, tokenizer, step, stage)
    return Report(
        f"step {imported.step}, {imported.stage} model: {imported.size / 1e6:,.1f} MB in {imported.path()}",
        {"step": imported.step, "stage": imported.stage, "path": imported.path(), "bytes": imported.size},
    )
