"""Counting assertions: the rewritten tests, and what is believed of what a program prints."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.judge.assertions import MOST_ASSERTIONS, CountedProgram, count_assertions, tally

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
    program = count_assertions("int f(int);\n", TESTS)
    assert program.assertions == ("f(1) == 2", 'g({1, 2}, ")") == 3 && "both"')
    assert "CPPLM_ASSERT(0, f(1) == 2);" in program.source
    assert "CPPLM_ASSERT(1, g({1, 2},\n" in program.source
    for unchanged in ("// assert(not_this);", '"assert(nor this)"', "my_assert(1);", "static_assert(true);"):
        assert unchanged in program.source
    assert program.source.rstrip().endswith("::cpplm_judge::finish();\nreturn 0;\n}")
    assert program.source.count("return 0;") == 1


@pytest.mark.parametrize("ending", ["}", "return 0; }", "return EXIT_SUCCESS ;\n}\n\n", "  }\n"])
def test_the_end_of_main_reports_before_it_returns(ending: str) -> None:
    source = count_assertions("", "int main() { assert(1);" + ending).source
    assert source.index("CPPLM_ASSERT(0,") < source.index("cpplm_judge::finish();\nreturn 0;")
    assert "EXIT_SUCCESS" not in source


def test_lines_of_the_program_keep_their_numbers() -> None:
    program = count_assertions("first\nsecond\n", "int main() {}")
    assert program.source.startswith("first\nsecond\n")
    assert "namespace cpplm_judge" in program.harness


def test_too_many_to_count() -> None:
    program = count_assertions("", "int main() {" + "assert(1);" * MOST_ASSERTIONS + "}")
    assert sum(map(len, program.make_words())) <= 1 << 16
    with pytest.raises(ValueError, match="1,001 assertions"):
        count_assertions("", "int main() {" + "assert(1);" * (MOST_ASSERTIONS + 1) + "}")


def test_words_are_new_each_time() -> None:
    program = CountedProgram("", "", ("a", "b"))
    words = program.make_words() + program.make_words()
    assert len(set(words)) == 10
    assert not any(word in (program.source + program.harness).encode() for word in words)


def test_what_was_reported() -> None:
    words = CountedProgram("", "", ("a", "b", "c")).make_words()
    held, failed, end = words[0:-1:2], words[1::2], words[-1]
    assert tally(b"", words) == tally(b"noise" + end[:-1], words)
    assert (tally(b"", words).passed, tally(b"", words).failed, tally(b"", words).finished) == (
        0,
        None,
        False,
    )
    everything = b"noise".join([*held, end])
    assert (tally(everything, words).passed, tally(everything, words).finished) == (3, True)
    crashed = held[0] + b"x" + held[1]
    assert (tally(crashed, words).passed, tally(crashed, words).failed) == (2, None)
    in_a_loop = held[1] + failed[1] + held[0] + held[2]
    assert (tally(in_a_loop, words).passed, tally(in_a_loop, words).failed) == (2, 1)


@given(st.integers(1, 20), st.integers(0, 2**32), st.binary(max_size=50))
def test_reports_are_found_in_any_noise(count: int, seed: int, noise: bytes) -> None:
    chance = random.Random(seed)
    words = CountedProgram("", "", ("x",) * count).make_words()
    results = [chance.choice([True, False, None]) for _ in range(count)]
    said = [words[2 * place + (not held)] for place, held in enumerate(results) if held is not None]
    reported = tally(noise + noise.join(said), words)
    assert reported.passed == results.count(True)
    assert reported.failed == (results.index(False) if False in results else None)
    assert not reported.finished
