"""Tokens shown in colors: in the terminal, and as a piece of HTML.

Neighbours differ in color. With a mask, green is what an assistant is trained on and red the rest. Spaces
and line breaks stay what they are; a line break is also written as an arrow, and bytes that are no text as
`<0x..>`.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from cpplm.core.errors import UserError
from cpplm.core.html_page import PRE_STYLE, shaded_text
from cpplm.tokenizer.special_tokens import NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer

_COLORS = (("#dbe9ff", 153), ("#ffe3c7", 223), ("#d8f3dc", 157), ("#f9d5e5", 218))  # hex, xterm's 256
_SUPERVISED, _UNSUPERVISED, _SPECIAL = ("#b7e4c7", 157), ("#ffc9c9", 217), ("#d0d0d0", 250)


def to_terminal(
    tokenizer: Tokenizer, ids: Sequence[int], mask: Sequence[int] | None = None, *, with_ids: bool = False
) -> str:
    """Tokens on colored ground, by ANSI escapes.

    Args:
        tokenizer: that gave the ids.
        ids: what to show.
        mask: 1 where an assistant is trained on the token.
        with_ids: write each id behind its token.

    Raises:
        UserError: an id outside the vocabulary, or a mask of another length.
    """
    parts = []
    for id_, text, (_, color) in _tokens(tokenizer, ids, mask):
        # Color ends before a line break, or the terminal would fill the line with it.
        lines = [f"\x1b[48;5;{color}m\x1b[30m{line}\x1b[0m" for line in text.split("\n")]
        parts.append("\n".join(lines) + (f"\x1b[90m{id_}\x1b[0m" if with_ids else ""))
    return "".join(parts)


def to_html(tokenizer: Tokenizer, ids: Sequence[int], mask: Sequence[int] | None = None) -> str:
    """One `<pre>` element with its own colors; the id and the bytes of a token show under the pointer.

    Raises:
        UserError: as `to_terminal`.
    """
    spans = []
    for id_, text, (color, _) in _tokens(tokenizer, ids, mask):
        title = html.escape(f"{id_} {tokenizer.decode_bytes([id_])!r}")
        spans.append(f'<span style="background:{color}" title="{title}">{html.escape(text)}</span>')
    return f'<pre style="{PRE_STYLE}">{"".join(spans)}</pre>\n'


def to_shaded_html(tokenizer: Tokenizer, ids: Sequence[int], values: Sequence[float], most: float) -> str:
    """One `<pre>` element whose tokens are the darker the greater their value; it shows under the pointer.

    Args:
        tokenizer: that gave the ids.
        ids: what to show.
        values: one of each token, such as its bits or its share of attention.
        most: the value of the darkest shade.

    Raises:
        UserError: an id outside the vocabulary, or another number of values.
    """
    if len(values) != len(ids):
        raise UserError(f"{len(values)} values for {len(ids)} tokens")
    tokens = [tokenizer.decode_bytes([id_]) for id_ in ids]
    return shaded_text(
        (_visible(token), value / most, f"{value:.2f} {token!r}")
        for token, value in zip(tokens, values, strict=True)
    )


def _tokens(
    tokenizer: Tokenizer, ids: Sequence[int], mask: Sequence[int] | None
) -> Iterator[tuple[int, str, tuple[str, int]]]:
    if mask is not None and len(mask) != len(ids):
        raise UserError(f"a mask of {len(mask)} for {len(ids)} tokens")
    for position, id_ in enumerate(ids):
        if id_ < NUM_SPECIAL:
            color = _SPECIAL
        elif mask is not None:
            color = _SUPERVISED if mask[position] else _UNSUPERVISED
        else:
            color = _COLORS[position % len(_COLORS)]
        yield id_, _visible(tokenizer.decode_bytes([id_])), color


def _visible(token: bytes) -> str:
    """The token as text that shows all of it and steers no terminal."""
    try:
        text = token.decode()
    except UnicodeDecodeError:  # part of a character
        return "".join(chr(byte) if 0x20 <= byte < 0x7F else f"<0x{byte:02X}>" for byte in token)
    parts = []
    for character in text:
        if character == "\n":
            parts.append("↵\n")
        elif character == "\t":
            parts.append("→\t")
        else:
            parts.append(character if character.isprintable() else f"<0x{ord(character):02X}>")
    return "".join(parts)
