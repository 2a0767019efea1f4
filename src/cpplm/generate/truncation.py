"""Prompts that are too long for the context, cut at their far ends.

A prefix loses its beginning and a suffix its end, so that what is nearest to the place to write is kept, and
room for writing is left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cpplm.tokenizer.tokenizer import Tokenizer

Prompt = TypeVar("Prompt")
TokenEnds = Callable[[str], npt.NDArray[np.int64]]
"""Maps a text to the end of each of its tokens, in bytes of its UTF-8, ascending."""

_SUFFIX_SHARE = 4  # the suffix gets one part in so many where prefix and suffix are long, as in llama.cpp
_WRITING_SHARE = 4  # of the context, what is left for writing at most
_SPECIAL = 8  # tokens that are no text
_STEP = 8  # tokens by which a prompt that is too long after all is shortened once more


def fit_prompt(
    context: int, new_tokens: int, attempt: Callable[[int], tuple[Prompt, int]]
) -> tuple[Prompt, int]:
    """The longest prompt that leaves room for writing, and its tokens; too long only if nothing could be cut.

    Args:
        context: tokens that the model can have in view.
        new_tokens: tokens to write; a quarter of the context at most is left for them.
        attempt: makes a prompt of so many tokens of text, and counts all of its tokens. Cut texts may take
            more tokens than they had as parts of longer ones, so it is asked again with less.
    """
    room = context - min(new_tokens, context // _WRITING_SHARE) - _SPECIAL
    while True:
        prompt, tokens = attempt(room)
        if tokens < context or room <= 0:
            return prompt, tokens
        room -= _STEP


def truncate(prefix: str, suffix: str, room: int, ends: TokenEnds) -> tuple[bytes, bytes]:
    """The end of a prefix and the beginning of a suffix, in so many tokens together.

    A prefix that is cut begins with a line, unless that takes half of what is left of it.
    """
    before, behind, data = ends(prefix), ends(suffix), prefix.encode()
    behind_count = max(0, min(len(behind), max(room // _SUFFIX_SHARE, room - len(before))))
    left_out = len(before) - max(0, min(len(before), room - behind_count))
    if left_out:
        data = data[before[left_out - 1] :]
        line = data.find(b"\n")
        data = data[line + 1 :] if 0 <= line < len(data) // 2 else data
    return data, suffix.encode()[: behind[behind_count - 1] if behind_count else 0]


def token_ends(tokenizer: Tokenizer) -> TokenEnds:
    """Build `TokenEnds` for one of our tokenizers."""
    return lambda text: np.cumsum(tokenizer.token_bytes[tokenizer.encode(text)], dtype=np.int64)
