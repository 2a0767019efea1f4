"""Pre-training from settings to finished run: builds the parts, continues where a run stands, trains."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cpplm import __version__
from cpplm.core import shutdown
from cpplm.core.errors import UserError
from cpplm.core.hardware import enable_huge_pages, environment
from cpplm.core.locking import exclusive_lock
from cpplm.core.progress import log_info
from cpplm.core.run_log import LOG, NullLog, RunLog, read_run_log
from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.dataloader.prefetch import Prefetcher
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops, count_parameters
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.backend import TrainBackend, TrainModule
from cpplm.train.backend_registry import open_backend
from cpplm.train.callbacks import CheckpointCallback, ProgressLog, ValidationCallback
from cpplm.train.checkpoint.async_writer import CheckpointWriter
from cpplm.train.checkpoint.format import Checkpoint, open_checkpoint
from cpplm.train.checkpoint.resume import checkpointed_settings, find_checkpoint, restore_state
from cpplm.train.checkpoint.save import RetentionPolicy
from cpplm.train.checkpoint.upload import Uploader, missing_steps
from cpplm.train.data import (
    check_data,
    corpus_fingerprint,
    open_readers,
    train_loader,
    validation_passes,
    validation_text,
    verify_in_background,
    warn_of_mismatches,
)
from cpplm.train.defaults import RESOLVED_SETTINGS, resolve_defaults
from cpplm.train.devices import Devices
from cpplm.train.distributed import DistContext
from cpplm.train.dry_run import describe_run
from cpplm.train.memory_callback import MemoryCallback
from cpplm.train.profiling import ProfileCallback
from cpplm.train.settings import TrainSettings, model_config
from cpplm.train.tracking import make_trackers, require_trackers
from cpplm.train.trainer import Callback, Trainer, TrainState
from cpplm.train.training_length import TrainingBudget, training_budget

# Settings that may differ between machines: where each has its copies, and what makes no batch different.
# That all see the same checkpoints is tried out.
PER_MACHINE_SETTINGS = ("data_dir", "tokenizer", "out", "checkpoint_dir", "upload_dir", "data.token_cache",
       "data.data_workers", "data.tokenizer_threads")  # fmt: skip


@dataclass(frozen=True)
class RunSummary:
    """How a run ended. `validation` is its last measurement, None when it never measured."""

    step: int
    tokens: int
    seconds: float
    parameters: int
    trained_now: bool
    validation: dict[str, Any] | None


def pretrain(settings: TrainSettings, extra_callbacks: Sequence[Callback] = ()) -> RunSummary:
    """Train a model, or go on with the run that `settings.out` holds; on every rank that torchrun started.

    Raises:
        UserError: bad settings or data, or `out` holds a run that these settings do not continue.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    enable_huge_pages()
    backend = open_backend(settings)
    try:
        with backend.init_distributed() as dist:
            return _pretrain(settings, backend, dist, extra_callbacks)
    except KeyboardInterrupt:
        shutdown.current_watcher().enforce()
        raise


