"""`cpplm GROUP [VERB] ...`: find the command, parse its settings, call it, print its report.

Only the settings of the command that was asked for are imported, and the command itself once they are
sound, so help and wrong flags are answered at once, however heavy the rest is. A command is a function with
one parameter, annotated with its settings class; it returns a `Report`. Exit status: 0 success, 2 bad input
or settings, 1 anything else, 130 interrupted (75 as an attempt at a managed run).
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import io
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cpplm import __version__
from cpplm.cli.commands import COMMANDS, function_of
from cpplm.cli.report import Report
from cpplm.core.errors import UserError

# What the system refuses because of the user's disk, permissions or paths, wherever it happens.
MENDABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR,
            errno.EISDIR, errno.ENAMETOOLONG}  # fmt: skip

# Packages that come with an extra, by the name under which they are imported.
EXTRAS = {
    "fastapi": "[serve]",
    "jax": "[tpu]",
    "optuna": "[sweep]",
    "prometheus_client": "[serve]",
    "uvicorn": "[serve]",
}


_HELP = ("-h", "--help")


def usage(group: str = "") -> str:
    """The list of commands, or of those of one group, for `--help`."""
    return (
        f"usage: cpplm {group or 'COMMAND'} ...\n\n"
        f"cpplm {__version__}: from C++ projects to C++ code models\n\n"
        f"{_summaries(_names(group) if group else list(COMMANDS))}\n\n"
        "`cpplm COMMAND --help` lists the settings of a command.\n"
    )


def _summaries(names: list[str]) -> str:
    width = max(map(len, names))
    return "\n".join(f"  cpplm {name:<{width}}  {COMMANDS[name].summary}" for name in names)


def find_command(arguments: list[str]) -> tuple[str, list[str]]:
    """Split arguments, at least one, into the longest matching command name and the rest.

    Raises:
        UserError: no command of that name (with the nearest one).
    """
    words = list(itertools.takewhile(lambda word: not word.startswith("-"), arguments[:3]))
    for length in range(len(words), 0, -1):
        name = " ".join(words[:length])
        if name in COMMANDS:
            argument = "".join(words[length : length + 1])  # a path, or of a group a verb that there is not
            may_be_a_path = "/" in argument or Path(argument).exists()
            if argument and _names(name) != [name] and not may_be_a_path:
                break
            return name, arguments[length:]
    words = words[: 3 if _names(" ".join(words[:2])) else 2] or arguments[:1]
    nor_path = f", and no file or folder '{words[1]}'" if words[0] in COMMANDS else ""
    raise UserError(f"no command 'cpplm {' '.join(words)}'{nor_path}", fix=_nearest(*words))


def _names(group: str) -> list[str]:
    """The commands that begin with these words."""
    return [name for name in COMMANDS if f"{name} ".startswith(f"{group} ")]


def _nearest(first: str, *second: str) -> str:
    """The command that was meant, or those that may have been."""
    if below := _names(" ".join((first, *second))):
        return f"Known: {', '.join(below)}. Try 'cpplm --help'."
    groups = {name.split()[0] for name in COMMANDS}
    group = next(iter(difflib.get_close_matches(first, groups, n=1)), "")
    names = _names(group)
    verbs = difflib.get_close_matches(" ".join(second), [name.partition(" ")[2] for name in names], n=1)
    name_guess = " ".join([group, *(verbs if second else ())])
    if name_guess in COMMANDS and (verbs or group != first):
        return f"Did you mean 'cpplm {name_guess}'?"
    return f"Known: {', '.join(names or COMMANDS)}. Try 'cpplm --help'."


def run(arguments: list[str]) -> None:
    """Run one command and print what it reports.

    Raises:
        UserError: no such command, or anything that the command finds wrong.
    """
    name, rest = find_command(arguments)
    from cpplm.core import shutdown  # noqa: PLC0415  (keeps `cpplm --help` free of psutil)

    watched = shutdown.watch_signals("before a step was made; nothing had to be saved")
    with watched if COMMANDS[name].stops_at_once else contextlib.nullcontext():
        from cpplm.core import settings as settings_module  # noqa: PLC0415  (keeps it free of tyro)

        shared = settings_module.FlagParser()
        shared.add_argument("--json", action="store_true")
        shared.add_argument("--config", type=Path)
        shared_flags, rest = shared.parse_known_args(rest)
        settings = settings_module.from_command_line(
            _imported(name, COMMANDS[name].settings),
            rest,
            program=f"cpplm {name}",
            description=_description(name),
            recipe=shared_flags.config,
        )
        settings_module.check_paths(settings)
        command: Callable[[Any], Report] = _imported(name, function_of(name))
        report = command(settings)
        if report.text:
            print(report.text)
        if shared_flags.json:
            print(json.dumps(report.figures, sort_keys=True))
        if report.status:
            raise SystemExit(report.status)


def _description(name: str) -> str:
    """The help of a command: summary, example, and the commands that begin with its name."""
    command = COMMANDS[name]
    verbs = [each for each in _names(name) if each != name]
    more = f"\n\nalso:\n{_summaries(verbs)}" if verbs else ""
    return f"{command.summary}\n\nexample:\n  cpplm {command.example}{more}"


def _imported(name: str, target: str) -> Any:
    """Import the function or class that a command's entry in the table names.

    Raises:
        UserError: a package that comes with an extra is not installed.
    """
    module_name, attribute = target.split(":")
    try:
        return getattr(importlib.import_module(f"cpplm.{module_name}"), attribute)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("cpplm"):
            raise
        raise UserError(
            f"'cpplm {name}' needs the package {error.name}, which is not installed",
            fix=f"pip install 'cpplm{EXTRAS.get(error.name, '')}'",
        ) from error


def main() -> None:
    """Entry point of the `cpplm` command."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both are "stop now, keep what is committed"
    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show is no reason to fail
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            dispatch(sys.argv[1:])
        finally:
            print(end="", flush=True)  # now, where a failure to write is still ours to report
    except UserError as error:
        print(f"cpplm: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        goes_on = "; the same command continues from here" if _resumes(sys.argv[1:]) else ""
        print(f"cpplm: interrupted{goes_on}", file=sys.stderr)
        from cpplm.core.shutdown import interrupted_status  # noqa: PLC0415  (keeps `cpplm --help` free of psutil)

        raise SystemExit(interrupted_status()) from None
    except BrokenPipeError:  # whoever read our output has enough
        _drop_stdout()
        raise SystemExit(1) from None
    except OSError as error:
        if error.errno not in MENDABLE:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"cpplm: {error.strerror}{where}. Mend that and run the same command again.", file=sys.stderr)
        _drop_stdout()
        raise SystemExit(2) from None


def dispatch(arguments: list[str]) -> None:
    """Print the general help or the version, or run the command."""
    if not arguments:
        print(usage(), file=sys.stderr)
        raise SystemExit(2)
    if arguments[0] in (*_HELP, "help"):
        print(usage())
    elif (group := " ".join(arguments[:-1])) not in COMMANDS and _names(group) and arguments[-1] in _HELP:
        print(usage(group))
    elif arguments[0] == "--version":
        print(__version__)
    else:
        run(arguments)


def _resumes(arguments: list[str]) -> bool:
    with contextlib.suppress(UserError):
        return bool(arguments) and COMMANDS[find_command(arguments)[0]].resumes
    return False


def _drop_stdout() -> None:
    """Discard what is still buffered: Python would try to write it once more at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no real file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
