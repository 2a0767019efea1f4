"""Machines that are processes here: a folder for each, which stays after it is deleted.

ROOT/NAME/node.json     what was asked for
          started/      made by the process itself, so that one of two does not go on
          pid, exit_code, output.txt
          deleted       there once it is deleted, so that no name is used twice
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
from typing_extensions import override

from cpplm.cloud.backend import Backend, CloudError, Fault, Node, NodeRequest, NodeState
from cpplm.core.shutdown import ATTEMPT, PREEMPTED_STATUS, RUN

_RUN_AND_RECORD = """
mkdir started || exit 0
echo $$ > pid.tmp && mv pid.tmp pid
"$@" > output.txt 2>&1
echo $? > exit_code.tmp && mv exit_code.tmp exit_code
"""


class Local(Backend):
    """Processes of this machine, in sessions of their own: they outlive who started them."""

    def __init__(self, root: Path | None = None, grace_seconds: float = 30.0) -> None:
        """`grace_seconds` lie between SIGTERM and SIGKILL when a machine is deleted."""
        self._root = root or Path.home() / ".cache" / "cpplm" / "nodes"
        self._grace = grace_seconds

    @override
    def create(self, request: NodeRequest) -> None:
        folder = self._root / request.name
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "started").exists():
            raise CloudError(Fault.EXISTS, f"{request.name} was made before")
        record = {"run": request.run, "attempt": request.attempt, "created": time.time()}
        (folder / "node.json").write_text(json.dumps(record))
        values = request.metadata
        subprocess.Popen(
            ["/bin/sh", "-c", _RUN_AND_RECORD, "sh", sys.executable, "-m", "cpplm.cloud.node"],
            cwd=folder,
            env={**os.environ, RUN: values["cpplm-run"], ATTEMPT: values["cpplm-attempt"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _ in range(500):
            if (folder / "pid").exists():
                return
            time.sleep(0.01)
        raise CloudError(Fault.UNAVAILABLE, f"the process of {request.name} does not start")

    @override
    def list(self) -> list[Node]:
        folders = sorted(self._root.iterdir()) if self._root.is_dir() else []
        return [self._node(each) for each in folders if (each / "pid").exists() and not _is_deleted(each)]

    def _node(self, folder: Path) -> Node:
        record = json.loads((folder / "node.json").read_text())
        state, message = _state(folder)
        return Node(
            folder.name, "local", state, "process", False, record["run"], record["attempt"],
            record["created"], message,
        )  # fmt: skip

    @override
    def delete(self, node: Node) -> None:
        folder = self._root / node.name
        if _is_deleted(folder) or not (folder / "pid").exists():
            raise CloudError(Fault.MISSING, f"no {node.name}")
        _end_session(_pid(folder), self._grace)
        (folder / "deleted").touch()
        shutil.rmtree(folder / "run", ignore_errors=True)  # a deleted machine keeps nothing but its output


def _is_deleted(folder: Path) -> bool:
    return (folder / "deleted").exists()


def _pid(folder: Path) -> int:
    return int((folder / "pid").read_text())


def _is_alive(folder: Path) -> bool:
    """True if the process runs, and is the one that wrote the file."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(_pid(folder))
        written = (folder / "pid").stat().st_mtime
        return process.status() != psutil.STATUS_ZOMBIE and abs(process.create_time() - written) < 30
    return False


def _state(folder: Path) -> tuple[NodeState, str]:
    alive = _is_alive(folder)  # asked before the file: it is written at the end
    with contextlib.suppress(FileNotFoundError):
        status = int((folder / "exit_code").read_text())
        if status == PREEMPTED_STATUS:
            return NodeState.PREEMPTED, "told to stop"
        return (NodeState.STOPPED, "ended") if status == 0 else (NodeState.FAILED, f"exit status {status}")
    return (NodeState.READY, "") if alive else (NodeState.PREEMPTED, "ended without a word")


def _end_session(pid: int, grace: float) -> None:
    """SIGTERM to the processes of a session, and SIGKILL to what is left of them."""
    members = [process for process in psutil.process_iter() if _session(process.pid) == pid]
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in members:
            with contextlib.suppress(psutil.Error):
                end(process)
        _, members = psutil.wait_procs(members, timeout=grace)


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
