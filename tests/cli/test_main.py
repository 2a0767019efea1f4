"""`cpplm` as a program: wrong use, what is printed, signals, broken pipes, full disks, missing extras."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cpplm import __version__
from cpplm.cli import main as main_module
from tests.commands import assert_one_line_error, cpplm, cpplm_process

PROGRAM = [sys.executable, "-m", "cpplm.cli.main"]


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
        (["corpus", "inspect"], ["Missing"]),
        (["corpus", "inspect", "no/such/corpus", "--kind", "chunk"], ["no/such/corpus"]),
        (["corpus", "build", "--out", "x"], ["no project was given"]),
        (["tokenizer", "train", "--config"], ["--config"]),
        (["tokenizer", "train", "--config", "no/such.toml"], ["cannot read", "no/such.toml"]),
        (["tokenizer", "train", "--json=yes"], ["--json"]),
        (["evaluate", "everything"], ["no command 'cpplm evaluate everything', and no file or folder"]),
        (["evaluate", "runs/a"], ["Missing", "--data_dir"]),
        (["generate", "a", "--run", "b"], ["RUN is given twice: a, and --run b"]),
        (["train", "--tokenizer", "b", "--out", "c"], ["no corpus was given"]),
        (["train", "--data_dir", "a", "--tokenizer", "b", "--out", "c", "--depth", "0"], ["--depth 0"]),
        (["generate", "--run", "no/such/run", "--prompt", "x"], ["no/such/run"]),
        (["runs", "page", "no/such/run"], ["no/such/run"]),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(arguments: list[str], parts: list[str]) -> None:
    assert_one_line_error(cpplm(*arguments), *parts)


def test_no_command_at_all_is_wrong_use() -> None:
    result = cpplm()
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: cpplm COMMAND")


def test_version() -> None:
    assert cpplm("--version").stdout == f"{__version__}\n"


def test_wrong_use_in_a_process_of_its_own() -> None:
    assert_one_line_error(cpplm_process("corpus", "buidl"), "no command 'cpplm corpus buidl'")


# ---- what is printed --------------------------------------------------------------------------------------


def test_json_is_the_last_line_of_stdout(corpus: Path, tokenizer_path: Path) -> None:
    plain = cpplm("tokenizer", "evaluate", "--tokenizer", tokenizer_path, "--data_dir", corpus)
    assert plain.returncode == 0
    result = cpplm("tokenizer", "evaluate", "--json", f"--tokenizer={tokenizer_path}", "--data-dir", corpus)
    assert result.returncode == 0
    *text, last = result.stdout.splitlines()
    assert len(text) == len(plain.stdout.splitlines())
    assert json.loads(last)["documents"] == 8
    assert not any(line.startswith("{") for line in [*text, *plain.stdout.splitlines()])


def test_a_recipe_is_read_and_flags_win(corpus: Path, tokenizer_path: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'tokenizer = "{tokenizer_path}"\ndata_dir = "no/such/corpus"\n')
    assert_one_line_error(cpplm("tokenizer", "evaluate", "--config", recipe), "no/such/corpus")
    assert cpplm("tokenizer", "evaluate", "--config", recipe, "--data_dir", corpus).returncode == 0


def test_a_name_that_the_terminal_cannot_show_is_no_failure(
    corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    odd = tmp_path / os.fsdecode(b"t\xff\xc3\xa4.json")
    odd.write_bytes(tokenizer_path.read_bytes())
    evaluate = ("tokenizer", "evaluate", corpus, "--tokenizer")
    result = cpplm_process(*evaluate, odd, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert result.returncode == 0, result.stderr
    result = cpplm_process(*evaluate, f"{odd}x", env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert_one_line_error(result, "cannot read the tokenizer")


# ---- the world outside ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "number", "outcome"),
    [
        ("corpus build", signal.SIGTERM, "interrupted; the same command continues from here"),
        ("chat", signal.SIGINT, "interrupted"),
        ("train", signal.SIGTERM, "interrupted before a step was made; nothing had to be saved"),
        ("train", signal.SIGINT, "interrupted before a step was made; nothing had to be saved"),
    ],
)
def test_interrupted_is_130(command: str, number: signal.Signals, outcome: str, tmp_path: Path) -> None:
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
    assert err == f"cpplm: {outcome}\n"


# A failing write shows at once where Python does not buffer, else when it flushes.
@pytest.mark.parametrize(("arguments", "unbuffered"), [("--help", ""), ("tokenizer train --help", "1")])
def test_a_reader_that_goes_away_is_no_traceback(arguments: str, unbuffered: str) -> None:
    process = subprocess.Popen(
        [*PROGRAM, *arguments.split()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    assert process.communicate() == (None, b"")
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_onto_a_full_disk_is_one_line(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [*PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=environment
        )
    assert result.returncode == 2
    assert result.stderr.startswith("cpplm: No space left on device")
    assert len(result.stderr.splitlines()) == 1


def test_what_the_system_refuses_is_one_line_and_a_defect_is_a_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(error: Exception) -> None:
        def run(arguments: list[str]) -> None:
            raise error

        monkeypatch.setattr(main_module, "run", run)

    raising(NotADirectoryError(errno.ENOTDIR, "Not a directory", "file/below"))
    assert_one_line_error(cpplm("doctor"), "Not a directory (file/below). Mend that and run")
    raising(OSError(errno.EIO, "Input/output error"))
    with pytest.raises(OSError, match="Input/output error"):
        cpplm("doctor")
    raising(ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        cpplm("doctor")


def test_closed_stdout_is_no_failure() -> None:
    command = " ".join([*PROGRAM, "--help", ">&-"])
    result = subprocess.run(["/bin/sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_missing_extra_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in sys.modules if name == "cpplm.cli.tpu_train_step" or name.startswith("cpplm.jax")
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jax", None)
    assert_one_line_error(cpplm("tpu", "bench"), "needs the package jax", "pip install 'cpplm[tpu]'")
