"""`cpplm corpus check`: how many of a corpus's documents compile.

A seeded sample is compiled, each document alone in the sandbox (see `compiler.py`), under conditions that
are reported side by side:

    as_is         the compiler's own headers and what /usr/include has
    with_headers  folders of third-party headers besides (`--headers`)

With third-party headers only documents are compiled again that failed for want of a header, or that ask for
one with `__has_include`; the others could not tell the difference. The last condition is the one that counts:

    impossible    documents that stop at a header that no file of the project is: no slicer would fix them
    possible      the rate without those
    not_chunks    the rate without chunks, which are known not to stand alone
    functions     the share of the project's own functions that stand in a document that compiles
"""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument
from cpplm.core.shards import ShardReader
from cpplm.core.statistics import wilson_interval
from cpplm.core.workers import available_cores, map_in_threads
from cpplm.corpus.compile.compiler import (
    STANDARDS,
    CompileResult,
    compile_document,
    main_source,
    require_standards,
)
from cpplm.corpus.document import DocumentKind
from cpplm.corpus.include_index import IncludeIndex
from cpplm.corpus.reports.sample import sample_documents
from cpplm.corpus.slicing.build_headers import include_folders, is_build_written, is_generated_code
from cpplm.cpp.parser import is_c_project, language_of
from cpplm.sandbox.compiler import check_mounts
from cpplm.sandbox.sandbox import Sandbox

