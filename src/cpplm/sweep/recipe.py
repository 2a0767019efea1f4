"""Recipe of a sweep: the command, its fixed settings, the space to search, and how."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cpplm.compress.settings import QatSettings
from cpplm.core.errors import UserError
from cpplm.core.settings import (
    check_paths,
    flags,
    from_command_line,
    from_dict,
    read_toml,
    to_arguments,
)
from cpplm.post_training.settings import SftSettings
from cpplm.train.settings import TrainSettings

if TYPE_CHECKING:
    from optuna.trial import Trial

COMMANDS: dict[str, type] = {"train": TrainSettings, "sft": SftSettings, "compress qat": QatSettings}
# Each trial has its own folder, which holds everything of it.
OWNED = ("out", "checkpoint_dir", "upload_dir", "resume_from_step", "dry_run")
NOT_COMPARED = ("trials", "storage", "stale_seconds", "pruner", "prune_after_step")
"""Keys in which the recipe of a sweep that there is may change."""

Value = bool | int | float | str


@dataclass(frozen=True)
class Dimension:
    """Values that one setting may take: choices, or a range with both ends."""

    choices: tuple[Value, ...] = ()
    low: float = math.nan
    high: float = math.nan
    step: float = 0.0
    log: bool = False
    integer: bool = False

    def check(self, where: str) -> None:
        """Refuse what is neither choices nor a range in order."""
        is_range = not (math.isnan(self.low) and math.isnan(self.high))
        if bool(self.choices) == is_range:
            fix = "Write { choices = [1, 2] } or { low = 0.1, high = 1.0, log = true }."
            raise UserError(f"{where} has neither choices nor a range, or both", fix=fix)
        if self.choices and (len(set(self.choices)) < len(self.choices) or self.step or self.log):
            raise UserError(f"{where}: choices are different values, without step and log")
        if is_range and not -math.inf < self.low < self.high < math.inf:
            raise UserError(f"{where}: low {self.low} is not below high {self.high}", fix="Swap them.")
        if self.log and (not self.low > 0 or self.step):
            raise UserError(f"{where}: a log range is of positive numbers and has no step")
        whole = not is_range or all(value == int(value) for value in (self.low, self.high, self.step))
        if self.step < 0 or (self.integer and not whole):
            raise UserError(f"{where}: low, high and step must be whole numbers, the step from 1 up")

    def suggest(self, name: str, trial: Trial) -> Any:
        """The value of a trial."""
        if self.choices:
            return trial.suggest_categorical(name, list(self.choices))
        if self.integer:
            return trial.suggest_int(
                name, int(self.low), int(self.high), step=int(self.step) or 1, log=self.log
            )
        return trial.suggest_float(name, self.low, self.high, step=self.step or None, log=self.log)

    def grid(self) -> list[Value]:
        """All values; none of a range without steps, but for whole numbers."""
        if self.choices or self.log or not (self.step or self.integer):
            return list(self.choices)
        step = self.step or 1
        values = [self.low + step * i for i in range(math.floor((self.high - self.low) / step + 1e-9) + 1)]
        return [int(value) if self.integer else round(value, 12) for value in values]

    def first(self) -> Value:
        """Any value."""
        return self.choices[0] if self.choices else int(self.low) if self.integer else self.low


@dataclass(frozen=True)
class SweepRecipe:
    """A sweep as its TOML file describes it."""

    command: Literal["train", "sft", "compress qat"]
    """Command of each trial."""
    settings: dict[str, Any]
    """Its settings that do not change, `config` among them."""
    space: dict[str, Any] = field(default_factory=dict)
    """Settings to search: choices, or low, high, and log or step."""
    name: str = "sweep"
    """Name in the storage, which may hold several sweeps."""
    trials: int = -1
    """So many trials (-1 = the whole grid)."""
    seconds: float = -1.0
    """Training time of a trial: its max_minutes (-1 = as the settings say)."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """Bayesian by tree-structured Parzen estimators, at random, or all combinations."""
    pruner: Literal["median", "halving", "none"] = "median"
    """Trials that end early: those behind the median at the same step, by successive halving, or none."""
    prune_after_step: int = 0
    """Step from which measurements count for the pruner."""
    metric: str = "validation/bits_per_byte"
    """Figure of the run log as EVENT/FIELD; the last one counts."""
    direction: Literal["minimize", "maximize"] = "minimize"
    """Direction in which the metric is better."""
    seed: int = 0
    """Seed of the sampler."""
    storage: str = ""
    """URL of a database, in which $NAME is an environment variable (empty = a journal in the folder)."""
    stale_seconds: float = 60.0
    """A trial without a heartbeat for so long is taken over."""

    @staticmethod
    def load(path: Path, *, search: bool = True) -> SweepRecipe:
        """Read a recipe, with `search` one of a space.

        Raises:
            UserError: a key, a setting or a range is wrong; names it.
        """
        values = read_toml(path, "recipe")
        for key in ("command", "settings"):
            if key not in values:
                raise UserError(f"{path}: {key} is missing", fix='As in command = "train", and [settings].')
        recipe = from_dict(SweepRecipe, values, where=str(path))
        try:
            recipe._check()
            if search:
                recipe._check_search()
        except UserError as error:
            raise UserError(f"{path}: {error}") from error
        return recipe

    @property
    def settings_class(self) -> type:
        """Of the command."""
        return COMMANDS[self.command]

    @cached_property
    def dimensions(self) -> dict[str, Dimension]:
        """The space."""
        known = flags(self.settings_class)
        found = {}
        for name, values in self.space.items():
            where = f"[space] {name}"
            found[name] = from_dict(Dimension, values, where=where)
            if known.get(name) is int:
                found[name] = replace(found[name], integer=True)
            found[name].check(where)
        return found

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """Settings of every trial, those of its `config` included."""
        values = dict(self.settings)
        config = values.pop("config", None)
        values = {**(read_toml(Path(str(config)), "settings file") if config else {}), **values}
        return values | ({"max_minutes": self.seconds / 60} if self.seconds > 0 else {})

    @cached_property
    def grid(self) -> list[dict[str, Value]]:
        """Every combination."""
        axes = {name: dimension.grid() for name, dimension in self.dimensions.items()}
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    @property
    def num_trials(self) -> int:
        """Of the whole sweep."""
        return len(self.grid) if self.sampler == "grid" and self.trials == -1 else self.trials

    def arguments(self, params: Mapping[str, Value], out: Path, *, where: str = "[settings]") -> list[str]:
        """The command line of a trial, without `cpplm`."""
        values = {**self.fixed, **params, "out": str(out)}
        return [*self.command.split(), *to_arguments(self.settings_class, values, where=where)]

    def compared(self) -> dict[str, Any]:
        """Values in which two recipes of one sweep agree."""
        values = {**asdict(self), "settings": self.fixed}
        return {key: value for key, value in values.items() if key not in NOT_COMPARED}

    def check_paths(self) -> None:
        """Refuse settings that contradict each other, and data that are not there."""
        params = {name: dimension.first() for name, dimension in self.dimensions.items()}
        words = self.arguments(params, Path("out"))[len(self.command.split()) :]
        program = f"cpplm {self.command}"
        check_paths(from_command_line(self.settings_class, words, program=program, description=""))

    def _check(self) -> None:
        for name in OWNED:
            if name in self.fixed or name in self.space:
                raise UserError(f"{name} is set by the sweep", fix="Leave it out.")
        if self.seconds != -1 and not 0 < self.seconds < math.inf:
            raise UserError(f"seconds = {self.seconds}", fix="Use a positive number.")
        if self.seconds > 0 and "max_minutes" in {**self.settings, **self.space}:
            raise UserError("seconds and max_minutes both set the length of a trial", fix="Give one.")
        for name in self.space:
            if name in self.settings:
                raise UserError(f"{name} is both fixed and searched", fix="Leave one of them out.")
        for name, dimension in self.dimensions.items():
            for value in dimension.choices or (dimension.first(),):
                self.arguments({name: value}, Path("out"), where="[settings] and [space]")
        if len(self.metric.split("/")) != 2:
            raise UserError(
                f"metric = {self.metric!r}", fix="Write EVENT/FIELD, as validation/bits_per_byte."
            )

    def _check_search(self) -> None:
        if not self.stale_seconds >= 4:  # a worker looks at its trial each second
            raise UserError(f"stale_seconds = {self.stale_seconds}", fix="Use a number from 4 up.")
        if self.pruner == "none" and self.prune_after_step:
            raise UserError("prune_after_step does nothing without a pruner", fix="Leave it out.")
        if not self.space:
            raise UserError(
                "nothing to search", fix="Add [space] with a setting, as depth = { choices = [2, 4] }."
            )
        if self.sampler == "grid":
            endless = [name for name, dimension in self.dimensions.items() if not dimension.grid()]
            if endless:
                raise UserError(f"[space] {endless[0]}: a grid needs choices or a step")
            if self.trials > len(self.grid):
                raise UserError(
                    f"trials = {self.trials}, and the grid has {len(self.grid)}", fix="Leave it out."
                )
        if self.num_trials < 1:
            raise UserError(f"trials = {self.trials}", fix="Use a number from 1 up.")
