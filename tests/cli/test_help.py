"""`--help` of every command: quick, complete, with an example that is sound; commands in the docs too."""

import importlib
import json
import re
import resource
import shlex
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from cpplm.cli.commands import COMMANDS, function_of
from cpplm.cli.main import find_command
from cpplm.core.settings import FlagParser, flags, from_command_line
from tests.commands import cpplm, cpplm_process, settings_class
from tests.train.report.test_log_reader import session, steps, write_log

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "jax", "safetensors", "transformers"}
IMPORTS_AFTER_EACH = """
import io, json, sys
from cpplm.cli.main import main
answers = sys.stdout
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:], status, sys.stdout = arguments, 0, io.StringIO()
    try:
        main()
    except SystemExit as stop:
        status = stop.code or 0
    packages = sorted({name.split(".")[0] for name in sys.modules})
    print(json.dumps([status, packages, sys.stdout.getvalue()]), file=answers, flush=True)
"""


class Answer(typing.NamedTuple):
    """Exit status of a command, the packages that are imported by then, and what it prints."""

    status: int
    packages: set[str]
    stdout: str


def run_each(commands: list[list[str]], folder: Path) -> tuple[list[Answer], list[str]]:
    """Run command lines one after the other in one new process.

    Returns:
        Each one's answer; the lines on stderr.
    """
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS_AFTER_EACH, json.dumps(commands)],
        capture_output=True, text=True, check=True, cwd=folder,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return [Answer(status, set(modules), out) for status, modules, out in answers], done.stderr.splitlines()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Of `--help` alone and of each command, in one new process; "" is `cpplm --help`."""
    names = ["", *COMMANDS]
    found, errors = run_each([[*name.split(), "--help"] for name in names], tmp_path_factory.mktemp("help"))
    assert errors == []
    return dict(zip(names, found, strict=True))


@pytest.fixture(scope="module")
def helps(answers: dict[str, Answer]) -> dict[str, str]:
    """The output of `--help` of each command."""
    assert {answer.status for answer in answers.values()} == {0}
    return {command: answers[command].stdout for command in COMMANDS}


# ---- nothing heavy is imported before it is needed --------------------------------------------------------


def test_help_is_quick() -> None:
    def cpu_seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu_seconds()
    assert cpplm_process("--help").returncode == 0
    assert cpu_seconds() - before < 0.5


def test_help_imports_nothing_heavy(answers: dict[str, Answer]) -> None:
    slow = {"numpy", "tyro", "dacite", "pyarrow", "obstore", "tiktoken", "matplotlib"}
    assert not answers[""].packages & slow
    assert [name for name, answer in answers.items() if answer.status or answer.packages & HEAVY] == []


# What each command that reads a path is asked for, with one that is not there.
MISTYPED = {
    "corpus build": ["--projects", "nowhere", "--out", "out"],
    "corpus inspect": ["nowhere"],
    "corpus explain": ["nowhere", "--line", "a.cc:1"],
    "corpus check": ["nowhere"],
    "corpus export": ["nowhere", "--to", "out.jsonl"],
    "tokenizer train": ["--data_dir", "nowhere", "--out", "out.json"],
    "tokenizer evaluate": ["--tokenizer", "nowhere.json", "--data_dir", "nowhere"],
    "tokenizer show": ["--tokenizer", "nowhere.json", "--file", "nowhere.cpp"],
    "tokenizer export": ["--tokenizer", "nowhere.json", "--out", "out"],
    "train": ["--data_dir", "nowhere", "--tokenizer", "cpp-32k", "--out", "out"],
    "sft": ["nowhere.jsonl", "--init_from", "nowhere", "--out", "out"],
    "rl": ["nowhere", "--init_from", "nowhere", "--out", "out"],
    "evaluate": ["--run", "nowhere", "--data_dir", "nowhere"],
    "evaluate bpb": ["--hf_dir", "nowhere", "--data_dir", "nowhere"],
    "evaluate likelihood": ["--run", "nowhere"],
    "evaluate fim": ["--run", "nowhere"],
    "evaluate cpp": ["--run", "nowhere"],
    "evaluate tasks": ["nowhere", "--tasks", "nowhere"],
    "tasks build": ["nowhere", "--out", "out"],
    "tasks inspect": ["nowhere"],
    "tasks audit": ["nowhere"],
    "evaluate self_test": ["--problems", "nowhere.jsonl"],
    "generate": ["--run", "nowhere", "--prompt", "int"],
    "chat": ["--run", "nowhere", "--prompt", "int"],
    "export": ["--run", "nowhere", "--out", "out"],
    "serve": ["--run", "nowhere"],
    "runs page": ["nowhere"],
    "runs compare": ["nowhere", "elsewhere"],
    "runs list": ["nowhere"],
    "runs watch": ["nowhere"],
    "checkpoints list": ["nowhere"],
    "checkpoints verify": ["nowhere"],
    "checkpoints import": ["nowhere", "--tokenizer", "cpp-32k", "--out", "out"],
    "compress quantize": ["nowhere", "--out", "out"],
    "compress qat": ["nowhere", "--run", "nowhere", "--num_iterations", "1", "--out", "out"],
    "compress check": ["nowhere"],
    "compress compare": ["nowhere", "--data_dir", "nowhere", "--recipes", "int4"],
    "compress cache build": ["nowhere", "--teacher", "nowhere", "--num_tokens", "1", "--out", "out"],
    "compress cache verify": ["nowhere"],
    "compress cache stat": ["nowhere"],
    "sweep": ["--recipe", "nowhere"],
    "sweep worker": ["nowhere"],
    "sweep show": ["nowhere"],
    "sweep wandb-agent": ["id", "--recipe", "nowhere"],
    "tpu run": ["--recipe", "nowhere"],
    "tpu watch": ["nowhere"],
    "tpu status": ["nowhere"],
    "tpu logs": ["nowhere"],
    "tpu sky": ["--recipe", "nowhere"],
    "tpu stop": ["--run", "nowhere"],
}  # fmt: skip
WITHOUT_PATHS = {"completion", "doctor", "tpu bench", "tpu check", "tpu types", "tpu price", "tpu create",
                 "tpu list", "tpu ssh", "tpu delete", "tpu plan"}  # fmt: skip


def test_a_wrong_flag_or_path_is_answered_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    assert MISTYPED.keys() | WITHOUT_PATHS == COMMANDS.keys()
    commands = [[*command.split(), *arguments] for command, arguments in MISTYPED.items()]
    commands.insert(0, ["generate", "--run", "x", "--temperature", "-1"])
    answers, errors = run_each(commands, tmp_path)
    wrong = [
        shlex.join(command)
        for command, answer in zip(commands, answers, strict=True)
        if answer.status != 2 or answer.packages & HEAVY
    ]
    assert wrong == []
    assert len(errors) == len(commands)
    assert all("nowhere" in error for error in errors[1:])
    assert list(tmp_path.iterdir()) == []


def test_lists_and_pages_need_nothing_heavy(tmp_path: Path) -> None:
    runs = [str(write_log(tmp_path / name, [session(0, 0), *steps(0, 1, 4)])) for name in ("one", "two")]
    commands = [["runs", "list", str(tmp_path)], ["runs", "page", runs[0]], ["runs", "compare", *runs]]
    answers, _ = run_each([*commands, ["checkpoints", "list", runs[0]]], tmp_path)
    assert [(each.status, each.packages & {"torch", "safetensors"}) for each in answers] == [(0, set())] * 4


# ---- what help says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        *[(command, "RUN") for command in ("generate", "chat", "serve", "runs page", "checkpoints verify")],
        *[(command, "[RUN]") for command in ("evaluate fim", "evaluate likelihood", "evaluate cpp")],
        *[(f"evaluate{verb}", "[RUN] --data_dir CORPUS") for verb in ("", " bpb")],
        *[(f"corpus {verb}", "CORPUS") for verb in ("inspect", "check")],
        ("corpus build", "[PROJECT...] --out FOLDER"),
        ("corpus export", "CORPUS --to FILE"),
        ("export", "RUN --out PATH"),
        ("runs compare", "[RUN...]"),
        ("tokenizer train", "[CORPUS] --out FILE"),
        ("train", "CORPUS... --tokenizer FILE --out FOLDER"),
        ("doctor", ""),
    ],
)
def test_usage_names_what_a_command_requires(command: str, arguments: str, helps: dict[str, str]) -> None:
    usage = helps[command].splitlines()[0]
    assert usage.split() == f"usage: cpplm {command} {arguments} [flags]".split()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command: str, helps: dict[str, str]) -> None:
    """Each setting once, titles in words, no empty default, and an example that is sound."""
    out = helps[command]
    named = re.findall(r"^[│ ] (?:-\w \S+, )*--(\w+)", out, re.MULTILINE)
    settings = flags(settings_class(command))
    positional = [name for name in settings if name not in named]
    assert sorted([*named, *positional]) == sorted([*settings, "config", "json"])
    assert len(positional) == len(re.findall(r"^[│ ] [A-Z]+ ", out, re.MULTILINE))
    text = " ".join(out.replace("│", " ").split())
    assert all(re.fullmatch(r"[A-Za-z+ ]+", title) for title in re.findall(r"╭─ (.*?) ─", text))
    assert not re.search(r"\(default:\s*(''|None|False)?\)", text)
    assert "{None" not in text
    example = COMMANDS[command].example
    assert f"example:\n  cpplm {example}\n" in out
    name, arguments = find_command(shlex.split(example))
    assert name == command
    from_command_line(settings_class(name), arguments, program=f"cpplm {name}", description="")


def test_the_help_of_a_group_lists_its_commands(helps: dict[str, str]) -> None:
    result = cpplm("runs", "--help")
    assert (result.returncode, result.stderr) == (0, "")
    listed = re.findall(r"^  cpplm (.*?)  ", result.stdout, re.MULTILINE)
    assert listed == ["runs page", "runs compare", "runs list", "runs watch"]
    listed = re.findall(r"^  cpplm (evaluate \w+)  ", helps["evaluate"], re.MULTILINE)
    assert listed == [name for name in COMMANDS if name.startswith("evaluate ")]


@pytest.mark.parametrize("argument", ["-h", "--help", "help"])
def test_help_lists_every_command(argument: str) -> None:
    result = cpplm(argument)
    assert (result.returncode, result.stderr) == (0, "")
    for name, command in COMMANDS.items():
        assert re.search(rf"^  cpplm {name} +{re.escape(command.summary)}$", result.stdout, re.MULTILINE)


def test_each_command_is_one_function_of_one_settings_class() -> None:
    for name in COMMANDS:
        module_name, function_name = function_of(name).split(":")
        function = getattr(importlib.import_module(f"cpplm.{module_name}"), function_name)
        assert function.__annotations__["return"] == "Report"
        assert function.__code__.co_argcount == 1
        assert next(iter(typing.get_type_hints(function).values())) is settings_class(name)


@pytest.mark.parametrize(
    "page", ["README.md", *(f"docs/{p.name}" for p in sorted((ROOT / "docs").glob("*.md")))]
)
def test_commands_of_the_docs_are_sound(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda path: True)  # the folders of the examples are not here
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    for line in re.findall(r"^ *cpplm ([a-z].*)$", blocks, re.MULTILINE):
        words = shlex.split(re.split(r" [>|&] ?", line)[0], comments=True)
        name, arguments = find_command(words)
        shared = FlagParser()
        shared.add_argument("--json", action="store_true")
        shared.add_argument("--config", type=lambda recipe: ROOT / recipe)
        given, arguments = shared.parse_known_args(arguments)
        from_command_line(settings_class(name), arguments, program=line, description="", recipe=given.config)
