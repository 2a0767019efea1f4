"""`cpplm corpus build`: projects to parquet shards, resumable and the same for any number of workers.

    OUT/_jsonl/...               records of JSONL files, unpacked (jsonl.py)
    OUT/_configured/...          headers that projects' configuration steps wrote (configure.py)
    OUT/_parts/...               rows of each project (project_cache.py), then by shard (shard_writer.py)
    OUT/train_00000.parquet ...  rows in the order of their hash, projects mixed
    OUT/fingerprints_00000.parquet  what copies among later projects are recognised by (fingerprints.py)

A killed build loses at most the projects that were being worked on. Nothing counts as a corpus before
`_COMPLETE`. Appending writes all shards anew under names that are free and then replaces the manifest, in one
step: at any moment the manifest describes either the earlier corpus or the new one, and every shard it names
is there. What no manifest names is deleted last.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from cpplm import __version__
from cpplm.core.errors import UserError
from cpplm.core.locking import exclusive_lock
from cpplm.core.progress import progress_bar
from cpplm.core.shards import COMPLETE, MANIFEST, ShardReader, shard_names, write_manifest
from cpplm.core.storage import Storage, is_bucket, sha256
from cpplm.core.workers import peak_resident_memory, processor_seconds
from cpplm.corpus import datatrove_executor
from cpplm.corpus.compile.labels import CompileLabeler, plan_labeler
from cpplm.corpus.discover_projects import discover, file_rules
from cpplm.corpus.ingest import jsonl
from cpplm.corpus.ingest.configure import configure
from cpplm.corpus.ingest.discovery import Project, built_files
from cpplm.corpus.ingest.fingerprints import (
    FINGERPRINTS_NAME,
    KnownFile,
    read_fingerprints,
    write_fingerprints,
)
from cpplm.corpus.ingest.pii import redact
from cpplm.corpus.project import BuildPlan, DiscoveredProject
from cpplm.corpus.project_cache import PARTS, ProjectJob, make_jobs, missing_jobs, run_project_jobs
from cpplm.corpus.reports.train_val_overlap import train_val_overlap
from cpplm.corpus.settings import CorpusSettings
from cpplm.corpus.shard_writer import write_splits
from cpplm.tokenizer.tokenizer import Tokenizer

UNPACKED, CONFIGURED = "_jsonl", "_configured"
# Raised when the documents made from the same input, or their columns, change.
_FORMAT = 24


def build(settings: CorpusSettings) -> dict[str, Any]:
    """Build the corpus; returns its figures, which are also in the manifest, and what it took.

    Raises:
        UserError: bad settings or input, another corpus in `out`, or a disk that is full.
    """
    started, processor = time.perf_counter(), processor_seconds()
    pa.set_memory_pool(pa.system_memory_pool())  # the others keep hundreds of megabytes that are free
    if settings.engine == "datatrove":
        datatrove_executor.import_executor()
    labels = plan_labeler(settings)
    with (
        _output(settings.out) as storage,
        _local_folder(storage, UNPACKED) as jsonl_folder,
        _local_folder(storage, CONFIGURED) as headers,
    ):
        unpacked, records = jsonl.unpack(settings.jsonl, jsonl_folder)
        work = _prepare(settings, storage, unpacked, labels, headers)
        if work.jobs:
            _build_parts(settings, storage, work.jobs)
            _write_corpus(storage, work, settings, records)
        manifest: dict[str, Any] = storage.read_json(MANIFEST)
        _tidy(storage, manifest)
    parent, worker = peak_resident_memory()
    return {
        **manifest,
        "already_complete": not work.jobs,
        "seconds": round(time.perf_counter() - started, 2),
        "core_seconds": round(processor_seconds() - processor, 2),
        "peak_memory_bytes": parent,
        "peak_worker_memory_bytes": worker,
    }


def datatrove_pipeline(settings: CorpusSettings) -> list[datatrove_executor.BuildStep]:
    """For datatrove's executors: the steps that build the parts of a corpus, any number of tasks wide.

    Finds the projects now; the tasks have to see the sources, `out` and the tokenizer under the same paths.
    Each task uses `workers` processes, one when that is 0. `datatrove_executor.py` has an example, and says
    what to run next.

    Raises:
        UserError: as `build`, or the corpus is complete already.
    """
    if (settings.jsonl or settings.configure) and is_bucket(settings.out):
        raise UserError(
            f"records and headers cannot be unpacked for other machines into {settings.out}",
            fix="Use an --out folder that all of them see.",
        )
    labels = plan_labeler(settings)
    with _output(settings.out) as storage:
        unpacked, _ = jsonl.unpack(settings.jsonl, Path(storage.location, UNPACKED))
        work = _prepare(settings, storage, unpacked, labels, Path(storage.location, CONFIGURED))
        if not work.jobs:
            raise UserError(f"{storage.location} is complete already", fix="There is nothing to run.")
        jobs = missing_jobs(storage, work.jobs)
    return [datatrove_executor.BuildStep(jobs, max(1, settings.workers))]


class _PreparedBuild(NamedTuple):
    """The projects that are not in the corpus yet, the corpus that they are added to, the files of both."""

    identity: dict[str, Any]
    jobs: list[ProjectJob]
    digests: dict[str, str]
    earlier: ShardReader | None
    files: list[KnownFile]


def _prepare(
    settings: CorpusSettings,
    storage: Storage,
    unpacked: list[Project],
    labels: CompileLabeler | None,
    headers: Path,
) -> _PreparedBuild:
    """Find the projects, compare them with what `out` holds, and configure those that are new into `headers`.

    Raises:
        UserError: a bad project, or `out` holds another corpus.
    """
    tokenizer_hash = Tokenizer.load(settings.tokenizer).hash if settings.tokenizer else ""
    identity = {**settings.identity(tokenizer_hash), "format": _FORMAT}
    identity["compiler"] = labels.compiler_version if labels else ""
    earlier = ShardReader(storage.location) if storage.exists(COMPLETE) else None
    if settings.append and earlier is None:
        raise UserError(
            f"{storage.location} holds no finished corpus to append to",
            fix="Leave out --append; an interrupted build goes on with the settings it was started with.",
        )
    known_files = read_fingerprints(earlier) if earlier is not None and settings.append else []
    finished = frozenset(earlier.manifest.get("sources", {}) if earlier is not None else ())
    projects, files = discover(settings, unpacked, finished, known_files)
    digests = {item.project.name: _source_digest(item) for item in projects}
    if earlier is not None:
        _compare(storage, earlier.manifest, identity, projects, digests, append=settings.append)
        projects = [item for item in projects if item.project.name not in finished]
    if settings.configure:
        made_of_records = frozenset(unpacked)
        _configure([each for each in projects if each.project not in made_of_records], settings, headers)
    plan = BuildPlan(
        settings.budget,
        settings.tokenizer,
        settings.mode,
        settings.cross_file_depth,
        labels,
        settings.max_repeat,
    )
    jobs = make_jobs(storage.location, projects, plan, identity)
    return _PreparedBuild(identity, jobs, digests, earlier, known_files + files)


def _configure(projects: list[DiscoveredProject], settings: CorpusSettings, folder: Path) -> None:
    """Add to projects what their own configuration steps make.

    Raises:
        UserError: there is no sandbox to run them in.
    """
    items = [item for item in projects if not item.project.bare_headers]
    if not items:
        return
    roots = [item.project.roots[0] for item in items]
    results = configure(roots, folder, settings.worker_count, unsafe=settings.unsafe)
    for item, made in zip(items, results, strict=True):
        known = {file.name for file in item.files}
        headers = {name: path for name, path in made.headers.items() if name not in known}
        files = built_files(item.project, headers, file_rules(settings), item.skips)
        macros = dict(made.macros)
        if not settings.keep_personal_data:
            macros = {name: redact(value)[0] for name, value in macros.items()}
        item.files += [replace(file, redact=not settings.keep_personal_data) for file in files]
        item.defaults = replace(item.defaults, macros=dict(item.defaults.macros) | macros)
        item.configured = made.figures()


def _compare(
    storage: Storage,
    manifest: dict[str, Any],
    identity: dict[str, Any],
    projects: list[DiscoveredProject],
    digests: dict[str, str],
    *,
    append: bool,
) -> None:
    """Compare settings and projects with those of the corpus that is there.

    Raises:
        UserError: they differ in more than projects to be appended.
    """
    old_identity, old_sources = manifest.get("identity", {}), manifest.get("sources", {})
    differences = [
        f"{name} was {old_identity.get(name)!r}, now {value!r}"
        for name, value in identity.items()
        if old_identity.get(name) != value
    ]
    differences += [
        f"the files of project {name} changed" + (", or its compiler flags" if semantic else "")
        for name, semantic in sorted((item.project.name, item.semantic is not None) for item in projects)
        if old_sources.get(name, digests[name]) != digests[name]
    ]
    fix = "Choose another --out, or delete that folder to build it anew."
    if not append and not differences:
        differences += [f"project {name} is new" for name in sorted(digests.keys() - old_sources.keys())]
        if differences:
            fix = f"Add --append to keep that corpus and add to it. {fix}"
        differences += [
            f"project {name} is no longer given" for name in sorted(old_sources.keys() - digests.keys())
        ]
    if differences:
        raise UserError(f"{storage.location} holds another corpus: {'; '.join(differences[:3])}", fix=fix)


def _source_digest(item: DiscoveredProject) -> str:
    """Changes with a project's files and compiler flags, but not with what other projects decide on them."""
    lines = "".join(f"{file.digest} {file.license} {file.name}\n" for file in item.files)
    lines += item.semantic.digest if item.semantic is not None else ""
    lines += item.defaults.digest
    return sha256(lines.encode("utf-8", "surrogateescape"))


