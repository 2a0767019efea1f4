"""One project to rows: scan its files, classify its macros, build its units.

The same functions run in this process or in workers; the rows come in unit order either way.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from cpplm.core.workers import batched_by_size
from cpplm.corpus.clang.semantics import Outcomes, SemanticPlan, UnitParser, semantic_figures
from cpplm.corpus.compile.compiler import main_source
from cpplm.corpus.compile.labels import CompileLabeler
from cpplm.corpus.document import Document
from cpplm.corpus.ingest.curation import Run, ScannedProject
from cpplm.corpus.ingest.discovery import SourceFile, content_digest, is_utf8
from cpplm.corpus.ingest.licenses import combine
from cpplm.corpus.ingest.walk import SkipCounts
from cpplm.corpus.repeated_lines import RepeatedLines
from cpplm.corpus.settings import Mode
from cpplm.corpus.slicing.build_headers import BuildDefaults
from cpplm.corpus.slicing.documents import SliceOptions, build_unit
from cpplm.corpus.slicing.include_resolver import IncludeResolver
from cpplm.corpus.slicing.measure import Measure
from cpplm.corpus.slicing.project_index import ProjectIndex
from cpplm.corpus.slicing.shortening import Shortener
from cpplm.corpus.slicing.units import Scan, Unit, deciding_macros, implied_values, make_units, scan
from cpplm.cpp.macros import MacroTable
from cpplm.cpp.parser import language_of
from cpplm.tokenizer.tokenizer import Tokenizer

# Large enough that sending a batch costs nothing beside reading it, small enough to stop within a second.
BATCH_BYTES = 256_000
# How much longer it takes to compile documents, too.
_COMPILING = 16


@dataclass(frozen=True)
class BuildPlan:
    """Settings that decide the documents of any project; sent to workers."""

    budget: int
    tokenizer: Path | None = None
    mode: Mode = "compilable"
    cross_file_depth: int = 3
    labels: CompileLabeler | None = None
    max_repeat: float = 8.0

    @property
    def work(self) -> int:
        """Time per byte of source, relative to one that is only built."""
        return _COMPILING if self.labels else 1


@dataclass
class DiscoveredProject(ScannedProject):
    """A project whose files were found and hashed, and how its names are resolved."""

    semantic: SemanticPlan | None = None
    defaults: BuildDefaults = field(default_factory=BuildDefaults)  # of its build
    configured: dict[str, Any] | None = None  # what became of its configuration step

    @property
    def size(self) -> int:
        """Bytes on disk of the files that become documents."""
        return sum(file.size for file in self.files if file.makes_documents)

    @property
    def digest(self) -> str:
        """Changes with the name or content of any file, with how names are resolved, and with the build."""
        semantic = self.semantic.digest if self.semantic else ""
        return content_digest(self.files) + semantic + self.defaults.digest


@dataclass(frozen=True)
class ProjectContext:
    """All that is known of a project before any document is built; the same in every worker.

    `index` is one that nothing was read into: each process reads what its units need.
    """

    name: str
    digest: str
    index: ProjectIndex
    semantic: SemanticPlan | None = None


# Of the project that this process builds, by its digest.
_TOOLS: dict[str, tuple[ProjectIndex, Shortener, UnitParser | None]] = {}


@functools.cache
def _measure(plan: BuildPlan) -> Measure:
    """The measure of a text's length, in the unit of the budget."""
    if plan.tokenizer is None:
        return Measure(lambda text: len(text.encode()))
    return Measure.of_tokenizer(Tokenizer.load(plan.tokenizer))


def _tools(context: ProjectContext) -> tuple[ProjectIndex, Shortener, UnitParser | None]:
    """The project's index, shortener and, with --semantic, libclang process, kept from batch to batch."""
    if context.digest not in _TOOLS:
        for *_, other in _TOOLS.values():
            if other is not None:
                other.close()
        _TOOLS.clear()
        files = list(context.index.files.values())
        parser = UnitParser(context.semantic, files) if context.semantic is not None else None
        types = context.index.types | context.index.aliases
        _TOOLS[context.digest] = (context.index, Shortener(context.index.macros, types), parser)
    return _TOOLS[context.digest]