def _pretrain(
    settings: TrainSettings, backend: TrainBackend, dist: DistContext, extra_callbacks: Sequence[Callback]
) -> RunSummary:
    with dist.raise_on_all_ranks():
        readers = open_readers(settings)
        tokenizer = Tokenizer.load(settings.tokenizer)
    with ExitStack() as stack:
        verification = stack.enter_context(verify_in_background(readers, dist))
        devices = backend.devices(settings)
        settings = _choose(settings, tokenizer, devices, dist)
        config = model_config(settings, tokenizer.vocab_size)
        budget = training_budget(settings, config)
        with dist.raise_on_all_ranks():
            require_trackers(wandb_project=settings.wandb_project, tensorboard=settings.tensorboard)
            facts = backend.check(settings, config) | {"validation_text": validation_text(readers[0])}
            check_data(settings, readers, tokenizer, budget)
            provenance = {"corpus": corpus_fingerprint(readers), "tokenizer": tokenizer.hash}
        found = {"cpplm": __version__, "hash": provenance, **facts}
        dist.assert_same_on_all_ranks({**to_dict(settings), "found": found}, but=PER_MACHINE_SETTINGS)
        checkpoint, writer = _continue(settings, config, provenance, dist, stack)
        state = TrainState() if checkpoint is None else restore_state(checkpoint)
        done = budget.progress(step=state.step, seconds=state.seconds)
        if checkpoint is not None:
            if done >= 1:
                log_info(
                    f"{settings.out} is trained to the end (step {state.step}); give a longer run to go on"
                )
                return _summary(settings, state, config, trained_now=False)
            log_info(f"continuing {settings.out} from step {state.step}")
        log_info(
            describe_run(settings, config, budget, devices, backend.estimate_memory(settings, config), done)
        )
        _refuse_damage(verification, dist, wait=False)
        # The first rows are tokenised while the model is compiled.
        source = train_loader(settings, readers, tokenizer, budget, dist, state.loader)
        batches = stack.enter_context(closing(Prefetcher(map(backend.to_device, source))))
        stack.callback(source.close)  # before the prefetcher, whose thread may be waiting for it
        train_module = backend.build(settings, config, tokenizer, checkpoint, budget)
        facts |= {
            "ranks": dist.world_size,
            "peak_flops": devices.peak_flops,
            "peak_source": devices.peak_source,
        }
        with dist.raise_on_all_ranks():
            log = stack.enter_context(_open_log(settings, state, train_module, budget, facts, dist))
        # Saved before all else: what fails after it cannot take the step along.
        callbacks: list[Callback] = [CheckpointCallback(writer, provenance)]
        if settings.eval_every > 0:
            callbacks.append(ValidationCallback(validation_passes(settings, readers[0], tokenizer, dist)))
        if dist.is_first:
            bar = stack.enter_context(ProgressLog.open_bar(done))
            progress = ProgressLog(bar, devices.count * devices.peak_flops)
            callbacks = [progress, *callbacks, *diagnostic_callbacks(settings), *extra_callbacks]
        trainer = Trainer(
            train_module=train_module,
            tokenizer=tokenizer,
            batches=warn_of_mismatches(batches, readers, tokenizer),
            budget=budget,
            settings=settings,
            state=state,
            log=log,
            callbacks=callbacks,
            dist=dist,
        )
        with log_session_end(trainer):
            _refuse_damage(verification, dist, wait=True)
            trainer.run()
    return _summary(settings, state, config, trained_now=True)


def _choose(
    settings: TrainSettings, tokenizer: Tokenizer, devices: Devices, dist: DistContext
) -> TrainSettings:
    """The settings with what nobody has given; the first rank chooses, as others may measure other speeds."""
    chosen: list[int] = []
    with dist.raise_on_all_ranks():
        if dist.is_first:
            earlier = checkpointed_settings(settings)
            complete, reason = resolve_defaults(
                settings, tokenizer.vocab_size, devices, dist.data_parallel_size, earlier
            )
            chosen = [getattr(complete, name) for name in RESOLVED_SETTINGS]
            if reason:
                log_info(reason)
    settings = replace(settings, **dict(zip(RESOLVED_SETTINGS, dist.gather_objects(chosen)[0], strict=True)))
    settings.check_batch(dist.data_parallel_size)
    return settings


def _refuse_damage(verification: Future[None], dist: DistContext, *, wait: bool) -> None:
    """Raise on all ranks what was found by now; with `wait`, what is found at all."""
    with dist.raise_on_all_ranks():
        if wait and not verification.done():
            log_info("waiting until the hashes of all shards are compared with the manifest")
        if wait or verification.done():
            verification.result()


def diagnostic_callbacks(settings: TrainSettings) -> list[Callback]:
    """What looks at the process of the first rank: profiles and memory."""
    watchers: list[Callback] = [ProfileCallback(settings.out, settings.profile_step)]
    if settings.memory_every > 0:
        watchers.append(MemoryCallback(settings.memory_every))
    return watchers


