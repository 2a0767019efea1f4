"""A log put in order: sessions and their ends, axes, figures, defaults."""

import json
from pathlib import Path
from typing import Any

import pytest

from cpplm.core.locking import exclusive_lock
from cpplm.train.report.log_reader import AXES, RunHistory, headline_figures

Records = list[dict[str, Any]]


def session(time: float, step: int, **values: Any) -> dict[str, Any]:
    settings = {"depth": 4, "save_minutes": 10.0, "checkpoint_dir": "", "rates": {"matrix_lr": 0.5}}
    return {
        "event": "session", "time": time, "step": step, "settings": settings, "config": {"num_layers": 4},
        "parameters": {"total": 1000, "matrices": 600}, "flops_per_token": 7000, "precision": "float32",
        "kernels": {"attention": "sdpa"}, "environment": {"processor": "x", "device": "cpu"}, **values,
    }  # fmt: skip


def steps(time: float, first: int, last: int, of: int = 10, **values: Any) -> Records:
    """One per second; 100 tokens each."""
    return [
        {
            "event": "step", "time": time + number, "step": step, "tokens": 100 * step, "seconds": 0.5 * step,
            "progress": step / of, "loss": 8.0 / step, "gradient_norm": 1.0, "lr_multiplier": 1.0,
            "step_seconds": 0.5, "data_seconds": 0.1, "tokens_per_second": 200.0,
            "peak_memory_bytes": 2**30, **values,
        }
        for number, step in enumerate(range(first, last + 1), start=1)
    ]  # fmt: skip


def validation(time: float, step: int, bits: float) -> dict[str, Any]:
    return {
        "event": "validation", "time": time, "step": step, "bits_per_byte": bits, "loss": 2 * bits,
        "tokens": 50, "bytes": 100,
    }  # fmt: skip


def write_log(folder: Path, records: Records) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def ends(folder: Path, *records: Any) -> list[str]:
    flat = [one for each in records for one in (each if isinstance(each, list) else [each])]
    return [each.ended for each in RunHistory(write_log(folder, flat)).sessions]


def test_how_sessions_ended(tmp_path: Path) -> None:
    first = [session(0, 0), *steps(0, 1, 4)]
    assert ends(tmp_path, first) == ["interrupted"]
    with exclusive_lock(tmp_path):
        assert ends(tmp_path, first) == ["running"]
        assert ends(tmp_path, first, {"event": "end", "time": 9, "step": 4, "reason": "stopped"}) == [
            "stopped"
        ]
    assert ends(tmp_path, first, session(99, 4), steps(99, 5, 10)) == ["interrupted", "finished"]
    assert ends(tmp_path, first, session(99, 4, log_reached=7)) == ["killed at step 7", "interrupted"]
    assert ends(tmp_path, session(0, 0), steps(0, 1, 10), session(99, 10)) == ["finished", "interrupted"]


def test_sessions_and_the_settings_that_changed(tmp_path: Path) -> None:
    changed = session(1000, 4)
    changed["settings"] = {**changed["settings"], "save_minutes": 3.0, "new": 1}
    records = [session(0, 0), *steps(0, 1, 4), changed, *steps(1000, 5, 7)]
    one, two = RunHistory(write_log(tmp_path, records)).sessions
    assert one.changes == []
    assert two.changes == [("save_minutes", 10.0, 3.0), ("new", None, 1)]
    assert (one.last_step, two.last_step) == (4, 7)
    assert (one.wall_seconds, two.wall_seconds) == (4.0, 3.0)


def test_places_on_every_axis(tmp_path: Path) -> None:
    records = [session(0, 0), *steps(0, 1, 4), session(1000, 4), *steps(1000, 5, 7)]
    history = RunHistory(write_log(tmp_path, records))
    assert [history.place(6, axis) for axis in AXES] == [6, 600, 3, 6]  # the pause is no time
    assert [history.place(0, axis) for axis in AXES] == [0, 0, 0, 0]
    assert history.place(99, "tokens") == 700  # the last one there is


def test_figures(tmp_path: Path) -> None:
    records = [
        session(0, 0),
        validation(0.5, 0, 3.0),
        *steps(0, 1, 4, mfu=0.25),
        validation(4, 4, 1.5),
        *steps(4, 5, 10, mfu=0.75),
        validation(10, 10, 2.0),
    ]
    found = headline_figures(RunHistory(write_log(tmp_path, records)))
    assert found["state"] == "finished"
    assert (found["bits_per_byte"], found["best_bits_per_byte"], found["best_step"]) == (2.0, 1.5, 4)
    assert [found[name] for name in AXES] == [10, 1000, 5.0, 10.0]
    assert found["loss"] == pytest.approx(0.8)
    assert found["data_wait"] == pytest.approx(0.2)
    assert found["mfu"] == 0.75


def test_a_run_that_has_only_begun_has_few_figures(tmp_path: Path) -> None:
    found = headline_figures(RunHistory(write_log(tmp_path, [session(0, 0)])))
    assert (found["state"], found["sessions"], found["parameters"]) == ("interrupted", 1, 1000)
    assert found.keys() == {"run", "folder", "state", "sessions", "parameters"}


def test_the_name_is_that_of_the_folder_or_of_the_one_above_run(tmp_path: Path) -> None:
    for folder, name in ((tmp_path / "mine", "mine"), (tmp_path / "run", tmp_path.name)):
        assert RunHistory(write_log(folder, [session(0, 0)])).name == name
