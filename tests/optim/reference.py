"""The optimizer written down most literally, in float64 with NumPy; a toy model; what ranks do in tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from cpplm.optim.buckets import ParamGroup, StepRates
from cpplm.optim.muon import MuonAdamW
from cpplm.optim.update_rules import POLAR_EXPRESS

STEPS, RANKS = 12, 3
TABLE = (4099, 16)  # large enough to be dealt to the ranks, and a prime number of rows
TABLES = {"large": TABLE, "small": (50, 3)}  # the small one is stepped everywhere
SHAPES = {
    "a": (12, 6),
    "b": (12, 6),
    "c": (12, 6),
    "d": (4, 9),
    "e": (7, 7),
    "v": (5,),
    "w": (3, 2),
    "t": TABLE,
}
PLAIN = ParamGroup(("a", "b", "c", "d", "e"), muon=True, learning_rate=0.02, beta1=0.9, weight_decay=0.3)
GROUPS = [
    replace(PLAIN, beta2=0.9),
    ParamGroup(("v", "t"), muon=False, learning_rate=0.1, beta1=0.8, beta2=0.95),
    ParamGroup(("w",), muon=False, learning_rate=0.05, beta1=0.7, beta2=0.99, weight_decay=0.4),
]


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for index, (name, shape) in enumerate(SHAPES.items()):
            generator = torch.Generator().manual_seed(index)
            value = torch.randn(shape, generator=generator, dtype=torch.float64)
            self.register_parameter(name, nn.Parameter(value))


def make(model: nn.Module, groups: Iterable[ParamGroup] = GROUPS, **options: Any) -> MuonAdamW:
    return MuonAdamW(model, groups, product_dtype=torch.float64, **options)


def gradient(name: str, step: int, rank: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(ord(name) * 10_000 + step * 100 + rank)
    return torch.randn(SHAPES[name], generator=generator, dtype=torch.float64)


def mean_gradient(name: str, step: int) -> torch.Tensor:
    return sum(gradient(name, step, rank) for rank in range(RANKS)) / RANKS


def multipliers(step: int) -> tuple[float, float, float]:
    """Of learning rate and weight decay, and the momentum: all change."""
    return 1.0 - 0.05 * step, 1.0 - 0.08 * step, 0.85 + 0.01 * step


def train(
    model: nn.Module,
    optimizer: MuonAdamW,
    steps: range,
    gradient_of: Callable[[str, int], torch.Tensor] = gradient,
) -> list[float]:
    """Steps with the given gradients; returns the gradient norms that the optimizer saw."""
    norms = []
    for step in steps:
        for name, parameter in model.named_parameters():
            parameter.grad = gradient_of(name, step)
        rate, decay, momentum = multipliers(step)
        optimizer.rates = StepRates(rate, decay, momentum)
        optimizer.step()
        norms.append(float(optimizer.gradient_norm))
    return norms


class Reference:
    """Weights and state by name; nothing here comes from the optimizer but the table of coefficients."""

    def __init__(self, groups: Iterable[ParamGroup] = GROUPS) -> None:
        self.groups = {name: group for group in groups for name in group.names}
        self.weights = {name: p.detach().numpy().copy() for name, p in Toy().named_parameters()}
        self.first = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self.second = {name: np.zeros_like(weight) for name, weight in self.weights.items()}
        self.variance = {name: np.zeros(max(weight.shape)) for name, weight in self.weights.items()}

    def train(self, steps: range, gradient_of: Callable[[str, int], torch.Tensor] = gradient) -> None:
        for step in steps:
            for name, group in self.groups.items():
                update = self.muon if group.muon else self.adamw
                update(name, group, gradient_of(name, step).numpy(), step)

    def muon(self, name: str, group: ParamGroup, grad: np.ndarray, step: int) -> None:
        rate, decay, momentum = multipliers(step)
        self.first[name] = momentum * self.first[name] + (1 - momentum) * grad
        update = momentum * self.first[name] + (1 - momentum) * grad
        rows, columns = grad.shape
        update = reference_polar(update)
        if group.beta2 is not None:
            update = self.normuon(name, update, group.beta2)
        rate = group.learning_rate * rate * math.sqrt(max(1, rows / columns))
        weight = self.weights[name]
        shrink = group.weight_decay * decay * rate * (weight * update > 0)
        self.weights[name] = weight - shrink * weight - rate * update

    def normuon(self, name: str, update: np.ndarray, beta2: float) -> np.ndarray:
        lines = update if update.shape[0] >= update.shape[1] else update.T
        self.variance[name] = beta2 * self.variance[name] + (1 - beta2) * (lines**2).mean(axis=1)
        scaled = lines / np.sqrt(self.variance[name])[:, None]
        scaled = scaled * frobenius(update) / frobenius(scaled)
        return scaled if update.shape[0] >= update.shape[1] else scaled.T

    def adamw(self, name: str, group: ParamGroup, grad: np.ndarray, step: int) -> None:
        rate, decay, _ = multipliers(step)
        rate *= group.learning_rate
        beta1, beta2 = group.beta1, group.beta2
        self.first[name] = beta1 * self.first[name] + (1 - beta1) * grad
        self.second[name] = beta2 * self.second[name] + (1 - beta2) * grad**2
        first = self.first[name] / (1 - beta1 ** (step + 1))
        second = self.second[name] / (1 - beta2 ** (step + 1))
        shrunk = self.weights[name] * (1 - rate * group.weight_decay * decay)
        self.weights[name] = shrunk - rate * first / (np.sqrt(second) + 1e-10)

    def assert_equal(self, weights: dict[str, torch.Tensor]) -> None:
        assert weights.keys() == self.weights.keys()
        for name, weight in weights.items():
            np.testing.assert_allclose(
                weight.detach().numpy(), self.weights[name], rtol=1e-8, atol=1e-10, err_msg=name
            )


def frobenius(matrix: np.ndarray) -> float:
    return math.sqrt((matrix**2).sum())


def reference_polar(matrix: np.ndarray) -> np.ndarray:
    x = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / (frobenius(x) * 1.02 + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        x = a * x + b * (x @ x.T) @ x + c * (x @ x.T) @ (x @ x.T) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def rank_main(rank: int, folder: Path) -> None:
    """One of the ranks, in a process of its own. Writes to `folder` what the tests look at."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    try:
        saved = torch.load(folder / "one_rank.pt", weights_only=True)
        torch.save(observe(rank, dist.group.WORLD, saved), folder / f"rank{rank}.pt")
    finally:
        dist.destroy_process_group()


