"""Every test that takes `sandbox` runs in each backend that works here; all but the first are slow tests."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cpplm.sandbox import sandbox as sandbox_module
from cpplm.sandbox.backends import BACKENDS, SandboxBackend
from cpplm.sandbox.compiler import fast_linker
from cpplm.sandbox.limits import MIB, ResourceLimits, RunResult
from cpplm.sandbox.sandbox import Sandbox, backend_problem

COMPILE_LIMITS = ResourceLimits(
    wall_seconds=120, cpu_seconds=20, memory_bytes=1024 * MIB, processes=16, scratch_bytes=64 * MIB
)
Attack = Callable[..., RunResult]
ATTACKS_SOURCE = Path(__file__).with_name("attacks.cpp").read_text(encoding="utf-8")


_FIRST, *_OTHERS = BACKENDS
_EACH = [_FIRST, *(pytest.param(backend, marks=pytest.mark.slow) for backend in _OTHERS)]


@pytest.fixture(params=_EACH, ids=lambda backend: backend.mode)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    backend: SandboxBackend = request.param
    if problem := backend_problem(backend):
        pytest.skip(f"{backend.mode} does not work here: {problem}")
    return Sandbox(backend)


@pytest.fixture(scope="session")
def attacks() -> bytes:
    """The hostile programs, compiled in the first sandbox that works."""
    sandbox = Sandbox.probe()
    command = ["g++", "-std=c++17", "-O0", "-w", "-pipe", "-o", "attacks", "attacks.cpp", "-lrt"]
    source = {"attacks.cpp": ATTACKS_SOURCE.encode()}
    result = sandbox.run(
        source, [*command, *fast_linker(sandbox)], COMPILE_LIMITS, fetch={"attacks": 16 * MIB}
    )
    assert result.succeeded, result.message()
    return result.files["attacks"]


@pytest.fixture
def attack(sandbox: Sandbox, attacks: bytes) -> Iterator[Attack]:
    """Runs a hostile program by name; then nothing of it may live and the next program must be unaffected."""
    program = "h" + secrets.token_hex(5)  # what the kernel calls its processes

    def run(name: str, *arguments: object, fetch: dict[str, int] | None = None, **limits: float) -> RunResult:
        bounds = ResourceLimits(**{"wall_seconds": 10.0, **limits})  # type: ignore[arg-type]
        return sandbox.run(
            {program: attacks}, [f"./{program}", name, *map(str, arguments)], bounds, fetch=fetch
        )

    yield run
    assert [process for process in psutil.process_iter(["name"]) if process.info["name"] == program] == []
    assert_next_is_unaffected(sandbox)


@pytest.fixture
def patient_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends in less than a minute was ended by its launcher, not by the harness that waits for both."""
    monkeypatch.setattr(sandbox_module, "_GRACE_SECONDS", 60.0)


@pytest.fixture
def work_folders(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of the host that runs of this test have used so far, whoever else has such folders."""
    folders: list[Path] = []
    real = tempfile.mkdtemp

    def mkdtemp(*arguments: Any, **options: Any) -> str:
        folder = real(*arguments, **options)
        if Path(folder).name.startswith("cpplm-sandbox-"):
            folders.append(Path(folder))
        return folder

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    return folders


def assert_removed(sandbox: Sandbox, work_folders: list[Path]) -> None:
    """The backends that need a folder of the host had one, and none is left."""
    assert bool(work_folders) == (sandbox.name != "namespaces")
    assert [folder for folder in work_folders if folder.exists()] == []


def assert_next_is_unaffected(sandbox: Sandbox) -> None:
    after = sandbox.run({}, ["/bin/echo", "unaffected"], ResourceLimits())
    assert after.succeeded
    assert after.stdout == b"unaffected\n"


@pytest.fixture
def public_file() -> Iterator[Path]:
    """A file that everybody on this machine may read, in a folder that everybody may write."""
    with tempfile.TemporaryDirectory(prefix="cpplm-public-", dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        path = Path(folder) / "public"
        path.write_text("the secret")
        path.chmod(0o644)
        yield path
