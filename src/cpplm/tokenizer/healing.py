"""Token healing: prompts that end in the middle of a token.

Many places where an editor asks for a completion lie inside a token: in the middle of a name, behind `std::`.
In training a model never saw the next token begin there. So the last pieces of the prompt are taken back, and
the first tokens that are generated have to spell the bytes that were removed:

    healed = heal(tokenizer, prompt)
    ids, constraint = [BOS, *healed.ids], PrefixConstraint(tokenizer, healed.removed)
    while not constraint.done:
        token = choose among constraint.allowed()
        constraint.advance(token)
    text = prompt + decode(generated)[len(healed.removed):]

Fill-in-the-middle needs none: its parts are encoded alone in training (`dataloader.fim`). Idea: guidance,
"The art of prompt design: prompt boundaries and token healing" (Lundberg 2023).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cpplm.core.errors import UserError
from cpplm.tokenizer.pretokenizer import UNSTABLE_PIECES, split_bytes
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class HealedPrompt:
    """A prompt without its end.

    Attributes:
        ids: what any text that begins with the prompt begins with when it is encoded.
        removed: the bytes of the prompt behind them.
    """

    ids: list[int]
    removed: bytes


def heal(tokenizer: Tokenizer, prompt: str | bytes) -> HealedPrompt:
    """Take back the pieces of a prompt that a continuation could change."""
    data = prompt.encode() if isinstance(prompt, str) else prompt
    pieces = split_bytes(tokenizer.pattern, data)
    removed = b"".join(pieces[-UNSTABLE_PIECES:])
    return HealedPrompt(tokenizer.encode(data[: len(data) - len(removed)]), removed)


class PrefixConstraint:
    """Constraint on the next token while generated text has to begin with given bytes."""

    def __init__(self, tokenizer: Tokenizer, prefix: bytes) -> None:
        self._tokenizer = tokenizer
        self.rest = prefix
        """Bytes that are not spelt yet."""

    @property
    def done(self) -> bool:
        """True once the whole prefix is spelled, so that any token may come."""
        return not self.rest

    def allowed(self) -> npt.NDArray[np.int64]:
        """Ids of the tokens that begin the rest of the prefix or begin with it, sorted, shape (count,).

        Never empty before `done`: every single byte has a token.
        """
        ids, rest = self._tokenizer.ids, self.rest
        shorter = [ids[rest[:length]] for length in range(1, len(rest)) if rest[:length] in ids]
        by_bytes, order = self._tokenizer.sorted_tokens
        first = bisect_left(by_bytes, rest)
        end = first
        while end < len(by_bytes) and by_bytes[end].startswith(rest):
            end += 1
        return np.sort(np.concatenate([np.array(shorter, dtype=np.int64), order[first:end]]))

    def advance(self, token: int) -> None:
        """Take a token as generated.

        Raises:
            UserError: the prefix cannot go on with that token.
        """
        if self.done:
            return
        spelled = self._tokenizer.decode_bytes([token])
        if not (spelled.startswith(self.rest) or self.rest.startswith(spelled)):
            raise UserError(f"token {token} ({spelled!r}) does not go on with {self.rest!r}")
        self.rest = self.rest[len(spelled) :]