def _build_parts(settings: CorpusSettings, storage: Storage, jobs: list[ProjectJob]) -> None:
    """Build every project that has no finished parts yet."""
    missing = missing_jobs(storage, jobs)
    if settings.engine == "datatrove":
        datatrove_executor.run_tasks(missing, settings.tasks or settings.worker_count, settings.worker_count)
        return
    with progress_bar(sum(job.item.size for job in missing), "corpus", "B", unit_scale=True) as bar:
        run_project_jobs(missing, settings.worker_count, bar.update)


def _write_corpus(
    storage: Storage, work: _PreparedBuild, settings: CorpusSettings, records: list[dict[str, Any]]
) -> None:
    """Parts, and the rows of the earlier corpus, to shards; then the manifest."""
    records_by_project = {job.item.project.name: storage.read_json(job.record) for job in work.jobs}
    parts = [name for record in records_by_project.values() for name in record["parts"]]
    shards, split_by = write_splits(
        storage, f"{PARTS}/shuffle/", parts, settings.val_fraction, settings.val_split, work.earlier
    )
    old_manifest = work.earlier.manifest if work.earlier else {}
    write_manifest(
        storage,
        shards,
        identity=work.identity,
        sources=old_manifest.get("sources", {})
        | {job.item.project.name: work.digests[job.item.project.name] for job in work.jobs},
        projects=old_manifest.get("projects", {})
        | {name: record["figures"] for name, record in records_by_project.items()},
        records=old_manifest.get("records", []) + records,
        split_by=split_by,
        validation=train_val_overlap(storage, shards),
        fingerprints=write_fingerprints(storage, work.files, work.earlier),
        versions={name: version(name) for name in ("pyarrow", "tree-sitter", "tree-sitter-cpp")}
        | {"cpplm": __version__},
    )


