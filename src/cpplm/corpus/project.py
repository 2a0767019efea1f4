"""One project to rows: scan its files, classify its macros, build its units.

The same functions run in this process or in workers; the rows come in unit order either way.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from cpplm.core.workers import batched_by_size
from cpplm.corpus.clang.references import SemanticPlan, Semantics, read_semantics
from cpplm.corpus.compile.labels import CompileLabeler, LabelCounts, label_columns
from cpplm.corpus.document import Document
from cpplm.corpus.ingest.discovery import Project, SourceFile, content_digest, is_utf8
from cpplm.corpus.ingest.licenses import combine
from cpplm.corpus.ingest.walk import SkipCounts
from cpplm.corpus.slicing.callees import Callees
from cpplm.corpus.slicing.closure import Index
from cpplm.corpus.slicing.documents import Options, build_unit
from cpplm.corpus.slicing.inlining import assign_guests
from cpplm.corpus.slicing.packing import Measure
from cpplm.corpus.slicing.repair import TRIES, Loop, Repaired, RepairFigures, size_of, within
from cpplm.corpus.slicing.repetition import Written, to_write_apart
from cpplm.corpus.slicing.units import Includes, Scan, Unit, make_units, scan
from cpplm.cpp.macros import MacroTable
from cpplm.tokenizer.tokenizer import Tokenizer

A = TypeVar("A")
B = TypeVar("B")
# Runs a function over batches in order; in this process or in workers.
Mapper = Callable[[Callable[[A], B], Iterable[A]], Iterable[B]]
# Large enough that sending a batch costs nothing beside reading it, small enough to stop within a second.
BATCH_BYTES = 256_000
# Code stays far below this; only text made of one long token again and again would not.
_MOST_BYTES_PER_TOKEN = 16
# How much longer it takes to compile documents, too.
_COMPILING = 16


@dataclass(frozen=True)
class BuildPlan:
    """Settings that decide the documents of any project; sent to workers."""

    budget: int
    ordered: bool
    tokenizer: Path | None
    inlined: bool = False
    cross_file_depth: int = 0  # of calls into other source files; 0: their bodies are not looked for
    labels: CompileLabeler | None = None
    max_repeat: float = 8.0

    @property
    def work(self) -> int:
        """Time per byte of source, relative to one that is only built."""
        return _COMPILING if self.labels else 1

    def measure(self) -> Measure:
        """The measure of a text's length, in the unit of the budget."""
        if self.tokenizer is None:
            return Measure(lambda text: len(text.encode()))
        encode = Tokenizer.load(self.tokenizer).encode
        return Measure(lambda text: len(encode(text)), most_bytes=_MOST_BYTES_PER_TOKEN)


@dataclass(frozen=True)
class DiscoveredProject:
    """A project whose files were found and hashed."""

    project: Project
    files: tuple[SourceFile, ...]
    skips: SkipCounts
    redactions: SkipCounts = field(default_factory=SkipCounts)
    semantic: SemanticPlan | None = None

    @property
    def size(self) -> int:
        """Bytes on disk of the files that become documents."""
        return sum(file.size for file in self.files if file.makes_documents)

    @property
    def digest(self) -> str:
        """Changes with the name or content of any file, and with how names are resolved."""
        return content_digest(self.files) + (self.semantic.digest if self.semantic else "")


@dataclass(frozen=True)
class ProjectContext:
    """Facts about a project that are there before any document is built; the same in every worker."""

    name: str
    digest: str
    by_name: dict[str, SourceFile]
    includes: Includes
    macros: MacroTable
    closed: bool
    has_paths: bool = True


_MEASURES: dict[BuildPlan, Measure] = {}
_INDEXES: dict[str, Index] = {}
_CALLEES: dict[tuple[str, int], Callees] = {}


def _measure(plan: BuildPlan) -> Measure:
    """The plan's measure, loaded once per process."""
    if plan not in _MEASURES:
        _MEASURES[plan] = plan.measure()
    return _MEASURES[plan]


def _index(layout: ProjectContext) -> Index:
    """The project's index, kept from batch to batch; that of one project at a time."""
    if layout.digest not in _INDEXES:
        _INDEXES.clear()
        _CALLEES.clear()
        _INDEXES[layout.digest] = Index(
            layout.by_name, layout.includes, layout.macros, defines_std=not layout.closed
        )
    return _INDEXES[layout.digest]


def _callees(layout: ProjectContext, plan: BuildPlan) -> Callees | None:
    """The finder of called functions, kept as long as the index; None when bodies are not followed."""
    if not plan.cross_file_depth or not layout.closed:
        return None
    index = _index(layout)
    key = (layout.digest, plan.cross_file_depth)
    if key not in _CALLEES:
        _CALLEES[key] = Callees(index, plan.cross_file_depth, by_name=not layout.has_paths)
    return _CALLEES[key]


