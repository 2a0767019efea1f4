"""Source files that hold text of the evaluation problems: a model must not have read what it is asked.

A file is contaminated when it shares a run of 13 words with a problem (13 as in Brown et al. 2020, "Language
Models are Few-Shot Learners", appendix C). Words are compared without punctuation and layout, so that a copy
which was reformatted is found. Runs that prove nothing do not count: include lists and other directives, runs
with few different words (tables, loops), runs that several problems share, and runs that turn up in more than
ten files of the corpus.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from cpplm.core.errors import UserError
from cpplm.corpus.ingest.ngram_hash import Hashes, hash_words, ngram_hashes, split_words

NGRAM_WORDS = 13
_FEWEST_DIFFERENT = 5
# A run in more problems than this comes from a template, one in more files than this from habit.
_MOST_PROBLEMS = 2
_MOST_FILES = 10
_NAMES = ("name", "task_id", "id", "problem_id")
# Code that stands together is compared together; the buggy variant of a solution must not be learned either.
_TEXTS = (
    ("prompt", "canonical_solution"),
    ("prompt", "buggy_solution"),
    ("declaration", "canonical_solution"),
    ("instruction",),
    ("docstring",),
    ("tests",),
    ("test_setup", "test"),
    ("example_test",),
    ("text",),
)
_BOILERPLATE = re.compile(r"^[ \t]*(?:#.*|using namespace \w+;)$", re.MULTILINE)


class ProblemMatch(NamedTuple):
    """A run of words that a file shares with a problem."""

    ngram: int
    problem: str
    words: str


Problems = Mapping[int, str]
"""The runs of all evaluation problems, each with the problem that it is from."""


def find_matches(problems: Problems, words: list[bytes], hashes: Hashes) -> list[ProblemMatch]:
    """The runs of words, with these hashes, that a text shares with a problem; each once, in order."""
    matches: dict[int, ProblemMatch] = {}
    for place, ngram in enumerate(ngram_hashes(hashes, NGRAM_WORDS).tolist()):
        if ngram in problems and ngram not in matches:
            shown = b" ".join(words[place : place + NGRAM_WORDS]).decode("utf-8", "replace")
            matches[ngram] = ProblemMatch(ngram, problems[ngram], shown)
    return list(matches.values())


def load_problems(extra: Sequence[Path]) -> Problems:
    """The problems that come with cpplm, and those in JSON Lines files.

    Raises:
        UserError: a file cannot be read, is no JSON Lines, or has no field with a problem's text.
    """
    owners = dict(_builtin_ngrams())
    for path in extra:
        try:
            text = path.expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"cannot read --decontaminate {path}: {error}", fix="Name a JSON Lines file with problems."
            ) from error
        owners = _problem_ngrams(text, path.name) | owners
    return owners


@functools.cache
def _builtin_ngrams() -> dict[int, str]:
    """The n-grams of the problems that come with cpplm; half of the time that a small build takes."""
    owners: dict[int, str] = {}
    folder = resources.files("cpplm").joinpath("evaluate", "problem_sets")
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.name.endswith(".jsonl"):
            owners = _problem_ngrams(item.read_text(encoding="utf-8"), item.name) | owners
    return owners


def _parse(text: str, source: str) -> list[tuple[str, list[str]]]:
    """Name and texts of each problem."""
    problems = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"--decontaminate {source}:{number}: not JSON: {error}", fix="One object per line."
            ) from error
        if not isinstance(values, dict):
            raise UserError(
                f"--decontaminate {source}:{number}: not a JSON object", fix="One object per line."
            )
        joined = ["\n".join(_text(values.get(field)) for field in group) for group in _TEXTS]
        if not any(part.strip() for part in joined):
            known = ", ".join(dict.fromkeys(field for group in _TEXTS for field in group))
            raise UserError(
                f"--decontaminate {source}:{number} has no text of a problem", fix=f"Known fields: {known}."
            )
        name = next((str(values[field]) for field in _NAMES if field in values), f"line {number}")
        problems.append((name, joined))
    return problems


def _text(value: object) -> str:
    """A field's text: a string, or several of them."""
    if isinstance(value, list):
        return "\n".join(_text(item) for item in value)
    return value if isinstance(value, str) else ""


def _problem_ngrams(text: str, source: str) -> dict[int, str]:
    """The distinctive n-grams of one set of problems, each with the first problem that has it."""
    owners: dict[int, str] = {}
    problems_with: Counter[int] = Counter()
    for name, texts in _parse(text, source):
        ngrams: set[int] = set()
        for part in texts:
            ngrams |= _distinctive_ngrams(_BOILERPLATE.sub("", part).encode())
        for ngram in ngrams:
            owners.setdefault(ngram, f"{source}: {name}")
        problems_with.update(ngrams)
    return {ngram: name for ngram, name in owners.items() if problems_with[ngram] <= _MOST_PROBLEMS}


def _distinctive_ngrams(text: bytes) -> set[int]:
    """Runs with enough different words of three letters and more."""
    words = split_words(text)
    names = [b"" if len(word) < 3 or word[:1].isdigit() else word for word in words]
    return {
        ngram
        for place, ngram in enumerate(ngram_hashes(hash_words(words), NGRAM_WORDS).tolist())
        if len({*names[place : place + NGRAM_WORDS], b""}) > _FEWEST_DIFFERENT
    }


def contaminated_files(matches: Sequence[Sequence[ProblemMatch]]) -> dict[int, ProblemMatch]:
    """Position of each contaminated file to the first match that shows it; `matches` has those of each."""
    files: dict[int, set[int]] = defaultdict(set)
    for position, file_matches in enumerate(matches):
        for match in file_matches:
            files[match.ngram].add(position)
    distinctive = {ngram for ngram, where in files.items() if len(where) <= _MOST_FILES}
    first = {
        position: next((match for match in file_matches if match.ngram in distinctive), None)
        for position, file_matches in enumerate(matches)
    }
    return {position: match for position, match in first.items() if match is not None}
