"""`cpplm sweep [worker|show|wandb-agent]`."""

from __future__ import annotations

from pathlib import Path

from optuna.study import Study

from cpplm.cli.report import Report, text_table
from cpplm.core.text import pluralize
from cpplm.sweep.page import ranked_trials, short_value, sweep_figures, write_sweep_page
from cpplm.sweep.recipe import SweepRecipe
from cpplm.sweep.settings import SweepSettings, WandbAgentSettings, WorkerSettings
from cpplm.sweep.study import begin_sweep, find_sweep, open_study, storage_errors
from cpplm.sweep.wandb_agent import run_agent
from cpplm.sweep.worker import Worker


def sweep(settings: SweepSettings) -> Report:
    """Begin a sweep, or go on with it."""
    recipe, folder = SweepRecipe.load(settings.recipe), _folder(settings.out, settings.recipe)
    study = begin_sweep(settings.recipe, recipe, folder)
    return _work(study, recipe, folder)


def worker(settings: WorkerSettings) -> Report:
    """Take part in a sweep."""
    recipe, folder = find_sweep(settings.sweep)
    recipe.check_paths()
    return _work(open_study(recipe, folder), recipe, folder)


def show(settings: WorkerSettings) -> Report:
    """The trials so far."""
    recipe, folder = find_sweep(settings.sweep)
    return _report(open_study(recipe, folder), recipe, folder)


def wandb_agent(settings: WandbAgentSettings) -> Report:
    """Run the trials that Weights & Biases hands out."""
    recipe, folder = SweepRecipe.load(settings.recipe, search=False), _folder(settings.out, settings.recipe)
    done = run_agent(settings.sweep_id, recipe, folder, settings.count)
    return Report(f"{pluralize(done, 'trial')} in {folder}", {"trials": done, "folder": str(folder)})


def _folder(out: Path | None, recipe: Path) -> Path:
    return out if out is not None else Path("runs") / recipe.stem


def _work(study: Study, recipe: SweepRecipe, folder: Path) -> Report:
    Worker(study, recipe, folder).run()
    report = _report(study, recipe, folder)
    page = write_sweep_page(study, recipe, folder)
    return Report(f"{report.text}\n\n{page} (open it in a browser)", {**report.figures, "page": str(page)})


def _report(study: Study, recipe: SweepRecipe, folder: Path) -> Report:
    with storage_errors(recipe, folder):
        figures = sweep_figures(study, recipe, folder)
    names = list(recipe.dimensions)
    rows = [["trial", "state", *names, recipe.metric]]
    for trial in ranked_trials(figures):
        value = trial["reason"] if trial["value"] is None else f"{trial['value']:.4f}"
        params = [short_value(trial["params"].get(name, "")) for name in names]
        rows.append([str(trial["number"]), trial["state"], *params, value])
    counts = ", ".join(f"{count} {state}" for state, count in figures["counts"].items())
    text = f"{text_table(rows, left=2)}\n\n{counts or 'none'} of {pluralize(recipe.num_trials, 'trial')}"
    if figures["importance"]:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in figures["importance"].items())
        text += f"\nimportance: {shares}"
    return Report(text, figures)
