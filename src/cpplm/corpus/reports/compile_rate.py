"""`cpplm corpus check`: how many of a corpus's documents compile.

A seeded sample is compiled, each document alone in the sandbox (see `compiling.py`), under conditions that
are reported side by side:

    as_is         the compiler's own headers and what /usr/include has
    with_headers  folders of third-party headers besides (`--headers`)
    in_project    not the document but the file it was made of, in its place in the project (`--projects`),
                  with the include folders guessed: what the same code reaches without being made a document

With third-party headers only documents are compiled again that failed for want of a header, or that ask for
one with `__has_include`; the others could not tell the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.settings import Argument
from cpplm.core.shards import SPLITS, ShardReader
from cpplm.core.workers import available_cores
from cpplm.corpus.compile.compiler import (
    STANDARDS,
    CompileResult,
    compile_document,
    compile_file,
    main_source,
    require_standards,
)
from cpplm.corpus.compile.include_paths import IncludePaths
from cpplm.corpus.document import DocumentKind
from cpplm.corpus.ingest.discovery import find_projects
from cpplm.corpus.reports.compile_rate_report import CompiledDocument, summarize
from cpplm.corpus.reports.sample import sample_documents
from cpplm.corpus.settings import CorpusSettings
from cpplm.cpp.parser import Language, is_c_project, language_of
from cpplm.sandbox.compiler import check_mounts, include_folders
from cpplm.sandbox.sandbox import Sandbox


@dataclass(frozen=True)
class CompileRateSettings:
    """Settings of `cpplm corpus check`."""

    corpus: Annotated[str, Argument("CORPUS", positional=True)]
    """Folder or bucket URL of a corpus."""
    sample: int = 200
    """Documents to compile."""
    seed: int = 0
    """Which ones."""
    project: str | None = None
    """Only documents of this project."""
    kind: DocumentKind | None = None
    """Only documents of this kind."""
    headers: tuple[Path, ...] = ()
    """Folders of third-party headers: rates are given without and with them."""
    projects: tuple[Path, ...] = ()
    """The folders that the corpus was built from: compile the documents' files in their place there, too."""
    projects_dir: Path | None = None
    """A folder whose sub-folders are such projects."""
    std: tuple[str, ...] = STANDARDS
    """C++ standards, a later one for what does not compile under the earlier ones."""
    workers: int = 0
    """Compilers at the same time; 0 means one per core."""
    unsafe: bool = False
    """Run the compiler without isolation. Never do this with code that you do not trust."""

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise UserError(f"--sample {self.sample} must be at least 1")
        if self.workers < 0:
            raise UserError(f"--workers {self.workers} is negative", fix="Use 0 for one per core.")
        if not self.std:
            raise UserError("--std names no standard", fix=f"Try --std {' '.join(STANDARDS)}.")
        for folder in self.headers:
            if not folder.expanduser().is_dir():
                raise UserError(
                    f"--headers {folder} is no folder", fix="Name the folder to search for headers."
                )


def measure_compile_rate(settings: CompileRateSettings) -> dict[str, Any]:
    """Compile a sample; returns rates by condition, kind and project, and the most frequent errors.

    Raises:
        UserError: no corpus, sandbox or compiler; a folder that the sandbox cannot read; projects that are
            not those of the corpus.
    """
    reader = ShardReader(settings.corpus)
    documents = sample_documents(
        reader, project=settings.project, kind=settings.kind, num=settings.sample, seed=settings.seed
    )
    sandbox = Sandbox.probe(unsafe=settings.unsafe)
    compiler = require_standards(sandbox, settings.std)
    headers = tuple(folder.expanduser() for folder in settings.headers)
    check_mounts(sandbox, headers)
    roots = _project_roots(settings, reader.manifest["projects"])
    check_mounts(sandbox, roots.values())
    work = _SampleCompiler(settings, sandbox, headers, _c_projects(reader))
    conditions: dict[str, list[CompileResult | None]] = {"as_is": work.as_is(documents)}
    if headers:
        conditions["with_headers"] = work.with_headers(documents, conditions["as_is"])
    if roots:
        conditions["in_project"] = work.in_project(documents, roots)
    checked = [
        CompiledDocument(document, dict(zip(conditions, verdicts, strict=True)))
        for document, *verdicts in zip(documents, *conditions.values(), strict=True)
    ]
    return summarize(checked, reader.manifest["projects"]) | {
        "compiler": compiler,
        "sandbox": sandbox.name,
        "standards": list(settings.std),
        "seed": settings.seed,
    }


