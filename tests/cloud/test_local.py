"""Machines that are local processes or Slurm jobs, by executables that keep a queue in files."""

import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cpplm.cloud.backend import CloudError, Fault, Node, NodeRequest, NodeState, find
from cpplm.cloud.local import Local
from cpplm.cloud.slurm import Slurm
from cpplm.core.errors import UserError

# Stands for `cpplm.cloud.node`: says who it is, then does what a file tells it.
NODE = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print(os.environ["CPPLM_RUN"], os.environ["CPPLM_ATTEMPT"], flush=True)
while not pathlib.Path("end").exists():
    time.sleep(0.01)
sys.exit(int(pathlib.Path("end").read_text()))
"""


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Local:
    """Its processes run the program above."""
    package = tmp_path / "modules" / "cpplm" / "cloud"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "node.py").write_text(NODE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    return Local(tmp_path / "nodes", grace_seconds=5.0)


def request(attempt: int = 1) -> NodeRequest:
    metadata = {"cpplm-run": "/some where/$(id)", "cpplm-attempt": str(attempt)}
    return NodeRequest(f"x-{attempt}", "local", run="x", attempt=attempt, metadata=metadata)


def wait_for(backend: Local | Slurm, name: str, state: NodeState) -> Node:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if (node := find(backend, name)).state is state:
            return node
        time.sleep(0.02)
    raise AssertionError(backend.list())


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def said(output: Path) -> str:
    return output.read_text() if output.exists() else ""


@pytest.mark.parametrize(
    ("status", "state"), [(0, NodeState.STOPPED), (3, NodeState.FAILED), (75, NodeState.PREEMPTED)]
)
def test_a_process_that_ends_by_itself(status: int, state: NodeState, local: Local, tmp_path: Path) -> None:
    local.create(request())
    node = wait_for(local, "x-1", NodeState.READY)
    assert (node.run, node.attempt) == ("x", 1)
    wait_until(lambda: said(tmp_path / "nodes/x-1/output.txt") == "/some where/$(id) 1\n")
    (tmp_path / "nodes/x-1/end").write_text(str(status))
    node = wait_for(local, "x-1", state)
    local.delete(node)
    assert local.list() == []
    with pytest.raises(CloudError) as raised:
        local.delete(node)
    assert raised.value.fault is Fault.MISSING


def test_a_name_is_used_once(local: Local) -> None:
    local.create(request())
    for _ in range(2):
        with pytest.raises(CloudError) as raised:
            local.create(request())
        assert raised.value.fault is Fault.EXISTS
        if nodes := local.list():
            local.delete(nodes[0])


def test_a_killed_process_was_preempted(local: Local, tmp_path: Path) -> None:
    local.create(request())
    pid = int((tmp_path / "nodes/x-1/pid").read_text())
    os.killpg(pid, signal.SIGKILL)
    wait_for(local, "x-1", NodeState.PREEMPTED)


def test_deleting_ends_the_process_by_sigterm(local: Local, tmp_path: Path) -> None:
    local.create(request())
    wait_until(lambda: said(tmp_path / "nodes/x-1/output.txt"))
    pid = int((tmp_path / "nodes/x-1/pid").read_text())
    children = psutil.Process(pid).children(recursive=True)
    assert len(children) == 1
    local.delete(find(local, "x-1"))
    assert not children[0].is_running() or children[0].status() == psutil.STATUS_ZOMBIE
    with pytest.raises(CloudError):
        local.stop(Node("x-1", "local", NodeState.READY))


# ---- Slurm ------------------------------------------------------------------------------------------------

# sbatch, squeue, scancel and scontrol: jobs are folders, each a process group.
SLURM = """#!{python}
import os, pathlib, signal, subprocess, sys
jobs, name, words = pathlib.Path({jobs!r}), pathlib.Path(sys.argv[0]).name, sys.argv[1:]
if (jobs / "broken").exists():
    sys.exit("slurm_load_jobs error: Unable to contact slurm controller")
flags = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)

def start(job):
    child = subprocess.Popen(["bash", str(job / "script")], start_new_session=True, cwd=job,
        env={{**os.environ, "SLURM_JOB_ID": job.name}}, stdout=(job / "out").open("ab"),
        stderr=subprocess.STDOUT)
    (job / "pid").write_text(str(child.pid))

def state(job):
    if (job / "cancelled").exists():
        return "CANCELLED"
    try:
        os.kill(int((job / "pid").read_text()), 0)
        return "RUNNING"
    except ProcessLookupError:
        return "COMPLETED"

if name == "sbatch":
    if "--partition=none" in words:
        sys.exit("sbatch: error: invalid partition specified: none")
    job = jobs / str(100 + len(list(jobs.glob("1*"))))
    job.mkdir()
    (job / "script").write_text(sys.stdin.read())
    (job / "flags").write_text(" ".join(words))
    (job / "line").write_text("|".join([job.name, flags["job-name"], "STATE", "2026-11-25T10:00:00",
                                        flags["comment"], "None"]))
    start(job)
    print(job.name)
elif name == "squeue":
    for job in sorted(jobs.glob("1*")):
        print((job / "line").read_text().replace("STATE", state(job)))
elif name == "scancel":
    job = jobs / words[-1]
    if "--signal=TERM" in words:
        os.killpg(int((job / "pid").read_text()), signal.SIGTERM)
    else:
        (job / "cancelled").touch()
elif name == "scontrol":
    (jobs / words[1] / "requeued").touch()
"""


@pytest.fixture
def jobs(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder, programs = tmp_path / "jobs", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    for name in ("sbatch", "squeue", "scancel", "scontrol"):
        (programs / name).write_text(SLURM.format(python=sys.executable, jobs=str(folder)))
        (programs / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return folder


def test_a_job_is_submitted_once_and_requeues_itself(jobs: Path) -> None:
    slurm = Slurm(("--partition=tpu",))
    assert slurm.list() == []
    slurm.create(request(4))
    with pytest.raises(CloudError) as raised:
        slurm.create(request(4))
    assert raised.value.fault is Fault.EXISTS
    node = wait_for(slurm, "x-4", NodeState.READY)
    assert (node.run, node.attempt, node.address) == ("x", 4, "100")
    flags = (jobs / "100/flags").read_text()
    assert "--requeue" in flags
    assert "--signal=B:TERM@120" in flags
    assert "--partition=tpu" in flags
    wait_until(lambda: said(jobs / "100/out") == "/some where/$(id) 4\n")
    os.kill(int((jobs / "100/pid").read_text()), signal.SIGTERM)  # the time of the job is nearly over
    wait_until((jobs / "100/requeued").exists)


def test_a_cancelled_job_is_gone(jobs: Path) -> None:
    slurm = Slurm()
    slurm.create(request())
    slurm.delete(find(slurm, "x-1"))
    assert slurm.list() == []


def test_a_controller_that_does_not_answer_is_no_empty_queue(jobs: Path) -> None:
    (jobs / "broken").touch()
    for ask in (Slurm().list, lambda: Slurm().create(request())):
        with pytest.raises(CloudError, match="Unable to contact") as raised:
            ask()
        assert raised.value.fault is Fault.UNAVAILABLE


def test_a_partition_that_there_is_not_ends_the_run(jobs: Path) -> None:
    with pytest.raises(CloudError) as raised:
        Slurm(("--partition=none",)).create(request())
    assert raised.value.fault is Fault.INVALID


def test_without_slurm_it_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UserError, match="squeue is not installed"):
        Slurm().list()
