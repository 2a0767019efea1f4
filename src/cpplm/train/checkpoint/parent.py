"""The run that another one starts from: its checkpoint, and the chain of stages that led to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.settings import flatten, to_dict
from cpplm.core.storage import is_bucket, split_step
from cpplm.model.config import ModelConfig
from cpplm.model.settings import ArchitectureSettings
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint, open_run
from cpplm.train.settings import TrainSettings

SHAPE_SETTINGS = ("aspect_ratio", "head_dim", "num_kv_heads", "window_pattern")


def open_parent(init_from: str) -> Checkpoint:
    """The checkpoint that `--init_from RUN` or `--init_from RUN:STEP` names, of RUN the newest.

    Raises:
        UserError: no such run, or no such step in it.
    """
    return open_run(*split_step(init_from))


def find_parent(
    settings: TrainSettings, tokenizer: Tokenizer, earlier: Checkpoint | None
) -> tuple[ModelConfig, dict[str, Any]] | None:
    """The model that a run starts from and the record of its checkpoint; None for a run without a parent.

    Args:
        settings: of the run.
        tokenizer: of the run.
        earlier: the checkpoint that it goes on from; then the parent itself may be gone.

    Raises:
        UserError: there is no such checkpoint, or its model has another tokenizer.
    """
    if not settings.init_from:
        return None
    try:
        parent = open_parent(settings.init_from)
    except UserError:
        if earlier is None or earlier.parent is None:
            raise
        return earlier.config(), earlier.parent
    if parent.tokenizer().hash != tokenizer.hash:
        raise UserError(
            f"the model of --init_from {settings.init_from} was trained with another tokenizer",
            fix=f"Use its own: --tokenizer {parent.path('tokenizer.json')}.",
        )
    _refuse_another_model(settings, parent)
    return (earlier or parent).config(), parent_record(parent)


def describe_parent(parent: Checkpoint, settings: TrainSettings) -> str:
    """Say what a run starts from, and what becomes of weights of few bits."""
    text = f"starting from {parent.path()}, stage {parent.stage}"
    if parent.is_packed and not (settings.lora.lora_rank or settings.quantization.quantize):
        text += (
            "; its weights have few bits, those that are trained 32: round them again with "
            "'cpplm compress quantize', or leave them as they are with --lora_rank 8"
        )
    return text


def _refuse_another_model(settings: TrainSettings, parent: Checkpoint) -> None:
    """Refuse settings of the model that are neither left out nor those of the parent."""
    recorded = parent.json("settings.json") if "settings.json" in parent.files else {}
    then, now = flatten(recorded), flatten(to_dict(settings))
    default = {name: getattr(TrainSettings, name) for name in SHAPE_SETTINGS}
    default |= flatten({"architecture": to_dict(ArchitectureSettings())})
    del default["architecture.rope_base"]  # it may change
    for path, value in default.items():
        if now[path] not in (value, then.get(path, value)):
            raise UserError(
                f"--{path.rpartition('.')[2]} {now[path]} is not of the model that --init_from starts from",
                fix="Leave it out; --max_seq_len, --rope_base and --rope_scaling may change.",
            )


def parent_record(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint as its children record it in `parent.json`.

    Returns:
        "location" and "step", "manifest" (sha256 of it), "stage", "supports_fim", and the "parent" of its
        own, if any.
    """
    location = checkpoint.storage.location
    return {
        "location": location if is_bucket(location) else str(Path(location).resolve()),
        "step": checkpoint.step,
        "manifest": checkpoint.manifest_hash,
        "stage": checkpoint.stage,
        "supports_fim": checkpoint.supports_fim,
        "parent": checkpoint.parent,
    }
