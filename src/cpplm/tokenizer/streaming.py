"""Text from tokens that arrive one by one."""

from __future__ import annotations

import codecs

from cpplm.tokenizer.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes token by token; gives out text as soon as it is whole: never half a UTF-8 character.

    The texts of all calls together are `tokenizer.decode` of all ids, without the first `skip` bytes.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip: int = 0) -> None:
        self._tokenizer, self._skip = tokenizer, skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, *ids: int) -> str:
        """The text that is whole now; "" while a character is not.

        Raises:
            UserError: an id outside the vocabulary.
        """
        data = self._tokenizer.decode_bytes(ids)
        visible, self._skip = data[self._skip :], max(0, self._skip - len(data))
        return self._decoder.decode(visible)

    def finish(self) -> str:
        """The rest of the text when no more tokens come: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)
