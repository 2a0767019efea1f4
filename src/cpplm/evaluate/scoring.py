"""What is scored: the text of a completion, the estimator, the report.

Pure functions and data; `cpp.py` compiles and runs.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal[
    "pass",
    "compile error",
    "compile limit",
    "forbidden",
    "wrong answer",
    "early exit",
    "crash",
    "timeout",
    "memory",
    "output limit",
    "sandbox error",
]
"""What became of one completion. "compile limit": the compiler ran out of time, memory or disk;
"forbidden": the body holds a preprocessor directive, asm or _Pragma, each of which could switch the
assertions off; "wrong answer": an assertion failed; "early exit": the program ended without reaching the end
of its tests; "sandbox error": the sandbox failed, which says nothing about the completion."""

COMPILED: frozenset[Outcome] = frozenset(
    {"pass", "wrong answer", "early exit", "crash", "timeout", "memory", "output limit"}
)
"""Outcomes behind which stands a program that was linked."""

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+|\\\r?\n)
  | (?P<newline>\n)
  | (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?(?:\*/|\Z))
  | (?:u8|[uUL])?R"(?P<mark>[^\s()\\"]{0,16})\(.*?\)(?P=mark)"
  | (?:u8|[uUL])?"(?:\\(?:.|\Z)|[^"\\\n])*(?:"|(?=\n)|\Z)
  | (?:u8|[uUL])?'(?:\\(?:.|\Z)|[^'\\\n])*(?:'|(?=\n)|\Z)
  | \.?[0-9](?:'?[A-Za-z0-9_.])*
  | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<directive>\#|%:|\?\?=)
  | (?P<open>\{|<%)
  | (?P<close>\}|%>)
  | .
    """,
    re.VERBOSE | re.DOTALL,
)
"""Enough of C++'s lexical grammar to find braces: N4659 [lex], with digraphs, raw strings and 1'000."""

_FORBIDDEN = frozenset({"asm", "__asm", "__asm__", "_Pragma", "__pragma"})
"""asm can define __assert_fail, _Pragma can rename it (redefine_extname); a function body needs neither."""


@dataclass(frozen=True)
class Body:
    """The part of a completion that is the function's body."""

    text: str
    complete: bool
    """Whether the function's closing brace was found."""
    forbidden: str
    """The first thing in it that could change the tests ("#", "asm", "_Pragma"); empty when there is none."""


def function_body(completion: str) -> Body:
    """Cut a completion behind the brace that closes the function whose opening brace ends the prompt.

    Braces in strings, characters, comments and raw strings do not count. An unclosed function is kept whole.
    """
    depth, at_line_start, forbidden = 1, True, ""
    for token in _TOKEN.finditer(completion):
        kind = token.lastgroup
        if kind in {"space", "comment"}:
            continue
        if kind == "newline":
            at_line_start = True
            continue
        if (kind == "directive" and at_line_start) or (kind == "word" and token.group() in _FORBIDDEN):
            forbidden = forbidden or token.group()
        at_line_start = False
        depth += (kind == "open") - (kind == "close")
        if depth == 0:
            return Body(completion[: token.end()], True, forbidden)
    return Body(completion, False, forbidden)


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The unbiased estimate of the chance that one of k samples passes: 1 - C(n-c, k) / C(n, k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1, in the product
    form that does not overflow.

    Args:
        samples: n, how many were drawn.
        passed: c, how many of them passed.
        k: 1 to n.

    Raises:
        ValueError: k or c out of range.
    """
    if not 1 <= k <= samples or not 0 <= passed <= samples:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, not n={samples}, c={passed}, k={k}")
    if samples - passed < k:
        return 1.0
    all_fail = 1.0
    for i in range(samples - passed + 1, samples + 1):
        all_fail *= 1.0 - k / i
    return 1.0 - all_fail


@dataclass(frozen=True)
class SampleResult:
    """One completion, judged."""

    problem: str
    difficulty: str
    body: str
    """What was compiled, after cutting."""
    outcome: Outcome
    message: str
    """The compiler's message, or the end of the program's stderr."""
    cpu_seconds: float


@dataclass(frozen=True)
class CppReport:
    """The figures of a set of problems, and every sample behind them."""

    samples: tuple[SampleResult, ...]
    num_problems: int
    num_samples: int
    """Samples per problem (the least, where they differ)."""
    compile_rate: float
    """Share of samples that compile and link."""
    pass_at: dict[int, float]
    """pass@k for k = 1, 10, 100 as far as the samples reach; mean over problems."""
    by_difficulty: dict[str, dict[str, float]]
    """For each difficulty: problems, compile_rate, pass@1."""
    outcomes: dict[str, int]
    """How many samples ended how."""
    sandbox: str
    """The backend in which they ran."""

    def figures(self) -> dict[str, Any]:
        """Everything but the samples, for `--json` and the run log."""
        return {
            "problems": self.num_problems,
            "samples_per_problem": self.num_samples,
            "compile_rate": self.compile_rate,
            **{f"pass@{k}": value for k, value in self.pass_at.items()},
            "by_difficulty": self.by_difficulty,
            "outcomes": self.outcomes,
            "sandbox": self.sandbox,
        }

    def details(self) -> list[dict[str, Any]]:
        """Each sample as a plain dictionary, for the run page."""
        return [asdict(sample) for sample in self.samples]

    def table(self) -> str:
        """The figures as text."""
        rows = [f"{'difficulty':<12}{'problems':>9}{'compile':>10}{'pass@1':>10}"]
        everything = {
            "problems": self.num_problems,
            "compile_rate": self.compile_rate,
            "pass@1": self.pass_at[1],
        }
        for name, row in [*self.by_difficulty.items(), ("all", everything)]:
            rows.append(
                f"{name:<12}{row['problems']:>9.0f}{row['compile_rate']:>10.1%}{row['pass@1']:>10.1%}"
            )
        rows += [f"pass@{k}: {value:.1%}" for k, value in self.pass_at.items() if k > 1]
        rows.append("outcomes: " + ", ".join(f"{count} {name}" for name, count in self.outcomes.items()))
        return "\n".join(rows)


def summarise(samples: Iterable[SampleResult], sandbox: str) -> CppReport:
    """Turn judged samples into figures; a problem counts once, however many samples it has."""
    judged = tuple(samples)
    groups: dict[str, list[SampleResult]] = {}
    for sample in judged:
        groups.setdefault(sample.problem, []).append(sample)
    least = min(map(len, groups.values()))
    by_difficulty = {}
    for difficulty in dict.fromkeys(sample.difficulty for sample in judged):
        part = [group for group in groups.values() if group[0].difficulty == difficulty]
        by_difficulty[difficulty] = {
            "problems": float(len(part)),
            "compile_rate": _compile_rate(sample for group in part for sample in group),
            "pass@1": _mean_pass_at(part, 1),
        }
    return CppReport(
        samples=judged,
        num_problems=len(groups),
        num_samples=least,
        compile_rate=_compile_rate(judged),
        pass_at={k: _mean_pass_at(list(groups.values()), k) for k in (1, 10, 100) if k <= least},
        by_difficulty=by_difficulty,
        outcomes=dict(Counter(sample.outcome for sample in judged).most_common()),
        sandbox=sandbox,
    )


def _compile_rate(samples: Iterable[SampleResult]) -> float:
    compiled = [sample.outcome in COMPILED for sample in samples]
    return sum(compiled) / len(compiled)


def _mean_pass_at(groups: list[list[SampleResult]], k: int) -> float:
    values = [pass_at_k(len(group), sum(s.outcome == "pass" for s in group), k) for group in groups]
    return sum(values) / len(values)
