"""`cpplm checkpoints list|verify|import`, the last of which alone needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cpplm.cli.report import Report
from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.storage import require_path
from cpplm.core.text import pluralize
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import (
    Checkpoint,
    checkpoint_storage,
    committed_steps,
    open_checkpoint,
)


@dataclass(frozen=True)
class CheckpointListSettings:
    """Settings of `cpplm checkpoints list`."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints."""


@dataclass(frozen=True)
class VerifySettings:
    """Settings of `cpplm checkpoints verify`."""

    run: Annotated[str, Argument("RUN", positional=True)]
    """Run folder of `cpplm train`, or a folder or bucket URL with checkpoints."""
    step: int = -1
    """Only this one (-1 = all)."""


@dataclass(frozen=True)
class ImportSettings:
    """Settings of `cpplm checkpoints import`."""

    source: Annotated[Path, Argument("SOURCE", positional=True)]
    """Folder with nanochat's `model_*.pt` and `meta_*.json`, or one `model_*.pt`."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder for the checkpoint; `cpplm generate` and `cpplm evaluate` take it as a run."""
    tokenizer: Annotated[Path, Argument("FILE")]
    """File of `cpplm tokenizer train` that gives the ids which the model was trained with."""
    step: int = -1
    """Step to import, of several (-1 = the newest)."""
    stage: Literal["auto", "base", "mid", "sft", "rl"] = "auto"
    """Stage of its training (auto = by the folder in which nanochat put it, base in any other)."""

    def check_paths(self) -> None:
        """Refuse a checkpoint or a tokenizer that is not there."""
        require_path(self.source)
        Tokenizer.load(self.tokenizer)


def list_checkpoints(settings: CheckpointListSettings) -> Report:
    """List the checkpoints, and check each manifest."""
    storage = checkpoint_storage(settings.run)
    rows: list[str] = []
    figures: list[dict[str, Any]] = []
    for step in committed_steps(storage):
        try:
            checkpoint = open_checkpoint(storage, step)
        except UserError as error:
            rows.append(f"step {step:>9,}  {error}")
            figures.append({"step": step, "error": str(error)})
            continue
        size, files, parent = checkpoint.size, len(checkpoint.files), checkpoint.parent
        rows.append(
            f"step {step:>9,}  {size / 1e6:>12,.1f} MB  {pluralize(files, 'file')}  {_ancestry(checkpoint)}"
        )
        figures.append(
            {"step": step, "bytes": size, "files": files, "stage": checkpoint.stage, "parent": parent}
        )
    text = "\n".join(rows or ["no checkpoint yet"])
    return Report(f"{storage.location}\n{text}", {"location": storage.location, "checkpoints": figures})


def _ancestry(checkpoint: Checkpoint) -> str:
    """The stage of a checkpoint and those of the checkpoints that it comes from, the nearest first."""
    text: str = checkpoint.stage
    parent = checkpoint.parent
    while parent:
        place = (
            f"step {parent['step']:,}" if parent["step"] is not None else f"sha256 {parent['manifest'][:12]}"
        )
        text += f" from {parent['stage']} ({parent['location']}, {place})"
        parent = parent["parent"]
    return text


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


def import_checkpoint(settings: ImportSettings) -> Report:
    """Turn a checkpoint of nanochat into ours."""
    from cpplm.train.checkpoint.import_nanochat import import_nanochat  # noqa: PLC0415  (which needs torch)

    step = None if settings.step < 0 else settings.step
    stage = None if settings.stage == "auto" else settings.stage
    tokenizer = Tokenizer.load(settings.tokenizer)
    imported = import_nanochat(settings.source, settings.out, tokenizer, step, stage)
    return Report(
        f"step {imported.step}, {imported.stage} model: {imported.size / 1e6:,.1f} MB in {imported.path()}",
        {"step": imported.step, "stage": imported.stage, "path": imported.path(), "bytes": imported.size},
    )
