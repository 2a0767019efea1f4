"""`cpplm tpu [types|price|plan|create|list|status|ssh|logs|stop|delete|run|watch|sky]`."""

from __future__ import annotations

import getpass
import subprocess
import time
from dataclasses import asdict
from typing import Any

from cpplm.cli.report import Report, escape_control, text_table
from cpplm.cloud.backend import Backend, Node, NodeRequest, NodeState, find
from cpplm.cloud.catalog import PRICES_DATE, VERSIONS, check_zones, slice_type, slice_types
from cpplm.cloud.cloud_tpu import CloudTpu
from cpplm.cloud.inputs import add_inputs
from cpplm.cloud.local import Local
from cpplm.cloud.node import train_command
from cpplm.cloud.plan import Plan, PlanSettings
from cpplm.cloud.settings import (
    CreateSettings,
    LogsSettings,
    NodeSettings,
    PlaceSettings,
    PriceSettings,
    RecipeSettings,
    RunPlaceSettings,
    RunSettings,
    SkySettings,
    SshSettings,
    StopSettings,
    TypesSettings,
)
from cpplm.cloud.sky import sky_task
from cpplm.cloud.slurm import Slurm
from cpplm.cloud.spec import STOP, RunSpec, read_recipe, read_spec, write_spec
from cpplm.cloud.startup import add_package
from cpplm.cloud.watch import Watcher, read_state
from cpplm.cloud.watch_state import WatchState
from cpplm.core.errors import UserError
from cpplm.core.heartbeat import read_heartbeat
from cpplm.core.settings import from_command_line
from cpplm.core.storage import Storage
from cpplm.core.text import pluralize
from cpplm.train.checkpoint.format import committed_steps
from cpplm.train.report.machine_timeline import PARTS, read_timeline, recoveries
from cpplm.train.settings import TrainSettings


def types(settings: TypesSettings) -> Report:
    """The slices that can be rented."""
    rows = [each.figures() for each in slice_types(settings.generation)]
    names = ("type", "topology", "chips", "hosts", "hbm_gib", "on_demand_per_hour", "spot_per_hour",
             "runtime")  # fmt: skip
    shown = [[*(str(row[name]) for name in names), " ".join(row["zones"])] for row in rows]
    heads = ["type", "topology", "chips", "hosts", "HBM GiB", "$/h", "spot $/h", "runtime", "zones"]
    versions = ", ".join(f"{name} {version}" for name, version in VERSIONS.items())
    table = text_table([heads, *shown], left=len(heads))
    text = f"{table}\n\nPrices of {PRICES_DATE}. On the machines: {versions}."
    return Report(text, {"types": rows, "prices_of": PRICES_DATE, "versions": VERSIONS})


def price(settings: PriceSettings) -> Report:
    """Price of a slice, on demand and spot."""
    kind = slice_type(settings.type)
    chips = kind.slice.chips
    figures: dict[str, Any] = {"type": settings.type, "hours": settings.hours, "prices_of": PRICES_DATE}
    lines = []
    for name, spot in (("on demand", False), ("spot", True)):
        hourly = kind.price(spot=spot)
        total = hourly * settings.hours
        lines.append(
            f"{name:<9}  ${hourly / chips:.3f} per chip-hour  ${hourly:.2f} per hour  "
            f"${total:,.2f} for {settings.hours:g} h"
        )
        figures[name.replace(" ", "_")] = {"chip_hour": hourly / chips, "hour": hourly, "total": total}
    return Report(
        "\n".join([f"{settings.type}, {pluralize(chips, 'chip')}, prices of {PRICES_DATE}", *lines]), figures
    )


def plan(settings: PlanSettings) -> Report:
    """Expected cost and time of a run, spot and on demand."""
    planned = Plan.of(settings)
    return Report(planned.text(), planned.figures())


