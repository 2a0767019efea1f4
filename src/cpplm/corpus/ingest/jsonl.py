"""JSON lines to projects: each record becomes a file, so that everything after that is the same for both.

One JSON object per line: `text`, and optionally `path` (or `file`, `filepath`), `project` (or `repo`) and
`license`. Records without a project form one named after the JSONL file; for those without a
path a name is made up and the language guessed. A license is written beside its file as `NAME.license`, the
way of the REUSE specification (version 3.3, https://reuse.software/spec-3.3/).

    FOLDER/KEY/PROJECT/...   the files; KEY hashes the names and contents of the JSONL files
    FOLDER/KEY.json          the projects and what was left out, written last

One line is in memory at a time. Names come from outside: each is made harmless before it is used.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.storage import Storage, sha256
from cpplm.corpus.ingest.discovery import SUFFIXES, Project
from cpplm.corpus.ingest.walk import SkipCounts

ENDINGS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
LONGEST_LINE = 64_000_000
# Characters of one name and number of folders; file systems take 255 bytes and 4,096 in all.
_LONGEST_NAME = 120
_DEEPEST = 12
_FILES_PER_FOLDER = 1_000
# Raised when the same records give other files.
_FORMAT = 2
_UNSAFE = re.compile(r"[^A-Za-z0-9_.+=,()@ -]")
_LICENSE = re.compile(r"[A-Za-z0-9.+-]+(?:[ ()]+[A-Za-z0-9.+-]+)*\)*")

# Characters by which the language of a record without a path is guessed.
_OPENING = 20_000
_FIRST_DIRECTIVE = re.compile(r"^[ \t]*#", re.MULTILINE)
_GUARD = re.compile(r"[ \t]*#[ \t]*ifndef[ \t]+(\w+)\s+#[ \t]*define[ \t]+\1\b")
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once\b", re.MULTILINE)
_CPLUSPLUS = re.compile(
    r"^[ \t]*(?:class[ \t]+\w|namespace\b|template[ \t]*<|using[ \t]+\w|(?:public|private|protected)[ \t]*:)"
    r"|^[ \t]*#[ \t]*include[ \t]*<\w+>|\bstd::|\bnullptr\b|\bconstexpr\b|\boperator\b",
    re.MULTILINE,
)


def unpack(files: tuple[Path, ...], folder: Path) -> tuple[list[Project], list[dict[str, Any]]]:
    """Write every record below `folder` as a file, unless that was done before.

    Args:
        files: JSONL files, plain or compressed with gzip or Zstandard.
        folder: where to unpack; what the same files gave is found there again.

    Returns:
        The projects, and for each JSONL file its name, the records that became files, and what was left out.

    Raises:
        UserError: a file cannot be read, has no usable line, or has the name of another.
    """
    if not files:
        return [], []
    paths = [path.expanduser() for path in files]
    _check(paths)
    storage = Storage(folder, create=True)
    key = _key(paths)
    if not storage.exists(f"{key}.json"):
        shutil.rmtree(folder / key, ignore_errors=True)  # what a killed unpacking left
        unpacker = _Unpacker(folder / key)
        try:
            reports = [unpacker.unpack(path) for path in paths]
        except BaseException:
            shutil.rmtree(folder / key, ignore_errors=True)
            raise
        done = {"projects": unpacker.projects, "with_paths": sorted(unpacker.with_paths), "files": reports}
        storage.write_json(f"{key}.json", done)
    done = storage.read_json(f"{key}.json")
    projects = [
        Project(name, (folder / key / place,), has_paths=place in done["with_paths"])
        for place, name in done["projects"].items()
    ]
    return projects, done["files"]


def _check(paths: list[Path]) -> None:
    for path in paths:
        if not path.is_file():
            raise UserError(
                f"--jsonl {path} " + ("is not a file" if path.exists() else "does not exist"),
                fix="Name files, not folders.",
            )
        if not path.name.endswith(ENDINGS):
            raise UserError(f"--jsonl {path} ends in none of {', '.join(ENDINGS)}", fix="Rename the file.")
    for name, times in Counter(_stem(path) for path in paths).items():
        if times > 1:
            raise UserError(
                f"{times} --jsonl files are named {name}",
                fix="Rename one: projects without a name are named after the file.",
            )


def _stem(path: Path) -> str:
    return re.sub(r"\.jsonl(?:\.gz|\.zst)?$", "", path.name)


def _key(paths: list[Path]) -> str:
    """Names the unpacked files: changes with any name or byte of the JSONL files."""
    lines = [str(_FORMAT)]
    for path in paths:
        try:
            with path.open("rb") as stream:
                lines.append(f"{hashlib.file_digest(stream, 'sha256').hexdigest()} {path.name}")
        except OSError as error:
            raise _unreadable(path, error) from error
    return sha256("\n".join(lines).encode("utf-8", "surrogateescape"))[:32]


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot read --jsonl {path}: {error}", fix="Check the file, or copy it again.")


class _Unpacker:
    """Turns records into files.

    `projects` maps the folder of each project to its name; `with_paths` are the folders of those in which a
    record has a path.
    """

    def __init__(self, folder: Path) -> None:
        self.projects: dict[str, str] = {}
        self.with_paths: set[str] = set()
        self._folder = folder
        self._serial = 0

    def unpack(self, path: Path) -> dict[str, Any]:
        """All records of one JSONL file; returns what the manifest says about it.

        Raises:
            UserError: it cannot be read, or no line of it is usable.
        """
        skips = SkipCounts()
        records = 0
        with progress_bar(None, path.name, "record") as bar:
            for number, line in _lines(path):
                reason = "longer than 64 MB" if line is None else self._record(line, _stem(path))
                if reason:
                    skips.add(reason, f"{path.name}:{number}")
                else:
                    records += 1
                bar.update(1)
        if not records:
            raise UserError(
                f"--jsonl {path} has no usable line ({str(skips) or 'it is empty'})",
                fix='Each line is a JSON object such as {"text": "int main() {}"}.',
            )
        return {"file": path.name, "records": records, "left_out": skips.to_dict()}

    def _record(self, line: bytes, default_project: str) -> str:
        """Write one record as a file; returns why not, or nothing."""
        try:
            record = json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            return "not JSON"
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            return "no text"
        try:
            data = text.encode()
        except UnicodeEncodeError:
            return "no Unicode text"
        self._serial += 1
        path = _first_text(record, "path", "file", "filepath")
        name = self._name(path, text)
        if name is None:
            return "neither C nor C++ by its path"
        project = _printable(_first_text(record, "project", "repo")) or default_project
        place = sha256(project.encode("utf-8", "surrogateescape"))[:24]
        self.projects[place] = project
        if safe_path(path) is not None:
            self.with_paths.add(place)
        self._write(self._folder / place, name, data, _license(record))
        return ""

    def _name(self, path: str, text: str) -> PurePosixPath | None:
        """The record's path in its project; None for a file of another language."""
        name = safe_path(path)
        if name is None:
            return PurePosixPath(
                f"{self._serial // _FILES_PER_FOLDER:06d}/{self._serial:09d}{guess_suffix(text)}"
            )
        if not name.suffix:
            return name.with_name(name.name + guess_suffix(text))
        return name if name.suffix.lower() in SUFFIXES else None

    def _write(self, project: Path, name: PurePosixPath, data: bytes, license: str) -> None:
        """Write a file under its name, or under a new one where that is taken; no path begins with `$`."""
        again = f"$again/{self._serial // _FILES_PER_FOLDER:06d}/{self._serial:09d}_{name.name}"
        for path in (project / name, project / again):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as stream:
                    stream.write(data)
            except (FileExistsError, NotADirectoryError):
                continue
            if license:
                path.with_name(f"{path.name}.license").write_text(f"SPDX-License-Identifier: {license}\n")
            return


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Numbered lines that are not blank; None for one that is too long to hold."""
    try:
        with io.BufferedReader(pa.input_stream(str(path), compression="detect"), 1 << 20) as stream:
            number = 0
            while line := stream.readline(LONGEST_LINE):
                number += 1
                whole = len(line) < LONGEST_LINE or line.endswith(b"\n")
                if not whole:
                    while (rest := stream.readline(LONGEST_LINE)) and not rest.endswith(b"\n"):
                        pass
                if line.strip():
                    yield number, line if whole else None
    except OSError as error:
        raise _unreadable(path, error) from error


def _first_text(record: dict[str, Any], *keys: str) -> str:
    """The first of these values that is text."""
    return next((value for key in keys if isinstance(value := record.get(key), str) and value.strip()), "")


def _printable(name: str) -> str:
    """A project's name on one line."""
    return " ".join("".join(c if c.isprintable() else " " for c in name).split())[:200]


