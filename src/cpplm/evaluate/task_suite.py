"""Held-out tasks answered by models of any kind, graded, and compared in pairs.

A model that was trained on conversations is asked by them; another one continues the code before the place,
or fills it in where it sees both sides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from cpplm.core.jsonl import ResumableJsonl
from cpplm.core.progress import log_info, progress_bar
from cpplm.core.statistics import (
    mcnemar_p_value,
    paired_bootstrap_interval,
    wilson_interval,
)
from cpplm.core.storage import sha256
from cpplm.evaluate.models.code_model import CodeModel, CodePrompt
from cpplm.evaluate.task_settings import TaskEvalSettings
from cpplm.generate.settings import SamplingSettings
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import Answer, Grade
from cpplm.tasks.kinds import KINDS

_FOLDER = "task_answers"


@dataclass(frozen=True)
class GradedAnswer:
    """What a model wrote for one task, and its worth."""

    item: TaskItem
    text: str
    grade: Grade


def answer_tasks(
    model: CodeModel,
    items: Sequence[TaskItem],
    settings: TaskEvalSettings,
    boxes: dict[str, ToolBox],
    folder: Path | None,
) -> list[Answer]:
    """The answer to each task; those that were given before are kept in the folder.

    Args:
        model: of any kind.
        items: the tasks.
        settings: sampling, and how the model is asked.
        boxes: tools by project.
        folder: for answers; None keeps none.
    """
    chat = model.supports_chat if settings.prompt_style == "auto" else settings.prompt_style == "chat"
    inputs = {**model.identity, "chat": chat, "temperature": settings.temperature, "seed": settings.seed}
    name = sha256(repr(sorted(inputs.items())).encode())[:16]
    path = folder and folder / _FOLDER / f"{name}.jsonl"
    with ResumableJsonl(path, inputs) as store:
        known = {key: Answer(text, tuple(results)) for key, text, results in store.records}
        missing = [item for item in items if item.key not in known]
        with progress_bar(len(missing), "answering tasks", "task") as bar:
            for item, answer in _ask(model, missing, settings, boxes, chat=chat):
                known[item.key] = answer
                store.append([item.key, answer.text, answer.tool_results])
                bar.update()
    return [known[item.key] for item in items]


def _ask(
    model: CodeModel,
    items: Sequence[TaskItem],
    settings: TaskEvalSettings,
    boxes: dict[str, ToolBox],
    *,
    chat: bool,
) -> Iterator[tuple[TaskItem, Answer]]:
    """Ask kind by kind, as each has its own length and end."""
    for name, group in groupby(items, lambda item: item.kind):
        kind, each = KINDS[name], list(group)
        sampling = SamplingSettings(kind.max_new_tokens, settings.temperature, seed=settings.seed)
        if chat and each[0].prompt:
            tools = [boxes[item.project].fresh() if kind.needs_tools else None for item in each]
            answers = model.chat(
                [item.messages[:1] for item in each], sampling, stop=kind.is_complete,
                boxes=tools if kind.needs_tools else (),
            )  # fmt: skip
            for number, answer in answers:
                yield each[number], Answer(kind.cut(answer.text), answer.tool_results)
        elif each[0].prefix:
            prompts = [
                model.fit(CodePrompt(item.prefix, item.suffix or None), kind.max_new_tokens) for item in each
            ]
            for number, samples in model.generate(prompts, sampling, stop=kind.is_complete):
                yield each[number], Answer(kind.cut(samples[0].text))
        else:  # there is no other form than a conversation, which this model does not know
            yield from ((item, Answer("")) for item in each)


def grade_answers(items: Sequence[TaskItem], answers: Sequence[Answer], grader: Grader) -> list[GradedAnswer]:
    """Grade answers, kind by kind."""
    graded: list[GradedAnswer] = []
    for name, group in groupby(zip(items, answers, strict=True), lambda pair: pair[0].kind):
        pairs = list(group)
        grades = KINDS[name].grade(pairs, grader)
        graded += [
            GradedAnswer(item, answer.text, grade)
            for (item, answer), grade in zip(pairs, grades, strict=True)
        ]
    return graded


def figures_of(graded: Sequence[GradedAnswer], *more: Sequence[GradedAnswer]) -> dict[str, Any]:
    """The figures of one model by kind of task, with those of its levels; of several samples also pass@N."""
    any_solved = {
        row[0].item.key: any(each.grade.solved for each in row) for row in zip(graded, *more, strict=True)
    }
    report = {}
    for name, group in groupby(graded, lambda each: each.item.kind):
        each = list(group)
        levels = sorted({one.item.level for one in each})
        report[name] = _shares(each) | {
            "outcomes": dict(Counter(one.grade.outcome for one in each).most_common()),
            "levels": {level: _shares([one for one in each if one.item.level == level]) for level in levels},
        }
        if more:
            report[name][f"pass@{1 + len(more)}"] = fmean(any_solved[one.item.key] for one in each)
    return report


def _shares(graded: Sequence[GradedAnswer]) -> dict[str, Any]:
    solved = sum(each.grade.solved for each in graded)
    return {
        "n": len(graded),
        "solved": solved / len(graded),
        "interval": wilson_interval(solved, len(graded)),
        "exact": fmean(each.grade.exact for each in graded),
        "reward": fmean(each.grade.reward for each in graded),
    }


def compare(ours: Sequence[GradedAnswer], theirs: Sequence[GradedAnswer]) -> dict[str, Any]:
    """Paired differences in the share of solved tasks, by kind: ours minus theirs.

    Returns:
        For each kind "difference", its 95 percent "interval" (bootstrap over documents), "p" (McNemar's exact
        test), and how many tasks only the one ("gained") or only the other ("lost") solved.
    """
    report = {}
    pairs = zip(ours, theirs, strict=True)
    for name, group in groupby(pairs, lambda pair: pair[0].item.kind):
        each = list(group)
        differences = [float(one.grade.solved) - float(two.grade.solved) for one, two in each]
        gained, lost = differences.count(1.0), differences.count(-1.0)
        report[name] = {
            "n": len(each),
            "difference": fmean(differences),
            "interval": paired_bootstrap_interval(differences, [one.item.group for one, _ in each]),
            "gained": gained,
            "lost": lost,
            "p": mcnemar_p_value(gained, lost),
        }
    return report


def tool_boxes(items: Sequence[TaskItem], projects: dict[str, str]) -> dict[str, ToolBox]:
    """Tools on the folder of each project that tasks need them for."""
    needed = {item.project for item in items if KINDS[item.kind].needs_tools}
    for project in sorted(needed - projects.keys()):
        log_info(f"the folder of {project} is not known: build the tasks again with --projects")
    return {
        name: ToolBox(Path(projects[name]), runs_programs=False) for name in sorted(needed & projects.keys())
    }
