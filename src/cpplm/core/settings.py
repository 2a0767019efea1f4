"""Strict settings: frozen dataclasses, from the command line, from TOML recipes, from checkpoints.

A settings class is a frozen dataclass that stands beside the code it sets; the docstring under each field is
its help text. `__post_init__` raises `UserError` for values that contradict each other.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import inspect
import io
import itertools
import json
import re
import sys
import textwrap
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar

import dacite
import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from cpplm.core.errors import UserError

T = TypeVar("T")
Precision = Literal["auto", "bf16", "fp32"]
"""Number format of matrix products, wherever a command computes."""


@dataclasses.dataclass(frozen=True)
class Argument:
    """Annotates a setting: `Annotated[str, Argument("RUN", positional=True)]`.

    Attributes:
        metavar: what stands for the value in usage and help.
        positional: the value is given without a flag, or with its flag as any other setting.
        letters: short flags.
    """

    metavar: str
    positional: bool = False
    letters: tuple[str, ...] = ()


def short_flag(*letters: str) -> Any:
    """For the annotation of a setting: `Annotated[int, short_flag("k")]` is the flag -k too."""
    return tyro.conf.arg(aliases=[f"-{letter}" for letter in letters])


def group(title: str) -> Any:
    """For the annotation of a group of settings: its title in the help, "" for none."""
    return tyro.conf.arg(name=title)


@dataclasses.dataclass(frozen=True)
class SharedFlags:
    """Flags of every command, beside its settings."""

    config: Annotated[Path | None, Argument("FILE")] = None
    """TOML file with a value per setting; flags on the command line win."""
    json: bool = False
    """Also print the figures, as one JSON object in the last line."""


def to_dict(settings: Any) -> dict[str, Any]:
    """The settings as plain JSON types, to store beside what they produced."""
    return json.loads(json.dumps(dataclasses.asdict(settings), default=str))  # paths as text


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, by names with dots: `{"engram": {"num_heads": 8}}` as `engram.num_heads`.

    Nothing else is opened, empty dictionaries included. Keys without dots give every value a name of its own.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict) and value
        flat |= flatten(value, f"{prefix}{name}.") if nested else {prefix + name: value}
    return flat


def from_dict(cls: type[T], values: dict[str, Any], *, where: str) -> T:
    """Build `cls` from plain values; `where` names their source in errors.

    Raises:
        UserError: unknown key (with the nearest known one), wrong type, or a contradiction.
    """
    _reject_coercions(cls, values, where)
    try:
        return dacite.from_dict(cls, values, dacite.Config(strict=True, cast=[tuple, Path]))
    except (dacite.DaciteError, TypeError) as error:
        raise UserError(f"{where}: {error}") from error


def _reject_coercions(cls: type, values: Any, where: str) -> None:
    """Refuse unknown keys, and the values that dacite would bend into another type without a word."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: {values!r} is not a group of settings")
    hints = _hints(cls)
    _reject_unknown(list(hints), values, where)
    for key, value in values.items():
        hint = hints[key]
        if dataclasses.is_dataclass(hint):
            _reject_coercions(typing.cast(type, hint), value, f"{where}: {key}")
        elif isinstance(value, bool) and hint is not bool:
            raise UserError(f"{where}: {key} is a number or text, not {str(value).lower()}")
        elif isinstance(value, str) and typing.get_origin(hint) is tuple:
            raise UserError(f"{where}: {key} is a list, not {value!r}", fix=f"Write [{value!r}].")


