"""Three ranks over gloo take the steps that one rank takes with the mean of their gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

from cpplm.optim.muon import MuonAdamW
from tests.optim.reference import (
    RANKS,
    SHAPES,
    STEPS,
    TABLES,
    Reference,
    Toy,
    make,
    mean_gradient,
    optimizer_of_table,
    rank_main,
    rows_of,
    table_loss,
    train,
)

pytestmark = pytest.mark.slow  # three processes that each import torch

HALF = STEPS // 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three processes ran, and began with what one rank saved."""
    folder = tmp_path_factory.mktemp("ranks")
    model, optimizer = one_rank(range(HALF))
    torch.save({"half": model.state_dict(), "state": optimizer.named_state()}, folder / "one_rank.pt")
    torch.multiprocessing.spawn(rank_main, (folder,), nprocs=RANKS)
    return folder


@pytest.fixture
def ranks(folder: Path) -> list[dict[str, Any]]:
    """What each rank found. Rows of the table are left over, and with fewer matrices of a shape than ranks
    some ranks have none."""
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(RANKS)]


@pytest.fixture(scope="module")
def trained() -> Reference:
    reference = Reference()
    reference.train(range(STEPS), mean_gradient)
    return reference


def one_rank(steps: range) -> tuple[Toy, MuonAdamW]:
    """Trained with the mean gradient."""
    model = Toy()
    optimizer = make(model)
    train(model, optimizer, steps, mean_gradient)
    return model, optimizer


def test_ranks_step_as_one_with_the_mean_gradient(ranks: list[dict[str, Any]], trained: Reference) -> None:
    trained.assert_equal(ranks[0]["weights"])


def test_all_ranks_have_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    for other in ranks[1:]:
        for kind in ("weights", "state", "continued"):
            assert ranks[0][kind].keys() == other[kind].keys()
            for name, value in ranks[0][kind].items():
                assert torch.equal(value, other[kind][name]), (kind, name)


def test_the_gradient_norm_is_that_of_the_mean(ranks: list[dict[str, Any]]) -> None:
    whole = [torch.cat([mean_gradient(name, step).flatten() for name in SHAPES]) for step in range(STEPS)]
    expected = [float(gradient.norm()) for gradient in whole]
    for found in ranks:
        assert found["norms"] == pytest.approx(expected, rel=1e-6)


def test_the_state_is_divided(ranks: list[dict[str, Any]]) -> None:
    whole = sum(value.numel() for value in ranks[0]["state"].values())
    small = 2 * (5 + 3 * 2) + 3  # both moments of v and w, and the steps, are everywhere
    assert sum(found["elements"] for found in ranks) == whole + (len(ranks) - 1) * small
    assert max(found["elements"] for found in ranks) < whole / len(ranks) * 1.01 + small


def test_one_rank_continues_what_several_saved(ranks: list[dict[str, Any]], trained: Reference) -> None:
    model = Toy()
    model.load_state_dict(ranks[0]["half"])
    optimizer = make(model)
    optimizer.load_named_state(ranks[0]["state"])
    for key, value in optimizer.named_state().items():
        assert torch.equal(value, ranks[0]["state"][key]), key
    train(model, optimizer, range(HALF, STEPS), mean_gradient)
    trained.assert_equal(dict(model.named_parameters()))


def test_several_ranks_continue_what_one_saved(ranks: list[dict[str, Any]], trained: Reference) -> None:
    _, optimizer = one_rank(range(HALF))
    for found in ranks:
        assert found["loaded"].keys() == optimizer.named_state().keys()
        for key, value in optimizer.named_state().items():
            assert torch.equal(value, found["loaded"][key]), key
        trained.assert_equal(found["continued"])


def test_a_missing_gradient_is_refused_at_once(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "t has no gradient" in found["refused"]


def test_sharded_parameters_step_as_whole_ones(ranks: list[dict[str, Any]], trained: Reference) -> None:
    for found in ranks:
        sharded = found["sharded"]
        trained.assert_equal(sharded["weights"])
        assert sharded["norms"] == pytest.approx(found["norms"][HALF:], rel=1e-6)


def test_the_state_of_shards_is_divided_and_whole_again(ranks: list[dict[str, Any]]) -> None:
    expected = one_rank(range(STEPS))[1].named_state()
    whole = sum(value.numel() for value in expected.values())
    for found in ranks:
        state = found["sharded"]["state"]
        assert state.keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(state[key], value, msg=key)
        assert found["sharded"]["elements"] < whole * 1.02
    shares = [name for found in ranks for name in found["sharded"]["own_share"]]
    assert sorted(shares) == sorted(expected)  # each tensor once
    assert all(found["sharded"]["own_share"] for found in ranks)


@pytest.mark.parametrize("name", TABLES)
def test_rows_of_several_ranks_step_as_those_of_one(name: str, ranks: list[dict[str, Any]]) -> None:
    table, optimizer = optimizer_of_table(name, None)
    norms = []
    for step in range(3):
        for rank in range(len(ranks)):
            (table_loss(table, rows_of(name, step, rank)) / len(ranks)).backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(float(optimizer.gradient_norm))
    expected = {"weight": table.weight.detach(), **optimizer.named_state()}
    for found in ranks:
        assert found["tables"][name].pop("norms") == pytest.approx(norms, rel=1e-6)
        assert found["tables"][name].keys() == expected.keys()
        for key, value in expected.items():
            torch.testing.assert_close(found["tables"][name][key], value, msg=key)
            assert torch.equal(found["tables"][name][key], ranks[0]["tables"][name][key]), key
