"""Folders of the host that a program may read: these and nothing else of the host, and never to write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.sandbox.backends import UNSAFE
from cpplm.sandbox.compiler import check_mounts
from cpplm.sandbox.limits import MIB, ResourceLimits
from cpplm.sandbox.sandbox import Sandbox

WRITABLE = ResourceLimits(scratch_bytes=MIB)


@pytest.fixture
def shared(public_file: Path) -> Iterator[Path]:
    """A folder in a folder with a secret, which it links to in every way."""
    folder = public_file.parent / "shared"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.h").write_text("int a;\n")
    (folder / "absolute").symlink_to(public_file)
    (folder / "relative").symlink_to("../public")
    (folder / "outside").symlink_to("..")
    (folder / "etc").symlink_to("/etc")
    (folder / "inside").symlink_to("deep/a.h")
    (folder / "program").write_text("#!/bin/sh\necho ran\n")
    (folder / "program").chmod(0o777)
    for path in (folder, folder / "deep", folder / "deep" / "a.h"):
        path.chmod(0o777)
    yield folder
    assert (folder / "deep" / "a.h").read_text() == "int a;\n"
    assert public_file.read_text() == "the secret"


@pytest.mark.parametrize("limits", [ResourceLimits(), WRITABLE], ids=["read_only", "writable"])
def test_files_are_read_by_the_name_given(sandbox: Sandbox, shared: Path, limits: ResourceLimits) -> None:
    command = ["sh", "-c", "cat lib/deep/a.h lib/inside && ls lib lib/deep"]
    result = sandbox.run({}, command, limits, folders={"lib": shared})
    assert result.succeeded, result.message()
    assert result.stdout.startswith(b"int a;\nint a;\n")
    assert b"program" in result.stdout


def test_two_folders_beside_files(sandbox: Sandbox, shared: Path) -> None:
    folders = {"one": shared, "two": shared / "deep"}
    files = {"main.cpp": b'#include <a.h>\n#include "own/b.h"\nint c = a + b;\n', "own/b.h": b"int b;\n"}
    command = ["g++", "-fsyntax-only", "-isystem", "two", "main.cpp"]
    limits = ResourceLimits(processes=16, scratch_bytes=MIB, memory_bytes=1024 * MIB)
    result = sandbox.run(files, command, limits, folders=folders)
    assert result.succeeded, result.message()


@pytest.mark.parametrize(
    "path", ["absolute", "relative", "outside/public", "etc/passwd", "../../public", "deep/../../../public"]
)
def test_nothing_else_of_the_host_becomes_visible(sandbox: Sandbox, shared: Path, path: str) -> None:
    """Namespaces: such links lead nowhere. Landlock: they lead to a file that cannot be opened."""
    folders = {"lib": shared}
    result = sandbox.run({}, ["cat", f"lib/{path}"], ResourceLimits(), folders=folders)
    assert not result.succeeded
    assert result.stdout == b""
    include = sandbox.run(
        {"a.cpp": f'#include "lib/{path}"\n'.encode()},
        ["g++", "-fsyntax-only", "a.cpp"],
        ResourceLimits(processes=16, scratch_bytes=MIB, memory_bytes=1024 * MIB),
        folders=folders,
    )
    assert not include.succeeded
    assert b"secret" not in include.stderr
    assert b"root:" not in include.stderr


def test_the_unsafe_sandbox_is_what_those_attacks_succeed_in(shared: Path) -> None:
    result = Sandbox(UNSAFE).run({}, ["cat", "lib/absolute"], ResourceLimits(), folders={"lib": shared})
    assert result.stdout == b"the secret"


@pytest.mark.parametrize(
    "attack",
    [
        "echo x >lib/deep/a.h",
        "rm -f lib/deep/a.h",
        "touch lib/new",
        "ln lib/deep/a.h own && echo x >own",
        "mv lib/deep lib/d",
        "chmod 600 lib/deep/a.h",
    ],
)
def test_nothing_in_them_can_be_changed(sandbox: Sandbox, shared: Path, attack: str) -> None:
    result = sandbox.run({}, ["sh", "-c", attack], WRITABLE, folders={"lib": shared})
    assert not result.succeeded
    assert sorted(path.name for path in shared.iterdir()) == sorted(
        ["deep", "absolute", "relative", "outside", "etc", "inside", "program"]
    )
    assert (shared / "deep" / "a.h").stat().st_mode & 0o777 == 0o777


def test_nothing_in_them_can_be_executed(sandbox: Sandbox, shared: Path) -> None:
    if sandbox.name == "bubblewrap":
        pytest.skip("bwrap has no such mounts; a program can run its own copy in any case")
    result = sandbox.run({}, ["lib/program"], ResourceLimits(), folders={"lib": shared})
    assert not result.succeeded
    assert result.stdout == b""


def test_deleting_the_way_to_a_folder_deletes_nothing(sandbox: Sandbox, shared: Path) -> None:
    sandbox.run({}, ["sh", "-c", "rm -rf lib/ lib"], WRITABLE, folders={"lib": shared})
    assert (shared / "deep" / "a.h").exists()


def test_a_folder_is_not_fetched(sandbox: Sandbox, shared: Path) -> None:
    folders = {"lib": shared}
    assert sandbox.run({}, ["true"], WRITABLE, fetch={"lib": 100}, folders=folders).files == {}


def test_names_that_clash(sandbox: Sandbox, tmp_path: Path) -> None:
    for name in ("a/b", ".", "..", "a b"):
        with pytest.raises(ValueError, match="plain file name"):
            sandbox.run({}, ["true"], ResourceLimits(), folders={name: tmp_path})
    for name in ("lib", "lib/a.h"):
        with pytest.raises(ValueError, match="only be read"):
            sandbox.run({name: b""}, ["true"], ResourceLimits(), folders={"lib": tmp_path})
    with pytest.raises(ValueError, match="not a folder"):
        sandbox.run({}, ["true"], ResourceLimits(), folders={"lib": tmp_path / "none"})


def test_folders_that_cannot_be_read_are_named(sandbox: Sandbox, tmp_path: Path, shared: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    check_mounts(sandbox, [shared])
    with pytest.raises(UserError, match="closed cannot be read"):
        check_mounts(sandbox, [shared, closed])
    with pytest.raises(UserError, match="none cannot be read"):
        check_mounts(sandbox, [tmp_path / "none"])
