"""`ask`: questions about a project that its tools answer: every result comes from running the tool.

An answer counts if it is exact and stands in a result that was read: guessing earns nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tree_sitter

from cpplm.core.shards import Split
from cpplm.corpus.ingest.discovery import Project, SourceFile, find_files, read_source
from cpplm.corpus.ingest.pii import redact
from cpplm.cpp.syntax import parse
from cpplm.generate.tools.tool_call_format import ArgumentValue, parse_call, render_call
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import CORRECT, GENERAL_CHEATS, MALFORMED, PARSES, Answer, Grade, TaskKind
from cpplm.tasks.source import TaskSource, round_robin

_LONGEST_RESULT = 900  # characters: a short context has to hold it
_PER_FILE = {"function": 12, "type": 12, "value": 8, "line": 4, "count": 4}
_TYPES = {"class_specifier": "class", "struct_specifier": "struct", "enum_specifier": "enum"}
_LONG_NAME = re.compile(rb"\b[A-Za-z]\w{6,}\b")
_MACRO = re.compile(rb"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\d+)[ \t]*$", re.MULTILINE)


@dataclass(frozen=True)
class _Question:
    """A question, the call that answers it, and the answer."""

    level: str
    text: str
    tool: str
    arguments: tuple[ArgumentValue, ...]
    answer: str


class AskKind(TaskKind):
    """Questions on where things are, and what their values are."""

    name = "ask"
    max_new_tokens = 96
    needs_projects = True
    needs_tools = True

    def build(self, source: TaskSource, split: Split, count: int) -> Iterator[TaskItem]:
        """Questions on the files that documents of the split were made of, projects in turn."""
        projects = source.projects.items()
        return round_robin((self._of_project(source, split, *project) for project in projects), count)

    def _of_project(self, source: TaskSource, split: Split, name: str, root: Path) -> Iterator[TaskItem]:
        files = [
            file for file in find_files(Project(name, (root,)))[0]
            if file.makes_documents and source.split_of(name, file.name) == split
        ]  # fmt: skip
        if not files:
            return
        box = ToolBox(root, runs_programs=False)
        for file in sorted(files, key=lambda file: source.rank(file.name)):
            questions = list(_questions(file))
            source.rng(f"ask {name} {file.name}").shuffle(questions)
            made = Counter[str]()
            for question in questions:
                wanted = made[question.level] < _PER_FILE[question.level]
                if wanted and (item := _item(question, box, name, file, split)):
                    made[question.level] += 1
                    yield item

    def cut(self, text: str) -> str:
        """What was said last: text before a call is no answer."""
        return text.strip().rpartition("\n")[2].strip()

    def is_complete(self, text: str) -> bool:
        """Never before the model's own end: a call may follow any text."""
        return False

    def grade(self, answers: Sequence[tuple[TaskItem, Answer]], grader: Grader) -> list[Grade]:
        """Compare, and look the answer up in what the tools said."""
        return [_grade(item, answer) for item, answer in answers]

    def gold(self, item: TaskItem) -> Answer:
        """With the result that the gold call gave."""
        return Answer(item.answer, (item.data["result"],))

    def cheats(self, item: TaskItem) -> Mapping[str, str]:
        """Answers that nothing was read for."""
        return GENERAL_CHEATS | {
            "guess": item.answer, "list": f"{item.answer} src/a.h:1 src/b.h:2", "zero": "0",
            "first line": "a.h:1", "question": item.prompt,
        }  # fmt: skip


