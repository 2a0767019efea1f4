"""Judged samples and the figures made of them: pure data; `suite.py` asks models, compiles and runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rapidfuzz.distance import Levenshtein

from cpplm.core.statistics import MeanEstimate, clustered_mean
from cpplm.evaluate.completion_cache import Truncation

NO_ANSWER = "no answer"
Source = Literal["problems", "files"]
SOURCES: tuple[Source, ...] = ("problems", "files")
# What the page shows of the text around a hole.
_SHOWN_BEFORE, _SHOWN_AFTER = 1200, 600


def normalize_layout(text: str) -> str:
    """A text without white space at the ends of its lines and without empty lines at its end."""
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()


def edit_similarity(one: str, two: str) -> float:
    """1 - d / max(lengths), where d is the least number of characters to insert, delete or replace.

    Of the texts as `normalize_layout` leaves them; 1 for two empty ones. Source: Svyatkovskiy et al. 2020,
    "IntelliCode Compose" (arXiv 2005.08025), with Levenshtein's distance (1966).
    """
    return Levenshtein.normalized_similarity(normalize_layout(one), normalize_layout(two))


@dataclass(frozen=True)
class FimSample:
    """One answer to one hole, judged. None stands for what could not be asked of this hole."""

    hole: str
    kind: str
    source: Source
    group: str
    """Problem or document."""
    prefix: str
    suffix: str
    expected: str
    completion: str
    """After cutting."""
    exact_match: bool
    """True if it equals what stood there, apart from white space at the ends of lines."""
    edit_similarity: float
    syntax_valid: bool | None
    """True if the parser reads the filled text; None where it does not read the original either."""
    compiles: bool | None
    passes: bool | None
    outcome: str
    """The judge's word, NO_ANSWER, or empty where nothing is compiled."""
    message: str
    """The compiler's or the program's, or why there is no answer."""
    bits: float | None = None
    """-log2 of the probability of what stood there."""

    @property
    def bits_per_byte(self) -> float | None:
        """The bits of a byte of what stood there."""
        return None if self.bits is None else self.bits / max(1, len(self.expected.encode()))


_BITS = "bits_per_byte"
# Score, its name in tables, and its value for one sample; only those that are not None count.
_SCORES: tuple[tuple[str, str, Callable[[FimSample], float | None]], ...] = (
    ("exact_match", "exact", lambda sample: sample.exact_match),
    ("edit_similarity", "similar", lambda sample: sample.edit_similarity),
    ("syntax_valid", "syntax", lambda sample: sample.syntax_valid),
    ("compile_rate", "compile", lambda sample: sample.compiles),
    ("pass_rate", "pass", lambda sample: sample.passes),
    (_BITS, "bits/byte", lambda sample: sample.bits_per_byte),
)


@dataclass(frozen=True)
class FimReport:
    """The figures of a set of holes, and every sample behind them."""

    samples: tuple[FimSample, ...]
    fingerprint: str
    """A hash of the holes: scores of equal sets can be compared."""
    config: dict[str, Any]
    """Settings, model and versions: all it takes to repeat the measurement."""
    truncation: Truncation = field(default_factory=Truncation)
    """The prompts that were cut to fit the context."""

    def rows(self) -> Iterator[tuple[Source, str, dict[str, MeanEstimate]]]:
        """For each source and kind, and for all kinds of a source together: its scores by name."""
        for source in SOURCES:
            chosen = [sample for sample in self.samples if sample.source == source]
            for kind in dict.fromkeys(sample.kind for sample in chosen):
                yield source, kind, scores([sample for sample in chosen if sample.kind == kind])
            if chosen:
                yield source, "all", scores(chosen)

    def figures(self) -> dict[str, Any]:
        """Everything but the samples, as plain JSON; a score is its value, standard error and number."""
        kinds: dict[str, dict[str, Any]] = {}
        for source, kind, by_name in self.rows():
            kinds.setdefault(source, {})[kind] = {name: asdict(score) for name, score in by_name.items()}
        return {
            "holes": len({sample.hole for sample in self.samples}),
            "samples": len(self.samples),
            **kinds,
            **self.truncation.figures(),
            "outcomes": self._outcomes(),
            "fingerprint": self.fingerprint,
            "config": self.config,
        }

    def details(self) -> list[dict[str, Any]]:
        """Each sample as a plain dictionary, for the run page."""
        return [
            {
                **asdict(sample),
                "prefix": sample.prefix[-_SHOWN_BEFORE:],
                "suffix": sample.suffix[:_SHOWN_AFTER],
            }
            for sample in self.samples
        ]

    def table(self) -> str:
        """The figures as text: percentages and bits, each with its standard error and its own n."""
        lines = [f"{'holes in':<10}{'kind':<11}{'n':>5}" + "".join(f"{name:>17}" for _, name, _ in _SCORES)]
        for source, kind, by_name in self.rows():
            count = by_name["exact_match"].n
            cells = "".join(f"{_cell(name, by_name.get(name), count):>17}" for name, _, _ in _SCORES)
            lines.append(f"{source:<10}{kind:<11}{count:>5}{cells}")
        if outcomes := self._outcomes():
            lines.append("outcomes: " + ", ".join(f"{count} {name}" for name, count in outcomes.items()))
        if unanswered := [sample.message for sample in self.samples if sample.outcome == NO_ANSWER]:
            lines.append(f"{NO_ANSWER}, for example: {unanswered[0]}")
        return "\n".join([*lines, *self.truncation.lines()])

    def _outcomes(self) -> dict[str, int]:
        counted = Counter(sample.outcome for sample in self.samples if sample.outcome)
        return dict(counted.most_common())


def scores(samples: Sequence[FimSample]) -> dict[str, MeanEstimate]:
    """Each score as the mean over holes of the mean over a hole's samples; left out where nothing counts."""
    estimates = {}
    for name, _, value_of in _SCORES:
        values: dict[str, list[float]] = {}
        groups: dict[str, str] = {}
        for sample in samples:
            value = value_of(sample)
            if value is not None:
                values.setdefault(sample.hole, []).append(float(value))
                groups[sample.hole] = sample.group
        if values:
            means = [sum(each) / len(each) for each in values.values()]
            estimates[name] = clustered_mean(means, [groups[hole] for hole in values])
    return estimates


def _cell(name: str, score: MeanEstimate | None, count: int) -> str:
    if score is None:
        return ""
    factor, digits = (1, 3) if name == _BITS else (100, 1)
    error = "" if score.error is None else f" ±{factor * score.error:.{digits}f}"
    return f"{factor * score.value:.{digits}f}{error}" + ("" if score.n == count else f" ({score.n})")
