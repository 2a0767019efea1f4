"""Messages to and from the libclang workers: plain types, sent as JSON.

Files are numbers, their places in `WorkerSetup.files`; lines count from 0.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict, final


class WorkerSetup(TypedDict):
    """The first line to a worker: what every job has in common."""

    files: list[str]
    """Resolved paths of the project's files."""
    digests: list[str]
    """sha256 of each: a copy of one of them, anywhere in the project, is taken for it."""
    roots: list[str]
    """The project's folders."""
    readable: list[str]
    """Existing files and folders that may be read."""
    memory_bytes: int
    builtin: list[list[str]]
    """Flags that may make the compiler's own headers known; the first that work are used."""
    probe: str
    """A program that includes some of those headers."""


class ParseJob(TypedDict):
    """One translation unit."""

    file: int
    flags: list[str]
    walk: list[int]
    """Files whose references are wanted, as far as the unit reads them."""
    cpu_seconds: int


class References(TypedDict):
    """The meaning of the identifiers of some files."""

    names: list[str]
    entities: list[list[Any]]
    """[USR of what is defined elsewhere or "", file, line, file, line, ...]"""
    references: dict[str, list[int]]
    """By file: line, name, entity, and again, sorted."""
    open: dict[str, list[int]]
    """By file: line, name of identifiers that were not understood, and again, sorted."""
    definitions: list[tuple[str, int, int]]
    """USR, file, line."""


@final
class ParseResult(References):
    """The result of a job."""

    seen: list[int]
    """Project files that the unit reads."""
    errors: dict[str, str]
    """First error in a file, by its number."""
    doubtful: dict[str, list[int]]
    """By file: lines with an error, sorted."""


@final
class ParseFailure(TypedDict):
    """Nothing became of it; `fatal` when the worker is gone with it."""

    failed: str
    fatal: NotRequired[bool]
