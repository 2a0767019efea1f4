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
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cpplm.core.errors import UserError
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


@dataclass
class RolloutFigures:
    """What one step's answers were like, of this rank."""

    rewards: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    entropies: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    distinct: list[float] = field(default_factory=list)
    groups: int = 0
    uninformative: int = 0
    uncertain: int = 0
    refused: int = 0
    staleness: list[int] = field(default_factory=list)
    seconds: float = 0.0
    decode_seconds: float = 0.0

    def add(self, group: Group) -> None:
        """Count the answers of a group."""
        each = group.trajectories
        self.groups += 1
        self.uninformative += not group.is_informative
        self.uncertain += group.uncertain
        self.refused += group.refused
        self.staleness += [group.staleness] * len(each)
        self.rewards += [one.reward for one in each]
        self.outcomes.update(one.grade.outcome for one in each if one.grade)
        self.entropies += [-value for one in each for value in one.logprobs]
        self.lengths += [len(one.logprobs) for one in each]
        if each:
            self.distinct.append(len({one.own_ids for one in each}) / len(each))

    def record(self) -> dict[str, Any]:
        """For the log; means over answers, entropy over tokens in nats."""
        answers = len(self.rewards)
        return {
            "answers": answers,
            "reward": fmean(self.rewards or [0.0]),
            "solved": fmean([reward >= 1 for reward in self.rewards] or [0.0]),
            "entropy": fmean(self.entropies or [0.0]),
            "length": fmean(self.lengths or [0.0]),
            "distinct": fmean(self.distinct or [0.0]),
            "groups": self.groups,
            "uninformative_groups": self.uninformative,
            "no_verdict": self.uncertain / max(1, answers + self.uncertain),
            "staleness": fmean(self.staleness or [0]),
            "most_staleness": max(self.staleness, default=0),
            "refused_answers": self.refused,
            "outcomes": dict(self.outcomes.most_common()),
            "decode_seconds": self.decode_seconds,
            "grade_seconds": self.seconds - self.decode_seconds,
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
        self.figures = RolloutFigures()
        self.groups: list[Group] = []
        """Of the last step, of this rank."""
        self._order = lru_cache(maxsize=2)(self._order_of_epoch)

    def __next__(self) -> RolloutBatch:
        """Sample, grade and pack the answers of one step.

        Raises:
            UserError: a verdict cannot be kept, or the model gives no numbers.
        """
        assert self.make_engine is not None  # noqa: S101  (the run has begun)
        begin = time.perf_counter()
        self.figures, self.groups = RolloutFigures(), []
        engine, cursor, missing = self.make_engine(), self._state.prompts, self._num_prompts
        informative: list[Group] = []
        for _ in range(MAX_ROUNDS):
            asked = range(cursor, cursor + missing)
            cursor += missing
            groups = self._sampler.groups(
                engine, [self.question(index) for index in asked[self._dist.rank :: self._dist.world_size]]
            )
            self.figures.decode_seconds += self._sampler.decode_seconds
            if self._shuffle_rewards:
                _shuffle_rewards(groups, random.Random(f"{self._seed} {cursor}"))  # noqa: S311
            for group in groups:
                self.figures.add(group)
            self.groups += groups
            informative += [group for group in groups if group.is_informative]
            found = sum(self._dist.gather_objects(len(informative)))
            missing = self._num_prompts - found
            if missing <= 0:
                break
        self.figures.seconds = time.perf_counter() - begin
        anchor = next(self._anchors) if self._anchors else None
        self._state = replace(anchor.state if anchor else self._state, prompts=cursor)
        rows = pack_groups(informative, self._seq_len, self._advantage)
        return RolloutBatch(
            rows.inputs, rows.targets, self._state, rows.documents,
            rows.logprobs, rows.advantages, found, self._num_prompts, anchor,
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


class PackedAnswers(NamedTuple):
    """Rows of whole answers, padded; see `RolloutBatch`."""

    inputs: Tensor
    targets: Tensor
    documents: Tensor
    logprobs: Tensor
    advantages: Tensor


def pack_groups(groups: Sequence[Group], seq_len: int, advantage: AdvantageName) -> PackedAnswers:
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
    return PackedAnswers(*map(torch.from_numpy, (inputs, targets, documents, logprobs, weights)))


def _shuffle_rewards(groups: Sequence[Group], rng: random.Random) -> None:
    grades = [each.grade for group in groups for each in group.trajectories]
    rng.shuffle(grades)
    waiting = iter(grades)
    for group in groups:
        group.trajectories = [replace(each, grade=next(waiting)) for each in group.trajectories]


def usable_tasks(
    items: Sequence[TaskItem],
    make_prompt: Callable[[TaskItem], TaskPrompt | None],
    max_new_tokens: Callable[[TaskItem], int],
    context: int,
) -> list[tuple[TaskItem, TaskPrompt]]:
    """The tasks that a model can be asked, with their prompts.

    Raises:
        UserError: there is none.
    """
    tasks = []
    for item in items:
        prompt = make_prompt(item)
        if prompt is not None and len(prompt.ids) + max_new_tokens(item) <= context:
            tasks.append((item, prompt))
    if not tasks:
        raise UserError(
            f"the model can be given none of the {len(items)} training tasks",
            fix="Each is too long for its context, or needs a chat model ('cpplm sft') or one trained with "
            "--fim_rate.",
        )
    return tasks
