"""Matching of paths against `.gitignore` files as git does it: nested files, negation, folders as a whole.

Patterns are pathspec's. Its `GitIgnoreSpec` judges whole paths at once and takes a match of a folder for one
of everything in it, so that `*`, `!*/`, `!*.cc` leaves out every folder; git goes down from the top and lets
the last pattern that matches the folder or file itself decide (gitignore(5)). So does this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

GITIGNORE = ".gitignore"
_MAX_BYTES = 1_000_000
# A regular expression made of more of them takes for ever on a file name that was made for it.
_MAX_STARS = 8
_MAX_STARS_PER_SEGMENT = 4


@dataclass(frozen=True)
class GitIgnore:
    """One `.gitignore` file: the folder that it lies in, and its patterns in order."""

    folder: Path
    patterns: tuple[GitIgnoreSpecPattern, ...]

    @classmethod
    def read(cls, folder: Path) -> GitIgnore | None:
        """The file in a folder; None where there is none that can be read. As for git, a link is none."""
        path = folder / GITIGNORE
        try:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > _MAX_BYTES:
                return None
            lines = path.read_bytes().decode("utf-8-sig", "surrogateescape").splitlines()
        except OSError:
            return None
        return cls(folder, tuple(_patterns(lines)))

    def decide(self, path: Path, *, is_dir: bool) -> bool | None:
        """True if a path below the folder is ignored, None when no pattern matches it."""
        name = path.relative_to(self.folder).as_posix() + "/" * is_dir
        return next((pattern.include for pattern in reversed(self.patterns) if _matches(pattern, name)), None)


def _patterns(lines: list[str]) -> Iterator[GitIgnoreSpecPattern]:
    for line in lines:
        stars = [segment.count("*") for segment in line.split("/")]
        if sum(stars) > _MAX_STARS or max(stars) > _MAX_STARS_PER_SEGMENT:
            continue
        try:
            pattern = GitIgnoreSpecPattern(line)
        except (ValueError, re.error):  # git ignores such a line, too
            continue
        if pattern.include is not None:
            yield pattern


def _matches(pattern: GitIgnoreSpecPattern, name: str) -> bool:
    """True if a pattern matches a path itself, not only a folder above it."""
    line = str(pattern.pattern).rstrip()
    glob = line.removeprefix("!").rstrip("/")
    if "/" not in glob:
        name = name[name.rfind("/", 0, -1) + 1 :]
    match = pattern.regex.search(name) if pattern.regex else None
    if match is None:
        return False
    if glob.endswith("/**"):  # all that is below the folder
        return match.end() < len(name) and (name.endswith("/") or not line.endswith("/"))
    # The group is the slash behind a folder that was matched.
    return match.lastgroup is None or match.end() == len(name)


def is_ignored(files: Sequence[GitIgnore] | None, path: Path, *, is_dir: bool) -> bool:
    """True if a path in a folder that is not ignored is ignored; `files` lie above it, the nearest last."""
    decisions = (file.decide(path, is_dir=is_dir) for file in reversed(files or ()))
    return next((decision for decision in decisions if decision is not None), False)


def gitignores_above(root: Path) -> tuple[GitIgnore, ...] | None:
    """The files above a folder in its repository; none where these ignore the folder itself.

    None where there is no repository, as in an unpacked archive: what was put into that is part of it.
    """
    repository = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), None)
    if repository is None:
        return None
    files: list[GitIgnore] = []
    for folder in reversed(root.parents[: len(root.parts) - len(repository.parts)]):
        file = GitIgnore.read(folder)
        files += [file] if file else []
        below = folder / root.relative_to(folder).parts[0]
        if is_ignored(files, below, is_dir=True):
            return ()
    return tuple(files)