def observe(rank: int, group: dist.ProcessGroup, saved: dict[str, Any]) -> dict[str, Any]:
    """One rank trains from the start, continues what one rank saved, and meets what must be refused."""

    def own_gradient(name: str, step: int) -> torch.Tensor:
        return gradient(name, step, rank)

    first, second = range(STEPS // 2), range(STEPS // 2, STEPS)
    found: dict[str, Any] = {}
    model = Toy()
    optimizer = make(model, process_group=group)
    norms = train(model, optimizer, first, own_gradient)
    found["half"] = {name: p.detach().clone() for name, p in model.named_parameters()}
    found["state"] = {key: value.clone() for key, value in optimizer.named_state().items()}
    found["norms"] = norms + train(model, optimizer, second, own_gradient)
    found["weights"] = dict(model.named_parameters())
    found["elements"] = sum(value.numel() for state in optimizer.state.values() for value in state.values())

    model = Toy()
    model.load_state_dict(saved["half"])
    optimizer = make(model, process_group=group)
    optimizer.load_named_state(saved["state"])
    found["loaded"] = {key: value.clone() for key, value in optimizer.named_state().items()}
    train(model, optimizer, second, own_gradient)
    found["continued"] = {name: p.detach().clone() for name, p in model.named_parameters()}

    found["sharded"] = observe_sharded(group, saved)
    found["tables"] = {name: train_table(name, rank, optimizer_of_table(name, group)) for name in TABLES}
    try:
        model.t.grad = None
        optimizer.step()
    except ValueError as error:
        found["refused"] = str(error)
    return found


def observe_sharded(group: dist.ProcessGroup, saved: dict[str, Any]) -> dict[str, Any]:
    """Rows of every parameter with two dimensions are divided as by FSDP2, and so is the mean gradient."""
    mesh = DeviceMesh.from_group(group, "cpu")
    model = Toy()
    model.load_state_dict(saved["half"])
    for name, parameter in dict(model.named_parameters()).items():
        if parameter.dim() == 2:
            setattr(model, name, nn.Parameter(distribute_tensor(parameter.detach(), mesh, [Shard(0)])))

    def own_gradient(name: str, step: int) -> torch.Tensor:
        whole = mean_gradient(name, step)
        return distribute_tensor(whole, mesh, [Shard(0)]) if whole.dim() == 2 else whole

    optimizer = make(model, process_group=group)
    optimizer.load_named_state(saved["state"])
    steps = range(STEPS // 2, STEPS)
    norms = train(model, optimizer, steps, own_gradient)
    whole = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in model.named_parameters()}
    return {
        "norms": norms,
        "weights": whole,
        "state": {key: value.clone() for key, value in optimizer.named_state().items()},
        "own_share": list(optimizer.named_state(partitioned=True)),
        "elements": sum(v.numel() for state in optimizer.state.values() for v in state.values()) * RANKS,
    }


def optimizer_of_table(name: str, group: dist.ProcessGroup | None) -> tuple[nn.Embedding, MuonAdamW]:
    table = nn.Embedding(*TABLES[name], sparse=True, dtype=torch.float64)
    with torch.no_grad():
        table.weight.copy_(torch.randn(TABLES[name], generator=torch.Generator().manual_seed(3)))
    of_table = ParamGroup(("weight",), muon=False, learning_rate=0.1, beta1=0.8, beta2=0.95, weight_decay=0.5)
    return table, MuonAdamW(table, [of_table], process_group=group)


def rows_of(name: str, step: int, rank: int) -> torch.Tensor:
    """Row numbers of one rank's batch: other ones at each step, as many as the rank's number says, some in
    common with the other ranks."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    own = torch.randint(TABLES[name][0], (5 * rank,), generator=generator)
    return torch.cat((own, torch.tensor([step, step, 7])[: 3 * (step % 2)]))


def table_loss(table: nn.Embedding, rows: torch.Tensor) -> torch.Tensor:
    return (table(rows) * (1 + rows[:, None])).square().sum()


def train_table(name: str, rank: int, table_and_optimizer: tuple[nn.Embedding, MuonAdamW]) -> dict[str, Any]:
    """Three steps on this rank's rows."""
    table, optimizer = table_and_optimizer
    norms = []
    for step in range(3):
        table_loss(table, rows_of(name, step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(float(optimizer.gradient_norm))
    return {"weight": table.weight.detach(), "norms": norms, **optimizer.named_state()}
