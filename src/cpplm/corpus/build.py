"""`cpplm corpus build`: projects to parquet shards, resumable and the same for any number of workers.

    OUT/_parts/KEY_00000.parquet   rows of one project; KEY hashes the project's files and the settings
    OUT/_parts/KEY.json            its figures, written when all of its parts are there
    OUT/_parts/shuffle/...         rows on their way to their shard
    OUT/train_00000.parquet ...    rows in the order of their hash, projects mixed

A killed build loses at most the projects that were being worked on. Nothing counts as a corpus before
`_COMPLETE`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from cpplm import __version__
from cpplm.core.errors import UserError
from cpplm.core.locking import only_writer
from cpplm.core.progress import progress_bar
from cpplm.core.shards import COMPLETE, MANIFEST, ShardReader, shard_names, write_manifest, write_table
from cpplm.core.storage import Storage, sha256
from cpplm.corpus.finish import write_splits
from cpplm.corpus.project import Discovered, Plan, build_project
from cpplm.corpus.settings import CorpusSettings
from cpplm.corpus.sources import find_files, find_projects
from cpplm.tokenizer.tokenizer import Tokenizer

PARTS = "_parts"
PART_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("project", pa.string()),
        ("files", pa.list_(pa.string())),
        ("kind", pa.string()),
        ("num_tokens", pa.int64()),
        ("num_functions", pa.int64()),
        ("unit", pa.string()),
    ]
)
PART_BYTES = 64_000_000
# Projects up to this size are one task each; larger ones are spread over the workers batch by batch.
_SMALL_PROJECT = 1_000_000
# Windows cannot wait for more processes than this at once.
_MOST_WORKERS = 61
# Raised when the documents made from the same input change.
_FORMAT = 1


def build(settings: CorpusSettings) -> dict[str, Any]:
    """Build the corpus; returns its figures, which are also in the manifest (but for the time taken).

    Raises:
        UserError: bad settings or input, another corpus in `out`, or a disk that is full.
    """
    started = time.perf_counter()
    found = discover(settings)
    tokenizer_hash = Tokenizer.load(settings.tokenizer).hash if settings.tokenizer else ""
    identity = {**settings.identity(tokenizer_hash), "format": _FORMAT}
    projects = {item.project.name: item.digest for item in found}
    storage = Storage(settings.out, create=True)
    with only_writer(storage.location):
        storage.remove_leftovers()
        manifest = _finished(storage, identity, projects)
        complete = manifest is not None
        if manifest is None:
            manifest = _write_corpus(settings, storage, found, identity)
    seconds = round(time.perf_counter() - started, 2)
    return {**manifest, "already_complete": complete, "seconds": seconds}


def _write_corpus(
    settings: CorpusSettings, storage: Storage, found: list[Discovered], identity: dict[str, Any]
) -> dict[str, Any]:
    """Parts, then shards, then the manifest, which is returned."""
    plan = Plan(settings.budget, settings.mode == "compilable", settings.tokenizer)
    per_project = _build_parts(storage, found, plan, identity, settings.worker_count)
    shards, split_by = write_splits(
        storage, f"{PARTS}/", _part_names(storage, found, identity), settings.val_fraction
    )
    figures = {
        "identity": identity,
        "sources": {item.project.name: item.digest for item in found},
        "projects": per_project,
        "split_by": split_by,
        "versions": {name: version(name) for name in ("pyarrow", "tree-sitter", "tree-sitter-cpp")}
        | {"cpplm": __version__},
    }
    storage.delete(sorted(set(shard_names(storage)) - {shard.name for shard in shards}))
    write_manifest(storage, shards, **figures)
    storage.delete(storage.names(PARTS))
    storage.remove_leftovers()
    manifest: dict[str, Any] = storage.read_json(MANIFEST)
    return manifest


def discover(settings: CorpusSettings) -> list[Discovered]:
    """All projects with their files.

    Raises:
        UserError: a project without C++ files.
    """
    found = []
    for project in find_projects(settings):
        files, skips = find_files(project, settings.max_file_bytes)
        if not files:
            left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(skips.counts.items()))
            raise UserError(
                f"project {project.name} ({project.roots[0]}) has no C or C++ files to learn from"
                + (f" (left out: {left_out})" if left_out else ""),
                fix="Check the path, or leave this project out.",
            )
        found.append(Discovered(project, tuple(files), skips))
    return found


def _finished(storage: Storage, identity: dict[str, Any], projects: dict[str, str]) -> dict[str, Any] | None:
    """The manifest when `out` already holds this very corpus; None when it holds none.

    Raises:
        UserError: it holds something else.
    """
    if not storage.exists(COMPLETE):
        foreign = [name for name in storage.names() if not name.startswith(f"{PARTS}/")]
        ours = {MANIFEST, *shard_names(storage)}
        foreign = [name for name in foreign if name not in ours]
        if foreign:
            raise UserError(
                f"{storage.location} holds other files, such as {foreign[0]}", fix="Choose another --out."
            )
        return None
    manifest = ShardReader(storage.location).manifest
    old_identity, old_projects = manifest.get("identity", {}), manifest.get("sources", {})
    differences = [
        f"{name} was {old_identity.get(name)!r}, now {value!r}"
        for name, value in identity.items()
        if old_identity.get(name) != value
    ]
    differences += [f"project {name} is new" for name in projects.keys() - old_projects.keys()]
    differences += [f"project {name} is no longer given" for name in old_projects.keys() - projects.keys()]
    differences += [
        f"the files of project {name} changed" for name in projects.keys() & old_projects.keys()
        if projects[name] != old_projects[name]
    ]  # fmt: skip
    if differences:
        raise UserError(
            f"{storage.location} holds another corpus: {'; '.join(sorted(differences)[:3])}",
            fix="Choose another --out, or delete that folder to build it anew.",
        )
    return manifest


def _key(item: Discovered, identity: dict[str, Any]) -> str:
    """Names the parts of a project: changes with its files, its name or the settings."""
    decisive = {name: value for name, value in identity.items() if name != "val_fraction"}
    return sha256(repr((item.project.name, item.digest, sorted(decisive.items()), __version__)).encode())[:32]


def _part_names(storage: Storage, found: list[Discovered], identity: dict[str, Any]) -> list[str]:
    return [
        name for item in found for name in storage.read_json(f"{PARTS}/{_key(item, identity)}.json")["parts"]
    ]


def _build_parts(
    storage: Storage, found: list[Discovered], plan: Plan, identity: dict[str, Any], workers: int
) -> dict[str, Any]:
    """Build every project that has no finished part yet; returns the figures of all."""
    done = set(storage.names(PARTS))
    keys = {item.project.name: _key(item, identity) for item in found}
    valid = tuple(f"{PARTS}/{key}" for key in keys.values())
    storage.delete([name for name in done if not name.startswith(valid)])
    missing = [item for item in found if f"{PARTS}/{keys[item.project.name]}.json" not in done]
    total = sum(item.size for item in missing)
    with progress_bar(total, "corpus", "B", unit_scale=True) as bar:
        if workers == 1 or total < 2 * _SMALL_PROJECT:
            for item in missing:
                _write_parts(storage.location, item, plan, keys[item.project.name], report=bar.update)
        else:
            _build_in_workers(storage.location, missing, plan, keys, workers=workers, report=bar.update)
    return {name: storage.read_json(f"{PARTS}/{key}.json")["figures"] for name, key in sorted(keys.items())}


def _build_in_workers(
    location: str,
    missing: list[Discovered],
    plan: Plan,
    keys: dict[str, str],
    *,
    workers: int,
    report: Callable[[float], object],
) -> None:
    """Small projects go to a worker each; large ones are cut into batches for all of them."""
    with _pool(min(workers, _MOST_WORKERS)) as pool:
        futures = {}
        for item in missing:
            if item.size <= _SMALL_PROJECT:
                future = pool.submit(_write_parts, location, item, plan, keys[item.project.name])
                futures[future] = item.size
        for item in missing:
            if item.size > _SMALL_PROJECT:
                _write_parts(location, item, plan, keys[item.project.name], run=pool.map, report=report)
        for future in as_completed(futures):
            future.result()
            report(futures[future])


def _write_parts(
    location: str,
    item: Discovered,
    plan: Plan,
    key: str,
    *,
    run: Callable[..., Iterable[Any]] = map,
    report: Callable[[float], object] = lambda size: None,
) -> None:
    """Write the parts of one project, then the record that makes them count."""
    storage = Storage(location)
    figures: dict[str, Any] = {}
    parts: list[str] = []
    waiting: list[dict[str, Any]] = []
    size = 0

    def flush() -> None:
        nonlocal size
        name = f"{PARTS}/{key}_{len(parts):05d}.parquet"
        write_table(storage, name, pa.Table.from_pylist(waiting, schema=PART_SCHEMA))
        parts.append(name)
        waiting.clear()
        size = 0

    for rows, covered in build_project(item, plan, run, figures):
        for row in rows:
            waiting.append(row)
            size += len(row["text"])
            if size >= PART_BYTES:
                flush()
        report(covered)
    if waiting:
        flush()
    storage.write_json(f"{PARTS}/{key}.json", {"parts": parts, "figures": figures})


def _start_worker() -> None:
    """Ctrl-C reaches the whole process group, but only the parent acts on it; a worker never outlives it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    """End this worker when its parent is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that are gone when the block is left, whatever the reason.

    Raises:
        UserError: the operating system killed a worker.
    """
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    others = set(multiprocessing.active_children())
    try:
        yield pool
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, most likely for lack of memory",
            fix="Run the same command with fewer --workers; finished projects are kept.",
        ) from error
    except BaseException:
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()  # what they were doing is not wanted any more
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
