"""C and C++ as coloured HTML, for pages: one regular expression, linear in the text.

Not Pygments: its C++ lexer takes 38 seconds for 16 KB of hostile text (version 2.21, "a " and 16,000
newlines), and documents come from anywhere. Raw strings are coloured as plain ones, which a page can bear.
"""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_KEYWORDS = (
    "alignas alignof asm auto bool break case catch char char8_t char16_t char32_t class concept const "
    "consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default "
    "delete do double dynamic_cast else enum explicit export extern false final float for friend goto "
    "if inline int long mutable namespace new noexcept nullptr operator override private protected "
    "public register reinterpret_cast requires restrict return short signed sizeof static static_assert "
    "static_cast struct switch template this thread_local throw true try typedef typeid typename union "
    "unsigned using virtual void volatile wchar_t while"
)
_TOKENS = re.compile(
    r"(?P<comment>//[^\n]*|/\*.*?(?:\*/|\Z))"
    r"|(?P<string>\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?)"
    r"|(?P<directive>^[ \t]*\#[ \t]*\w*)"
    r"|(?P<number>\b\d(?:[\w.]|'(?=\w))*)"
    rf"|(?P<keyword>\b(?:{'|'.join(_KEYWORDS.split())})\b)",
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