def _questions(file: SourceFile) -> Iterator[_Question]:
    """Questions on the definitions and numbers of one file."""
    data = read_source(file)
    lexed, root = parse(data)
    for node in _definitions(root):
        name, line = _name_of(node, data), node.start_point[0] + 1
        where = f"{file.name}:{line}"
        if name and node.type == "function_definition":
            yield _Question("function", f'Where is the function "{name}(" defined?', "search",
                            (f"{name}(",), where)  # fmt: skip
        elif name:
            key = _TYPES[node.type]
            yield _Question("type", f'Where is "{key} {name}" defined?', "search",
                            (f"{key} {name}",), where)  # fmt: skip
    for match in _MACRO.finditer(data):
        name, value = match[1].decode(), match[2].decode()
        yield _Question("value", f'What is the value of "{name}"?', "search", (f"define {name}",), value)
    for name in sorted({match.decode() for match in _LONG_NAME.findall(lexed.names)}):
        yield _Question("count", f'How many lines contain "{name}"?', "search", (name,), "")
    lines = data.decode("utf-8", errors="replace").split("\n")
    for number, text in enumerate(lines, start=1):
        if 12 <= len(text.strip()) <= 60:
            yield _Question("line", f'What does line {number} of "{file.name}" say?', "read_file",
                            (file.name, number, number), text.strip())  # fmt: skip


def _definitions(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    """Functions and types with a body, not those inside functions."""
    for child in node.children:
        if child.type in _TYPES and child.child_by_field_name("body") is not None:
            yield child
        if child.type == "function_definition":
            yield child
        elif child.child_count:
            yield from _definitions(child)


def _name_of(node: tree_sitter.Node, data: bytes) -> str:
    """The plain name of a type or function; "" where it has none."""
    name = node.child_by_field_name("name" if node.type in _TYPES else "declarator")
    while name is not None and name.type not in ("identifier", "type_identifier", "field_identifier"):
        name = name.child_by_field_name("name") or name.child_by_field_name("declarator")
    return data[name.start_byte : name.end_byte].decode() if name is not None else ""


def _item(question: _Question, box: ToolBox, project: str, file: SourceFile, split: Split) -> TaskItem | None:
    """The task, if one call answers the question for certain."""
    call = render_call(question.tool, question.arguments)
    result = box.fresh().call(parse_call("query_tool", call))
    if question.level == "count":
        question = replace(question, answer=result.rpartition("\n")[2].partition(" ")[0])
    if len(result) > _LONGEST_RESULT or redact(result.encode())[1] or not _stands_in(question.answer, result):
        return None
    hits = result.count("\n")
    if question.level in ("function", "type") and not _is_only_definition(question, result):
        return None
    names = {"search": ("pattern", "regex", "path"), "read_file": ("path", "first", "last")}[question.tool]
    arguments = json.dumps(dict(zip(names, question.arguments, strict=False)))
    called = {"id": "1", "type": "function", "function": {"name": question.tool, "arguments": arguments}}
    turns: tuple[Mapping[str, Any], ...] = (
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "1", "content": result},
        {"role": "assistant", "content": question.answer},
    )
    several = question.tool == "search" and hits > 1
    return TaskItem(
        kind=AskKind.name, level=f"{question.level}{', several hits' if several else ''}", split=split,
        group=f"{project}/{file.name}", project=project, license=file.license, prompt=question.text,
        answer=question.answer, turns=turns, data={"result": result},
    )  # fmt: skip


def _stands_in(answer: str, result: str) -> bool:
    """True if a result has an answer in it as a whole."""
    return re.search(rf"(?<![\w/.-]){re.escape(answer)}(?!\w)", result) is not None


def _is_only_definition(question: _Question, result: str) -> bool:
    """True if of all hits only the answer can be the definition, as no other line opens one."""
    hits = [line.partition(": ") for line in result.split("\n")[:-1]]
    (word,) = map(str, question.arguments)
    exact = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)")
    may_define = [place for place, _, text in hits if exact.search(text) and not text.endswith((";", ","))]
    return may_define == [question.answer]


def _grade(item: TaskItem, answer: Answer) -> Grade:
    called = any(not result.startswith("error:") for result in answer.tool_results)
    if not called:
        return Grade(MALFORMED, "no valid call")
    if answer.text != item.answer:
        return Grade(PARSES, "wrong answer")
    if not any(_stands_in(item.answer, result) for result in answer.tool_results):
        return Grade(PARSES, "not read")
    return Grade(CORRECT, "right", exact=True)
