"""Runs of `cpplm rl`: by rewards, by rejection sampling, or their halves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm
from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.core.jsonl import JsonlFile
from cpplm.core.progress import log_info
from cpplm.core.settings import flatten, to_dict
from cpplm.core.shards import MANIFEST
from cpplm.core.storage import Storage
from cpplm.core.workers import available_cores
from cpplm.dataloader.loader import Batch, TrainLoader
from cpplm.dataloader.settings import DataSettings
from cpplm.evaluate.task_suite import tool_boxes
from cpplm.optim.schedules import Schedule
from cpplm.post_training.conversations import prepare_conversations
from cpplm.post_training.rl.batches import RolloutBatches
from cpplm.post_training.rl.log import RolloutLog
from cpplm.post_training.rl.policy import PolicyBackend, refuse_jax
from cpplm.post_training.rl.prompts import TaskPrompt, gold_ids, task_prompt
from cpplm.post_training.rl.rollouts import RolloutSampler
from cpplm.post_training.rl.settings import RlSettings
from cpplm.post_training.rl.url_engine import UrlEngine
from cpplm.sandbox.compiler import COMPILE_LIMITS
from cpplm.tasks.audit import audit
from cpplm.tasks.build import open_grader
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem, first_of_each_kind, read_tasks
from cpplm.tasks.kinds import KINDS
from cpplm.train.backend import TrainBackend
from cpplm.train.checkpoint.async_writer import CheckpointWriter
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.source import find_source, scaled_rates, train_settings_of
from cpplm.train.data import train_loader
from cpplm.train.distributed import DistContext
from cpplm.train.pretrain import PretrainRun, RunSummary, pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback

_SETTINGS = "rl.json"
_MAY_CHANGE = ("out", "tasks", "init_from", "num_iterations", "max_minutes", "headers", "workers",
               "audit_items", "decode_batch_size", "save_every", "save_minutes", "keep_last", "upload_dir",
               "memory", "device_type", "train_from", "engines")  # fmt: skip


def train_by_rewards(settings: RlSettings, extra_callbacks: Sequence[Callback] = ()) -> RunSummary:
    """Train on the rewards of sampled answers, or go on with the run that `settings.out` holds.

    Raises:
        UserError: bad settings or tasks, or `out` holds a run that these settings do not continue.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    refuse_jax(settings.backend, settings.device_type)
    source, scale = find_source(settings.init_from, settings.out, settings.upload_dir, settings.lr_scale)
    tasks = RlTasks(settings, source)
    training = train_settings(settings, source, scale)
    is_new = not settings.out.exists()
    try:
        _keep_settings(settings)
        training = replace(training, data_dir=(str(tasks.write_gold(training.max_seq_len)),))
    except BaseException:
        if is_new:
            shutil.rmtree(settings.out, ignore_errors=True)
        raise
    longest = max(tasks.sampler.max_new_tokens(item) for item in tasks.items)
    constant = settings.num_prompts * settings.num_samples * longest
    backend = PolicyBackend(training, settings.objective, constant=constant)
    return pretrain(training, extra_callbacks, backend=backend, run_type=partial(RlRun, settings, tasks))


class RlTasks:
    """The tasks of a run, what grades them and what answers them."""

    def __init__(self, settings: RlSettings, source: Checkpoint) -> None:
        """Read and audit.

        Raises:
            UserError: no tasks to train on, or the audit fails.
        """
        self._settings = settings
        self.tokenizer = source.tokenizer()
        self.items = read_tasks(settings.tasks, "train", settings.kinds)
        if not self.items:
            raise UserError(
                f"{settings.tasks} has no tasks to train on, of --kinds {' '.join(settings.kinds) or 'any'}",
                fix="Build some with 'cpplm tasks build --num_train 1600'; held-out ones are for evaluation.",
            )
        self.servers = self._connect()
        fitting = psutil.virtual_memory().available // COMPILE_LIMITS.memory_bytes
        workers = settings.workers or min(available_cores(), max(1, fitting))
        grader = open_grader(settings.tasks, settings.headers, workers, quiet=True)
        self._audit(grader)
        folders = Storage(settings.tasks).read_json(MANIFEST)["tasks"]["projects"]
        boxes = tool_boxes(self.items, folders)
        self.items = [
            item for item in self.items if not KINDS[item.kind].needs_tools or item.project in boxes
        ]
        self._form = {"chat": source.supports_chat, "fim": source.supports_fim}
        self.sampler = RolloutSampler(
            grader, boxes, num_samples=settings.num_samples, max_new_tokens=settings.max_new_tokens,
            seed=settings.seed, rows=settings.decode_batch_size,
        )  # fmt: skip

    def prompts(self, context: int) -> list[tuple[TaskItem, TaskPrompt]]:
        """The tasks that fit into a context, with their prompts; UserError if there is none."""
        tasks = []
        for item in self.items:
            prompt = task_prompt(item, self.tokenizer, **self._form)
            if prompt is not None and len(prompt.ids) + self.sampler.max_new_tokens(item) <= context:
                tasks.append((item, prompt))
        if not tasks:
            raise UserError(
                f"the model can be given none of the {len(self.items)} training tasks",
                fix="Each is too long for its context, or needs a chat model ('cpplm sft') or one trained "
                "with --fim_rate.",
            )
        if len(tasks) < len(self.items):
            log_info(
                f"{len(self.items) - len(tasks)} of {len(self.items)} tasks do not fit the model: left out"
            )
        return tasks

    def write_gold(self, max_tokens: int) -> Path:
        """Gold answers of all tasks as rows, for --anchor_weight and --eval_every; returns their folder."""
        out = self._settings.out
        Storage(out, create=True).write("tokenizer.json", self.tokenizer.to_json())
        file = out / "gold.jsonl"
        held_out = read_tasks(self._settings.tasks, "val", self._settings.kinds)
        records = [
            {"ids": ids, "split": item.split}
            for item in (*self.items, *held_out)
            if (ids := gold_ids(item, self.tokenizer, **self._form))
        ]
        JsonlFile(file, records).close()
        folder, _ = prepare_conversations(
            (file,), out / "data", self.tokenizer, max_tokens=max_tokens, val_share=0.0, skip_bad=True
        )
        return folder

    def _connect(self) -> UrlEngine | None:
        engines = self._settings.engines
        if not engines.rollout_urls:
            return None
        if any(KINDS[item.kind].needs_tools for item in self.items):
            raise UserError(
                "engines of --rollout_urls call no tools", fix="Name the other kinds of tasks with --kinds."
            )
        return UrlEngine(engines, self._settings.out / "weights", self.tokenizer)

    def _audit(self, grader: Grader) -> None:
        some = first_of_each_kind(self.items, self._settings.audit_items)
        report = audit(some, grader)
        if report.faults:
            raise UserError(
                f"the tasks of {self._settings.tasks} are not sound:\n" + report.table(),
                fix="Build them anew; nothing was trained.",
            )


