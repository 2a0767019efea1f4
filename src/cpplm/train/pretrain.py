"""Pre-training from settings to finished run: `PretrainRun` prepares, goes on where a run stands, trains."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tqdm import tqdm

from cpplm import __version__
from cpplm.core import shutdown
from cpplm.core.errors import UserError
from cpplm.core.hardware import enable_huge_pages, environment
from cpplm.core.locking import exclusive_lock
from cpplm.core.progress import log_info
from cpplm.core.run_log import LOG, NullLog, RunLog, read_run_log
from cpplm.core.settings import from_dict, to_dict
from cpplm.dataloader.encoding import DocumentEncoder
from cpplm.dataloader.loader import Batch
from cpplm.dataloader.prefetch import Prefetcher
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops, count_parameters
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.attempt import Attempt, join_attempt
from cpplm.train.backend import TrainBackend, TrainModule
from cpplm.train.backend_registry import open_backend
from cpplm.train.callbacks import CheckpointCallback, ProgressLog, ValidationCallback
from cpplm.train.checkpoint.async_writer import CheckpointWriter
from cpplm.train.checkpoint.format import Checkpoint, open_checkpoint
from cpplm.train.checkpoint.parent import describe_parent, find_parent, open_parent
from cpplm.train.checkpoint.resume import (
    earlier_checkpoint,
    find_checkpoint,
    open_shared_storage,
    pin_hub_locations,
    restore_state,
)
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
from cpplm.train.distributed import DistContext
from cpplm.train.estimate import describe_run
from cpplm.train.profiling import diagnostic_callbacks
from cpplm.train.settings import TrainSettings, model_config
from cpplm.train.tracking import make_trackers, require_trackers
from cpplm.train.trainer import Callback, Trainer, TrainState
from cpplm.train.training_length import training_budget

# May differ between machines: places of copies (that all see the same checkpoints is tried out), and speed.
PER_MACHINE_SETTINGS = ("data_dir", "tokenizer", "init_from", "out", "checkpoint_dir", "upload_dir",
                        "data.token_cache", "data.data_workers", "data.tokenizer_threads")  # fmt: skip


@dataclass(frozen=True)
class RunSummary:
    """The end of a run. `validation` is its last measurement, None when it never measured."""

    step: int
    tokens: int
    seconds: float
    parameters: int
    trained_now: bool
    validation: dict[str, Any] | None


def pretrain(
    settings: TrainSettings,
    extra_callbacks: Sequence[Callback] = (),
    *,
    backend: TrainBackend | None = None,
    run_type: Callable[[TrainSettings, TrainBackend, DistContext], PretrainRun] | None = None,
) -> RunSummary:
    """Train a model, or go on with the run that `settings.out` holds; on every rank that torchrun started.

    Args:
        settings: of the run.
        extra_callbacks: called after our own, on the first rank only.
        backend: what trains; None for the one that the settings name.
        run_type: makes a session of the run; None for `PretrainRun`.

    Raises:
        UserError: bad settings or data, or `out` holds a run that these settings do not continue.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    enable_huge_pages()
    backend = backend or open_backend(settings)
    try:
        with backend.init_distributed() as dist, join_attempt(settings, dist) as attempt:
            settings = pin_hub_locations(settings, dist)
            run = (run_type or PretrainRun)(settings, backend, dist)
            run.prepare()
            with (
                run.lock_folder(),
                backend.sync_compile_cache(attempt),
                verify_in_background(run.readers, dist) as verification,
                run.resume(attempt) as writer,  # left, a finished run too has uploaded its checkpoints
            ):
                attempt.report("setup", step=run.state.step)
                if trains := run.progress < 1:
                    attempt.report("compiling")
                    run.train(writer, verification, [*attempt.callbacks, *extra_callbacks])
                else:
                    log_info(f"{settings.out} is trained to its end, step {run.state.step}")
            return run.summary(trained_now=trains)
    except KeyboardInterrupt:
        shutdown.current_watcher().enforce()
        raise


