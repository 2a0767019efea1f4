"""Bits per byte against the definition."""

import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from cpplm.core.shards import ShardReader
from cpplm.dataloader.loader import validation_batches
from cpplm.model.config import ModelConfig
from cpplm.tokenizer.special_tokens import BOS
from cpplm.train.validation import validate
from tests.model.test_transformer import random_model


def test_equals_the_definition(corpus, tokenizer) -> None:
    config = ModelConfig(tokenizer.vocab_size, 2, 32, 4, 4, 8, max_seq_len=32)
    model, reader = random_model(config), ShardReader(corpus)
    batches = list(validation_batches(reader, tokenizer, batch_size=2, seq_len=32))
    measured = SimpleNamespace(device=model.device, loss=partial(model.loss, reduction="none"))
    found = validate(measured, batches, torch.from_numpy(tokenizer.token_bytes))

    stream = [id_ for _, text in reader.texts("val") for id_ in tokenizer.encode(text, prepend=BOS)]
    nats, num_bytes = 0.0, 0
    for begin in range(0, len(stream) - 1, 32):
        inputs = torch.tensor([stream[begin : begin + 32]])
        log_probabilities = model(inputs).log_softmax(-1)[0]
        for position, target in enumerate(stream[begin + 1 : begin + 33]):
            if target != BOS:
                nats -= log_probabilities[position, target].item()
                num_bytes += len(tokenizer.decode_bytes([target]))
    text_bytes = sum(len(text.encode()) for _, text in reader.texts("val"))
    assert found.bytes == num_bytes == text_bytes
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-5)
    assert found.tokens == len(stream) - 1
