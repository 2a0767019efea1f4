"""The parts of a corpus: rows by project, built once, in this process, in workers or on other machines.

    OUT/_parts/KEY_00000.parquet   rows of one project; KEY hashes the project's files and the settings
    OUT/_parts/KEY.json            its figures, written when all of its parts are there

A project counts as built when its KEY.json exists. Whoever builds it writes the same bytes, so that doing it
twice, even at the same time, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from cpplm import __version__
from cpplm.core.shards import write_table
from cpplm.core.spans import BORROWED_COLUMN, DOCSTRINGS_COLUMN, SPANS_COLUMN
from cpplm.core.storage import Storage, sha256
from cpplm.core.workers import batched_by_size, worker_pool
from cpplm.corpus.project import BuildPlan, DiscoveredProject, build_project
from cpplm.cpp.doc_comments import DocPair

PARTS = "_parts"
_SOURCE = pa.struct({"file": pa.string(), "first": pa.int32(), "last": pa.int32(), "reason": pa.string()})
PART_SCHEMA = pa.schema({
    "text": pa.string(),
    "id": pa.string(),
    "project": pa.string(),
    "files": pa.list_(pa.string()),
    "sources": pa.list_(_SOURCE),
    "license": pa.string(),
    "kind": pa.string(),
    "num_tokens": pa.int64(),
    "num_functions": pa.int64(),
    "unit": pa.string(),
    "compiles": pa.bool_(),
    "first_error": pa.string(),
    SPANS_COLUMN: pa.binary(),
    DOCSTRINGS_COLUMN: pa.list_(pa.struct(dict.fromkeys(DocPair._fields, pa.int32()))),
    BORROWED_COLUMN: pa.list_(pa.struct({"start": pa.int32(), "end": pa.int32()})),
})  # fmt: skip
PART_BYTES = 4_000_000
# Projects up to this size are one task each; larger ones are spread over the workers batch by batch.
_SMALL_PROJECT = 1_000_000


@dataclass(frozen=True)
class ProjectJob:
    """One project to build: `key` changes with its files, its name and the settings."""

    location: str
    item: DiscoveredProject
    plan: BuildPlan
    key: str

    @property
    def cost(self) -> int:
        """The work, in bytes of source that are only built."""
        return self.item.size * self.plan.work

    @property
    def record(self) -> str:
        """The object that says that the project is built."""
        return f"{PARTS}/{self.key}.json"


def make_jobs(
    location: str, projects: list[DiscoveredProject], plan: BuildPlan, identity: dict[str, Any]
) -> list[ProjectJob]:
    """One job per project.

    Args:
        location: of the corpus; where jobs run on other machines, these see it under the same name.
        identity: the settings, to compare builds; how documents are split decides none.
    """
    decisive = sorted((name, value) for name, value in identity.items() if not name.startswith("val_"))
    return [
        ProjectJob(
            location,
            item,
            plan,
            sha256(repr((item.project.name, item.digest, decisive, __version__)).encode())[:32],
        )
        for item in projects
    ]


def missing_jobs(storage: Storage, jobs: list[ProjectJob]) -> list[ProjectJob]:
    """The jobs that are not done; parts of anything else are deleted."""
    existing = {name for name in storage.list_names(PARTS) if name.count("/") == 1}
    keys = {job.key for job in jobs}
    storage.delete([name for name in existing if name.split("/")[1][:32] not in keys])
    return [job for job in jobs if job.record not in existing]


def run_project_jobs(jobs: list[ProjectJob], workers: int, report: Callable[[float], object]) -> None:
    """Build in this process, or in `workers` of them; `report` hears how many bytes of source are done."""
    if workers == 1 or sum(job.cost for job in jobs) < 2 * _SMALL_PROJECT:
        for job in jobs:
            write_parts(job, report=report)
    else:
        _run_in_workers(jobs, workers, report)


def _run_in_workers(jobs: list[ProjectJob], workers: int, report: Callable[[float], object]) -> None:
    """Small projects go to a worker each; large ones are cut into batches for all of them."""
    with worker_pool(workers) as pool:
        small = [job for job in jobs if job.cost <= _SMALL_PROJECT]
        futures = {pool.submit(write_parts, job): job.item.size for job in small}
        for job in jobs:
            if job.cost > _SMALL_PROJECT:
                write_parts(job, run=pool.map, report=report)
        for future in as_completed(futures):
            future.result()
            report(futures[future])


def write_parts(
    job: ProjectJob,
    *,
    run: Callable[..., Iterable[Any]] = map,
    report: Callable[[float], object] = lambda size: None,
) -> None:
    """Write the parts of one project, then the record that makes them count; arguments as `build_project`."""
    storage = Storage(job.location, create=True)
    figures: dict[str, Any] = {}
    parts: list[str] = []

    def rows() -> Iterator[dict[str, Any]]:
        for batch, covered in build_project(job.item, job.plan, run, figures):
            yield from batch
            report(covered)

    for part in batched_by_size(rows(), lambda row: len(row["text"]), PART_BYTES):
        parts.append(f"{PARTS}/{job.key}_{len(parts):05d}.parquet")
        write_table(storage, parts[-1], pa.Table.from_pylist(part, schema=PART_SCHEMA))
    storage.write_json(job.record, {"parts": parts, "figures": figures})
