"""The watcher's loop: two of them, killed ones, a bucket or a cloud that does not answer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cpplm.cloud.backend import CloudError, Fault, Node, NodeRequest, NodeState
from cpplm.cloud.spec import STOP, RunSpec, write_spec
from cpplm.cloud.watch import Watcher, read_state
from cpplm.core.errors import UserError
from cpplm.core.storage import Storage
from cpplm.train.report.machine_timeline import read_timeline
from tests.train.checkpoints import save


class Clock:
    """Stands still until somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class MemoryBackend:
    """Machines that are ready at once. `fault` is raised by every request, `lose` by the next one made."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.requests: list[NodeRequest] = []
        self.fault: Fault | None = None
        self.listings = 0

    def _fail(self) -> None:
        if self.fault is not None:
            raise CloudError(self.fault, "made to fail")

    def create(self, request: NodeRequest) -> None:
        self._fail()
        if any(each.name == request.name for each in self.requests):
            raise CloudError(Fault.EXISTS, "there")
        self.requests.append(request)
        self.nodes[request.name] = Node(
            request.name, request.zone, NodeState.READY, run=request.run, attempt=request.attempt
        )

    def list(self) -> list[Node]:
        self.listings += 1
        self._fail()
        return list(self.nodes.values())

    def delete(self, node: Node) -> None:
        self._fail()
        self.nodes.pop(node.name)

    def stop(self, node: Node) -> None:
        raise AssertionError


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cloud() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def run(tmp_path: Path) -> Storage:
    storage = Storage(tmp_path / "run", create=True)
    write_spec(storage, RunSpec(storage.location, "c", "t", backend="local", price_per_hour=3600.0))
    return storage


def beat(run: Storage, attempt: int, state: str, step: int = 0, **more: Any) -> None:
    values = {"attempt": attempt, "state": state, "step": step, "loss": None, "tokens_per_second": None}
    run.write_json("heartbeat.json", {**values, "time": 0.0, "message": "", **more})


def events(run: Storage, *kinds: str) -> list[str]:
    return [event["text"] for event in read_timeline(run) if event["event"] in kinds]


def rounds(watcher: Watcher, clock: Clock, number: int) -> None:
    for _ in range(number):
        seconds = watcher.round()
        assert seconds is not None
        clock.sleep(seconds)


def watcher_of(run: Storage, cloud: MemoryBackend, clock: Clock) -> Watcher:
    return Watcher(run, cloud, now=clock, sleep=clock.sleep)


def test_a_run_to_its_end(run: Storage, cloud: MemoryBackend, clock: Clock) -> None:
    watcher = watcher_of(run, cloud, clock)
    rounds(watcher, clock, 2)
    assert [request.attempt for request in cloud.requests] == [1]
    assert cloud.requests[0].metadata == {"cpplm-run": run.location, "cpplm-attempt": "1"}
    for state, step in (("setup", 0), ("compiling", 0), ("training", 0), ("training", 3), ("training", 4)):
        beat(run, 1, state, step)
        rounds(watcher, clock, 1)
    save(Storage(run.path("checkpoints"), create=True), 5)
    beat(run, 1, "done", 5)
    state = watcher.watch()
    assert (state.outcome, cloud.nodes) == ("done", {})
    assert events(run, "heartbeat", "first_step", "checkpoint", "finish") == [
        "setup", "compiling", "training", "first new step: 3", "done, step 5", "checkpoint of step 5",
        "done: trained to step 5",
    ]  # fmt: skip
    assert watcher_of(run, cloud, clock).watch().outcome == "done"
    assert len(cloud.requests) == 1


def test_a_killed_watcher_is_followed_by_one_that_remembers(
    run: Storage, cloud: MemoryBackend, clock: Clock
) -> None:
    rounds(watcher_of(run, cloud, clock), clock, 3)
    clock.sleep(200)
    second = watcher_of(run, cloud, clock)
    rounds(second, clock, 3)
    assert len(cloud.requests) == 1
    assert len(events(run, "create", "node")) == 2
    assert len(events(run, "watcher")) == 2
    assert second.state.cost(second.spec.hourly_price, clock()) == pytest.approx(clock() - 1_000_001.0, abs=1)


def test_a_watcher_acts_when_it_has_read_what_the_one_before_remembered(
    run: Storage, cloud: MemoryBackend, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds(watcher_of(run, cloud, clock), clock, 3)
    clock.sleep(200)
    second, listings = watcher_of(run, cloud, clock), cloud.listings
    for failing in ("cpplm.cloud.watch.read_state", "cpplm.cloud.watch.read_timeline"):
        with monkeypatch.context() as context:

            def fail(*_: Any) -> None:
                raise UserError("connection refused")

            context.setattr(failing, fail)
            rounds(second, clock, 3)
        assert (cloud.listings, len(cloud.nodes)) == (listings, 1)
    rounds(second, clock, 3)
    assert (len(cloud.requests), list(cloud.nodes)) == (1, [cloud.requests[0].name])


def test_of_two_watchers_one_acts(run: Storage, cloud: MemoryBackend, clock: Clock) -> None:
    first, second = watcher_of(run, cloud, clock), watcher_of(run, cloud, clock)
    for _ in range(10):
        rounds(first, clock, 1)
        listings = cloud.listings
        rounds(second, clock, 1)
        assert cloud.listings == listings
    assert len(cloud.requests) == 1


def test_a_watcher_that_was_paused_does_nothing_more(
    run: Storage, cloud: MemoryBackend, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here between its decision and its request."""
    first, second = watcher_of(run, cloud, clock), watcher_of(run, cloud, clock)
    create = first._create

    def pause(*arguments: Any) -> None:
        for _ in range(20):
            rounds(second, clock, 1)
        create(*arguments)

    monkeypatch.setattr(first, "_create", pause)
    rounds(first, clock, 1)
    assert [request.attempt for request in cloud.requests] == [1]
    assert len(cloud.nodes) == 1
    monkeypatch.undo()
    listings = cloud.listings
    rounds(first, clock, 3)  # beside the other one
    assert cloud.listings == listings


