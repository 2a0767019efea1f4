"""Two ranks that divide the model train as one process does on the same batch, and continue one another.

Ranks with copies are in tests/optim/test_collectives.py and, as all of them, in tests/system/test_ranks.py.
"""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from cpplm.core.errors import UserError
from cpplm.model.settings import KernelSettings
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_optimizer
from cpplm.optim.muon import MuonAdamW
from cpplm.optim.schedules import LearningRates
from cpplm.train.distributed import SINGLE_PROCESS, DistContext
from cpplm.train.memory_estimate import MemoryPlan, estimate_memory
from cpplm.train.settings import TrainSettings
from cpplm.train.sharding import (
    compile_blocks,
    init_weights,
    load_full_state_dict,
    local_state_dict,
    set_gradient_sync,
    shard_model,
)
from tests.model.features import CONFIGS, random_model
from tests.train.processes import in_processes
from tests.train.test_distributed import talk

# Without streams and sparse attention: the ones have directions without gradient, in which AdamW follows the
# rounding, the other chooses keys by the last bit. `EVERYTHING` is compared before it steps.
CONFIG = dataclasses.replace(CONFIGS["all"], hyper_connections=None, dsa=None)
EVERYTHING = CONFIGS["all"]
FEW = dataclasses.replace(CONFIGS["values"], num_layers=2)
DTYPES = (torch.float32, torch.bfloat16)
RANKS = 2
ROWS, STEPS, HALF = 8, 4, 2


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all ranks."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(CONFIG.vocab_size, (ROWS, CONFIG.max_seq_len + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def build(dist: DistContext, saved: dict[str, Any]) -> tuple[Transformer, MuonAdamW]:
    """The model and its optimizer with what one rank's `saved` holds; the other ranks read no weights.

    Several ranks divide it, and compute their blocks again in the backward pass.
    """
    several = dist.world_size > 1
    with torch.device("meta"):
        model = Transformer(CONFIG, kernels=KernelSettings(gradient_checkpointing=several))
    if several:
        shard_model(model, dist)
    model.to_empty(device="cpu")
    load_full_state_dict(model, saved["weights"] if dist.is_first else {})
    optimizer = build_optimizer(
        model, LearningRates(muon_beta2=0.9), batch_tokens=2**15, process_group=dist.process_group
    )
    optimizer.load_named_state(saved["state"])
    return model, optimizer


def train(dist: DistContext, model: Transformer, optimizer: MuonAdamW, steps: range) -> list[list[float]]:
    """Losses, and the norm of the gradient, of each step over all ranks; each of two takes two passes."""
    figures, passes = [], dist.world_size
    for step in steps:
        inputs, targets = (part[dist.rank :: dist.world_size].chunk(passes) for part in batch(step))
        total = torch.zeros(4)
        for index in range(passes):
            set_gradient_sync(model, index == passes - 1)
            losses = model.training_losses(inputs[index], targets[index], 0.3)
            (losses.total / passes).backward()
            total += torch.stack([part.detach() for part in losses]) / passes
        optimizer.step()
        optimizer.zero_grad()
        figures.append([*dist.mean(total).tolist(), float(optimizer.gradient_norm)])
    return figures


def saved_by(dist: DistContext, model: Transformer, optimizer: MuonAdamW) -> dict[str, Any]:
    """This rank's share of weights and state, as they are now."""
    parts = {"weights": local_state_dict(model, dist), "state": optimizer.named_state(partitioned=True)}
    return {kind: {name: value.clone() for name, value in part.items()} for kind, part in parts.items()}


def together(files: list[Path]) -> dict[str, Any]:
    """What the first rank has found, with the shares of all."""
    ranks = [torch.load(file, weights_only=True) for file in files]
    found: dict[str, Any] = ranks[0]
    for moment, kind in product(("middle", "end"), ("weights", "state")):
        shares = [rank[moment][kind] for rank in ranks]
        assert all(shares)
        found[moment][kind] = {name: value for share in shares for name, value in share.items()}
        assert len(found[moment][kind]) == sum(map(len, shares))
    return found


