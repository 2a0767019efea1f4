"""From logits to the next token.

The order is: repetition, frequency and presence penalties, logit bias, temperature, top_k, top_p, min_p;
what may not come at all has the logit -inf before (`sequence.py`). A sample's random numbers come from its
seed and its number alone, one per token, so that its text does not depend on what is written beside it.
Logits do, a little: products of other shapes round otherwise, and where two tokens are nearly as likely,
that can decide.

Shapes: B rows, V vocabulary, K ranked tokens.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from cpplm.generate.settings import SamplingSettings

_RANKED = 512  # top_p first looks among so many likeliest tokens: sorting all of them takes longer


def random_stream(seed: int, sample: int) -> np.random.Generator:
    """The random numbers of one sample (Philox, Salmon et al. 2011: any pair is a stream of its own)."""
    return np.random.Generator(np.random.Philox(key=np.array([seed, sample], dtype=np.uint64)))


def apply_penalties(
    logits_V: Tensor, settings: SamplingSettings, prompt: Iterable[int], written: Sequence[int]
) -> Tensor:
    """Logits with the penalties and the bias that the settings ask for.

    Args:
        logits_V: float32; unchanged.
        settings: repetition_penalty, frequency_penalty, presence_penalty, logit_bias.
        prompt: ids that were read; only the repetition penalty looks at them.
        written: ids that were written behind the prompt.
    """
    if (penalty := settings.repetition_penalty) != 1:
        index = torch.tensor(sorted({*prompt, *written}), device=logits_V.device)
        seen = logits_V[index]
        logits_V = logits_V.index_copy(0, index, torch.where(seen > 0, seen / penalty, seen * penalty))
    added = defaultdict(float, settings.logit_bias)
    if settings.frequency_penalty or settings.presence_penalty:
        for token, count in Counter(written).items():
            added[token] -= settings.frequency_penalty * count + settings.presence_penalty
    if added:
        index = torch.tensor(list(added), device=logits_V.device)
        logits_V = logits_V.index_add(0, index, logits_V.new_tensor(list(added.values())))
    return logits_V


def sample(logits_BV: Tensor, settings: SamplingSettings, uniforms: Sequence[float]) -> list[int]:
    """The next token of each row.

    Args:
        logits_BV: float32, on any device; -inf for what must not come.
        settings: temperature, top_k, top_p, min_p.
        uniforms: one random number per row, from 0 to 1, 1 excluded; unused at temperature 0.
    """
    if settings.temperature == 0:
        return logits_BV.argmax(-1).tolist()
    if logits_BV.device.type == "mps":  # it has no float64
        logits_BV = logits_BV.cpu()
    logits_BV = logits_BV / settings.temperature
    kept_BV = logits_BV >= _logit_threshold(logits_BV, settings)
    cumulative_BV = logits_BV.masked_fill(~kept_BV, -math.inf).double().softmax(-1).cumsum(-1)
    # Divided by their own sum they end at 1 exactly: a number below 1 always hits a token that can come.
    cumulative_BV /= cumulative_BV[:, -1:].clone()
    uniform_B1 = torch.tensor(uniforms, dtype=torch.float64, device=logits_BV.device).unsqueeze(1)
    return torch.searchsorted(cumulative_BV, uniform_B1, right=True).squeeze(1).tolist()


def _logit_threshold(logits_BV: Tensor, settings: SamplingSettings) -> Tensor:
    """The lowest logit that may be chosen, shape B1; tokens that tie with it may be chosen too."""
    vocab_size = logits_BV.size(-1)
    count = min(settings.top_k or vocab_size, vocab_size)
    least_B1 = torch.full_like(logits_BV[:, :1], -math.inf)
    if settings.top_p < 1:
        least_B1 = _nucleus(logits_BV, count, settings.top_p)
    elif count < vocab_size:
        least_B1 = logits_BV.topk(count).values[:, -1:]
    if settings.min_p > 0:
        least_B1 = least_B1.maximum(logits_BV.amax(-1, keepdim=True) + math.log(settings.min_p))
    return least_B1


def _nucleus(logits_BV: Tensor, count: int, top_p: float) -> Tensor:
    """The lowest logit of the nucleus (Holtzman et al. 2020, arXiv 1904.09751) of the `count` likeliest."""
    vocab_size = logits_BV.size(-1)
    ranked_BK = logits_BV.topk(count if count < vocab_size else min(vocab_size, _RANKED)).values
    # What top_k leaves out has no share.
    total_B1 = (ranked_BK if count < vocab_size else logits_BV).logsumexp(-1, keepdim=True)
    if count > ranked_BK.size(-1) and bool(((ranked_BK - total_B1).exp().sum(-1) < top_p).any()):
        ranked_BK = logits_BV.topk(count).values
    share_BK = (ranked_BK - total_B1).exp()
    before_BK = share_BK.cumsum(-1) - share_BK
    last_B1 = (before_BK < top_p).sum(-1, keepdim=True) - 1
    return ranked_BK.gather(-1, last_B1.clamp(min=0))