def _scan_batch(files: list[SourceFile]) -> list[tuple[Scan, bool]]:
    return [(scan(file), is_utf8(file.path.read_bytes())) for file in files]


@dataclass(frozen=True)
class _BatchResult:
    """Rows of a batch of units, the function definitions in them, their bytes, and what was repaired."""

    rows: list[dict[str, Any]]
    functions: int
    size: int
    repairs: RepairFigures


@dataclass(frozen=True)
class _BuiltUnit:
    """The documents of a unit, the function definitions in its files, and how it was built."""

    documents: list[Document]
    functions: int
    options: Options


def _build_batch(job: tuple[ProjectContext, list[Unit], BuildPlan, Semantics | None]) -> _BatchResult:
    layout, units, plan, semantics = job
    index = _index(layout)
    index.understand(semantics)
    options = Options(
        plan.budget,
        _measure(plan),
        plan.ordered,
        layout.closed,
        inlined=plan.inlined and layout.closed,
        callees=_callees(layout, plan),
    )
    built = [_BuiltUnit(*build_unit(unit, index, options), options) for unit in units]
    for shorter in _shorter_options(options):
        while chosen := _overlong_units(units, built, shorter, plan.max_repeat):
            for number in chosen:
                built[number] = _BuiltUnit(*build_unit(units[number], index, shorter), shorter)
    functions, size = sum(each.functions for each in built), sum(unit.size for unit in units)
    if plan.labels is None:
        rows = [
            _row(document, unit, layout, plan)
            for unit, each in zip(units, built, strict=True)
            for document in each.documents
        ]
        return _BatchResult(rows, functions, size, RepairFigures())
    rows, repairs = _labeled_rows(units, built, layout, plan, plan.labels)
    return _BatchResult(rows, functions, size, repairs)


def _labeled_rows(
    units: list[Unit],
    built: list[_BuiltUnit],
    layout: ProjectContext,
    plan: BuildPlan,
    labels: CompileLabeler,
) -> tuple[list[dict[str, Any]], RepairFigures]:
    """Rows with labels; what fails is repaired, as far as that was asked for and there is room to repeat."""
    compiler = labels.compiler()
    repaired_units: list[Repaired] = []
    for unit, each in zip(units, built, strict=True):
        tries = TRIES if labels.repair and layout.closed and not each.options.apart else 0
        repaired_units.append(Loop(unit, _index(layout), each.options, compiler).run(each.documents, tries))
    repaired_units = within(repaired_units, int(plan.max_repeat * sum(unit.size for unit in units)))
    figures = RepairFigures()
    for repaired in repaired_units:
        figures.add(repaired)
    rows = [
        _row(document, unit, layout, plan) | label_columns(verdict)
        for unit, repaired in zip(units, repaired_units, strict=True)
        for document, verdict in repaired.version
    ]
    return rows, figures


def _overlong_units(units: list[Unit], built: list[_BuiltUnit], shorter: Options, most: float) -> list[int]:
    """The units to be built shorter, of those that are not yet."""
    return to_write_apart(
        [
            Written(unit.size, size_of(each.documents), len(each.documents) if each.options != shorter else 0)
            for unit, each in zip(units, built, strict=True)
        ],
        most,
    )


def _shorter_options(options: Options) -> list[Options]:
    """Options to build units with that repeat too much, in the order to try them."""
    if not options.ordered or not options.closed:
        return []
    plain = replace(options, inlined=False, callees=None)
    return [*([plain] if plain != options else []), replace(plain, apart=True)]


def _row(document: Document, unit: Unit, layout: ProjectContext, plan: BuildPlan) -> dict[str, Any]:
    """A document as a row of the corpus."""
    return {
        "text": document.text,
        "id": hashlib.sha256(f"{layout.name}\0{document.text}".encode()).hexdigest(),
        "project": layout.name,
        "files": list(document.files),
        "sources": [source._asdict() for source in document.sources],
        "license": combine({layout.by_name[name].license for name in document.files}),
        "kind": document.kind,
        "num_tokens": -1 if plan.tokenizer is None else document.size,
        "num_functions": document.functions,
        "unit": unit.name,
        "spans": document.spans,
        "docstrings": document.docstrings,
    }