def test_a_bucket_that_does_not_answer_changes_nothing(
    run: Storage, cloud: MemoryBackend, clock: Clock, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    watcher = watcher_of(run, cloud, clock)
    rounds(watcher, clock, 2)
    listings = cloud.listings

    def fail(name: str) -> bool:
        raise UserError("cannot look up heartbeat.json: connection refused")

    capsys.readouterr()
    with monkeypatch.context() as context:
        context.setattr(run, "exists", fail)
        begin = clock()
        rounds(watcher, clock, 20)
        assert clock() - begin > 15 * 300
    assert capsys.readouterr().err.count("the bucket does not answer") == 1
    assert (cloud.listings, len(cloud.nodes)) == (listings, 1)


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.REFUSED])
def test_a_cloud_that_does_not_answer_is_told_once_and_asked_seldom(
    fault: Fault, run: Storage, cloud: MemoryBackend, clock: Clock
) -> None:
    watcher = watcher_of(run, cloud, clock)
    rounds(watcher, clock, 2)
    cloud.fault, begin, listings = fault, clock(), cloud.listings
    while clock() < begin + 24 * 3600:
        rounds(watcher, clock, 1)
    assert (cloud.listings - listings) / 24 < 10
    cloud.fault = None
    rounds(watcher, clock, 2)
    assert events(run, "fault") == [f"the listing failed: {fault}: made to fail", "the listing works again"]
    assert len(cloud.requests) == 2  # its heartbeat was lost by then


def test_an_invalid_request_is_told_and_ends_the_run(
    run: Storage, cloud: MemoryBackend, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: NodeRequest) -> None:
        raise CloudError(Fault.INVALID, "no such runtime")

    monkeypatch.setattr(cloud, "create", refuse)
    state = watcher_of(run, cloud, clock).watch()
    assert (state.outcome, state.message) == ("failed", "no such runtime")


def test_a_run_is_stopped_and_goes_on_when_it_is_run_again(
    run: Storage, cloud: MemoryBackend, clock: Clock
) -> None:
    watcher = watcher_of(run, cloud, clock)
    rounds(watcher, clock, 2)
    run.write_json(STOP, {"launch": watcher.spec.launch})
    assert watcher.watch().outcome == "stopped"
    assert cloud.nodes == {}
    write_spec(run, watcher.spec)
    again = watcher_of(run, cloud, clock)
    rounds(again, clock, 3)
    assert [request.attempt for request in cloud.requests] == [1, 2]
    assert read_state(run).outcome == ""
    assert read_state(run).spent > 0


def test_a_budget_deletes_the_machine(run: Storage, cloud: MemoryBackend, clock: Clock) -> None:
    watcher = watcher_of(run, cloud, clock)
    write_spec(run, replace(watcher.spec, max_cost=100.0))
    state = watcher.watch()  # a dollar per second
    assert (state.outcome, cloud.nodes) == ("budget", {})
    assert 100 <= state.spent < 125


def test_machines_of_others_are_left_alone(run: Storage, cloud: MemoryBackend, clock: Clock) -> None:
    cloud.nodes["theirs"] = Node("theirs", "a", NodeState.PREEMPTED, run="another", attempt=1)
    cloud.nodes["by hand"] = Node("by hand", "a", NodeState.FAILED)
    rounds(watcher_of(run, cloud, clock), clock, 5)
    assert {"theirs", "by hand"} < set(cloud.nodes)


def test_a_damaged_time_line_is_one_line(run: Storage, cloud: MemoryBackend, clock: Clock) -> None:
    run.write("watcher/timeline.jsonl", json.dumps({}).encode() + b"\n{")
    with pytest.raises(UserError, match="is no time line"):
        read_timeline(run)
