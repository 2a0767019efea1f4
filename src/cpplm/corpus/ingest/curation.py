"""Curation over all files of all projects: redaction, copies of one another, copies of problems.

Every file is read once; what is kept of it is small, and stored beside the corpus (`fingerprints.py`) for
projects that are added later. Copies of held-out text are not even quoted by documents of other files. The
order of projects and files decides which of two equals stays, so the result does not depend on how the
reading is spread over processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from cpplm.core.workers import batched_by_size
from cpplm.corpus.ingest.decontamination import ProblemMatch, Problems, contaminated_files, find_matches
from cpplm.corpus.ingest.dedup import Fingerprint, exact_duplicates, fingerprint, near_duplicates
from cpplm.corpus.ingest.discovery import Project, SourceFile, normalize_source
from cpplm.corpus.ingest.fingerprints import KnownFile
from cpplm.corpus.ingest.generated_files import read_head
from cpplm.corpus.ingest.ngram_hash import hash_words, split_words
from cpplm.corpus.ingest.pii import PiiFinding, redact
from cpplm.corpus.ingest.walk import SkipCounts

# As `map`, in this process or in others.
Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
_BATCH_BYTES = 1_000_000


@dataclass
class ScannedProject:
    """A project with its files, what was left out of it, and what was redacted in it."""

    project: Project
    files: list[SourceFile]
    skips: SkipCounts
    redactions: SkipCounts = field(default_factory=SkipCounts)


class CurationRules(NamedTuple):
    """Settings of the curation.

    `near_duplicates` is the least similarity of twins, 0 for exact ones only.
    """

    problems: Problems
    near_duplicates: float = 0.85
    redact: bool = True


class _ScannedFile(NamedTuple):
    """Results of scanning a file; `fingerprint` is None for one that makes no documents anyway."""

    findings: list[PiiFinding]
    fingerprint: Fingerprint | None
    matches: list[ProblemMatch]


@dataclass(frozen=True)
class _Candidate:
    """A file that makes documents unless it is found to be a copy."""

    project: ScannedProject
    index: int
    fingerprint: Fingerprint
    matches: list[ProblemMatch]

    @property
    def file(self) -> SourceFile:
        return self.project.files[self.index]

    def __str__(self) -> str:
        return f"{self.project.project.name}: {self.file.name}"

    def leave_out(self, reason: str, why: str, *, may_be_borrowed: bool = True) -> None:
        """Count the file and make no documents of it."""
        self.project.skips.add(reason, f"{self.file.name} ({why})", self.file.size)
        self.project.files[self.index] = replace(
            self.file, makes_documents=False, may_be_borrowed=may_be_borrowed and self.file.may_be_borrowed
        )


def curate(
    projects: Sequence[ScannedProject], rules: CurationRules, known: Sequence[KnownFile] = (), run: Run = map
) -> list[KnownFile]:
    """Decide on every file of the projects, in place; returns those that make documents.

    Args:
        projects: in the order in which their files are preferred. Within each it is the order of names.
        rules: what to look for.
        known: files of the corpus that the projects are added to; they stay.
        run: how to map over batches of files.
    """
    examined = _scan_files(projects, rules, run)
    candidates: list[_Candidate] = []
    for project in projects:
        results = {file.name: (index, next(examined)) for index, file in enumerate(project.files)}
        for name, (index, result) in sorted(results.items()):
            for finding in result.findings:
                project.redactions.add(finding.kind, f"{name}:{finding.line}")
            project.files[index] = replace(project.files[index], redact=bool(result.findings))
            if result.fingerprint is not None:
                candidates.append(_Candidate(project, index, result.fingerprint, result.matches))
    stay = _drop_copies(candidates, known, rules.near_duplicates)
    return [KnownFile(each.project.project.name, each.file.name, each.fingerprint) for each in stay]


def _scan_files(projects: Sequence[ScannedProject], rules: CurationRules, run: Run) -> Iterator[_ScannedFile]:
    files = (file for project in projects for file in project.files)
    jobs = [(batch, rules) for batch in batched_by_size(files, lambda file: file.size, _BATCH_BYTES)]
    for results in run(_scan_batch, jobs):
        yield from results


def _scan_batch(job: tuple[list[SourceFile], CurationRules]) -> list[_ScannedFile]:
    files, rules = job
    return [_scan_file(file, rules) for file in files]


def _scan_file(file: SourceFile, rules: CurationRules) -> _ScannedFile:
    text = normalize_source(file.path.read_bytes())
    findings: list[PiiFinding] = []
    if rules.redact:
        text, findings = redact(text)
    if not file.makes_documents:
        return _ScannedFile(findings, None, [])
    words = split_words(text)
    hashes = hash_words(words)
    behind_head = hashes[len(split_words(text[: read_head(text).end])) :]
    found = fingerprint(hashlib.sha256(text).digest(), behind_head)
    return _ScannedFile(findings, found, find_matches(rules.problems, words, hashes))


def _drop_copies(
    candidates: list[_Candidate], known: Sequence[KnownFile], threshold: float
) -> list[_Candidate]:
    """Leave out contaminated files first, so that no clean file goes for being like one; then copies.

    Returns the candidates that stay.
    """
    contaminated = contaminated_files([candidate.matches for candidate in candidates])
    for position, match in contaminated.items():
        candidates[position].leave_out(
            "holds an evaluation problem", f"{match.problem}: {match.words}", may_be_borrowed=False
        )
    clean = [candidate for position, candidate in enumerate(candidates) if position not in contaminated]

    known_fingerprints = [each.fingerprint for each in known]
    exact_copies = exact_duplicates(known_fingerprints + [each.fingerprint for each in clean])
    single = _drop_duplicates("copy", "as", known, clean, exact_copies)
    if not threshold:
        return single
    near_copies = near_duplicates(
        known_fingerprints + [each.fingerprint for each in single], threshold, num_known=len(known)
    )
    return _drop_duplicates("nearly a copy", "like", known, single, near_copies)


def _drop_duplicates(
    what: str, how: str, known: Sequence[KnownFile], candidates: list[_Candidate], duplicates: dict[int, int]
) -> list[_Candidate]:
    """Leave out the candidates that have a twin; positions count the known files first."""
    for position, original in duplicates.items():
        other = known[original] if original < len(known) else candidates[original - len(known)]
        held_out = isinstance(other, KnownFile) and other.held_out
        candidates[position - len(known)].leave_out(
            f"{what} of {'held-out text' if held_out else 'another file'}",
            f"{how} {other}",
            may_be_borrowed=not held_out,
        )
    return [each for position, each in enumerate(candidates, len(known)) if position not in duplicates]
