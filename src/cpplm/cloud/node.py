"""`python -m cpplm.cloud.node`: what a machine does. Fetch corpus and tokenizer, train, keep the logs.

Run and attempt are in the environment, as `cpplm.train.attempt` reads them. A machine whose attempt is over
ends at once. Exit status: that of `cpplm train`; 75 after a signal to stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from cpplm.cloud.catalog import slice_type
from cpplm.cloud.inputs import fetch_corpus, fetch_tokenizer
from cpplm.cloud.spec import RunSpec, read_spec
from cpplm.core.errors import UserError
from cpplm.core.heartbeat import Heartbeat, read_heartbeat
from cpplm.core.lease import FencedStorage, open_lease
from cpplm.core.progress import log_info
from cpplm.core.run_log import LOG
from cpplm.core.settings import to_arguments
from cpplm.core.shutdown import ATTEMPT, PREEMPTED_STATUS, RUN
from cpplm.core.storage import Storage
from cpplm.train.settings import TrainSettings

OUTPUT = "output.txt"
_UPLOAD_SECONDS = 20.0


def main() -> int:
    """Take the part of one attempt; returns the exit status."""
    run = Storage(os.environ[RUN])
    attempt = int(os.environ[ATTEMPT])
    lease = open_lease(run, attempt)
    lease.check(run)
    fenced = FencedStorage(run.location, lease, run)
    spec = read_spec(run)
    is_first = os.environ.get("CPPLM_WORKER", "0") == "0"
    folder = Path("run")
    if is_first:
        _write_heartbeat(fenced, attempt, "setup", "fetching the corpus")
        _fetch_log(run, attempt, folder)
    corpus = fetch_corpus(spec, Path("corpus"))
    tokenizer = fetch_tokenizer(spec, Path("tokenizer"))
    command = train_command(spec, corpus, tokenizer, str(folder))
    status = _train(command, run, f"logs/attempt_{attempt:06d}", is_first=is_first)
    if is_first and status not in (0, PREEMPTED_STATUS):
        _write_heartbeat(fenced, attempt, "failed", f"exit status {status}: {_last_line()}")
    return status


def _write_heartbeat(run: FencedStorage, attempt: int, state: str, message: str) -> None:
    """Speak before there is a trainer, and where it has ended without a word.

    Raises:
        FencedError: another attempt has taken over.
    """
    before = read_heartbeat(run)
    step = before.step if before is not None else 0
    Heartbeat(attempt, state, step, round(time.time(), 3), message=message).write(run)


def train_command(spec: RunSpec, corpus: str, tokenizer: str, folder: str) -> list[str]:
    """The command line that trains."""
    several = spec.backend == "cloud" and slice_type(spec.type).hosts > 1
    checkpoints = f"{spec.run.rstrip('/')}/checkpoints"
    command = [sys.executable, "-m", "cpplm.cli.main", "train", corpus, "--tokenizer", tokenizer]
    command += ["--out", folder, "--backend", "jax"]
    # Several hosts write their shards of a checkpoint to the bucket themselves.
    command += ["--multi_host", "--checkpoint_dir", checkpoints] if several else ["--upload_dir", checkpoints]
    pause = min(10.0, spec.heartbeat_seconds / 6)
    return command + to_arguments(TrainSettings, {"heartbeat_seconds": pause} | spec.train, where=spec.run)


def _train(command: list[str], run: Storage, logs: str, *, is_first: bool) -> int:
    """Run it, with a signal to stop passed on; what it writes is uploaded now and then, and at the end."""
    with Path(OUTPUT).open("ab") as output:
        trainer = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        stopping = threading.Event()

        def stop(*_: object) -> None:
            stopping.set()
            trainer.send_signal(signal.SIGTERM)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        with _uploads(run, logs) if is_first else contextlib.nullcontext():
            status = trainer.wait()
        return PREEMPTED_STATUS if stopping.is_set() and status else status


@contextlib.contextmanager
def _uploads(run: Storage, logs: str) -> Iterator[None]:
    over = threading.Event()

    def work() -> None:
        while not over.wait(_UPLOAD_SECONDS):
            _upload(run, logs)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_UPLOAD_SECONDS)
        _upload(run, logs)


def _upload(run: Storage, logs: str) -> None:
    """A log that cannot be kept is no reason to end."""
    for path in (Path(OUTPUT), Path("run") / LOG):
        with contextlib.suppress(UserError, FileNotFoundError):
            run.write(f"{logs}/{path.name}", path.read_bytes())


def _fetch_log(run: Storage, attempt: int, folder: Path) -> None:
    """The run log as the machine before left it: training cuts it where it goes on."""
    earlier = [name for name in run.list_names("logs") if name.endswith(f"/{LOG}")]
    earlier = [name for name in earlier if name < f"logs/attempt_{attempt:06d}"]
    if earlier and not (folder / LOG).exists():
        folder.mkdir(exist_ok=True)
        (folder / LOG).write_bytes(run.read(earlier[-1]))


def _last_line() -> str:
    lines = Path(OUTPUT).read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else ""


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(PREEMPTED_STATUS))
    try:
        sys.exit(main())
    except UserError as error:
        log_info(f"cpplm: {error}")
        sys.exit(2)
