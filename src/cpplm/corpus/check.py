"""`cpplm corpus check`: how many of a corpus's documents compile as they are.

A sample of documents is compiled with `g++ -std=c++17 -fsyntax-only` (gcc for documents of C files), each
alone in the sandbox: without the project's include folders, with the headers installed in the system.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import tyro

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.shards import ShardReader
from cpplm.corpus.sampling import sample_documents
from cpplm.sandbox.compiler import COMPILE_LIMITS, require_compiler
from cpplm.sandbox.sandbox import Sandbox

SYNTAX_ONLY = ("-fsyntax-only", "-w", "-fmax-errors=1", "-ftemplate-depth=256")
TOP_REASONS = 8
_ERROR = re.compile(r"(?:fatal )?error: (.*)")


@dataclass(frozen=True)
class CheckSettings:
    """Settings of `cpplm corpus check`."""

    corpus: tyro.conf.Positional[str]
    """Folder or bucket URL of a corpus."""
    sample: int = 200
    """Documents to compile."""
    seed: int = 0
    """Which ones."""
    project: str | None = None
    """Only documents of this project."""
    kind: Literal["compilable", "file", "chunk"] | None = None
    """Only documents of this kind."""
    workers: int = 0
    """Compilers at the same time; 0 means one per core."""
    unsafe: bool = False
    """Run the compiler without isolation. Never do this with code that you do not trust."""

    def __post_init__(self) -> None:
        if self.sample < 1:
            raise UserError(f"--sample {self.sample} must be at least 1")
        if self.workers < 0:
            raise UserError(f"--workers {self.workers} is negative", fix="Use 0 for one per core.")


@dataclass(frozen=True)
class Verdict:
    """One document. `reason` is empty when it compiles, else its first error without the names in it."""

    id: str
    project: str
    kind: str
    reason: str

    @property
    def compiles(self) -> bool:
        """Whether the compiler took it."""
        return not self.reason


def check(settings: CheckSettings) -> dict[str, Any]:
    """Compile a sample; returns rates overall, by kind and by project, and the most frequent errors.

    Raises:
        UserError: no corpus, sandbox or compiler.
    """
    documents = sample_documents(
        ShardReader(settings.corpus),
        project=settings.project,
        kind=settings.kind,
        num=settings.sample,
        seed=settings.seed,
    )
    sandbox = Sandbox.probe(unsafe=settings.unsafe)
    compiler = require_compiler(sandbox)
    with (
        ThreadPoolExecutor(settings.workers or os.cpu_count()) as pool,
        progress_bar(len(documents), "compile", "document") as bar,
    ):

        def work(document: dict[str, Any]) -> Verdict:
            verdict = judge(document, sandbox)
            bar.update()
            return verdict

        verdicts = list(pool.map(work, documents))
    return summarise(verdicts) | {"compiler": compiler, "sandbox": sandbox.name, "seed": settings.seed}


def judge(document: dict[str, Any], sandbox: Sandbox) -> Verdict:
    """Compile one document."""
    is_c = all(name.endswith(".c") for name in document["files"])
    name, command = ("document.c", ("gcc",)) if is_c else ("document.cpp", ("g++", "-std=c++17"))
    result = sandbox.run({name: document["text"].encode()}, [*command, *SYNTAX_ONLY, name], COMPILE_LIMITS)
    reason = "" if result.succeeded else first_error(result.message()) or f"compiler ended by {result.reason}"
    return Verdict(document["id"], document["project"], document["kind"], reason)


def first_error(message: str) -> str:
    """The first error of a compiler's output, without names, so that equal causes count together."""
    found = _ERROR.search(message)
    if found is None:
        return ""
    if found.group(1).endswith("No such file or directory"):
        return "a header was not found"
    return re.sub(r"\u2018[^\u2019]*\u2019|'[^']*'|\"[^\"]*\"", "...", found.group(1))


def summarise(verdicts: list[Verdict]) -> dict[str, Any]:
    """Rates with their 95 % intervals, and the most frequent reasons with an example each."""
    reasons = Counter(verdict.reason for verdict in verdicts if verdict.reason)
    example = {verdict.reason: verdict.id[:16] for verdict in reversed(verdicts)}
    return {
        **_rate(verdicts),
        "by_kind": _grouped(verdicts, lambda verdict: verdict.kind),
        "by_project": _grouped(verdicts, lambda verdict: verdict.project),
        "reasons": [
            {"reason": reason, "documents": count, "example": example[reason]}
            for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:TOP_REASONS]
        ],
    }


def _grouped(verdicts: list[Verdict], key: Callable[[Verdict], str]) -> dict[str, dict[str, Any]]:
    return {
        name: _rate([v for v in verdicts if key(v) == name]) for name in sorted({key(v) for v in verdicts})
    }


def _rate(verdicts: list[Verdict]) -> dict[str, Any]:
    """Compile rate with the 95 % interval of Wilson (1927), which holds for small samples too."""
    number, passed, z = len(verdicts), sum(verdict.compiles for verdict in verdicts), 1.96
    rate = passed / number
    middle = (rate + z * z / (2 * number)) / (1 + z * z / number)
    half = z / (1 + z * z / number) * math.sqrt(rate * (1 - rate) / number + z * z / (4 * number**2))
    return {
        "documents": number,
        "compile": passed,
        "compile_rate": round(rate, 4),
        "interval": [round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4)],
    }
