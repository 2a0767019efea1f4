"""Benchmarks run as a user would: the last line is the JSON object that they promise."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.corpus.cpp import needs_gxx

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCHMARKS / "corpus.py", *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("stages", monkeypatch)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return load("corpus", monkeypatch)


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    return module


def spreads(figures: Any) -> list[dict[str, float]]:
    """Every median with its bounds, at any depth."""
    if not isinstance(figures, dict):
        return []
    return [figures] if "median" in figures else [s for value in figures.values() for s in spreads(value)]


@needs_gxx
@pytest.mark.slow
def test_the_benchmark_of_the_corpus_measures_every_stage(stages: ModuleType) -> None:
    result = run("--quick")
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout.splitlines()[-1])
    speed, size = figures["speed"], figures["size"]
    assert 0.3 < speed["source_mb"] < 1
    assert figures["machine"]["threads"] == "1"
    measured = spreads(figures)
    assert all(0 <= s["low"] <= s["median"] <= s["high"] and s["runs"] == 1 for s in measured)
    assert all(s["median"] > 0 for s in speed["mb_per_core_second"].values())
    promised = set(stages.STAGES)
    for budget, shares in speed["share_by_stage"].items():
        assert sum(s["median"] for s in shares.values()) == pytest.approx(1, abs=0.02)
        unmeasured = promised - shares.keys()
        assert unmeasured == ({"count tokens"} if budget == "bytes" else set())
    assert set(size["mb_per_core_second_by_project_mb"]) == {"0.1", "0.2"}
    assert 0 < size["exponent_of_time"] < 3
    assert set(size["peak_memory_mb"]) == {"1 worker", "2 workers"}
    assert all(20 < megabytes < 2_000 for megabytes in size["peak_memory_mb"].values())


def test_the_clocks_find_every_function_that_they_time(stages: ModuleType) -> None:
    with stages.clocked() as seconds:
        sum(range(100_000))
    assert set(seconds) == {stages.REST}


def test_a_clock_counts_what_is_spent_in_its_own_stage(
    stages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([0, 1, 3, 6, 10, 15])  # outside for 1, in `outer` for 2, in `inner` for 3, in `outer` for 4
    monkeypatch.setattr(stages.time, "process_time", lambda: next(ticks))
    owner = ModuleType("owner")
    owner.__dict__.update(inner=lambda: None, outer=lambda: [owner.inner()])
    monkeypatch.setattr(stages, "_look_up", lambda path: (owner, path))
    monkeypatch.setattr(stages, "STAGES", {"a": ("outer",), "b": ("inner",)})
    with stages.clocked() as seconds:
        owner.outer()
    assert seconds == {stages.REST: 1 + 5, "a": 2 + 4, "b": 3}


def test_projects_of_a_size_hold_every_file_once(tmp_path: Path, benchmark: ModuleType) -> None:
    for number in range(10):
        (tmp_path / "in" / f"{number}.h").parent.mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.h").write_text(f"int f{number}();\n" * 100)
    settings = benchmark.CorpusSettings(out="x", projects=(tmp_path / "in",))
    files = list(benchmark.find_sources(settings))
    total = sum(file.size for _, file in files) / 1e6
    folder = benchmark.cut(files, total / 3, tmp_path / "out")
    assert len(list(folder.iterdir())) in (3, 4)
    copied = sorted(path.name for path in folder.rglob("*.h"))
    assert copied == [f"{number}.h" for number in range(10)]
    assert benchmark.prefix(files, total / 2) == 5


def test_time_that_grows_with_the_square_is_seen(benchmark: ModuleType) -> None:
    exponent = benchmark.exponent
    assert exponent([(size, 1 / size) for size in (1.0, 5.0, 15.0)]) == pytest.approx(2)
    assert exponent([(size, 2.5) for size in (1.0, 5.0, 15.0)]) == pytest.approx(1)
    assert exponent([(1.0, 2.5)]) is None


@pytest.mark.slow
def test_a_wrong_folder_is_one_line_and_exit_2(tmp_path: Path) -> None:
    result = run(tmp_path / "missing")
    assert (result.returncode, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert "does not exist" in result.stderr
