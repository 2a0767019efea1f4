"""Study of a sweep in Optuna's storage: opened, compared with the recipe, sampled."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError
from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.core.settings import flatten
from cpplm.core.storage import Storage
from cpplm.sweep.recipe import SweepRecipe

JOURNAL = "journal.log"
RECIPE = "sweep.toml"
TRIALS = "trials"
REASON = "reason"
"""Attribute of a trial that failed."""
_PRUNERS = {"median": MedianPruner, "halving": SuccessiveHalvingPruner, "none": NopPruner}


class NumberedSampler(BaseSampler):
    """A sampler whose values depend on the seed and the trial's number, not on which worker asks."""

    def __init__(self, recipe: SweepRecipe) -> None:
        self._recipe = recipe
        self._number = -1
        self._sampler: BaseSampler = RandomSampler()

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        if trial.number != self._number:
            self._number = trial.number
            kind = TPESampler if self._recipe.sampler == "tpe" else RandomSampler
            self._sampler = kind(seed=(1_000_003 * self._recipe.seed + trial.number) % 2**32)
        return self._sampler

    @override
    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if self._recipe.sampler == "grid":
            return {}
        return self._of(trial).infer_relative_search_space(study, trial)

    @override
    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._of(trial).sample_relative(study, trial, search_space) if search_space else {}

    @override
    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        if self._recipe.sampler == "grid":
            return self._recipe.grid[trial.number % len(self._recipe.grid)][param_name]
        return self._of(trial).sample_independent(study, trial, param_name, param_distribution)


def open_study(recipe: SweepRecipe, folder: Path, *, create: bool = False) -> Study:
    """The study of a sweep.

    Args:
        recipe: of the sweep.
        folder: of the sweep.
        create: begin one where there is none, and write the folder.

    Raises:
        UserError: the storage cannot be read, has no such sweep, or one of another recipe.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", module="optuna")
    journal = folder / JOURNAL
    with storage_errors(recipe, folder if not create or journal.exists() else None):
        if create and not recipe.storage:
            folder.mkdir(parents=True, exist_ok=True)
        storage: BaseStorage = (
            RDBStorage(os.path.expandvars(recipe.storage))
            if recipe.storage
            else JournalStorage(JournalFileBackend(str(journal)))
        )
        names = [summary.study_name for summary in optuna.get_all_study_summaries(storage)]
        if not create and recipe.name not in names:
            raise UserError(
                f"the storage has no sweep {recipe.name!r}", fix="Begin it: cpplm sweep --recipe FILE."
            )
        if recipe.name not in names:
            optuna.create_study(
                storage=storage, study_name=recipe.name, direction=recipe.direction, load_if_exists=True
            )
        sampler, pruner = NumberedSampler(recipe), _PRUNERS[recipe.pruner]()
        study = optuna.load_study(study_name=recipe.name, storage=storage, sampler=sampler, pruner=pruner)
        ours = json.loads(json.dumps(recipe.compared()))
        if "recipe" not in study.user_attrs:
            study.set_user_attr("recipe", ours)
        one, other = flatten(ours), flatten(study.user_attrs["recipe"])
    for key in sorted({*one, *other}):
        if one.get(key) != other.get(key):
            raise UserError(
                f"the sweep {recipe.name!r} of {folder} has another recipe: {key} is {other.get(key)} there, "
                f"{one.get(key)} here",
                fix="Name another --out, and with a database another name; or use 'cpplm sweep worker'.",
            )
    return study


@contextlib.contextmanager
def storage_errors(recipe: SweepRecipe, folder: Path | None) -> Iterator[None]:
    """Turn what goes wrong with the storage into a `UserError`; the journal in `folder` must be there.

    Optuna would begin a journal anew that was deleted, without what was in it.
    """
    journal = folder / JOURNAL if folder is not None and not recipe.storage else None
    if journal is not None and not journal.exists():
        raise UserError(f"the journal {journal} is gone", fix="Put it back, or name another --out.")
    place = "the recipe's database" if recipe.storage else str(journal or "the journal")
    try:
        yield
    except (optuna.exceptions.StorageInternalError, SQLAlchemyError, ModuleNotFoundError, OSError) as error:
        reason = str(error.__cause__ or error).splitlines()[0]
        raise UserError(
            f"{place} cannot be used: {reason}", fix="Mend that; the same command goes on where it stood."
        ) from error
    except (KeyError, ValueError, AssertionError) as error:
        raise UserError(f"{place} is damaged: {error}", fix="Restore it, or name another --out.") from error


def begin_sweep(path: Path, recipe: SweepRecipe, folder: Path) -> Study:
    """Begin a sweep, or join the one that is there.

    Args:
        path: of the recipe, of which the folder gets a copy.
        recipe: that it holds.
        folder: of the sweep.

    Raises:
        UserError: `folder` is of something else, or see `open_study`.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file", fix="Name another --out.")
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and not names & {JOURNAL, RECIPE}:
        raise UserError(f"{folder} holds something else than a sweep", fix="Name another --out.")
    study = open_study(recipe, folder, create=RECIPE not in names)
    Storage(folder, create=True).write(RECIPE, path.read_bytes())
    return study


def find_sweep(place: Path) -> tuple[SweepRecipe, Path]:
    """The recipe and the folder of a sweep, which its folder or a file in it names, else UserError."""
    folder = place if place.is_dir() else place.parent
    if not place.exists() or not (folder / RECIPE).exists():
        raise UserError(
            f"{place} is not the folder of a sweep (no {RECIPE})", fix="Name the --out of 'cpplm sweep'."
        )
    return SweepRecipe.load(folder / RECIPE), folder


def trials_of(study: Study, recipe: SweepRecipe) -> list[FrozenTrial]:
    """The trials of the sweep: of several workers that ask for the last one at once, one gets it."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.number < recipe.num_trials]


def best_trial(trials: list[FrozenTrial], recipe: SweepRecipe) -> FrozenTrial | None:
    """The best of those that ran to their end."""
    done = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    sign = 1 if recipe.direction == "minimize" else -1
    return min(done, key=lambda trial: sign * (trial.value or 0.0), default=None)
