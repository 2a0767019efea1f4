import errno
import importlib
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Callable
from pathlib import Path

import pytest

from cpplm import __version__
from cpplm.cli import main as main_module
from cpplm.cli.commands import COMMANDS
from cpplm.cli.main import find_command, main
from cpplm.core.errors import UserError
from cpplm.core.settings import FlagParser, flags, from_command_line
from tests.commands import assert_one_line_error, cpplm, cpplm_process, settings_class
from tests.train.report.test_log_reader import session, steps, write_log

CommandLine = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-m", "cpplm.cli.main"]


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Call `main` in this process: (arguments) -> (exit status, stdout, stderr)."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cpplm", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        out, err = capsys.readouterr()
        return status, out, err

    return call


# ---- help -------------------------------------------------------------------------------------------------


def test_help_is_quick() -> None:
    def cpu_seconds() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu_seconds()
    result = cpplm_process("--help")
    assert result.returncode == 0
    assert cpu_seconds() - before < 0.5


def modules_after(*arguments: str) -> set[str]:
    """Packages that a command line has imported when it ends."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('|'.join({name.split('.')[0] for name in sys.modules})))\n"
        "from cpplm.cli.main import main\nmain()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    modules = set(result.stdout.splitlines()[-1].split("|"))
    assert "cpplm" in modules
    return modules


def test_help_imports_nothing_heavy() -> None:
    modules = modules_after("--help")
    assert not modules & {"torch", "numpy", "tyro", "dacite", "pyarrow", "obstore", "tiktoken", "matplotlib"}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_the_help_of_a_command_imports_no_machine_learning(command: str) -> None:
    assert not modules_after(*command.split(), "--help") & {"torch", "jax", "safetensors", "transformers"}


def test_neither_does_a_wrong_flag() -> None:
    assert not modules_after("generate", "--run", "x", "--temperature", "-1") & {"torch", "safetensors"}


# What each command that reads a path is asked for, with one that is not there.
MISTYPED = {
    "corpus build": ["--projects", "nowhere", "--out", "out"],
    "corpus inspect": ["nowhere"],
    "corpus check": ["nowhere"],
    "corpus export": ["nowhere", "--to", "out.jsonl"],
    "tokenizer train": ["--data_dir", "nowhere", "--out", "out.json"],
    "tokenizer evaluate": ["--tokenizer", "nowhere.json", "--data_dir", "nowhere"],
    "tokenizer show": ["--tokenizer", "nowhere.json", "--file", "nowhere.cpp"],
    "tokenizer export": ["--tokenizer", "nowhere.json", "--out", "out"],
    "train": ["--data_dir", "nowhere", "--tokenizer", "cpp-32k", "--out", "out"],
    "evaluate": ["--run", "nowhere", "--data_dir", "nowhere"],
    "evaluate bpb": ["--hf_dir", "nowhere", "--data_dir", "nowhere"],
    "evaluate likelihood": ["--run", "nowhere"],
    "evaluate fim": ["--run", "nowhere"],
    "evaluate cpp": ["--run", "nowhere"],
    "evaluate self_test": ["--problems", "nowhere.jsonl"],
    "generate": ["--run", "nowhere", "--prompt", "int"],
    "chat": ["--run", "nowhere", "--prompt", "int"],
    "export": ["--run", "nowhere", "--out", "out"],
    "serve": ["--run", "nowhere"],
    "runs page": ["nowhere"],
    "runs compare": ["nowhere", "elsewhere"],
    "runs list": ["nowhere"],
    "checkpoints list": ["nowhere"],
    "checkpoints verify": ["nowhere"],
    "checkpoints import": ["nowhere", "--tokenizer", "cpp-32k", "--out", "out"],
}  # fmt: skip
WITHOUT_PATHS = {"completion", "doctor", "tpu bench", "tpu check"}
ONE_BY_ONE = """
import json, sys
from cpplm.cli.main import main
for command, arguments in json.loads(sys.argv[1]).items():
    sys.argv[1:] = [*command.split(), *arguments]
    try:
        main()
    except SystemExit as stop:
        heavy = {"torch", "jax", "safetensors", "transformers"} & sys.modules.keys()
        print(command, stop.code, *sorted(heavy), sep="|", flush=True)
