"""Rejection sampling fine-tuning: answers of the model as it is, then training on those that were right.

Source: Yuan et al. 2023, "Scaling relationship on learning mathematical reasoning", arXiv 2308.01825. It is
what reinforcement learning has to beat.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.jsonl import JsonlFile, read_jsonl
from cpplm.core.locking import exclusive_lock
from cpplm.core.progress import log_info, progress_bar
from cpplm.core.storage import split_step
from cpplm.dataloader.loader_state import LoaderState
from cpplm.generate.load import load_engine
from cpplm.generate.settings import ModelSource
from cpplm.post_training.conversations import mark_context
from cpplm.post_training.rl.batches import RolloutBatches
from cpplm.post_training.rl.rollouts import token_record, trajectory_record
from cpplm.post_training.rl.run import RlTasks
from cpplm.post_training.rl.settings import RlSettings
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune
from cpplm.tasks.kind import CORRECT
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.distributed import SINGLE_PROCESS
from cpplm.train.pretrain import RunSummary
from cpplm.train.report.html_rollouts import ROLLOUTS

_RIGHT = "right.jsonl"


def rejection_sampling(settings: RlSettings) -> RunSummary:
    """Sample for half of the time, then train on what was right.

    Raises:
        UserError: bad settings or tasks, or no answer was right.
        KeyboardInterrupt: stopped on request; the same command goes on.
    """
    sample_rollouts(settings, minutes=settings.max_minutes / 2)
    return train_on_rollouts(settings, (settings.out / ROLLOUTS,))


def sample_rollouts(settings: RlSettings, *, minutes: float) -> dict[str, Any]:
    """Sample answers with the model as it is, into a file; goes on where it was interrupted.

    Args:
        settings: of the run.
        minutes: how long, below 0 for as many steps as the settings say, by default all tasks once.

    Returns:
        Numbers of tasks and answers, and the share of these that was right.

    Raises:
        UserError: bad settings or tasks.
    """
    parent = open_parent(settings.init_from)
    tasks = RlTasks(settings, parent)
    run, step = split_step(settings.init_from)
    engine, _ = load_engine(ModelSource(run, -1 if step is None else step, precision=settings.precision))
    usable = tasks.prompts(
        settings.max_seq_len if settings.max_seq_len > 0 else engine.model.config.max_seq_len
    )
    context = engine.model.config.max_seq_len
    rollouts = RolloutBatches(
        usable, tasks.sampler, SINGLE_PROCESS, LoaderState(),
        num_prompts=settings.num_prompts, seq_len=context, seed=settings.seed,
    )  # fmt: skip
    steps = settings.num_iterations
    total = len(usable) if steps < 0 else steps * settings.num_prompts
    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / ROLLOUTS
    with exclusive_lock(settings.out):
        known = list(read_jsonl(path, damaged="skip"))
        done = max((each["index"] for each in known), default=-1) + 1
        spent = max((each["seconds"] for each in known), default=0.0)
        file = JsonlFile(path, known)
        begin = time.monotonic() - spent
        with progress_bar(None if minutes > 0 else total, "sample", "task", initial=done) as bar:
            while time.monotonic() - begin < 60 * minutes if minutes > 0 else done < total:
                end = done + settings.num_prompts
                groups = tasks.sampler.groups(
                    engine, [rollouts.question(index) for index in range(done, end)]
                )
                seconds = round(time.monotonic() - begin, 3)
                for group in groups:
                    for number, each in enumerate(group.trajectories):
                        record = trajectory_record(group.question, number, each) | token_record(each)
                        head = {"step": 0, "seconds": seconds, "tokenizer": tasks.tokenizer.hash}
                        file.append({**head, **record})
                done = end
                bar.update(settings.num_prompts)
        file.close()
    rewards = [each["reward"] for each in read_jsonl(path)]
    right = sum(reward >= CORRECT for reward in rewards) / max(1, len(rewards))
    log_info(f"{done:,} tasks, {len(rewards):,} answers, {right:.1%} right: {path}")
    return {"tasks": done, "answers": len(rewards), "solved": right}


def train_on_rollouts(settings: RlSettings, files: Sequence[Path]) -> RunSummary:
    """Fine-tune on the right answers in some files.

    Raises:
        UserError: there are none, or bad settings.
    """
    tokenizer = open_parent(settings.init_from).tokenizer()
    rows = list(right_answers(files, settings.max_answers_per_task, tokenizer.hash))
    if not rows:
        raise UserError(
            f"no answer in {files[0]} is right", fix="Sample more, or start from a model of 'cpplm sft'."
        )
    settings.out.mkdir(parents=True, exist_ok=True)
    path = settings.out / _RIGHT
    JsonlFile(path, rows).close()
    log_info(f"{len(rows):,} right answers, all different")
    by_clock = settings.max_minutes > 0
    sft = SftSettings(
        data=(path,),
        init_from=settings.init_from,
        out=settings.out,
        num_iterations=-1 if by_clock else settings.num_iterations,
        max_minutes=settings.max_minutes / (2 if settings.method == "rft" else 1) if by_clock else -1.0,
        max_seq_len=settings.max_seq_len,
        lr_scale=settings.lr_scale if settings.lr_scale > 0 else SftSettings.lr_scale,
        val_share=0.0,
        eval_every=-1,
        save_every=settings.save_every,
        save_minutes=settings.save_minutes,
        keep_last=settings.keep_last,
        upload_dir=settings.upload_dir,
        memory=settings.memory,
        seed=settings.seed,
        device_type=settings.device_type,
        no_compile=settings.no_compile,
        precision=settings.precision,
    )
    return fine_tune(sft, stage="rl")


def right_answers(files: Iterable[Path], most: int, tokenizer_hash: str) -> Iterable[dict[str, Any]]:
    """Rows of different right answers, `most` to each task, as `prepare_conversations` reads them.

    Raises:
        UserError: their tokens are of another tokenizer, or none are kept with them.
    """
    by_task: dict[str, dict[tuple[int, ...], Mapping[str, Any]]] = defaultdict(dict)
    for file in files:
        for record in read_jsonl(file):
            if record.get("tokenizer") != tokenizer_hash:
                raise UserError(
                    f"{file} has no tokens of the tokenizer of --init_from",
                    fix="Name the model that wrote them with --rollouts_only.",
                )
            if record["reward"] >= CORRECT:
                by_task[record["key"]].setdefault(tuple(record["ids"]), record)
    for key, answers in sorted(by_task.items()):
        for record in list(answers.values())[:most]:
            yield {"ids": mark_context(record["ids"], record["written"]), "split": "train", "group": key}
