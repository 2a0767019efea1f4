"""The watcher's decisions: each state with each event, and random orders of events in a simulated cloud."""

import itertools
import os
from collections import Counter
from dataclasses import replace

import pytest

from cpplm.cloud.backend import Fault, Node, NodeState
from cpplm.cloud.decide import backoff, begin_attempt, decide, settle, update
from cpplm.cloud.spec import RunSpec
from cpplm.cloud.watch_state import (
    Action,
    Create,
    Delete,
    Finish,
    Observed,
    Phase,
    Wait,
    WatchState,
)
from cpplm.core.heartbeat import Heartbeat
from tests.cloud import simulation
from tests.cloud.simulation import TARGET, Simulation

NOW = 1_000_000.0
SPEC = replace(simulation.SPEC, max_cost=100.0)
S = NodeState
BEATS = {
    "none": None,
    "of an earlier attempt": Heartbeat(2, "training", 5),
    **{state: Heartbeat(3, state, 5) for state in
       ("setup", "compiling", "training", "saving", "done", "failed", "preempted")},
}  # fmt: skip
LIVELY = ("setup", "compiling", "training", "saving")


def node(state: NodeState, attempt: int = 3) -> Node:
    return Node(f"n-{attempt}", "a", state, run="x", attempt=attempt)


def known(phase: Phase, beat: Heartbeat | None, *, silent: float = 0.0, **values: object) -> WatchState:
    """Of attempt 3, whose heartbeat has been the same for a while."""
    made = WatchState(
        attempt=3 if phase is not Phase.NONE else 2, phase=phase, zone="a", since=NOW - 60, listed=True,
        ready_since=NOW - 60, heartbeat=repr(beat), heartbeat_since=NOW - silent, progress_since=NOW - silent,
        progress=f"{beat.attempt} {beat.state} {beat.step}" if beat else "",
    )  # fmt: skip
    return replace(made, **values)  # type: ignore[arg-type]


def act(state: WatchState, observed: Observed, spec: RunSpec = SPEC) -> Action:
    return decide(update(state, observed, spec, NOW), observed, spec, NOW)


# ---- each state with each event ---------------------------------------------------------------------------


def expected(state: NodeState, beat: str, *, silent: bool) -> str:
    """The action due for the machine of the present attempt."""
    if state is S.DELETING:
        return "wait"
    if beat == "done" or state in (S.PREEMPTED, S.SUSPENDED, S.FAILED, S.STOPPED):
        return "delete"
    if state in (S.WAITING, S.CREATING):
        return "wait"
    if beat in ("failed", "preempted"):
        return "delete"
    return "delete" if silent and beat in LIVELY else "wait"


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("beat", BEATS)
@pytest.mark.parametrize("state", list(NodeState))
def test_a_machine_in_each_state_with_each_heartbeat(state: NodeState, beat: str, silent: bool) -> None:
    before = known(Phase.MADE, BEATS[beat], silent=301.0 if silent else 1.0)
    action = act(before, Observed((node(state),), None, BEATS[beat], 5))
    assert type(action).__name__.lower() == expected(state, beat, silent=silent)
    assert not isinstance(action, Wait) or action.seconds > 0


def test_what_no_combination_may_lead_to() -> None:
    """Phases, machines, heartbeats, outcomes, faults of the listing: all combinations."""
    seen: Counter[str] = Counter()
    faults = (None, *Fault)
    for phase, state, other, beat, silent, outcome, fault in itertools.product(
        Phase, [None, *NodeState], [None, S.READY, S.DELETING], BEATS, (1.0, 9999.0), ("", "budget"), faults
    ):
        nodes = (*([node(state)] if state else []), *([node(other, 1)] if other else []))
        observed = Observed(nodes if fault is None else None, fault, BEATS[beat], 5)
        before = known(phase, BEATS[beat], silent=silent, outcome=outcome)
        action = act(before, observed)
        seen[type(action).__name__] += 1
        if fault is not None:
            assert isinstance(action, Wait)
            assert action.seconds >= SPEC.poll_seconds
        if isinstance(action, Create):
            assert nodes == ()
            assert (action.attempt == 0) == (phase is not Phase.REQUESTED)
            assert not outcome or phase is Phase.REQUESTED
        if isinstance(action, Finish):
            assert nodes == ()
            assert outcome or beat == "done"
        if isinstance(action, Delete):
            fresh = silent < SPEC.heartbeat_seconds
            healthy = action.node.state in (S.READY, S.UNKNOWN) and beat in LIVELY and fresh
            assert not healthy or outcome or action.node.attempt != before.attempt
    assert set(seen) == {"Wait", "Create", "Delete", "Finish"}
    assert sum(seen.values()) > 20_000