class PretrainRun:
    """One session of a run on this process: `prepare`, then `resume`, then `train`.

    All ranks call all methods. What the first rank decides alone (defaults that are measured, the checkpoint
    to go on from) it tells the others; an error of one is raised on all, before anything is written.
    """

    def __init__(self, settings: TrainSettings, backend: TrainBackend, dist: DistContext) -> None:
        """Open corpus and tokenizer, and complete the settings.

        Raises:
            UserError: one is missing, or a batch is not a whole number of forward passes.
        """
        self.backend, self.dist = backend, dist
        with dist.raise_on_all_ranks():
            self.readers = open_readers(settings)
            self.tokenizer = self._open_tokenizer(settings)
        self.devices = backend.devices(settings)
        self.settings, self.config, self.parent = self._resolve(settings)
        self.budget = training_budget(self.settings, self.config)
        self.facts: dict[str, Any] = {}
        self.provenance: dict[str, str] = {}
        self.checkpoint: Checkpoint | None = None
        self.state = TrainState()

    def _open_tokenizer(self, settings: TrainSettings) -> Tokenizer:
        return Tokenizer.load(settings.tokenizer)

    def _resolve(self, settings: TrainSettings) -> tuple[TrainSettings, ModelConfig, dict[str, Any] | None]:
        """The settings, complete, the model, and the record of its parent.

        The first rank chooses, as others may measure other speeds.
        """

        def choose() -> tuple[list[int], dict[str, Any], dict[str, Any] | None]:
            location = settings.checkpoint_location
            earlier = earlier_checkpoint(location, settings.upload_dir, settings.resume_from_step)
            config, record = find_parent(settings, self.tokenizer, earlier) or (None, None)
            vocab_size = self.tokenizer.vocab_size
            complete, reason = resolve_defaults(
                settings,
                vocab_size,
                self.devices,
                self.dist.data_parallel_size,
                earlier.json("settings.json") if earlier else None,
                config,
            )
            if reason:
                log_info(reason)
            resolved = [getattr(complete, name) for name in RESOLVED_SETTINGS]
            return resolved, to_dict(model_config(complete, vocab_size, config)), record

        resolved, config, parent = self.dist.run_on_first(choose)
        settings = replace(settings, **dict(zip(RESOLVED_SETTINGS, resolved, strict=True)))
        return settings, from_dict(ModelConfig, config, where="the model"), parent

    def prepare(self) -> None:
        """Find out whether the run is possible, before anything is written.

        Raises:
            UserError: it is not, or the ranks have different settings, data or versions.
        """
        settings = self.settings
        with self.dist.raise_on_all_ranks():
            require_trackers(settings)
            self.facts = self.backend.check(settings, self.config)
            self.facts["validation_text"] = validation_text(self.readers[0])
            check_data(settings, self.readers, self.tokenizer, self.budget)
            self.provenance = {
                "corpus": corpus_fingerprint(self.readers),
                "tokenizer": self.tokenizer.hash,
                **({"parent": self.parent["manifest"]} if self.parent else {}),
            }
        found = {"cpplm": __version__, "hash": self.provenance, **self.facts}
        self.dist.assert_same_on_all_ranks({**to_dict(settings), "found": found}, but=PER_MACHINE_SETTINGS)

    @contextmanager
    def lock_folder(self) -> Iterator[None]:
        """Have the run folder for us alone; the first rank makes and locks it."""
        out = self.settings.out
        with ExitStack() as stack:
            with self.dist.raise_on_all_ranks():
                if self.dist.is_first:
                    try:
                        out.mkdir(parents=True, exist_ok=True)
                    except OSError as error:
                        why = f"cannot make the run folder {out}: {error}"
                        raise UserError(why, fix="Name another --out.") from error
                    stack.enter_context(exclusive_lock(out))
            yield

    def resume(self, attempt: Attempt) -> CheckpointWriter:
        """Go on from the newest checkpoint, if there is one; in buckets only the last attempt writes.

        The first rank looks, and downloads what is newer elsewhere; the others open what it has found.

        Returns:
            The writer of further checkpoints, as a context manager.
        """
        settings = self.settings
        storage = open_shared_storage(settings.checkpoint_location, self.dist, attempt)
        retention = RetentionPolicy(settings.keep_last, settings.keep_every)
        uploader: Uploader | None = None

        def find() -> int | None:
            nonlocal uploader
            storage.cleanup_partial_writes()
            remote = attempt.open_storage(settings.upload_dir) if settings.upload_dir else None
            checkpoint = find_checkpoint(settings, self.config, storage, self.provenance, remote=remote)
            if remote is not None:
                missing = missing_steps(storage, remote, retention)
                uploader = Uploader(storage, remote, retention, missing=missing)
            return None if checkpoint is None else checkpoint.step

        step = self.dist.run_on_first(find)
        if step is not None:
            with self.dist.raise_on_all_ranks():
                self.checkpoint = open_checkpoint(storage, step)
                self.state = restore_state(self.checkpoint)
        managed = attempt.lease is not None  # its machine, and the disk, go when it ends
        return CheckpointWriter(storage, retention, uploader=uploader, upload_required=managed)

    @property
    def progress(self) -> float:
        """Share of the run that is done."""
        return self.budget.progress(step=self.state.step, seconds=self.state.seconds)

    def train(
        self, writer: CheckpointWriter, verification: Future[None], extra_callbacks: Sequence[Callback]
    ) -> None:
        """Train to the end, or until asked to stop.

        Args:
            writer: of checkpoints.
            verification: of the shards, which goes on beside the preparations and must end before a step.
            extra_callbacks: called after our own, on the first rank only.
        """
        settings, state, dist = self.settings, self.state, self.dist
        if self.checkpoint is not None:
            log_info(f"continuing {settings.out} from step {state.step}")
        memory = self.backend.estimate_memory(settings, self.config)
        log_info(describe_run(settings, self.config, self.budget, self.devices, memory, self.progress))
        self._refuse_damage(verification, wait=False)
        with self._open_batches() as batches:  # the first rows are tokenized while the model is compiled
            weights, optimizer = self._initial_state()
            train_module = self.backend.build(
                settings, self.config, self.tokenizer, weights, optimizer, self.budget
            )
            with dist.raise_on_all_ranks():
                log = self._open_log(train_module)
            opened = ProgressLog.open_bar(self.progress) if dist.is_first else nullcontext()
            with log, opened as bar:
                trainer = Trainer(
                    train_module=train_module,
                    tokenizer=self.tokenizer,
                    batches=batches,
                    budget=self.budget,
                    settings=settings,
                    state=state,
                    log=log,
                    callbacks=self._callbacks(bar, writer, extra_callbacks),
                    dist=dist,
                )
                with log_session_end(trainer):
                    self._refuse_damage(verification, wait=True)
                    trainer.run()

    def _initial_state(self) -> tuple[Checkpoint | None, Checkpoint | None]:
        """The checkpoints whose weights and whose optimizer state this session begins with."""
        if self.checkpoint is not None or not self.settings.init_from:
            return self.checkpoint, self.checkpoint
        parent = open_parent(self.settings.init_from)
        log_info(describe_parent(parent, self.settings))
        return parent, parent if self.settings.init_optimizer else None

    def _refuse_damage(self, verification: Future[None], *, wait: bool) -> None:
        """Raise on all ranks what was found by now; with `wait`, what is found at all."""
        with self.dist.raise_on_all_ranks():
            if wait and not verification.done():
                log_info("waiting until the hashes of all shards are compared with the manifest")
            if wait or verification.done():
                verification.result()

    @contextmanager
    def _open_batches(self) -> Iterator[Iterator[Batch]]:
        """The batches of this rank from where the run stands, made and sent ahead in threads of their own."""
        source = train_loader(
            self.settings, self.readers, self.tokenizer, self.budget, self.dist, self.state.loader,
            self._document_encoder(),
        )  # fmt: skip
        # The source is closed first: the prefetcher's thread may be waiting for it.
        with closing(Prefetcher(map(self.backend.to_device, source))) as batches, closing(source):
            yield self._check_batches(batches)

    def _document_encoder(self) -> DocumentEncoder | None:
        """The encoder of documents; None for the one that the settings say."""
        return None

    def _check_batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches; the first is looked at."""
        return warn_of_mismatches(batches, self.readers, self.tokenizer)

    def _open_log(self, train_module: TrainModule) -> RunLog:
        """The run log of the first rank, cut where the run goes on, with a record of this session."""
        if not self.dist.is_first:
            return NullLog()
        settings, config, step = self.settings, self.config, self.state.step
        log = RunLog(settings.out / LOG, trackers=make_trackers(settings), truncate_after_step=step)
        log.write(
            "session",
            step=step,
            settings=to_dict(settings),
            config=to_dict(config),
            parameters=count_parameters(config),
            flops_per_token=count_flops(config)["total"],
            budget={"steps": self.budget.steps, "seconds": self.budget.seconds},
            precision=train_module.precision,
            log_reached=log.reached,
            environment=environment(),
            ranks=self.dist.world_size,
            peak_flops=self.devices.peak_flops,
            peak_source=self.devices.peak_source,
            **self.facts,
        )
        return log

    def _callbacks(
        self, bar: tqdm[Any] | None, writer: CheckpointWriter, extra_callbacks: Sequence[Callback]
    ) -> list[Callback]:
        """The callbacks in their order: all ranks save and validate, the first has a bar and the rest too."""
        settings = self.settings
        # Saved before all else: what fails after it cannot take the step along.
        callbacks: list[Callback] = [CheckpointCallback(writer, self.provenance, self.parent)]
        if settings.eval_every > 0:
            passes = validation_passes(settings, self.readers[0], self.tokenizer, self.dist)
            callbacks.append(ValidationCallback(passes))
        if bar is None:
            return callbacks
        progress = ProgressLog(bar, self.devices.count * self.devices.peak_flops)
        return [progress, *callbacks, *diagnostic_callbacks(settings), *extra_callbacks]

    def summary(self, *, trained_now: bool) -> RunSummary:
        """The figures of the run as it stands."""
        records = read_run_log(self.settings.out / LOG)
        validations = [record for record in records if record["event"] == "validation"]
        return RunSummary(
            step=self.state.step,
            tokens=self.state.tokens,
            seconds=self.state.seconds,
            parameters=count_parameters(self.config)["total"],
            trained_now=trained_now,
            validation=validations[-1] if validations else None,
        )


@contextmanager
def log_session_end(trainer: Trainer) -> Iterator[None]:
    """Write the last record of a session that was not killed: how it ended."""
    try:
        yield
    except KeyboardInterrupt:
        trainer.log.write("end", step=trainer.state.step, reason="stopped")
        raise
    except Exception as error:
        trainer.log.write("end", step=trainer.state.step, reason="failed", message=str(error))
        raise
    trainer.log.write("end", step=trainer.state.step, reason="finished")
