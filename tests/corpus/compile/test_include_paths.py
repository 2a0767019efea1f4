"""Include folders guessed from a project's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cpplm.corpus.compile.include_paths import IncludePaths


@pytest.fixture
def project(tmp_path: Path) -> Path:
    contents = {
        "src/main.cpp": '#include "beside.h"\n#include <lib/far.h>\n#  include "inner/deep.h" // yes\n',
        "src/beside.h": '#include "nowhere.h"\n',
        "include/lib/far.h": '#include "other.h"\n#include <string.h>\n',
        "include/lib/other.h": '#include "../src/main.cpp"\n',
        "third/inner/deep.h": '#include "generated.inc"\n#include "lib/far.h"\n',
        "build/generated.inc": "",
        "src/string.h": "",
    }
    for name, text in contents.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "project"


def pairs(words: list[str]) -> set[tuple[str, str]]:
    assert len(words) % 2 == 0
    return set(zip(words[::2], words[1::2], strict=True))


def test_folders_of_all_that_a_file_brings_in(project: Path) -> None:
    found = pairs(IncludePaths(project).options("src/main.cpp", prefix="p"))
    assert found == {
        ("-I", "p/include"),  # <lib/far.h>
        ("-iquote", "p/third"),  # inner/deep.h
        ("-iquote", "p/build"),  # generated.inc, by way of deep.h
        ("-iquote", "p/include"),  # "lib/far.h", from deep.h
        ("-I", "p/src"),  # <string.h>: there is no other
    }


def test_system_headers_are_not_replaced(project: Path, tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "string.h").write_text("")
    paths = IncludePaths(project, [tmp_path / "system"])
    assert ("-I", "p/src") not in pairs(paths.options("src/main.cpp", prefix="p"))


def test_the_nearest_of_several(tmp_path: Path) -> None:
    for name in ("a/include/x.h", "b/include/x.h", "b/src/sub/main.c", "main.c"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#include <x.h>\n" if name.endswith(".c") else "")
    paths = IncludePaths(tmp_path)
    assert paths.options("b/src/sub/main.c", prefix="p") == ["-I", "p/b/include"]
    (tmp_path / "x.h").touch()
    assert IncludePaths(tmp_path).options("main.c", prefix="p") == ["-I", "p"], "exactly this name"


def test_half_a_name_is_no_ending(tmp_path: Path) -> None:
    (tmp_path / "my_util").mkdir()
    (tmp_path / "my_util" / "x.h").write_text("")
    (tmp_path / "main.c").write_text("#include <util/x.h>\n")
    assert IncludePaths(tmp_path).options("main.c", prefix="p") == []


def test_cycles_and_unreadable_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.h").write_bytes(b'#include "y.h"\n\xff\xfe\n#include <\xff>\n')
    (tmp_path / "y.h").write_bytes(b'#include "x.h"\n')
    (tmp_path / "loop").symlink_to(tmp_path)
    paths = IncludePaths(tmp_path)
    assert pairs(paths.options("a/x.h", prefix="p")) == {("-iquote", "p"), ("-iquote", "p/a")}
    assert paths.options("none.h", prefix="p") == []
