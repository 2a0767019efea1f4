"""A cloud, a bucket and a trainer in simulated time, to run the watcher's decisions against.

The code under test is `update`, `decide`, `begin_attempt` and `settle`; around them stands what `watch.py`
does, with everything that can go wrong in between, at random: the watcher is killed wherever it could be.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from cpplm.cloud.backend import Fault, Node, NodeState
from cpplm.cloud.decide import CREATE_SECONDS, begin_attempt, decide, settle, update
from cpplm.cloud.spec import RunSpec
from cpplm.cloud.watch_state import (
    Action,
    Create,
    Delete,
    Finish,
    Observed,
    Wait,
    WatchState,
)
from cpplm.core.heartbeat import Heartbeat

SPEC = RunSpec("gs://bucket/run", "corpus", "cpp-32k", zones=("a", "b"), any_zone=True, price_per_hour=10.0)
TARGET, SAVE_EVERY = 12, 3  # steps of a run
S = NodeState


class WatcherKilledError(Exception):
    """It was killed at this point."""


@dataclass
class Machine:
    """A node of the simulated cloud, and the trainer on it."""

    attempt: int
    born: float
    ready_at: float
    listed_at: float
    state: NodeState = S.WAITING
    step: int = 0
    setup_left: int = 1
    beats: bool = True
    ended: bool = False
    gone_at: float = 0.0


class Simulation:
    """One run, with as many bad events as `trouble` says."""

    def __init__(self, seed: int, trouble: int = 12, spec: RunSpec = SPEC) -> None:
        self.chance, self.trouble, self.spec = random.Random(seed), trouble, spec
        self.now = 1_000_000.0
        self.machines: dict[int, Machine] = {}
        self.ever_made: set[int] = set()
        self.lease = 0
        self.committed = -1
        self.beat: Heartbeat | None = None
        self.saved = WatchState()
        self.creates: list[float] = []
        self.in_flight: tuple[Create, float] | None = None
        self.history: list[object] = []

    def strikes(self, probability: float = 0.2) -> bool:
        """True if something bad happens now."""
        if self.trouble <= 0 or self.chance.random() > probability:
            return False
        self.trouble -= 1
        return True

    # ---- cloud and machines -------------------------------------------------------------------------------

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for attempt, machine in list(self.machines.items()):
            self._advance(machine)
            if machine.gone_at and self.now >= machine.gone_at:
                del self.machines[attempt]
        assert len(self.machines) <= 1, self.history

    def _advance(self, machine: Machine) -> None:
        if machine.gone_at or machine.state in (S.PREEMPTED, S.SUSPENDED, S.FAILED):
            return
        if machine.state in (S.WAITING, S.CREATING):
            if self.strikes(0.1):
                machine.state = self.chance.choice([S.SUSPENDED, S.FAILED, S.PREEMPTED])
            elif self.now >= machine.ready_at:
                machine.state = S.READY
            elif self.now >= machine.ready_at - 30:
                machine.state = S.CREATING
            return
        machine.state = S.UNKNOWN if self.strikes(0.05) else S.READY
        if self.strikes(0.15):
            self._strike(machine)
        if not machine.ended and machine.state in (S.READY, S.UNKNOWN):
            self._train(machine)

    def _strike(self, machine: Machine) -> None:
        kind = self.chance.choice(["killed", "notice", "crash", "silent", "vanishes", "suspended"])
        self.history.append(f"{kind} {machine.attempt}")
        if kind == "notice" and not machine.ended and machine.beats:
            if not machine.setup_left:
                self._commit(machine)
            self._say(machine, "preempted")
            machine.ended = True
        elif kind == "crash":
            self._say(machine, "failed")
            machine.ended = True
        elif kind == "silent":
            machine.beats = False
            machine.ended = self.chance.random() < 0.5
        elif kind == "vanishes":
            del self.machines[machine.attempt]
        elif kind in ("killed", "suspended"):
            machine.state = S.PREEMPTED if kind == "killed" else S.SUSPENDED

    def _train(self, machine: Machine) -> None:
        if machine.setup_left:
            machine.setup_left -= 1
            machine.step = max(0, self.committed)
            self._say(machine, self.chance.choice(["setup", "compiling"]))
            return
        machine.step = min(TARGET, machine.step + 1)
        if machine.step % SAVE_EVERY == 0:
            self._commit(machine)
        done = machine.step == TARGET
        self._say(machine, "done" if done else "training")
        machine.ended = done

    def _commit(self, machine: Machine) -> None:
        if machine.attempt == self.lease:  # the lease is looked at
            assert machine.step >= self.committed, self.history
            self.committed = machine.step

    def _say(self, machine: Machine, state: str) -> None:
        if machine.beats and machine.attempt == self.lease:
            self.beat = Heartbeat(machine.attempt, state, machine.step, self.now)

    def create(self, action: Create) -> Fault | None:
        """The answer to a request; a lost one may have been carried out."""
        self.creates.append(self.now)
        fault = None
        if self.strikes():
            fault = self.chance.choice([Fault.EXHAUSTED, Fault.UNAVAILABLE, Fault.REFUSED, Fault.UNAVAILABLE])
        if fault in (None, Fault.UNAVAILABLE) and (fault is None or self.chance.random() < 0.5):
            self.carry_out(action)
        return fault

    def carry_out(self, action: Create) -> None:
        """One request of an id is carried out, as the service promises."""
        if action.attempt in self.ever_made:
            return
        self.ever_made.add(action.attempt)
        delay = self.chance.choice([0.0, 0.0, 30.0, 120.0])
        long = CREATE_SECONDS * 1.5 if self.strikes(0.1) else 0.0
        self.machines[action.attempt] = Machine(
            action.attempt, self.now, self.now + delay + long + 40, self.now + self.chance.choice([0.0, 25.0])
        )

    def delete(self, action: Delete) -> Fault | None:
        machine = self.machines.get(action.node.attempt)
        if machine is None:
            return Fault.MISSING
        self._assert_may_go(machine)
        fault = Fault.UNAVAILABLE if self.strikes() else None
        if (fault is None or self.chance.random() < 0.5) and not machine.gone_at:
            machine.gone_at = self.now + self.chance.choice([0.0, 10.0, 70.0])
            machine.state = S.DELETING
        return fault

    def _assert_may_go(self, machine: Machine) -> None:
        """No machine that trains and says so is deleted, unless the run is to end."""
        alive = machine.state in (S.READY, S.UNKNOWN) and not machine.ended and machine.beats
        heard = self.beat is not None and self.beat.attempt == machine.attempt
        recent = heard and self.beat is not None and self.now - self.beat.time < self.spec.heartbeat_seconds
        ends = self.saved.outcome or (self.beat is not None and self.beat.state == "done")
        assert not (alive and recent and not ends and machine.attempt == self.lease), self.history

    # ---- the watcher --------------------------------------------------------------------------------------

    def observe(self) -> Observed:
        if self.strikes(0.1):
            fault = self.chance.choice([Fault.UNAVAILABLE, Fault.REFUSED, Fault.EXHAUSTED])
            return Observed(None, fault, self.beat, self.committed)
        nodes = tuple(
            Node(f"n-{m.attempt}", "a", m.state, run="x", attempt=m.attempt)
            for m in self.machines.values()
            if self.now >= m.listed_at
        )
        return Observed(nodes, None, self.beat, self.committed)

    def maybe_killed(self) -> None:
        if self.strikes(0.05):
            raise WatcherKilledError

    def round(self) -> Action:
        """One round of a watcher, as `Watcher` does it."""
        observed = self.observe()
        self.saved = update(self.saved, observed, self.spec, self.now)
        action = decide(self.saved, observed, self.spec, self.now)
        self.history.append((self.now, action))
        if isinstance(action, Create):
            if not action.attempt:
                self.lease += 1
                action = replace(action, attempt=self.lease)
                self.maybe_killed()
            self.saved = begin_attempt(self.saved, action, observed.step, self.now)
            self.in_flight = (action, self.now + 150.0)
            self.maybe_killed()
            self.in_flight = None
            fault = self.create(action)
            self.maybe_killed()
            self.saved = settle(self.saved, action, fault, self.spec, self.now)
        elif isinstance(action, Delete):
            self.maybe_killed()
            fault = self.delete(action)
            self.maybe_killed()
            self.saved = settle(self.saved, action, fault, self.spec, self.now)
        return action

    def run(self, limit: int = 3000) -> WatchState:
        """Until the watcher is done; the state that it ends with."""
        for _ in range(limit):
            try:
                action = self.round()
            except WatcherKilledError:
                self.history.append("watcher killed")
                self.pass_time(self.chance.choice([1.0, 90.0, 4000.0]))
                continue
            if isinstance(action, Finish):
                self.check_end(action)
                return self.saved
            if self.in_flight is not None and self.now < self.in_flight[1] and self.strikes(0.2):
                self.carry_out(self.in_flight[0])  # the watcher was not killed, but paused before its request
            self.pass_time(action.seconds if isinstance(action, Wait) else 1.0)
        raise AssertionError(f"it does not end: {self.history[-20:]}")

    def check_end(self, action: Finish) -> None:
        assert not self.machines, self.history
        if action.outcome == "done":
            assert self.committed == TARGET, self.history
        else:
            assert action.outcome in ("failed", "budget", "stopped"), self.history
        for at in self.creates:
            within = [other for other in self.creates if at <= other < at + 3600]
            assert len(within) <= self.spec.max_creates_per_hour
