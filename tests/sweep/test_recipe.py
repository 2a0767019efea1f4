"""Recipes: what a space gives, and what is refused before anything is written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cpplm.core.settings import from_command_line
from cpplm.sweep.recipe import SweepRecipe
from tests.commands import assert_one_line_error, cpplm

WriteRecipe = Callable[..., Path]


@pytest.mark.parametrize(
    ("keys", "space", "parts"),
    [
        ("", "matrx_lr = { low = 0.1, high = 1.0 }", ["'matrx_lr'", "Did you mean 'matrix_lr'"]),
        ("", "matrix_lr = { low = 1.0, high = 0.1 }", ["low 1.0 is not below high 0.1"]),
        ("", "matrix_lr = { low = 0.0, high = 0.1, log = true }", ["positive numbers"]),
        ("", "matrix_lr = { low = 0.1, higher = 0.2 }", ["'higher'", "Did you mean 'high'"]),
        ("", "matrix_lr = 3", ["[space] matrix_lr"]),
        ("", "matrix_lr = {}", ["neither choices nor a range"]),
        ("", "depth = { low = 1.5, high = 3 }", ["whole numbers"]),
        ("", 'depth = { choices = ["two"] }', ['"depth"']),
        ("", "window_pattern = { low = 1, high = 2 }", ['"window_pattern"']),
        ("", "out = { choices = ['a', 'b'] }", ["out is set by the sweep"]),
        ("", "num_iterations = { choices = [1, 2] }", ["both fixed and searched"]),
        ("", "max_minutes = { choices = [1, 2] }", ["--num_iterations and --max_minutes"]),
        ("seconds = 3", "depth = { choices = [1, 2] }", ["--num_iterations and --max_minutes"]),
        ("", "", ["nothing to search"]),
        ("seconds = -3", "depth = { choices = [1, 2] }", ["seconds = -3"]),
        ("stale_seconds = 1", "depth = { choices = [1, 2] }", ["stale_seconds = 1"]),
        ("metric = 'loss'", "depth = { choices = [1, 2] }", ["EVENT/FIELD"]),
        ("pruner = 'none'\nprune_after_step = 3", "depth = { choices = [1, 2] }", ["without a pruner"]),
        ("smapler = 'tpe'", "depth = { choices = [1, 2] }", ["Did you mean 'sampler'"]),
    ],
)
def test_refusals(keys: str, space: str, parts: list[str], write_recipe: WriteRecipe, tmp_path: Path) -> None:
    path = write_recipe(keys, space)
    result = cpplm("sweep", "--recipe", path, "--out", tmp_path / "out")
    assert_one_line_error(result, *parts)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"trials = 6": "trials = 0"}, "trials = 0"),
        ({"trials = 6": ""}, "trials = -1"),
        ({'sampler = "random"': 'sampler = "grid"'}, "matrix_lr: a grid needs choices or a step"),
        ({'command = "train"': ""}, "command is missing"),
        ({'command = "train"': 'command = "rl"'}, "command"),
        ({"num_iterations = 4": "num_iteration = 4"}, "Did you mean 'num_iterations'"),
        ({"[space]": "[space"}, "not valid TOML"),
    ],
)
def test_refusals_of_other_keys(
    changes: dict[str, str], part: str, write_recipe: WriteRecipe, tmp_path: Path
) -> None:
    path = write_recipe(**changes)
    assert_one_line_error(cpplm("sweep", "--recipe", path, "--out", tmp_path / "out"), part, str(path))
    assert list(tmp_path.iterdir()) == [path]


def test_a_grid_is_every_combination_once(write_recipe: WriteRecipe) -> None:
    space = "matrix_lr = { low = 0.1, high = 0.3, step = 0.1 }\ndepth = { low = 2, high = 3 }"
    recipe = SweepRecipe.load(write_recipe(space=space, **{"trials = 6": "", '"random"': '"grid"'}))
    assert recipe.num_trials == 6
    assert [tuple(values.values()) for values in recipe.grid] == [
        (rate, depth) for rate in (0.1, 0.2, 0.3) for depth in (2, 3)
    ]


def test_the_command_line_of_a_trial(write_recipe: WriteRecipe, tmp_path: Path) -> None:
    """Settings win over those of `config`, values of the space over nothing: they are refused there."""
    config = tmp_path / "config.toml"
    config.write_text("num_iterations = 9\nfim_rate = 0.5\n")
    recipe = SweepRecipe.load(write_recipe(**{"num_iterations": f'config = "{config}"\nnum_iterations'}))
    words = recipe.arguments({"matrix_lr": 0.25, "depth": 4}, Path("somewhere"))
    assert words[0] == "train"
    settings = from_command_line(recipe.settings_class, words[1:], program="cpplm train", description="")
    assert (settings.num_iterations, settings.fim.fim_rate, settings.depth) == (4, 0.5, 4)
    assert (settings.rates.matrix_lr, settings.out) == (0.25, Path("somewhere"))


def test_the_recipe_of_the_repository_is_sound() -> None:
    recipe = SweepRecipe.load(Path(__file__).parents[2] / "recipes" / "sweep.toml")
    assert recipe.num_trials == 24
    recipe.arguments({name: each.first() for name, each in recipe.dimensions.items()}, Path("out"))