TOP_REASONS = 8
_EXAMPLES = 3
_OTHER_PLATFORM = re.compile(
    r"(?i)(win\w*|ws2\w*|direct|io|conio|process|tchar|intrin|objbase|shl\w+|d3d\w*|dsound|mmsystem|os2|arm_\w+"
    r"|altivec|emscripten|TargetConditionals|Availability\w*)\.h$|(mach|libkern|sys/event|android)\b"
    r"|(Carbon|Cocoa|Foundation|Apple\w*|Core\w+|IOKit|OpenGL|OpenGLES|ApplicationServices)/"
)


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
        UserError: no corpus, sandbox or compiler; a folder that the sandbox cannot read.
    """
    reader = ShardReader(settings.corpus)
    documents = sample_documents(
        reader, project=settings.project, kind=settings.kind, num=settings.sample, seed=settings.seed
    )
    sandbox = Sandbox.probe(unsafe=settings.unsafe)
    compiler = require_standards(sandbox, settings.std)
    headers = tuple(folder.expanduser() for folder in settings.headers)
    check_mounts(sandbox, headers)
    projects = read_projects(reader)
    as_is = _compile(documents, settings, sandbox, (), projects)
    conditions = {"as_is": as_is}
    if headers:
        again = [
            number
            for number, (document, result) in enumerate(zip(documents, as_is, strict=True))
            if result.missing_headers or "__has_include" in document["text"]
        ]
        results = _compile([documents[number] for number in again], settings, sandbox, headers, projects)
        changed = dict(zip(again, results, strict=True))
        conditions["with_headers"] = [changed.get(number, result) for number, result in enumerate(as_is)]
    checked = [
        CompiledDocument(document, dict(zip(conditions, results, strict=True)))
        for document, *results in zip(documents, *conditions.values(), strict=True)
    ]
    if settings.project is not None:
        projects = {settings.project: projects[settings.project]}
    return summarize(checked, projects) | {
        "compiler": compiler,
        "sandbox": sandbox.name,
        "standards": list(settings.std),
        "seed": settings.seed,
    }


@dataclass
class CorpusProject:
    """A project as its corpus has it: figures of the manifest, own functions that documents have, files."""

    figures: dict[str, Any]
    functions: int = 0
    files: set[str] = field(default_factory=set)

    @cached_property
    def is_c(self) -> bool:
        """True if the project is written in C."""
        return is_c_project(self.files)

    @cached_property
    def _index(self) -> IncludeIndex:
        return IncludeIndex(self.files)

    @cached_property
    def _folders(self) -> frozenset[str]:
        return include_folders(self.files)

    def why_impossible(self, text: str, result: CompileResult) -> str:
        """The reason why a document cannot compile, whatever it has of its project; empty where it might."""
        if not result.missing_headers or self._index.nearest("", result.missing_headers[0]):
            return ""
        name = result.missing_headers[0]
        argument = f'"{name}"' if f'"{name}"' in text else f"<{name}>"
        if is_generated_code(name.rpartition("/")[2]) or is_build_written(argument, self._folders):
            return "a header that a build writes"
        return f"a header of {'another platform' if _OTHER_PLATFORM.match(name) else 'a third party'}"


def read_projects(reader: ShardReader) -> dict[str, CorpusProject]:
    """The projects of a corpus by name."""
    projects = {name: CorpusProject(figures) for name, figures in reader.manifest["projects"].items()}
    for shard in reader.shards():
        for row in reader.table(shard, ["project", "files", "num_functions"]).to_pylist():
            projects[row["project"]].files.update(row["files"])
            projects[row["project"]].functions += row["num_functions"]
    return projects


class CompiledDocument(NamedTuple):
    """A document (a row of the corpus) and its result under each condition, the last of which counts."""

    document: dict[str, Any]
    results: dict[str, CompileResult]

    @property
    def result(self) -> CompileResult:
        """The result that counts."""
        return self.results[list(self.results)[-1]]


def _compile(
    documents: list[dict[str, Any]],
    settings: CompileRateSettings,
    sandbox: Sandbox,
    headers: tuple[Path, ...],
    projects: dict[str, CorpusProject],
) -> list[CompileResult]:
    """Compile documents in threads, under a progress bar."""

    def compile_one(document: dict[str, Any]) -> CompileResult:
        language = language_of(
            main_source(document["files"]), projects[document["project"]].is_c, document["text"].encode()
        )
        return compile_document(document["text"], language, sandbox, headers, settings.std)

    what, workers = "with headers" if headers else "compile", settings.workers or available_cores()
    return map_in_threads(compile_one, documents, workers=workers, what=what, unit="document")


def summarize(checked: list[CompiledDocument], projects: dict[str, CorpusProject]) -> dict[str, Any]:
    """All figures: of the sample, by kind, and by project."""
    reasons = [
        projects[each.document["project"]].why_impossible(each.document["text"], each.result)
        for each in checked
    ]
    pairs = list(zip(checked, reasons, strict=True))
    by_kind, by_project = defaultdict(list), defaultdict(list)
    for each, reason in pairs:
        by_kind[each.document["kind"]].append((each, reason))
        by_project[each.document["project"]].append((each, reason))
    return {
        **_group(pairs, projects.values()),
        "by_kind": {kind: _group(by_kind[kind]) for kind in sorted(by_kind)},
        "by_project": {name: _group(by_project[name], [projects[name]]) for name in sorted(by_project)},
        "impossible_reasons": count_reasons(pairs),
        "reasons": count_reasons((each, each.result.reason) for each, impossible in pairs if not impossible),
        "missing_headers": _most_frequent(
            Counter(name for each in checked for name in each.result.missing_headers)
        ),
    }


def _group(
    pairs: list[tuple[CompiledDocument, str]], projects: Iterable[CorpusProject] = ()
) -> dict[str, Any]:
    """Sizes and rates of documents, each with why it cannot compile; figures of their projects."""
    checked = [each for each, _ in pairs]
    figures: dict[str, Any] = {"documents": len(checked), **_sizes([each.document for each in checked])}
    for condition in checked[0].results:
        figures[condition] = rate([each.results[condition] for each in checked])
    figures["impossible"] = sum(bool(reason) for _, reason in pairs)
    figures["possible"] = rate([each.result for each, reason in pairs if not reason])
    figures["not_chunks"] = rate([each.result for each in checked if each.document["kind"] != "chunk"])
    figures["functions"] = functions_covered(checked, _in_documents(projects))
    if projects:
        kinds = sum((Counter(project.figures["kinds"]) for project in projects), Counter[str]())
        figures["chunk_share"] = round(kinds["chunk"] / kinds.total(), 4)
        sizes = [(each.figures["text_bytes"], each.figures["source_bytes"]) for each in projects]
        figures["text_per_source"] = round(sum(t for t, _ in sizes) / max(1, sum(s for _, s in sizes)), 3)
    return figures


def _sizes(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and median length, in tokens where the corpus was built with a tokenizer, else in bytes."""
    counted = all(document["num_tokens"] >= 0 for document in documents)
    sizes = [document["num_tokens"] if counted else len(document["text"].encode()) for document in documents]
    unit = "tokens" if counted else "bytes"
    return {f"mean_{unit}": round(statistics.mean(sizes)), f"median_{unit}": round(statistics.median(sizes))}


