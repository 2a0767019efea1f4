"""Scoring of completions: cutting, checks of the text, pass@k, the report.

Pure functions and data; `executor.py` compiles and runs.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Literal

from cpplm.core.errors import UserError

Outcome = Literal[
    "pass",
    "compile error",
    "compile limit",
    "forbidden",
    "empty",
    "binary",
    "too long",
    "wrong answer",
    "early exit",
    "crash",
    "timeout",
    "memory",
    "output limit",
    "sandbox error",
    "not judged",
]
"""The outcome of one text that a model wrote. "compile limit": the compiler ran out of time, memory or
disk; "forbidden": it holds a preprocessor directive, asm, _Pragma or an attribute of GCC, each of which
could switch the assertions off; "empty": nothing was written (`is_empty`), and nothing is not the answer;
"binary": it holds control characters; "wrong answer": an assertion failed; "early exit": the program ended
without reaching the end of its tests; "sandbox error": the sandbox failed, which says nothing about the
text; "not judged": this machine lacks a header that the problem itself needs."""

COMPILED: frozenset[Outcome] = frozenset(
    {"pass", "wrong answer", "early exit", "crash", "timeout", "memory", "output limit"}
)
"""Outcomes behind which stands a program that was linked."""

TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\f\v]+|\\\r?\n)
  | (?P<newline>\n)
  | (?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?\*/)
  | (?:u8|[uUL])?R"(?P<mark>[^\s()\\"]{0,16})\(.*?\)(?P=mark)"
  | (?P<endless>/\*.*|(?:u8|[uUL])?R"[^\s()\\"]{0,16}\(.*)
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
"""Enough of C++'s lexical grammar to find braces: N4659 [lex], with digraphs, raw strings and 1'000.
"endless" is a comment or raw string that takes the rest of the text."""

LAYOUT = frozenset({"space", "newline", "comment"})
"""Kinds of tokens that mean nothing."""

SCORING_VERSION = 2
"""Part of what results are kept with: raised whenever equal answers come to other figures."""

_FORBIDDEN = frozenset(
    {"asm", "__asm", "__asm__", "_Pragma", "__pragma", "__attribute", "__attribute__", "gnu", "__gnu__"}
).union({"cpplm_judge", "CPPLM_ASSERT"})  # what judges, written into the program itself (`assertions.py`)
"""asm can define __assert_fail, _Pragma can rename it (redefine_extname), an attribute ([[gnu::constructor]])
can run code before everything else; what a function does needs none of them."""

_SPLICE = re.compile(r"\\[ \t\f\v]*\r?\n")
"""A line break that the compiler does not see; gcc allows space before it."""


@dataclass(frozen=True)
class FunctionBody:
    """The part of a completion that is the function's body."""

    text: str
    complete: bool
    """True if the function's closing brace was found."""


def function_body(completion: str) -> FunctionBody:
    """Cut a completion behind the brace that closes the function whose opening brace ends the prompt.

    Braces in strings, characters, comments and raw strings do not count. An unclosed function is kept whole.
    """
    depth = 1
    for token in TOKEN.finditer(completion):
        depth += (token.lastgroup == "open") - (token.lastgroup == "close")
        if depth == 0:
            return FunctionBody(completion[: token.end()], True)
    return FunctionBody(completion, False)


def is_empty(written: str) -> bool:
    """True for a text of layout, comments, braces and semicolons only, which may compile."""
    return all(
        token.lastgroup in {*LAYOUT, "open", "close"} or token.group() == ";"
        for token in TOKEN.finditer(written)
    )


def open_braces(text: str) -> int:
    """Braces that were opened and not closed."""
    kinds = [token.lastgroup for token in TOKEN.finditer(text)]
    return kinds.count("open") - kinds.count("close")


def find_forbidden(text: str) -> str:
    """The first thing in a text that could change the tests around it; empty when there is none.

    That is a word such as "asm", "#" at the beginning of a line, and "/*" or 'R"' that swallow what follows.
    """
    at_line_start = True
    for token in TOKEN.finditer(_SPLICE.sub("", text)):
        kind = token.lastgroup
        if kind == "newline":
            at_line_start = True
        elif kind not in LAYOUT:
            if kind == "endless":
                return "/*" if token.group().startswith("/*") else 'R"'
            if (kind == "directive" and at_line_start) or (kind == "word" and token.group() in _FORBIDDEN):
                return token.group()
            at_line_start = False
    return ""


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """The unbiased estimate of the chance that one of k samples passes: 1 - C(n-c, k) / C(n, k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.

    Args:
        samples: n, how many were drawn.
        passed: c, how many of them passed.
        k: 1 to n.

    Raises:
        ValueError: k or c out of range.
    """
    if not 1 <= k <= samples or not 0 <= passed <= samples:
        raise ValueError(f"pass@k needs 1 <= k <= n and 0 <= c <= n, not n={samples}, c={passed}, k={k}")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


