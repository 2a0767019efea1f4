"""`commit`: a commit's message and the lines before it; the answer is the lines after it.

Read by dulwich, which runs nothing that a repository's own configuration names. The method is OctoPack's
(Muennighoff et al. 2023, arXiv 2308.07124).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from cpplm.core.errors import import_extra
from cpplm.core.shards import Split
from cpplm.corpus.ingest.licenses import detect_license, spdx_tag
from cpplm.corpus.ingest.pii import redact
from cpplm.cpp.file_suffixes import HEADER_SUFFIXES, SOURCE_SUFFIXES
from cpplm.cpp.lexer import lex
from cpplm.cpp.parser import grammar
from cpplm.judge.scoring import find_forbidden
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import CORRECT, GENERAL_CHEATS, MALFORMED, PARSES, Answer, Grade, TaskKind
from cpplm.tasks.source import TaskSource, round_robin

_MAX_COMMITS = 20_000
_CHANGED_LINES = range(1, 61)
_MAX_HUNKS = 2
_CONTEXT = 3  # lines around a hunk, as diff has them
_MAX_HUNK_CHARS = 1_600
_MIN_WORDS = 3
_NO_TASK = re.compile(r"(?i)\b(?:merge|revert|clang-format|format(?:ting)?|whitespace|indent)\b")


class CommitKind(TaskKind):
    """Edits that people made, with what they said about them."""

    name = "commit"
    max_new_tokens = 400
    needs_projects = True

    def build(self, source: TaskSource, split: Split, count: int) -> Iterator[TaskItem]:
        """Newest commits first, projects in turn; validation has files whose documents are of validation."""
        histories = (
            _edits(name, root, source, split)
            for name, root in source.projects.items()
            if (root / ".git").exists()
        )
        return round_robin(histories, count)

    def cut(self, text: str) -> str:
        """What stands in the block of code."""
        return text.strip("\n").removeprefix("```cpp\n").partition("\n```")[0]

    def is_complete(self, text: str) -> bool:
        """True behind the block."""
        return text.lstrip("\n").count("\n```") > 0

    def grade(self, answers: Sequence[tuple[TaskItem, Answer]], grader: Grader) -> list[Grade]:
        """Compare with what the author wrote, layout apart."""
        return [_grade(item, answer.text) for item, answer in answers]

    def gold(self, item: TaskItem) -> Answer:
        """Without its block."""
        return Answer(self.cut(item.answer))

    def cheats(self, item: TaskItem) -> Mapping[str, str]:
        """The lines as they were, and parts of the answer."""
        after = self.cut(item.answer)
        lines = after.split("\n")
        return GENERAL_CHEATS | {
            "unchanged": item.data["before"], "first half": "\n".join(lines[: len(lines) // 2]),
            "both": item.data["before"] + "\n" + after, "twice": f"{after}\n{after}",
        }  # fmt: skip


def _edits(name: str, root: Path, source: TaskSource, split: Split) -> Iterator[TaskItem]:
    """The edits of one repository's history that are small enough."""
    git = import_extra("dulwich.repo", "commits need", "git")
    repository = git.Repo(str(root))
    try:
        for entry in repository.get_walker(max_entries=_MAX_COMMITS):
            commit = entry.commit
            message = redact(commit.message)[0].decode("utf-8", errors="replace").strip()
            subject = message.partition("\n")[0]
            if len(commit.parents) != 1 or len(subject.split()) < _MIN_WORDS or _NO_TASK.search(subject):
                continue
            changes = [change for change in entry.changes() if _is_edit(change)]
            for change in changes[:_MAX_HUNKS]:
                path = change.new.path.decode("utf-8", errors="replace")
                if source.split_of(name, path) != split:
                    continue
                old, new = (repository[each.sha].data for each in (change.old, change.new))
                item = _item(name, path, subject, old, new, split)
                if item is not None:
                    yield item
    finally:
        repository.close()


def _is_edit(change: Any) -> bool:
    """True for a file of C or C++ that was there before and is after."""
    if change.type != "modify":
        return False
    name = change.new.path.decode("utf-8", errors="replace")
    return PurePosixPath(name).suffix.lower() in SOURCE_SUFFIXES | HEADER_SUFFIXES


def _item(name: str, path: str, subject: str, old: bytes, new: bytes, split: Split) -> TaskItem | None:
    """The task of one change of one file; None where it is too large or not code."""
    license = spdx_tag(new) or detect_license(new[:4000])
    before, after = (redact(each)[0].decode("utf-8", errors="replace").split("\n") for each in (old, new))
    if len(before) > 20_000 or len(after) > 20_000:
        return None
    groups = list(difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(_CONTEXT))
    if len(groups) != 1:
        return None
    (group,) = groups
    changed = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in group if tag != "equal")
    one = "\n".join(before[group[0][1] : group[-1][2]])
    two = "\n".join(after[group[0][3] : group[-1][4]])
    if (
        changed not in _CHANGED_LINES
        or max(len(one), len(two)) > _MAX_HUNK_CHARS
        or one.split() == two.split()
    ):
        return None
    if "```" in two or find_forbidden(_without_directives(two)) or _errors(new) > _errors(old):
        return None
    return TaskItem(
        kind=CommitKind.name, level="one hunk", split=split, group=f"{name}/{path}", project=name,
        license=license, prompt=f"{subject}\nChange this part of {path}:\n```cpp\n{one}\n```",
        answer=f"```cpp\n{two}\n```",
        data={"before": one},
    )  # fmt: skip


def _without_directives(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))


def _errors(data: bytes) -> int:
    """1 if the parser stumbles over a text."""
    return int(grammar("c++").parse(lex(data).plain).has_error)


def _grade(item: TaskItem, answer: str) -> Grade:
    gold = item.answer.removeprefix("```cpp\n").removesuffix("\n```")
    if not answer.strip() or answer.split() == item.data["before"].split():
        return Grade(MALFORMED, "unchanged")
    exact = answer.split() == gold.split()
    return Grade(CORRECT if exact else PARSES, "as the author" if exact else "other", exact)