"""


def test_a_mistyped_path_is_answered_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    assert MISTYPED.keys() | WITHOUT_PATHS == COMMANDS.keys()
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, json.dumps(MISTYPED)],
        capture_output=True, text=True, check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.splitlines() == [f"{command}|2" for command in MISTYPED]
    answers = done.stderr.splitlines()
    assert len(answers) == len(MISTYPED)
    assert all("nowhere" in answer for answer in answers)
    assert list(tmp_path.iterdir()) == []


def test_lists_and_pages_need_nothing_heavy(tmp_path: Path) -> None:
    run = write_log(tmp_path / "run", [session(0, 0), *steps(0, 1, 4)])
    other = write_log(tmp_path / "other", [session(0, 0), *steps(0, 1, 4)])
    commands = {
        "runs list": [str(tmp_path)],
        "runs page": [str(run)],
        "runs compare": [str(run), str(other)],
        "checkpoints list": [str(run)],
    }
    for command, arguments in commands.items():
        assert not modules_after(*command.split(), *arguments) & {"torch", "safetensors"}


def test_the_help_of_a_group_lists_its_commands(command_line: CommandLine) -> None:
    status, out, err = command_line("runs", "--help")
    assert (status, err) == (0, "")
    assert re.findall(r"^  cpplm (.*?)  ", out, re.MULTILINE) == ["runs page", "runs compare", "runs list"]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        *[(command, "RUN") for command in ("generate", "chat", "serve", "runs page", "checkpoints verify")],
        *[(command, "[RUN]") for command in ("evaluate fim", "evaluate likelihood", "evaluate cpp")],
        *[(f"evaluate{verb}", "[RUN] --data_dir CORPUS") for verb in ("", " bpb")],
        *[(f"corpus {verb}", "CORPUS") for verb in ("inspect", "check")],
        ("corpus build", "[PROJECT...] --out FOLDER"),
        ("corpus export", "CORPUS --to FILE"),
        ("export", "RUN --out FOLDER"),
        ("runs compare", "[RUN...]"),
        ("tokenizer train", "[CORPUS] --out FILE"),
        ("train", "CORPUS... --tokenizer FILE --out FOLDER"),
        ("doctor", ""),
    ],
)
def test_usage_names_what_a_command_requires(command: str, arguments: str, command_line: CommandLine) -> None:
    usage = command_line(*command.split(), "--help")[1].splitlines()[0]
    assert usage.split() == f"usage: cpplm {command} {arguments} [flags]".split()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_that_is_sound(command: str, command_line: CommandLine) -> None:
    example = COMMANDS[command].example
    assert f"example:\n  cpplm {example}\n" in command_line(*command.split(), "--help")[1]
    name, arguments = find_command(shlex.split(example))
    assert name == command
    from_command_line(settings_class(name), arguments, program=f"cpplm {name}", description="")


@pytest.mark.parametrize("page", ["README.md", *sorted(path.name for path in (ROOT / "docs").glob("*.md"))])
def test_commands_of_the_docs_are_sound(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_dir", lambda path: True)  # the folders of the examples are not here
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(
        r"^ *cpplm ([a-z].*)$", "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)), re.M
    ):
        words = shlex.split(re.split(r" [>|&] ?", line)[0], comments=True)
        name, arguments = find_command(words)
        shared = FlagParser()
        shared.add_argument("--json", action="store_true")
        shared.add_argument("--config", type=lambda recipe: ROOT / recipe)
        given, arguments = shared.parse_known_args(arguments)
        from_command_line(settings_class(name), arguments, program=line, description="", recipe=given.config)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_titles_in_words_and_no_empty_default(command: str, command_line: CommandLine) -> None:
    text = " ".join(command_line(*command.split(), "--help")[1].replace("│", " ").split())
    assert all(re.fullmatch(r"[A-Za-z+ ]+", title) for title in re.findall(r"╭─ (.*?) ─", text))
    assert not re.search(r"\(default:\s*(''|None|False)?\)", text)
    assert "{None" not in text


def test_the_help_of_evaluate_lists_its_commands_too(command_line: CommandLine) -> None:
    out = command_line("evaluate", "--help")[1]
    assert re.findall(r"^  cpplm (evaluate \w+)  ", out, re.MULTILINE) == [
        name for name in COMMANDS if name.startswith("evaluate ")
    ]


def test_no_command_at_all_is_wrong_use(command_line: CommandLine) -> None:
    status, out, err = command_line()
    assert (status, out) == (2, "")
    assert err.startswith("usage: cpplm COMMAND")


@pytest.mark.parametrize("arguments", [["-h"], ["--help"], ["help"]])
def test_help_lists_every_command(arguments: list[str], command_line: CommandLine) -> None:
    status, out, err = command_line(*arguments)
    assert (status, err) == (0, "")
    for name, command in COMMANDS.items():
        assert re.search(rf"^  cpplm {name} +{re.escape(command.summary)}$", out, re.MULTILINE)


def test_version(command_line: CommandLine) -> None:
    assert command_line("--version") == (0, f"{__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_that_lists_each_setting_once(command: str, command_line: CommandLine) -> None:
    status, out, err = command_line(*command.split(), "--help")
    assert (status, err) == (0, "")
    assert f"cpplm {command}" in out
    named = re.findall(r"^[│ ] (?:-\w \S+, )*--(\w+)", out, re.MULTILINE)
    positional = [name for name in flags(settings_class(command)) if name not in named]
    assert sorted([*named, *positional]) == sorted([*flags(settings_class(command)), "config", "json"])
    assert len(positional) == len(re.findall(r"^[│ ] [A-Z]+ ", out, re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_is_one_function_of_one_settings_class(command: str) -> None:
    module_name, function_name = COMMANDS[command].function.split(":")
    function = getattr(importlib.import_module(f"cpplm.{module_name}"), function_name)
    assert function.__annotations__["return"] == "Report"
    assert function.__code__.co_argcount == 1
    assert next(iter(typing.get_type_hints(function).values())) is settings_class(command)


# ---- wrong use --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["frobnicate"], ["no command 'cpplm frobnicate'", "corpus build", "doctor"]),
        (["corpus"], ["no command 'cpplm corpus'", "corpus build", "corpus inspect"]),
        (["corpus", "buidl"], ["no command 'cpplm corpus buidl'", "corpus build"]),
        (["trian"], ["no command 'cpplm trian'. Did you mean 'cpplm train'?"]),
        (["servee", "--run", "x"], ["no command 'cpplm servee'. Did you mean 'cpplm serve'?"]),
        (["runs", "pgae", "x"], ["no command 'cpplm runs pgae'. Did you mean 'cpplm runs page'?"]),
        (["rnus", "page", "x"], ["Did you mean 'cpplm runs page'?"]),
        (["tokenzer"], ["no command 'cpplm tokenzer'", "tokenizer train"]),
        (["evaluate", "bbp", "--run", "x"], ["Did you mean 'cpplm evaluate bpb'?"]),
        (["doctor", "--josn"], ["'josn'", "Did you mean 'json'?"]),
        ([""], ["no command"]),
        (["--josn"], ["no command"]),
        (["tokenizer", "train", "--vocab_sise", "9"], ["'vocab_sise'", "Did you mean 'vocab_size'?"]),
        (["tokenizer", "train"], ["Missing", "--out"]),
        (["tokenizer", "train", "--data_dir", "x"], ["Missing", "--out"]),
        (
            ["tokenizer", "train", "--data_dir=x", "--out=y", "--vocab_size", "many"],
            ["--vocab_size", "'many'"],
        ),
        (["tokenizer", "train", "--vocab_size"], ["--vocab_size"]),
        (["corpus", "inspect"], ["Missing"]),
        (["corpus", "inspect", "x", "y"], ["Unrecognized", "y"]),
        (["corpus", "inspect", "no/such/corpus", "--kind", "chunk"], ["no/such/corpus"]),
        (["corpus", "build", "--out", "x"], ["no project was given"]),
        (["tokenizer", "train", "--config"], ["--config"]),
        (["tokenizer", "train", "--config", "no/such.toml"], ["cannot read", "no/such.toml"]),
        (["tokenizer", "train", "--json=yes"], ["--json"]),
        (["doctor", "--quick"], ["unknown setting 'quick'"]),
        (["evaluate", "everything"], ["no command 'cpplm evaluate everything', and no file or folder"]),
        (["evaluate", "runs/a"], ["Missing", "--data_dir"]),
        (["generate", "a", "--run", "b"], ["RUN is given twice: a, and --run b"]),
        (["generate"], ["Missing from cpplm generate: RUN"]),
        (["generate", "-q"], ["Missing value for --run"]),
        (["train", "--tokenizer", "b", "--out", "c"], ["no corpus was given"]),
        (["train", "--data_dir", "a", "--tokenizer", "b", "--out", "c", "--depth", "0"], ["--depth 0"]),
        (["generate", "--run", "no/such/run", "--prompt", "x"], ["no/such/run"]),
        (["runs", "page", "no/such/run"], ["no/such/run"]),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(
    arguments: list[str], parts: list[str], command_line: CommandLine
) -> None:
    status, out, err = command_line(*arguments)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("cpplm: ")
    for part in parts:
        assert part in err


def test_wrong_use_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert_one_line_error(cpplm_process("corpus", "buidl"), "no command 'cpplm corpus buidl'")
    assert_one_line_error(cpplm("tokenizer", "train", "--data_dir", "x"), "Missing", "--out")
    assert list(tmp_path.iterdir()) == []


def test_the_longest_command_name_wins() -> None:
    assert find_command(["evaluate", "bpb", "--x"]) == ("evaluate bpb", ["--x"])
    assert find_command(["evaluate", "--x"]) == ("evaluate", ["--x"])
    assert find_command(["evaluate"]) == ("evaluate", [])
    assert find_command(["evaluate", "runs/a", "--x"]) == ("evaluate", ["runs/a", "--x"])
    with pytest.raises(UserError):
        find_command(["eval"])


# ---- what is printed --------------------------------------------------------------------------------------


def test_json_is_the_last_line_of_stdout(
    corpus: Path, tokenizer_path: Path, command_line: CommandLine
) -> None:
    arguments = ("tokenizer", "evaluate", "--tokenizer", tokenizer_path, "--data_dir", corpus)
    status, plain, _ = command_line(*arguments)
    assert status == 0
    status, out, _ = command_line(*arguments, "--json")
    assert status == 0
    *text, last = out.splitlines()
    assert len(text) == len(plain.splitlines())
    assert json.loads(last)["documents"] == 8
    assert not any(line.startswith("{") for line in [*text, *plain.splitlines()])


def test_json_may_stand_anywhere_behind_the_command(corpus: Path, tokenizer_path: Path) -> None:
    result = cpplm("tokenizer", "evaluate", "--json", f"--tokenizer={tokenizer_path}", "--data-dir", corpus)
    assert result.returncode == 0
    assert json.loads(result.stdout.splitlines()[-1])["documents"] == 8


def test_a_recipe_is_read_and_flags_win(
    corpus: Path, tokenizer_path: Path, tmp_path: Path, command_line: CommandLine
) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'tokenizer = "{tokenizer_path}"\ndata_dir = "no/such/corpus"\n')
    status, _, err = command_line("tokenizer", "evaluate", "--config", recipe)
    assert status == 2
    assert "no/such/corpus" in err
    status, _, _ = command_line("tokenizer", "evaluate", "--config", recipe, "--data_dir", corpus)
    assert status == 0


def test_a_name_that_the_terminal_cannot_show_is_no_failure(
    corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    odd = tmp_path / os.fsdecode(b"t\xff\xc3\xa4.json")
    odd.write_bytes(tokenizer_path.read_bytes())
    for encoding in ("ascii", "utf-8"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        evaluate = ("tokenizer", "evaluate", corpus, "--tokenizer")
        result = cpplm_process(*evaluate, odd, env=environment)
        assert result.returncode == 0, result.stderr
        result = cpplm_process(*evaluate, f"{odd}x", env=environment)
        assert_one_line_error(result, "cannot read the tokenizer")


# ---- the world outside ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("corpus build", "interrupted; the same command continues from here"),
        ("chat", "interrupted"),
        ("serve", "interrupted"),
        ("train", "interrupted before a step was made; nothing had to be saved"),
    ],
)
def test_interrupted_is_130(command: str, said: str, number: signal.Signals, tmp_path: Path) -> None:
    """The command waits for its recipe, a pipe into which nobody writes."""
    pipe = tmp_path / "recipe.toml"
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [*PROGRAM, *command.split(), "--config", str(pipe)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    writer = None
    deadline = time.monotonic() + 30
    while writer is None and time.monotonic() < deadline:
        try:
            writer = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)  # works once the command has it open
        except OSError as error:
            assert error.errno == errno.ENXIO
            time.sleep(0.01)
    assert writer is not None
    process.send_signal(number)
    # A signal that comes just before the read blocks is handled after it; the end of the pipe ends the read.
    os.close(writer)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert err == f"cpplm: {said}\n"


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """A failing write shows at once where Python does not buffer, else when it flushes."""
    return {**os.environ, "PYTHONUNBUFFERED": request.param}


@pytest.mark.parametrize("arguments", [["--help"], ["tokenizer", "train", "--help"]])
def test_a_reader_that_goes_away_is_no_traceback(arguments: list[str], environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait() == 1
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_output_onto_a_full_disk_is_one_line(environment: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
    assert result.returncode == 2
    assert result.stderr.startswith("cpplm: No space left on device")
    assert len(result.stderr.splitlines()) == 1


def test_what_the_system_refuses_is_one_line_and_a_defect_is_a_traceback(
    monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    def raising(error: Exception) -> None:
        def run(arguments: list[str]) -> None:
            raise error

        monkeypatch.setattr(main_module, "run", run)

    raising(NotADirectoryError(errno.ENOTDIR, "Not a directory", "file/below"))
    assert command_line("doctor") == (
        2, "", "cpplm: Not a directory (file/below). Mend that and run the same command again.\n",
    )  # fmt: skip
    raising(OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        command_line("doctor")
    raising(ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        command_line("doctor")


def test_closed_stdout_is_no_failure() -> None:
    command = " ".join([*PROGRAM, "--help", ">&-"])
    result = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "cpplm.cli.tpu" or name.startswith("cpplm.jax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    assert_one_line_error(cpplm("tpu", "bench"), "needs the package jax", "pip install 'cpplm[tpu]'")
