"""Headers compiled beforehand: used where they are the same, and never taken from anybody else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.sandbox import precompiled
from cpplm.sandbox.compiler import COMPILE_LIMITS, fast_linker
from cpplm.sandbox.precompiled import FLAGS, cache_folder, pch_include_dir, precompile
from cpplm.sandbox.sandbox import Sandbox

COMMAND = ("g++", "-std=c++17", "-O0")
SOURCE = b"#include <cstddef>\nint main() { return sizeof(std::size_t) != 8; }\n"


@pytest.fixture(autouse=True)
def cache(public_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder instead of the user's."""
    folder = public_file.parent / "headers"
    folder.mkdir()
    monkeypatch.setattr(precompiled, "cache_folder", lambda: folder)
    yield folder


def test_compiled_headers_are_used_and_cannot_be_changed(sandbox: Sandbox, cache: Path) -> None:
    folder = precompile(sandbox, ["cstddef"], COMMAND, "1")
    assert folder is not None
    assert sorted(path.name for path in folder.iterdir()) == ["all.h", "all.h.gch"]
    command = [*COMMAND, *FLAGS, "-H", "-o", "main", "main.cpp"]
    files = {"main.cpp": SOURCE}
    result = sandbox.run(files, command, COMPILE_LIMITS, folders=pch_include_dir(folder))
    assert result.succeeded, result.message()
    assert "! ./headers/all.h.gch" in result.message(), "gcc marks what it used with !"
    assert "/cstddef" in result.message()
    spoil = ["sh", "-c", "echo x >headers/all.h.gch"]
    assert not sandbox.run({}, spoil, COMPILE_LIMITS, folders=pch_include_dir(folder)).succeeded
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_other_flags_do_not_use_them_and_compile_all_the_same(sandbox: Sandbox) -> None:
    folder = precompile(sandbox, ["cstddef"], COMMAND, "1")
    assert folder is not None
    command = ["g++", "-std=c++14", *FLAGS, "-H", "-o", "main", "main.cpp"]
    result = sandbox.run({"main.cpp": SOURCE}, command, COMPILE_LIMITS, folders=pch_include_dir(folder))
    assert result.succeeded
    assert "! ./headers" not in result.message()


def test_they_are_compiled_once_for_all_that_is_the_same(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = precompile(sandbox, ["cstddef"], COMMAND, "1")
    assert first is not None
    (first / "mark").touch()
    again = precompile(sandbox, ["cstddef"], COMMAND, "1")
    assert again == first
    assert (first / "mark").exists()
    for headers, command, compiler in (
        (["cstddef", "climits"], COMMAND, "1"),
        (["cstddef"], (*COMMAND, "-DX=1"), "1"),
        (["cstddef"], COMMAND, "2"),
    ):
        other = precompile(sandbox, headers, command, compiler)
        assert other is not None
        assert other != first


def test_what_cannot_be_compiled_or_kept(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    assert precompile(sandbox, ["no_such_header"], COMMAND, "1") is None
    monkeypatch.setattr(precompiled, "cache_folder", lambda: None)
    assert precompile(sandbox, ["cstddef"], COMMAND, "1") is None
    monkeypatch.setattr(precompiled, "cache_folder", lambda: Path("/proc"))
    with pytest.raises(OSError, match="/proc"):
        precompile(sandbox, ["cstddef"], COMMAND, "1")


def test_the_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(precompiled.os, "geteuid", lambda: 4242)
    monkeypatch.setattr(precompiled.tempfile, "gettempdir", lambda: str(tmp_path))
    assert cache_folder() is None, "it is owned by whom this test runs as"
    (tmp_path / "cpplm-headers-4242").rmdir()
    (tmp_path / "cpplm-headers-4242").symlink_to("/usr")
    assert cache_folder() is None


def test_the_fastest_linker_links(sandbox: Sandbox) -> None:
    flags = fast_linker(sandbox)
    assert all(flag.startswith("-") for flag in flags)
    files = {"main.cpp": b"#include <iostream>\nint main() { std::cout << 1; }"}
    result = sandbox.run(
        files, ["g++", *flags, "-o", "main", "main.cpp"], COMPILE_LIMITS, fetch={"main": 1 << 20}
    )
    assert result.succeeded, result.message()
    assert sandbox.run({"main": result.files["main"]}, ["./main"], COMPILE_LIMITS).stdout == b"1"


def test_a_linker_that_does_not_work_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = Sandbox.probe()
    monkeypatch.setattr("cpplm.sandbox.compiler.shutil.which", lambda name: name)
    monkeypatch.setattr(
        "cpplm.sandbox.compiler._LINKERS", {"a": ("-fuse-ld=no_such",), "b": ("-fuse-ld=bfd", "-w")}
    )
    assert fast_linker(sandbox) == ("-fuse-ld=bfd", "-w")
    monkeypatch.setattr("cpplm.sandbox.compiler._LINKERS", {"a": ("-fuse-ld=no_such",)})
    assert fast_linker(sandbox) == ()