def _license(record: dict[str, Any]) -> str:
    """An SPDX expression, or nothing."""
    text = _first_text(record, "license").strip()
    return text if len(text) < 200 and _LICENSE.fullmatch(text) else ""


def safe_path(path: str) -> PurePosixPath | None:
    """A relative path that stays where it is put: no root, no `..`, plain characters; None if empty."""
    names = [name for name in re.split(r"[/\\]", path) if name.strip(". ")]
    safe = [_safe_name(name) for name in names[-_DEEPEST:]]
    return PurePosixPath(*safe) if safe else None


def _safe_name(name: str) -> str:
    name = _UNSAFE.sub("_", name.strip())
    if name.startswith("."):  # hidden files are no part of a project
        name = f"_{name[1:]}"
    if len(name) > _LONGEST_NAME:
        suffix = PurePosixPath(name).suffix[:16]
        name = name[: _LONGEST_NAME - len(suffix)] + suffix
    return name


def guess_suffix(text: str) -> str:
    """`.h`, `.cpp` or `.c`, by what the text looks like."""
    opening = text[:_OPENING]
    first = _FIRST_DIRECTIVE.search(opening)
    guarded = first is not None and _GUARD.match(opening, first.start()) and "#endif" in text[-200:]
    if guarded or _PRAGMA_ONCE.search(opening):
        return ".h"
    return ".cpp" if _CPLUSPLUS.search(opening) else ".c"
