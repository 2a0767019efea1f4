"""State machine of a watcher: three pure functions, with the clock as an argument.

    state = update(state, observed, spec, now)       what was seen changes what is known
    action = decide(state, observed, spec, now)      what to do about it
    state = settle(state, action, fault, spec, now)  what came of it

`WatchState` is all that a watcher remembers, and it lies in the bucket: it is written before a request that
makes a machine, and after every answer. So a watcher may be killed at any moment, and the next one goes on.

A machine is asked for under the name of its attempt, and asked for again, under the same name and request id,
until the answer is certain: made, there already, or refused. Only then may there be a next attempt. Machines
of other attempts are deleted on sight; the lease keeps them from writing (`cpplm.core.lease`).
"""

from __future__ import annotations

from dataclasses import replace

from cpplm.cloud.backend import Fault, Node, NodeState
from cpplm.cloud.spec import RunSpec
from cpplm.cloud.watch_state import (
    HOUR,
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

_FIRST_PAUSE, _LONGEST_PAUSE = 10.0, 600.0  # seconds after a fault; they double
_MAX_FAILURES = 5  # attempts that failed by themselves, one after the other, without a new checkpoint
CREATE_SECONDS = 1200.0  # from asked for to ready
_STOCK_SECONDS = 1800.0  # in the queue of a zone before the next one is tried
# Without a further step or another state, though it says that it lives: compiling may take an hour.
_STALL_SECONDS = 5400.0
_DELETE_AGAIN = 60.0
_LISTED_WITHIN = 180.0  # seconds after which a listing shows what was made
_GONE_BAD = (NodeState.PREEMPTED, NodeState.SUSPENDED, NodeState.FAILED, NodeState.STOPPED)


def backoff(count: int, spec: RunSpec) -> float:
    """Seconds to wait after so many faults in a row."""
    first = min(_FIRST_PAUSE, spec.poll_seconds)
    return 0.0 if count < 1 else min(_LONGEST_PAUSE, first * 2.0 ** min(count - 1, 30))


def update(state: WatchState, observed: Observed, spec: RunSpec, now: float) -> WatchState:
    """The state after a look."""
    beat = observed.heartbeat
    if beat is not None and repr(beat) != state.heartbeat:
        state = replace(state, heartbeat=repr(beat), heartbeat_since=now)
        progress = f"{beat.attempt} {beat.state} {beat.step}"
        if progress != state.progress:
            state = replace(state, progress=progress, progress_since=now)
    if not state.outcome:
        state = _ending(state, observed, spec, now)
    if observed.nodes is None:
        return replace(state, list_faults=state.list_faults + 1)
    if state.list_faults:
        state = replace(state, list_faults=0)
    if state.failures and observed.step > state.start_step:  # it gets on
        state = replace(state, failures=0)
    node = current_node(state, observed)
    if beat is not None and beat.attempt == state.attempt and beat.state == "failed":
        state = replace(state, failed=True, reason=beat.message)
    if node is None:
        return close_attempt(state, spec, now) if _is_gone(state, now) else state
    if state.phase is not Phase.MADE:  # asked for by a watcher that heard no answer
        state = replace(state, phase=Phase.MADE, since=now)
    if node.state is NodeState.READY and not state.ready_since:
        state = replace(state, ready_since=now)
    return state if state.listed else replace(state, listed=True)


def _ending(state: WatchState, observed: Observed, spec: RunSpec, now: float) -> WatchState:
    """With the outcome, once there is a reason to end."""
    beat = observed.heartbeat
    own = beat is not None and beat.attempt == state.attempt and state.phase is not Phase.NONE
    if beat is not None and own and beat.state == "done" and observed.step >= beat.step:
        return replace(state, outcome="done", message=f"trained to step {observed.step:,}")
    if 0 <= spec.max_cost <= state.cost(spec.hourly_price, now):
        return replace(state, outcome="budget", message=f"--max_cost {spec.max_cost:g} is reached")
    if observed.stopped:
        return replace(state, outcome="stopped", message="stopped on request")
    return state


def current_node(state: WatchState, observed: Observed) -> Node | None:
    """The machine of the present attempt."""
    return next((node for node in observed.nodes or () if node.attempt == state.attempt), None)


def _is_gone(state: WatchState, now: float) -> bool:
    """An attempt whose machine is not listed any more, or was said to be made and never appeared."""
    return state.phase is Phase.MADE and (state.listed or now - state.since > CREATE_SECONDS)


def close_attempt(state: WatchState, spec: RunSpec, now: float) -> WatchState:
    """The machine is gone: what it cost is added up, and what came of it counts for the next."""
    failures = state.failures + 1
    closed = replace(
        state, phase=Phase.NONE, since=now, listed=False, ready_since=0.0,
        spent=state.cost(spec.hourly_price, now),
        failures=failures, not_before=max(state.not_before, now + backoff(failures - 1, spec)),
    )  # fmt: skip
    if state.failed and failures >= _MAX_FAILURES and not state.outcome:
        return replace(closed, outcome="failed", message=f"{failures} attempts got nowhere: {state.reason}")
    return closed


def decide(  # noqa: PLR0911  (a rule each, in their order)
    state: WatchState, observed: Observed, spec: RunSpec, now: float
) -> Action:
    """The next action; `state` is that of `update` for the same look."""
    if observed.nodes is None:
        pause = max(backoff(state.list_faults, spec), spec.poll_seconds)
        return Wait(pause, f"the listing failed: {observed.fault}")
    others = [node for node in observed.nodes if node.attempt != state.attempt]
    for node in others:
        if node.state is not NodeState.DELETING:
            return _unless_early(state, Delete(node, "of another attempt"), now)
    present = current_node(state, observed)
    if state.outcome:
        return _wind_up(state, present, others, spec, now)
    if present is not None:
        reason = _trouble(state, present, observed.heartbeat, spec, now)
        if reason is None:
            return Wait(spec.poll_seconds, "deleting" if state.deleted else "")
        return _unless_early(state, reason, now)
    if others:
        return Wait(spec.poll_seconds, "an earlier machine is being deleted")
    return _next_machine(state, spec, now)


def _wind_up(state: WatchState, node: Node | None, others: list[Node], spec: RunSpec, now: float) -> Action:
    """The end: no machine may be left, not even one that was asked for without an answer."""
    if node is not None and not _is_going(state, node, now):
        return _unless_early(state, Delete(node, state.outcome), now)
    if node is not None or others or (state.phase is Phase.MADE and not state.listed):
        return Wait(spec.poll_seconds, "deleting")
    if (
        state.phase is Phase.REQUESTED
    ):  # it may be on its way: ask again until that is certain, then delete it
        return _unless_early(state, Create(state.attempt, state.zone), now)
    return Finish(state.outcome, state.message)


def _is_going(state: WatchState, node: Node, now: float) -> bool:
    """It is being deleted, or was a moment ago."""
    return node.state is NodeState.DELETING or (state.deleted > 0 and now - state.deleted < _DELETE_AGAIN)


def _next_machine(state: WatchState, spec: RunSpec, now: float) -> Action:
    if state.phase is Phase.MADE:
        return Wait(spec.poll_seconds, "it is not listed yet")
    recent = [at for at in state.creates if at > now - HOUR]
    if len(recent) >= spec.max_creates_per_hour:
        return Wait(min(recent) + HOUR - now, f"{len(recent)} machines were asked for within the hour")
    if state.phase is Phase.REQUESTED:
        return _unless_early(state, Create(state.attempt, state.zone), now)
    zone = spec.places[state.zone_index % len(spec.places)]
    return _unless_early(state, Create(0, zone), now)


def _unless_early(state: WatchState, action: Create | Delete, now: float) -> Action:
    if now < state.not_before:
        return Wait(state.not_before - now, "after a fault")
    return action


def _trouble(  # noqa: PLR0911  (one line for each kind)
    state: WatchState, node: Node, beat: Heartbeat | None, spec: RunSpec, now: float
) -> Delete | None:
    """The deletion of the present attempt's machine, with its reason; None while it may stay."""
    if beat is not None and beat.attempt != state.attempt:
        beat = None
    if _is_going(state, node, now):
        return None
    if node.state in _GONE_BAD:
        ended = node.state in (NodeState.FAILED, NodeState.STOPPED)
        failed = ended and not (beat is not None and beat.state == "preempted")
        never_ready = node.state is NodeState.FAILED and not state.ready_since
        said = f"{node.state}: {node.message}".rstrip(": ")
        return Delete(node, said, failed=failed, next_zone=never_ready)
    age = now - state.since
    if node.state is NodeState.WAITING:
        late = age > _STOCK_SECONDS and len(spec.places) > 1
        return Delete(node, f"{age:.0f} s in the queue", next_zone=True) if late else None
    if node.state is NodeState.CREATING:
        late = age > CREATE_SECONDS
        return Delete(node, f"half made for {age:.0f} s", next_zone=True) if late else None
    if beat is None:
        begun = state.ready_since or state.since
        late = now - begun > spec.setup_seconds
        return Delete(node, f"no heartbeat within {now - begun:.0f} s", failed=True) if late else None
    if beat.state == "done":
        return Delete(node, f"its last checkpoint, of step {beat.step:,}, is not in the bucket", failed=True)
    if beat.state in ("failed", "preempted"):
        return Delete(node, f"{beat.state}: {beat.message}".rstrip(": "), failed=beat.state == "failed")
    silent, stalled = now - state.heartbeat_since, now - state.progress_since
    if silent > spec.heartbeat_seconds:
        return Delete(node, f"heartbeat lost: nothing new for {silent:.0f} s")
    if stalled > _STALL_SECONDS:
        return Delete(node, f"{beat.state} at step {beat.step:,} for {stalled:.0f} s", failed=True)
    return None


def settle(state: WatchState, action: Action, fault: Fault | None, spec: RunSpec, now: float) -> WatchState:
    """The state after an action; of a Create with its attempt filled in."""
    if isinstance(action, Create):
        return _settle_create(state, fault, spec, now)
    if isinstance(action, Delete):
        return _settle_delete(state, action, fault, spec, now)
    return state


def begin_attempt(state: WatchState, action: Create, step: int, now: float) -> WatchState:
    """To be written down before the request is sent."""
    creates = (*(at for at in state.creates if at > now - HOUR), now)
    if state.attempt == action.attempt and state.phase is Phase.REQUESTED:
        return replace(state, creates=creates, unsure=state.asked or state.unsure, asked=now)
    return replace(
        state, attempt=action.attempt, phase=Phase.REQUESTED, zone=action.zone, since=now, listed=False,
        ready_since=0.0, creates=creates, start_step=step, deleted=0.0, reason="", failed=False, asked=now,
        unsure=0.0,
    )  # fmt: skip


def _settle_create(state: WatchState, fault: Fault | None, spec: RunSpec, now: float) -> WatchState:
    if fault is None or fault is Fault.EXISTS:
        return replace(state, phase=Phase.MADE, since=now, faults=0, asked=0.0)
    if fault is Fault.UNAVAILABLE:  # perhaps it was made: the same request again
        return _after_fault(state, spec, now)
    state = replace(state, asked=0.0)
    if state.unsure and now - state.unsure < _LISTED_WITHIN:
        return _after_fault(state, spec, now)
    state = replace(state, phase=Phase.NONE, since=now)
    if fault is Fault.INVALID:
        return replace(
            state, outcome=state.outcome or "failed", message=state.message or "the request is invalid"
        )
    if fault is Fault.EXHAUSTED:
        state = replace(state, zone_index=state.zone_index + 1)
        if state.zone_index % len(spec.places):  # the next zone has not been asked yet
            return state
    return _after_fault(state, spec, now)


def _settle_delete(
    state: WatchState, action: Delete, fault: Fault | None, spec: RunSpec, now: float
) -> WatchState:
    if fault not in (None, Fault.MISSING):
        return _after_fault(state, spec, now)
    state = replace(state, faults=0)
    if action.node.attempt != state.attempt or state.deleted:
        return state
    return replace(
        state, deleted=now, failed=state.failed or action.failed, reason=action.reason,
        zone_index=state.zone_index + action.next_zone,
    )  # fmt: skip


def _after_fault(state: WatchState, spec: RunSpec, now: float) -> WatchState:
    return replace(state, faults=state.faults + 1, not_before=now + backoff(state.faults + 1, spec))
