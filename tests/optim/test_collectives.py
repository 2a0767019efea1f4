"""Two and three ranks over gloo take the steps that one rank takes with the mean of their gradients."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

from tests.optim.reference import (
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
    """Three processes ran: two of them as a group, then all three. They began with what one rank saved."""
    folder = tmp_path_factory.mktemp("ranks")
    for count in (2, 3):
        model = Toy()
        optimizer = make(model)
        train(model, optimizer, range(HALF), mean_gradient(count))
        saved = {"half": model.state_dict(), "state": optimizer.named_state()}
        torch.save(saved, folder / f"one_rank_of_{count}.pt")
    torch.multiprocessing.spawn(rank_main, (folder,), nprocs=3)
    return folder


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest, folder: Path) -> list[dict[str, Any]]:
    """What each rank found. Rows of the table are left over, and with fewer matrices of a shape than ranks
    some ranks have none."""
    files = [folder / f"rank{rank}_of_{request.param}.pt" for rank in range(request.param)]
    return [torch.load(file, weights_only=True) for file in files]


def trained(ranks: list[dict[str, Any]]) -> Reference:
    reference = Reference()
    reference.train(range(STEPS), mean_gradient(len(ranks)))
    return reference


def test_ranks_step_as_one_with_the_mean_gradient(ranks: list[dict[str, Any]]) -> None:
    trained(ranks).assert_equal(ranks[0]["weights"])


def test_all_ranks_have_the_same_bits(ranks: list[dict[str, Any]]) -> None:
    for other in ranks[1:]:
        for kind in ("weights", "state", "continued"):
            assert ranks[0][kind].keys() == other[kind].keys()
            for name, value in ranks[0][kind].items():
                assert torch.equal(value, other[kind][name]), (kind, name)


def test_the_gradient_norm_is_that_of_the_mean(ranks: list[dict[str, Any]]) -> None:
    mean = mean_gradient(len(ranks))
    expected = [float(torch.cat([mean(n, step).flatten() for n in SHAPES]).norm()) for step in range(STEPS)]
    for found in ranks:
        assert found["norms"] == pytest.approx(expected, rel=1e-6)


def test_the_state_is_divided(ranks: list[dict[str, Any]]) -> None:
    whole = sum(value.numel() for value in ranks[0]["state"].values())
    small = 2 * (5 + 3 * 2) + 3  # both moments of v and w, and the steps, are everywhere
    assert sum(found["elements"] for found in ranks) == whole + (len(ranks) - 1) * small
    assert max(found["elements"] for found in ranks) < whole / len(ranks) * 1.01 + small


def test_one_rank_continues_what_several_saved(ranks: list[dict[str, Any]]) -> None:
    model = Toy()
    model.load_state_dict(ranks[0]["half"])
    optimizer = make(model)
    optimizer.load_named_state(ranks[0]["state"])
    for key, value in optimizer.named_state().items():
        assert torch.equal(value, ranks[0]["state"][key]), key
    train(model, optimizer, range(HALF, STEPS), mean_gradient(len(ranks)))
    trained(ranks).assert_equal(dict(model.named_parameters()))


def test_several_ranks_continue_what_one_saved(ranks: list[dict[str, Any]]) -> None:
    model = Toy()
    optimizer = make(model)
    train(model, optimizer, range(HALF), mean_gradient(len(ranks)))
    for found in ranks:
        assert found["loaded"].keys() == optimizer.named_state().keys()
        for key, value in optimizer.named_state().items():
            assert torch.equal(value, found["loaded"][key]), key
        trained(ranks).assert_equal(found["continued"])


def test_a_missing_gradient_is_refused_at_once(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "t has no gradient" in found["refused"]


def test_sharded_parameters_step_as_whole_ones(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        sharded = found["sharded"]
        trained(ranks).assert_equal(sharded["weights"])
        assert sharded["norms"] == pytest.approx(found["norms"][HALF:], rel=1e-6)


def test_the_state_of_shards_is_divided_and_whole_again(ranks: list[dict[str, Any]]) -> None:
    model = Toy()
    optimizer = make(model)
    train(model, optimizer, range(STEPS), mean_gradient(len(ranks)))
    expected = optimizer.named_state()
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