@contextmanager
def log_session_end(trainer: Trainer) -> Iterator[None]:
    """The last record of a session that was not killed: how it ended."""
    try:
        yield
    except KeyboardInterrupt:
        trainer.log.write("end", step=trainer.state.step, reason="stopped")
        raise
    except Exception as error:
        trainer.log.write("end", step=trainer.state.step, reason="failed", message=str(error))
        raise
    trainer.log.write("end", step=trainer.state.step, reason="finished")


def _continue(
    settings: TrainSettings,
    config: ModelConfig,
    provenance: dict[str, str],
    dist: DistContext,
    stack: ExitStack,
) -> tuple[Checkpoint | None, CheckpointWriter]:
    """The checkpoint to go on from, and the writer of further ones, and the run folder for us alone.

    The first rank looks, and downloads what is newer elsewhere; the others open what it has found.
    """
    with dist.raise_on_all_ranks():
        if dist.is_first:
            _make_folder(settings.out)
            stack.enter_context(exclusive_lock(settings.out))
    with dist.raise_on_all_ranks():
        storage = Storage(settings.checkpoint_dir or settings.out / "checkpoints", create=True)
    _refuse_different_places(storage, dist)
    keep = RetentionPolicy(settings.keep_last, settings.keep_every)
    checkpoint = uploader = None
    with dist.raise_on_all_ranks():
        if dist.is_first:
            storage.cleanup_partial_writes()
            remote = Storage(settings.upload_dir, create=True) if settings.upload_dir else None
            wanted = settings.resume_from_step if settings.resume_from_step >= 0 else None
            checkpoint = find_checkpoint(settings, config, storage, provenance, remote=remote, step=wanted)
            if remote is not None:
                uploader = Uploader(storage, remote, keep, missing=missing_steps(storage, remote, keep))
    step = dist.gather_objects(None if checkpoint is None else checkpoint.step)[0]
    with dist.raise_on_all_ranks():
        if checkpoint is None and step is not None:
            checkpoint = open_checkpoint(storage, step)
    return checkpoint, stack.enter_context(CheckpointWriter(storage, keep, uploader=uploader))


def _refuse_different_places(storage: Storage, dist: DistContext) -> None:
    """Each process writes its share of a checkpoint, so all of them have to see the same place."""
    if dist.process_count == 1:
        return
    probe = dist.gather_objects(f"probe-{secrets.token_hex(8)}")[0]
    with dist.raise_on_all_ranks():
        if dist.is_first:
            storage.write(probe, b"")
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


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the run folder {out}: {error}", fix="Name another --out.") from error


def _open_log(
    settings: TrainSettings,
    state: TrainState,
    train_module: TrainModule,
    budget: TrainingBudget,
    facts: dict[str, Any],
    dist: DistContext,
) -> RunLog:
    """The run log, cut at the step from which the run goes on, with a record of this session and `facts`.

    Only the first rank writes one.
    """
    if not dist.is_first:
        return NullLog()
    trackers = make_trackers(
        settings.out,
        settings.run_name or settings.out.name,
        wandb_project=settings.wandb_project,
        tensorboard=settings.tensorboard,
        settings=to_dict(settings),
    )
    log = RunLog(settings.out / LOG, trackers=trackers, truncate_after_step=state.step)
    log.write(
        "session",
        step=state.step,
        settings=to_dict(settings),
        config=to_dict(train_module.config),
        parameters=count_parameters(train_module.config),
        flops_per_token=count_flops(train_module.config)["total"],
        budget={"steps": budget.steps, "seconds": budget.seconds},
        precision=train_module.precision,
        log_reached=log.reached,
        environment=environment(),
        **facts,
    )
    return log


def _summary(
    settings: TrainSettings, state: TrainState, config: ModelConfig, *, trained_now: bool
) -> RunSummary:
    measured = [record for record in read_run_log(settings.out / LOG) if record["event"] == "validation"]
    return RunSummary(
        step=state.step,
        tokens=state.tokens,
        seconds=state.seconds,
        parameters=count_parameters(config)["total"],
        trained_now=trained_now,
        validation=measured[-1] if measured else None,
    )
