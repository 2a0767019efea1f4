"""Traces of training steps with torch's profiler."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from typing_extensions import override

from cpplm.train.backend import Profiler

MOST_OPERATIONS = 15


class TorchProfiler(Profiler):
    """Takes one trace, which opens in ui.perfetto.dev and chrome://tracing."""

    def __init__(self, path: Path, device: torch.device) -> None:
        """`path` lacks its ending; `device` is the one that computes."""
        self.path, self._device = path.with_name(f"{path.name}.json.gz"), device
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(activities=activities)

    @override
    def start(self) -> None:
        self._profiler.start()

    @override
    def stop(self) -> list[dict[str, Any]]:
        part = self.path.with_name(f"{self.path.name}.part.gz")  # its ending makes torch compress
        try:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._profiler.stop()
            part.parent.mkdir(exist_ok=True)
            self._profiler.export_chrome_trace(str(part))
            part.replace(self.path)
        except (RuntimeError, OSError):
            with contextlib.suppress(OSError):
                part.unlink()
            raise
        return most_expensive(self._profiler, self._device.type)


def most_expensive(profiler: profile, device: str) -> list[dict[str, Any]]:
    """The operations that took most time on the device, by their own time, without what they call.

    Returns:
        `name`, `calls`, `milliseconds` and `share` (of all operations' own time) of at most 15 operations.
    """
    field = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    averages = sorted(profiler.key_averages(), key=lambda average: -getattr(average, field))
    total = sum(getattr(average, field) for average in averages) or 1
    return [
        {
            "name": average.key,
            "calls": average.count,
            "milliseconds": round(getattr(average, field) / 1000, 3),
            "share": round(getattr(average, field) / total, 4),
        }
        for average in averages[:MOST_OPERATIONS]
    ]