@dataclass(frozen=True)
class SampleResult:
    """One completion, judged."""

    problem: str
    difficulty: str
    body: str
    """The text that was compiled, after cutting."""
    outcome: Outcome
    message: str
    """The compiler's message, or the assertion that failed and the end of the program's stderr."""
    cpu_seconds: float
    assertions: int = 0
    """The number in the tests."""
    assertions_passed: int = 0
    """The number of them that were reached and held, each time."""


@dataclass(frozen=True)
class CppReport:
    """The figures of a set of problems, and every sample behind them."""

    samples: tuple[SampleResult, ...]
    num_samples: int
    """Samples per problem (the least, where they differ)."""
    overall: dict[str, float]
    """Of the problems that could be judged here: their number (`problems`), the share of samples that compile
    and link (`compile_rate`), the share of a problem's assertions that hold, mean over samples, then over
    problems (`assertions_passed`), and pass@k for k = 1, 10, 100 as far as the samples reach."""
    by_difficulty: dict[str, dict[str, float]]
    """The same for each difficulty, of pass@k pass@1 alone."""
    outcomes: dict[str, int]
    """Samples by outcome."""
    not_judged: dict[str, str]
    """Problems left out, and what this machine lacks for them."""
    sandbox: str
    """The backend in which they ran."""

    def figures(self) -> dict[str, Any]:
        """Everything but the samples, for `--json` and the run log."""
        return {
            "samples_per_problem": self.num_samples,
            **self.overall,
            "by_difficulty": self.by_difficulty,
            "outcomes": self.outcomes,
            "not_judged": self.not_judged,
            "sandbox": self.sandbox,
        }

    def details(self) -> list[dict[str, Any]]:
        """Each sample as a plain dictionary, for the run page."""
        return [asdict(sample) for sample in self.samples]

    def table(self) -> str:
        """The figures as text."""
        rows = [f"{'difficulty':<12}{'problems':>9}{'compile':>10}{'asserts':>10}{'pass@1':>10}"]
        parts = list(self.by_difficulty.items()) if len(self.by_difficulty) > 1 else []
        for name, row in [*parts, ("all", self.overall)]:
            shares = (row["compile_rate"], row["assertions_passed"], row["pass@1"])
            rows.append(f"{name:<12}{row['problems']:>9.0f}" + "".join(f"{share:>10.1%}" for share in shares))
        larger = (name for name in self.overall if name.startswith("pass@") and name != "pass@1")
        rows += [f"{name}: {self.overall[name]:.1%}" for name in larger]
        rows.append("outcomes: " + ", ".join(f"{count} {name}" for name, count in self.outcomes.items()))
        for reason in dict.fromkeys(self.not_judged.values()):
            names = ", ".join(name for name, why in self.not_judged.items() if why == reason)
            rows.append(f"not judged: {names} ({reason})")
        return "\n".join(rows)


def summarize(samples: Iterable[SampleResult], sandbox: str) -> CppReport:
    """Turn judged samples into figures; a problem counts once, however many samples it has.

    Raises:
        UserError: this machine lacks something for every one of the problems.
    """
    everything = tuple(samples)
    not_judged = {sample.problem: sample.message for sample in everything if sample.outcome == "not judged"}
    judged = tuple(sample for sample in everything if sample.outcome != "not judged")
    if not judged:
        reasons = ", ".join(dict.fromkeys(not_judged.values()))
        raise UserError(f"none of the problems can be judged here: {reasons}", fix="Install what they need.")
    groups: dict[str, list[SampleResult]] = {}
    for sample in judged:
        groups.setdefault(sample.problem, []).append(sample)
    least = min(map(len, groups.values()))
    parts: dict[str, list[list[SampleResult]]] = {}
    for group in groups.values():
        parts.setdefault(group[0].difficulty, []).append(group)
    overall = _means(groups.values(), [k for k in (1, 10, 100) if k <= least])
    return CppReport(
        samples=everything,
        num_samples=least,
        overall=overall | {"problems": len(groups)},
        by_difficulty={difficulty: _means(part, [1]) for difficulty, part in parts.items()},
        outcomes=dict(Counter(sample.outcome for sample in everything).most_common()),
        not_judged=not_judged,
        sandbox=sandbox,
    )


def _means(groups: Collection[list[SampleResult]], ks: Sequence[int]) -> dict[str, float]:
    """Figures of the samples of some problems."""
    passed = [(len(group), sum(sample.outcome == "pass" for sample in group)) for group in groups]
    return {
        "problems": float(len(groups)),
        "compile_rate": fmean(sample.outcome in COMPILED for group in groups for sample in group),
        "assertions_passed": fmean(
            fmean(each.assertions_passed / max(each.assertions, 1) for each in group) for group in groups
        ),
        **{f"pass@{k}": fmean(pass_at_k(*counts, k) for counts in passed) for k in ks},
    }
