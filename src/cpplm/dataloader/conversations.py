"""Conversations to token ids of which only what the assistant writes is learned.

A token that is not to be learned is its id's complement, `~id`, which is negative: ids and mask go through
packing as one array, and cannot get out of step.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from cpplm.dataloader.encoding import RawDocument, TokenIds, load_tokenizer
from cpplm.tokenizer.conversations import render_conversation


@dataclass(frozen=True)
class ConversationEncoder:
    """Documents that are conversations in JSON, as `cpplm.tokenizer.conversations` reads them.

    One that a tokenizer of another library has encoded already is {"ids": [...]}, with complements.

    Attributes:
        tokenizer: path of the file, or the name of a published tokenizer.
        tokenizer_hash: `Tokenizer.hash` of it.
        max_tokens: of a conversation; what is behind them is cut.
    """

    tokenizer: str
    tokenizer_hash: str
    max_tokens: int
    columns: ClassVar[tuple[str, ...]] = ()
    packs_whole: ClassVar[bool] = True

    def encode(self, documents: list[RawDocument]) -> list[list[TokenIds]]:
        """Per conversation its ids, in one piece; complements where the assistant does not write."""
        pieces: list[list[TokenIds]] = []
        for document in documents:
            conversation = json.loads(document.text)
            if "ids" in conversation:
                pieces.append([np.array(conversation["ids"], dtype=np.int32)])
                continue
            tokenizer = load_tokenizer(self.tokenizer, self.tokenizer_hash)
            rendered = render_conversation(tokenizer, conversation, self.max_tokens)
            ids, mask = np.array(rendered.ids, dtype=np.int32), np.array(rendered.mask, dtype=bool)
            pieces.append([np.where(mask, ids, ~ids)])
        return pieces
