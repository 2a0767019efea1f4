"""The optimizer on one rank: against a plain float64 reference step by step, and its state."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

from cpplm.optim.buckets import ParamGroup
from cpplm.optim.muon import MuonAdamW
from cpplm.optim.update_rules import orthogonalize
from tests.optim.reference import (
    GROUPS,
    PLAIN,
    SHAPES,
    STEPS,
    Reference,
    Toy,
    gradient,
    make,
    train,
)


def test_orthogonalize_brings_singular_values_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in [(3, 40, 24), (24, 40), (32, 32)]:
        matrix = torch.randn(shape, generator=generator)
        values = torch.linalg.svdvals(orthogonalize(matrix))
        assert values.median() == pytest.approx(1.0, abs=0.1)
        assert values.max() < 1.25
        u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
        polar = u @ vt
        assert (orthogonalize(matrix) * polar).sum() / (polar * polar).sum() > 0.95


@pytest.mark.parametrize("matrices", [PLAIN, GROUPS[0]], ids=["plain", "normuon"])
def test_matches_the_reference(matrices: ParamGroup) -> None:
    groups = [matrices, *GROUPS[1:]]
    model, reference = Toy(), Reference(groups)
    optimizer = make(model, groups)
    for step in range(STEPS):
        norms = train(model, optimizer, range(step, step + 1))
        reference.train(range(step, step + 1))
        reference.assert_equal(dict(model.named_parameters()))
        whole = torch.cat([gradient(name, step).flatten() for name in SHAPES])
        assert norms == pytest.approx([float(whole.norm())], rel=1e-6)


def test_names_and_shapes_of_the_state() -> None:
    shapes = {key: tuple(value.shape) for key, value in make(Toy()).named_state().items()}
    assert {key: shape for key, shape in shapes.items() if key[0] in "adv"} == {
        "a/momentum": (12, 6),
        "a/second_moment": (12, 1),
        "d/momentum": (4, 9),
        "d/second_moment": (1, 9),
        "v/step": (),
        "v/first_moment": (5,),
        "v/second_moment": (5,),
    }


def test_plain_muon_and_normuon_load_each_other() -> None:
    plain_groups = [PLAIN, *GROUPS[1:]]
    plain, normuon = make(Toy(), plain_groups), make(Toy())
    train_model = Toy()
    trained = make(train_model)
    train(train_model, trained, range(2))
    state = trained.named_state()
    plain.load_named_state(state)
    assert torch.equal(plain.named_state()["a/momentum"], state["a/momentum"])
    assert "a/second_moment" not in plain.named_state()
    normuon.load_named_state(state)
    normuon.load_named_state(plain.named_state())
    assert not normuon.named_state()["a/second_moment"].any()
    assert torch.equal(normuon.named_state()["v/second_moment"], state["v/second_moment"])
    normuon.load_named_state({})
    assert not any(value.any() for value in normuon.named_state().values())


def without(state: dict[str, torch.Tensor], start: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in state.items() if not key.startswith(start)}


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: without(state, "a/"),
        lambda state: without(state, "v/second_moment"),
        lambda state: state | {"other/momentum": torch.zeros(1)},
        lambda state: state | {"t/first_moment": torch.zeros(4098, 16)},
    ],
)
def test_a_state_of_something_else_is_refused(damage: Callable[[dict], dict]) -> None:
    model = Toy()
    optimizer = make(model)
    train(model, optimizer, range(1))
    before = {key: value.clone() for key, value in optimizer.named_state().items()}
    with pytest.raises(ValueError, match="the optimizer state"):
        optimizer.load_named_state(damage({key: 2 * value for key, value in before.items()}))
    for key, value in optimizer.named_state().items():
        assert torch.equal(value, before[key])


def test_a_parameter_without_gradient_stays() -> None:
    model = Toy()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for name in ("a", "c", "w"):
        getattr(model, name).grad = gradient(name, 0)
    make(model).step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"a", "c", "w"}


def test_a_gradient_in_another_layout_is_read_in_order() -> None:
    model, other = Toy(), Toy()
    transposed = lambda name, step: gradient(name, step).T.contiguous().T  # noqa: E731
    train(model, make(model), range(2))
    train(other, make(other), range(2), lambda n, step: (transposed if n in "wt" else gradient)(n, step))
    assert torch.equal(model.w, other.w)
    assert torch.equal(model.t, other.t)


def table_steps(batches: list[list[int]], sparse: bool) -> tuple[nn.Embedding, MuonAdamW]:
    """Training of an embedding on batches of row numbers, each in two accumulated halves."""
    torch.manual_seed(0)
    table = nn.Embedding(10, 3, sparse=sparse)
    group = ParamGroup(("weight",), muon=False, learning_rate=0.1, beta1=0.8, beta2=0.95, weight_decay=0.5)
    optimizer = MuonAdamW(table, [group])
    for batch in batches:
        for half in (batch[::2], batch[1::2]):
            rows = torch.tensor(half)
            (table(rows) * torch.arange(1.0, 4.0) * (1 + rows[:, None])).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return table, optimizer


def test_sparse_rows_step_as_dense_ones_do() -> None:
    batches = [[1, 4, 4, 7], [7, 1, 4, 1], [4, 7, 7, 1]]  # the same rows each time, some twice
    (sparse, lazy), (dense, full) = table_steps(batches, True), table_steps(batches, False)
    touched = [1, 4, 7]
    torch.testing.assert_close(sparse.weight[touched], dense.weight[touched])
    assert lazy.gradient_norm == pytest.approx(float(full.gradient_norm))
    for key, value in full.named_state().items():
        torch.testing.assert_close(lazy.named_state()[key], value)  # other rows: 0 in both
    start, _ = table_steps([], True)
    others = [0, 2, 3, 5, 6, 8, 9]
    assert torch.equal(sparse.weight[others], start.weight[others])
    assert not torch.equal(sparse.weight[touched], start.weight[touched])


def test_untouched_rows_keep_their_moments() -> None:
    _, early = table_steps([[1, 4]], True)
    late_table, late = table_steps([[1, 4], [4, 5]], True)
    moment = late.named_state()["weight/first_moment"]
    assert torch.equal(moment[1], early.named_state()["weight/first_moment"][1])
    assert moment[1].any()
    # By hand: row 5 is new in step 2, whose bias correction is that of the whole table.
    start, _ = table_steps([], True)
    grad = 2 * start.weight[5] * (6 * torch.arange(1.0, 4.0)) ** 2
    first, second = 0.2 * grad / (1 - 0.8**2), 0.05 * grad**2 / (1 - 0.95**2)
    expected = start.weight[5] * (1 - 0.1 * 0.5) - 0.1 * first / second.sqrt()
    torch.testing.assert_close(late_table.weight[5], expected)


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c", "d", "e", "v", "v"), ("nothing",)])
def test_every_parameter_needs_one_group(names: tuple[str, ...]) -> None:
    others = ParamGroup(("t", "w"), muon=False, learning_rate=1, beta2=0.9)
    with pytest.raises(ValueError, match="each parameter once"):
        make(Toy(), [replace(PLAIN, names=names), others])


def test_what_a_rule_cannot_take_is_refused() -> None:
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = MuonAdamW(table, [ParamGroup(("weight",), muon=True, learning_rate=0.1)])
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="weight has a sparse gradient"):
        optimizer.step()
    with pytest.raises(ValueError, match="bias has the shape"):
        MuonAdamW(nn.LayerNorm(3), [ParamGroup(("bias", "weight"), muon=True, learning_rate=0.1)])
    with pytest.raises(ValueError, match="beta2"):
        ParamGroup(("v",), muon=False, learning_rate=0.1)
    with pytest.raises(ValueError, match="closures"):
        make(Toy()).step(lambda: 0.0)
