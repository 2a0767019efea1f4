"""Rows of held-out code for a model: the same for all that share its tokenizer and context."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from cpplm.evaluate.texts import read_texts
from cpplm.tokenizer.special_tokens import BOS
from cpplm.train.checkpoint.format import Checkpoint

_LEAST_TOKENS = 16  # of a row


def held_out_rows(model: Checkpoint, location: str, num_tokens: int) -> Iterator[Tensor]:
    """Beginnings of held-out documents, in an order by chance, each cut to the model's context.

    Args:
        model: whose tokenizer and context count.
        location: as of `cpplm evaluate bpb`.
        num_tokens: of all rows together.

    Raises:
        UserError: there are no texts.
    """
    encode, texts = partial(model.tokenizer().encode_batch, prepend=BOS, threads=1), read_texts(location)
    return text_rows(encode, model.config().max_seq_len, [text.text for text in texts], num_tokens)


def text_rows(
    encode: Callable[[list[str]], list[list[int]]], context: int, texts: Sequence[str], num_tokens: int
) -> Iterator[Tensor]:
    """Rows of texts, see `held_out_rows`; `encode` gives the ids of documents."""
    order = random.Random(0).sample(range(len(texts)), len(texts))  # noqa: S311  (no secret)
    left = num_tokens
    for number in order:
        ids = encode([texts[number]])[0][: min(context, left)]
        if left < _LEAST_TOKENS:
            return
        if len(ids) >= _LEAST_TOKENS:
            left -= len(ids)
            yield torch.tensor(ids)