@pytest.mark.parametrize(
    ("fault", "phase", "zone", "again"),
    [
        (None, Phase.MADE, 0, None),
        (Fault.EXISTS, Phase.MADE, 0, None),
        (Fault.UNAVAILABLE, Phase.REQUESTED, 0, 3),
        (Fault.EXHAUSTED, Phase.NONE, 1, 0),
        (Fault.REFUSED, Phase.NONE, 0, 0),
    ],
)
def test_each_answer_to_a_request_for_a_machine(
    fault: Fault | None, phase: Phase, zone: int, again: int | None
) -> None:
    """The same attempt is asked for again only where the answer is not known."""
    action = Create(3, "a")
    state = settle(begin_attempt(WatchState(attempt=2), action, 4, NOW), action, fault, SPEC, NOW)
    assert (state.phase, state.zone_index, state.attempt) == (phase, zone, 3)
    later = decide(state, Observed(()), SPEC, NOW + 3600)
    assert (later.attempt if isinstance(later, Create) else None) == again


def test_an_invalid_request_ends_the_run() -> None:
    action = Create(3, "a")
    state = settle(begin_attempt(WatchState(), action, 4, NOW), action, Fault.INVALID, SPEC, NOW)
    assert isinstance(decide(state, Observed(()), SPEC, NOW), Finish)


def test_zones_are_tried_in_order_and_then_after_a_pause() -> None:
    state, zones, waits = WatchState(), [], []
    now = NOW
    for _ in range(12):
        action = decide(state, Observed(()), SPEC, now)
        if isinstance(action, Create):
            zones.append(action.zone)
            action = Create(state.attempt + 1, action.zone)
            state = begin_attempt(state, action, -1, now)
            state = settle(state, action, Fault.EXHAUSTED, SPEC, now)
        else:
            assert isinstance(action, Wait)
            waits.append(action.seconds)
            now += action.seconds
    assert zones == ["a", "b"] * 4
    assert waits == [10.0, 20.0, 40.0, 80.0]


def test_a_stockout_in_a_queue_goes_to_the_next_zone() -> None:
    state = known(Phase.MADE, None, since=NOW - 1801)
    action = act(state, Observed((node(S.WAITING),)))
    assert isinstance(action, Delete)
    assert action.next_zone
    state = settle(state, action, None, SPEC, NOW)
    state = update(state, Observed(()), SPEC, NOW + 1)
    assert decide(state, Observed(()), SPEC, NOW + 1) == Create(0, "b")
    alone = act(
        known(Phase.MADE, None, since=NOW - 1801), Observed((node(S.WAITING),)), replace(SPEC, zones=("a",))
    )
    assert isinstance(alone, Wait)


def test_a_budget_ends_the_run_and_its_machine() -> None:
    beat = BEATS["training"]
    state = known(Phase.MADE, beat, ready_since=NOW - 10 * 3600 - 1)
    assert state.cost(SPEC.hourly_price, NOW) == pytest.approx(100.0, abs=0.01)
    there = Observed((node(S.READY),), None, beat, 4)
    assert isinstance(act(state, there), Delete)
    state = settle(update(state, there, SPEC, NOW), Delete(node(S.READY), ""), None, SPEC, NOW)
    state = update(state, Observed(()), SPEC, NOW + 5)
    end = decide(state, Observed(()), SPEC, NOW + 5)
    assert isinstance(end, Finish)
    assert end.outcome == "budget"
    assert state.cost(SPEC.hourly_price, NOW + 999) == pytest.approx(100.0, abs=0.05)


