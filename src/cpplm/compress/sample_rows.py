"""Rows of code for a model: the same for all that share its tokenizer and context."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from cpplm.evaluate.texts import read_texts
from cpplm.tokenizer.special_tokens import BOS
from cpplm.train.checkpoint.format import Checkpoint

_LEAST_TOKENS = 16  # of a row


def sample_rows(model: Checkpoint, location: str, num_tokens: int) -> Iterator[Tensor]:
    """Beginnings of held-out documents, in an order by chance, each cut to the model's context.

    Args:
        model: whose tokenizer and context count.
        location: as of `cpplm evaluate bpb`.
        num_tokens: of all rows together.

    Raises:
        UserError: there are no texts.
    """
    texts, tokenizer, context = read_texts(location), model.tokenizer(), model.config().max_seq_len
    order = random.Random(0).sample(range(len(texts)), len(texts))  # noqa: S311  (no secret)
    left = num_tokens
    for number in order:
        ids = [BOS, *tokenizer.encode(texts[number].text)][: min(context, left)]
        if left < _LEAST_TOKENS:
            return
        if len(ids) >= _LEAST_TOKENS:
            left -= len(ids)
            yield torch.tensor(ids)
