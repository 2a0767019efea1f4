"""Answers sampled from a model, token by token with their probabilities, and graded.

Answers are drawn from the model's own distribution: temperature 1, nothing cut off or forbidden, prompts of
whole tokens. Any special token ends an answer; only the right one ends it well. So the probability that is
noted is the one with which the token was drawn.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from cpplm.core.progress import log_info
from cpplm.core.storage import sha256
from cpplm.evaluate.models.chat import ToolChat, answer_chats
from cpplm.generate.engine import Engine, RequestResult
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.generate.tools.loop import ToolLoop
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.post_training.rl.prompts import TaskPrompt
from cpplm.sandbox.sandbox import SandboxError
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import MALFORMED, Answer, Grade
from cpplm.tasks.kinds import KINDS
from cpplm.tokenizer.special_tokens import NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer

_ANY_SPECIAL = tuple(range(NUM_SPECIAL))
_WAITING_GROUPS = 8  # answered and not graded yet; more, and sampling waits


class RolloutEngine(Protocol):
    """Interface of engines that write answers: our own, or servers elsewhere (`url_engine.py`)."""

    tokenizer: Tokenizer

    def complete_many(
        self, requests: Iterable[GenerationRequest], limits: SchedulerLimits | None = None
    ) -> Iterator[RequestResult]:
        """Answers to requests, as they are done."""


@dataclass(frozen=True)
class Question:
    """A task that is to be answered.

    Attributes:
        index: of the run's endless sequence of tasks; decides the random numbers of its answers.
        item: the task.
        prompt: as the model reads it.
    """

    index: int
    item: TaskItem
    prompt: TaskPrompt


@dataclass(frozen=True)
class Trajectory:
    """One answer.

    Attributes:
        ids: prompt, what the model wrote, its ending token included, and results of tools between.
        written: for each of them whether the model wrote it.
        logprobs: of each token that it wrote, in nats.
        answer: as it is graded.
        ended: whether the model ended it, and as it should.
        grade: None until it is graded.
    """

    ids: tuple[int, ...]
    written: tuple[bool, ...]
    logprobs: tuple[float, ...]
    answer: Answer
    ended: bool
    grade: Grade | None = None

    @property
    def reward(self) -> float:
        """Of the grade."""
        assert self.grade is not None  # noqa: S101  (it is graded)
        return self.grade.reward

    @property
    def own_ids(self) -> tuple[int, ...]:
        """The tokens that the model wrote."""
        return tuple(id_ for id_, own in zip(self.ids, self.written, strict=True) if own)


@dataclass
class Group:
    """All answers to one question; those without a certain verdict are left out once it is graded.

    Attributes:
        question: what was asked.
        trajectories: the answers.
        uncertain: how many were left out.
        staleness: see `RequestResult`.
        refused: likewise.
    """

    question: Question
    trajectories: list[Trajectory] = field(default_factory=list)
    uncertain: int = 0
    staleness: int = 0
    refused: int = 0

    @property
    def is_informative(self) -> bool:
        """True if some answers are better than others."""
        return len({each.reward for each in self.trajectories}) > 1


class RolloutSampler:
    """Answers questions with a model, and has the answers graded while others are written."""

    def __init__(
        self, grader: Grader, boxes: dict[str, ToolBox], *,
        num_samples: int, max_new_tokens: int, seed: int, rows: int,
    ) -> None:  # fmt: skip
        """Nothing is sampled yet.

        Args:
            grader: of all kinds.
            boxes: tools by project, for kinds that need them.
            num_samples: answers to each question.
            max_new_tokens: of an answer; -1 for what its kind allows.
            seed: with a question's index it decides the random numbers.
            rows: answers that are written at the same time.
        """
        self.grader, self._boxes = grader, boxes
        self._num_samples, self._max_new_tokens, self._seed = num_samples, max_new_tokens, seed
        self._limits = SchedulerLimits(max_batch=rows)
        self.decode_seconds = 0.0
        """In which the last groups were written; what is graded meanwhile costs no time of its own."""

    def max_new_tokens(self, item: TaskItem) -> int:
        """The most that an answer to a task may have."""
        return self._max_new_tokens if self._max_new_tokens > 0 else KINDS[item.kind].max_new_tokens

    def groups(self, engine: RolloutEngine, questions: Sequence[Question]) -> list[Group]:
        """The answers to all questions, graded, in their order.

        Raises:
            UserError: a verdict cannot be kept (the disk is full).
        """
        groups, begin = [Group(question) for question in questions], time.perf_counter()
        # One grader at a time: it compiles on all cores itself.
        pool = ThreadPoolExecutor(1, thread_name_prefix="grading")
        try:
            grading: list[Future[None]] = []
            for group in self.answer(engine, groups):
                if len(grading) >= _WAITING_GROUPS:
                    grading[-_WAITING_GROUPS].result()
                grading.append(pool.submit(self.grade, group))
            self.decode_seconds = time.perf_counter() - begin
            for future in grading:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
        return groups

    def answer(self, engine: RolloutEngine, groups: Sequence[Group]) -> Iterator[Group]:
        """Each group, as soon as all its answers are written, which are not graded yet."""
        plain = [group for group in groups if not KINDS[group.question.item.kind].needs_tools]
        requests = (self._request(group.question) for group in plain)
        for result in engine.complete_many(requests, self._limits):
            group = plain[result.number]
            group.staleness, group.refused = result.staleness, result.refused
            group.trajectories = [
                _trajectory(group.question, [(group.question.prompt.ids, each)])
                for each in result.completions
            ]
            yield group
        tools = [group for group in groups if KINDS[group.question.item.kind].needs_tools]
        if tools:
            assert isinstance(engine, Engine)  # noqa: S101  (others are refused at the start)
            self._answer_with_tools(engine, tools)
            yield from tools

    def _request(self, question: Question) -> GenerationRequest:
        kind, prompt = KINDS[question.item.kind], question.prompt
        settings = SamplingSettings(
            self.max_new_tokens(question.item), temperature=1.0, top_k=0,
            seed=int(sha256(f"{self._seed} {question.index}".encode())[:8], 16),
        )  # fmt: skip
        stop = kind.is_complete if prompt.stops_early else None
        return GenerationRequest(
            prompt.ids, settings, self._num_samples, stop=stop, logprobs=0, end_ids=_ANY_SPECIAL
        )

    def _answer_with_tools(self, engine: Engine, groups: Sequence[Group]) -> None:
        context = engine.model.config.max_seq_len
        chats = [
            ToolChat(
                ToolLoop(engine.tokenizer, self._request(group.question), context, number),
                self._boxes[group.question.item.project].fresh(),
            )
            for group in groups
            for number in range(self._num_samples)
        ]
        for number, chat in sorted(answer_chats(engine, chats, self._limits)):
            group = groups[number // self._num_samples]
            if not chat.failed:
                group.trajectories.append(_trajectory(group.question, chat.rounds, chat))

    def grade(self, group: Group) -> None:
        """Grade the answers of a group; those without a certain verdict, or any number for one, leave it."""
        item = group.question.item
        kind = KINDS[item.kind]
        ended = [(item, each.answer) for each in group.trajectories if each.ended]
        try:
            grades = kind.grade(ended, self.grader)
        except SandboxError as error:
            log_info(f"warning: no verdicts on {len(ended)} answers: {error}")
            grades = [Grade(MALFORMED, "sandbox error", certain=False)] * len(ended)
        found = iter(grades)
        graded = [
            replace(each, grade=next(found) if each.ended else Grade(MALFORMED, "no end"))
            for each in group.trajectories
        ]
        group.trajectories = [
            each
            for each in graded
            if each.grade is not None and each.grade.certain and math.isfinite(each.reward)
        ]
        group.uncertain = len(graded) - len(group.trajectories)


def _trajectory(
    question: Question,
    rounds: Sequence[tuple[tuple[int, ...], CompletionOutput]],
    chat: ToolChat | None = None,
) -> Trajectory:
    """The trajectory of what was written in some rounds, each behind what was read before it."""
    before, last = rounds[-1]
    # Tokens of their probabilities: <EOS>, which is not among the ids, has one.
    ids = (*before, *(token.token for token in last.logprobs))
    written, logprobs = [False] * len(ids), list[float]()
    for read, completion in rounds:
        logprobs += [token.logprob for token in completion.logprobs]
        written[len(read) : len(read) + len(completion.logprobs)] = [True] * len(completion.logprobs)
    whole = last if chat is None else chat.loop.completion()
    ended = whole.finish_reason == "stop" or (
        whole.finish_reason == "end" and ids[-1] == question.prompt.end_id
    )
    answer = Answer(KINDS[question.item.kind].cut(whole.text), tuple(chat.results) if chat else ())
    return Trajectory(ids, tuple(written), tuple(logprobs), answer, ended)


def trajectory_record(question: Question, number: int, trajectory: Trajectory) -> dict[str, Any]:
    """An answer as a line of JSON: all that is needed to look at it, and to grade it again."""
    grade = trajectory.grade
    assert grade is not None  # noqa: S101  (it is graded)
    item = question.item
    return {
        "index": question.index, "number": number, "key": item.key, "kind": item.kind, "group": item.group,
        "text": trajectory.answer.text, "tool_results": trajectory.answer.tool_results,
        "reward": grade.reward, "outcome": grade.outcome,
    }  # fmt: skip


def token_record(trajectory: Trajectory) -> dict[str, Any]:
    """Its tokens: all that is needed to train on it."""
    return {
        "ids": trajectory.ids,
        "written": [int(own) for own in trajectory.written],
        "logprobs": trajectory.logprobs,
    }
