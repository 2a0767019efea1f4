"""Projects of a build, found and checked, with the files of them that make documents."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from cpplm.core.errors import UserError
from cpplm.core.workers import worker_pool
from cpplm.corpus.clang.semantics import plan_semantics
from cpplm.corpus.ingest.curation import CurationRules, curate
from cpplm.corpus.ingest.decontamination import load_problems
from cpplm.corpus.ingest.discovery import FileRules, Project, find_files, find_projects, subfolders
from cpplm.corpus.ingest.fingerprints import KnownFile
from cpplm.corpus.project import DiscoveredProject
from cpplm.corpus.settings import CorpusSettings
from cpplm.corpus.slicing.build_headers import build_defaults

# From here on starting workers takes less time than they save in looking for copies.
_MUCH_SOURCE = 100_000_000


def discover(
    settings: CorpusSettings, unpacked: list[Project], finished: frozenset[str], known_files: list[KnownFile]
) -> tuple[list[DiscoveredProject], list[KnownFile]]:
    """All projects, sorted by name, and the files of new ones that make documents.

    Args:
        settings: name projects that lie in folders.
        unpacked: projects made from JSON lines; one without usable files stays, for what was left out of it.
        finished: projects of the corpus that is there; nothing is decided on their files any more.
        known_files: the files that this corpus was made of, where new projects are added to it.

    Raises:
        UserError: a named project without C++ files, none that has any, or two projects of one name.
    """
    projects = sorted([*find_projects(settings), *unpacked], key=lambda project: project.name)
    for name, times in Counter(project.name for project in projects).items():
        if times > 1:
            raise UserError(f"{times} projects are named {name}", fix="Rename one, or leave it out.")
    plans = {project.name: plan_semantics(settings, project) for project in projects}
    rules, records = file_rules(settings), frozenset(unpacked)
    record_rules = replace(rules, keep_ignored=True)  # unpacked, they are in no repository
    curation = CurationRules(
        load_problems(settings.decontaminate),
        settings.near_duplicates,
        redact=not settings.keep_personal_data,
    )
    discovered = [
        DiscoveredProject(
            project,
            *find_files(project, record_rules if project in records else rules),
            semantic=plans[project.name],
            defaults=build_defaults(project.roots),
        )
        for project in projects
    ]
    _check_not_empty(settings, discovered, records)
    new = [item for item in discovered if item.project.name not in finished]
    if settings.worker_count > 1 and sum(file.size for item in new for file in item.files) > _MUCH_SOURCE:
        with worker_pool(settings.worker_count) as pool:
            files = curate(new, curation, known=known_files, run=pool.map)
    else:
        files = curate(new, curation, known=known_files)
    return discovered, files


def _check_not_empty(
    settings: CorpusSettings, discovered: list[DiscoveredProject], records: frozenset[Project]
) -> None:
    """Count the projects of `--projects_dir` that have no C++ files.

    Raises:
        UserError: one that was named has none, or no project has any.
    """
    empty = [item for item in discovered if not any(file.makes_documents for file in item.files)]
    folders = subfolders(settings.projects_dir) if settings.projects_dir is not None else []
    unnamed = {path.resolve() for path in folders}
    for item in empty:
        if item.project in records:
            continue
        if item.project.roots[0] in unnamed and len(empty) < len(discovered):
            item.skips.add("project without C or C++ files", ".")
            continue
        left_out = f" (left out: {item.skips})" if str(item.skips) else ""
        raise UserError(
            f"project {item.project.name} ({item.project.roots[0]}) has no C or C++ files to learn from"
            f"{left_out}",
            fix="Check the path, or leave this project out.",
        )


def file_rules(settings: CorpusSettings) -> FileRules:
    """The rules of these settings."""
    return FileRules(
        settings.max_file_bytes,
        settings.max_include_bytes,
        settings.keep_vendored,
        settings.keep_ignored,
        settings.licenses,
    )
