"""`doc`: the body of a documented function. Without tests only the original body counts.

It is there to learn from: a compiler cannot tell a good body from an empty one, as both compile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rapidfuzz.distance import Levenshtein

from cpplm.core.shards import Split
from cpplm.judge.scoring import find_forbidden, function_body, is_empty
from cpplm.tasks.grader import Grader
from cpplm.tasks.item import TaskItem
from cpplm.tasks.kind import CORRECT, MALFORMED, PARSES, Answer, BodyKind, Grade
from cpplm.tasks.mutations import line_tokens
from cpplm.tasks.source import TaskSource

_BODY_TOKENS = range(6, 160)
_DOC_BYTES = 800
_ALIKE = 0.95  # share of tokens


class DocKind(BodyKind):
    """Comment and signature to body."""

    name = "doc"
    max_new_tokens = 200

    def build(self, source: TaskSource, split: Split, count: int) -> Iterator[TaskItem]:
        """Functions with a comment of their own, of all kinds of documents, in an order of the seed's."""
        rows = [row for row in source.documents(split) if row["docstrings"]]
        rows.sort(key=lambda row: source.rank(row["id"]))
        seen = set[str]()
        for row in rows:
            data = row["text"].encode()
            for pair in row["docstrings"]:
                comment, signature, body = (
                    data[pair[f"{part}_start"] : pair[f"{part}_end"]].decode()
                    for part in ("doc", "signature", "body")
                )
                inside = body.removeprefix("{").lstrip(" \n")
                item = TaskItem(
                    kind=self.name, level="function", split=split, group=row["id"], project=row["project"],
                    license=row["license"],
                    prompt=f"```cpp\n{comment}\n{signature}\n```\nWrite the body of this function.",
                    answer=inside, prefix=f"{comment}\n{signature}\n{{\n",
                )  # fmt: skip
                fits = len(line_tokens(inside)) in _BODY_TOKENS and len(comment) < _DOC_BYTES
                if len(seen) < count and fits and item.key not in seen and function_body(inside).complete:
                    seen.add(item.key)
                    yield item

    def grade(self, answers: Sequence[tuple[TaskItem, Answer]], grader: Grader) -> list[Grade]:
        """Compare token by token; nothing is compiled."""
        return [_compare(item, answer.text) for item, answer in answers]


def _compare(item: TaskItem, answer: str) -> Grade:
    if is_empty(answer) or find_forbidden(answer) or not function_body(answer).complete:
        return Grade(MALFORMED, "not a body")
    tokens, gold = line_tokens(answer), line_tokens(item.answer)
    alike = Levenshtein.normalized_similarity(tokens, gold)
    return Grade(
        CORRECT if alike >= _ALIKE else PARSES, "alike" if alike >= _ALIKE else "other", tokens == gold
    )
