"""Log-probabilities of a prompt's tokens, read chunk by chunk between the steps of a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cpplm.generate.sequence import TokenLogprob
from cpplm.model.kv_cache.cache import KVCache
from cpplm.model.transformer import Transformer


class PromptScorer:
    """Scores one prompt. It has a cache of its own, which goes with it."""

    def __init__(self, model: Transformer, ids: Sequence[int], count: int) -> None:
        """Prepare; nothing is read yet.

        Args:
            model: whose probabilities.
            ids: the prompt, <BOS> first; at most as long as the context.
            count: likeliest tokens named beside each.
        """
        self.result: list[TokenLogprob] = []
        """All tokens but the first; logarithms are natural."""
        self._model, self._ids, self._count = model, list(ids), count
        self._cache = KVCache(model.cache_specs(), device=model.device, dtype=model.compute_dtype)
        self._sequence = self._cache.begin()

    @torch.inference_mode()
    def advance(self, num_tokens: int) -> bool:
        """Read the next tokens, at most so many; returns whether that was all of them."""
        start = self._sequence.length
        read = self._ids[:-1][start : start + num_tokens]
        if read:
            view = self._cache.view([self._sequence], [len(read)])
            hidden_1TC = self._model.hidden_states(torch.tensor([read], device=self._model.device), view)
            self._cache.advance(self._sequence, read)
            logprobs_TV = self._model.logits(hidden_1TC)[0].log_softmax(-1)
            targets = self._ids[start + 1 : start + 1 + len(read)]
            index_T1 = torch.tensor(targets, device=logprobs_TV.device).unsqueeze(1)
            own = logprobs_TV.gather(1, index_T1).squeeze(1).tolist()
            values_TK, ids_TK = logprobs_TV.topk(self._count)
            for token, logprob, values, likeliest in zip(
                targets, own, values_TK.tolist(), ids_TK.tolist(), strict=True
            ):
                pairs = tuple(zip(likeliest, values, strict=True))
                self.result.append(TokenLogprob(token, logprob, pairs))
        return self._sequence.length >= len(self._ids) - 1
