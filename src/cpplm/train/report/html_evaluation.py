"""The page's part on evaluation: what `evaluation.json` says of one model, ready for the template.

Everything is optional, since a run may have been evaluated in part, with an older version, or not at all.
Known entries: `bpb`, `likelihood`, `fim`, `cpp` and others that begin with it (sets of problems).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]

_TITLES = {"cpp": "C++ problems", "cpp_small": "Small C++ problems", "cpp_humaneval": "HumanEval in C++"}


@dataclass(frozen=True)
class BitsRow:
    """Bits per byte of one group; `width` is its bar, in percent of the largest."""

    name: str
    bits_per_byte: float
    bytes: int
    width: float


@dataclass(frozen=True)
class BitsTable:
    """Bits per byte of several groups of bytes."""

    title: str
    rows: list[BitsRow]


@dataclass(frozen=True)
class ProblemSet:
    """One set of C++ problems: the stored result, and what it is called here."""

    title: str
    result: Record


@dataclass(frozen=True)
class EvaluationView:
    """The contents of this part, for the template; whatever is empty is left out."""

    bits: Record
    bits_tables: list[BitsTable]
    problem_sets: list[ProblemSet]
    fim: Record
    likelihood: Record

    def __bool__(self) -> bool:
        return bool(self.bits or self.problem_sets or self.fim or self.likelihood)


def evaluation_view(evaluation: Record) -> EvaluationView:
    """Put the contents of `evaluation.json` in order."""
    bits = evaluation.get("bpb", {})
    return EvaluationView(
        bits=bits,
        bits_tables=_bits_tables(bits),
        problem_sets=[
            ProblemSet(_TITLES.get(name, f"C++ problems: {name.removeprefix('cpp_')}"), result)
            for name, result in evaluation.items()
            if name == "cpp" or name.startswith("cpp_")
        ],
        fim=evaluation.get("fim", {}),
        likelihood=evaluation.get("likelihood", {}),
    )


def _bits_tables(bits: Record) -> list[BitsTable]:
    """Those of the known tables that have at least two rows: one row says what the headline says."""
    in_view = {f"{row['from']:,} to {row['to']:,}": row for row in bits.get("by_context_length", [])}
    contexts = {f"{row['context']:,}": row for row in bits.get("shorter_contexts", [])}
    known = {
        "project": bits.get("by_project", {}),
        "kind of document": bits.get("by_kind", {}),
        "tokens in view": in_view,
        "length of the context, on the same bytes": contexts,
    }
    return [BitsTable(title, _rows(groups)) for title, groups in known.items() if len(groups) > 1]


def _rows(groups: Record) -> list[BitsRow]:
    largest = max(group["bits_per_byte"] for group in groups.values()) or 1.0
    return [
        BitsRow(name, group["bits_per_byte"], group["bytes"], 100 * group["bits_per_byte"] / largest)
        for name, group in groups.items()
    ]


def evaluation_tiles(evaluation: Record) -> list[tuple[str, str, str]]:
    """Headline figures as (name, value, remark)."""
    tiles = []
    for each in evaluation_view(evaluation).problem_sets:
        remark = f"of {each.result['problems']}: {each.title}"
        tiles.append(("compile rate", f"{each.result['compile_rate']:.1%}", remark))
        tiles.append(("pass@1", f"{each.result['pass@1']:.1%}", remark))
    fim = evaluation.get("fim", {})
    for source, score, name in (
        ("problems", "pass_rate", "holes filled that pass"),
        ("files", "exact_match", "holes filled exactly"),
    ):
        value = fim.get(source, {}).get("all", {}).get(score)
        if value is not None:
            error = "" if value["error"] is None else f", ±{value['error']:.1%}"
            tiles.append((name, f"{value['value']:.1%}", f"of {value['n']} in {source}{error}"))
    if ranking := evaluation.get("likelihood", {}).get("bug_ranking"):
        low, high = ranking["interval"]
        tiles.append(
            ("right before wrong", f"{ranking['share']:.1%}", f"{low:.0%} to {high:.0%}; chance 50%")
        )
    return tiles