def _hints(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


class _Setting(NamedTuple):
    name: str
    hint: Any
    argument: Argument | None
    required: bool

    @property
    def metavar(self) -> str:
        if self.argument is None:
            return str(self.hint.__name__).upper()
        return self.argument.metavar + ("..." if typing.get_origin(self.hint) is tuple else "")


def _list_settings(cls: type) -> Iterator[_Setting]:
    """The settings of a class, those of nested groups in their place."""
    hints, annotated = _hints(cls), typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        if dataclasses.is_dataclass(hint):
            yield from _list_settings(typing.cast(type, hint))
        else:
            required = field.default is field.default_factory is dataclasses.MISSING
            yield _Setting(field.name, hint, _argument(annotated[field.name]), required)


def _argument(annotated: Any) -> Argument | None:
    return next(
        (extra for extra in getattr(annotated, "__metadata__", ()) if isinstance(extra, Argument)), None
    )


def flags(cls: type) -> dict[str, Any]:
    """Name and type of each setting as the command line knows them: nested groups are laid flat."""
    return {setting.name: setting.hint for setting in _list_settings(cls)}


def usage(cls: type, program: str) -> str:
    """A usage line with all required arguments: `cpplm export RUN --out FOLDER [flags]`."""
    words = [program]
    for setting in _list_settings(cls):
        if setting.argument is not None and setting.argument.positional:
            words.insert(1, setting.metavar if setting.required else f"[{setting.metavar}]")
        elif setting.required:
            words.append(f"--{setting.name} {setting.metavar}")
    return " ".join([*words, "[flags]"])


def _reject_unknown(known: list[str], keys: Iterable[str], where: str) -> None:
    for key in keys:
        if key not in known:
            nearest = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {nearest[0]!r}?" if nearest else f"Known settings: {', '.join(known)}."
            raise UserError(f"{where}: unknown setting {key!r}", fix=hint)


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The values of a TOML file; `what` names it in the `UserError` if it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the {what} {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error


def to_arguments(cls: type, values: Mapping[str, Any], *, where: str) -> list[str]:
    """Values of settings as command-line arguments; a `UserError` says what is wrong, and `where`."""
    known = flags(cls)
    _reject_unknown(list(known), values, where)
    recipe = dataclasses.make_dataclass("Recipe", [(key, known[key]) for key in values])
    from_dict(recipe, dict(values), where=where)
    arguments: list[str] = []
    for key, value in values.items():
        if isinstance(value, list):
            arguments += [f"--{key}", *map(str, value)]
        elif value is True:
            arguments.append(f"--{key}")
        elif value is not False:  # switches are off unless named
            arguments.append(f"--{key}={value}")  # in one piece, so that a value may begin with a dash
    return arguments


TYRO_CONFIG = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone)
_COMPLETION_HELP = 48  # characters; the whole script has to fit into an argument of a process
_OWN_RULE = object()
"""Marks a class that tyro's own rule shall read."""


def tyro_registry(*, completion: bool = False) -> ConstructorRegistry:
    """Build the rules by which tyro reads settings: those of `Argument`, and no hint for an empty default.

    Args:
        completion: for a shell's completion: every setting has its flag, and a short help.
    """

    def described(field: StructFieldSpec) -> StructFieldSpec:
        extras: list[Any] = []
        if field.default is None or field.default is False or field.default in ("", ()):
            extras.append(tyro.conf.arg(help_behavior_hint=""))
        if field.default is tyro.MISSING_NONPROP:  # else a required list without a flag is no such thing
            extras.append(tyro.conf.arg(help_behavior_hint="(required)"))
        argument = _argument(field.type)
        if argument is not None:
            extras.append(tyro.conf.arg(metavar=argument.metavar))
            if argument.positional and not completion:
                extras.append(tyro.conf.Positional)
        if completion:
            text = field.helptext() if callable(field.helptext) else field.helptext
            sentence = re.split(r"[.:;]\s", " ".join((text or "").split()))[0].rstrip(".")
            brief = textwrap.shorten(sentence, _COMPLETION_HELP, placeholder=" ...")
            extras.append(tyro.conf.arg(help=brief, help_behavior_hint=""))
        return dataclasses.replace(field, type=Annotated[(field.type, *extras)] if extras else field.type)  # type: ignore[arg-type]

    def rule(info: StructTypeInfo) -> StructConstructorSpec | None:
        if not dataclasses.is_dataclass(info.type) or _OWN_RULE in info.markers:
            return None
        by_tyro = dataclasses.replace(info, markers=(*info.markers, _OWN_RULE))
        spec = typing.cast(StructConstructorSpec, ConstructorRegistry.get_struct_spec(by_tyro))
        own = inspect.get_annotations(info.type)  # what a class inherits comes last
        ordered = sorted(spec.fields, key=lambda field: field.name not in own)
        return dataclasses.replace(spec, fields=tuple(map(described, ordered)))

    registry = ConstructorRegistry()
    registry.struct_rule(rule)
    return registry


def with_shared_flags(cls: type) -> type:
    """A class with the fields `settings`, of `cls`, and `shared`, of `SharedFlags`."""
    shared = dataclasses.field(default_factory=SharedFlags)
    return dataclasses.make_dataclass(
        "CommandLine",
        [
            ("settings", Annotated[cls, group("")]),
            ("shared", Annotated[SharedFlags, group("shared")], shared),
        ],
    )


class FlagParser(argparse.ArgumentParser):
    """Takes a few flags out of a command line; a wrong use of them is an error like any other."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Instead of argparse's own message and exit."""
        raise UserError(message, fix="Try 'cpplm --help'.")


def _positional_last(cls: type, recipe: list[str], arguments: list[str]) -> list[str]:
    """All arguments, the positional one behind "--"; UserError if it is given twice."""
    setting = next((each for each in _list_settings(cls) if each.argument and each.argument.positional), None)
    if setting is None or setting.argument is None:
        return [*recipe, *arguments]
    parser = FlagParser()
    names = dict.fromkeys((f"--{setting.name}", f"--{setting.name.replace('_', '-')}"))
    letters = [f"-{letter}" for letter in setting.argument.letters]
    several = typing.get_origin(setting.hint) is tuple
    parser.add_argument(*names, *letters, dest="words", nargs="*" if several else 1)
    by_flag, arguments = parser.parse_known_args(arguments)
    default, recipe = parser.parse_known_args(recipe)
    first = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments))
    if first and by_flag.words is not None:
        raise UserError(
            f"{setting.argument.metavar} is given twice: {first[0]}, and --{setting.name} {by_flag.words[0]}",
            fix="Leave one of them out.",
        )
    words = first or by_flag.words or default.words or []
    rest = arguments[len(first) :]
    return [*recipe, *rest, *(["--"] if words and "--" not in rest else []), *words]


