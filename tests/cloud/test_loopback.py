"""Whole runs on the loopback: the real client, a bucket, processes as machines, watchers that are killed.

`PREEMPTIONS=20 pytest -s -m slow tests/cloud/test_loopback.py` takes machines away more often.
"""

import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest

from cpplm.core.heartbeat import read_heartbeat
from cpplm.core.lease import current
from cpplm.core.storage import Storage
from cpplm.train.checkpoint.format import committed_steps
from cpplm.train.report.machine_timeline import recoveries
from tests.cloud.harness import Loopback, loopback

PREEMPTIONS = int(os.environ.get("PREEMPTIONS", "4"))
STEPS = 40 + 12 * PREEMPTIONS  # so many that the preemptions are over before the run is
MOMENTS = ("asked for", "setup", "compiling", "training", "training", "training", "saving")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uninterrupted(
    corpus: Path, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """Weights and optimizer state of a run that nothing happens to."""
    folder = tmp_path_factory.mktemp("alone")
    with loopback(folder, corpus, tokenizer_path, train={"num_iterations": STEPS}) as world:
        done = world.cpplm("tpu", "run", "--recipe", world.recipe)
        assert done.returncode == 0, done.stderr
        assert world.fake.nodes == {}
        assert len(world.fake.made) == 1
        weights = world.weights()
        assert weights["step"] == STEPS
        assert len(weights) == 3
        return weights


def newest(world: Loopback) -> int:
    """The attempt whose machine was made last."""
    return int(world.fake.made[-1].rpartition("-")[2]) if world.fake.made else 0


def reached(world: Loopback, attempt: int, moment: str) -> bool:
    """True if the newest attempt, a later one than `attempt`, is at this moment or past it."""
    if newest(world) <= attempt:
        return False
    beat = read_heartbeat(world.run)
    now = beat.state if beat is not None and beat.attempt == newest(world) else "asked for"
    order = ("asked for", "setup", "compiling", "training", "saving")
    if moment == "saving":  # a checkpoint is being uploaded: some of its files are there
        names = world.run.list_names("checkpoints")
        open_steps = {n.split("/")[1] for n in names} - {n.split("/")[1] for n in names if "manifest" in n}
        return now == "training" and bool(open_steps)
    return now in order and order.index(now) >= order.index(moment)


def preempt_at_random(world: Loopback, chance: random.Random, number: int) -> None:
    """Take machines away, with notice or without."""
    attempt = 0
    for _ in range(number):
        moment = chance.choice(MOMENTS)
        until = time.monotonic() + 60  # a moment that is missed is another moment
        world.wait(lambda m=moment, a=attempt, u=until: reached(world, a, m) or (
            newest(world) > a and time.monotonic() > u))  # fmt: skip
        time.sleep(chance.uniform(0.0, 1.0) if moment == "training" else chance.uniform(0.0, 0.3))
        attempt = newest(world)
        cloud_fails(world, chance)
        world.fake.preempt(world.fake.made[-1], warn=chance.random() < 0.5)


def cloud_fails(world: Loopback, chance: random.Random) -> None:
    """Some of the next requests fail, or are carried out without an answer."""
    code = chance.choice([grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED, None])
    for method in chance.sample(["CreateQueuedResource", "DeleteQueuedResource", "ListNodes"], 2):
        if code is None:
            world.fake.lose_answers.append(method)
        else:
            world.fake.faults.append((method, code))


def test_preemptions_change_nothing(
    uninterrupted: dict[str, Any], corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    train = {"num_iterations": STEPS}
    with loopback(tmp_path, corpus, tokenizer_path, train=train, step_seconds=0.1) as world:
        world.fake.queue_seconds = world.fake.create_seconds = 0.3
        world.fake.out_of_stock.add("us-east5-b")
        watcher = world.start("tpu", "run", "--recipe", world.recipe)
        preempt_at_random(world, random.Random(1), PREEMPTIONS)
        assert watcher.wait(600) == 0, world.output(0)
        assert world.weights() == uninterrupted
        assert world.fake.nodes == {}
        assert world.fake.most_alive == 1
        assert {event["zone"] for event in world.events("node")} == {"asia-northeast1-b"}
        lost, again = world.lost_steps(), recoveries(world.events())
        print(f"{len(world.fake.made)} machines; steps lost {lost}")
        for each in again:
            print({name: round(value, 1) for name, value in each.items() if name != "seen"})
        assert len(world.fake.made) > PREEMPTIONS
        assert again


def leader(world: Loopback, watchers: Sequence[subprocess.Popen[Any]]) -> subprocess.Popen[Any] | None:
    """The watcher that holds the lease; None while a dead one does."""
    holder = current(world.run, folder="watcher/lease")
    return next((w for w in watchers if holder and holder.owner.endswith(f":{w.pid}")), None)


def test_two_watchers_one_killed_at_random(
    uninterrupted: dict[str, Any], corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    chance = random.Random(2)
    with loopback(
        tmp_path, corpus, tokenizer_path, train={"num_iterations": STEPS}, step_seconds=0.3
    ) as world:
        assert world.cpplm("tpu", "run", "--recipe", world.recipe, "--detach").returncode == 0
        watchers = [world.start("tpu", "watch", world.url) for _ in range(2)]
        before = 0
        for _ in range(3):
            world.wait(lambda b=before: newest(world) > b)
            time.sleep(chance.uniform(0.0, 6.0))
            before = newest(world)
            world.fake.preempt(world.fake.made[-1], warn=False)
            time.sleep(chance.uniform(0.0, 1.0))
            world.wait(lambda w=tuple(watchers): leader(world, w))
            killed = leader(world, watchers)
            assert killed is not None
            killed.send_signal(signal.SIGKILL)
            watchers = [w for w in watchers if w is not killed] + [world.start("tpu", "watch", world.url)]
        assert all(watcher.wait(600) == 0 for watcher in watchers)
        assert world.weights() == uninterrupted
        assert world.fake.most_alive == 1
        assert len(world.fake.made) == len(set(world.fake.made))
        assert world.fake.nodes == {}


def test_a_machine_that_is_lost_and_runs_on_commits_nothing(
    uninterrupted: dict[str, Any], corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    with loopback(
        tmp_path, corpus, tokenizer_path, train={"num_iterations": STEPS}, step_seconds=0.1
    ) as world:
        watcher = world.start("tpu", "run", "--recipe", world.recipe)
        checkpoints = Storage(f"{world.url}/checkpoints", create=True)
        world.wait(lambda: len(committed_steps(checkpoints)) > 1)
        zombie = world.fake.forget(world.fake.made[-1])
        world.wait(lambda: len(world.fake.made) == 2)
        assert zombie.wait(60) not in (0, 75)
        log = (world.fake.folder / world.fake.made[0] / "work" / "output.txt").read_text()
        assert "attempt 2 has taken it over" in log
        assert watcher.wait(600) == 0, world.output(0)
        assert world.weights() == uninterrupted


def test_local_processes_are_watched_too(
    uninterrupted: dict[str, Any], corpus: Path, tokenizer_path: Path, tmp_path: Path
) -> None:
    """A run in a folder; its process is killed twice, its watcher once."""
    spec = {"run": str(tmp_path / "run"), "backend": "local", "spot": False, "zones": []}
    train = {"num_iterations": STEPS}
    with loopback(tmp_path, corpus, tokenizer_path, train=train, step_seconds=0.05, **spec) as world:
        world.environment["HOME"] = str(tmp_path)  # where the processes have their folders
        watcher = world.start("tpu", "run", "--recipe", world.recipe)
        checkpoints = Storage(f"{world.url}/checkpoints", create=True)
        for number in (1, 2):
            before = max(committed_steps(checkpoints), default=0)
            world.wait(lambda b=before: max(committed_steps(checkpoints), default=0) > b)
            if number == 2:
                watcher.kill()
                watcher = world.start("tpu", "watch", world.url)
            pid = next(tmp_path.glob(f".cache/cpplm/nodes/*-{number}/pid"))
            os.killpg(int(pid.read_text()), signal.SIGKILL)
        assert watcher.wait(600) == 0, world.output(1)
        assert world.weights() == uninterrupted
        assert len(list(tmp_path.glob(".cache/cpplm/nodes/*"))) == 3