def _in_documents(projects: Iterable[CorpusProject]) -> float:
    """The share of the projects' own functions that any document has."""
    own = sum(project.figures["functions"] for project in projects)
    return min(1.0, sum(project.functions for project in projects) / own) if own else 1.0


def functions_covered(checked: list[CompiledDocument], in_documents: float) -> dict[str, Any]:
    """The share of own functions that stand in a document that compiles, estimated from a sample.

    An own function stands in one document. So of the sampled documents' own functions those are counted whose
    document compiles (a ratio estimate: documents weigh as many functions as they have), times the share of
    own functions that any document has. The interval is Wilson's for the effective number of documents of
    Kish 1965, "Survey Sampling": it is wide where few documents have most of the functions.
    """
    numbers = [each.document["num_functions"] for each in checked]
    total = sum(numbers)
    if not total:
        return {"functions": 0, "compile_rate": None, "interval": None}
    share = sum(n for n, each in zip(numbers, checked, strict=True) if each.result.compiles) / total
    effective = total**2 / sum(n * n for n in numbers)
    return {
        "functions": total,
        "compile_rate": round(share * in_documents, 4),
        "interval": [round(end * in_documents, 4) for end in wilson_interval(share * effective, effective)],
    }


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


def count_reasons(pairs: Iterable[tuple[CompiledDocument, str]]) -> list[dict[str, Any]]:
    """The most frequent reasons, each with a few documents and what the compiler said of them."""
    examples: dict[str, list[dict[str, str]]] = defaultdict(list)
    for each, reason in pairs:
        about = {"id": each.document["id"][:16], "project": each.document["project"]}
        examples[reason].append({**about, "error": each.result.first_error})
    counts = _most_frequent(Counter({reason: len(found) for reason, found in examples.items() if reason}))
    return [
        {"reason": reason, "documents": count, "examples": examples[reason][:_EXAMPLES]}
        for reason, count in counts.items()
    ]


def _most_frequent(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:TOP_REASONS])


def format_table(result: dict[str, Any]) -> str:
    """The report for people."""
    conditions = [name for name in ("as_is", "with_headers") if name in result]
    columns = [*conditions, "possible", "not_chunks", "functions"]
    unit = "tokens" if "median_tokens" in result else "bytes"
    header = f"{'':20}{'documents':>10}{'median ' + unit:>15}"
    lines = [header + "".join(f"{name.replace('_', ' '):>18}" for name in columns) + f"{'chunks':>8}"]
    for name, part in [*result["by_kind"].items(), *result["by_project"].items(), ("all", result)]:
        line = f"{name[:20]:20}{part['documents']:>10,}{part[f'median_{unit}']:>15,}"
        line += "".join(f"{_percent(part[column]):>18}" for column in columns)
        lines.append(line + (f"{part['chunk_share']:>8.1%}" if "chunk_share" in part else ""))
    lines.append(f"{result['text_per_source']:.2f} bytes of documents for each byte of source")
    later = max(result[condition]["later_standard"] for condition in conditions)
    lines.append(f"standards: {', '.join(result['standards'])} ({later} needed a later one than the first)")
    share = result["impossible"] / result["documents"]
    lines.append(f"cannot compile: {result['impossible']} ({share:.1%})")
    lines += map(_reason_line, result["impossible_reasons"])
    headers = ", ".join(f"{name} ({count})" for name, count in result["missing_headers"].items())
    lines += [f"headers not found: {headers}"] if headers else []
    lines.append("other failures:")
    lines += map(_reason_line, result["reasons"])
    lines.append(f"{result['compiler']}, sandbox {result['sandbox']}")
    return "\n".join(lines)


def _reason_line(reason: dict[str, Any]) -> str:
    example = reason["examples"][0]
    shown = f"{example['project']} {example['id']}: {example['error']}"
    return f"{reason['documents']:>6}  {reason['reason']} ({shown})"


def _percent(figures: dict[str, Any]) -> str:
    if figures["compile_rate"] is None:
        return "-"
    low, high = figures["interval"]
    return f"{figures['compile_rate']:.1%} ({100 * low:.0f}-{100 * high:.0f})"
