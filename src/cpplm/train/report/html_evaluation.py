"""The page's part on evaluation: what `evaluation.json` says of one model, ready for the template.

Everything is optional, since a run may have been evaluated in part, with an older version, or not at all.
Known entries: `bpb`, `likelihood`, `fim`, `cpp` and others that begin with it (sets of problems).
"""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]

_TITLES = {"cpp": "C++ problems", "cpp_small": "Small C++ problems", "cpp_humaneval": "HumanEval in C++"}


def evaluation_view(evaluation: Record) -> Record:
    """The contents of `evaluation.json` in order, for the template; empty where it has nothing to show."""
    bits = evaluation.get("bpb", {})
    view = {
        "bits": bits,
        "bits_tables": _bits_tables(bits),
        "problem_sets": _problem_sets(evaluation),
        "fim": evaluation.get("fim", {}),
        "likelihood": evaluation.get("likelihood", {}),
    }
    return view if any(view.values()) else {}


def _problem_sets(evaluation: Record) -> dict[str, Record]:
    """The stored result of each set of C++ problems, by its title."""
    return {
        _TITLES.get(name, f"C++ problems: {name.removeprefix('cpp_')}"): result
        for name, result in evaluation.items()
        if name == "cpp" or name.startswith("cpp_")
    }


def _bits_tables(bits: Record) -> dict[str, Record]:
    """Bits per byte by group, of the known tables those with at least two rows: one says what the headline
    says."""
    in_view = {f"{row['from']:,} to {row['to']:,}": row for row in bits.get("by_context_length", [])}
    contexts = {f"{row['context']:,}": row for row in bits.get("shorter_contexts", [])}
    known = {
        "project": bits.get("by_project", {}),
        "kind of document": bits.get("by_kind", {}),
        "tokens in view": in_view,
        "length of the context, on the same bytes": contexts,
    }
    return {title: groups for title, groups in known.items() if len(groups) > 1}


def evaluation_tiles(evaluation: Record) -> list[tuple[str, str, str]]:
    """Headline figures as (name, value, remark)."""
    tiles = []
    for title, result in _problem_sets(evaluation).items():
        remark = f"of {result['problems']}: {title}"
        tiles.append(("compile rate", f"{result['compile_rate']:.1%}", remark))
        tiles.append(("pass@1", f"{result['pass@1']:.1%}", remark))
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
