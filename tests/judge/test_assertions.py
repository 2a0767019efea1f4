"""Counting assertions: the rewritten tests, and what is believed of what a program prints."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.judge.assertions import (
    MAX_ASSERTIONS,
    AssertionReport,
    InstrumentedProgram,
    instrument_assertions,
    parse_report,
)

TESTS = """
#include <cassert>
int main() {
    // assert(not_this);
    const char* text = "assert(nor this)";
    assert(f(1) == 2);
    assert (g({1, 2},
              ")") == 3 && "both");
    my_assert(1);
    static_assert(true);
    return 0;
}
"""


def test_assertions_are_numbered_and_nothing_else_is_changed() -> None:
    program = instrument_assertions("int f(int);\n", TESTS)
    assert program.assertions == ("f(1) == 2", 'g({1, 2}, ")") == 3 && "both"')
    assert "CPPLM_ASSERT(0, f(1) == 2);" in program.source
    assert "CPPLM_ASSERT(1, g({1, 2},\n" in program.source
    for unchanged in ("// assert(not_this);", '"assert(nor this)"', "my_assert(1);", "static_assert(true);"):
        assert unchanged in program.source
    assert program.source.rstrip().endswith("::cpplm_judge::finish();\nreturn 0;\n}")
    assert program.source.count("return 0;") == 1


@pytest.mark.parametrize("ending", ["}", "return 0; }", "return EXIT_SUCCESS ;\n}\n\n", "  }\n"])
def test_the_end_of_main_reports_before_it_returns(ending: str) -> None:
    source = instrument_assertions("", "int main() { assert(1);" + ending).source
    assert source.index("CPPLM_ASSERT(0,") < source.index("cpplm_judge::finish();\nreturn 0;")
    assert "EXIT_SUCCESS" not in source


def test_lines_of_the_program_keep_their_numbers() -> None:
    program = instrument_assertions("first\nsecond\n", "int main() {}")
    assert program.source.startswith("first\nsecond\n")
    assert "namespace cpplm_judge" in program.harness


def test_too_many_to_count() -> None:
    program = instrument_assertions("", "int main() {" + "assert(1);" * MAX_ASSERTIONS + "}")
    assert sum(map(len, program.make_report_tokens())) <= 1 << 16
    with pytest.raises(ValueError, match="1,001 assertions"):
        instrument_assertions("", "int main() {" + "assert(1);" * (MAX_ASSERTIONS + 1) + "}")


def test_words_are_new_each_time() -> None:
    program = InstrumentedProgram("", "", ("a", "b"))
    words = program.make_report_tokens() + program.make_report_tokens()
    assert len(set(words)) == 10
    assert not any(word in (program.source + program.harness).encode() for word in words)


def test_what_was_reported() -> None:
    words = InstrumentedProgram("", "", ("a", "b", "c")).make_report_tokens()
    held, failed, end = words[0:-1:2], words[1::2], words[-1]
    assert parse_report(b"", words) == parse_report(b"noise" + end[:-1], words)
    assert parse_report(b"", words) == AssertionReport(passed=0, failed=None, finished=False)
    everything = b"noise".join([*held, end])
    assert (parse_report(everything, words).passed, parse_report(everything, words).finished) == (3, True)
    crashed = held[0] + b"x" + held[1]
    assert (parse_report(crashed, words).passed, parse_report(crashed, words).failed) == (2, None)
    in_a_loop = held[1] + failed[1] + held[0] + held[2]
    assert (parse_report(in_a_loop, words).passed, parse_report(in_a_loop, words).failed) == (2, 1)


@given(st.integers(1, 20), st.integers(0, 2**32), st.binary(max_size=50))
def test_reports_are_found_in_any_noise(count: int, seed: int, noise: bytes) -> None:
    chance = random.Random(seed)
    words = InstrumentedProgram("", "", ("x",) * count).make_report_tokens()
    results = [chance.choice([True, False, None]) for _ in range(count)]
    said = [words[2 * place + (not held)] for place, held in enumerate(results) if held is not None]
    reported = parse_report(noise + noise.join(said), words)
    assert reported.passed == results.count(True)
    assert reported.failed == (results.index(False) if False in results else None)
    assert not reported.finished
