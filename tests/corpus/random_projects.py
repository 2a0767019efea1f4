"""Valid C++ projects made at random: headers that include each other, sources, comments, scopes, conditions.

Every line that has to arrive in a document carries a mark of its own, `m17` in a comment or `m17_x` in a
name, so that a test can tell which lines of which file a document is made of.
"""

import re
from dataclasses import dataclass, field
from random import Random

MARK = re.compile(r"\bm(\d+)\b")


def marks(text: str) -> set[int]:
    return {int(number) for number in MARK.findall(text)}


@dataclass
class _Names:
    """What a file may use: what it declared so far, and what its includes declared."""

    structs: list[str] = field(default_factory=list)
    functions: list[tuple[str, str]] = field(default_factory=list)  # with the type of the parameter


class _File:
    def __init__(self, random: Random, counter: list[int], visible: _Names) -> None:
        self.random = random
        self.counter = counter
        self.visible = visible
        self.own = _Names()
        self.lines: list[str] = []
        self.scopes: list[str] = []

    def number(self) -> int:
        self.counter[0] += 1
        return self.counter[0]

    def mark(self) -> str:
        return f"m{self.number()}"

    def blank(self) -> None:
        self.lines += [""] * self.random.randrange(3)

    def comment(self) -> None:
        """Of one to three lines, some set apart from what follows by a blank line."""
        style = self.random.randrange(4)
        if style == 0:
            return
        if style == 1:
            self.lines += [f"/* {self.mark()}", f"   größer {self.mark()} */"]
        else:
            self.lines += [f"// {self.mark()} 面" for _ in range(style)]
        if self.random.random() < 0.3:
            self.lines.append("")

    def structs(self) -> list[str]:
        return self.visible.structs + self.own.structs

    def functions(self) -> list[tuple[str, str]]:
        return self.visible.functions + self.own.functions

    def struct(self) -> None:
        self.comment()
        name = f"S{self.number()}"
        members = [f"  int value = {self.random.randrange(9)};  // {self.mark()}"]
        for other in self.random.sample(self.structs(), min(len(self.structs()), self.random.randrange(3))):
            members.append(f"  {other} of_{other.rpartition('::')[2]};  // {self.mark()}")
        if self.random.random() < 0.5:
            members += [f"  int get() const {{  // {self.mark()}", "    return value;", "  }"]
        self.lines += [f"struct {name} {{  // {self.mark()}", *members, "};"]
        self.own.structs.append("::".join([*self.scopes, name]))

    def function(self, prefix: str = "") -> None:
        self.comment()
        name = f"f{self.number()}"
        parameter = self.random.choice([*self.structs(), "int"])
        callable_ = [f for f in self.functions() if f[1] in (parameter, "int")]
        called = self.random.sample(callable_, min(len(callable_), self.random.randrange(3)))
        value = "x" if parameter == "int" else "x.value"
        terms = [value, *(f"{f}({'x' if p == parameter else value})" for f, p in called)]
        self.lines.append(f"{prefix}int {name}({parameter} x) {{  // {self.mark()}")
        self.lines += [f"  {value} += {i};  // {self.mark()}" for i in range(self.random.randrange(6))]
        self.lines += [f"  return {' + '.join(terms)};  // {self.mark()}", "}"]
        self.own.functions.append(("::".join([*self.scopes, name]), parameter))

    def conditional(self, prefix: str) -> None:
        self.lines.append(f"#if {self.random.choice(['1', 'defined(__cplusplus)', '__GNUC__ >= 4'])}")
        self.function(prefix)
        if self.random.random() < 0.5:
            kept = len(self.own.functions)
            self.lines.append("#else")
            self.function(prefix)
            del self.own.functions[kept:]
        self.lines.append("#endif")

    def content(self, length: int, prefix: str) -> None:
        for _ in range(length):
            self.blank()
            choice = self.random.random()
            if choice < 0.25 and len(self.scopes) < 2:
                scope = self.random.choice(["outer", "other"] if not self.scopes else ["inner", "deep"])
                self.scopes.append(scope)
                self.lines.append(f"namespace {scope} {{")
                self.content(self.random.randrange(3), prefix)
                self.lines.append("}" if self.random.random() < 0.5 else f"}}  // namespace {scope}")
                self.scopes.pop()
            elif choice < 0.5:
                self.struct()
            elif choice < 0.6:
                self.conditional(prefix)
            else:
                self.function(prefix)


def random_project(random: Random, *, headers: int = 4, sources: int = 3, length: int = 6) -> dict[str, str]:
    """File names and contents: every source compiles as C++17."""
    counter = [0]
    files: dict[str, str] = {}
    known: dict[str, tuple[list[str], _Names]] = {}
    for number in range(headers + sources):
        is_header = number < headers
        includes = random.sample(sorted(known), min(len(known), random.randrange(4)))
        reached = dict.fromkeys(name for include in includes for name in [*known[include][0], include])
        visible = _Names(
            [struct for name in reached for struct in known[name][1].structs],
            [function for name in reached for function in known[name][1].functions],
        )
        file = _File(random, counter, visible)
        if random.random() < 0.3:
            file.lines.append("// Copyright: the license is no text to learn from.")
        if random.random() < 0.5:
            file.lines += [f"// About this file: {file.mark()}", f"// and more of it: {file.mark()}", ""]
        name = f"h{number}.h" if is_header else f"s{number}.cc"
        if is_header:
            guard = random.random() < 0.5
            file.lines += [f"#ifndef H{number}", f"#define H{number}"] if guard else ["#pragma once"]
        file.blank()
        file.lines += ["#include <vector>"] * random.randrange(2) + [f'#include "{i}"' for i in includes]
        file.content(random.randrange(1, length), "inline " if is_header else random.choice(["", "static "]))
        if is_header:
            file.lines += ["#endif"] if guard else []
            known[name] = (list(reached), file.own)
        files[name] = "\n".join(file.lines) + "\n"
    return files
