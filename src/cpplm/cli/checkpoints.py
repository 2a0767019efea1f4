"""`cpplm checkpoints list|verify`, which need no torch."""

from __future__ import annotations

from cpplm.cli.report import Report
from cpplm.cli.settings import CheckpointListSettings, VerifySettings
from cpplm.core.errors import UserError
from cpplm.core.text import pluralize
from cpplm.train.checkpoint.format import (
    Checkpoint,
    checkpoint_storage,
    committed_steps,
    open_checkpoint,
)


def list_checkpoints(settings: CheckpointListSettings) -> Report:
    """What is there, and whether each manifest is sound."""
    storage = checkpoint_storage(settings.run)
    rows, figures = [], []
    for step in committed_steps(storage):
        try:
            checkpoint = open_checkpoint(storage, step)
        except UserError as error:
            rows.append(f"step {step:>9,}  {error}")
            figures.append({"step": step, "error": str(error)})
            continue
        rows.append(
            f"step {step:>9,}  {checkpoint.size / 1e6:>12,.1f} MB  {pluralize(len(checkpoint.files), 'file')}"
        )
        figures.append({"step": step, "bytes": checkpoint.size, "files": len(checkpoint.files)})
    text = "\n".join(rows or ["no checkpoint yet"])
    return Report(f"{storage.location}\n{text}", {"location": storage.location, "checkpoints": figures})


def verify(settings: VerifySettings) -> Report:
    """Read every file and compare it with the manifest."""
    storage = checkpoint_storage(settings.run)
    steps = [settings.step] if settings.step >= 0 else committed_steps(storage)
    if not steps:
        raise UserError(f"no checkpoint in {storage.location}")
    sound: list[Checkpoint] = []
    wrong: list[str] = []
    for step in steps:
        try:
            checkpoint = open_checkpoint(storage, step)
            checkpoint.verify()
            sound.append(checkpoint)
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise UserError("; ".join(wrong))
    size = sum(checkpoint.size for checkpoint in sound)
    return Report(
        f"{pluralize(len(sound), 'checkpoint')}, {size / 1e6:,.1f} MB: every file is as it was saved",
        {"location": storage.location, "steps": [checkpoint.step for checkpoint in sound], "bytes": size},
    )
