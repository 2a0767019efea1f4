"""Whole projects built in one mode, in this process."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cpplm.corpus.ingest.discovery import Project, find_files
from cpplm.corpus.project import BuildPlan, DiscoveredProject, build_project
from tests.corpus.cpp import write_files

INLINED = BuildPlan(49_152, ordered=True, tokenizer=None, inlined=True, max_repeat=1e9)
CROSS_FILE = BuildPlan(49_152, ordered=True, tokenizer=None, cross_file_depth=3, max_repeat=1e9)
COMPILABLE = BuildPlan(49_152, ordered=True, tokenizer=None, max_repeat=1e9)

Row = dict[str, Any]


def rows_of(
    folder: Path, plan: BuildPlan, *, has_paths: bool = True, bare_headers: bool = False, **changes: Any
) -> list[Row]:
    """The rows of the project in a folder; `changes` are made to the plan."""
    project = Project("p", (folder,), bare_headers, has_paths)
    found = DiscoveredProject(project, *_found(project))
    return [row for rows, _ in build_project(found, replace(plan, **changes), map, {}) for row in rows]


def _found(project: Project) -> tuple[Any, Any]:
    files, skips = find_files(project)
    return tuple(files), skips


def row_of(folder: Path, files: Mapping[str, str | bytes], plan: BuildPlan, of: str, **changes: Any) -> Row:
    """The one row that was built for a file."""
    rows = [row for row in rows_of(write_files(folder, files), plan, **changes) if row["files"][0] == of]
    assert len(rows) == 1, [row["files"] for row in rows]
    return rows[0]
