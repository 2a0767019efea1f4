"""What run logs say of steps and validations, compared."""

from pathlib import Path
from typing import Any

import pytest

from cpplm.core.run_log import read_run_log

FIGURES = ("step", "tokens", "bytes", "loss", "bits_per_byte", "gradient_norm")


def records(out: Path, *events: str) -> list[dict[str, Any]]:
    """What the log of a run says of these events; by default, of steps and validations."""
    wanted = events or ("step", "validation")
    return [record for record in read_run_log(out / "log.jsonl") if record["event"] in wanted]


def assert_same_records(ours: Path, theirs: Path, *, rel: float) -> None:
    """But for sums in another order, all steps and validations are the same."""
    pairs = list(zip(records(ours), records(theirs), strict=True))
    assert {"step", "validation"} == {record["event"] for record, _ in pairs}
    for our, their in pairs:
        assert our["event"] == their["event"]
        figures = {name: their[name] for name in FIGURES if name in their}
        assert {name: our[name] for name in figures} == pytest.approx(figures, rel=rel)
