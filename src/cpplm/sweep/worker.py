"""Worker of a sweep: takes trials that nobody works on, new ones too, until all have ended.

    OUT/sweep.toml  journal.log     the recipe; Optuna's journal, unless the recipe names a database
        folder_id                   tells it from the folders of other machines
        trials/N/                   a run: log.jsonl, checkpoints, page.html, output.txt
            lease/  heartbeat.json  whose trial it is, and whether that worker is alive

A trial belongs to the last attempt that was claimed in its folder. Its worker writes heartbeats; when these
end, another worker claims the next attempt, and the same command goes on from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from cpplm.core import lease as leases
from cpplm.core.errors import UserError
from cpplm.core.heartbeat import Heartbeat, read_heartbeat
from cpplm.core.lease import FencedError, Lease
from cpplm.core.locking import exclusive_lock
from cpplm.core.progress import log_info
from cpplm.core.run_log import LOG, read_run_log
from cpplm.core.storage import Storage
from cpplm.sweep.page import short_value, write_sweep_page
from cpplm.sweep.recipe import SweepRecipe
from cpplm.sweep.study import REASON, TRIALS, best_trial, storage_errors, trials_of
from cpplm.sweep.trial import (
    POLL_SECONDS,
    STOPPED,
    Record,
    failure_reason,
    measured,
    run_trial,
    write_run_page,
)

RELEASED = "preempted"
FOLDER_ID = "folder_id"
"""File in a sweep's folder, and attribute of its trials: a database has those of other folders, too."""


