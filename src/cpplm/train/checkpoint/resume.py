"""Find the checkpoint that a run continues from, near or far, and refuse another run's."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.hub import PREFIX, HubLocation
from cpplm.core.progress import log_info
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage, is_bucket, restore_url, split_step
from cpplm.dataloader.loader_state import LoaderState
from cpplm.model.config import ModelConfig
from cpplm.model.hf_config import HfModelConfig
from cpplm.train.attempt import Attempt
from cpplm.train.checkpoint.format import (
    QUANTIZATION,
    Checkpoint,
    committed_steps,
    open_checkpoint,
    step_folder,
)
from cpplm.train.checkpoint.parent import SHAPE_SETTINGS
from cpplm.train.checkpoint.save import copy_checkpoint, delete_files
from cpplm.train.distributed import DistContext
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import TrainState

# A continued run must agree in these and in the model; the other settings may change between sessions.
MODEL_SETTINGS = ("depth", *SHAPE_SETTINGS, "max_seq_len", "architecture")
FIXED_SETTINGS = ("total_batch_size", "seed", "fim", "lora")


def find_checkpoint(
    settings: TrainSettings,
    config: ModelConfig,
    storage: Storage,
    provenance: dict[str, str],
    *,
    remote: Storage | None = None,
) -> Checkpoint | None:
    """The checkpoint that `settings` continues, in `storage`; None to start anew.

    Args:
        settings: of this session. With --resume_from_step it goes on from there, not from the newest one;
            later ones are deleted in both places, since the run takes their steps anew.
        config: the model that they describe.
        storage: where the checkpoints are.
        provenance: hashes of corpus and tokenizer, by name.
        remote: where they are uploaded to; what is newer there is downloaded.

    Raises:
        UserError: the checkpoints there belong to another run, there is none of that step, one is damaged, or
            a place cannot be listed: that is never taken for "there are none".
    """
    step = settings.resume_from_step if settings.resume_from_step >= 0 else None
    checkpoint = choose_checkpoint(storage, remote, step)
    if checkpoint is None:
        return None
    _refuse_another_run(checkpoint, settings, config, provenance)
    if checkpoint.storage is not storage:
        log_info(f"downloading {checkpoint.path()} ({checkpoint.size / 1e6:,.1f} MB)")
        checkpoint = copy_checkpoint(checkpoint, storage)
    if step is not None:
        checkpoint.verify()  # before others go
        for place in (storage, *([remote] if remote is not None else [])):
            _delete_later(place, step)
    return checkpoint


def earlier_checkpoint(location: str | Path, upload_dir: str = "", step: int = -1) -> Checkpoint | None:
    """The checkpoint that a run goes on from; None for a new run.

    Args:
        location: of its checkpoints.
        upload_dir: where they are uploaded to, if anywhere.
        step: go on from this one (-1 = from the newest).

    Raises:
        UserError: as `choose_checkpoint`.
    """
    there = [
        place
        for place in (location, upload_dir)
        if is_bucket(place) or (place and Path(place).expanduser().is_dir())
    ]
    if not there:
        return None
    local, remote = Storage(there[0]), Storage(there[1]) if len(there) > 1 else None
    return choose_checkpoint(local, remote, step if step >= 0 else None)


def pin_hub_locations(settings: TrainSettings, dist: DistContext) -> TrainSettings:
    """The settings with corpora, tokenizer and parent on the hub in one commit, the same on all processes.

    A run that goes on reads the commits that it began with, whatever its branches point to by now.

    Raises:
        UserError: the hub does not have one of them, or does not answer.
    """

    def places(record: Mapping[str, Any]) -> list[str]:
        parent, _ = split_step(record.get("init_from", ""))  # or hf:DIR
        return [restore_url(record.get("tokenizer", "")), parent, *record.get("data_dir", [])]

    def pin() -> dict[str, str]:
        now = places(to_dict(settings))
        if not any(place.startswith(PREFIX) for place in now):
            return {}
        location = settings.checkpoint_location
        earlier = earlier_checkpoint(location, settings.upload_dir, settings.resume_from_step)
        then = places(earlier.json("settings.json")) if earlier else []
        pins = {}
        for place, before in zip_longest(now, then[: len(now)], fillvalue=""):
            if place.startswith(PREFIX):
                pins[place] = str(HubLocation.parse(place).pin(before))
                log_info(f"reading {pins[place]}")
        return pins

    pins = dist.run_on_first(pin)
    parent, step = split_step(settings.init_from)
    parent = pins.get(parent, parent)
    return replace(
        settings,
        data_dir=tuple(pins.get(place, place) for place in settings.data_dir),
        tokenizer=Path(pins.get(restore_url(settings.tokenizer), settings.tokenizer)),
        init_from=parent if step is None else f"{parent}:{step}",
    )


def choose_checkpoint(
    storage: Storage, remote: Storage | None = None, step: int | None = None
) -> Checkpoint | None:
    """The newest checkpoint, or that of `step`, of either place; the near one if both have it.

    Raises:
        UserError: there is none of `step`, a manifest is damaged, or a place cannot be listed.
    """
    here = committed_steps(storage)
    there = committed_steps(remote) if remote is not None else []
    if step is None:
        step = max([*here, *there], default=None)
    if step is None:
        return None
    if remote is not None and step in there and step not in here:
        return open_checkpoint(remote, step)
    return open_checkpoint(storage, step)


def _refuse_another_run(
    checkpoint: Checkpoint, settings: TrainSettings, config: ModelConfig, provenance: dict[str, str]
) -> None:
    then, now = checkpoint.json("settings.json"), to_dict(settings)
    then_provenance = checkpoint.json("state.json")
    then_model, now_model = _model_record(checkpoint, config), to_dict(config)
    names = FIXED_SETTINGS if then_model == now_model else (*MODEL_SETTINGS, *FIXED_SETTINGS)
    fixed = {name: now[name] for name in names}
    if QUANTIZATION in checkpoint.files:  # weights are rounded already
        fixed["quantization"] = {name: now["quantization"][name] for name in ("quantize", "freeze_codes")}
    differences = [f"--{path[-1]} was {before}, is {after}" for path, before, after in _changes(then, fixed)]
    if then_model != now_model and not differences:  # the tokenizer's size, or what a default used to be
        differences = [
            f"{'.'.join(path)} of the model was {before}, is {after}"
            for path, before, after in _changes(then_model, now_model)
        ]
    differences += [
        f"{name} was {then_provenance.get(name, 'none')[:12]}, is {provenance.get(name, 'none')[:12]}"
        for name in ("corpus", "tokenizer", "parent")
        if then_provenance.get(name) != provenance.get(name)
    ]
    if differences:
        raise UserError(
            f"{checkpoint.storage.location} holds another run: {'; '.join(differences)}",
            fix="Name another --out, or delete the folder to start anew.",
        )


def _model_record(checkpoint: Checkpoint, config: ModelConfig | HfModelConfig) -> dict[str, Any]:
    """The model of a checkpoint; of ours, fields that were added since have their defaults."""
    record: dict[str, Any] = checkpoint.json("config.json")
    if isinstance(config, HfModelConfig) or "architecture" in record:
        return record
    return to_dict(checkpoint.config())


def _changes(
    then: Mapping[str, Any], now: Mapping[str, Any], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Path and both values of what has changed; what `then` does not have is left out."""
    for name in (name for name in now if name in then):
        before, after = then[name], now[name]
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _changes(before, after, (*above, name))
        elif before != after:
            yield (*above, name), before, after


