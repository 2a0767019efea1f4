"""Heads that predict further tokens: which targets they have, at every length; drafting with a cache."""

import pytest
import torch

from cpplm.model.kv_cache.cache import KVCache
from cpplm.model.multi_token import mtp_targets
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from tests.model.features import CONFIGS, PLAIN, random_ids, random_model

CONFIG = CONFIGS["further"]
X = IGNORE_INDEX


def test_ignored_targets_stay_ignored() -> None:
    targets = torch.tensor([[5, X, 7, 8, 9, X]])
    (inputs, first), (_, second) = mtp_targets(targets, 2)
    assert first.tolist() == [[X, X, 8, 9, X, X]]  # the second is unknown: nothing is known from it on
    assert second.tolist() == [[X, X, 9, X, X, X]]
    assert inputs.min() >= 0  # nothing ignored is looked up


@pytest.mark.parametrize("length", [1, 2])
def test_short_rows(length: int) -> None:
    """Nothing to predict for some of the heads is a loss of 0."""
    model, ids = random_model(CONFIG), random_ids(1, length + 1)
    losses = model.training_losses(ids[:, :-1], ids[:, 1:], 0.3)
    losses.total.backward()
    assert torch.isfinite(losses.total)
    assert (losses.multi_token > 0) == (length > 1)


def test_the_loss_is_that_of_the_definition() -> None:
    """Mean over heads of the mean cross-entropy of token i+k+1 given tokens up to i+k."""
    model = random_model(CONFIG)
    ids = torch.randint(100, (2, 13), generator=torch.Generator().manual_seed(0))
    losses = model.training_losses(ids[:, :-1], ids[:, 1:], 0.5)
    hidden, total = model.hidden_states(ids[:, :-1]), torch.zeros(())
    for k in (1, 2):
        usable = 12 - k  # positions whose token i+k+1 is in the row
        hidden = model.draft_states(k - 1, hidden[:, :usable], ids[:, k : k + usable])
        logits = model.logits(hidden)
        total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, k + 1 :].flatten()) / 2
    torch.testing.assert_close(losses.multi_token, total.detach())
    torch.testing.assert_close(losses.total, losses.next_token + 0.5 * losses.multi_token)


@torch.no_grad()
def test_heads_are_causal_and_draft_with_a_cache() -> None:
    model, ids = random_model(CONFIG), random_ids(2, 14)
    hidden = model.hidden_states(ids[:, :-1])
    whole = model.draft_states(0, hidden, ids[:, 1:])
    changed = ids.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 100
    other = model.draft_states(0, model.hidden_states(changed[:, :-1]), changed[:, 1:])
    assert torch.equal(whole[:, :8], other[:, :8])  # position 8 is told token 9
    assert not torch.allclose(whole[:, 8], other[:, 8])
    cache = KVCache(model.multi_token[0].cache_specs(), device=model.device, dtype=torch.float32)
    sequences, pieces = [cache.begin(), cache.begin()], []
    for states, told in zip(hidden.split([6, 1, 6], 1), ids[:, 1:].split([6, 1, 6], 1), strict=True):
        view = cache.view(sequences, told.size(1))
        pieces.append(model.draft_states(0, states, told, view))
        for sequence, row in zip(sequences, told.tolist(), strict=True):
            cache.advance(sequence, row)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-4, rtol=1e-4)


def test_the_next_token_does_not_depend_on_the_heads() -> None:
    model, ids = random_model(CONFIG), random_ids(2, 16)
    plain = random_model(PLAIN)
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if not k.startswith("multi_token")})
    assert torch.equal(plain(ids), model(ids))
