"""Choosing among backends, and libraries that are there, missing or broken."""

from pathlib import Path

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.model.kernels.registry import (
    KernelBackend,
    KernelRequest,
    KernelTable,
    OptionalImport,
    compute_capability,
)

REQUEST = KernelRequest(device="cpu", dtype=torch.float32, gradient=True, compiling=False, capability=(0, 0))
BACKENDS: dict[str, KernelBackend[KernelRequest]] = {
    backend.name: backend
    for backend in (
        KernelBackend("fast", torch.add, devices=("cuda",)),
        KernelBackend("half", torch.add, dtypes=(torch.bfloat16,)),
        KernelBackend(
            "forward", torch.add, refusal=lambda request: "has no backward" if request.gradient else ""
        ),
        KernelBackend("plain", torch.add),
    )
}


TABLE = KernelTable("test", BACKENDS, lambda _: ("fast", "forward", "plain"))


def test_takes_the_first_that_can() -> None:
    assert TABLE.select(REQUEST).name == "plain"
    forward = KernelRequest("cpu", torch.float32, False, False, (0, 0))
    assert TABLE.select(forward).name == "forward"
    assert TABLE.select(forward, "plain").name == "plain"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fast", "'fast' needs a cuda device, this is cpu. What works here: auto, plain."),
        ("half", "'half' computes in bfloat16, not float32. What works here: auto, plain."),
        ("forward", "'forward' has no backward. What works here: auto, plain."),
        ("best", "'best' does not exist. What works here: auto, plain."),
    ],
)
def test_an_impossible_choice_says_why(name: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        TABLE.select(REQUEST, name)
    assert str(raised.value) == f"the test kernel {message}"


def test_nothing_works() -> None:
    only = KernelTable("test", {"fast": BACKENDS["fast"]}, lambda _: ("fast",))
    with pytest.raises(UserError, match=r"'auto' finds nothing .* What works here: nothing"):
        only.select(REQUEST)
    assert only.describe(REQUEST).startswith("auto -> none; ")


def test_decision_names_everyone() -> None:
    assert TABLE.describe(REQUEST) == (
        "auto -> plain; not here: fast (needs a cuda device, this is cpu), half (computes in bfloat16, not "
        "float32), forward (has no backward)"
    )


def test_capability_is_that_of_the_gpu() -> None:
    assert compute_capability(torch.device("cpu")) == (0, 0)
    newer = KernelBackend("newer", torch.add, devices=("cuda",), capability=(9, 0))
    old = KernelRequest("cuda", torch.float32, False, False, (8, 9))
    assert newer.why_not(old) == "needs compute capability 9.0 or newer, this GPU has 8.9"
    assert newer.why_not(KernelRequest("cuda", torch.float32, False, False, (10, 0))) == ""


def test_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernel_that_works.py").write_text("def run(x):\n    return x + 1\n")
    (tmp_path / "kernel_that_breaks.py").write_text("raise RuntimeError('built for another torch')\n")
    (tmp_path / "kernel_that_needs.py").write_text("import package_that_is_nowhere.inside\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert OptionalImport.load("kernel_that_works", "run").reason == "needs a cuda device"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    works = OptionalImport.load("kernel_that_works", "run")
    assert works.reason == ""
    assert works(1) == 2
    lacks = KernelBackend("x", torch.add, library=OptionalImport.load("kernel_that_is_nowhere", "run"))
    assert lacks.why_not(REQUEST) == "needs kernel_that_is_nowhere, which is not installed"
    assert "built for another torch" in OptionalImport.load("kernel_that_breaks", "run").reason
    assert "package_that_is_nowhere" in OptionalImport.load("kernel_that_needs", "run").reason
    assert "does not load: AttributeError" in OptionalImport.load("kernel_that_works", "walk").reason
