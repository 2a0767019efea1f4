"""The watcher of a run: looks, decides, acts, and writes down what changed.

    RUN/watcher/lease/...             which watcher acts: the last one that claimed it
        renewed.json                  when it was there last
        state_000003.json             what it remembers, `WatchState`; each watcher writes its own
        timeline.jsonl                what happened

Two may be started for one run: one acts, the other waits until the first has not been heard of for a while.
Whoever acts looks at the lease before each request that makes a machine.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cpplm.cloud.backend import Backend, CloudError, Fault, Node, NodeRequest, node_name
from cpplm.cloud.decide import begin_attempt, decide, settle, update
from cpplm.cloud.spec import STOP, RunSpec, read_spec
from cpplm.cloud.startup import node_request
from cpplm.cloud.watch_state import Action, Create, Delete, Finish, Observed, Phase, WatchState
from cpplm.core.errors import UserError
from cpplm.core.heartbeat import read_heartbeat
from cpplm.core.lease import FencedError, Lease, claim, current
from cpplm.core.progress import log_info
from cpplm.core.settings import from_dict, to_dict
from cpplm.core.storage import Storage
from cpplm.train.checkpoint.format import committed_steps
from cpplm.train.report.machine_timeline import TIMELINE, read_timeline

LEASE = "watcher/lease"
RENEWED = "watcher/renewed.json"


class Watcher:
    """Keeps the machine of one run going until the run ends."""

    def __init__(
        self,
        run: Storage,
        backend: Backend,
        *,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Nothing is claimed or changed yet.

        Raises:
            UserError: `run` has no specification.
        """
        self._run, self._backend = run, backend
        self._checkpoints = Storage(run.path("checkpoints"), create=True)
        self._now, self._sleep = now, sleep
        self._lease: Lease | None = None
        self._standby_since: tuple[str, float] = ("", now())
        self._bucket_faults = 0
        self.spec: RunSpec = read_spec(run)
        self.state = WatchState()
        self._events: list[dict[str, Any]] | None = None
        """The time line, once it is read."""
        self._last: dict[tuple[str, str], dict[str, Any]] = {}

    def watch(self) -> WatchState:
        """Until the run needs no machine any more."""
        while True:
            seconds = self.round()
            if seconds is None:
                return self.state
            self._sleep(seconds)

    def round(self) -> float | None:
        """Look once and act; returns the seconds until the next look, None at the end."""
        poll = self.spec.poll_seconds
        try:
            if not self._leads():
                return poll
            action = self._act()
        except FencedError:
            log_info("another watcher has taken over; waiting beside it")
            self._lease = None
            return poll
        except UserError as error:  # the bucket does not answer: nothing is known, so nothing is done
            self._bucket_faults += 1
            if self._bucket_faults == 1:
                log_info(f"the bucket does not answer, trying again: {error}")
            return min(300.0, poll * 2.0 ** min(self._bucket_faults, 10))
        self._bucket_faults = 0
        if isinstance(action, Finish):
            return None
        return max(0.0, action.seconds) if not isinstance(action, Create | Delete) else min(1.0, poll)

    def _leads(self) -> bool:
        """True if this watcher acts; claims the lease where nobody else holds it."""
        if self._lease is None:
            holder = current(self._run, folder=LEASE)
            if holder is not None and not self._is_over(holder):
                return False
            self._lease = claim(self._run, f"{socket.gethostname()}:{os.getpid()}", self._now(), folder=LEASE)
            self._events = None
        if self._events is None:  # nothing is done without what the watcher before remembered
            self._load()
        self._lease.check(self._run)
        self._renew()
        return True

    def _is_over(self, holder: Lease) -> bool:
        """A watcher that has ended, or has not renewed its lease for too long, by its clock or by ours."""
        record = self._run.read_json(RENEWED) if self._run.exists(RENEWED) else {}
        if record.get("attempt") != holder.attempt:
            record = {"attempt": holder.attempt, "time": holder.created}
        if record.get("ended"):
            return True
        if self._standby_since[0] != repr(record):
            if not self._standby_since[0]:
                log_info(f"{holder.owner} watches this run; waiting beside it")
            self._standby_since = (repr(record), self._now())
        heard = min(self._standby_since[1], float(record["time"]))
        return self._now() - heard > self.spec.takeover_seconds

    def _renew(self, *, ended: bool = False) -> None:
        if self._lease is not None:
            self._run.write_json(
                RENEWED, {"attempt": self._lease.attempt, "time": self._now(), "ended": ended}
            )

    def _load(self) -> None:
        """Go on from what the watcher before remembered."""
        self.state = read_state(self._run)
        events = read_timeline(self._run)
        self._last = {}
        for event in events:
            self._remember(event)
        self._events = events
        self._log("watcher", f"watching, {self._lease.owner if self._lease else ''}")

    def _save(self, state: WatchState) -> None:
        if self._lease is None or state == self.state:
            return
        self._run.write_json(f"watcher/state_{self._lease.attempt:06d}.json", to_dict(state))
        self.state = state

    def _act(self) -> Action:
        self.spec = read_spec(self._run)
        state = self.state
        if state.launch != self.spec.launch:  # `tpu run` again: what it ended for holds no longer
            state = replace(
                state, launch=self.spec.launch, outcome="", message="", failures=0, not_before=0.0
            )
        observed, error = self._observe()
        now = self._now()
        state = update(state, observed, self.spec, now)
        self._log_changes(state, observed, error)
        self._save(state)
        action = decide(state, observed, self.spec, now)
        if isinstance(action, Create):
            self._create(action, observed)
        elif isinstance(action, Delete):
            self._delete(action)
        elif isinstance(action, Finish):
            self._log("finish", f"{action.outcome}: {action.message}", outcome=action.outcome)
            self._renew(ended=True)
        return action

    def _observe(self) -> tuple[Observed, str]:
        """One look at machines, heartbeat and checkpoints, and the error of a listing that failed."""
        heartbeat = read_heartbeat(self._run)
        step = max(committed_steps(self._checkpoints), default=-1)
        stopped = self._run.exists(STOP) and self._run.read_json(STOP)["launch"] == self.spec.launch
        try:
            nodes = tuple(node for node in self._backend.list() if node.run == self.spec.key)
        except CloudError as error:
            return Observed(None, error.fault, heartbeat, step, stopped), error.message
        return Observed(nodes, None, heartbeat, step, stopped), ""

    def _create(self, action: Create, observed: Observed) -> None:
        if self._lease is None:
            return
        self._lease.check(self._run)
        if not action.attempt:
            lease = claim(self._run, self.spec.key, self._now())
            action = replace(action, attempt=lease.attempt)
        self._save(begin_attempt(self.state, action, observed.step, self._now()))
        request = node_request(self.spec, node_name(self.spec.key, action.attempt), action)
        self._log(
            "create", f"asking for {self._described(request)}", attempt=action.attempt, zone=action.zone
        )
        fault, error = _answer(lambda: self._backend.create(request))
        if fault not in (None, Fault.EXISTS):
            self._log("refused", f"{fault}: {error}", attempt=action.attempt, zone=action.zone)
        state = settle(self.state, action, fault, self.spec, self._now())
        if fault is Fault.INVALID and not self.state.outcome:
            state = replace(state, message=error)
        self._save(state)

    def _described(self, request: NodeRequest) -> str:
        kind = f"{request.type} in {request.zone}" if request.type else f"a machine ({self.spec.backend})"
        price = f", ${self.spec.hourly_price:.2f} per hour" if self.spec.hourly_price else ""
        return f"{kind}{', spot' if request.spot else ''}, attempt {request.attempt}{price}"

    def _delete(self, action: Delete) -> None:
        node = action.node
        if self._last_of("delete", node.name).get("reason") != action.reason:
            about = {"attempt": node.attempt, "node": node.name, "reason": action.reason}
            self._log("delete", f"deleting {node.name}: {action.reason}", **about)
        fault, error = _answer(lambda: self._backend.delete(node))
        if fault not in (None, Fault.MISSING):
            self._log("fault", f"{node.name} is not deleted: {fault}: {error}", attempt=node.attempt)
        self._save(settle(self.state, action, fault, self.spec, self._now()))

    def _log(self, event: str, text: str, **values: Any) -> None:
        """One event: a line here, and one in the time line."""
        cost = self.state.cost(self.spec.hourly_price, self._now())
        record = {
            "time": round(self._now(), 3),
            "event": event,
            "text": text,
            "cost": round(cost, 4),
            **values,
        }
        log_info(f"{text}{f' (${cost:.2f} so far)' if cost else ''}")
        self._remember(record)
        if self._events is not None:  # an object in a bucket cannot grow: it is written anew
            self._events.append(record)
            lines = [json.dumps(each, sort_keys=True) for each in self._events]
            self._run.write(TIMELINE, ("\n".join(lines) + "\n").encode())

    def _remember(self, event: dict[str, Any]) -> None:
        """Note an event that was logged, so that it is logged once, by whichever watcher."""
        kind = "node" if event["event"] == "gone" else event["event"]
        about = kind, event.get("node", "")
        self._last[about] = self._last.get(about, {}) | event  # not each fault is one of the listing

    def _last_of(self, kind: str, node: str = "") -> dict[str, Any]:
        """The last event of a kind, of those about a machine that of this one; empty if there was none."""
        return self._last.get((kind, node), {})

    def _log_changes(self, state: WatchState, observed: Observed, error: str) -> None:
        if observed.nodes is None:
            if self._last_of("fault").get("listing") != observed.fault:
                self._log(
                    "fault", f"the listing failed: {observed.fault}: {error}", listing=str(observed.fault)
                )
            return
        if self._last_of("fault").get("listing"):
            self._log("fault", "the listing works again", listing="")
        self._log_nodes(observed.nodes)
        beat = observed.heartbeat
        if beat is not None and beat.attempt == state.attempt:
            about = {"attempt": beat.attempt, "step": beat.step}
            shown = self._last_of("heartbeat")
            if (shown.get("attempt"), shown.get("state")) != (beat.attempt, beat.state):
                said = f": {beat.message}" if beat.message else ""
                at = f", step {beat.step:,}" if beat.step else ""
                self._log("heartbeat", f"{beat.state}{at}{said}", state=beat.state, **about)
            made = beat.step > max(0, state.start_step) and beat.state not in ("setup", "compiling")
            if made and self._last_of("first_step").get("attempt") != beat.attempt:
                self._log("first_step", f"first new step: {beat.step:,}", **about)
        if observed.step > self._last_of("checkpoint").get("step", -1):
            self._log(
                "checkpoint",
                f"checkpoint of step {observed.step:,}",
                step=observed.step,
                attempt=state.attempt,
            )

    def _log_nodes(self, nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            shown = self._last_of("node", node.name)
            if shown.get("event") != "node" or shown["state"] != node.state:
                said = f": {node.message}" if node.message else ""
                self._log("node", f"{node.name} is {node.state}{said}", node=node.name, state=str(node.state),
                          attempt=node.attempt, zone=node.zone)  # fmt: skip
        names = {node.name for node in nodes}
        for event in list(self._last.values()):
            if event["event"] == "node" and event["node"] not in names:
                self._log("gone", f"{event['node']} is gone", node=event["node"], attempt=event["attempt"])


def read_state(run: Storage) -> WatchState:
    """State of the last watcher of a run; of the start if there was none; UserError if it is unreadable."""
    names = [name for name in run.list_names("watcher") if re.fullmatch(r"watcher/state_\d+\.json", name)]
    if not names:
        return WatchState()
    values = run.read_json(names[-1])
    phase = Phase(values.pop("phase"))
    return replace(from_dict(WatchState, values, where=run.path(names[-1])), phase=phase)


def _answer(request: Callable[[], None]) -> tuple[Fault | None, str]:
    """Send a request: what went wrong, if anything."""
    try:
        request()
    except CloudError as error:
        return error.fault, error.message
    return None, ""
