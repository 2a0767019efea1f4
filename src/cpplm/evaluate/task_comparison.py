"""`cpplm evaluate tasks`: a model and its rivals on the same tasks, with guards beside them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.settings import to_dict
from cpplm.core.shards import MANIFEST
from cpplm.core.storage import Storage
from cpplm.evaluate.run import Evaluation
from cpplm.evaluate.settings import BpbSettings, EvalTarget, FimEvalSettings
from cpplm.evaluate.task_settings import TaskEvalSettings, TasksCommand
from cpplm.evaluate.task_suite import (
    GradedAnswer,
    answer_tasks,
    compare,
    figures_of,
    grade_answers,
    tool_boxes,
)
from cpplm.tasks.build import open_grader
from cpplm.tasks.item import first_of_each_kind, read_tasks
from cpplm.tasks.kinds import KINDS

FILE = "tasks.json"
_GUARD_BYTES = 400_000


def evaluate_tasks(command: TasksCommand) -> dict[str, Any]:
    """Answer, grade and compare; kept in the folder of the first model's results.

    Returns:
        "models" (for each its name, figures by kind and guards), "differences" (of the first to each other).

    Raises:
        UserError: no such tasks or model.
    """
    settings = command.tasks
    items = first_of_each_kind(read_tasks(settings.tasks, "val", settings.kinds), settings.num_items)
    recorded = Storage(settings.tasks).read_json(MANIFEST)["tasks"]
    targets = [command.target, *(_rival(name, command.target) for name in settings.against)]
    boxes = tool_boxes(items, recorded["projects"]) if all(each.model.run for each in targets) else {}
    usable = [item for item in items if not KINDS[item.kind].needs_tools or item.project in boxes]
    if len(usable) < len(items):
        log_info(f"{len(items) - len(usable)} tasks need tools on a project: left out")
    items = usable
    if not items:
        raise UserError(f"{settings.tasks} has no held-out tasks for these models", fix="Build more kinds.")
    grader = open_grader(settings.tasks, settings.headers, settings.workers)
    models, graded = [], list[list[GradedAnswer]]()
    for target in targets:
        evaluation = Evaluation(target)
        log_info(f"answering: {evaluation.model.name}")
        samples = []
        for number in range(settings.num_samples):
            sampling = replace(settings, seed=settings.seed + number)
            answers = answer_tasks(evaluation.model, items, sampling, boxes, evaluation.folder)
            samples.append(grade_answers(items, answers, grader))
        graded.append(samples[0])
        guards = _guards(evaluation, settings) if settings.guards else {}
        models.append({**evaluation.about, "tasks": figures_of(*samples), "guards": guards})
        if target is command.target:
            first = evaluation
    result = {
        "models": models,
        "differences": [compare(graded[0], other) for other in graded[1:]],
        "settings": to_dict(settings) | {"workers": 0},
    }
    if first.folder is not None:
        Storage(first.folder).write_json(FILE, result | {"answers": _shown(graded)})
    return result


def _rival(name: str, target: EvalTarget) -> EvalTarget:
    """A model that is named in one word, on the same device."""
    kind, _, rest = name.partition(":")
    model = replace(
        target.model,
        run="" if kind in ("hf", "http", "https") else name,
        step=-1,
        hf_dir=Path(rest) if kind == "hf" else None,
        url=name if kind in ("http", "https") else "",
        model_name="",
    )
    model.check_paths()
    return EvalTarget(model)


def _guards(evaluation: Evaluation, settings: TaskEvalSettings) -> dict[str, float]:
    """Bits per byte and exact fillings of held-out documents: what fine-tuning must not cost."""
    bits = evaluation.bits_per_byte(BpbSettings(settings.guards, eval_bytes=_GUARD_BYTES, context_bytes=0))
    fim = evaluation.fim(FimEvalSettings(problems="", files=settings.guards, max_new_tokens=64))
    found = {name: fim["files"]["all"][name]["value"] for name in ("exact_match", "edit_similarity")}
    return {"bits_per_byte": bits["bits_per_byte"], **{f"fim_{name}": each for name, each in found.items()}}


def _shown(graded: list[list[GradedAnswer]]) -> list[dict[str, Any]]:
    """Every task with what each model wrote, for people who look."""
    return [
        {
            "key": row[0].item.key,
            "kind": row[0].item.kind,
            "answers": [
                {"text": each.text, "reward": each.grade.reward, "outcome": each.grade.outcome}
                for each in row
            ],
        }
        for row in zip(*graded, strict=True)
    ]


def format_comparison(result: dict[str, Any]) -> str:
    """For people: shares of solved tasks with intervals, and differences with theirs."""
    models = result["models"]
    names = [chr(ord("A") + number) for number in range(len(models))]
    lines = [f"{name}: {model['model']}" for name, model in zip(names, models, strict=True)]
    lines.append(
        f"\n{'task':26} {'n':>5}" + "".join(f"{name + ' solved':>22} {'exact':>7}" for name in names)
    )
    for kind in models[0]["tasks"]:
        row = [model["tasks"][kind] for model in models]
        lines.append(f"{kind:26} {row[0]['n']:5}" + "".join(_cell(each) for each in row))
        for level in row[0]["levels"] if len(row[0]["levels"]) > 1 else ():
            levels = [each["levels"][level] for each in row]
            lines.append(f"  {level:24} {levels[0]['n']:5}" + "".join(_cell(each) for each in levels))
        for name in (name for name in row[0] if name.startswith("pass@")):
            lines.append(f"  {name:30}" + "".join(f"{each[name]:22.1%}{'':8}" for each in row))
    for name, differences in zip(names[1:], result["differences"], strict=True):
        lines.append(
            f"\nA - {name}: {'difference':>12} {'95 % interval':>18} {'gained':>7} {'lost':>5} {'p':>8}"
        )
        for kind, each in differences.items():
            low, high = each["interval"]
            sure = "" if low > 0 or high < 0 else "  not significant"
            lines.append(
                f"{kind:8} {each['difference']:+12.1%} {low:+9.1%} to {high:+6.1%} {each['gained']:7} "
                f"{each['lost']:5} {each['p']:8.2g}{sure}"
            )
    guards = {name: model["guards"] for name, model in zip(names, models, strict=True) if model["guards"]}
    for guard in next(iter(guards.values()), {}):
        lines.append(f"{guard}: " + ", ".join(f"{name} {each[guard]:.4f}" for name, each in guards.items()))
    return "\n".join(lines)


def _cell(shares: dict[str, Any]) -> str:
    low, high = shares["interval"]
    return f"{shares['solved']:8.1%} ({low:.0%} to {high:.0%})".rjust(22) + f" {shares['exact']:7.1%}"
