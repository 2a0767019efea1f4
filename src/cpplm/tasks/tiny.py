"""`tiny`: generated functions on numbers and strings, the self-test of the machinery.

A template and its constants make a sentence, a body and what the function returns. Tests are computed, not
compiled. Of validation, "constants" has templates that training has with other constants, "template" has
templates that it does not have.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count as numbers
from typing import Any

from cpplm.core.shards import Split
from cpplm.core.storage import sha256
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import TestedBodyKind
from cpplm.tasks.source import TaskSource

_HEADERS = "#include <cassert>\n#include <string>\n"
_VALIDATION_SHARE = 5  # one in so many pairs of template and constants
_TESTS = 8


@dataclass(frozen=True)
class _Template:
    """A family of functions; `says` and `body` have `{a}`, `{b}` for constants and `x`, `y`, `s`."""

    signature: str
    says: str
    body: str
    value: Callable[..., Any]
    unseen: bool = False

    @property
    def parameters(self) -> list[str]:
        """Their types."""
        return [each.rpartition(" ")[0] for each in self.signature.partition("(")[2][:-1].split(", ")]


_I, _II = "int {f}(int x)", "int {f}(int x, int y)"
_B, _S, _SI, _SB = (
    "bool {f}(int x)", "std::string {f}(std::string s)", "int {f}(std::string s)", "bool {f}(std::string s)",
)  # fmt: skip
_TEMPLATES = (
    _Template(_I, "x plus {a}", "return x + {a};", lambda a, b, c, x: x + a),
    _Template(_I, "x minus {a}", "return x - {a};", lambda a, b, c, x: x - a),
    _Template(_I, "x times {a}", "return x * {a};", lambda a, b, c, x: x * a),
    _Template(_I, "x times {a} plus {b}", "return x * {a} + {b};", lambda a, b, c, x: x * a + b),
    _Template(
        _I, "x times {a} minus {b}", "return x * {a} - {b};", lambda a, b, c, x: x * a - b, unseen=True
    ),
    _Template(_I, "{a} minus x", "return {a} - x;", lambda a, b, c, x: a - x),
    _Template(_I, "x, at most {a}", "return x < {a} ? x : {a};", lambda a, b, c, x: min(x, a)),
    _Template(_I, "x, at least {a}", "return x > {a} ? x : {a};", lambda a, b, c, x: max(x, a)),
    _Template(
        _I, "{a} if x is above {b}, else x", "return x > {b} ? {a} : x;", lambda a, b, c, x: a if x > b else x
    ),
    _Template(
        _I, "{a} if x is below {b}, else x", "return x < {b} ? {a} : x;",
        lambda a, b, c, x: a if x < b else x, unseen=True,
    ),
    _Template(_II, "x plus y plus {a}", "return x + y + {a};", lambda a, b, c, x, y: x + y + a),
    _Template(_II, "x plus {a} times y", "return x + {a} * y;", lambda a, b, c, x, y: x + a * y),
    _Template(
        _II, "x minus {a} times y", "return x - {a} * y;", lambda a, b, c, x, y: x - a * y, unseen=True
    ),
    _Template(
        _II, "the larger of x and y, plus {a}", "return (x > y ? x : y) + {a};",
        lambda a, b, c, x, y: max(x, y) + a,
    ),
    _Template(
        _II, "the smaller of x and y, plus {a}", "return (x < y ? x : y) + {a};",
        lambda a, b, c, x, y: min(x, y) + a,
    ),
    _Template(_B, "true if x is above {a}", "return x > {a};", lambda a, b, c, x: x > a),
    _Template(_B, "true if x is below {a}", "return x < {a};", lambda a, b, c, x: x < a),
    _Template(
        _B, "true if x is from {a} to {b}", "return x >= {a} && x <= {b};", lambda a, b, c, x: a <= x <= b
    ),
    _Template(_S, 's followed by "{c}"', 'return s + "{c}";', lambda a, b, c, s: s + c),
    _Template(_S, '"{c}" followed by s', 'return "{c}" + s;', lambda a, b, c, s: c + s),
    _Template(
        _S, '"{c}", s, and "{c}" again', 'return "{c}" + s + "{c}";',
        lambda a, b, c, s: c + s + c, unseen=True,
    ),
    _Template(_SI, "the length of s plus {a}", "return s.size() + {a};", lambda a, b, c, s: len(s) + a),
    _Template(_SI, "the length of s times {a}", "return s.size() * {a};", lambda a, b, c, s: len(s) * a),
    _Template(_SB, 'true if s equals "{c}"', 'return s == "{c}";', lambda a, b, c, s: s == c),
    _Template(
        _SB, "true if s is longer than {a}", "return s.size() > {a};", lambda a, b, c, s: len(s) > a
    ),
)  # fmt: skip
_NAMES = ("f", "g", "compute", "apply", "convert", "adjust", "evaluate", "step", "update", "combine")
_WORDS = (
    "ab",
    "end",
    "log",
    "x1",
    "item",
    "tmp",
    "key",
    "dot",
    "up",
    "name",
    "row",
    "zed",
    "ok",
    "mid",
    "ed",
)


class TinyKind(TestedBodyKind):
    """Functions that are described in a few words."""

    name = "tiny"
    max_new_tokens = 48

    def build(self, source: TaskSource, split: Split, count: int) -> Iterator[TaskItem]:
        """Templates in turn, each with constants of this split."""
        rng, seen = source.rng(f"tiny {split}"), set[str]()
        templates = [each for each in _TEMPLATES if split == "val" or not each.unseen]
        for number in numbers():
            if len(seen) == count or number > 200 * count:
                return
            item = self._item(templates[number % len(templates)], rng, split)
            if item is not None and item.key not in seen:
                seen.add(item.key)
                yield item

    def _item(self, template: _Template, rng: random.Random, split: Split) -> TaskItem | None:
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        a, b = (min(a, b), max(a, b)) if "from" in template.says else (a, b)
        constants = {"a": a, "b": b, "c": rng.choice(_WORDS)}
        says, body = template.says.format(**constants), template.body.format(**constants)
        in_validation = int(sha256(says.encode())[:8], 16) % _VALIDATION_SHARE == 0
        if not template.unseen and in_validation != (split == "val"):
            return None
        signature = template.signature.format(f=rng.choice(_NAMES))
        tests = _tests(template, constants, signature, rng)
        if tests is None:
            return None
        group = f"tiny/{_TEMPLATES.index(template)}"
        return TaskItem(
            kind=self.name, level="template" if template.unseen else "constants", split=split, group=group,
            project="tiny", license="Apache-2.0",
            prompt=f"Write the body of `{signature}`, which returns {says}.", answer=f"    {body}\n}}",
            prefix=f"// Returns {says}.\n{signature} {{\n",
            data={"before": f"{_HEADERS}{signature} {{\n", "after": f"\n{tests}"},
        )  # fmt: skip


def _tests(
    template: _Template, constants: Mapping[str, Any], signature: str, rng: random.Random
) -> str | None:
    """A main with assertions; None when too few results differ, as then a constant could pass."""
    name = signature.partition("(")[0].split()[-1]
    near = (constants["a"], constants["b"])
    lines, results = [], []
    for _ in range(_TESTS):
        values: list[Any] = [
            constants["c"] * rng.randint(0, 2) + rng.choice(_WORDS) * rng.randint(0, 9)
            if kind == "std::string" else rng.choice((*near, 0, rng.randint(-200, 200))) + rng.randint(-1, 1)
            for kind in template.parameters
        ]  # fmt: skip
        if "equals" in template.says and rng.random() < 0.4:
            values = [constants["c"]]
        result = template.value(*constants.values(), *values)
        results.append(result)
        lines.append(f"    assert({name}({', '.join(map(_literal, values))}) == {_literal(result)});")
    if len(set(results)) < 2 or (len(set(results)) < 3 and not isinstance(results[0], bool)):
        return None
    return "int main() {\n" + "\n".join(lines) + "\n}\n"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'std::string("{value}")' if isinstance(value, str) else str(value)
