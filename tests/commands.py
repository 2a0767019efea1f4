"""The commands as the tests see them: their settings classes, and how to run one as a user would."""

import contextlib
import dataclasses
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

from cpplm.cli.commands import COMMANDS
from cpplm.cli.main import main

# Values without which a class refuses to be built; every other required field gets a value by its type.
NEEDED: dict[str, dict[str, Any]] = {
    "CompletionSettings": {"shell": "bash"},
    "CorpusSettings": {"projects": (Path("a"), Path("b c"))},
    "EvaluatedModel": {"run": "some/run"},
    "ExportSettings": {"to": "some.jsonl"},
    "CompareSettings": {"recipes": ("int4",)},
    "PlanSettings": {"hours": 48.0},
    "QatSettings": {"num_iterations": 3},
    "StopSettings": {"name": "some-machine"},
    "TaskBuildSettings": {"data_dir": "some/corpus"},
    "TokenizerSettings": {"data_dir": "some/corpus"},
    "TokenizerBenchmarkSettings": {"data_dir": "some/corpus"},
}
BY_TYPE: dict[Any, Any] = {
    str: "some text", Path: Path("some/path"), int: 3, tuple[str, ...]: ("some text", "more text"),
    tuple[Path, ...]: (Path("some/path"),),
}  # fmt: skip


def settings_class(command: str) -> type:
    """The settings class of a command."""
    module_name, name = COMMANDS[command].settings.split(":")
    return getattr(importlib.import_module(f"cpplm.{module_name}"), name)


def all_settings_classes() -> list[type]:
    """Every settings class that a command reaches, nested ones and bases included, each once."""
    found: dict[str, type] = {}

    def add(cls: type) -> None:
        found[f"{cls.__module__}.{cls.__qualname__}"] = cls
        for hint in typing.get_type_hints(cls).values():
            if dataclasses.is_dataclass(hint):
                add(hint)
        for base in filter(dataclasses.is_dataclass, cls.__bases__):
            add(base)

    for command in COMMANDS:
        add(settings_class(command))
    return list(found.values())


def example(cls: type) -> Any:
    """An instance in which only what is required is given."""
    hints = typing.get_type_hints(cls)
    values = dict(NEEDED.get(cls.__name__, {}))
    for field in dataclasses.fields(cls):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            hint = hints[field.name]
            values[field.name] = example(hint) if dataclasses.is_dataclass(hint) else BY_TYPE[hint]
    return cls(**values)


def cpplm(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process: seconds faster, as torch is there already."""
    before = sys.argv, sys.stdin, signal.getsignal(signal.SIGTERM)
    out, err, status = io.StringIO(), io.StringIO(), 0
    sys.argv, sys.stdin = ["cpplm", *map(str, arguments)], io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    finally:
        sys.argv, sys.stdin = before[:2]
        signal.signal(signal.SIGTERM, before[2])
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def reported(*arguments: object) -> tuple[str, dict[str, Any]]:
    """Run a command with --json, in which nothing goes wrong: the text that it prints, and its figures."""
    result = cpplm(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    text, _, figures = result.stdout.removesuffix("\n").rpartition("\n")
    return text, json.loads(figures)


def cpplm_process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own; options as `subprocess.run` takes them."""
    return subprocess.run(
        [sys.executable, "-m", "cpplm.cli.main", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **{"stdin": subprocess.DEVNULL, "timeout": 300, **options},
    )


def start_cpplm(*arguments: object, ranks: int = 1, **options: Any) -> subprocess.Popen[str]:
    """Begin the command line in a process of its own, or under torchrun in several; a group for signals."""
    program = ["-m", "cpplm.cli.main"]
    if ranks > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
        program = [*torchrun, *program, "--"]  # else --run is torchrun's, too
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
        **options,
    )


def assert_one_line_error(result: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit status 2, nothing on stdout, one line on stderr that holds all `parts`."""
    assert result.returncode == 2, (result.returncode, result.stderr)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("cpplm: ")
    for part in parts:
        assert part in result.stderr
