"""Reading and searching a project, and whoever tries to get out of it or to keep it busy."""

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.generate.tools.project_files import LARGEST_FILE, LONGEST_PATTERN, ProjectFiles, RefusedError

SECRET = "the secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project beside a secret, with every kind of thing in it that leads there."""
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text(SECRET)
    root = tmp_path / "project"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "a.cpp").write_bytes(b"int a;\r\nint b;\n\x0cint \xe9;")
    (root / "src" / "deep" / "b.h").write_text("int b();\n")
    (root / "README.md").write_text("b is a function\n")
    (root / "link").symlink_to("../secret")
    (root / "absolute").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to("../outside")
    (root / "self").symlink_to(".")
    (root / "inside").symlink_to("README.md")
    (root / ".git").mkdir()
    (root / ".git" / "b").write_text("b hidden\n")
    (root / "binary").write_bytes(b"b\0b")
    os.mkfifo(root / "pipe")
    with (root / "huge.cpp").open("wb") as file:
        file.write(b"b\n")
        file.truncate(LARGEST_FILE + 1)
    return root


def search(root: Path, pattern: str, *more: object, seconds: float = 10) -> str:
    return ProjectFiles(root).search(time.monotonic() + seconds, pattern, *more)  # type: ignore[arg-type]


# ---- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (("src/a.cpp",), "src/a.cpp, lines 1 to 3 of 3:\nint a;\nint b;\n\x0cint \N{REPLACEMENT CHARACTER};"),
        (("src/a.cpp", 2, 2), "src/a.cpp, lines 2 to 2 of 3:\nint b;"),
        (("src/a.cpp", 2, 99), "src/a.cpp, lines 2 to 3 of 3:\nint b;\n\x0cint \N{REPLACEMENT CHARACTER};"),
        (("./src//deep/./b.h", 1), "./src//deep/./b.h, lines 1 to 1 of 1:\nint b();"),
    ],
)
def test_lines_are_read(root: Path, where: tuple[str, int, int], expected: str) -> None:
    assert ProjectFiles(root).read(*where) == expected


UNREADABLE = {
    "leads out": ["../secret", "src/../../secret", "src/../README.md", "/etc/passwd", "//etc/passwd", ".."],
    "no file or folder": [
        "link", "absolute", "folder/secret", "self/README.md", "inside", "pipe", "missing", "README.md/x",
        "src/\0", "\udcff", "a" * 5000,
    ],
    "32 parts": ["a/" * 4000],
    "is no file": ["src", "", "."],
    "is no text": ["binary"],
    "bytes": ["huge.cpp"],
}  # fmt: skip


