r"""The pre-tokeniser: a regular expression that cuts C++ into pieces before byte-pair merging.

Only ASCII classes and their complements occur, so the expression means the same on `str` and on `bytes`
(every byte from 0x80 up is part of a word) and to Python's `re`, tiktoken's engine and Oniguruma alike.
Every character of the input lies in exactly one piece.

What C++ wants beyond a prose pattern: a line break with the next line's indentation is one piece, joined to
the punctuation before it; `std::vector` is one piece; operators stay whole; `//` after a line break and
`#include <` are openers; hexadecimal digits go in pairs and decimal digits in threes.
"""

from __future__ import annotations

import re

WORD = r"[^\x00-@\[-\^`{-\x7f][^\x00-/:-@\[-\^`{-\x7f]*"
WORD_CHARACTER = r"[^\x00-/:-@\[-\^`{-\x7f]"
LEAD = r"(?:::|->|[\x00-\t\x0b\x0c\x0e-/:-@\[-\^`{-\x7f])"  # what may be glued before a word
PUNCTUATION = r"[\x00-\x08\x0e-\x1f!-/:-@\[-\^`{-\x7f]+"
NEWLINES = r"(?:[ \t]*\r?\n[ \t]*)+"  # line breaks and the indentation after them
OPENER = r"(?:(?://[/!]?|\*(?!/)) ?|#[ \t]*[a-z]+(?: [<\x22])?)"  # of a comment or a directive
SPACE = r"[ \t\r\n\f\v]"

PATTERN = "|".join(
    (
        rf"{LEAD}?{WORD}(?:::{WORD})*",
        r"0[xX][0-9a-fA-F]{1,2}",
        r"[0-9]{1,3}",
        rf" ?{PUNCTUATION}(?: {PUNCTUATION})*(?:{NEWLINES}{OPENER}?| (?={WORD_CHARACTER}))?",
        rf"{NEWLINES}{OPENER}?",
        rf"{SPACE}+(?![^ \t\r\n\f\v])",
        rf"{SPACE}+",
    )
)


def split_bytes(pattern: str, data: bytes) -> list[bytes]:
    """Cut raw bytes, valid UTF-8 or not, into the same pieces that the text engines give."""
    return [match.group() for match in re.finditer(pattern.encode("ascii"), data)]