def _delete_later(storage: Storage, step: int) -> None:
    """Delete the checkpoints after `step`."""
    later = [other for other in committed_steps(storage) if other > step]
    if later:
        log_info(f"deleting the later checkpoints in {storage.location}: {', '.join(map(str, later))}")
        delete_files(storage, [name for other in later for name in storage.list_names(step_folder(other))])


def open_shared_storage(location: str | Path, dist: DistContext, attempt: Attempt) -> Storage:
    """The place of the checkpoints. Each process writes its shard of one, so all of them have to see it.

    Raises:
        UserError: it cannot be made, or a process sees another place than the first one.
    """
    with dist.raise_on_all_ranks():
        storage = attempt.open_storage(location) if is_bucket(location) else Storage(location, create=True)
    if dist.process_count == 1:
        return storage
    probe = dist.gather_objects(f"probe-{secrets.token_hex(8)}")[0]
    dist.run_on_first(lambda: storage.write(probe, b""))
    try:
        with dist.raise_on_all_ranks():
            if not storage.exists(probe):
                raise UserError(
                    f"here the {storage.location} of the first process is not seen",
                    fix="Name an --out or --checkpoint_dir that all machines share, such as a bucket.",
                )
    finally:
        if dist.is_first:
            storage.delete([probe])
    return storage


def restore_state(checkpoint: Checkpoint) -> TrainState:
    """The progress of the run at a checkpoint."""
    values = checkpoint.json("state.json")
    return TrainState(
        step=values["step"],
        tokens=values["tokens"],
        seconds=values["seconds"],
        loader=LoaderState.from_json(values["loader"]),
    )
