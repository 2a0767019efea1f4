"""`cpplm corpus check`: how many of a corpus's documents compile.

A seeded sample is compiled, each document alone in the sandbox (see `compiler.py`), under conditions that
are reported side by side:

    as_is         the compiler's own headers and what /usr/include has
    with_headers  folders of third-party headers besides (`--headers`)
    in_project    not the document but the file it was made of, in its place in the project (`--projects`),
                  with the include folders guessed: what the same code reaches without being made a document

With third-party headers only documents are compiled again that failed for want of a header, or that ask for
one with `__has_include`; the others could not tell the difference.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.settings import Argument
from cpplm.core.shards import SPLITS, ShardReader
from cpplm.core.statistics import wilson_interval
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
from cpplm.corpus.reports.sample import sample_documents
from cpplm.corpus.settings import CorpusSettings
from cpplm.cpp.parser import Language, is_c_project, language_of
from cpplm.sandbox.compiler import check_mounts, include_folders
from cpplm.sandbox.sandbox import Sandbox

TOP_REASONS = 8
_EXAMPLES = 3


@dataclass(frozen=True)
class CompileRateSettings:
    """Settings of `cpplm corpus check`."""

    corpus: Annotated[str, Argument("CORPUS", positional=True)]
    """Folder or bucket URL of a corpus."""
    sample: int = 200
    """Documents to compile."""
    seed: int = 0
    """Seed of the sample."""
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
class CompiledDocument:
    """A document (a row of the corpus) and its verdict under each condition; None where there was none."""

    document: dict[str, Any]
    verdicts: dict[str, CompileResult | None]


@dataclass(frozen=True)
class _SampleCompiler:
    """Compiles a sample of documents under one condition after the other."""

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


def summarize(checked: list[CompiledDocument], projects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All figures.

    Args:
        checked: the sample.
        projects: the manifest's figures by project.
    """
    groups = {
        "by_kind": _grouped(checked, lambda each: each.document["kind"]),
        "by_project": _grouped(checked, lambda each: each.document["project"]),
    }
    for name, part in groups["by_project"].items():
        part["text_per_source"] = _text_per_source([projects[name]])
    judged = "with_headers" if "with_headers" in checked[0].verdicts else "as_is"
    return {
        **_group(checked),
        "text_per_source": _text_per_source(list(projects.values())),
        **groups,
        "reasons": reasons([(each, each.verdicts[judged]) for each in checked]),
        "missing_headers": _missing_headers([each.verdicts[judged] for each in checked]),
    }


def _text_per_source(projects: list[dict[str, Any]]) -> float:
    """Bytes of documents for each byte of source: how often the text is repeated, in the whole corpus."""
    sources = sum(project["source_bytes"] for project in projects)
    return round(sum(project["text_bytes"] for project in projects) / max(sources, 1), 3)


def _grouped(
    checked: list[CompiledDocument], key: Callable[[CompiledDocument], str]
) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[CompiledDocument]] = defaultdict(list)
    for each in checked:
        groups[key(each)].append(each)
    return {name: _group(groups[name]) for name in sorted(groups)}


def _group(checked: list[CompiledDocument]) -> dict[str, Any]:
    """Sizes, and the rate under each condition; `in_project` also compares like with like."""
    figures: dict[str, Any] = {"documents": len(checked), **_sizes([each.document for each in checked])}
    for condition in checked[0].verdicts:
        figures[condition] = rate([v for each in checked if (v := each.verdicts[condition]) is not None])
    if "in_project" in figures:
        judged = "with_headers" if "with_headers" in figures else "as_is"
        same = [each.verdicts[judged] for each in checked if each.verdicts["in_project"] is not None]
        figures["in_project"] |= _share(rate([v for v in same if v is not None]), figures["in_project"])
    return figures


