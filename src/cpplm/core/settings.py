"""Strict settings: frozen dataclasses, from the command line, from TOML recipes, from checkpoints.

A settings class is a frozen dataclass that stands beside the code it sets; the docstring under each field is
its help text. `__post_init__` raises `UserError` for values that contradict each other.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from pathlib import Path
from typing import Any, TypeVar

import dacite
import tyro

from cpplm.core.errors import UserError

T = TypeVar("T")


def to_dict(settings: Any) -> dict[str, Any]:
    """The settings as plain JSON types, to store beside what they produced."""
    return {name: _plain(value) for name, value in dataclasses.asdict(settings).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def from_dict(cls: type[T], values: dict[str, Any], *, where: str) -> T:
    """Build `cls` from plain values; `where` names their source in errors.

    Raises:
        UserError: unknown key (with the nearest known one), wrong type, or a contradiction.
    """
    _refuse_unknown(cls, values, where)
    try:
        return dacite.from_dict(cls, values, dacite.Config(strict=True, cast=[tuple, Path]))
    except dacite.DaciteError as error:
        raise UserError(f"{where}: {error}") from error


def field_names(cls: type) -> list[str]:
    """Names of all settings, those of nested settings classes in the place of their group."""
    hints = typing.get_type_hints(cls)
    names: list[str] = []
    for field in dataclasses.fields(cls):
        nested = hints[field.name]
        is_group = isinstance(nested, type) and dataclasses.is_dataclass(nested)
        names += field_names(nested) if is_group else [field.name]
    return names


def _refuse_unknown(cls: type, values: dict[str, Any], where: str) -> None:
    known = field_names(cls)
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known settings: {', '.join(known)}."
            raise UserError(f"{where}: unknown setting {key!r}", fix=hint)


def recipe_arguments(cls: type, path: Path) -> list[str]:
    """Read a recipe, a TOML file with one value per setting, as command-line arguments.

    Raises:
        UserError: no such file, not TOML, or a key that is no setting of `cls`.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the settings file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    _refuse_unknown(cls, values, str(path))
    arguments = []
    for key, value in values.items():
        if value is False:
            continue  # switches are off unless named
        items = value if isinstance(value, list) else [] if value is True else [value]
        arguments += [f"--{key}", *map(str, items)]
    return arguments


def from_command_line(
    cls: type[T], arguments: list[str], *, program: str, description: str, recipe: Path | None = None
) -> T:
    """Parse flags into `cls`; flags win over the recipe, the recipe over the defaults.

    `--max_tokens` and `--max-tokens` are the same flag. Prints help or a usage error and exits (0 or 2).
    """
    return tyro.cli(
        cls,
        args=[*(recipe_arguments(cls, recipe) if recipe else []), *arguments],
        prog=program,
        description=description,
        use_underscores=True,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
    )