def test_attempts_that_get_nowhere_end_the_run_and_progress_forgives() -> None:
    for progress, outcome in ((False, "failed"), (True, "")):
        state, now = WatchState(), NOW
        for attempt in range(1, 6):
            action = Create(attempt, "a")
            state = begin_attempt(state, action, attempt if progress else 0, now)
            state = settle(state, action, None, SPEC, now)
            step = attempt + 1 if progress else 0
            failed = Heartbeat(attempt, "failed", step, message="exit status 1: no space left")
            for nodes in ((node(S.READY, attempt),), ()):
                now += 5000
                state = update(state, Observed(nodes, None, failed, step), SPEC, now)
        assert state.outcome == outcome
        assert ("no space left" in state.message) == (not progress)


def test_a_trainer_that_lives_and_does_nothing_is_given_up() -> None:
    beat = Heartbeat(3, "compiling", 5, time=1.0)
    state = known(Phase.MADE, beat, silent=5401.0)
    action = act(state, Observed((node(S.READY),), None, replace(beat, time=2.0), 4))
    assert isinstance(action, Delete)
    assert "compiling at step 5" in action.reason


def test_done_without_its_checkpoint_is_not_done() -> None:
    there = Observed((node(S.READY),), None, BEATS["done"], 4)
    action = act(known(Phase.MADE, BEATS["done"]), there)
    assert isinstance(action, Delete)
    assert action.failed
    assert update(known(Phase.MADE, BEATS["done"]), there, SPEC, NOW).outcome == ""


def test_the_clock_of_a_machine_does_not_matter() -> None:
    beat = Heartbeat(3, "training", 5, time=NOW - 1e6)
    assert isinstance(act(known(Phase.MADE, None), Observed((node(S.READY),), None, beat, 4)), Wait)


def test_requests_are_bounded_whatever_happens() -> None:
    """A cloud that answers nothing but UNAVAILABLE for a day."""
    state, now, creates, looks = WatchState(), NOW, 0, 0
    while now < NOW + 24 * 3600:
        action = decide(state, Observed(()), SPEC, now)
        looks += 1
        if isinstance(action, Create):
            creates += 1
            action = Create(action.attempt or 1, action.zone)
            state = begin_attempt(state, action, -1, now)
            state = settle(state, action, Fault.UNAVAILABLE, SPEC, now)
        now += action.seconds if isinstance(action, Wait) else 1.0
    assert creates / 24 <= 8
    assert looks / 24 <= 20
    assert [backoff(count, SPEC) for count in (0, 1, 2, 3, 99)] == [0.0, 10.0, 20.0, 40.0, 600.0]


def test_a_listing_that_fails_for_a_day_is_asked_for_less_and_less() -> None:
    state, now, looks = WatchState(), NOW, 0
    while now < NOW + 24 * 3600:
        failed = Observed(None, Fault.REFUSED)
        state = update(state, failed, SPEC, now)
        action = decide(state, failed, SPEC, now)
        assert isinstance(action, Wait)
        looks, now = looks + 1, now + action.seconds
    assert looks / 24 <= 7


# ---- random orders of events ------------------------------------------------------------------------------


def simulate(seeds: range) -> Counter[str]:
    """Assertions are in the simulation; how the runs ended."""
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        outcomes[Simulation(seed).run().outcome] += 1
    return outcomes


def test_random_orders_of_events() -> None:
    outcomes = simulate(range(600))
    assert outcomes["done"] > 0.9 * outcomes.total()


@pytest.mark.slow
def test_very_many_random_orders_of_events() -> None:
    number = int(os.environ.get("ORDERS", "20000"))
    outcomes = simulate(range(number))
    assert outcomes["done"] > 0.9 * number


def test_a_run_without_trouble_takes_one_machine() -> None:
    simulation = Simulation(0, trouble=0)
    assert simulation.run().outcome == "done"
    assert simulation.ever_made == {1}
    assert simulation.committed == TARGET
