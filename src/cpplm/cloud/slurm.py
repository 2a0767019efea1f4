"""Machines that are Slurm jobs: `sbatch --requeue`, with a signal before the time is over.

A job that is preempted goes back into the queue by itself and goes on as the same attempt. Names are those of
attempts: a job is not submitted while Slurm knows one of its name.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from datetime import datetime

from typing_extensions import override

from cpplm.cloud.backend import Backend, CloudError, Fault, Node, NodeRequest, NodeState
from cpplm.core.errors import UserError
from cpplm.core.shutdown import ATTEMPT, PREEMPTED_STATUS, RUN

_STATES = {
    "PENDING": NodeState.WAITING, "REQUEUED": NodeState.WAITING, "REQUEUE_HOLD": NodeState.SUSPENDED,
    "CONFIGURING": NodeState.CREATING, "RUNNING": NodeState.READY, "COMPLETING": NodeState.DELETING,
    "SUSPENDED": NodeState.SUSPENDED,
}  # fmt: skip
_ENDED = ("PREEMPTED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL",
          "OUT_OF_MEMORY", "DEADLINE", "REVOKED")  # fmt: skip
_NEVER = ("invalid", "unrecognized", "not found", "denied", "no such")
_SEPARATOR = "|"
_FORMAT = _SEPARATOR.join(("%i", "%j", "%T", "%V", "%k", "%r"))  # id, name, state, submitted, comment, reason


class Slurm(Backend):
    """The jobs of this user."""

    def __init__(self, options: tuple[str, ...] = (), timeout: float = 20.0) -> None:
        """`options` are further ones of sbatch, such as --partition=tpu."""
        self._options, self._timeout = options, timeout

    def _run(self, *command: str, script: str = "") -> str:
        """Output of a command.

        Raises:
            CloudError: it failed.
            UserError: there is no Slurm here.
        """
        try:
            done = subprocess.run(
                command, input=script, capture_output=True, text=True, check=False, timeout=self._timeout
            )
        except FileNotFoundError as error:
            raise UserError(f"{command[0]} is not installed", fix="Run this where Slurm is.") from error
        except subprocess.TimeoutExpired as error:
            raise CloudError(Fault.UNAVAILABLE, f"{command[0]} does not answer") from error
        if done.returncode:
            message = " ".join(done.stderr.split())[:300]
            never = command[0] == "sbatch" and any(word in message.lower() for word in _NEVER)
            raise CloudError(Fault.INVALID if never else Fault.UNAVAILABLE, message)
        return done.stdout

    @override
    def create(self, request: NodeRequest) -> None:
        if any(node.name == request.name for node in self.list()):
            raise CloudError(Fault.EXISTS, f"{request.name} was submitted before")
        environment = {RUN: request.metadata["cpplm-run"], ATTEMPT: str(request.attempt)}
        lines = [
            "#!/bin/bash",
            *(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
            f"mkdir -p {shlex.quote(request.name)} && cd {shlex.quote(request.name)} || exit 1",
            f"{shlex.quote(sys.executable)} -m cpplm.cloud.node & trainer=$!",
            "trap 'kill -TERM $trainer' TERM",
            "wait $trainer; status=$?",
            "while kill -0 $trainer 2>/dev/null; do wait $trainer; status=$?; done",  # a signal ends a wait
            f'if [ $status = {PREEMPTED_STATUS} ]; then scontrol requeue "$SLURM_JOB_ID"; fi',
            "exit $status",
        ]
        self._run(
            "sbatch", "--parsable", "--requeue", "--open-mode=append", "--signal=B:TERM@120",
            f"--job-name={request.name}", f"--comment={request.run}:{request.attempt}", *self._options,
            script="\n".join(lines) + "\n",
        )  # fmt: skip

    @override
    def list(self) -> list[Node]:
        """Jobs that wait or run; of those that have ended, the heartbeat says how."""
        output = self._run("squeue", "--me", "--noheader", f"--format={_FORMAT}")
        found = []
        for line in output.splitlines():
            number, name, state, submitted, comment, reason = line.split(_SEPARATOR, 5)
            run, _, attempt = comment.rpartition(":")
            if run and attempt.isdecimal() and state not in _ENDED:
                found.append(Node(
                    name, "slurm", _STATES.get(state, NodeState.UNKNOWN), "job", False, run, int(attempt),
                    datetime.fromisoformat(submitted).timestamp(), "" if reason == "None" else reason, number,
                ))  # fmt: skip
        return found

    @override
    def delete(self, node: Node) -> None:
        self._run("scancel", "--full", "--signal=TERM", node.address)
        self._run("scancel", node.address)