def build_project(
    project: DiscoveredProject,
    plan: BuildPlan,
    run: Mapper[Any, Any],
    figures: dict[str, Any],
    *,
    workers: int = 1,
    quiet: bool = True,
) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Rows of a project in unit order, with the source bytes that each batch covers.

    Args:
        project: the project.
        plan: what decides the documents.
        run: how to map over batches.
        figures: filled in with the project's figures as the rows are drawn.
        workers: processes that parse at one time, where names are resolved by libclang.
        quiet: no progress bar for that.
    """
    scans, macros, converted = _scan_project(project, run)
    includes = Includes(scans)
    units = make_units([file for file in project.files if file.makes_documents], includes, merge=plan.ordered)
    by_name = {file.name: file for file in project.files}
    if plan.inlined and not project.project.bare_headers:
        units = assign_guests(units, includes, by_name)
    layout = ProjectContext(
        project.project.name,
        project.digest,
        by_name,
        includes,
        macros,
        closed=not project.project.bare_headers,
        has_paths=project.project.has_paths,
    )
    semantics = _run_libclang(project, includes, workers, quiet=quiet)
    parts = batched_by_size(units, lambda unit: unit.size, BATCH_BYTES)
    jobs = [(layout, part, plan, _visible_semantics(semantics, part, includes, plan)) for part in parts]
    tally = _ProjectCounts()
    for built in run(_build_batch, jobs):
        yield tally.fresh_rows(built), built.size
    figures.update(
        files=sum(file.makes_documents for file in project.files),
        source_bytes=project.size,
        units=len(units),
        documents=tally.documents,
        text_bytes=tally.text_bytes,
        functions=tally.functions,
        kinds=dict(sorted(tally.kinds.items())),
        duplicate_documents=tally.duplicates,
        skipped=project.skips.to_dict(),
        redactions=project.redactions.to_dict(),
        converted=converted.to_dict(),
    )
    if plan.labels is not None:
        figures["labels"] = tally.labels.to_dict()
        if plan.labels.repair:
            figures["repair"] = tally.repairs.to_dict()
    if project.semantic is not None and semantics is not None:
        figures["semantic"] = semantics.figures() | project.semantic.figures()


def _scan_project(
    project: DiscoveredProject, run: Mapper[Any, Any]
) -> tuple[dict[str, Scan], MacroTable, SkipCounts]:
    """The directives of all files, the macros of all together, and which files are not UTF-8."""
    scans: dict[str, Scan] = {}
    bodies: dict[bytes, set[bytes]] = {}
    converted = SkipCounts()
    batches = list(batched_by_size(project.files, lambda file: file.size, BATCH_BYTES))
    for batch, scanned in zip(batches, run(_scan_batch, batches), strict=True):
        for file, (result, utf8) in zip(batch, scanned, strict=True):
            scans[file.name] = result
            for macro, definitions in result.bodies.items():
                bodies.setdefault(macro, set()).update(definitions)
            if not utf8:
                converted.add("read as Latin-1", file.name)
    return scans, MacroTable.from_bodies(bodies), converted


@dataclass
class _ProjectCounts:
    """Counts the rows of a project as they come."""

    documents: int = 0
    duplicates: int = 0
    text_bytes: int = 0
    functions: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    labels: LabelCounts = field(default_factory=LabelCounts)
    repairs: RepairFigures = field(default_factory=RepairFigures)
    _seen: set[str] = field(default_factory=set)

    def fresh_rows(self, built: _BatchResult) -> list[dict[str, Any]]:
        """The rows that are no copies of earlier ones."""
        fresh = []
        for row in built.rows:
            if row["id"] in self._seen:
                self.duplicates += 1
                continue
            self._seen.add(row["id"])
            fresh.append(row)
            self.kinds[row["kind"]] += 1
            self.documents += 1
            self.text_bytes += len(row["text"].encode())
            self.labels.add(row)
        self.functions += built.functions
        self.repairs.merge(built.repairs)
        return fresh


def _run_libclang(
    project: DiscoveredProject, includes: Includes, workers: int, *, quiet: bool
) -> Semantics | None:
    """Resolve a project's names with libclang; None without --semantic."""
    if project.semantic is None:
        return None
    edges = {name: tuple(targets.values()) for name, targets in includes.edges.items()}
    return read_semantics(
        project.project,
        project.files,
        edges,
        database=project.semantic.database,
        workers=workers,
        quiet=quiet,
    )


def _visible_semantics(
    semantics: Semantics | None, units: list[Unit], includes: Includes, plan: BuildPlan
) -> Semantics | None:
    """The semantics that these units can see; all of them where calls are followed."""
    if semantics is None or plan.cross_file_depth:
        return semantics
    names = [file.name for unit in units for file in unit.files]
    return semantics.part(includes.reachable(names))
