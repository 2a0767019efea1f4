"""Assertions that are counted: each `assert` of the tests reports by itself, and the tests go on behind it.

The text of the tests is rewritten: `assert(x)` becomes `CPPLM_ASSERT(3, x)`, 3 being its place among the
assertions in the text, and the end of main reports too. Pass and fail stay what they are with the ordinary
assert: a program passes when it reached the end and no assertion failed; once one has failed nothing
that the program does later makes a difference. Of a program that crashes, hangs or exits, what was reported
until then counts. An assertion in a loop has held when it was reached and never failed.

How a report is told from what the program prints: the program reads random words from its standard input, two
for each assertion (it held, it failed) and one for the end, before anything else in it runs, and writes the
word to its standard output. The words are not in its source or binary, are gone from the pipe once they are
read, and each is good for one report, so neither printing the program nor reading back what was reported
helps to forge another one. What this does not exclude: code that searches the memory of its own process for
the words, or that changes what the tests call or compare with (an `operator==` in a part of the program that
is not a function's body). Names, attributes and directives with which a text could do so more simply are
refused before (`scoring.find_forbidden`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from cpplm.judge.scoring import LAYOUT, TOKEN

MAX_ASSERTIONS = 1000
"""The most whose words fit into the pipe that is a program's standard input."""
_WORD_BYTES = 8
_SHOWN_CHARACTERS = 200
_RETURN_AT_END = re.compile(r"return\s+(?:0|EXIT_SUCCESS)\s*;\s*\Z")

# Needs no header, so it lets no program compile that lacks one. `read` and `write` get names of their own for
# the same reason. Priority 101 is the first that is not reserved: before all other initialisation.
_HARNESS = """namespace cpplm_judge {
extern "C" long cpplm_judge_read(int, void*, unsigned long) __asm__("read");
extern "C" long cpplm_judge_write(int, const void*, unsigned long) __asm__("write");
namespace {
char words[WORDS][BYTES];
bool said[WORDS];
bool failed;
__attribute__((constructor(101))) void take_words() {
    char* place = words[0];
    unsigned long left = sizeof words;
    for (long got; left > 0 && (got = cpplm_judge_read(0, place, left)) > 0; left -= got) place += got;
}
void say(int number) {
    if (!said[number] && cpplm_judge_write(1, words[number], BYTES) != BYTES) failed = true;
    said[number] = true;
}
void check(int number, bool holds) {
    if (holds) {
        say(2 * number);
    } else {
        failed = true;
        say(2 * number + 1);
    }
}
void finish() {
    if (!failed) say(WORDS - 1);
}
}
}
#define CPPLM_ASSERT(number, ...) ::cpplm_judge::check(number, static_cast<bool>(__VA_ARGS__))
"""


@dataclass(frozen=True)
class InstrumentedProgram:
    """A program that reports."""

    source: str
    harness: str
    """Code that is included before the source, so that its lines keep their numbers."""
    assertions: tuple[str, ...]
    """The expression of each assert, on one line."""

    def make_report_tokens(self) -> list[bytes]:
        """Random words for one run: (held, failed) of each assertion in turn, then the end."""
        return [secrets.token_bytes(_WORD_BYTES) for _ in range(2 * len(self.assertions) + 1)]


@dataclass(frozen=True)
class AssertionReport:
    """The assertions that a program reported."""

    passed: int
    """Assertions that were reached and never failed."""
    failed: int | None
    """The first in the text that failed."""
    finished: bool
    """True if the end of main was reached and nothing had failed."""


def instrument_assertions(before: str, tests: str) -> InstrumentedProgram:
    """The program `before` + `tests`, with every assertion of the tests counted.

    `tests` ends with the closing brace of main. It needs no <cassert>.

    Raises:
        ValueError: there are more than `MAX_ASSERTIONS`.
    """
    text, assertions = _number(tests)
    if len(assertions) > MAX_ASSERTIONS:
        raise ValueError(f"{len(assertions):,} assertions, at most {MAX_ASSERTIONS:,} can be counted")
    main = _RETURN_AT_END.sub("", text.rstrip().removesuffix("}").rstrip())
    source = f"{before}{main}\n::cpplm_judge::finish();\nreturn 0;\n}}\n"
    harness = _HARNESS.replace("WORDS", str(2 * len(assertions) + 1)).replace("BYTES", str(_WORD_BYTES))
    return InstrumentedProgram(source, harness, assertions)


@lru_cache(4096)  # the samples of a problem have the same tests
def _number(tests: str) -> tuple[str, tuple[str, ...]]:
    """The text with a number in each assertion, and what each asserts."""
    tokens = [token for token in TOKEN.finditer(tests) if token.lastgroup not in LAYOUT]
    pieces: list[str] = []
    assertions: list[str] = []
    position = 0
    for place, (name, bracket) in enumerate(pairwise(tokens)):
        if name.group() == "assert" and bracket.group() == "(":
            pieces += [tests[position : name.start()], f"CPPLM_ASSERT({len(assertions)}, "]
            position = bracket.end()
            asserted = tests[position : _closing_bracket(tokens[place + 2 :], len(tests))]
            assertions.append(" ".join(asserted.split())[:_SHOWN_CHARACTERS])
    return "".join([*pieces, tests[position:]]), tuple(assertions)


def _closing_bracket(tokens: Sequence[re.Match[str]], end: int) -> int:
    """The place at which the bracket that was opened before these tokens is closed."""
    depth = 1
    for token in tokens:
        depth += (token.group() == "(") - (token.group() == ")")
        if depth == 0:
            return token.start()
    return end


def parse_report(stdout: bytes, words: Sequence[bytes]) -> AssertionReport:
    """Find in a program's output which of its words it reported, whatever else it printed."""
    reported = [word in stdout for word in words]
    held, failed = reported[:-1:2], reported[1::2]
    return AssertionReport(
        passed=sum(yes and not no for yes, no in zip(held, failed, strict=True)),
        failed=failed.index(True) if True in failed else None,
        finished=reported[-1],
    )
