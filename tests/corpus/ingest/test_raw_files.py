"""The files of projects for a tokenizer: the same selection as a corpus, deterministic, bounded."""

from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.corpus.ingest.raw_files import find_batches
from tests.texts import cpp_document

LARGE = 10**9


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def projects(tmp_path: Path) -> Path:
    files = {f"one/src/f{number}.cpp": cpp_document(number) for number in range(30)}
    files |= {
        "one/README.md": "# One\n\nIt shifts.\n",
        "one/doc/use.rst": "Use\n===\n",
        "one/notes.txt": "x\n",
    }
    files |= {"two/copy.cpp": cpp_document(3), "two/own.h": cpp_document(99), "two/third_party/x.md": "# X\n"}
    return write(tmp_path / "projects", files)


def names(projects: Path, most: int = LARGE, **what: bool) -> list[str]:
    batches, _ = find_batches(projects, most, **what)
    return [path.relative_to(projects).as_posix() for batch in batches for path in batch.paths]


def test_code_and_documentation(projects: Path) -> None:
    found = names(projects)
    assert sum(name.endswith(".cpp") for name in found) == 30  # the copy in the second project is left out
    assert {"one/README.md", "one/doc/use.rst", "two/own.h"} <= set(found)
    assert not {"one/notes.txt", "two/copy.cpp", "two/third_party/x.md"} & set(found)
    assert set(names(projects, code=False)) == {"one/README.md", "one/doc/use.rst"}
    assert set(names(projects, prose=False)) == set(found) - {"one/README.md", "one/doc/use.rst"}


def test_every_batch_is_of_one_project_and_knows_its_size(projects: Path) -> None:
    batches, _ = find_batches(projects, LARGE)
    for batch in batches:
        texts = list(batch.texts())
        assert {project for project, _ in texts} == {batch.project}
        assert sum(len(text) for _, text in texts) == batch.size


def test_a_large_project_is_cut_by_contents(projects: Path) -> None:
    some = names(projects, 10_000)
    assert 2 <= len(some) < 30
    (projects / "one" / "src" / "f0.cpp").rename(projects / "one" / "zzz.cpp")
    again = names(projects, 10_000)
    assert {Path(name).name.replace("zzz", "f0") for name in again} == {Path(name).name for name in some}


def test_the_digest_changes_with_the_contents(projects: Path) -> None:
    before = find_batches(projects, LARGE)[1]
    assert find_batches(projects, LARGE)[1] == before
    write(projects, {"two/own.h": cpp_document(98)})
    assert find_batches(projects, LARGE)[1] != before


def test_nothing_to_find(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        find_batches(tmp_path / "gone", LARGE)
    with pytest.raises(UserError, match="has no sub-folders"):
        find_batches(tmp_path, LARGE)
    write(tmp_path, {"a/data.bin": "x"})
    with pytest.raises(UserError, match=r"no C\+\+ files"):
        find_batches(tmp_path, LARGE)


def test_documentation_that_cannot_be_read_or_is_too_large_is_left_out(
    projects: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = projects / "one" / "README.md"
    (projects / "one" / "doc" / "use.rst").write_text("x " * 300_000)
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        assert path.suffix != ".rst"  # its size is looked at first
        if path == secret:
            raise PermissionError
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    assert {name for name in names(projects) if not name.endswith((".cpp", ".h"))} == set()