def _scan_batch(files: list[SourceFile]) -> list[tuple[Scan, bool]]:
    return [(scan(file), is_utf8(file.path.read_bytes())) for file in files]


class _BatchResult(NamedTuple):
    """Rows of a batch of units, the function definitions in their files, their bytes, what libclang read."""

    rows: list[dict[str, Any]]
    functions: int
    size: int
    semantic: Outcomes


def _build_batch(job: tuple[ProjectContext, list[Unit], BuildPlan]) -> _BatchResult:
    gc.disable()  # nothing here points in a circle, and to look for what does takes a tenth of the time
    try:
        return _build_units(*job)
    finally:
        gc.enable()


def _build_units(context: ProjectContext, units: Sequence[Unit], plan: BuildPlan) -> _BatchResult:
    index, shortener, parser = _tools(context)
    options = SliceOptions(plan.budget, _measure(plan), plan.mode, plan.cross_file_depth)
    if parser is not None:
        parser.outcomes = {}
    built = [build_unit(unit, index, shortener, options, parser) for unit in units]
    semantic = parser.outcomes if parser is not None else {}
    for shorter in _shorter_options(options):
        for number in _repetitive_units(units, built, plan.max_repeat):
            built[number] = build_unit(units[number], index, shortener, shorter, parser)
    rows = [
        _row(document, unit, context, plan)
        for unit, documents in zip(units, built, strict=True)
        for document in documents
    ]
    if plan.labels is not None:
        compiler = plan.labels.compiler()
        for row in rows:
            language = language_of(main_source(row["files"]), index.is_c, row["text"].encode())
            verdict = compiler(row["text"], language)
            row.update(compiles=verdict.compiles, first_error=verdict.reason)  # without names
    functions = sum(index.read(file.name).source.functions for unit in units for file in unit.files)
    return _BatchResult(rows, functions, sum(unit.size for unit in units), semantic)


def _shorter_options(options: SliceOptions) -> list[SliceOptions]:
    """Options to build units with that repeat too much, in the order to try them."""
    if options.mode == "file":
        return []
    modes: tuple[Mode, ...] = ("file",) if options.mode == "compilable" else ("compilable", "file")
    return [replace(options, mode=mode) for mode in modes]


def _repetitive_units(
    units: Sequence[Unit], built: Sequence[Sequence[Document]], max_repeat: float
) -> list[int]:
    """The units that may borrow less, until all text is at most `max_repeat` times the source.

    Counted over a batch rather than over single units: a short file may borrow a lot as long as its
    neighbours make up for it. Those come first that save most per document.
    """
    sizes = [sum(len(document.text.encode()) for document in documents) for documents in built]
    excess = sum(sizes) - max_repeat * sum(unit.size for unit in units)
    saving = {number: size - units[number].size for number, size in enumerate(sizes) if built[number]}
    chosen: list[int] = []
    for number in sorted(saving, key=lambda number: (-saving[number] / len(built[number]), number)):
        if excess <= 0 or saving[number] <= 0:
            break
        chosen.append(number)
        excess -= saving[number]
    return chosen


def _row(document: Document, unit: Unit, context: ProjectContext, plan: BuildPlan) -> dict[str, Any]:
    """A document as a row of the corpus."""
    return {
        "text": document.text,
        "id": hashlib.sha256(f"{context.name}\0{document.text}".encode()).hexdigest(),
        "project": context.name,
        "files": list(document.files),
        "sources": [source._asdict() for source in document.sources],
        "license": combine({context.index.files[name].license for name in document.files}),
        "kind": document.kind,
        "num_tokens": -1 if plan.tokenizer is None else document.size,
        "num_functions": document.functions,
        "unit": unit.name,
        "spans": document.spans,
        "docstrings": document.docstrings,
        "borrowed": document.borrowed,
    }


