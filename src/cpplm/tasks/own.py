"""`own`: functions of plain types from the user's code, with tests derived from what they do.

Inputs are edge values and random ones; what the original returns is what the tests demand. They pin today's
behavior, bugs included. A function is used if its results are equal in two runs, differ enough that no
constant passes, and its tests catch at least 80 % of its mutants. Rungs are those of StepCoder (Dou et
al. 2024, arXiv 2402.01391): the whole body, its second half, its last statement.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import tree_sitter

from cpplm.core.shards import Split
from cpplm.cpp.syntax import parse
from cpplm.judge.executor import Program
from cpplm.judge.scoring import COMPILED
from cpplm.sandbox.compiler import COMPILE_LIMITS, MAX_PROGRAM_BYTES
from cpplm.sandbox.sandbox import Sandbox, SandboxError
from cpplm.tasks.grader import CALL_LIMITS, Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import BODY_CHEATS, TestedBodyKind
from cpplm.tasks.source import SourceDocument, TaskSource

_INTEGERS = frozenset({
    "int", "long", "short", "long long", "int8_t", "int16_t", "int32_t", "int64_t", "ptrdiff_t",
    "unsigned", "unsigned int", "unsigned long", "unsigned short", "unsigned char", "size_t", "std::size_t",
    "uint8_t", "uint16_t", "uint32_t", "uint64_t", "char", "bool",
})  # fmt: skip
_STRINGS = frozenset({"std::string", "string", "const char *", "char const *", "std::string_view"})
_NUMBERS = (0, 1, 2, 3, 7, 8, 10, 31, 48, 57, 64, 65, 97, 100, 127, 128, 255, 256, 1000, -1, -2, -10)
_TEXTS = (
    "",
    "a",
    "abc",
    "A",
    "0",
    "42",
    "-7",
    "a b",
    "x.y",
    "dir/a.txt",
    "Hello, world",
    "a,b,c",
    "\t x \n",
    "%41",
)
_INPUTS = 24
_MOST_ASSERTIONS = 16
_MIN_KILLED = 0.8
_MUTANTS = 6
_PER_DOCUMENT = 2
_BODY_BYTES = range(20, 1200)
_SWAPS = {
    "+": "-", "-": "+", "*": "+", "/": "*", "<": ">=", ">": "<=", "<=": ">", ">=": "<",
    "==": "!=", "!=": "==", "&&": "||", "||": "&&", "<<": ">>", ">>": "<<", "&": "|", "|": "&",
    "true": "false", "false": "true",
}  # fmt: skip
_OPERATOR = re.compile(r"<<|>>|<=|>=|==|!=|&&|\|\||\btrue\b|\bfalse\b|(?<=\s)[-+*/<>&|](?=\s)|\b\d+\b")


@dataclass(frozen=True)
class _Function:
    """A function of plain types in a document that compiles."""

    document: SourceDocument
    name: str
    """Qualified."""
    signature: str
    comment: str
    returns: str
    parameters: tuple[str, ...]
    before: str
    body: str
    """From behind its brace to its closing one."""
    after: str
    statements: tuple[int, ...]
    """Where the statements of the body begin, in it."""


class OwnKind(TestedBodyKind):
    """Bodies, or their ends, of functions whose behavior is tested."""

    name = "own"
    max_new_tokens = 200

    def build(self, source: TaskSource, split: Split, count: int) -> Iterator[TaskItem]:
        """Functions of documents that compile and link on their own."""
        return islice(_items(source, split), count)


def _items(source: TaskSource, split: Split) -> Iterator[TaskItem]:
    for document in source.compiling(split):
        if document.language == "c++" and not re.search(r"\bmain\s*\(", document.text):
            lexed, root = parse(document.text.encode())
            for function in islice(_walk(root, document, lexed.data, ()), _PER_DOCUMENT):
                rng = source.rng(f"own {document.id} {function.name}")
                if tests := derive_tests(function, source.grader, rng):
                    yield from _rungs(function, tests, split)


def _walk(
    node: tree_sitter.Node, document: SourceDocument, data: bytes, scope: tuple[str, ...]
) -> Iterator[_Function]:
    """The functions of a document that can be tested, in its order."""
    for child in node.children:
        if child.type == "function_definition":
            function = _read(child, document, data, scope)
            if function is not None:
                yield function
        elif child.type == "namespace_definition":
            name = child.child_by_field_name("name")
            inner = (*scope, data[name.start_byte : name.end_byte].decode()) if name is not None else scope
            yield from _walk(child, document, data, inner)
        elif child.type in ("declaration_list", "linkage_specification"):
            yield from _walk(child, document, data, scope)


def _read(
    node: tree_sitter.Node, document: SourceDocument, data: bytes, scope: tuple[str, ...]
) -> _Function | None:
    """A definition as a function that can be tested; None if its types are not plain."""

    def text(each: tree_sitter.Node | None) -> str:
        return "" if each is None else data[each.start_byte : each.end_byte].decode()

    declarator, body = node.child_by_field_name("declarator"), node.child_by_field_name("body")
    if declarator is None or body is None or declarator.type != "function_declarator":
        return None
    name = text(declarator.child_by_field_name("declarator"))
    parameters = declarator.child_by_field_name("parameters")
    returns = plain_type(text(node.child_by_field_name("type")))
    types = [
        plain_type(_type_of(text(each))) for each in parameters.named_children if each.type != "comment"
    ] if parameters is not None else []  # fmt: skip
    inside = body.end_byte - body.start_byte
    if (
        not re.fullmatch(r"\w+", name)
        or not types
        or not returns
        or not all(types)
        or inside not in _BODY_BYTES
    ):
        return None
    before, inner, after = (
        data[: body.start_byte + 1],
        data[body.start_byte + 1 : body.end_byte],
        data[body.end_byte :],
    )
    previous = node.prev_named_sibling
    comment = text(previous) if previous is not None and previous.type == "comment" else ""
    starts = tuple(
        len(data[body.start_byte + 1 : each.start_byte].decode()) for each in body.named_children
        if each.type != "comment"
    )  # fmt: skip
    signature = data[node.start_byte : body.start_byte].decode().strip()
    return _Function(
        document, "::".join((*scope, name)), signature, comment, returns, tuple(types),
        before.decode(), inner.decode(), after.decode(), starts,
    )  # fmt: skip


def _type_of(parameter: str) -> str:
    """The type in `const std::string& name = "x"`."""
    return re.sub(r"\s*\w+$", "", parameter.partition("=")[0].strip())


def plain_type(written: str) -> str:
    """A type without const and references; "" if it is not one that tests know."""
    bare = " ".join(re.sub(r"\bconst\b|&|\binline\b|\bstatic\b|\bconstexpr\b", " ", written).split())
    if bare in ("char *", "char*"):
        return "const char *" if "const" in written else ""
    return bare if bare in _INTEGERS | _STRINGS else ""


def derive_tests(function: _Function, grader: Grader, rng: random.Random) -> str:
    """A main whose assertions the original meets and its mutants do not; "" if there is none."""
    inputs = _inputs(function, rng)
    calls = [f"{function.name}({', '.join(each)})" for each in inputs]
    results = _run(function, calls, grader.sandbox)
    if results is None or results != _run(function, calls, grader.sandbox):
        return ""
    least = 2 if function.returns == "bool" else 3
    if len(set(results)) < least or max(map(results.count, results)) > 0.9 * len(results):
        return ""
    pairs = list(zip(calls, results, strict=True))
    pairs.sort(key=lambda pair: results.count(pair[1]))  # rare results first
    lines = [
        f"    assert({call} == {_literal(result, function.returns)});"
        for call, result in pairs[:_MOST_ASSERTIONS]
    ]
    tests = "\nint main() {\n" + "\n".join(lines) + "\n}\n"
    return tests if _kills(function, tests, grader, rng) else ""


def _inputs(function: _Function, rng: random.Random) -> list[tuple[str, ...]]:
    """Literals for the parameters: edge values, then random ones."""

    def value(kind: str) -> str:
        if kind in _STRINGS:
            return json.dumps(rng.choice(_TEXTS))
        if kind == "bool":
            return rng.choice(("true", "false"))
        number = rng.choice((*_NUMBERS, rng.randint(0, 5000)))
        return f"static_cast<{kind}>({abs(number) if kind.startswith(('u', 's')) else number})"

    drawn = dict.fromkeys(tuple(value(kind) for kind in function.parameters) for _ in range(4 * _INPUTS))
    return list(drawn)[:_INPUTS]


def _run(function: _Function, calls: Sequence[str], sandbox: Sandbox) -> list[str] | None:
    """What the original returns for each call, printed; None if it does not link or ends early."""
    shown = "+" if function.returns in _INTEGERS else ""
    prints = "\n".join(f"    std::cout << {shown}({call}) << '\\x1f';" for call in calls)
    program = (
        f"#include <iostream>\n#include <cassert>\n{function.before}{function.body}{function.after}\n"
        f"int main() {{\n{prints}\n}}\n"
    )
    command = ["g++", "-std=c++20", "-O0", "-w", "-fsanitize=undefined", "-fno-sanitize-recover=all",
               "-o", "program", "program.cpp"]  # fmt: skip
    try:
        built = sandbox.run(
            {"program.cpp": program.encode()}, command, COMPILE_LIMITS, fetch={"program": MAX_PROGRAM_BYTES}
        )
        if not built.succeeded or "program" not in built.files:
            return None
        ran = sandbox.run({"program": built.files["program"]}, ["./program"], CALL_LIMITS)
    except SandboxError:
        return None
    values = ran.stdout.decode("utf-8", errors="replace").split("\x1f")[:-1]
    return values if ran.succeeded and len(values) == len(calls) else None


def _literal(result: str, kind: str) -> str:
    if kind in _INTEGERS:
        return f"static_cast<{kind}>({result}{'' if abs(int(result)) < 2**31 else 'LL'})"
    return f"std::string({json.dumps(result)})"


def _kills(function: _Function, tests: str, grader: Grader, rng: random.Random) -> bool:
    """True if the original passes the tests, and 80 % of its mutants do not."""
    places = list(_OPERATOR.finditer(function.body))
    bodies = [function.body]
    for match in rng.sample(places, min(len(places), _MUTANTS)):
        swapped = _SWAPS.get(match.group()) or str(int(match.group()) + 1)
        bodies.append(function.body[: match.start()] + swapped + function.body[match.end() :])
    constants = [BODY_CHEATS[name] for name in ("return value", "return zero", "return one")]
    bodies += constants
    head = f"#include <cassert>\n{function.before}"
    verdicts = dict(grader.judge.judge([Program(head, body, function.after + tests) for body in bodies]))
    outcomes = [verdicts[number].outcome for number in range(len(bodies))]
    mutants = [each for each in outcomes[1 : -len(constants)] if each in COMPILED]
    killed = sum(each != "pass" for each in mutants)
    return (
        outcomes[0] == "pass"
        and "pass" not in outcomes[-len(constants) :]
        and killed >= max(1, _MIN_KILLED * len(mutants))
    )


def _rungs(function: _Function, tests: str, split: Split) -> Iterator[TaskItem]:
    """The whole body, its second half and its last statement, as far as it has them."""
    document, starts = function.document, function.statements
    rungs = {"body": 0}
    if len(starts) >= 4:
        rungs["second half"] = starts[len(starts) // 2]
    if len(starts) >= 2:
        rungs["last statement"] = starts[-1]
    for level, start in rungs.items():
        given, rest = function.body[:start], function.body[start:]
        head = f"{function.comment}\n{function.signature} {{".lstrip("\n")
        code = f"{head}{given}".rstrip()
        yield TaskItem(
            kind=OwnKind.name, level=level, split=split, group=document.id, project=document.project,
            license=document.license, answer=rest.lstrip("\n"),
            prompt=f"```cpp\n{code}\n```\nWrite the rest of this function, up to its closing brace.",
            prefix=f"{head}{given}" if given else f"{head}\n",
            data={
                "before": f"#include <cassert>\n{function.before}{given}",
                "after": function.after + tests,
            },
        )  # fmt: skip
