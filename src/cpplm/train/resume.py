"""Which checkpoint a run continues from, and whether it may."""

from __future__ import annotations

from cpplm.batches.loader import LoaderState
from cpplm.core.errors import UserError
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.model.config import ModelConfig
from cpplm.train.checkpoint import Checkpoint, committed_steps, open_checkpoint
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import TrainState

# A continued run must agree in these and in the model; the other settings may change between sessions.
FIXED = ("total_batch_size", "seed")


def find_checkpoint(
    settings: TrainSettings, config: ModelConfig, storage: Storage, provenance: dict[str, str]
) -> Checkpoint | None:
    """The checkpoint that `settings` continues, the newest; None to start anew.

    Args:
        settings: of this session.
        config: the model that they describe.
        storage: where the checkpoints are.
        provenance: hashes of corpus and tokenizer, by name.

    Raises:
        UserError: the checkpoints there belong to another run.
    """
    if not committed_steps(storage):
        return None
    checkpoint = open_checkpoint(storage)
    then, now = checkpoint.json("settings.json"), to_dict(settings)
    then_provenance = checkpoint.json("state.json")
    then_model, now_model = to_dict(checkpoint.config()), to_dict(config)
    differences = [
        f"{name} was {before[name]}, is {after[name]}"
        for before, after, names in ((then_model, now_model, now_model), (then, now, FIXED))
        for name in names
        if before[name] != after[name]
    ]
    differences += [
        f"{name} was {then_provenance[name][:12]}, is {value[:12]}"
        for name, value in provenance.items()
        if then_provenance[name] != value
    ]
    if differences:
        raise UserError(
            f"{settings.out} holds another run: {'; '.join(differences)}",
            fix="Name another --out, or delete the folder to start anew.",
        )
    return checkpoint


def restore_state(checkpoint: Checkpoint) -> TrainState:
    """Where the run stood."""
    values = checkpoint.json("state.json")
    return TrainState(
        step=values["step"],
        tokens=values["tokens"],
        seconds=values["seconds"],
        loader=LoaderState.from_json(values["loader"]),
    )
