"""JAX on eight virtual devices of the CPU, whatever else this machine has.

Programs are hardly optimised: LLVM takes longer for it than they run. Those that are compiled once are kept
in a folder for all tests of the session, and for the processes that they start.
"""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["JAX_PLATFORMS"] = "cpu"

import tests.jax.devices  # noqa: F401  (before anything asks JAX for its devices)

import jax  # isort: skip

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))  # workers share one folder
    programs = Path(tempfile.gettempdir()) / f"cpplm-tests-jax-{session}"
    atexit.register(shutil.rmtree, programs, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(programs)
    jax.config.update("jax_compilation_cache_dir", str(programs))


@pytest.fixture(scope="package", autouse=True)
def quick_compilation() -> Iterator[None]:
    """What XLA makes of a program is the same; LLVM makes machine code of it without its dear passes."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
