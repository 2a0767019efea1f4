"""What followed the last time: by definition, by sorting, by comparing, and in the model."""

import pytest
import torch
from torch import Tensor

from cpplm.model.config import INDUCTION_LENGTHS
from cpplm.model.induction import Induction, match_next_token, match_next_token_incremental, match_places
from cpplm.model.transformer import Transformer
from tests.model.features import CONFIGS, random_ids, random_model

SIZES = [(3, 40), (20, 100), (2, 17), (5, 1), (1, 9)]


def by_definition(ids: list[int], documents: list[int]) -> list[tuple[int, int]]:
    """For each token the one that followed, and which length matched; (0, 0) for none."""
    tokens = list(zip(ids, documents, strict=True))
    found = []
    for at in range(len(ids)):
        best = (0, 0)
        for number, run in enumerate(INDUCTION_LENGTHS, 1):
            for earlier in range(run - 1, at):
                if tokens[earlier - run + 1 : earlier + 1] == tokens[at - run + 1 : at + 1]:
                    best = (ids[earlier + 1], number)
        found.append(best)
    return found


def pairs(found: tuple[Tensor, Tensor]) -> list[list[tuple[int, int]]]:
    followed, lengths = found
    rows = zip((followed * (lengths > 0)).tolist(), lengths.tolist(), strict=True)
    return [list(zip(*row, strict=True)) for row in rows]


def some_ids(kinds: int, length: int) -> Tensor:
    return torch.randint(1, kinds + 1, (4, length), generator=torch.Generator().manual_seed(kinds))


@pytest.mark.parametrize(("kinds", "length"), SIZES)
def test_matches_by_sorting_stay_in_their_document(kinds: int, length: int) -> None:
    ids = some_ids(kinds, length)
    assert pairs(match_next_token(ids)) == [by_definition(row, [0] * length) for row in ids.tolist()]
    documents = torch.arange(length).div(7, rounding_mode="floor").expand_as(ids)
    expected = [by_definition(row, documents[0].tolist()) for row in ids.tolist()]
    assert pairs(match_next_token(ids, documents)) == expected
    # The place is behind a run of at least that length, which ends before the token.
    places, lengths = match_places(ids)
    for row, at in zip(*(lengths > 0).nonzero(as_tuple=True), strict=True):
        place, run = int(places[row, at]), INDUCTION_LENGTHS[lengths[row, at] - 1]
        assert place <= at
        assert ids[row, place - run : place].tolist() == ids[row, at + 1 - run : at + 1].tolist()


@pytest.mark.parametrize(("kinds", "length"), SIZES)
def test_matches_by_comparing(kinds: int, length: int) -> None:
    ids = some_ids(kinds, length)
    expected = pairs(match_next_token(ids))
    for padded in (ids, torch.nn.functional.pad(ids, (11, 0))):
        for count in {1, min(3, length), length}:
            assert pairs(match_next_token_incremental(padded, count)) == [row[-count:] for row in expected]


def test_the_model_uses_what_followed_and_never_looks_ahead() -> None:
    """With a matrix of zeros, as at the start, the model is the plain one."""
    model = random_model(CONFIGS["induction"])
    ids = random_ids(2, 16) % 5
    with torch.no_grad():
        told = model(ids)
        changed = ids.clone()
        changed[:, 10:] = 7
        torch.testing.assert_close(model(changed)[:, :10], told[:, :10], rtol=0, atol=0)
        assert model.induction is not None
        model.induction.mix.weight.zero_()
        plain = Transformer(CONFIGS["plain"])
        plain.load_state_dict({k: v for k, v in model.state_dict().items() if "induction" not in k})
        torch.testing.assert_close(model(ids), plain(ids))
        assert (model(ids) - told).abs().max() > 0.01


def test_the_scales_gradient_of_many_tokens_is_exact_in_bfloat16() -> None:
    """Added up one by one, 1 to 256 would stay 256."""
    induction = Induction(CONFIGS["plain"])
    induction.init_constants()
    width = induction.mix.in_features
    torch.nn.init.eye_(induction.mix.weight)
    embedded_BTC = torch.full((1, 4096, width), 1 / width, dtype=torch.bfloat16)
    lengths_BT = torch.arange(4096).unsqueeze(0) % (len(INDUCTION_LENGTHS) + 1)
    induction(embedded_BTC, lengths_BT).sum().backward()
    counted = [(lengths_BT == number).sum().item() for number in range(1, len(INDUCTION_LENGTHS) + 1)]
    assert induction.scales.grad.tolist() == pytest.approx(counted, rel=0.01)
