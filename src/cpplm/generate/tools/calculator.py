"""The calculator: arithmetic and `"text".count("t")`, as nanochat's models are trained to ask.

    calculate("(1,200 + 34) * 5")            6170
    calculate("'strawberry'.count('r')")     3

An expression is parsed here and nothing of it is ever executed. Its length, its depth and the size of every
number on the way are bounded, so no expression takes longer than a few milliseconds.

    sum      product (("+" | "-") product)*
    product  sign (("*" | "/" | "//" | "%") sign)*
    sign     ("+" | "-") sign | power
    power    value ["**" sign]
    value    (number | text | "(" sum ")") (".count(" sum ")")*
"""

from __future__ import annotations

import math
import operator
import re

LONGEST = 1000
"""Characters of an expression."""
DEEPEST = 50
"""Brackets and signs in one another."""
LARGEST_BITS = 4096
"""Of a whole number."""

_PRODUCTS = {"*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod}
_TOKEN = re.compile(
    r"""\s*(?:
    (?P<number> (?: \d{1,3}(?:,\d{3})+(?!\d) | \d+ )(?:\.\d*)?(?:[eE][+-]?\d+)? | \.\d+(?:[eE][+-]?\d+)? )
    | '(?P<single>[^'\\]*)' | "(?P<double>[^"\\]*)"
    | (?P<count> \.\s*count\s*(?=\() )
    | (?P<sign> \*\*|//|[-+*/%()] )
    )""",
    re.VERBOSE,
)

Value = int | float | str


class CalculatorError(ValueError):
    """The expression has no value here; the text says why."""


def calculate(expression: str) -> str:
    """The value of an expression as Python prints it.

    Raises:
        CalculatorError: it is none, it is too large, or its value is no number.
    """
    if len(expression) > LONGEST:
        raise CalculatorError(f"an expression may have {LONGEST} characters, this one has {len(expression)}")
    parser = _Parser(_tokens(expression))
    try:
        value = _number(parser.sum(0))
    except ZeroDivisionError:
        raise CalculatorError("division by zero") from None
    except OverflowError:
        raise CalculatorError("the result is too large") from None
    parser.end()
    return str(value)


def _tokens(expression: str) -> list[tuple[str, str]]:
    """Kind and text of each, with an end that no parser goes beyond."""
    tokens, place = [], 0
    text = expression.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise CalculatorError(f"cannot read {text[place : place + 20].strip()!r}")
        kind = str(match.lastgroup)
        tokens.append(("text" if kind in {"single", "double"} else kind, match[kind]))
        place = match.end()
    if not tokens:
        raise CalculatorError("there is nothing to calculate")
    return [*tokens, ("end", "")]


class _Parser:
    """Reads and calculates at once, one method per rule."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._place = tokens, 0

    def end(self) -> None:
        """Check that nothing is left, else CalculatorError."""
        kind, text = self._tokens[self._place]
        if kind != "end":
            raise CalculatorError(f"{text!r} does not belong there")

    def sum(self, depth: int) -> Value:
        """Parse the rule `sum` of the grammar above; `depth` counts the rules in one another."""
        left = self._product(depth)
        while sign := self._take("+", "-"):
            right = _number(self._product(depth))
            left = _checked(_number(left) + right if sign == "+" else _number(left) - right)
        return left

    def _product(self, depth: int) -> Value:
        left = self._sign(depth)
        while sign := self._take("*", "/", "//", "%"):
            left = _checked(_PRODUCTS[sign](_number(left), _number(self._sign(depth))))
        return left

    def _sign(self, depth: int) -> Value:
        if depth > DEEPEST:
            raise CalculatorError(f"more than {DEEPEST} brackets and signs in one another")
        if sign := self._take("+", "-"):
            value = _number(self._sign(depth + 1))
            return -value if sign == "-" else value
        base = self._value(depth)
        if self._take("**"):
            return _checked(_power(_number(base), _number(self._sign(depth + 1))))
        return base

    def _value(self, depth: int) -> Value:
        kind, text = self._tokens[self._place]
        value: Value
        if kind == "number":
            value, self._place = _read_number(text), self._place + 1
        elif kind == "text":
            value, self._place = text, self._place + 1
        elif self._take("("):
            value = self.sum(depth + 1)
            self._close()
        else:
            what = f"before {text!r}" if text else "at the end"
            raise CalculatorError(f"a number is missing {what}")
        while self._tokens[self._place][0] == "count":
            self._place += 2  # the bracket too
            counted = self.sum(depth + 1)
            self._close()
            if not isinstance(value, str) or not isinstance(counted, str):
                raise CalculatorError("count is for texts: 'hello'.count('l')")
            value = value.count(counted)
        return value

    def _take(self, *signs: str) -> str:
        """The next sign if it is one of these, else nothing."""
        kind, text = self._tokens[self._place]
        if kind != "sign" or text not in signs:
            return ""
        self._place += 1
        return text

    def _close(self) -> None:
        if not self._take(")"):
            raise CalculatorError("a bracket is not closed")


def _read_number(text: str) -> int | float:
    digits = text.replace(",", "")
    return _checked(int(digits) if digits.isdecimal() else float(digits))


def _number(value: Value) -> int | float:
    if isinstance(value, str):
        raise CalculatorError("texts can only be counted in: 'hello'.count('l')")
    return value


def _power(base: int | float, exponent: int | float) -> int | float:
    whole = isinstance(base, int) and isinstance(exponent, int)
    if whole and abs(base) > 1 and int(base).bit_length() * exponent > 2 * LARGEST_BITS:
        raise OverflowError  # before it is computed; twice as much, since the length of 2 is 2 bits
    value = base**exponent
    if isinstance(value, complex):
        raise CalculatorError("a negative number has no such power")
    return value


def _checked(value: int | float) -> int | float:
    """The value, if it is not too large to go on with."""
    if value.bit_length() > LARGEST_BITS if isinstance(value, int) else not math.isfinite(value):
        raise OverflowError
    return value