def observe(dist: DistContext, folder: Path) -> None:
    """The ranks train from the start."""
    model, optimizer = build(dist, torch.load(folder / "start.pt", weights_only=True))
    found: dict[str, Any] = {"figures": train(dist, model, optimizer, range(HALF))}
    with torch.no_grad():  # amid training: nothing gathered for it may be used after the next step
        found["validation"] = float(model.loss(*batch(99)))
    found["middle"] = saved_by(dist, model, optimizer)
    found["figures"] += train(dist, model, optimizer, range(HALF, STEPS))
    found["end"] = saved_by(dist, model, optimizer)
    found["sizes"] = dist.gather_objects(sizes(model, optimizer))
    torch.save(found, folder / f"rank{dist.rank}.pt")
    talk(dist, folder)  # while the processes are there


def sizes(model: Transformer, optimizer: MuonAdamW) -> dict[str, int]:
    """Elements on this rank."""
    weights = [p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()]
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    return {
        "weights": sum(part.numel() for part in weights),
        "state": sum(part.numel() for part in state),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def reference(folder: Path) -> dict[str, Any]:
    """One process trains; its start and its middle are what the ranks begin with."""
    start = {"weights": random_model(CONFIG).state_dict(), "state": {}}
    torch.save(start, folder / "start.pt")
    model, optimizer = build(SINGLE_PROCESS, start)
    figures = train(SINGLE_PROCESS, model, optimizer, range(HALF))
    torch.save(saved_by(SINGLE_PROCESS, model, optimizer), folder / "middle.pt")
    with torch.no_grad():
        validation = float(model.loss(*batch(99)))
    figures += train(SINGLE_PROCESS, model, optimizer, range(HALF, STEPS))
    end = saved_by(SINGLE_PROCESS, model, optimizer)
    return {"figures": figures, "end": end, "validation": validation}


@pytest.fixture(scope="module")
def found(folder: Path, reference: dict[str, Any]) -> dict[str, Any]:
    in_processes(RANKS, observe, folder)
    return together([folder / f"rank{rank}.pt" for rank in range(RANKS)])


# The one that `make test` runs: for tests in two workers the ranks would run twice.
def test_losses_and_norms_are_those_of_one_process(found: dict[str, Any], reference: dict[str, Any]) -> None:
    torch.testing.assert_close(
        torch.tensor(found["figures"]), torch.tensor(reference["figures"]), rtol=1e-5, atol=1e-5
    )
    assert found["validation"] == pytest.approx(reference["validation"], abs=1e-5)


@pytest.mark.slow
def test_the_end_is_that_of_one_process(found: dict[str, Any], reference: dict[str, Any]) -> None:
    """But for one element of a thousand: what is next to nothing becomes as large as all else in AdamW, and
    so does its rounding."""
    for kind in ("weights", "state"):
        assert found["end"][kind].keys() == reference["end"][kind].keys()
        for name, value in reference["end"][kind].items():
            difference = (found["end"][kind][name] - value).abs()
            assert (difference > 1e-4).sum() <= difference.numel() // 1000, name
            assert difference.max() < 1e-3, name


@pytest.mark.slow
def test_ranks_continue_what_one_process_saved(more: dict[str, Any], reference: dict[str, Any]) -> None:
    expected = torch.tensor(reference["figures"][HALF:])
    torch.testing.assert_close(torch.tensor(more["continued"]), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_one_process_continues_what_ranks_saved(found: dict[str, Any], reference: dict[str, Any]) -> None:
    model, optimizer = build(SINGLE_PROCESS, found["middle"])
    figures = train(SINGLE_PROCESS, model, optimizer, range(HALF, STEPS))
    expected = torch.tensor(reference["figures"][HALF:])
    torch.testing.assert_close(torch.tensor(figures), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_estimates_of_weights_and_state_are_exact(found: dict[str, Any]) -> None:
    settings = TrainSettings(
        ("corpus",), Path("tokenizer"), Path("out"), max_seq_len=CONFIG.max_seq_len,
        device_batch_size=ROWS // RANKS // RANKS, total_batch_size=ROWS * CONFIG.max_seq_len, shard=True,
    )  # fmt: skip
    plan = MemoryPlan(settings, CONFIG, torch.float32)
    memory, buffers = estimate_memory(plan, RANKS), sum(b.nbytes for b in Transformer(CONFIG).buffers())
    assert memory.weights == 4 * found["sizes"][0]["weights"] + buffers
    assert memory.optimizer_state == 4 * found["sizes"][0]["state"]


def observe_more(dist: DistContext, folder: Path) -> None:
    """What only slow tests ask for, in processes of its own.

    The ranks train from the middle of one process' training. Of a model with every feature they find the
    gradients, and of one that was never whole, the initial values.
    """
    model, optimizer = build(dist, torch.load(folder / "middle.pt", weights_only=True))
    found: dict[str, Any] = {"continued": train(dist, model, optimizer, range(HALF, STEPS))}
    for dtype in DTYPES:
        model = random_model(EVERYTHING)
        model.compute_dtype = dtype
        shard_model(model, dist)
        inputs, targets = (part[dist.rank :: dist.world_size] for part in batch(0))
        model.training_losses(inputs, targets, 0.3).total.backward()
        found[str(dtype)] = {name: whole_gradient(p, dist) for name, p in model.named_parameters()}
    with torch.device("meta"):
        model = Transformer(EVERYTHING)
    shard_model(model, dist)
    model.to_empty(device="cpu")
    init_weights(model, 5)
    state = model.state_dict()
    found["values"] = {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in state.items()}
    if dist.is_first:
        torch.save(found, folder / "more.pt")


def whole_gradient(parameter: Tensor, dist: DistContext) -> Tensor:
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(gradient, DTensor):
        return gradient.full_tensor()
    return dist.mean(gradient.to_dense() if gradient.is_sparse else gradient)


@pytest.fixture(scope="module")
def more(folder: Path, reference: dict[str, Any]) -> dict[str, Any]:
    in_processes(RANKS, observe_more, folder)
    return torch.load(folder / "more.pt", weights_only=True)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_of_every_feature(more: dict[str, Any], dtype: torch.dtype) -> None:
    """Each rank's rows in a pass of their own, so that in bfloat16, too, only the order of sums differs."""
    model = random_model(EVERYTHING)
    model.compute_dtype = dtype
    for index in range(2):
        inputs, targets = (part[index::2] for part in batch(0))
        (model.training_losses(inputs, targets, 0.3).total / 2).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        expected, found = parameter.grad.to_dense(), more[str(dtype)][name]
        if dtype == torch.bfloat16 and "value_embedding" in name:  # summed over equal tokens in bfloat16
            assert (found - expected).norm() < 0.01 * expected.norm()
        else:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
def test_a_shard_begins_with_the_values_of_one_process(more: dict[str, Any]) -> None:
    model = Transformer(EVERYTHING)
    init_weights(model, 5)
    assert more["values"].keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(more["values"][name], value), name


def observe_compiled(dist: DistContext, folder: Path) -> None:
    model = random_model(FEW)
    shard_model(model, dist)
    compile_blocks(model)
    inputs, targets = (part[dist.rank :: dist.world_size] for part in batch(0))
    for _ in range(2):
        model.zero_grad()
        losses = model.training_losses(inputs, targets, 0.3)
        losses.total.backward()
    gradients = {name: whole_gradient(p, dist) for name, p in model.named_parameters()}
    if dist.is_first:
        torch.save(gradients, folder / "compiled.pt")


@pytest.mark.slow
def test_compiled_blocks(folder: Path) -> None:
    in_processes(RANKS, observe_compiled, folder)
    model = random_model(FEW)
    model.training_losses(*batch(0), 0.3).total.backward()
    gradients = torch.load(folder / "compiled.pt", weights_only=True)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_one_process_has_nothing_to_divide() -> None:
    with pytest.raises(UserError, match="--shard"):
        shard_model(Transformer(CONFIG), SINGLE_PROCESS)
