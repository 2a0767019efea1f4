"""The calculator against Python's own arithmetic, and against whoever wants more of it."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.generate.tools.calculator import LONGEST, CalculatorError, calculate

NUMBERS = st.integers(0, 99).map(str) | st.sampled_from(["0.5", "2.25", ".125", "3.", "1e3", "2.5e-1"])


def combine(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%", " + ", " - "]), inner).map("".join)
    return two | inner.map("({})".format) | inner.map("-{}".format) | inner.map(" +{} ".format)


@given(st.recursive(NUMBERS, combine, max_leaves=12))
def test_it_agrees_with_python(expression: str) -> None:
    try:
        expected = str(eval(expression, {}))
    except ZeroDivisionError:
        with pytest.raises(CalculatorError, match="division by zero"):
            calculate(expression)
        return
    assert calculate(expression) == expected


VALUES = {
    "12*34": "408", "(1,200 + 34) * 5": "6170", "1,000,000.5": "1000000.5", "7/2": "3.5", "6/2": "3.0",
    "-2 ** 2": "-4", "2 ** 3 ** 2": "512", "2 ** -1": "0.5", "(-8) ** 3": "-512", "1 ** 99999": "1",
    "--3": "3", "10 % 4": "2", "-7 // 2": "-4", "  5\n": "5", "007": "7", "2**4000 % 7": "2",
    "'strawberry'.count('r')": "3", "('abab').count('ab')": "2", "''.count('')": "1", "'é(é'.count('é')": "2",
    '"aXbX".count("X") * 2': "4",
}  # fmt: skip


@pytest.mark.parametrize(("expression", "value"), VALUES.items())
def test_values(expression: str, value: str) -> None:
    assert calculate(expression) == value


NO_VALUE = {
    "nothing": ["", "   "],
    "missing": ["1 +", "* 3"],
    "not closed": ["(1", "'a'.count('a'"],
    "belong": ["1)", "1 2"],
    "division by zero": ["1/0", "1 % 0", "1.0 // 0", "0 ** -1"],
    "no such power": ["(-8) ** 0.5"],
    "too large": [
        "1e308 * 10", "1e999", "10.0 ** 999", "9 ** 9 ** 9", "2 ** 4097", "(-2) ** 99999999", "9 ** 999 ** 9",
        "2 ** 4000 * 2 ** 4000", "2 ** 4000 / 0.5", "1.5 ** " + "9" * 400,
    ],
    "texts": ["'a'", "'a' * 999999999", "'a' + 'b'", "-'a'", "3 ** 'a'"],
    "count is for": ["5 .count(1)", "'a'.count(1)"],
    "cannot read": [
        "1,2", "1,,000", "'a'.upper()", "'a'.count", "'a", "'\\x41'", "f'{1}'", "lambda: 0", "[1] * 9", "x",
        "__import__('os').system('true')", "1 if 1 else 2", "1; 2", "1 << 99", "1j", "0x10", "1_000",
        "().__class__", "1.__class__", "True", "\0",
    ],
    "in one another": [
        "(" * 60 + "1" + ")" * 60, "-" * 60 + "1", "2**" * 60 + "1", "(" * 900, "'a'.count(" * 90,
    ],
    "1000 characters": ["1" * (LONGEST + 1)],
}  # fmt: skip


@pytest.mark.parametrize(
    ("expression", "why"), [(each, why) for why, expressions in NO_VALUE.items() for each in expressions]
)
def test_what_has_no_value_says_why(expression: str, why: str) -> None:
    begin = time.monotonic()
    with pytest.raises(CalculatorError, match=why):
        calculate(expression)
    assert time.monotonic() - begin < 2


@given(st.text("0123456789.,+-*/%()'\"count eE_x\\\n", max_size=60) | st.text(max_size=40))
def test_any_text_has_a_value_or_a_reason(expression: str) -> None:
    try:
        assert calculate(expression)
    except CalculatorError as error:
        assert str(error)


@pytest.mark.parametrize(
    "expression",
    ["9" * LONGEST, "1+" * 499 + "1", "9**9**" * 100, "('" + "a" * 900 + "').count('a')", "7*" * 499 + "7",
     "9" * 300 + "%" + "7" * 300 + "**2", "0.1**" * 45 + "2"],
)  # fmt: skip
def test_nothing_takes_long(expression: str) -> None:
    begin = time.monotonic()
    with contextlib.suppress(CalculatorError):
        calculate(expression)
    assert time.monotonic() - begin < 2
