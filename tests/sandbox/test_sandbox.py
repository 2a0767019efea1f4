"""What `Sandbox` promises to honest callers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from cpplm.core.errors import UserError
from cpplm.sandbox import sandbox as sandbox_module
from cpplm.sandbox.backends import BACKENDS, UNSAFE
from cpplm.sandbox.limits import MIB, ResourceLimits
from cpplm.sandbox.sandbox import (
    MAX_STDIN_BYTES,
    Sandbox,
    SandboxError,
    _LauncherReply,
    _result,
    probe_backend,
)
from tests.sandbox.conftest import assert_removed

WRITABLE = ResourceLimits(scratch_bytes=MIB)


def test_result_of_a_plain_run(sandbox: Sandbox) -> None:
    script = "cat input; echo problem >&2; printf result >output; exit 3"
    result = sandbox.run(
        {"input": b"text"}, ["sh", "-c", script], WRITABLE, fetch={"output": 100, "none": 100}
    )
    assert (result.reason, result.exit_code, result.signal) == ("exit", 3, None)
    assert (result.stdout, result.message()) == (b"text", "problem\n")
    assert result.files == {"output": b"result"}
    assert 0 < result.cpu_seconds < 1
    assert 0 < result.wall_seconds < 5
    assert not result.succeeded


def test_files_travel_unchanged(sandbox: Sandbox) -> None:
    data = os.urandom(3 * MIB)
    limits = ResourceLimits(scratch_bytes=8 * MIB)
    result = sandbox.run({"a": data, "b": b""}, ["cp", "a", "c"], limits, fetch={"a": 4 * MIB, "c": 4 * MIB})
    assert result.files == {"a": data, "c": data}


def test_standard_input_can_be_read_once(sandbox: Sandbox) -> None:
    data = os.urandom(MAX_STDIN_BYTES)
    limits = ResourceLimits(output_bytes=2 * MAX_STDIN_BYTES)
    assert sandbox.run({}, ["sh", "-c", "cat; cat"], limits, stdin=data).stdout == data
    assert sandbox.run({}, ["cat"], limits).stdout == b""
    with pytest.raises(ValueError, match="stdin takes 65,536 bytes, not 65,537"):
        sandbox.run({}, ["cat"], limits, stdin=data + b"x")


def test_output_up_to_the_limit_is_whole(sandbox: Sandbox) -> None:
    exact = sandbox.run({"a": b"x" * 5000}, ["cat", "a"], ResourceLimits(output_bytes=5000))
    assert exact.succeeded
    assert exact.stdout == b"x" * 5000
    over = sandbox.run({"a": b"x" * 5001}, ["cat", "a"], ResourceLimits(output_bytes=5000))
    assert (over.reason, over.exit_code) == ("output limit", None)
    assert over.stdout == b"x" * 5000


def test_a_limit_may_be_seen_after_everything_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sandbox_module._read_streams

    def late(*arguments: Any) -> Any:
        reason = real(*arguments)
        time.sleep(0.3)
        return reason

    monkeypatch.setattr(sandbox_module, "_read_streams", late)
    result = Sandbox.probe().run({}, ["echo", "too long"], ResourceLimits(output_bytes=1))
    assert (result.reason, result.stdout) == ("output limit", b"t")


def test_signal_and_absent_program(sandbox: Sandbox) -> None:
    killed = sandbox.run({}, ["sh", "-c", "kill -SEGV $$"], ResourceLimits())
    assert (killed.reason, killed.exit_code, killed.signal) == ("signal", None, 11)
    absent = sandbox.run({}, ["no-such-program"], ResourceLimits())
    assert not absent.succeeded
    assert b"no-such-program" in absent.stderr
    broken = sandbox.run({"program": b"\x7fELF is all of it"}, ["./program"], ResourceLimits())
    assert not broken.succeeded


def test_environment_holds_four_names(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPPLM_TEST_SECRET", "1")
    names = {
        line.split("=")[0] for line in sandbox.run({}, ["env"], ResourceLimits()).stdout.decode().splitlines()
    }
    assert {"PATH", "HOME", "TMPDIR", "LC_ALL"} <= names <= {"PATH", "HOME", "TMPDIR", "LC_ALL", "PWD"}


def test_programs_do_not_run_as_root(sandbox: Sandbox) -> None:
    uid = int(sandbox.run({}, ["id", "-u"], ResourceLimits()).stdout)
    assert uid != 0
    assert sandbox.name == "landlock" or uid == 65534


@pytest.mark.parametrize(
    "name",
    ["../x", "a/../b", "/a", "a//b", "a/", "a/.b", "", ".", "..", "-" * 101, "a\n", "a/b\n", ".hidden",
     "/".join("a" * 17)],
)  # fmt: skip
def test_only_plain_names(sandbox: Sandbox, name: str) -> None:
    """Files may lie in folders; what is fetched may not."""
    for files, fetch in (({name: b""}, {}), ({}, {name: 1}), ({}, {"a/b": 1})):
        with pytest.raises(ValueError, match="plain file name"):
            sandbox.run(files, ["true"], ResourceLimits(), fetch=fetch)


def test_many_threads_at_once(sandbox: Sandbox) -> None:
    def run(number: int) -> bytes:
        text = f"{number}".encode()
        return sandbox.run({"n": text}, ["sh", "-c", "cp n m; cat m"], WRITABLE, fetch={"m": 9}).files["m"]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(run, range(24))) == [f"{number}".encode() for number in range(24)]


def test_runs_leave_no_descriptors_and_no_folders(sandbox: Sandbox, work_folders: list[Path]) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for limits in (ResourceLimits(), ResourceLimits(wall_seconds=0.05), ResourceLimits(output_bytes=1)):
        sandbox.run({}, ["sh", "-c", "echo long enough; sleep 0.2"], limits)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert_removed(sandbox, work_folders)


@pytest.mark.slow
def test_death_of_the_harness_ends_the_program(sandbox: Sandbox) -> None:
    """kill -9 in the middle of a run: the program goes with it; a working folder on the host stays."""
    seconds = f"86397.{os.getpid()}"  # nobody else sleeps as long
    code = f"""
        import tempfile
        from cpplm.sandbox.backends import BACKENDS
        from cpplm.sandbox.limits import ResourceLimits
        from cpplm.sandbox.sandbox import Sandbox
        def mkdtemp(real=tempfile.mkdtemp, **options):
            print(folder := real(**options), flush=True)
            return folder
        tempfile.mkdtemp = mkdtemp
        backend = next(b for b in BACKENDS if b.mode == {sandbox.name!r})
        Sandbox(backend).run({{}}, ["sleep", "{seconds}"], ResourceLimits(wall_seconds=300))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    harness = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def sleepers() -> list[psutil.Process]:
        return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", seconds]]

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + 60
        while len(sleepers()) != count:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    wait_for(1)
    harness.kill()
    wait_for(0)
    left = harness.communicate()[0].splitlines()
    assert len(left) == (sandbox.name != "namespaces")
    for folder in left:
        shutil.rmtree(folder)


