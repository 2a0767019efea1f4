"""Holes in code that a model was not trained on: in a corpus's validation documents, or in any other files.

Nothing tells what such code is for, so what is written into it cannot be tested. It shows whether a model
finds the words of these projects, and whether what it writes fits its place: see `suite.py`.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from cpplm.core.spans import SpanKind
from cpplm.corpus.compile.compiler import compile_document
from cpplm.cpp.parser import grammar
from cpplm.cpp.syntax import parse
from cpplm.cpp.syntax_spans import find_spans, join_spans, whole_groups
from cpplm.evaluate.fim.holes import FimHole, hash_order, informative_lines
from cpplm.evaluate.settings import HoleKind
from cpplm.evaluate.texts import Text, read_texts
from cpplm.sandbox.sandbox import Sandbox, SandboxError

FILE_KINDS: tuple[HoleKind, ...] = ("single", "multi", "body", "statement", "block", "arguments")
MAX_HOLE_BYTES = 800
"""Bytes: about as much as 256 tokens can hold."""
MAX_HOLE_LINES = 8
"""The longest run of lines; longer holes are `body` and `block`."""
_SPANS: dict[SpanKind, HoleKind] = {
    SpanKind.STATEMENT: "statement",
    SpanKind.BLOCK: "block",
    SpanKind.BODY: "body",
    SpanKind.ARGUMENTS: "arguments",
}
# What stands between the braces of a body: behind the line break after the first, or behind the space there.
_BODY = re.compile(rb"\{(?:[ \t]*\n|[ \t]*)(.*?)\s*\}", re.DOTALL)
# Texts that are looked at for each hole of a kind that is wanted: not every one has every kind.
_POOL = 2


class HoleSpan(NamedTuple):
    """Bytes `start` to `end` of a document, as a hole of some kind."""

    kind: HoleKind
    start: int
    end: int


def find_hole_spans(text: str) -> tuple[bool, list[HoleSpan]]:
    """Everything that can be cut out: lines of code, runs of them, and whole syntax.

    Returns:
        Whether the parser reads all of the text, and the places.
    """
    lexed, root = parse(text.encode("utf-8", errors="replace"))
    places = [place for place in _places(lexed, root) if 0 < place.end - place.start <= MAX_HOLE_BYTES]
    return not root.has_error, places


def _places(lexed: Any, root: Any) -> Iterator[HoleSpan]:
    lines = informative_lines(
        lexed.names.decode("latin-1")
    )  # comments, directives and strings are blank in it
    for place, (_, start, end) in enumerate(lines):
        yield HoleSpan("single", start, end)
        for _, _, last in lines[place + 1 : place + MAX_HOLE_LINES]:
            yield HoleSpan("multi", start, last)
    whole = whole_groups(lexed.directives, 0)
    spans, _ = find_spans(root, grammar("c++"), whole=whole)
    for start, end, number in join_spans([(spans, 0)]).tolist():
        kind = _SPANS.get(SpanKind(number))
        inside = _BODY.fullmatch(lexed.data, start, end) if kind == "body" else None
        if inside is not None:
            start, end = inside.span(1)  # noqa: PLW2901
        if kind is not None:
            yield HoleSpan(kind, start, end)


def _candidates(text: Text, most: int, seed: int) -> tuple[bool, Text, dict[HoleKind, list[HoleSpan]]]:
    """Whether the parser reads a text, the text, and its best places of each kind, the best first."""
    readable, places = find_hole_spans(text.text)
    digest = text.digest

    def rank(place: HoleSpan) -> str:
        return hash_order(seed, f"{digest} {place.kind} {place.start} {place.end}")

    kinds = {kind: [place for place in places if place.kind == kind] for kind in FILE_KINDS}
    return readable, text, {kind: heapq.nsmallest(most, kinds[kind], key=rank) for kind in kinds}


def file_holes(
    location: str, per_kind: int, seed: int, prefix_chars: int, suffix_chars: int
) -> tuple[list[FimHole], dict[str, Text]]:
    """Holes in the code at a location: of each kind up to so many, from as many texts as there are.

    Which ones depends on the seed and on the texts, not on their order or place. Texts that the parser reads
    come first, so that it can be asked what became of them.

    Args:
        location: see `read_texts`.
        per_kind: holes of each kind.
        seed: of the choice.
        prefix_chars: the text before a hole that a model gets to see, to the nearest whole line.
        suffix_chars: the text behind it.

    Returns:
        The holes, kind by kind, and the texts that they are in, by the names of the groups.

    Raises:
        UserError: no code there.
    """
    by_digest = {text.digest: text for text in read_texts(location)}
    pool = heapq.nsmallest(_POOL * per_kind, by_digest, key=lambda digest: hash_order(seed, digest))
    candidates = [_candidates(by_digest[digest], per_kind, seed) for digest in pool]
    candidates.sort(key=lambda candidate: not candidate[0])  # stable
    holes, used = [], dict[str, Text]()
    for kind in FILE_KINDS:
        # The first choice of every text before the second of any.
        ranked = [
            (rank, text, place) for _, text, places in candidates for rank, place in enumerate(places[kind])
        ]
        for _, text, place in sorted(ranked, key=lambda entry: entry[0])[:per_kind]:
            group = f"{text.project or 'text'}/{text.digest[:12]}"
            holes.append(_hole(group, text, place, prefix_chars, suffix_chars))
            used[group] = text
    return holes, used


def _hole(group: str, text: Text, place: HoleSpan, prefix_chars: int, suffix_chars: int) -> FimHole:
    data = text.text.encode()
    before, middle, after = (
        part.decode() for part in (data[: place.start], data[place.start : place.end], data[place.end :])
    )
    prefix, suffix = before[-prefix_chars:], after[:suffix_chars]
    if len(prefix) < len(before) and "\n" in prefix:
        prefix = prefix[prefix.index("\n") + 1 :]
    if len(suffix) < len(after) and "\n" in suffix:
        suffix = suffix[: suffix.rindex("\n") + 1]
    name = f"{group}/{place.kind}/{place.start}-{place.end}"
    return FimHole(name, place.kind, group, before, middle, after, prefix, suffix)


def compile_standalone(text: str, sandbox: Sandbox) -> Literal["compiles", "compile error", "sandbox error"]:
    """Compile a text as C++ as it is, with no headers but the system's."""
    readable = text.encode("utf-8", errors="replace").decode()
    try:
        verdict = compile_document(readable, "c++", sandbox)
    except SandboxError:
        return "sandbox error"
    return "compiles" if verdict.compiles else "compile error"
