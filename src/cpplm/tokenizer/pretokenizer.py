r"""The pretokenizer: a regular expression that cuts C++ into pieces before byte-pair merging.

Only ASCII classes and their complements occur, so the expression means the same to Python's `re`, tiktoken's
engine and Oniguruma. Everything that is not ASCII is part of a word. Every character lies in exactly one
piece.

What C++ wants beyond a prose pattern: `std::vector` is one piece; operators stay whole, together with the
line break behind them; hexadecimal digits go in pairs and decimal digits in threes. There are two ways to cut
at a line break:

- `lines`: a line break ends its piece, and the next line's indentation is a piece of its own. Of all that
  were tried this gives the best models, by bits per byte at equal cost (LOG.md), and few prompts that end
  behind a line break end inside a token.
- `dense`: a line break, the indentation behind it and the opener of a comment or directive are one piece,
  for 9 % fewer tokens.

Two properties make both fast and safe. They look neither ahead nor behind, so an engine runs them as one
automaton. And every repetition is bounded, so no text, however long and monotonous, makes a long piece:
encoding takes time in proportion to the length.
"""

from __future__ import annotations

import re
from typing import Literal

WORD = r"[^\x00-@\[-\^`{-\x7f][^\x00-/:-@\[-\^`{-\x7f]{0,63}"
LEAD = r"(?:::|->|[\x00-\t\x0b\x0c\x0e-/:-@\[-\^`{-\x7f])"  # what may be glued before a word
PUNCTUATION = r"[\x00-\x08\x0e-\x1f!-/:-@\[-\^`{-\x7f]{1,64}"
LINE_ENDS = r"(?:[ \t]{0,96}\r?\n){1,16}"
NEWLINES = r"(?:[ \t]{0,96}\r?\n[ \t]{0,96}){1,16}"  # with the indentation behind them
OPENER = r"(?:(?://[/!]?|\*/?) ?|#[ \t]{0,8}[a-z]{1,16}(?: [<\x22])?)"  # of a comment or a directive


def _pattern(line_break: str) -> str:
    return "|".join(
        (
            rf"{LEAD}?{WORD}(?:::{WORD}){{0,16}}",
            r"0[xX][0-9a-fA-F]{1,2}",
            r"[0-9]{1,3}",
            rf" ?{PUNCTUATION}(?: {PUNCTUATION}){{0,16}}(?:{line_break}| )?",
            line_break,
            r"[ \t\r\n\f\v]{1,96}",
        )
    )


PretokenizerName = Literal["lines", "dense"]
PATTERNS: dict[PretokenizerName, str] = {
    "lines": _pattern(LINE_ENDS),
    "dense": _pattern(f"{NEWLINES}{OPENER}?"),
}
# So many pieces at the end of a text can change when the text goes on: `#`, two spaces and a word become one
# piece with the line break before them.
UNSTABLE_PIECES = 3


def split_bytes(pattern: str, data: bytes) -> list[bytes]:
    """Cut bytes into the pieces that the text engines give; a byte that is not UTF-8 is one character."""
    return [piece.encode("utf-8", "surrogateescape") for piece in split_text(pattern, data)]


def split_text(pattern: str, data: bytes) -> list[str]:
    """The pieces as strings, with bytes that are not UTF-8 as surrogates (PEP 383)."""
    return re.findall(pattern, data.decode("utf-8", "surrogateescape"))
