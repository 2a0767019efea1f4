"""Likelihood of right solutions of problems under a model: measures that move before anything compiles.

    bits per byte   of the canonical bodies, given their prompts
    bug ranking     the share of problems in which the canonical body is likelier than the buggy one, after
                    the same prompt; ties count half, chance gives 50 %

Ranking compares the bits of both programs up to the end of the body. It also compares bits per byte of the
body, since a bug is often something left out, and a shorter text is likelier for that alone. The interval of
a share is Wilson's (1927), 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cpplm.core.errors import UserError
from cpplm.core.progress import progress_bar
from cpplm.core.statistics import wilson_interval
from cpplm.core.text import pluralize
from cpplm.evaluate.bits_per_byte import figures
from cpplm.evaluate.models.code_model import CodeModel, TokenBits
from cpplm.evaluate.problems import Problem

# Of the bits: less is rounding, which depends on what else is in a batch.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Solution:
    """A body behind its prompt: bits of all, bits of the body, bytes of the body.

    A token that begins in the prompt and ends in the body belongs to the body.
    """

    total_bits: float
    bits: float
    bytes: int

    @classmethod
    def of(cls, tokens: TokenBits, prompt: str) -> Solution:
        """From the tokens of prompt and body together."""
        prompt_bytes = len(prompt.encode())
        bits = float(tokens.bits[tokens.ends > prompt_bytes].sum())
        return cls(float(tokens.bits.sum()), bits, int(tokens.ends[-1]) - prompt_bytes)


def measure_likelihood(model: CodeModel, problems: Sequence[Problem]) -> dict[str, Any]:
    """All figures, as plain JSON; `details` has one entry for each problem that comes with a solution.

    Raises:
        UserError: the model cannot score, or no problem comes with a solution.
    """
    solved = [problem for problem in problems if problem.canonical_solution]
    if not solved:
        raise UserError("none of the problems comes with a solution", fix="Take others: --problems small.")
    scored = model.score([problem.prompt + body for problem in solved for body in _bodies(problem)])
    details = []
    with progress_bar(len(solved), "likelihood of solutions", "problem") as bar:
        for problem in solved:
            pair = [Solution.of(next(scored), problem.prompt) for _ in _bodies(problem)]
            details.append(_detail(problem, *pair))
            bar.update()
    canonical = figures(details)
    ranked = [detail for detail in details if "ranked" in detail]
    return {
        "problems": len(solved),
        "bits_per_byte": canonical["bits_per_byte"],
        "interval": canonical.get("interval"),
        "bug_ranking": _share([detail["ranked"] for detail in ranked]),
        "bug_ranking_per_byte": _share([detail["ranked_per_byte"] for detail in ranked]),
        "details": details,
    }


def _bodies(problem: Problem) -> list[str]:
    return [body for body in (problem.canonical_solution, problem.buggy_solution) if body]


def _detail(problem: Problem, right: Solution, wrong: Solution | None = None) -> dict[str, Any]:
    detail: dict[str, Any] = {"problem": problem.name, "bits": right.bits, "bytes": right.bytes}
    if wrong is not None:
        detail |= {
            "buggy_bits": wrong.bits,
            "buggy_bytes": wrong.bytes,
            "ranked": _ranked(right.total_bits, wrong.total_bits),
            "ranked_per_byte": _ranked(right.bits / right.bytes, wrong.bits / wrong.bytes),
        }
    return detail


def _ranked(right: float, wrong: float) -> float:
    """1 where the right one takes fewer bits, 0 where more, 0.5 where equal."""
    if abs(right - wrong) <= _ROUNDING * max(right, wrong):
        return 0.5
    return float(right < wrong)


def _share(values: Sequence[float]) -> dict[str, Any] | None:
    """The mean with its interval; none of no values."""
    if not values:
        return None
    share = sum(values) / len(values)
    return {"share": share, "interval": list(wilson_interval(sum(values), len(values))), "pairs": len(values)}


def table(result: dict[str, Any]) -> str:
    """The figures for people."""
    low, high = result["interval"] or [result["bits_per_byte"]] * 2
    rows = [
        f"{'canonical bodies':<22}{result['bits_per_byte']:.4f} bits per byte, 95 % interval "
        f"{low:.4f} to {high:.4f} ({pluralize(result['problems'], 'problem')})"
    ]
    for name, key in (("bug ranking", "bug_ranking"), ("  per byte", "bug_ranking_per_byte")):
        if result[key] is None:
            continue
        low, high = result[key]["interval"]
        rows.append(
            f"{name:<22}{result[key]['share']:.1%}, 95 % interval {low:.1%} to {high:.1%}, chance 50 %"
        )
    return "\n".join(rows)
