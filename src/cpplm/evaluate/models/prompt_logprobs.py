"""Log-probabilities of a prompt, as servers give them, laid onto the bytes of its text.

A server that is asked to echo a prompt with log-probabilities lists its tokens as strings. What it lists
differs: a start token may come first, a token that holds part of a character comes as U+FFFD (vLLM) or as
`bytes:\\xe2\\x80` (OpenAI), and offsets are counted in ways that then disagree. So only the strings are
used, and they must spell the text.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from cpplm.evaluate.models.code_model import TokenBits

_REPLACEMENT = "\ufffd"
_NAMED_BYTES = re.compile(r"bytes:(?:\\x[0-9a-fA-F]{2})+")
# Start tokens that a server may put before a prompt.
_MOST_STARTS = 2
# What the first token costs where a server gives it no probability: as if its bytes were written plainly.
_PLAIN_BITS_PER_BYTE = 8.0


def parse_prompt_logprobs(text: str, answer: Any) -> TokenBits:
    """Read the likelihood of each token of a prompt from a server's answer.

    Where no token stands before the first one, servers give that one no probability; it counts as 8 bits a
    byte.

    Args:
        text: the prompt.
        answer: of the completions endpoint, parsed.

    Raises:
        ValueError: the answer has no such list, or its tokens do not spell the text; says which.
    """
    try:
        listed = answer["choices"][0]["logprobs"]
        tokens, logprobs = list(listed["tokens"]), list(listed["token_logprobs"])
        count = (answer.get("usage") or {}).get("prompt_tokens")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError("it gives no log-probabilities") from error
    if len(tokens) != len(logprobs) or not all(isinstance(token, str) for token in tokens):
        raise ValueError("its list of tokens is malformed")
    # Behind the prompt there may be one written token.
    for end in dict.fromkeys((count, len(tokens), len(tokens) - 1)):
        for start in range(_MOST_STARTS + 1 if isinstance(end, int) else 0):
            edges = align_tokens(text, tokens[start:end])
            if edges is not None:
                return _token_bits(edges, logprobs[start:end], start)
    raise ValueError("the tokens that it lists do not spell the prompt")


def _token_bits(edges: list[int], logprobs: list[Any], start: int) -> TokenBits:
    ends = np.array(edges, dtype=np.int64)
    values = list(logprobs)
    if values and values[0] is None and start == 0:
        values[0] = -_PLAIN_BITS_PER_BYTE * float(ends[0]) * math.log(2)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
        raise ValueError("it leaves out the log-probability of a token")
    bits = -np.array(values, dtype=np.float64) / math.log(2)
    return TokenBits(ends, bits, np.arange(start, start + len(values), dtype=np.int64))


def align_tokens(text: str, tokens: Sequence[str]) -> list[int] | None:
    """The end of each token, in bytes of the text; None where the tokens are not those of the text.

    Tokens that hold parts of characters and do not name their bytes together make up what stands between
    their clear neighbours; each but the last of them ends where they begin.
    """
    parts = [_bytes_of(token) for token in tokens]
    if b"".join(part or b"" for part in parts) == text.encode() and None not in parts:
        return list(itertools.accumulate(len(part or b"") for part in parts))
    places = _places(text, tokens)
    if places is None:
        return None
    edges = list(itertools.accumulate((len(character.encode()) for character in text), initial=0))
    return [edges[place] for place in places]


def _bytes_of(token: str) -> bytes | None:
    """The bytes of a token; None where its name does not tell."""
    if _REPLACEMENT in token:
        return None
    if _NAMED_BYTES.fullmatch(token):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode()


def _places(text: str, tokens: Sequence[str]) -> list[int] | None:
    """The end of each token in characters, or None, like `align_tokens`."""
    ends: list[int] = []
    place = 0
    runs = [(clear, list(run)) for clear, run in itertools.groupby(tokens, _is_clear)]
    for (clear, run), (_, following) in itertools.zip_longest(runs, runs[1:], fillvalue=(True, [])):
        if clear:
            if not text.startswith("".join(run), place):
                return None
            ends += itertools.accumulate(map(len, run[1:]), initial=place + len(run[0]))
        else:
            after = _end_of_parts(text, place, "".join(following))
            if after is None:
                return None
            ends += [place] * (len(run) - 1) + [after]
        place = ends[-1]
    return ends if place == len(text) else None


def _is_clear(token: str) -> bool:
    return token != "" and _REPLACEMENT not in token and not _NAMED_BYTES.fullmatch(token)


def _end_of_parts(text: str, place: int, following: str) -> int | None:
    """The first place behind a character beyond ASCII at which the clear text that follows begins."""
    if not following:
        return len(text)
    after = text.find(following, place)
    while after != -1 and text[place:after].isascii():
        after = text.find(following, after + 1)
    return None if after == -1 else after
