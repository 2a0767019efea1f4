"""The scripts of `cpplm completion`, asked as a shell asks them."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from cpplm.cli import shell_completion
from cpplm.cli.commands import COMMANDS
from cpplm.cli.shell_completion import CompletionSettings, completion
from cpplm.core.settings import flags
from tests.commands import settings_class


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "cpplm.bash"
    path.write_text(completion(CompletionSettings("bash")).text)
    return path


def offers(script: Path, *words: str) -> list[str]:
    """The completions that bash offers for the last word."""
    ask = (
        f"source {script}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _cpplm; "
        'for offer in "${COMPREPLY[@]}"; do echo "$offer"; done'
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, cwd=script.parent)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("cpplm cor", ["corpus"]),
        ("cpplm evaluate likel", ["likelihood"]),
        ("cpplm train --dep", ["--depth"]),
        ("cpplm train corpus --config x --dep", ["--depth"]),
        ("cpplm evaluate --data", ["--data_dir"]),  # of the command that is also a group
        ("cpplm evaluate cpp --num_s", ["--num_samples"]),
        ("cpplm generate run --run", ["--run"]),
        ("cpplm doctor --js", ["--json"]),
        ("cpplm generate run --draft lo", ["lookup"]),
        ("cpplm generate ru", []),  # bash then completes the names of files
        ("cpplm generate --run cpplm.ba", []),
        ("cpplm train ''", []),
    ],
)
def test_bash_offers_commands_flags_and_choices(words: str, offered: list[str], bash_script: Path) -> None:
    assert offers(bash_script, *shlex.split(words)) == offered


def test_bash_offers_every_command_and_flag(bash_script: Path) -> None:
    groups = {name.partition(" ")[0] for name in COMMANDS}
    assert set(offers(bash_script, "cpplm", "")) == groups
    assert set(offers(bash_script, "cpplm", "corpus", "")) == {
        "build",
        "inspect",
        "explain",
        "check",
        "export",
    }
    for name in ("train", "corpus check"):
        known = {*flags(settings_class(name)), "config", "json", "help"}
        assert set(offers(bash_script, "cpplm", *name.split(), "--")) == {f"--{flag}" for flag in known}


def test_bash_completes_files_where_nothing_is_offered(bash_script: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"source {bash_script}; complete -p cpplm"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "complete -o default -F _cpplm cpplm\n"


def assert_sound(shell: str, folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this system")
    path = folder / "script"
    path.write_text(completion(CompletionSettings(shell)).text)  # type: ignore[arg-type]
    subprocess.run([shell, "-n", path], check=True)


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_a_script_of_a_few_commands_is_sound(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one alone, and of a group of which one has no verb: tyro takes seconds for all."""
    few = ("doctor", "evaluate", "evaluate bpb")
    monkeypatch.setattr(shell_completion, "COMMANDS", {name: COMMANDS[name] for name in few})
    assert_sound(shell, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_the_script_is_sound(shell: str, tmp_path: Path) -> None:
    assert_sound(shell, tmp_path)


def test_fish_can_take_the_script(bash_script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux allows 131,072 bytes for one argument; only fish hands its script over as one, to a process.

    Most of it is the table of all flags, which is the same for each shell.
    """
    table = max(bash_script.read_text().splitlines(), key=len)
    monkeypatch.setattr(shell_completion, "COMMANDS", {"doctor": COMMANDS["doctor"]})
    rest = completion(CompletionSettings("fish")).text
    assert "COMPLETION_SPEC" in table
    assert len(table.encode()) + len(rest.encode()) < 131_072