def train_settings(settings: RlSettings, source: Checkpoint, lr_scale: float) -> TrainSettings:
    """The training run that the settings describe, but for its data.

    Muon moves the weights as far whatever the gradient is, and with it nothing is learned from a few noisy
    answers (docs/reinforcement-learning.md): AdamW is the default.

    A step's batch has as many rows as its answers need; what `total_batch_size` says is one forward pass.
    """
    context = settings.max_seq_len if settings.max_seq_len > 0 else source.config().max_seq_len
    by_clock = settings.max_minutes > 0
    return train_settings_of(
        settings,
        data_dir=(str(settings.out / "data"),),
        tokenizer=settings.out / "tokenizer.json",
        stage="rl",
        max_seq_len=context,
        num_iterations=-1 if by_clock else settings.num_iterations if settings.num_iterations > 0 else 100,
        total_batch_size=settings.device_batch_size * context,
        rates=scaled_rates(source, lr_scale)
        if lr_scale > 0
        else replace(scaled_rates(source, 1.0), adamw_lr=settings.adamw_lr),
        schedule=Schedule(warmdown_ratio=settings.warmdown_ratio),
        data=DataSettings(document_mask=True),
        sample_every=-1,
        backend="torch",
        no_compile=True,
    )


def _keep_settings(settings: RlSettings) -> None:
    """Record what decides the answers and updates, or refuse with UserError to go on with other settings."""
    storage = Storage(settings.out, create=True)
    now = flatten({name: value for name, value in to_dict(settings).items() if name not in _MAY_CHANGE})
    if not storage.exists(_SETTINGS):
        storage.write_json(_SETTINGS, now)
        return
    then = storage.read_json(_SETTINGS)
    changed = [f"{name} was {then.get(name)}, is {now[name]}" for name in now if then.get(name) != now[name]]
    if changed:
        raise UserError(
            f"{settings.out} holds another run: {'; '.join(changed)}",
            fix="Name another --out, or delete the folder to start anew.",
        )


class RlRun(PretrainRun):
    """As `PretrainRun`, with batches that the model writes."""

    def __init__(
        self,
        rl: RlSettings,
        tasks: RlTasks,
        settings: TrainSettings,
        backend: TrainBackend,
        dist: DistContext,
    ) -> None:
        super().__init__(settings, backend, dist)
        self._rl, self._tasks = rl, tasks
        self._prompts = tasks.prompts(self.settings.max_seq_len)
        self._rollouts: RolloutBatches | None = None

    @override
    @contextmanager
    def _open_batches(self) -> Iterator[Iterator[Batch]]:
        """Not ahead of time: an answer needs the weights of the step before."""
        rl, anchors = self._rl, None
        if rl.objective.anchor_weight:
            # As many rows of all ranks together as one rank has at once: a step is the same for any number.
            rows = max(1, self.settings.device_batch_size // self.dist.world_size)
            settings = replace(self.settings, device_batch_size=rows)
            anchors = train_loader(
                settings, self.readers, self.tokenizer, self.budget, self.dist, self.state.loader
            )
        self._rollouts = RolloutBatches(
            self._prompts, self._tasks.sampler, self.dist, self.state.loader,
            num_prompts=rl.num_prompts, seq_len=self.settings.max_seq_len, seed=rl.seed,
            advantage=rl.objective.advantage, shuffle_rewards=rl.shuffle_rewards, anchors=anchors,
        )  # fmt: skip
        try:
            yield self._rollouts
        finally:
            if isinstance(anchors, TrainLoader):
                anchors.close()

    @override
    def _callbacks(
        self, bar: tqdm[Any] | None, writer: CheckpointWriter, extra_callbacks: Sequence[Callback]
    ) -> list[Callback]:
        assert self._rollouts is not None  # noqa: S101  (opened before)
        log = RolloutLog(self._rollouts, self._rl.min_entropy, self.dist, self._tasks.servers)
        return [log, *super()._callbacks(bar, writer, extra_callbacks)]
