"""An iterator of training batches that the model writes itself.

A step has `num_prompts` groups of answers, each to one question. Groups whose rewards are all equal teach
nothing: they are left out, and others asked for in their place, up to `MAX_ROUNDS` times. The state of the
iterator is the number of questions that are past: everything else follows from it, the seed and the weights.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpplm.dataloader.loader import Batch
from cpplm.dataloader.loader_state import LoaderState
from cpplm.dataloader.packing import pack_whole
from cpplm.post_training.rl.objective import advantages
from cpplm.post_training.rl.prompts import TaskPrompt
from cpplm.post_training.rl.rollouts import (
    Group,
    Question,
    RolloutEngine,
    RolloutSampler,
    Trajectory,
    trajectory_record,
)
from cpplm.post_training.rl.settings import AdvantageName
from cpplm.tasks.item import TaskItem
from cpplm.tokenizer.special_tokens import IGNORE_INDEX, PAD
from cpplm.train.distributed import DistContext

MAX_ROUNDS = 4
"""Of asking for groups: the first, and three more in place of those that teach nothing."""


@dataclass(frozen=True)
class RolloutBatch(Batch):
    """Rows of sampled answers; `documents` has the number of the answer of each token.

    Attributes:
        logprobs: (rows, seq_len), float32, of the targets when they were sampled.
        advantages: likewise, of the answers that the targets belong to.
        groups: informative ones of all ranks together.
        num_wanted: groups that a step should have.
        anchor: rows of gold answers to train on beside them.
    """

    logprobs: Tensor = field(default_factory=lambda: torch.zeros(0))
    advantages: Tensor = field(default_factory=lambda: torch.zeros(0))
    groups: int = 0
    num_wanted: int = 1
    anchor: Batch | None = None


def rollout_figures(groups: Sequence[Group]) -> dict[str, Any]:
    """The figures of some answers, for the log; means over answers, entropy over tokens in nats."""
    answers = [each for group in groups for each in group.trajectories]
    distinct = [
        len({each.own_ids for each in group.trajectories}) / len(group.trajectories)
        for group in groups if group.trajectories
    ]  # fmt: skip
    staleness = [group.staleness for group in groups for _ in group.trajectories]
    uncertain = sum(group.uncertain for group in groups)
    return {
        "answers": len(answers),
        "reward": fmean([each.reward for each in answers] or [0.0]),
        "solved": fmean([each.reward >= 1 for each in answers] or [0.0]),
        "entropy": fmean([-value for each in answers for value in each.logprobs] or [0.0]),
        "length": fmean([len(each.logprobs) for each in answers] or [0.0]),
        "distinct": fmean(distinct or [0.0]),
        "groups": len(groups),
        "uninformative_groups": sum(not group.is_informative for group in groups),
        "no_verdict": uncertain / max(1, len(answers) + uncertain),
        "staleness": fmean(staleness or [0]),
        "most_staleness": max(staleness, default=0),
        "refused_answers": sum(group.refused for group in groups),
        "outcomes": dict(Counter(each.grade.outcome for each in answers if each.grade).most_common()),
    }


class RolloutBatches(Iterator[RolloutBatch]):
    """One batch for each step; `make_engine` is asked for the present weights before it."""

    def __init__(
        self,
        tasks: Sequence[tuple[TaskItem, TaskPrompt]],
        sampler: RolloutSampler,
        dist: DistContext,
        state: LoaderState,
        *,
        num_prompts: int,
        seq_len: int,
        seed: int,
        advantage: AdvantageName = "rloo",
        shuffle_rewards: bool = False,
        anchors: Iterator[Batch] | None = None,
    ) -> None:
        """Go on from a state.

        Args:
            tasks: to be asked, in an order of their own in each epoch.
            sampler: answers them.
            dist: ranks share the questions of a step.
            state: of the last batch.
            num_prompts: informative groups that a step should have, of all ranks together.
            seq_len: tokens of a row.
            seed: of the order.
            advantage: see `ObjectiveSettings`.
            shuffle_rewards: a control: answers get each other's rewards, of which nothing can be learned.
            anchors: batches of gold answers.
        """
        self._tasks, self._sampler, self._dist, self._state = tasks, sampler, dist, state
        self._num_prompts, self._seq_len, self._seed = num_prompts, seq_len, seed
        self._advantage, self._shuffle_rewards, self._anchors = advantage, shuffle_rewards, anchors
        self.make_engine: Callable[[], RolloutEngine] | None = None
        self.groups: list[Group] = []
        """Of the last step, of this rank."""
        self.figures: dict[str, Any] = {}
        """Of these."""
        self._order = lru_cache(maxsize=2)(self._order_of_epoch)

    def __next__(self) -> RolloutBatch:
        """Sample, grade and pack the answers of one step.

        Raises:
            UserError: a verdict cannot be kept, or the model gives no numbers.
        """
        assert self.make_engine is not None  # noqa: S101  (the run has begun)
        begin = time.perf_counter()
        self.groups, decode_seconds = [], 0.0
        engine, cursor, missing = self.make_engine(), self._state.prompts, self._num_prompts
        informative: list[Group] = []
        for _ in range(MAX_ROUNDS):
            asked = range(cursor, cursor + missing)
            cursor += missing
            groups = self._sampler.groups(
                engine, [self.question(index) for index in asked[self._dist.rank :: self._dist.world_size]]
            )
            decode_seconds += self._sampler.decode_seconds
            if self._shuffle_rewards:
                _shuffle_rewards(groups, random.Random(f"{self._seed} {cursor}"))  # noqa: S311
            self.groups += groups
            informative += [group for group in groups if group.is_informative]
            found = sum(self._dist.gather_objects(len(informative)))
            missing = self._num_prompts - found
            if missing <= 0:
                break
        self.figures = rollout_figures(self.groups) | {
            "decode_seconds": decode_seconds,
            "grade_seconds": time.perf_counter() - begin - decode_seconds,
        }
        anchor = next(self._anchors) if self._anchors else None
        self._state = replace(anchor.state if anchor else self._state, prompts=cursor)
        return replace(
            pack_groups(informative, self._seq_len, self._advantage),
            state=self._state, groups=found, num_wanted=self._num_prompts, anchor=anchor,
        )  # fmt: skip

    def question(self, index: int) -> Question:
        """The question at a place of the endless sequence."""
        epoch, place = divmod(index, len(self._tasks))
        item, prompt = self._tasks[self._order(epoch)[place]]
        return Question(index, item, prompt)

    def _order_of_epoch(self, epoch: int) -> list[int]:
        order = list(range(len(self._tasks)))
        random.Random(f"{self._seed} {epoch}").shuffle(order)  # noqa: S311
        return order

    def examples(self) -> list[dict[str, Any]]:
        """The best, the worst and the strangest answer of the last step, for the page."""
        pairs = [(group, each) for group in self.groups for each in group.trajectories]
        if not pairs:
            return []
        chosen = {
            "best": max(pairs, key=lambda pair: pair[1].reward),
            "worst": min(pairs, key=lambda pair: pair[1].reward),
            "strangest": min(pairs, key=lambda pair: fmean(pair[1].logprobs)),
        }
        return [
            {
                "which": which, "kind": group.question.item.kind, "key": group.question.item.key,
                "answer": each.answer.text[:400], "gold": group.question.item.answer[:400],
                "reward": each.reward, "outcome": each.grade.outcome if each.grade else "",
            }
            for which, (group, each) in chosen.items()
        ]  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """All answers of the last step, for a file."""
        return [
            trajectory_record(group.question, number, each)
            for group in self.groups
            for number, each in enumerate(group.trajectories)
        ]


def pack_groups(groups: Sequence[Group], seq_len: int, advantage: AdvantageName) -> RolloutBatch:
    """Rows of all answers of some groups, each whole; one row of nothing where there is none."""
    answers: list[tuple[Trajectory, float]] = []
    for group in groups:
        values = advantages([each.reward for each in group.trajectories], advantage)
        answers += zip(group.trajectories, values, strict=True)
    rows = pack_whole([len(each.ids) - 1 for each, _ in answers], seq_len).rows or [[]]
    shape = (len(rows), seq_len)
    inputs, targets = np.full(shape, PAD), np.full(shape, IGNORE_INDEX)
    documents = np.full(shape, len(answers))
    logprobs, weights = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    for row, segments in enumerate(rows):
        at = 0
        for segment in segments:
            trajectory, value = answers[segment.document]
            ids, written = np.array(trajectory.ids), np.array(trajectory.written[1:])
            place = slice(at, at + len(ids) - 1)
            at = place.stop
            inputs[row, place], documents[row, place] = ids[:-1], segment.document
            targets[row, place][written] = ids[1:][written]
            logprobs[row, place][written] = trajectory.logprobs
            weights[row, place][written] = value
    return RolloutBatch(
        torch.from_numpy(inputs), torch.from_numpy(targets), LoaderState(), torch.from_numpy(documents),
        torch.from_numpy(logprobs), torch.from_numpy(weights),
    )  # fmt: skip


def _shuffle_rewards(groups: Sequence[Group], rng: random.Random) -> None:
    grades = [each.grade for group in groups for each in group.trajectories]
    rng.shuffle(grades)
    waiting = iter(grades)
    for group in groups:
        group.trajectories = [replace(each, grade=next(waiting)) for each in group.trajectories]