def test_probe_takes_the_strongest_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sandbox_module,
        "backend_problem",
        lambda backend: "" if backend.mode in {"bubblewrap", "landlock"} else "broken",
    )
    assert Sandbox.probe().name == "bubblewrap"


def test_description_for_doctor() -> None:
    best, _, weakest = (Sandbox(backend).describe() for backend in BACKENDS)
    assert best["backend"] == "namespaces"
    assert best["fix"] == ""
    assert "network" in best["isolates"]
    assert "outlive" in weakest["lacks"]
    assert "apt-get install bubblewrap" in weakest["fix"]


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="Linux only"):
        Sandbox.probe(unsafe=True)


def test_nothing_runs_when_no_backend_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "backend_problem", lambda backend: f"{backend.mode} is closed")
    with pytest.raises(UserError) as caught:
        Sandbox.probe()
    for words in ("namespaces is closed", "bubblewrap is closed", "landlock is closed", "apt-get install"):
        assert words in str(caught.value)


def test_unsafe_is_loud_and_never_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert UNSAFE not in BACKENDS
    chosen = Sandbox.probe(unsafe=True)
    assert "NO isolation" in capsys.readouterr().err
    assert chosen.name == "unsafe"
    assert chosen.run({"a": b"x"}, ["cat", "a"], ResourceLimits()).stdout == b"x"


def test_probing_finds_missing_isolation() -> None:
    assert "leak" in probe_backend(UNSAFE)


def test_a_report_of_something_unknown_is_an_error() -> None:
    reply = _LauncherReply(b"", b"", b"maximum 0 0 0\nrecursion depth exceeded", None, 0.0)
    with pytest.raises(SandboxError, match="'maximum': recursion depth"):
        _result(reply, ResourceLimits(), [], "namespaces")


def test_a_lost_launcher_is_an_error(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "_START", "import os; os._exit(3)")
    with pytest.raises(SandboxError, match="without a report"):
        sandbox.run({}, ["true"], ResourceLimits())


@pytest.mark.parametrize("field", ["wall_seconds", "cpu_seconds", "memory_bytes", "processes", "open_files"])
def test_limits_must_be_positive(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ResourceLimits(**{field: 0})
