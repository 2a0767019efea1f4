"""Statements, blocks, functions, arguments and conditions of one piece, from the tree made to classify it.

One walk finds them all, and the functions for `doc_comments` besides. It enters no node that is too short to
hold a span, and so takes less than half the time of a tree-sitter query. The parser saw the piece with
comments, directives and masked macros blanked, so offsets are those of the piece itself. A node with an error
in it gives no span, nor does one that tears an `#if` group apart: what is cut out of a document for a model
to fill in has to be whole.
"""

from __future__ import annotations

import bisect
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tree_sitter

from cpplm.core.spans import MAX_BYTES, MIN_BYTES, SpanKind, SpanTable
from cpplm.cpp.lexer import ELSE_KEYWORDS, IF_KEYWORDS, Directive, conditional_groups
from cpplm.cpp.parser import Grammar

# Triples of start, end and kind as int32 in a row: a tenth of what tuples take.
PackedSpans = bytes
SpanPredicate = Callable[[int, int], bool]


class FunctionNode(NamedTuple):
    """A function definition: its node, and where the `template <...>` before it starts, else the node."""

    node: tree_sitter.Node
    start: int


def find_spans(
    root: tree_sitter.Node, grammar: Grammar, *, shift: int = 0, whole: SpanPredicate | None = None
) -> tuple[PackedSpans, list[FunctionNode]]:
    """The spans of a piece and its function definitions with a body, in no particular order.

    Args:
        root: the root node of the piece.
        grammar: that it was parsed with.
        shift: added to the offsets of the spans: the length of the comments before the piece makes them
            offsets in the item's text.
        whole: from `whole_groups`.

    Returns:
        Spans of MIN_BYTES to MAX_BYTES, and all functions, those inside classes and functions included, by
        their offsets in the piece.
    """
    triples: list[int] = []
    functions: list[FunctionNode] = []
    errors = root.has_error
    common, below, containers = grammar.roles, grammar.roles_below, grammar.containers
    function_role = SpanKind.FUNCTION
    short = containers | grammar.functions  # what counts although it is too short for a span
    # Nodes to enter; a template declaration with the start of the outermost one around it, others with -1.
    stack = [(root, -1)]
    while stack:
        parent, template = stack.pop()
        roles = below.get(parent.kind_id, common)
        for node in parent.named_children:
            end, number = node.end_byte, node.kind_id
            start = node.start_byte if template < 0 else template
            is_long = end - start >= MIN_BYTES
            if not is_long and number not in short:
                continue
            role = roles.get(number)
            if role is function_role:
                if node.child_by_field_name("body") is None:  # `= default`
                    continue
                functions.append(FunctionNode(node, start))
            if is_long or number in containers:
                stack.append((node, start if number == grammar.template else -1))
            if role is None or not is_long or end - start > MAX_BYTES or (errors and node.has_error):
                continue
            if whole is None or whole(start, end):
                triples += (start + shift, end + shift, role)
    return array("i", triples).tobytes(), functions


def whole_groups(directives: Sequence[Directive], origin: int) -> SpanPredicate | None:
    """A test for pairs of offsets in a piece: does `text[start:end]` hold each of its `#if` groups whole?

    Args:
        directives: of the piece, in order, by their offsets in the file.
        origin: offset of the piece in the file.

    Returns:
        The test, or None when every span passes since there is no `#if` in the piece.
    """
    conditionals = [d for d in directives if d.keyword in IF_KEYWORDS | ELSE_KEYWORDS]
    if not conditionals:
        return None
    places = [directive.start - origin for directive in conditionals]

    def whole(start: int, end: int) -> bool:
        inside = conditionals[bisect.bisect_left(places, start) : bisect.bisect_left(places, end)]
        return conditional_groups(inside)[1]

    return whole


def join_spans(parts: Iterable[tuple[PackedSpans, int]]) -> SpanTable:
    """The spans of a document, ready to be packed; of each item, with where its text begins, in bytes."""
    tables = [
        np.frombuffer(spans, dtype=np.int32).reshape(-1, 3) + np.array([offset, offset, 0], dtype=np.int32)
        for spans, offset in parts
        if spans
    ]
    return np.concatenate(tables) if tables else np.empty((0, 3), dtype=np.int32)
