"""`cpplm GROUP [VERB] ...`: find the command, parse its settings, call it, print its report.

Only the module of the command that was asked for is imported, so `cpplm --help` is quick however heavy the
rest is. A command is a function with one parameter, annotated with its settings class; it returns a
`Report`. Exit status: 0 success, 2 bad input or settings, 1 anything else, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import json
import os
import signal
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from cpplm import __version__
from cpplm.cli.report import Report
from cpplm.core.errors import UserError

COMMANDS: dict[str, tuple[str, str]] = {
    "corpus build": (
        "cpplm.cli.corpus:build",
        "C++ projects to ordered training documents in parquet shards",
    ),
    "corpus inspect": ("cpplm.cli.corpus:inspect", "show documents of a corpus and its figures"),
    "corpus check": ("cpplm.cli.corpus:check", "compile a sample of the documents, in the sandbox"),
    "corpus export": (
        "cpplm.cli.corpus:export",
        "documents or docstring pairs as JSON lines",
    ),
    "tokenizer train": ("cpplm.cli.tokenizer:train", "train a lossless C++ tokenizer on a corpus"),
    "tokenizer evaluate": (
        "cpplm.cli.tokenizer:evaluate",
        "bytes per token and encoding speed on held-out code",
    ),
    "tokenizer show": ("cpplm.cli.tokenizer:show", "where tokens begin and end, in colours"),
    "tokenizer export": ("cpplm.cli.tokenizer:export", "a tokenizer for Hugging Face's libraries"),
    "train": ("cpplm.cli.train:train", "pre-train a model"),
    "evaluate": ("cpplm.cli.evaluate:everything", "bits per byte, likelihood, then the C++ problems"),
    "evaluate bpb": ("cpplm.cli.evaluate:bpb", "bits per byte of held-out code, by project and context"),
    "evaluate likelihood": (
        "cpplm.cli.evaluate:likelihood",
        "how likely right solutions of the C++ problems are, also against buggy ones",
    ),
    "evaluate fim": ("cpplm.cli.evaluate_fim:fim", "holes in code filled: exact, compiling, passing"),
    "evaluate cpp": ("cpplm.cli.evaluate:cpp", "C++ problems: compile rate and pass rate, in the sandbox"),
    "evaluate self_test": (
        "cpplm.cli.evaluate:self_test",
        "the harness itself: right solutions must pass, buggy ones fail",
    ),
    "generate": ("cpplm.cli.generate:generate", "complete a prompt, or fill in between two texts"),
    "chat": ("cpplm.cli.chat:chat", "talk with a model, which may use tools"),
    "export": ("cpplm.cli.export:export", "a model for Hugging Face's transformers"),
    "serve": ("cpplm.cli.serve:serve", "a server for editors, OpenAI's clients and the web page"),
    "runs page": ("cpplm.cli.runs:page", "one self-contained HTML page about a run"),
    "runs compare": ("cpplm.cli.runs:compare", "runs side by side: figures, settings, curves"),
    "runs list": ("cpplm.cli.runs:list_runs", "a table of the runs below a folder"),
    "checkpoints list": ("cpplm.cli.checkpoints:list_checkpoints", "the checkpoints of a run"),
    "checkpoints verify": (
        "cpplm.cli.checkpoints:verify",
        "compare every file of the checkpoints with its hash",
    ),
    "checkpoints import": ("cpplm.cli.checkpoints:import_checkpoint", "a model trained by nanochat"),
    "tpu check": (
        "cpplm.cli.tpu:check",
        "compile the training step for TPUs that are not here: does it fit?",
    ),
    "tpu bench": ("cpplm.cli.tpu:bench", "tokens per second of the training step on the devices here"),
    "doctor": (
        "cpplm.cli.doctor:doctor",
        "what was found on this machine, what is missing and how to mend it",
    ),
}

# What the system refuses because of the user's disk, permissions or paths, wherever it happens.
MENDABLE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR,
            errno.EISDIR, errno.ENAMETOOLONG}  # fmt: skip

# Packages that come with an extra, by the name under which they are imported.
EXTRAS = {
    "fastapi": "[serve]",
    "jax": "[tpu]",
    "prometheus_client": "[serve]",
    "tree_sitter": "[corpus]",
    "tree_sitter_c": "[corpus]",
    "tree_sitter_cpp": "[corpus]",
    "uvicorn": "[serve]",
}


def usage() -> str:
    """The list of commands, for `cpplm --help`."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  cpplm {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    return (
        f"cpplm {__version__}: from C++ projects to C++ code models\n\n{rows}\n\n"
        "`cpplm COMMAND --help` lists the settings of a command. Every command also takes\n"
        "  --config FILE.toml  settings from a recipe; flags on the command line win\n"
        "  --json              one JSON object as the last line of stdout\n"
    )


def find_command(arguments: list[str]) -> tuple[str, list[str]]:
    """Split arguments into the longest matching command name and the rest.

    Raises:
        UserError: no command of that name.
    """
    for length in (2, 1):
        name = " ".join(arguments[:length])
        if len(arguments) >= length and name in COMMANDS:
            return name, arguments[length:]
    verbs = [name for name in COMMANDS if name.split()[0] == arguments[0]]
    known = ", ".join(verbs or COMMANDS)
    raise UserError(
        f"no command 'cpplm {' '.join(arguments[:2])}'", fix=f"Known: {known}. Try 'cpplm --help'."
    )


class _SharedFlags(argparse.ArgumentParser):
    """The flags that every command takes; a wrong use of them is an error like any other."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.add_argument("--json", action="store_true")
        self.add_argument("--config", type=Path)

    def error(self, message: str) -> NoReturn:
        """Instead of argparse's own message and exit."""
        raise UserError(message, fix="Try 'cpplm --help'.")


def run(arguments: list[str]) -> None:
    """Run one command and print what it reports.

    Raises:
        UserError: no such command, or anything that the command finds wrong.
    """
    from cpplm.core import settings as settings_module  # noqa: PLC0415  (keeps `cpplm --help` free of tyro)

    name, rest = find_command(arguments)
    common, rest = _SharedFlags().parse_known_args(rest)
    target, summary = COMMANDS[name]
    module_name, function_name = target.split(":")
    try:
        command: Callable[[Any], Report] = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("cpplm"):
            raise
        extra = EXTRAS.get(error.name, "")
        raise UserError(
            f"'cpplm {name}' needs the package {error.name}, which is not installed",
            fix=f"pip install 'cpplm{extra}'",
        ) from error
    settings_class = next(iter(typing.get_type_hints(command).values()))
    settings = settings_module.from_command_line(
        settings_class,
        rest,
        program=f"cpplm {name}",
        description=f"{summary}. Also: --config FILE.toml, --json.",
        recipe=common.config,
    )
    report = command(settings)
    if report.text:
        print(report.text)
    if common.json:
        print(json.dumps(report.figures, sort_keys=True))


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
        print("cpplm: interrupted; the same command continues from here", file=sys.stderr)
        raise SystemExit(130) from None
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
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
    elif arguments[0] == "--version":
        print(__version__)
    else:
        run(arguments)


def _drop_stdout() -> None:
    """What is still buffered goes nowhere: Python would try to write it once more at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # no real file, or closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
