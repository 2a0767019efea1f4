"""C and C++ as coloured HTML, for pages: one regular expression, linear in the text.

Not Pygments: its C++ lexer takes 38 seconds for 16 KB of hostile text (version 2.21, "a " and 16,000
newlines), and documents come from anywhere. Raw strings are coloured as plain ones, which a page can bear.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

from cpplm.cpp.keywords import KEYWORDS

_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<string>\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?)"
    r"|(?P<directive>^[ \t]*\#[ \t]*\w*)"
    r"|(?P<number>\b\d(?:[\w.]|'(?=\w))*)"
    rf"|(?P<keyword>\b(?:{'|'.join(sorted(KEYWORDS))})\b)",
    re.DOTALL | re.MULTILINE,
)


def highlight(text: str) -> Markup:
    """The text, escaped, with `<span class="comment">` and so on around what has a colour."""
    pieces: list[Markup] = []
    end = 0
    for match in _TOKENS.finditer(text):
        pieces.append(escape(text[end : match.start()]))
        pieces.append(Markup('<span class="{}">{}</span>').format(match.lastgroup, match[0]))
        end = match.end()
    pieces.append(escape(text[end:]))
    return Markup("").join(pieces)
