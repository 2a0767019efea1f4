"""The files of a project in a fixed order, without those that git ignores or a build wrote; skips counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpplm.corpus.ingest.gitignore import GITIGNORE, GitIgnore, gitignores_above, is_ignored
from cpplm.cpp.file_suffixes import HEADER_SUFFIXES

BUILD_FOLDER = "build folder"
IGNORED = "ignored by .gitignore"
_SKIPPED_FOLDERS = frozenset({"CVS", "_darcs", "__pycache__", "node_modules"})
# What CMake, Ninja and Meson write into the folder that they build in, and what a folder of sources has.
_BUILD_FILES = frozenset({"CMakeCache.txt", "build.ninja", "meson-private"})
_SOURCE_FILES = frozenset({"CMakeLists.txt", "meson.build", "configure", "configure.py", "BUILD.gn"})
_BAZEL_FOLDERS = frozenset({"bazel-bin", "bazel-out", "bazel-testlogs", "bazel-genfiles"})
_BAZEL_FILES = ("MODULE.bazel", "WORKSPACE", "WORKSPACE.bazel")
_DEPENDENCIES = frozenset({"_deps", "vcpkg_installed", "subprojects"})  # other projects, in a build folder
_NAMED_SKIPS = 5


@dataclass
class SkipCounts:
    """The files that are left out, by reason: how many, their bytes and the first few names."""

    _entries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, reason: str, name: str, size: int = 0) -> None:
        """Count one file."""
        entry = self._entries.setdefault(reason, {"files": 0, "bytes": 0, "examples": []})
        entry["files"] += 1
        entry["bytes"] += size
        if len(entry["examples"]) < _NAMED_SKIPS:
            entry["examples"].append(name)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """For the manifest."""
        return dict(sorted(self._entries.items()))

    def __str__(self) -> str:
        return ", ".join(f"{entry['files']} {reason}" for reason, entry in self.to_dict().items())


def walk(
    root: Path, skips: SkipCounts, is_wanted: Callable[[Path], bool], *, keep_ignored: bool = False,
    built: dict[Path, str] | None = None,
) -> Iterator[Path]:  # fmt: skip
    """The wanted files below `root`, sorted, without hidden ones and linked folders.

    Args:
        root: a folder, which is read however it is called and whatever lies in it.
        skips: counts wanted files in build folders, in a repository those that its `.gitignore` files
            leave out, and folders that cannot be read.
        is_wanted: judges a path by its name.
        keep_ignored: leave out none of these.
        built: gets the headers in build folders and those that are ignored one by one, with that reason.
    """
    built = {} if built is None else built
    above = {root: None if keep_ignored else gitignores_above(root)}
    for name, inside, names in os.walk(
        root, onerror=lambda e: skips.add("unreadable folder", str(e.filename))
    ):
        folder = Path(name)
        ignores = above.pop(folder)
        if folder != root and not keep_ignored and (reason := _reason(folder, inside, names, ignores)):
            for path in filter(is_wanted, _files_below(folder)):
                skips.add(reason, relative_name(path, root), path.lstat().st_size)
                if reason == BUILD_FOLDER and _is_written(path.relative_to(folder)):
                    built[path] = reason
            inside.clear()
            continue
        if not keep_ignored:
            if ".git" in (*inside, *names):  # another repository: what is above ends here
                ignores = ()
            if ignores is not None and GITIGNORE in names and (file := GitIgnore.read(folder)):
                ignores = (*ignores, file)
        inside[:] = sorted(
            each
            for each in inside
            if not each.startswith(".") and each not in _SKIPPED_FOLDERS and not (folder / each).is_symlink()
        )
        above.update((folder / each, ignores) for each in inside)
        for path in (folder / each for each in sorted(names) if not each.startswith(".")):
            if not is_wanted(path):
                continue
            if is_ignored(ignores, path, is_dir=False):
                skips.add(IGNORED, relative_name(path, root), path.lstat().st_size)
                built |= {path: IGNORED} if _is_written(path.relative_to(root)) else {}
            else:
                yield path


def relative_name(path: Path, root: Path) -> str:
    """The name of a file within a project, as UTF-8 can write it."""
    return os.fsencode(path.relative_to(root).as_posix()).decode("utf-8", "replace")


def _reason(folder: Path, inside: list[str], names: list[str], ignores: tuple[GitIgnore, ...] | None) -> str:
    """Why all that is in a folder is left out; "" when it is not."""
    entries = {*inside, *names}
    if (
        folder.name == "CMakeFiles"
        or folder.name.endswith("_autogen")
        or (entries & _BUILD_FILES and not entries & _SOURCE_FILES)
        or folder.name in _BAZEL_FOLDERS
        or (folder.name.startswith("bazel-") and any((folder.parent / f).is_file() for f in _BAZEL_FILES))
    ):
        return BUILD_FOLDER
    return IGNORED if is_ignored(ignores, folder, is_dir=True) else ""


def _is_written(path: Path) -> bool:
    """True for a header, or a template of one, that is not another project's."""
    name = path.with_suffix("") if path.suffix == ".in" else path
    return name.suffix.lower() in HEADER_SUFFIXES and _DEPENDENCIES.isdisjoint(path.parts)


def _files_below(folder: Path) -> Iterator[Path]:
    for name, inside, names in os.walk(folder):
        inside.sort()
        yield from (Path(name, each) for each in sorted(names))