def open_backend(name: str, project: str = "", options: tuple[str, ...] = ()) -> Backend:
    """The backend of a name; UserError where it cannot be used here."""
    if name == "cloud":
        return CloudTpu(project)
    return Slurm(options) if name == "slurm" else Local()


def create(settings: CreateSettings) -> Report:
    """Ask for a machine, for use by hand."""
    kind = slice_type(settings.type)
    check_zones(kind, (settings.zone,))
    request = NodeRequest(
        settings.name, settings.zone, kind.accelerator_type, settings.runtime or kind.generation.runtime,
        settings.spot,
    )  # fmt: skip
    backend = open_backend("cloud", settings.project)
    backend.create(request)
    hourly = kind.price(spot=settings.spot)
    where = f"{settings.type} in {settings.zone}"
    text = f"{settings.name} is asked for: {where}, ${hourly:.2f} per hour once it is ready"
    return Report(text, {"name": settings.name, "price_per_hour": hourly})


def list_nodes(settings: PlaceSettings) -> Report:
    """The machines there are."""
    rows, figures = [], []
    for node in open_backend(settings.backend, settings.project).list():
        hourly = _hourly(node)
        paid = node.state is NodeState.READY and node.created > 0
        cost = hourly * (time.time() - node.created) / 3600 if paid else 0.0
        rows.append((node.name, node.zone, node.type, "spot" if node.spot else "on demand", str(node.state),
                     f"{hourly:.2f}", f"{cost:.2f}", escape_control(node.message)))  # fmt: skip
        figures.append({**asdict(node), "price_per_hour": hourly, "cost": round(cost, 4)})
    heads = ("name", "zone", "type", "kind", "state", "$/h", "$ at most", "")
    return Report(text_table([heads, *rows], left=len(heads)) if rows else "no machines", {"nodes": figures})


def _hourly(node: Node) -> float:
    try:
        return slice_type(node.type).price(spot=node.spot)
    except UserError:  # not a TPU
        return 0.0


def ssh(settings: SshSettings) -> Report:
    """A shell on a machine, or one command."""
    node = find(open_backend(settings.backend, settings.project), settings.name, settings.zone)
    if not node.address:
        raise UserError(f"{node.name} is {node.state} and has no address", fix="Wait until it is ready.")
    user = settings.user or getpass.getuser()
    # A machine that was made anew has another key: each is remembered under its own name.
    options = ["-o", f"HostKeyAlias={node.name}.{node.zone}", "-o", "StrictHostKeyChecking=accept-new"]
    command = ["ssh", *options, f"{user}@{node.address}", *([settings.command] if settings.command else [])]
    try:
        status = subprocess.run(command, check=False).returncode
    except FileNotFoundError as error:
        raise UserError("ssh is not installed") from error
    raise SystemExit(status)


def stop(settings: StopSettings) -> Report:
    """Stop a machine, or a run."""
    if settings.run:
        run = Storage(settings.run)
        run.write_json(STOP, {"launch": read_spec(run).launch})
        return Report(f"{settings.run}: its watcher ends it; 'cpplm tpu run' goes on")
    backend = open_backend(settings.backend, settings.project)
    backend.stop(find(backend, settings.name, settings.zone))
    return Report(f"{settings.name} is being stopped")


def delete(settings: NodeSettings) -> Report:
    """Delete a machine."""
    backend = open_backend(settings.backend, settings.project)
    backend.delete(find(backend, settings.name, settings.zone))
    return Report(f"{settings.name} is being deleted")


def _read(settings: RecipeSettings) -> RunSpec:
    return read_recipe(
        settings.recipe,
        spot=settings.spot or None,
        zones=list(settings.zones) or None,
        max_cost=settings.max_cost if settings.max_cost >= 0 else None,
        backend=settings.backend or None,
        project=settings.project or None,
    )


