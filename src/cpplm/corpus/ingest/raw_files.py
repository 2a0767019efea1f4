"""The C++ files and the documentation of projects as they are, to train or measure a tokenizer on.

C++ files are found and skipped as by `cpplm corpus build`, but for what it decides by reading all of them:
near copies, licenses, personal data. Documentation is what teaches a vocabulary prose. Of equal files the
first stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.storage import sha256
from cpplm.core.workers import batched_by_size
from cpplm.corpus.ingest.discovery import FileRules, Project, SourceFile, find_files, read_raw, subfolders
from cpplm.corpus.ingest.generated_files import in_vendor_folder
from cpplm.corpus.ingest.walk import SkipCounts, walk
from cpplm.tokenizer.pretoken_counts import FileBatch

PROSE_SUFFIXES = frozenset({".md", ".rst"})
_BATCH_BYTES = 8_000_000


def find_batches(
    projects_dir: Path, max_project_bytes: int, *, code: bool = True, prose: bool = True
) -> tuple[list[FileBatch], str]:
    """The files of the projects in a folder, in batches of one project each, and a digest of their contents.

    Args:
        projects_dir: each sub-folder is a project.
        max_project_bytes: of a larger project some files are left out, by the hash of their contents.
        code: take C++ files.
        prose: take Markdown and reStructuredText.

    Raises:
        UserError: no such folder, or no such files in it.
    """
    seen: set[str] = set()
    batches: list[FileBatch] = []
    folders = subfolders(projects_dir)
    with progress_bar(len(folders), "finding files", "project") as bar:
        for folder in folders:
            files = [*(_code(folder) if code else ()), *(_prose(folder) if prose else ())]
            sample = _sample(
                {file.digest: file for file in files if file.digest not in seen}, max_project_bytes
            )
            seen.update(file.digest for file in sample)
            batches += (
                FileBatch(folder.name, tuple(file.path for file in batch), sum(file.size for file in batch))
                for batch in batched_by_size(sample, lambda file: file.size, _BATCH_BYTES)
            )
            bar.update(1)
    if not batches:
        raise UserError(f"{projects_dir} has no C++ files in its sub-folders", fix="Check the path.")
    return batches, sha256("".join(sorted(seen)).encode())


def _code(folder: Path) -> Iterator[SourceFile]:
    files, _ = find_files(Project(folder.name, (folder,)), FileRules())
    return (file for file in files if file.makes_documents)


def _prose(folder: Path) -> Iterator[SourceFile]:
    for path in walk(folder, SkipCounts(), lambda path: path.suffix.lower() in PROSE_SUFFIXES):
        name = path.relative_to(folder).as_posix()
        if in_vendor_folder(name):
            continue
        data = read_raw(path, folder, name, FileRules().max_file_bytes, SkipCounts())
        if data is not None:
            yield SourceFile(path.name, path, len(data), sha256(data))


def _sample(files: dict[str, SourceFile], max_bytes: int) -> list[SourceFile]:
    """Files in their order, without those of the greatest digests when they are too much together."""
    size = 0
    sampled = set()
    for digest in sorted(files):
        size += files[digest].size
        if size > max_bytes:
            break
        sampled.add(digest)
    return [file for digest, file in files.items() if digest in sampled]
