"""The text of a project in front of a hole: what is taken, that it fits, and what is never read."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cpplm.core.errors import UserError
from cpplm.generate.project import files as project_files
from cpplm.generate.project.context import ProjectContext, truncate_with_context

HEADER = """#ifndef SHAPES_H
#define SHAPES_H
namespace shapes {
constexpr int SIDES = 4;
/* Of one shape. */
struct Box {
    int width;
    int height;
    int area() const { return width * height + 0 * (width - height) * (width - height) * (width + height); }
};
int total_area(const Box& one, const Box& two);
struct Unused { int nothing; };
}
#endif
"""
SOURCE = """#include "shapes.h"
#include "../../../../etc/passwd"

namespace shapes {
static int helper(int value) {
    return value + 1;
}
int total_area(const Box& one, const Box& two) {
    int sum = helper(SIDES);
    SECRET_MIDDLE;
    return sum;
}
}
"""
OTHER = """int other() {
    int sum = helper(SIDES);
    sum += first_of_others();
    return sum;
}
"""
PREFIX, _, SUFFIX = SOURCE.partition("    SECRET_MIDDLE;\n")


def ends(text: str) -> np.ndarray:
    """One token for each byte."""
    return np.arange(1, len(text.encode()) + 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    for name, text in {"src/shapes.h": HEADER, "src/shapes.cpp": SOURCE, "other.cpp": OTHER}.items():
        (root / name).write_text(text)
    return root


@pytest.fixture(autouse=True)
def _look_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_files, "_SECONDS", 0.0)


def context_of(folder: Path, budget: int = 1000, visible: int = 60, file: str = "src/shapes.cpp") -> str:
    return ProjectContext(folder, ends).source(file, PREFIX, SUFFIX)(budget, visible)


def test_the_lines_behind_the_longest_match_are_taken(folder: Path) -> None:
    found = context_of(folder)
    assert "int sum = helper(SIDES);\n    sum += first_of_others();\n" in found
    assert "SECRET_MIDDLE" not in found


@pytest.mark.parametrize("budget", [0, 1, 40, 90, 200])
def test_no_context_is_longer_than_the_budget(folder: Path, budget: int) -> None:
    assert len(context_of(folder, budget).encode()) <= budget


@pytest.mark.parametrize("cut", range(0, len(SOURCE), 19))
def test_broken_code_is_read(folder: Path, cut: int) -> None:
    """Wherever the cursor stands, and the file ends there."""
    source = ProjectContext(folder, ends).source("src/shapes.cpp", SOURCE[:cut], "")
    assert len(source(500, 20)) <= 500


def test_half_of_the_room_at_most_is_context() -> None:
    asked = []

    def source(budget: int, visible: int) -> str:
        asked.append((budget, visible))
        return "c" * 30

    front, before, behind = truncate_with_context("p" * 500, "s" * 500, 200, ends, source)
    assert asked == [(100, 75)]
    assert (front, before) == (["c" * 30], b"p" * 128)
    assert len(before) + len(behind) == 170


# ---- the disk ---------------------------------------------------------------------------------------------


def test_changed_files_are_read_again(folder: Path) -> None:
    project = ProjectContext(folder, ends)

    def found() -> str:
        return project.source("src/shapes.cpp", PREFIX, SUFFIX)(1000, 60)

    def write(name: str, text: str, seconds: int) -> None:
        (folder / name).write_text(text)
        os.utime(folder / name, (seconds, seconds))

    assert "first_of_others" in found()
    write("other.cpp", OTHER.replace("first_of_others", "changed_name"), 1)
    assert "changed_name" in found()
    write("new.cpp", OTHER.replace("first_of_others", "brand_new"), 3)
    (folder / "other.cpp").unlink()
    (folder / "empty.cpp").touch()
    assert "brand_new();" in found()
    assert "changed_name" not in found()


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"\0\x80\x9f")])
def test_a_file_that_goes_away_is_missing(folder: Path, change: Callable[[Path], None]) -> None:
    project = ProjectContext(folder, ends)
    source = project.source("src/shapes.cpp", PREFIX, SUFFIX)
    change(folder / "other.cpp")
    assert "first_of_others" in source(1000, 60)  # as it was when the cursor came
    assert "first_of_others" not in project.source("src/shapes.cpp", PREFIX, SUFFIX)(1000, 60)


def test_the_file_is_recognized_and_completed(folder: Path) -> None:
    """Editors send the end of what stands before the cursor, and no name."""
    sent = PREFIX[PREFIX.index("int total") :]
    found = ProjectContext(folder, ends).source("", sent, SUFFIX)(1000, 60)
    assert "first_of_others" in found and "SECRET_MIDDLE" not in found
    assert ProjectContext(folder, ends).source("", "int unknown_text;\n", "")(1000, 10) == ""


def test_nothing_outside_is_read(folder: Path) -> None:
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "far.cpp").write_text("int sum = helper(SIDES);\nint leaked;\n")
    (folder / "link.cpp").symlink_to(outside / "far.cpp")
    (folder / "linked").symlink_to(outside)
    (folder / "large.cpp").write_text("int sum = helper(SIDES);\nint leaked;\n" + " " * 500_000)
    (folder / "src" / "shapes.h").write_text('#include "../../outside/far.cpp"\n' + HEADER)
    assert "leaked" not in context_of(folder)
    for file in (str(outside / "far.cpp"), "link.cpp", "../a.cpp", ".", "a\0b.cpp"):
        with pytest.raises(UserError, match="is not in the project"):
            context_of(folder, file=file)


@pytest.mark.parametrize(("name", "said"), [("none", "does not exist"), ("a.cpp", "is a file"), ("", "no C")])
def test_a_folder_without_a_project_is_refused(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "a.cpp").touch()
    with pytest.raises(UserError, match=said):
        ProjectContext(tmp_path / name, ends)