def from_command_line(
    cls: type[T], arguments: list[str], *, program: str, description: str, recipe: Path | None = None
) -> T:
    """Parse flags into `cls`; flags win over the recipe, the recipe over the defaults.

    `--max_tokens` and `--max-tokens` are the same flag. Prints help and exits with 0 when asked to.

    Raises:
        UserError: an unknown flag (with the nearest known one), a missing one, a value of the wrong type, a
            list given twice, or a bucket URL for a setting that is a local path.
    """
    keys = [word[2:].split("=")[0].replace("-", "_") for word in arguments if re.match("--.", word)]
    _reject_unknown([*flags(cls), "help", *flags(SharedFlags)], keys, program.removeprefix("cpplm "))
    for key, hint in flags(cls).items():
        if keys.count(key) > 1 and typing.get_origin(hint) is tuple:  # the first list would be dropped
            raise UserError(f"--{key} is given twice", fix=f"Write all values behind one: --{key} A B.")
    values = read_toml(recipe, "settings file") if recipe else {}
    arguments = _positional_last(cls, to_arguments(cls, values, where=str(recipe)), arguments)
    output, error = _StdoutCapture(), io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
            settings: T = tyro.cli(
                with_shared_flags(cls),
                args=arguments,
                prog=program,
                description=description,
                use_underscores=True,
                config=TYRO_CONFIG,
                registry=tyro_registry(),
            ).settings
    except SystemExit as stop:
        if stop.code:
            complaint = re.sub(r"argument 'settings\.(?:\w+\.)*(\w+)'", r"--\1", _one_line(error.getvalue()))
            raise UserError(complaint, fix=f"Try '{program} --help'.") from None
        body = output.getvalue().partition("\n")[2]  # behind tyro's own line of usage
        sys.stdout.write(f"usage: {usage(cls, program)}\n{body}")
        raise
    _reject_urls(settings)
    return settings


class _StdoutCapture(io.StringIO):
    """Collects what tyro prints, in the colors and characters that standard output shows."""

    def __init__(self) -> None:
        super().__init__()
        self._shown_on = sys.stdout

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._shown_on.encoding

    def isatty(self) -> bool:
        return self._shown_on.isatty()


def check_paths(settings: Any) -> None:
    """Call `check_paths` of the settings and of every nested group that has such a method.

    It looks at the local paths that are read, without importing anything heavy, so that a mistyped one is
    answered before the command itself is imported.

    Raises:
        UserError: something is not there.
    """
    if hasattr(settings, "check_paths"):
        settings.check_paths()
    for value in vars(settings).values():
        if dataclasses.is_dataclass(value):
            check_paths(value)


def _reject_urls(settings: Any) -> None:
    """Refuse a bucket URL where a local path is wanted: it would become a folder named `s3:` here."""
    for name, value in vars(settings).items():
        if dataclasses.is_dataclass(value):
            _reject_urls(value)
        for path in value if isinstance(value, tuple) else (value,):
            # `Tokenizer.load` reads URLs.
            if isinstance(path, Path) and name != "tokenizer" and re.match(r"[a-z][a-z0-9]+:/", str(path)):
                raise UserError(f"--{name} {path} must be local, not in a bucket", fix="Name a local path.")


def _one_line(box: str) -> str:
    """The error that tyro prints in a box of several lines, without titles and help texts."""
    rows = [row[1:-1] for row in box.splitlines()[1:-1]]
    messages = [row.strip() for row in rows if not row.startswith(" " * 8)]  # deeper rows are help texts
    lines = itertools.takewhile(
        lambda row: not row.startswith(("Argument helptext", "For full helptext")), messages
    )
    return " ".join(row for row in lines if row.strip("\u2500-")).rstrip(". ")
