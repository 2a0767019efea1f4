"""Figures of a sweep and its page: parallel coordinates, importance of settings, the best runs."""

from __future__ import annotations

import html
import math
import warnings
from pathlib import Path
from typing import Any

import optuna
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from cpplm.core.storage import Storage
from cpplm.sweep.recipe import Dimension, SweepRecipe
from cpplm.sweep.study import REASON, TRIALS, best_trial, trials_of
from cpplm.train.report.html import PAGE, render_page

MOST_RUNS = 20
_HEIGHT, _AXIS_WIDTH, _MARGIN = 300, 190, 90
STATES = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


def short_value(value: Any) -> str:
    """A value of a setting, numbers in four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sweep_figures(study: Study, recipe: SweepRecipe, folder: Path) -> dict[str, Any]:
    """The figures of a sweep as plain JSON; trials in the order of their numbers."""
    trials = trials_of(study, recipe)
    best = best_trial(trials, recipe)
    states = [STATES[trial.state] for trial in trials]
    return {
        "folder": str(folder),
        "command": recipe.command,
        "metric": recipe.metric,
        "direction": recipe.direction,
        "num_trials": recipe.num_trials,
        "counts": {state: states.count(state) for state in STATES.values() if state in states},
        "best": best.number if best else None,
        "importance": _importance(study, recipe),
        "trials": [_trial_figures(trial, folder) for trial in trials],
    }


def _trial_figures(trial: FrozenTrial, folder: Path) -> dict[str, Any]:
    return {
        "number": trial.number,
        "state": STATES[trial.state],
        "value": trial.value,
        "params": trial.params,
        "reason": trial.user_attrs.get(REASON, ""),
        "seconds": trial.duration.total_seconds() if trial.duration else None,
        "folder": str(folder / TRIALS / str(trial.number)),
    }


def _importance(study: Study, recipe: SweepRecipe) -> dict[str, float]:
    """Shares of settings in what makes good trials good (PED-ANOVA); none of too few trials."""
    done = [trial for trial in trials_of(study, recipe) if trial.state == TrialState.COMPLETE]
    if len(done) < 4 or len(recipe.space) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(study)
    return {name: share for name, share in shares.items() if math.isfinite(share)}


def write_sweep_page(study: Study, recipe: SweepRecipe, folder: Path) -> Path:
    """Write the page of a sweep and return its path."""
    figures = sweep_figures(study, recipe, folder)
    ranked = ranked_trials(figures)
    for trial in ranked:
        trial["page"] = f"{TRIALS}/{trial['number']}/{PAGE}"
        trial["shown"] = [short_value(value) for value in trial["params"].values()]
        trial["has_page"] = (folder / trial["page"]).exists()
    page = {
        **figures,
        "name": folder.resolve().name,
        "settings": recipe.fixed,
        "sampler": recipe.sampler,
        "pruner": recipe.pruner,
        "runs": ranked[:MOST_RUNS],
        "failures": [trial for trial in ranked if trial["state"] == "failed"][:MOST_RUNS],
        "picture": parallel_coordinates(recipe, ranked),
    }
    Storage(folder).write(PAGE, render_page("sweep.html.jinja", page).encode())
    return folder / PAGE


def ranked_trials(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """Finished trials, the best first, then pruned ones by their last value, then the others."""
    sign = 1 if figures["direction"] == "minimize" else -1
    order = list(STATES.values())

    def key(trial: dict[str, Any]) -> tuple[int, float, int]:
        value = math.inf if trial["value"] is None else sign * trial["value"]
        return order.index(trial["state"]), value, trial["number"]

    return sorted(figures["trials"], key=key)


def parallel_coordinates(recipe: SweepRecipe, ranked: list[dict[str, Any]]) -> str:
    """An SVG picture: an axis for each setting and one for the metric, a line for each trial with a value.

    The last measurement of a pruned trial was made earlier than those of finished ones: it is left out.
    """
    values = [trial["value"] for trial in ranked if trial["state"] == "finished"]
    if not values:
        return ""
    axes = [*recipe.dimensions.items(), (recipe.metric, Dimension(low=min(values), high=max(values)))]
    width = _AXIS_WIDTH * (len(axes) - 1) + 2 * _MARGIN
    lines = [
        _trial_line(trial, axes, rank, rank / max(1, len(values) - 1))
        for rank, trial in enumerate(ranked)
        if trial["state"] in ("finished", "pruned")
    ]
    labels = [_axis_shapes(_MARGIN + _AXIS_WIDTH * place, *axis) for place, axis in enumerate(axes)]
    style = f"cursor:default;max-width:{width}px;min-width:{width}px"
    return (
        f'<svg viewBox="0 0 {width} {_HEIGHT}" style="{style}" role="img" aria-label="Trials">'
        f"{''.join(lines[::-1])}{''.join(labels)}</svg>"
    )


def _trial_line(trial: dict[str, Any], axes: list[tuple[str, Dimension]], rank: int, share: float) -> str:
    finished = trial["state"] == "finished"
    values = {**trial["params"], axes[-1][0]: trial["value"]}
    points = " ".join(
        f"{_MARGIN + _AXIS_WIDTH * place},{_height(axis, values[name]):.1f}"
        for place, (name, axis) in enumerate(axes if finished else axes[:-1])
    )
    color = f"color-mix(in srgb, var(--s0) {100 * (1 - share):.0f}%, var(--line))" if rank else "var(--s1)"
    style = f"stroke:{color}" if finished else "stroke:var(--line);stroke-dasharray:3 4"
    title = ", ".join(f"{name} {short_value(value)}" for name, value in values.items())
    return (
        f'<polyline points="{points}" fill="none" stroke-width="{1.6 if rank else 3}" style="{style}">'
        f"<title>trial {trial['number']}: {html.escape(title)}</title></polyline>"
    )


def _axis_shapes(x: float, name: str, axis: Dimension) -> str:
    labels = "".join(
        f'<text x="{x - 6}" y="{_height(axis, tick) + 4:.1f}" text-anchor="end">'
        f"{html.escape(short_value(tick))}</text>"
        for tick in axis.choices or (axis.low, _middle(axis), axis.high)
    )
    return (
        f'<line x1="{x}" x2="{x}" y1="40" y2="{_HEIGHT - 20}" style="stroke:var(--soft)"/>{labels}'
        f'<text x="{x}" y="20" text-anchor="middle" style="fill:var(--text)">{html.escape(name)}</text>'
    )


def _middle(axis: Dimension) -> float:
    return math.sqrt(axis.low * axis.high) if axis.log else (axis.low + axis.high) / 2


def _height(axis: Dimension, value: Any) -> float:
    """The place of a value on an axis, the least at the bottom."""
    if axis.choices:
        share = axis.choices.index(value) / max(1, len(axis.choices) - 1)
    else:
        low, high, place = (math.log(v) if axis.log else v for v in (axis.low, axis.high, value))
        share = (place - low) / (high - low) if high > low else 0.5
    return _HEIGHT - 20 - share * (_HEIGHT - 60)
