"""What the files of all projects decide together: redaction, copies of one another, copies of problems.

Every file is read once; what is kept of it is small, and stored beside the corpus (`fingerprints.py`) for
projects that are added later. Copies of held-out text are not even quoted by documents of other files. The
order of projects and files decides which of two equals stays, so the result does not depend on how the
reading is spread over processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cpplm.corpus.ingest.decontamination import Hit, Problems, contaminated
from cpplm.corpus.ingest.dedup import Fingerprint, exact_twins, fingerprint, near_twins, shingles
from cpplm.corpus.ingest.discovery import Project, SourceFile, normalise, read_source
from cpplm.corpus.ingest.fingerprints import KnownFile
from cpplm.corpus.ingest.generated_files import head_of
from cpplm.corpus.ingest.ngram_hash import Hashes, words_of
from cpplm.corpus.ingest.pii import Finding, redact
from cpplm.corpus.ingest.walk import Skips

# As `map`, in this process or in others.
Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
_BATCH_BYTES = 1_000_000


@dataclass
class Found:
    """A project with its files, what was left out of it, and what was redacted in it."""

    project: Project
    files: list[SourceFile]
    skips: Skips
    redacted: Skips = field(default_factory=Skips)


@dataclass(frozen=True)
class Curation:
    """How to curate.

    `near_duplicates` is the least similarity of twins, 0 for exact ones only.
    """

    problems: Problems
    near_duplicates: float = 0.85
    redact: bool = True


@dataclass(frozen=True)
class _Examined:
    """What is kept of a file; `fingerprint` is None for one that makes no documents anyway."""

    findings: list[Finding]
    fingerprint: Fingerprint | None
    hits: list[Hit]


@dataclass(frozen=True)
class _Candidate:
    """A file that makes documents unless it is found to be a copy."""

    project: Found
    index: int
    fingerprint: Fingerprint
    hits: list[Hit]

    @property
    def file(self) -> SourceFile:
        return self.project.files[self.index]

    def __str__(self) -> str:
        return f"{self.project.project.name}: {self.file.name}"

    def shingles(self) -> Hashes:
        """Read anew: they are not kept."""
        text = read_source(self.file)
        return shingles(words_of(text), head_of(text).end)

    def leave_out(self, reason: str, why: str, *, quotable: bool = True) -> None:
        """Count the file and make no documents of it."""
        self.project.skips.add(reason, f"{self.file.name} ({why})", self.file.size)
        self.project.files[self.index] = replace(
            self.file, documents=False, quotable=quotable and self.file.quotable
        )


def curate(
    projects: list[Found], rules: Curation, *, known: Sequence[KnownFile] = (), run: Run = map
) -> list[KnownFile]:
    """Decide on every file of the projects, in place; returns those that make documents.

    Args:
        projects: in the order in which their files are preferred. Within each it is the order of names.
        rules: what to look for.
        known: files of the corpus that the projects are added to; they stay.
        run: how to map over batches of files.
    """
    examined = _examine_all(projects, rules, run)
    candidates: list[_Candidate] = []
    for project in projects:
        results = {file.name: (index, next(examined)) for index, file in enumerate(project.files)}
        for name, (index, result) in sorted(results.items()):
            for finding in result.findings:
                project.redacted.add(finding.kind, f"{name}:{finding.line}")
            project.files[index] = replace(project.files[index], redact=bool(result.findings))
            if result.fingerprint is not None:
                candidates.append(_Candidate(project, index, result.fingerprint, result.hits))
    stay = _leave_out_copies(candidates, known, rules.near_duplicates)
    return [KnownFile(each.project.project.name, each.file.name, each.fingerprint) for each in stay]


def _examine_all(projects: list[Found], rules: Curation, run: Run) -> Iterator[_Examined]:
    jobs = [(batch, rules) for batch in _batches(file for project in projects for file in project.files)]
    for results in run(_examine_batch, jobs):
        yield from results


def _batches(files: Iterable[SourceFile]) -> Iterator[list[SourceFile]]:
    batch: list[SourceFile] = []
    size = 0
    for file in files:
        batch.append(file)
        size += file.size
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _examine_batch(job: tuple[list[SourceFile], Curation]) -> list[_Examined]:
    files, rules = job
    return [_examine(file, rules) for file in files]


def _examine(file: SourceFile, rules: Curation) -> _Examined:
    text = normalise(file.path.read_bytes())
    findings: list[Finding] = []
    if rules.redact:
        text, findings = redact(text)
    if not file.documents:
        return _Examined(findings, None, [])
    words = words_of(text)
    found = shingles(words, head_of(text).end)
    digest = hashlib.sha256(text).digest()
    return _Examined(
        findings, fingerprint(digest, found, rules.near_duplicates), rules.problems.hits(text, words)
    )


def _leave_out_copies(
    candidates: list[_Candidate], known: Sequence[KnownFile], threshold: float
) -> list[_Candidate]:
    """Leave out contaminated files first, so that no clean file goes for being like one; then copies.

    Returns the candidates that stay.
    """
    shown = contaminated([candidate.hits for candidate in candidates])
    for position, hit in shown.items():
        candidates[position].leave_out(
            "holds an evaluation problem", f"{hit.problem}: {hit.words}", quotable=False
        )
    clean = [candidate for position, candidate in enumerate(candidates) if position not in shown]

    prints = [each.fingerprint for each in known]
    exact = exact_twins(prints + [each.fingerprint for each in clean])
    single = _without_twins("copy", "as", known, clean, exact)
    near = near_twins(
        prints + [each.fingerprint for each in single],
        threshold,
        lambda position: single[position - len(known)].shingles(),
        num_known=len(known),
    )
    return _without_twins("nearly a copy", "like", known, single, near)


def _without_twins(
    what: str, how: str, known: Sequence[KnownFile], candidates: list[_Candidate], twins: dict[int, int]
) -> list[_Candidate]:
    """Leave out the candidates that have a twin; positions count the known files first."""
    for position, twin in twins.items():
        other = known[twin] if twin < len(known) else candidates[twin - len(known)]
        held_out = isinstance(other, KnownFile) and other.held_out
        candidates[position - len(known)].leave_out(
            f"{what} of {'held-out text' if held_out else 'another file'}",
            f"{how} {other}",
            quotable=not held_out,
        )
    return [each for position, each in enumerate(candidates, len(known)) if position not in twins]
