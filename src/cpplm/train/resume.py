"""Which checkpoint a run continues from, and whether it may."""

from __future__ import annotations

from cpplm.batches.loader import LoaderState
from cpplm.core.errors import UserError
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.train.checkpoint import Checkpoint, committed_steps, open_checkpoint
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import TrainState

# A continued run must agree in these; the other settings may change between sessions.
FIXED = ("depth", "aspect_ratio", "head_dim", "num_kv_heads", "max_seq_len", "window_pattern",
         "total_batch_size", "seed")  # fmt: skip


def find_checkpoint(
    settings: TrainSettings, storage: Storage, provenance: dict[str, str]
) -> Checkpoint | None:
    """The checkpoint that `settings` continues, the newest; None to start anew.

    Args:
        settings: of this session.
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
    differences = [
        f"{name} was {then.get(name)}, is {now[name]}" for name in FIXED if then.get(name) != now[name]
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
