"""The reference that the engine is held to: one row, no cache, everything read anew for each token."""

import torch

from cpplm.generate.sequence import CompletionOutput, GenerationRequest, SequenceState, sample_next
from cpplm.generate.settings import SamplingSettings
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.tokenizer import Tokenizer


@torch.no_grad()
def naive_sample(
    model: Transformer, tokenizer: Tokenizer, request: GenerationRequest, number: int
) -> CompletionOutput:
    """One sample of any request."""
    sample = SequenceState(tokenizer, request, number, model.config.max_seq_len - len(request.ids) + 1)
    while sample.finish_reason is None:
        logits = model(torch.tensor([[*request.ids, *sample.ids]]))[:, -1]
        sample.append(sample_next(logits, [sample])[0])
    return sample.completion()


def greedy(count: int) -> SamplingSettings:
    return SamplingSettings(max_new_tokens=count, temperature=0)