def _tidy(storage: Storage, manifest: dict[str, Any]) -> None:
    """Delete what the manifest does not name: parts, unpacked records, shards of an earlier corpus."""
    named = {shard["name"] for shard in manifest["shards"]}
    named.add(manifest["fingerprints"]["name"])
    storage.delete([name for name in _written_names(storage) if name not in named])
    storage.delete(storage.list_names(PARTS))
    if not is_bucket(storage.location):
        for name in (UNPACKED, CONFIGURED):
            shutil.rmtree(Path(storage.location, name), ignore_errors=True)
    storage.cleanup_partial_writes()


def _written_names(storage: Storage) -> list[str]:
    """Shards and fingerprints, whether or not a manifest names them."""
    return shard_names(storage) + [name for name in storage.list_names() if FINGERPRINTS_NAME.fullmatch(name)]


@contextmanager
def _output(location: str) -> Iterator[Storage]:
    """The folder or bucket to write to, locked; a new folder that stays empty is removed again.

    Raises:
        UserError: it holds files that are not cpplm's, or another process writes there.
    """
    new = not is_bucket(location) and not Path(location).expanduser().exists()
    storage = Storage(location, create=True)
    with exclusive_lock(storage.location):
        ours = {MANIFEST, COMPLETE, *_written_names(storage)}
        temporary = (PARTS, UNPACKED, CONFIGURED)
        names = [name for name in storage.list_names() if name.split("/")[0] not in temporary]
        foreign = [name for name in names if name not in ours]
        if foreign and COMPLETE not in names:
            raise UserError(
                f"{storage.location} holds other files, such as {foreign[0]}", fix="Choose another --out."
            )
        storage.cleanup_partial_writes()
        try:
            yield storage
        finally:
            storage.cleanup_partial_writes()
            if new:
                with suppress(OSError):  # not empty
                    Path(storage.location).rmdir()


@contextmanager
def _local_folder(storage: Storage, name: str) -> Iterator[Path]:
    """A folder for the time of a build: in `out`, where the next one finds it, or a temporary one."""
    if is_bucket(storage.location):
        with tempfile.TemporaryDirectory(prefix="cpplm-corpus-") as folder:
            yield Path(folder)
    else:
        yield Path(storage.location, name)
