"""`recipes/debian_corpus.sh` with stand-ins for apt and dpkg: what it fetches and skips, how it fails."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[2] / "recipes" / "debian_corpus.sh"
APT_GET = """#!/bin/sh
echo "$@" >>"$CALLS"
case "$*" in
*indextargets*)
    echo "Debian http://archive.example/debian/ stable main"
    echo "Other http://elsewhere.example/ stable main" ;;
*" source "*)
    for name; do :; done
    [ "$name" != "$BROKEN" ] || exit 100
    printf 'Version: 1.0\\n' >"$name.dsc" ;;
esac
"""
DPKG_SOURCE = """#!/bin/sh
mkdir "$4" && cp "$3" "$4/description"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {"apt-get": APT_GET, "dpkg-source": DPKG_SOURCE}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    calls = tmp_path / "calls"
    calls.touch()
    return {"PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls), "BROKEN": ""}


def run(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(RECIPE), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def names(variable: str) -> set[str]:
    found = re.search(rf'^{variable}="([^"]*)"', RECIPE.read_text(), re.MULTILINE)
    assert found is not None
    return set(found[1].split()) - {"$DEV"}


def fetched(environment: dict[str, str]) -> list[str]:
    lines = Path(environment["CALLS"]).read_text().splitlines()
    return [line.split()[-1] for line in lines if " source " in line]


def test_the_blind_projects_are_in_no_other_list() -> None:
    blind = [names(f"BLIND{number}") for number in ("", 2, 3, 4, 5)]
    others = [names("KNOWN"), *(names(f"TOK_{part}") for part in ("TRAIN", "DEV", "BLIND"))]
    assert min(map(len, blind)) >= 8
    assert len(set.union(*blind)) == sum(map(len, blind))
    assert not set.union(*blind) & (names("DEV") | names("LARGE"))
    assert not set.union(*blind[1:]) & set.union(*others)


@pytest.mark.parametrize("list_name", ["BLIND9", "BLIND31", "BLIND32", "BLIND39", "WIDE"])
def test_each_set_that_is_listed_can_be_fetched(
    tmp_path: Path, environment: dict[str, str], list_name: str
) -> None:
    assert run(environment, list_name.lower(), tmp_path / "out").returncode == 0
    assert set(fetched(environment)) == names(list_name)


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path, environment: dict[str, str]) -> None:
    folder = tmp_path / "out"
    broken = run({**environment, "BROKEN": "snappy"}, "dev", folder)
    assert broken.returncode == 2
    assert "cannot fetch the source package snappy" in broken.stderr
    before = {path.name for path in (folder / "dev").iterdir()}
    assert "snappy" not in before
    assert before
    Path(environment["CALLS"]).write_text("")
    assert run(environment, "dev", folder).returncode == 0
    assert {path.name for path in (folder / "dev").iterdir()} == names("DEV")
    assert not before & set(fetched(environment))
    Path(environment["CALLS"]).write_text("")
    assert run(environment, "dev", folder).returncode == 0
    assert Path(environment["CALLS"]).read_text() == ""
    versions = (folder / "versions.txt").read_text().splitlines()
    assert sorted(versions) == sorted(f"dev {name} 1.0" for name in names("DEV"))
    assert not (folder / "unpacking").exists()


def test_the_tokenizers_lists_are_apart_and_all_are_trained(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    lists = [names("TOK_TRAIN"), names("TOK_DEV"), names("TOK_BLIND")]
    assert len(set.union(*lists)) == sum(map(len, lists))
    calls = tmp_path / "trained"
    trainer = tmp_path / "cpplm"
    trainer.write_text(f'#!/bin/sh\necho "$@" >>"{calls}"\n')
    trainer.chmod(0o755)
    folder = tmp_path / "out"
    assert run({**environment, "CPPLM": str(trainer)}, "tokenizer", folder).returncode == 0
    assert {path.name for path in (folder / "tok-train").iterdir()} == lists[0]
    assert [line.split()[-3:] for line in calls.read_text().splitlines()] == [
        ["32768", "--out", f"{folder}/cpp-32k.json"],
        ["32768", "--out", f"{folder}/cpp-32k-dense.json"],
        ["65536", "--out", f"{folder}/cpp-65k.json"],
        ["65536", "--out", f"{folder}/cpp-65k-dense.json"],
    ]


def test_only_the_distributions_own_archives(tmp_path: Path, environment: dict[str, str]) -> None:
    assert run(environment, "dev", tmp_path / "out").returncode == 0
    sources = (tmp_path / "out" / "apt" / "sources.list").read_text()
    assert "deb-src http://archive.example/debian/ stable main" in sources
    assert "elsewhere" not in sources


def test_wrong_use(tmp_path: Path, environment: dict[str, str]) -> None:
    for arguments in ((), ("dev",), ("everything", tmp_path / "out")):
        wrong = run(environment, *arguments)
        assert wrong.returncode == 2
        assert "usage:" in wrong.stderr