def _share(documents: dict[str, Any], files: dict[str, Any]) -> dict[str, Any]:
    """The documents' rate over the rate of their files."""
    if not files["compile"]:
        return {"documents_rate": documents["compile_rate"], "share": None}
    share = documents["compile"] / files["compile"]
    return {"documents_rate": documents["compile_rate"], "share": round(share, 4)}


def _sizes(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and median length, in tokens where the corpus was built with a tokenizer, else in bytes."""
    counted = all(document["num_tokens"] >= 0 for document in documents)
    sizes = [document["num_tokens"] if counted else len(document["text"].encode()) for document in documents]
    unit = "tokens" if counted else "bytes"
    return {f"mean_{unit}": round(statistics.mean(sizes)), f"median_{unit}": round(statistics.median(sizes))}


def rate(results: list[CompileResult]) -> dict[str, Any]:
    """Compile rate with its 95 % interval.

    `later_standard` counts those that needed another standard than the first.
    """
    number, passed = len(results), sum(result.compiles for result in results)
    return {
        "documents": number,
        "compile": passed,
        "compile_rate": round(passed / number, 4) if number else None,
        "interval": [round(end, 4) for end in wilson_interval(passed, number)] if number else None,
        "later_standard": sum(result.later_standard for result in results),
    }


def reasons(judged: list[tuple[CompiledDocument, CompileResult | None]]) -> list[dict[str, Any]]:
    """The most frequent reasons, each with a few documents and what the compiler said of them."""
    examples: dict[str, list[dict[str, str]]] = defaultdict(list)
    counts: Counter[str] = Counter()
    for each, verdict in judged:
        if verdict is None or verdict.compiles:
            continue
        why = verdict.reason
        counts[why] += 1
        if len(examples[why]) < _EXAMPLES:
            about = {"id": each.document["id"][:16], "project": each.document["project"]}
            examples[why].append({**about, "error": verdict.first_error})
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOP_REASONS]
    return [{"reason": why, "documents": count, "examples": examples[why]} for why, count in ranked]


def _missing_headers(verdicts: list[CompileResult | None]) -> dict[str, int]:
    """Headers that were not found, by the number of documents they stopped."""
    counts = Counter(name for verdict in verdicts if verdict is not None for name in verdict.missing_headers)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOP_REASONS])


def format_table(result: dict[str, Any]) -> str:
    """The report for people."""
    conditions = [name for name in ("as_is", "with_headers", "in_project") if name in result]
    unit = "tokens" if "median_tokens" in result else "bytes"
    header = f"{'':24}{'documents':>10}{'median ' + unit:>15}"
    lines = [header + "".join(f"{name.replace('_', ' '):>24}" for name in conditions)]
    for name, part in [*result["by_kind"].items(), *result["by_project"].items(), ("all", result)]:
        line = f"{name[:24]:24}{part['documents']:>10,}{part[f'median_{unit}']:>15,}"
        lines.append(line + "".join(f"{_shown(part[condition]):>24}" for condition in conditions))
    if "in_project" in result:
        own = result["in_project"]
        if own["share"] is not None:
            lines.append(f"documents reach {own['share']:.1%} of the rate of their files in their project")
    lines.append(f"{result['text_per_source']:.2f} bytes of documents for each byte of source")
    later = max(result[condition]["later_standard"] for condition in conditions)
    lines.append(f"standards: {', '.join(result['standards'])} ({later} needed a later one than the first)")
    for each in result["reasons"]:
        example = each["examples"][0]
        shown = f"{example['project']} {example['id']}: {example['error']}"
        lines.append(f"{each['documents']:>6}  {each['reason']} ({shown})")
    lines.append(f"{result['compiler']}, sandbox {result['sandbox']}")
    return "\n".join(lines)


def _shown(figures: dict[str, Any]) -> str:
    if figures["interval"] is None:
        return "-"
    low, high = figures["interval"]
    return f"{figures['compile_rate']:.1%} ({low:.0%} to {high:.0%})"
