"""Kernels are compiled once and whole, or not at all."""

from pathlib import Path

import pytest
import torch

from cpplm.model.kernels import cpp_extension as kernels
from cpplm.model.kernels import small_batch_linear
from cpplm.model.kernels.decode_attention import supports


@pytest.mark.parametrize("broken", ["no compiler", "compiler fails", "no room for it"])
def test_there_are_none_without_a_compiler(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing half-made stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if broken == "no compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif broken == "compiler fails":
        monkeypatch.setattr(kernels, "_FLAGS", ("-no-such-flag",))
    else:
        (tmp_path / "cache").write_text("a file where a folder should be")
    assert kernels._library.__wrapped__() is None
    assert not list(tmp_path.rglob("*.so"))


def test_who_asks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 64, dtype=torch.bfloat16)
    assert small_batch_linear.supports(x) and supports(x.device, x.dtype)
    monkeypatch.setattr(kernels, "_library", lambda: None)
    kernels.load_function.cache_clear()
    try:
        assert not small_batch_linear.supports(x) and not supports(x.device, x.dtype)
    finally:
        kernels.load_function.cache_clear()


@pytest.mark.slow
def test_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels._library.__wrapped__() is not None
    (made,) = (path for path in tmp_path.rglob("*") if path.is_file())
    before = made.stat().st_mtime_ns
    assert kernels._library.__wrapped__() is not None
    assert [path.stat().st_mtime_ns for path in tmp_path.rglob("*.so")] == [before]
