"""Worker of a Weights & Biases sweep: its agent hands out settings, each trial is a run of ours."""

from __future__ import annotations

from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.sweep.recipe import SweepRecipe
from cpplm.sweep.study import TRIALS
from cpplm.sweep.trial import Record, failure_reason, measured, run_trial, write_run_page
from cpplm.train.tracking import import_tracker


def run_agent(sweep_id: str, recipe: SweepRecipe, folder: Path, count: int) -> int:
    """Run trials until there are no more.

    Args:
        sweep_id: of the sweep there.
        recipe: command, settings and metric.
        folder: gets a run folder for each trial, named after the run there.
        count: end after so many; -1 for no such limit.

    Returns:
        How many were run.

    Raises:
        UserError: the package is not installed, or the service cannot be used.
    """
    wandb = import_tracker("wandb", "cpplm sweep wandb-agent")
    if "wandb_project" in recipe.fixed:
        raise UserError("wandb_project is that of the sweep there", fix="Leave it out of [settings].")
    folder.mkdir(parents=True, exist_ok=True)
    ended = 0

    def trial() -> None:
        nonlocal ended
        run = wandb.init(dir=str(folder))
        run.define_metric("*", step_metric="step")
        params = dict(run.config)
        run_folder = folder / TRIALS / run.id
        run_folder.mkdir(parents=True, exist_ok=True)

        def watch(records: list[Record]) -> bool:
            for step, value in measured(records, recipe.metric):
                run.log({recipe.metric: value, "step": step})
            return False

        # The agent ends a trial early by an exception in here, which stops the run.
        status = run_trial(recipe.arguments(params, run_folder, where=f"sweep {sweep_id}"), run_folder, watch)
        write_run_page(run_folder)
        if status:
            raise UserError(failure_reason(status, run_folder))
        ended += 1
        log_info(f"{run_folder} has ended: {', '.join(f'{name} {value}' for name, value in params.items())}")

    try:
        wandb.agent(sweep_id, function=trial, count=None if count == -1 else count)
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise UserError(f"Weights & Biases cannot be used: {reason}", fix="Run 'wandb login'.") from error
    return ended
