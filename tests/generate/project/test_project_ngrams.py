"""The n-grams of a project as its files change."""

import time
from pathlib import Path

import pytest

from cpplm.generate.project import project_ngrams
from cpplm.generate.project.context import project_context
from cpplm.generate.project.files import ProjectFile
from cpplm.generate.project.project_ngrams import ProjectNgrams
from cpplm.generate.settings import ProjectSettings
from cpplm.tokenizer.tokenizer import Tokenizer


def encode(text: str) -> list[int]:
    return list(text.encode())


def file(text: str, changed: int = 0) -> ProjectFile:
    return ProjectFile(Path("x.cpp"), (changed, len(text)), text)


def follower(index: ProjectNgrams, files: dict[str, ProjectFile], name: str = "") -> str | None:
    match = index.mixture(files, name, "", "").longest_match(encode("return "))
    return None if match is None else chr(match.follower)


def test_files_that_change_are_read_again_in_the_background() -> None:
    files = {"a": file("return a;"), "b": file("int b;")}
    index = ProjectNgrams(encode, files)
    assert follower(index, files) == "a"
    assert follower(index, files, "a") is None  # the cursor is in it
    changed = {**files, "a": file("return c;", 1)}
    assert follower(index, changed) == "a"  # not that soon
    index._next = 0
    follower(index, changed)
    deadline = time.monotonic() + 20
    while follower(index, changed) != "c" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert follower(index, changed) == "c"


def test_what_is_too_much_leaves_the_oldest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_ngrams, "MAX_TOKENS", 12)
    files = {"old": file("return a;", 1), "new": file("return b;", 2)}
    assert follower(ProjectNgrams(encode, files), files) == "b"


def test_the_text_around_a_cursor_counts_and_its_saved_file_does_not(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    saved = "int one();\nint two();\nint three();\n"
    (tmp_path / "a.cpp").write_text(saved)
    project = project_context(tokenizer, ProjectSettings(tmp_path))
    assert project is not None
    ngrams = project.ngrams("a.cpp", "int one();\nint two();\n", "int three();\n")
    assert ngrams is not None
    assert ngrams.exclude == "a.cpp"
    around = ngrams.around.longest_match(tokenizer.encode("int one();\nint"))
    assert around is not None
    assert ngrams.project.longest_match(tokenizer.encode("int one();\nint")) is not None
    assert ngrams.project.longest_match(tokenizer.encode("int one();\nint"), "a.cpp") is None
    assert project_context(tokenizer, ProjectSettings()) is None
    off = project_context(tokenizer, ProjectSettings(tmp_path, project_ngrams="off"))
    assert off is not None
    assert off.ngrams("a.cpp", "", "") is None
