"""Traces of training steps with JAX's profiler, for XProf and TensorBoard."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import jax


class JaxProfiler:
    """See `cpplm.train.backend.Profiler`. The trace is a folder: `tensorboard --logdir RUN/profiles/STEP`."""

    def __init__(self, path: Path) -> None:
        """`path` is the folder to be."""
        self.path = path
        self._part = path.with_name(f"{path.name}.part")

    def start(self) -> None:
        """See `Profiler`."""
        shutil.rmtree(self._part, ignore_errors=True)
        jax.profiler.start_trace(str(self._part))

    def stop(self) -> list[dict[str, Any]]:
        """See `Profiler`; which operations took most time, XProf says."""
        try:
            jax.profiler.stop_trace()
            shutil.rmtree(self.path, ignore_errors=True)
            self._part.replace(self.path)
        except (RuntimeError, OSError):
            shutil.rmtree(self._part, ignore_errors=True)
            raise
        return []