def run(settings: RunSettings) -> Report:
    """A training run from its recipe to its end."""
    spec = _read(settings)
    words = train_command(spec, spec.corpus, spec.tokenizer, "run")[4:]
    from_command_line(TrainSettings, words, program="cpplm train", description="")  # its contradictions, now
    backend = open_backend(spec.backend, spec.project, spec.slurm)
    storage = Storage(spec.run, create=True)
    spec = write_spec(storage, add_package(add_inputs(spec, storage), storage))
    if settings.detach:
        return Report(f"{spec.run} is ready: cpplm tpu watch {spec.run}", {"run": spec.run})
    return _watch(storage, backend)


def watch(settings: RunPlaceSettings) -> Report:
    """Keep the machine of a run going."""
    storage = Storage(settings.run)
    spec = read_spec(storage)
    return _watch(storage, open_backend(spec.backend, spec.project, spec.slurm))


def _watch(run: Storage, backend: Backend) -> Report:
    state = Watcher(run, backend).watch()
    report = _status(run, state)
    if state.outcome not in ("done", "stopped"):
        raise UserError(
            f"{run.location} ended ({state.outcome}): {state.message}", fix="See 'cpplm tpu logs'."
        )
    return report


def status(settings: RunPlaceSettings) -> Report:
    """State of a run, by what lies in its bucket."""
    run = Storage(settings.run)
    return _status(run, read_state(run))


def _status(run: Storage, state: WatchState) -> Report:
    spec, beat = read_spec(run), read_heartbeat(run)
    now = time.time()
    hourly = spec.hourly_price
    cost = state.cost(hourly, now)
    steps = committed_steps(Storage(run.path("checkpoints"), create=True))
    limit = f" of {spec.max_cost:g}" if spec.max_cost >= 0 else ""
    lines = [
        f"run         {spec.run}",
        f"machine     attempt {state.attempt}, {state.outcome or state.phase}: {state.message}".rstrip(": "),
        f"cost        ${cost:.2f}{limit} so far, ${hourly:.2f} per hour",
        f"checkpoint  {f'step {steps[-1]:,}' if steps else 'none yet'}",
    ]
    if beat is not None:
        loss = f", loss {beat.loss:.4f}" if beat.loss is not None else ""
        speed = f", {beat.tokens_per_second:,.0f} tokens/s" if beat.tokens_per_second else ""
        age = f"{now - beat.time:.0f} s ago {escape_control(beat.message)}".rstrip()
        lines.append(f"trainer     {beat.state}, step {beat.step:,}{loss}{speed}, {age}")
    found = recoveries(read_timeline(run))
    for each in found[-3:]:
        parts = ", ".join(f"{name} {each[name]:.1f} s" for name in PARTS)
        lines.append(f"recovery    {each['seconds']:.1f} s: {parts}")
    figures = {
        "run": spec.run, "attempt": state.attempt, "phase": str(state.phase), "outcome": state.outcome,
        "message": state.message, "cost": round(cost, 4), "price_per_hour": hourly,
        "checkpoint": steps[-1] if steps else None, "heartbeat": asdict(beat) if beat is not None else None,
        "recoveries": found,
    }  # fmt: skip
    return Report("\n".join(lines), figures)


def logs(settings: LogsSettings) -> Report:
    """Output of the machine of an attempt."""
    run = Storage(settings.run)
    names = [name for name in run.list_names("logs") if name.endswith("/output.txt")]
    if settings.attempt >= 0:
        names = [name for name in names if name == f"logs/attempt_{settings.attempt:06d}/output.txt"]
    if not names:
        raise UserError(f"{run.location} has no such log yet", fix="See 'cpplm tpu status'.")
    lines = run.read(names[-1]).decode(errors="replace").splitlines()[-settings.lines :]
    return Report("\n".join(map(escape_control, lines)), {"log": names[-1], "lines": lines})


def sky(settings: SkySettings) -> Report:
    """Write a task for SkyPilot."""
    out = settings.out.expanduser()
    Storage(out.parent, create=True).write(out.name, sky_task(_read(settings)).encode())
    return Report(f"sky jobs launch {out}", {"task": str(out)})
