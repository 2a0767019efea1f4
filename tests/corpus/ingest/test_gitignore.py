"""Which files `.gitignore` leaves out, by comparison with git."""

import os
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from cpplm.corpus.ingest.gitignore import GitIgnore, gitignores_above
from cpplm.corpus.ingest.walk import SkipCounts, walk
from tests.corpus.cpp import write_files

FOLDERS = ["a", "b", "src", "build"]
FILES = ["x.c", "y.h", "a", "k.c"]
WILD = ["*", "**", "*.c", "s*", "?", "[ab]", "[!a]*", "y.?", "b*d"]


def random_pattern(random: Random) -> str:
    """Such as `!/src/*.c`; nobody writes `**/**` and the like, which pathspec reads as `**`."""
    segments = random.choices([*FOLDERS, *FILES, *WILD], k=random.choice([1, 1, 1, 2, 2, 3]))
    if segments != ["*"] and not "".join(segments).strip("*"):
        segments.append("x.c")
    start = random.choice(["", "", "", "!", "/", "!/", "#", "\\!"])
    return start + "/".join(segments) + random.choice(["", "", "/", " "])


def random_tree(random: Random, root: Path) -> None:
    names = {
        "/".join([*random.choices(FOLDERS, k=random.randrange(4)), random.choice(FILES)]) for _ in range(14)
    }
    folders = {name.rpartition("/")[0] for name in names}
    for name in sorted(names - folders):
        if not any((root / part).is_file() for part in Path(name).parents):
            write_files(root, {name: ""})
    for folder in [root, *(path for path in sorted(root.rglob("*")) if path.is_dir())]:
        if folder == root or (".git" not in folder.parts and random.random() < 0.15):
            whitelist = ["*", "!*/"] if random.random() < 0.2 else []
            lines = [*whitelist, *(random_pattern(random) for _ in range(random.randrange(1, 4)))]
            (folder / ".gitignore").write_text("\n".join(lines) + "\n")


def is_visible(path: Path) -> bool:
    return not path.name.startswith(".")


def git(*arguments: str) -> list[str]:
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *arguments], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 3))])
def test_as_git_reads_it(tmp_path, part):
    for seed in range(25 * part, 25 * part + 25):
        root = tmp_path / str(seed)
        root.mkdir()
        git("init", "-q", str(root))
        random_tree(Random(seed), root)
        listed = git("-C", str(root), "ls-files", "-o", "--exclude-standard")
        wanted = {name for name in listed if not name.endswith(".gitignore")}
        skips = SkipCounts()
        found = {path.relative_to(root).as_posix() for path in walk(root, skips, is_visible)}
        rules = {str(p.relative_to(root)): p.read_text() for p in root.rglob(".gitignore")}
        assert found == wanted, (seed, rules)
        everything = list(walk(root, SkipCounts(), is_visible, keep_ignored=True))
        assert sum(entry["files"] for entry in skips.to_dict().values()) == len(everything) - len(found)


def test_the_repository_around_a_project_counts_unless_it_ignores_the_project(tmp_path):
    write_files(
        tmp_path,
        {
            ".git/HEAD": "", ".gitignore": "*.gen.h\n/lib/out/\n/hidden/\n", "lib/.gitignore": "!own.gen.h\n",
            **{f"{folder}/{name}": "int a;\n" for folder in ("lib", "hidden") for name in
               ("a.h", "b.gen.h", "own.gen.h", "out/c.h")},
        },
    )  # fmt: skip

    def names(folder: Path) -> list[str]:
        return [path.relative_to(folder).as_posix() for path in walk(folder, SkipCounts(), is_visible)]

    assert names(tmp_path / "lib") == ["a.h", "own.gen.h"]
    assert names(tmp_path / "hidden") == ["a.h", "b.gen.h", "own.gen.h", "out/c.h"]
    assert names(tmp_path / "lib" / "out") == ["c.h"]
    write_files(tmp_path / "lib", {".git": "gitdir: elsewhere"})
    assert gitignores_above(tmp_path / "lib") == ()
    assert names(tmp_path) == ["lib/a.h", "lib/b.gen.h", "lib/own.gen.h", "lib/out/c.h"]


@pytest.mark.parametrize(
    "line", ["*a" * 40 + "b", "[z-a]", "!", "\\", "///", "a\0b", "\udcff*", "(", "**/" * 30 + "x"]
)
def test_no_pattern_stops_the_build(tmp_path, line):
    (tmp_path / ".gitignore").write_bytes(f"{line}\n*.o\n".encode("utf-8", "surrogateescape"))
    file = GitIgnore.read(tmp_path)
    assert file is not None
    assert file.decide(tmp_path / "x.o", is_dir=False)
    assert not file.decide(tmp_path / ("a" * 200), is_dir=False)


def test_a_link_is_no_gitignore(tmp_path):
    (tmp_path / "patterns").write_text("*\n")
    (tmp_path / ".gitignore").symlink_to("patterns")
    assert GitIgnore.read(tmp_path) is None