class Worker:
    """Works on the trials of one sweep."""

    def __init__(self, study: Study, recipe: SweepRecipe, folder: Path) -> None:
        self._study, self._recipe, self._folder = study, recipe, folder
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        storage = Storage(folder)
        storage.create(FOLDER_ID, secrets.token_hex(8).encode())
        self._folder_id = storage.read(FOLDER_ID).decode()
        self._seen: dict[int, tuple[tuple[int, float], float]] = {}

    def run(self) -> None:
        """Work until every trial has ended.

        Raises:
            UserError: the storage cannot be used any more.
            KeyboardInterrupt: asked to stop; the trial at hand is saved, and anybody may go on with it.
        """
        waiting = False
        while True:
            with storage_errors(self._recipe, self._folder):
                taken = self._take_over() or self._new()
                left = taken or any(self._is_ours(trial) for trial in self._running())
            if not left:
                return
            if taken:
                waiting = False
                self._work(*taken)
                continue
            if not waiting:
                log_info("waiting for the trials of other workers")
            waiting = True
            time.sleep(POLL_SECONDS)

    # ---- whose trial it is -------------------------------------------------------------------------------

    def _running(self) -> list[FrozenTrial]:
        return [t for t in trials_of(self._study, self._recipe) if t.state == TrialState.RUNNING]

    def _run_folder(self, number: int) -> Path:
        return self._folder / TRIALS / str(number)

    def _is_ours(self, trial: FrozenTrial) -> bool:
        """True if the trial's run is in our folder; with a database it may be on another machine."""
        return trial.user_attrs.get(FOLDER_ID) == self._folder_id

    def _new(self) -> tuple[Trial, Lease] | None:
        if len(trials_of(self._study, self._recipe)) >= self._recipe.num_trials:
            return None
        # Not `ask`: killed behind it, nobody would know in which folder the trial is.
        begun = create_trial(state=TrialState.RUNNING, user_attrs={FOLDER_ID: self._folder_id})
        trial_id = self._study._storage.create_new_trial(self._study._study_id, template_trial=begun)
        trial = Trial(self._study, trial_id)
        if trial.number >= self._recipe.num_trials:
            trial.set_user_attr(REASON, "not begun: another worker got the last trial")
            self._study.tell(trial, state=TrialState.FAIL)
            return None
        claimed = self._claim(trial.number, 0)
        return (trial, claimed) if claimed else None

    def _take_over(self) -> tuple[Trial, Lease] | None:
        for frozen in filter(self._is_ours, self._running()):
            attempt = self._stale_attempt(frozen.number)
            claimed = None if attempt is None else self._claim(frozen.number, attempt)
            if claimed:
                return Trial(self._study, frozen._trial_id), claimed
        return None

    def _claim(self, number: int, attempt: int) -> Lease | None:
        storage = Storage(self._run_folder(number), create=True)
        claimed = leases.claim_after(attempt, storage, self._owner, time.time())
        if claimed:
            self._beat(storage, claimed)
        return claimed

    def _stale_attempt(self, number: int) -> int | None:
        """The last attempt at a running trial, if nobody is at it any more.

        That is when its heartbeat has not changed for so long by our own clock: those of machines differ.
        """
        storage = Storage(self._run_folder(number), create=True)
        lease, heartbeat = leases.current(storage), read_heartbeat(storage)
        attempt = lease.attempt if lease else 0
        if heartbeat and heartbeat.attempt == attempt and heartbeat.state == RELEASED:
            return attempt
        mark = attempt, heartbeat.time if heartbeat else 0.0
        if self._seen.get(number, ((), 0.0))[0] != mark:
            self._seen[number] = mark, time.monotonic()
        if time.monotonic() - self._seen[number][1] < self._recipe.stale_seconds:
            return None
        try:
            with exclusive_lock(self._run_folder(number)):  # its run may go on here without its worker
                return attempt
        except UserError:
            return None

    def _beat(self, storage: Storage, lease: Lease, state: str = "training") -> None:
        lease.check(storage)
        Heartbeat(lease.attempt, state, time=time.time(), message=lease.owner).write(storage)

    # ---- what becomes of it ------------------------------------------------------------------------------

    def _work(self, trial: Trial, lease: Lease) -> None:
        folder = self._run_folder(trial.number)
        storage = Storage(folder)
        reported = set(self._study._storage.get_trial(trial._trial_id).intermediate_values)
        pruned, at_end, next_beat = False, False, 0.0

        def watch(records: list[Record]) -> bool:
            nonlocal pruned, at_end, next_beat
            if time.monotonic() >= next_beat:
                self._beat(storage, lease)
                next_beat = time.monotonic() + self._recipe.stale_seconds / 10
            at_end = at_end or any(record.get("progress", 0) >= 1 for record in records)
            for step, value in measured(records, self._recipe.metric):
                if step > self._recipe.prune_after_step and step not in reported:
                    with storage_errors(self._recipe, self._folder):
                        trial.report(value, step)
                        pruned = pruned or (not at_end and trial.should_prune())
                    reported.add(step)
            return pruned

        try:
            with storage_errors(self._recipe, self._folder):
                params = {name: each.suggest(name, trial) for name, each in self._recipe.dimensions.items()}
            status = run_trial(self._recipe.arguments(params, folder), folder, watch)
            if status in STOPPED and not pruned:  # by somebody else: the same command goes on
                self._beat(storage, lease, RELEASED)
            else:
                lease.check(storage)
                self._finish(trial, params, status)
        except FencedError as error:
            log_info(str(error))
        except BaseException:
            with contextlib.suppress(UserError):
                self._beat(storage, lease, RELEASED)
            raise

    def _finish(self, trial: Trial, params: dict[str, Any], status: int) -> None:
        """Record the end of a trial in the storage and on the pages."""
        folder = self._run_folder(trial.number)
        write_run_page(folder)
        state, value, reason = TrialState.COMPLETE, None, ""
        if status in STOPPED:
            state = TrialState.PRUNED
        elif status:
            state, reason = TrialState.FAIL, failure_reason(status, folder)
        else:
            values = [value for _, value in measured(read_run_log(folder / LOG), self._recipe.metric)]
            value = values[-1] if values and math.isfinite(values[-1]) else None
            if value is None:
                state, reason = TrialState.FAIL, f"its log has no {self._recipe.metric}"
        with storage_errors(self._recipe, self._folder):
            if reason:
                trial.set_user_attr(REASON, reason)
            ended = self._study.tell(trial, value, state)
            trials = trials_of(self._study, self._recipe)
        log_info(_one_line(ended, reason, params, trials, self._recipe))
        write_sweep_page(self._study, self._recipe, self._folder)


def _one_line(
    trial: FrozenTrial, reason: str, params: dict[str, Any], trials: list[FrozenTrial], recipe: SweepRecipe
) -> str:
    outcome = {TrialState.FAIL: f"failed: {reason}", TrialState.PRUNED: "pruned"}.get(trial.state)
    values = ", ".join(f"{name} {short_value(value)}" for name, value in params.items())
    best = best_trial(trials, recipe)
    so_far = f"best {best.value:.4f}, trial {best.number}" if best else "none has ended well yet"
    ended = sum(each.state.is_finished() for each in trials)
    what = outcome or f"{recipe.metric} {trial.value:.4f}"
    return f"trial {trial.number} ({ended} of {recipe.num_trials} ended): {what}; {values}; {so_far}"
