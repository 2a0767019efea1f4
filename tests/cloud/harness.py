"""A small training run on the loopback: a bucket, a cloud, watchers as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpplm.cloud.cloud_tpu import ENDPOINT
from cpplm.core.heartbeat import read_heartbeat
from cpplm.core.run_log import read_run_log
from cpplm.core.storage import Storage
from cpplm.train.checkpoint.format import open_checkpoint
from cpplm.train.report.machine_timeline import read_timeline
from tests.cloud.fake_tpu import FakeTpu, fake_tpu
from tests.moto_bucket import environment, serve_moto

STEPS, SAVE_EVERY = 40, 4
# Imported by each Python process of a machine: the steps of its trainer take a while.
SLOW_STEPS = """
import sys
if "train" in getattr(sys, "orig_argv", ()):
    import time
    from cpplm.train.attempt import HeartbeatCallback
    on_step = HeartbeatCallback.on_step
    def slow(*arguments):
        on_step(*arguments)
        time.sleep({seconds})
    HeartbeatCallback.on_step = slow
"""
TRAIN = {
    "preset": "llama", "depth": 1, "aspect_ratio": 32, "head_dim": 16, "max_seq_len": 64,
    "device_batch_size": 2, "total_batch_size": 128, "num_iterations": STEPS, "eval_every": -1,
    "sample_every": -1, "memory_every": -1, "save_every": SAVE_EVERY, "save_minutes": -1.0,
    "device_type": "cpu", "heartbeat_seconds": 0.2,
}  # fmt: skip
SPEC = {
    "type": "v6e-4", "zones": ["us-east5-b", "asia-northeast1-b"], "spot": True, "setup_seconds": 300.0,
    "poll_seconds": 0.3,
    "heartbeat_seconds": 60.0, "takeover_seconds": 4.0, "max_creates_per_hour": 1000,
    "python": sys.executable,
}  # fmt: skip


def write_recipe(path: Path, values: dict[str, Any], train: dict[str, Any]) -> Path:
    """TOML; its strings, numbers and lists are written as JSON's."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    lines += ["[train]", *(f"{name} = {json.dumps(value)}" for name, value in train.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


@dataclass
class Loopback:
    """Everything that a run needs, and the run."""

    folder: Path
    environment: dict[str, str]
    fake: FakeTpu
    recipe: Path
    url: str
    watchers: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def run(self) -> Storage:
        return Storage(self.url, create=True)

    def cpplm(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "cpplm.cli.main", *map(str, arguments)],
            capture_output=True, text=True, check=False, timeout=300, env={**os.environ, **self.environment},
        )  # fmt: skip

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """A watcher in a process of its own; what it writes goes into a file."""
        output = (self.folder / f"watcher_{len(self.watchers)}.txt").open("w")
        watcher = subprocess.Popen(
            [sys.executable, "-m", "cpplm.cli.main", *map(str, arguments)],
            stdout=output, stderr=subprocess.STDOUT, text=True, env={**os.environ, **self.environment},
        )  # fmt: skip
        self.watchers.append(watcher)
        return watcher

    def output(self, number: int) -> str:
        return (self.folder / f"watcher_{number}.txt").read_text()

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in read_timeline(self.run) if not kinds or event["event"] in kinds]

    def wait(self, condition: Callable[[], object], seconds: float = 300.0) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "\n".join(self.output(n) for n in range(len(self.watchers)))
            time.sleep(0.02)

    def is_at(self, state: str, machine: str) -> bool:
        """True if the trainer of this machine says so."""
        beat = read_heartbeat(self.run)
        return beat is not None and machine.endswith(f"-{beat.attempt}") and beat.state == state

    def lost_steps(self) -> list[int]:
        """Steps that were made again, for each attempt that trained and the next one that did."""
        lost, end = list[int](), -1
        for name, made in self.fake.made_at.items():
            path = self.fake.folder / name / "work/run/log.jsonl"
            log = [r for r in read_run_log(path) if r["time"] > made] if path.exists() else []
            begins = [record["step"] for record in log if record["event"] == "session"]
            if not begins:  # it was taken away before it began
                continue
            lost += [end - begins[0]] if end >= 0 else []
            end = max((record["step"] for record in log if record["event"] == "step"), default=begins[0])
        return lost

    def weights(self) -> dict[str, Any]:
        """Hashes of the files of the last checkpoint that training decides."""
        checkpoint = open_checkpoint(Storage(f"{self.url}/checkpoints"))
        names = [name for name in checkpoint.files if name.endswith(".safetensors")]
        return {"step": checkpoint.step, **{name: checkpoint.files[name]["sha256"] for name in names}}


@contextmanager
def loopback(
    folder: Path,
    corpus: Path,
    tokenizer: Path,
    name: str = "run",
    step_seconds: float = 0.0,
    train: dict[str, Any] | None = None,
    **spec: Any,
) -> Iterator[Loopback]:
    """A bucket, a cloud and a recipe; the environment of this process leads to the bucket."""
    folder.mkdir(parents=True, exist_ok=True)
    with serve_moto() as address, contextlib.ExitStack() as stack:
        values = {**environment(address), "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
        (folder / "sitecustomize.py").write_text(SLOW_STEPS.format(seconds=step_seconds))
        values["PYTHONPATH"] = f"{os.environ.get('PYTHONPATH', '')}:{folder}"
        values |= {"XLA_FLAGS": "", "NO_PROXY": "127.0.0.1"}
        _let_machines_fetch_packages(address)
        before = {key: os.environ.get(key) for key in values}
        os.environ |= values
        fake = stack.enter_context(fake_tpu(folder / "nodes", values))
        values[ENDPOINT] = fake.address
        url = spec.get("run") or f"s3://runs/{name}"
        recipe = write_recipe(
            folder / "recipe.toml",
            {"run": url, "corpus": str(corpus), "tokenizer": str(tokenizer), **SPEC, **spec},
            {**TRAIN, **(train or {})},
        )
        made = Loopback(folder, values, fake, recipe, url)
        try:
            yield made
        finally:
            for watcher in made.watchers:
                watcher.kill()
                watcher.wait()
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value


def _let_machines_fetch_packages(address: str) -> None:
    """A machine in the cloud has an account of its own; here, packages are public."""
    allow = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject"}
    policy = {"Version": "2012-10-17", "Statement": [{**allow, "Resource": "arn:aws:s3:::runs/*/packages/*"}]}
    request = urllib.request.Request(
        f"{address}/runs?policy",
        json.dumps(policy).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    urllib.request.urlopen(request).close()