@dataclass(frozen=True)
class _SampleCompiler:
    """What every compilation needs."""

    settings: CompileRateSettings
    sandbox: Sandbox
    headers: tuple[Path, ...]
    c_projects: frozenset[str]

    def as_is(self, documents: list[dict[str, Any]]) -> list[CompileResult | None]:
        return self._all("compile", documents, lambda document: self._compile(document, ()))

    def with_headers(
        self, documents: list[dict[str, Any]], before: list[CompileResult | None]
    ) -> list[CompileResult | None]:
        def again(pair: tuple[dict[str, Any], CompileResult]) -> CompileResult:
            document, verdict = pair
            if verdict.missing_headers or "__has_include" in document["text"]:
                return self._compile(document, self.headers)
            return verdict

        return self._all("with headers", list(zip(documents, before, strict=True)), again)

    def in_project(
        self, documents: list[dict[str, Any]], roots: dict[str, Path]
    ) -> list[CompileResult | None]:
        """The verdicts on the documents' files; None for documents of other projects."""
        system = include_folders(self.sandbox)
        paths = {name: IncludePaths(root, system) for name, root in sorted(roots.items())}
        files = [(document["project"], main_source(document["files"])) for document in documents]
        wanted = sorted({(project, name) for project, name in files if project in roots})
        for project, name in wanted:
            if name not in paths[project]:
                raise UserError(
                    f"{roots[project]} has no file {name}, of which the corpus has a document",
                    fix="Give the folders that the corpus was built from, unchanged.",
                )

        def compile_there(place: tuple[str, str]) -> CompileResult:
            project, name = place
            return compile_file(
                name,
                "",
                self._language(project, name),
                self.sandbox,
                headers=self.headers,
                standards=self.settings.std,
                project=roots[project],
                options=paths[project].options(name, prefix="project"),
            )

        verdicts = dict(zip(wanted, self._all("in their projects", wanted, compile_there), strict=True))
        return [verdicts.get(place) for place in files]

    def _compile(self, document: dict[str, Any], headers: tuple[Path, ...]) -> CompileResult:
        language = self._language(document["project"], main_source(document["files"]))
        return compile_document(document["text"], language, self.sandbox, headers, self.settings.std)

    def _language(self, project: str, name: str) -> Language:
        return language_of(name, project in self.c_projects)

    def _all(
        self, what: str, jobs: list[Any], work: Callable[[Any], CompileResult]
    ) -> list[CompileResult | None]:
        """Map in threads, under a progress bar."""
        with (
            ThreadPoolExecutor(self.settings.workers or available_cores()) as pool,
            progress_bar(len(jobs), what, "document") as bar,
        ):

            def counted(job: Any) -> CompileResult:
                verdict = work(job)
                bar.update()
                return verdict

            return list(pool.map(counted, jobs))


def _c_projects(reader: ShardReader) -> frozenset[str]:
    """The projects that are written in C."""
    files: dict[str, set[str]] = {}
    for split in SPLITS:
        for shard in reader.shards(split):
            table = reader.table(shard, ["project", "files"])
            columns = zip(table["project"].to_pylist(), table["files"].to_pylist(), strict=True)
            for project, names in columns:
                files.setdefault(project, set()).update(names)
    return frozenset(project for project, names in files.items() if is_c_project(names))


def _project_roots(settings: CompileRateSettings, corpus_projects: Iterable[str]) -> dict[str, Path]:
    """The folders of the corpus's projects, as far as they are given.

    Raises:
        UserError: none of the folders belongs to the corpus.
    """
    if not settings.projects and settings.projects_dir is None:
        return {}
    settings_of_projects = CorpusSettings(
        out="", projects=settings.projects, projects_dir=settings.projects_dir
    )
    roots = {project.name: project.roots[0].resolve() for project in find_projects(settings_of_projects)}
    matching = {name: root for name, root in roots.items() if name in set(corpus_projects)}
    if not matching:
        raise UserError(
            f"none of the projects given is in the corpus ({', '.join(sorted(roots))})",
            fix=f"It has {', '.join(sorted(corpus_projects))}.",
        )
    return matching
