"""Strict settings: frozen dataclasses, from the command line, from TOML recipes, from checkpoints.

A settings class is a frozen dataclass that stands beside the code it sets; the docstring under each field is
its help text. `__post_init__` raises `UserError` for values that contradict each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import itertools
import re
import tomllib
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

import dacite
import tyro

from cpplm.core.errors import UserError

T = TypeVar("T")
SHARED_FLAGS = ("config", "json")
"""What every command takes beside its settings, see `cpplm.cli.main`."""
Precision = Literal["auto", "bf16", "fp32"]
"""Of matrix products, wherever a command computes."""


def short(*letters: str) -> Any:
    """For the annotation of a setting: `Annotated[int, short("k")]` is the flag -k too."""
    return tyro.conf.arg(aliases=[f"-{letter}" for letter in letters])


def to_dict(settings: Any) -> dict[str, Any]:
    """The settings as plain JSON types, to store beside what they produced."""
    values: dict[str, Any] = _plain(dataclasses.asdict(settings))
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value


def from_dict(cls: type[T], values: dict[str, Any], *, where: str) -> T:
    """Build `cls` from plain values; `where` names their source in errors.

    Raises:
        UserError: unknown key (with the nearest known one), wrong type, or a contradiction.
    """
    _refuse_bent(cls, values, where)
    try:
        return dacite.from_dict(cls, values, dacite.Config(strict=True, cast=[tuple, Path]))
    except (dacite.DaciteError, TypeError) as error:
        raise UserError(f"{where}: {error}") from error


def _refuse_bent(cls: type, values: Any, where: str) -> None:
    """Refuse unknown keys, and the values that dacite would bend into another type without a word."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: {values!r} is not a group of settings")
    hints = _hints(cls)
    _refuse_unknown(list(hints), values, where)
    for key, value in values.items():
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            _refuse_bent(typing.cast(type, hint), value, f"{where}: {key}")
        elif isinstance(value, bool) and hint is not bool:
            raise UserError(f"{where}: {key} is a number or text, not {str(value).lower()}")
        elif isinstance(value, str) and typing.get_origin(hint) is tuple:
            raise UserError(f"{where}: {key} is a list, not {value!r}", fix=f"Write [{value!r}].")


def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def flags(cls: type) -> dict[str, Any]:
    """Name and type of each setting as the command line knows them: nested groups are laid flat."""
    flat: dict[str, Any] = {}
    for name, hint in _hints(cls).items():
        flat |= flags(hint) if dataclasses.is_dataclass(hint) else {name: hint}  # type: ignore[arg-type]
    return flat


def _refuse_unknown(known: list[str], given: Iterable[str], where: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known settings: {', '.join(known)}."
            raise UserError(f"{where}: unknown setting {key!r}", fix=hint)


def recipe_arguments(cls: type, path: Path) -> list[str]:
    """Read a recipe, a TOML file with one value per setting, as command-line arguments.

    Raises:
        UserError: no such file, not TOML, a key that is no setting of `cls`, or a value of the wrong type.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the settings file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    known = flags(cls)
    _refuse_unknown(list(known), values, str(path))
    recipe = dataclasses.make_dataclass("Recipe", [(key, known[key]) for key in values])
    from_dict(recipe, values, where=str(path))
    arguments: list[str] = []
    for key, value in values.items():
        if isinstance(value, list):
            arguments += [f"--{key}", *map(str, value)]
        elif value is True:
            arguments.append(f"--{key}")
        elif value is not False:  # switches are off unless named
            arguments.append(f"--{key}={value}")  # in one piece, so that a value may begin with a dash
    return arguments


def from_command_line(
    cls: type[T], arguments: list[str], *, program: str, description: str, recipe: Path | None = None
) -> T:
    """Parse flags into `cls`; flags win over the recipe, the recipe over the defaults.

    `--max_tokens` and `--max-tokens` are the same flag. Prints help and exits with 0 when asked to.

    Raises:
        UserError: an unknown flag (with the nearest known one), a missing one, a value of the wrong type, or
            a bucket URL for a setting that is a local path.
    """
    wanted = [argument for argument in arguments if argument.startswith("--") and argument != "--"]
    given = [argument[2:].split("=")[0].replace("-", "_") for argument in wanted]
    _refuse_unknown([*flags(cls), "help", *SHARED_FLAGS], given, program.removeprefix("cpplm "))
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            settings = tyro.cli(
                cls,
                args=[*(recipe_arguments(cls, recipe) if recipe else []), *arguments],
                prog=program,
                description=description,
                use_underscores=True,
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_on_one_line(complaint.getvalue()), fix=f"Try '{program} --help'.") from None
    _refuse_urls(settings)
    return settings


def _refuse_urls(settings: Any) -> None:
    """Refuse a bucket URL where a local path is wanted: it would become a folder named `s3:` here."""
    for name, value in vars(settings).items():
        if dataclasses.is_dataclass(value):
            _refuse_urls(value)
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path) and re.match(r"[a-z][a-z0-9]+:/", str(path)):
                raise UserError(f"--{name} {path} must be local, not in a bucket", fix="Name a local path.")


def _on_one_line(box: str) -> str:
    """What tyro says in a box of several lines, without titles and help texts."""
    rows = [row[1:-1] for row in box.splitlines()[1:-1]]
    said = [row.strip() for row in rows if not row.startswith(" " * 8)]  # deeper rows are help texts
    shown = itertools.takewhile(
        lambda row: not row.startswith(("Argument helptext", "For full helptext")), said
    )
    return " ".join(row for row in shown if row.strip("\u2500-")).rstrip(". ")