def build_project(
    project: DiscoveredProject, plan: BuildPlan, run: Run, figures: dict[str, Any]
) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Rows of a project in unit order, with the source bytes that each batch covers.

    `figures` is filled in with the project's figures as the rows are drawn.
    """
    scans, converted = _scan_files(project, run)
    index = unread_index(project, scans)
    own = [file for file in project.files if file.makes_documents]
    units = make_units(own, scans, index.includes.resolve, merge=plan.mode != "file")
    del scans  # the index has what units need of them
    context = ProjectContext(project.project.name, project.digest, index, project.semantic)
    batches = batched_by_size(units, lambda unit: unit.size, BATCH_BYTES)
    tally = _ProjectCounts()
    for built in run(_build_batch, [(context, batch, plan) for batch in batches]):
        yield tally.fresh_rows(built), built.size
    shared, counted = tally.lines.shared_and_counted_bytes()  # of a sample of the lines
    figures.update(
        files=len(own),
        source_bytes=project.size,
        units=len(units),
        documents=tally.kinds.total(),
        text_bytes=tally.text_bytes,
        shared_bytes=round(tally.text_bytes * shared / counted) if counted else 0,
        functions=tally.functions,
        kinds=dict(sorted(tally.kinds.items())),
        duplicate_documents=tally.duplicates,
        skipped=project.skips.to_dict(),
        redacted=project.redactions.to_dict(),
        converted=converted.to_dict(),
    )
    if project.configured is not None:
        figures["configured"] = project.configured
    if plan.labels is not None:
        figures["labels"] = {
            "compile": dict(sorted(tally.compiling.items())),
            "reasons": dict(sorted(tally.reasons.items(), key=lambda item: (-item[1], item[0]))),
        }
    if project.semantic is not None:
        figures["semantic"] = semantic_figures(tally.semantic) | project.semantic.figures()


def _scan_files(project: DiscoveredProject, run: Run) -> tuple[dict[str, Scan], SkipCounts]:
    """The directives of all files, and which files are not UTF-8."""
    scans: dict[str, Scan] = {}
    converted = SkipCounts()
    batches = list(batched_by_size(project.files, lambda file: file.size, BATCH_BYTES))
    for batch, scanned in zip(batches, run(_scan_batch, batches), strict=True):
        for file, (result, utf8) in zip(batch, scanned, strict=True):
            scans[file.name] = result
            if not utf8:
                converted.add("read as Latin-1", file.name)
    return scans, converted


def unread_index(project: DiscoveredProject, scans: dict[str, Scan]) -> ProjectIndex:
    """An index of a project's files, of which none is read yet."""
    bodies: dict[bytes, set[bytes]] = defaultdict(set)
    for each in scans.values():
        for macro, definitions in each.bodies.items():
            bodies[macro] |= definitions
    files = {file.name: file for file in project.files}
    includes = IncludeResolver(
        files,
        {name: each.includes for name, each in scans.items()},
        project.defaults,
        closed=project.project.has_paths and not project.project.bare_headers,
    )
    return ProjectIndex(
        files,
        includes,
        project.defaults,
        MacroTable.from_bodies(bodies),
        deciding_macros(frozenset().union(*(each.conditions for each in scans.values())), bodies),
        implied_values(itertools.chain(*(each.implied for each in scans.values()))),
        frozenset().union(*(each.types for each in scans.values())),
        frozenset().union(*(each.aliases for each in scans.values())),
        defines_std=project.project.bare_headers,
    )


@dataclass
class _ProjectCounts:
    """Counts the rows of a project as they come."""

    duplicates: int = 0
    text_bytes: int = 0
    functions: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    lines: RepeatedLines = field(default_factory=RepeatedLines)
    compiling: Counter[str] = field(default_factory=Counter)  # by kind
    reasons: Counter[str] = field(default_factory=Counter)  # why others do not
    semantic: Outcomes = field(default_factory=dict)
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
            self.text_bytes += len(row["text"].encode())
            self.lines.add(row["text"])
            if row.get("compiles"):
                self.compiling[row["kind"]] += 1
            elif "compiles" in row:
                self.reasons[row["first_error"]] += 1
        self.functions += built.functions
        self.semantic |= built.semantic
        return fresh
