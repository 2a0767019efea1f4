import shutil
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cpplm.cli import doctor as doctor_module
from cpplm.cli.doctor import LIBRARIES, doctor
from cpplm.cloud.settings import DoctorSettings
from cpplm.core.errors import UserError
from cpplm.sandbox.sandbox import Sandbox
from tests.commands import reported


def versions(**installed: str) -> Callable[[str], str]:
    """A `version` that knows these packages alone."""

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    return version


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_with_a_compiler() -> None:
    _, figures = reported("doctor")
    assert set(figures) == {"ready", "findings"}
    findings = figures["findings"]
    for finding in findings.values():
        assert {name: type(value) for name, value in finding.items()} == {
            "value": str,
            "ok": bool,
            "fix": str,
        }
    assert findings["g++"]["ok"]
    assert "g++" in findings["g++"]["value"]
    assert findings["torch.compile"]["value"] == findings["kernel for decoding"]["value"] == "on"
    assert {"python", "memory", "device", "attention", "loss", "fp8", "sandbox", *LIBRARIES} <= set(findings)


@pytest.mark.parametrize(
    ("chips", "installed", "ok", "named"),
    [
        (0, {"jax": "0.10.2"}, None, {"jax"}),
        (4, {"jax": "0.10.2"}, False, {"tpu", "jax"}),
        (4, {"jax": "0.10.2", "libtpu": "0.0.42"}, True, {"tpu", "jax", "libtpu"}),
    ],
)
def test_tpus_and_what_trains_on_them(
    chips: int, installed: dict[str, str], ok: bool | None, named: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "count_tpus", lambda: chips)
    monkeypatch.setattr(doctor_module, "version", versions(**installed))
    found = {check.name: check for check in doctor_module._tpu()}
    assert set(found) == named
    if chips:
        assert (found["tpu"].ok, found["tpu"].value[:7], found["tpu"].fix == "") == (ok, "4 chips", ok)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    present = dict.fromkeys(LIBRARIES.keys() - {"tree-sitter", "wandb", "tiktoken"}, "1.0")
    monkeypatch.setattr(doctor_module, "version", versions(**present))
    report = doctor(DoctorSettings())
    findings = report.figures["findings"]
    assert findings["tree-sitter"] == {
        "value": "not installed",
        "ok": False,
        "fix": "pip install cpplm",
    }
    assert findings["wandb"]["fix"] == "pip install 'cpplm[tracking]'"
    assert findings["tiktoken"]["fix"] == "pip install cpplm"
    assert not report.figures["ready"]
    last = report.text.splitlines()[-1]
    assert "tree-sitter" in last
    assert "tiktoken" in last
    assert "wandb" not in last  # a tracker is no need of the demo


def test_kernels_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What auto takes, and for each other kernel that it works too or why it does not."""
    monkeypatch.setattr(doctor_module, "choose_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(doctor_module, "missing_for_fp8", lambda: ["the package torchao"])
    report = doctor(DoctorSettings())
    found = report.figures["findings"]
    assert found["attention"]["value"].startswith("auto -> sdpa; also works: chunked; not here: flex (")
    windows = found["attention, window"]["value"]
    assert windows.startswith(
        "auto -> chunked; also works: sdpa; not here: flex (has no backward pass on cpu)"
    )
    assert "flash2 (needs a cuda device, this is cpu), flash3 (needs a cuda device" in windows
    loss = found["loss"]["value"]
    assert loss.startswith("auto -> chunked; also works: native; not here: cce (needs a cuda device")
    assert "liger (needs a cuda device" in loss
    assert found["fp8"] == {
        "value": "needs the package torchao",
        "ok": False,
        "fix": "pip install 'cpplm[cuda]'",
    }
    assert max(map(len, report.text.splitlines())) <= 110


def test_without_a_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(*_: Any, **__: Any) -> Sandbox:
        raise UserError("no way to isolate programs")

    monkeypatch.setattr(doctor_module.Sandbox, "probe", probe)
    report = doctor(DoctorSettings())
    assert not report.figures["ready"]
    sandbox = report.figures["findings"]["sandbox"]
    assert sandbox["ok"] is False
    assert sandbox["fix"]


def test_everything_missing_that_is_needed_comes_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    monkeypatch.setenv("PATH", "")
    report = doctor(DoctorSettings())
    *lines, last = report.text.splitlines()
    broken = last.removeprefix("missing: ").split(", ")
    assert {"g++", "free disk here"} <= set(broken)
    assert all(report.figures["findings"][name]["fix"] for name in broken)
    assert not report.figures["findings"]["torch.compile"]["ok"]
    at = next(number for number, line in enumerate(lines) if line.startswith("MISSING g++"))
    assert lines[at + 1].strip().startswith("-> sudo apt-get install g++")


def test_what_judging_problems_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "fast_linker", lambda _: ("-fuse-ld=gold",))
    monkeypatch.setattr(doctor_module, "find_missing_headers", lambda names, _: {})
    found = doctor(DoctorSettings()).figures["findings"]
    assert found["linker"] == {"value": "gold", "ok": True, "fix": ""}
    assert found["HumanEval"] == {"value": "164 of 164 problems can be judged", "ok": True, "fix": ""}

    boost = "boost/any.hpp"
    monkeypatch.setattr(doctor_module, "fast_linker", lambda _: ())
    monkeypatch.setattr(
        doctor_module,
        "find_missing_headers",
        lambda names, _: {boost: "needs libboost-dev (<boost/any.hpp>)"} if boost in names else {},
    )
    report = doctor(DoctorSettings())
    found = report.figures["findings"]
    assert (found["linker"]["ok"], "mold" in found["linker"]["fix"]) == (False, True)
    assert not found["HumanEval"]["ok"]
    assert (
        "162 of 164 problems can be judged; not CPP/22, CPP/137: needs libboost-dev"
        in found["HumanEval"]["value"]
    )
    assert "libboost-dev" in found["HumanEval"]["fix"]
    assert "HumanEval" not in report.text.splitlines()[-1]  # the demo needs none of it