@pytest.mark.parametrize(("path", "why"), [(path, why) for why in UNREADABLE for path in UNREADABLE[why]])
def test_nothing_else_is_read(root: Path, path: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why) as caught:
        ProjectFiles(root).read(path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(("first", "last"), [(0, 0), (-1, 2), (4, 0), (3, 2), (1, -1), (10**17, 10**17)])
def test_lines_that_are_not_there(root: Path, first: int, last: int) -> None:
    with pytest.raises(RefusedError, match="has lines 1 to 3"):
        ProjectFiles(root).read("src/a.cpp", first, last)


@given(path=st.text(st.sampled_from("./\\~ab\0é"), max_size=12) | st.text(max_size=12))
def test_whatever_the_path_nothing_from_outside_is_read(
    path: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.getbasetemp()
    root = outside / "any" / "a"
    if not root.exists():
        root.mkdir(parents=True)
        (root.parent / "b").write_text(SECRET)
        (root / "b").symlink_to("../b")
    for call in (ProjectFiles(root).read, lambda path: search(root, SECRET, False, path)):
        with contextlib.suppress(RefusedError):
            assert SECRET not in call(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(root: Path) -> None:
    (root / "README.md").chmod(0)
    with pytest.raises(RefusedError, match="no file or folder"):
        ProjectFiles(root).read("README.md")
    assert "README" not in search(root, "b is a")


@pytest.mark.parametrize("what", ["a file", "a folder"])
def test_a_link_that_is_put_there_meanwhile_leads_nowhere(tmp_path: Path, what: str) -> None:
    """Another program swaps a file or folder for a link to outside, again and again."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text(SECRET)
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "d" / "f").write_text("harmless")
    place, target = (root / "d" / "f", outside / "f") if what == "a file" else (root / "d", outside)
    (tmp_path / "link").symlink_to(target)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            place.rename(tmp_path / "kept")
            (tmp_path / "link").rename(place)
            place.rename(tmp_path / "link")
            (tmp_path / "kept").rename(place)

    thread = threading.Thread(target=swap)
    thread.start()
    answers: set[str] = set()
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            try:
                answers.add(ProjectFiles(root).read("d/f").splitlines()[-1])
            except RefusedError:
                answers.add("refused")
            assert SECRET not in search(root, "e")
    finally:
        done.set()
        thread.join()
    assert answers <= {"harmless", "refused"}
    assert "harmless" in answers


# ---- searching --------------------------------------------------------------------------------------------


def test_hits_are_sorted_and_counted(root: Path) -> None:
    assert search(root, "b") == (
        "README.md:1: b is a function\nsrc/a.cpp:2: int b;\nsrc/deep/b.h:1: int b();\n"
        "3 lines found, 4 files searched"
    )  # the binary file is one of them
    assert (
        search(root, "int b", False, "src/deep/")
        == "src/deep/b.h:1: int b();\n1 lines found, 1 files searched"
    )
    assert search(root, "int", False, "src/a.cpp").count("src/a.cpp:") == 3
    assert search(root, "nowhere") == "0 lines found, 4 files searched"
    assert search(root, "hidden", False, ".git").endswith("1 lines found, 1 files searched")


def test_regular_expressions(root: Path) -> None:
    assert search(root, r"^int b[;(]", True).splitlines()[:-1] == [
        "src/a.cpp:2: int b;",
        "src/deep/b.h:1: int b();",
    ]
    assert search(root, r"b.*n$", True).splitlines()[:-1] == ["README.md:1: b is a function"]
    assert search(root, r"\bB\b", True).startswith("0 lines")
    assert search(root, r"(?i)\bB IS", True).startswith("README.md:1:")
    assert search(root, "b();").startswith("src/deep/b.h:1")
    assert search(root, "[(]").startswith("0 lines")


@pytest.mark.parametrize(
    ("pattern", "regex"),
    [("", False), ("a" * (LONGEST_PATTERN + 1), False), ("(", True), ("a{1001}", True), (r"(a)\1", True),
     ("(?=a)", True), ("((((a{100}){100}){100}){100})", True), ("\udcff", False), ("[[:nope:]]", True)],
)  # fmt: skip
def test_what_is_no_pattern_says_why(root: Path, pattern: str, regex: bool) -> None:
    with pytest.raises(RefusedError, match=r"look for 1 to|not a pattern") as caught:
        search(root, pattern, regex)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("path", ["..", "link", "folder", "self", "pipe", "/", "missing", "huge.cpp"])
def test_only_inside_is_searched(root: Path, path: str) -> None:
    with pytest.raises(RefusedError):
        search(root, "secret", False, path)
    assert "secret" not in search(root, "secret").replace("0 lines", "")


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+$", "(a|a)*b", "(a|aa)+c", "(.*a){12}b", "^(([a-z])+.)+[A-Z]([a-z])+$", "(x+x+)+y", "((a*)*)*b"],
)
def test_patterns_that_take_others_for_ever(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a.cpp").write_text(f"{'a' * 5000}!\n" * 200 + f"{'x' * 900}\n" * 200)
    begin = time.monotonic()
    search(tmp_path, pattern, True)
    assert time.monotonic() - begin < 10


def test_it_stops_when_the_time_is_up(root: Path) -> None:
    assert search(root, "b", seconds=-1) == "0 lines found, 0 files searched; the time is up"


def test_many_hits_are_cut(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(f"int x; {'y' * 3000}\n" * 300)
    for path in ("", "a.cpp"):
        *hits, last = search(tmp_path, "int", False, path).splitlines()
        assert len(hits) == 50
        assert "look for something rarer" in last
        assert max(map(len, hits)) < 230
