"""Probes of a machine with TPUs: would training work here? `cpplm.cloud.troubleshooting` has their table.

A probe reads files, the environment, the metadata server or the bucket through `Machine`, whose fields tests
replace. One probe starts JAX, in a process of its own: whoever opens a TPU keeps others from it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from cpplm.core.errors import UserError
from cpplm.core.hardware import count_tpus
from cpplm.core.preemption import metadata_host, read_metadata
from cpplm.core.storage import Storage
from cpplm.jax.tpu_specs import parse_slice

Level = Literal["ok", "warning", "failure"]
Finding = tuple[Level, str]
"""Level of a finding, and what was seen."""

GIB = 2**30
LEAST_DISK, LITTLE_DISK = 2 * GIB, 10 * GIB
LITTLE_SKEW, MOST_SKEW = 30.0, 300.0  # seconds; buckets refuse signatures that are minutes off
_JAX_SECONDS = 180
# What JAX has, and which chips compute a small product wrongly.
_JAX = """
import json, jax, jax.numpy as jnp
wrong, devices = [], jax.local_devices()
for device in devices:
    ones = jax.device_put(jnp.ones((256, 256), jnp.bfloat16), device)
    if not bool(((ones @ ones) == 256).all()):
        wrong.append(device.id)
print(json.dumps({"platform": devices[0].platform, "count": len(devices), "wrong": wrong}))
"""


@dataclass(frozen=True)
class JaxDevices:
    """JAX's answer about its devices: `message` is all that it wrote, `error` the last line if it failed."""

    platform: str = ""
    count: int = 0
    wrong: tuple[int, ...] = ()
    error: str = ""
    message: str = ""


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@dataclass
class Machine:
    """Machine that the probes look at. `root` is the folder that holds dev, proc and sys."""

    bucket: str = ""
    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    python: tuple[int, int] = sys.version_info[:2]
    installed: Callable[[str], str] = _installed
    required: Callable[[str], list[str] | None] = metadata.requires
    host: str | None = field(default_factory=metadata_host)
    folders: tuple[Path, ...] = (Path("/"), Path(), Path(tempfile.gettempdir()))
    disk_free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    now: Callable[[], float] = time.time
    jax_command: tuple[str, ...] = (sys.executable, "-c", _JAX)

    @cached_property
    def nodes(self) -> list[str]:
        """The device files of the chips."""
        found = [*self.root.glob("dev/accel*"), *self.root.glob("dev/vfio/[0-9]*")]
        return sorted(f"/{path.relative_to(self.root)}" for path in found)

    @cached_property
    def chips(self) -> int:
        """Chips on the PCI bus."""
        return count_tpus(self.root / "sys/bus/pci/devices")

    @cached_property
    def jax(self) -> JaxDevices:
        """JAX's devices, after each has computed something."""
        if not self.installed("jax"):
            return JaxDevices(error="JAX is not installed")
        try:
            done = subprocess.run(
                self.jax_command, env=dict(self.environ), capture_output=True, text=True, check=False,
                timeout=_JAX_SECONDS, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return JaxDevices(error=f"JAX found no device within {_JAX_SECONDS} seconds")
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        try:
            found = json.loads(done.stdout.splitlines()[-1])
            return JaxDevices(found["platform"], found["count"], tuple(found["wrong"]), message=done.stderr)
        except (LookupError, ValueError, TypeError):
            return JaxDevices(error=lines[-1], message=done.stderr)

    @cached_property
    def attribute_type(self) -> str:
        """The type of the slice by the metadata server, such as v6e-4; empty if it does not say."""
        return _metadata(self, "instance/attributes/accelerator-type")

    def text(self, path: str) -> str:
        """A small file below the root; empty if it cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""


def python(machine: Machine) -> Finding:
    """The interpreter's version."""
    found = ".".join(map(str, machine.python))
    if machine.python < (3, 11):
        return "failure", f"Python {found}; cpplm needs 3.11 or 3.12"
    return ("warning", f"Python {found}: untried") if machine.python > (3, 12) else ("ok", f"Python {found}")


def packages(machine: Machine) -> Finding:
    """JAX and libtpu are there."""
    versions = {name: machine.installed(name) for name in ("jax", "jaxlib", "libtpu")}
    if missing := [name for name, version in versions.items() if not version]:
        return "failure", f"not installed: {', '.join(missing)}"
    return "ok", ", ".join(f"{name} {version}" for name, version in versions.items())


def versions(machine: Machine) -> Finding:
    """JAX, jaxlib and libtpu are made for each other: as JAX's own requirements say, and as it starts."""
    told = machine.jax.message
    if machine.jax.error and "PJRT" in told and re.search(r"_Args size|version", told):
        return "failure", f"libtpu and JAX speak different versions of PJRT: {machine.jax.error}"
    wrong = []
    for needed in map(Requirement, machine.required("jax") or [] if machine.installed("jax") else []):
        applies = needed.marker is None or needed.marker.evaluate({"extra": "tpu"})
        found = machine.installed(needed.name) if applies and needed.name in ("libtpu", "jaxlib") else ""
        if found and not needed.specifier.contains(found, prereleases=True):
            wrong.append(
                f"{needed.name} {found}, but JAX {machine.installed('jax')} needs {needed.specifier}"
            )
    return ("failure", "; ".join(sorted(set(wrong)))) if wrong else ("ok", "made for each other")


def chips(machine: Machine) -> Finding:
    """The machine has TPUs, and device files for them."""
    if not machine.chips:
        return "failure", "no TPU on the PCI bus"
    if not machine.nodes:
        return "failure", f"{machine.chips} chips, but neither /dev/accel* nor /dev/vfio/*: no driver"
    return "ok", f"{machine.chips} chips, {', '.join(machine.nodes)}"


def backend(machine: Machine) -> Finding:
    """JAX computes on the TPU, and not on the CPU without a word."""
    found = machine.jax
    if found.platform == "tpu":
        return "ok", f"JAX has {found.count} TPU devices"
    names = ("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "PJRT_DEVICE")
    cause = [f"{name}={value}" for name in names if "cpu" in (value := machine.environ.get(name, "")).lower()]
    said = f"JAX computes on {found.platform}" if found.platform else f"JAX does not start: {found.error}"
    return "failure", f"{said} ({', '.join(cause)})" if cause else said


def busy(machine: Machine) -> Finding:
    """No process holds the chips."""
    holders = list(_holders(machine))
    if holders:
        return "failure", "; ".join(holders)
    said = machine.jax.message if machine.jax.error else ""
    if re.search(r"[Bb]usy|already in use|libtpu_lockfile", said):
        return "failure", f"held by a process that is not seen from here: {machine.jax.error}"
    return "ok", "held by nobody"


def health(machine: Machine) -> Finding:
    """As many chips as the slice has, all of which compute."""
    found, expected = machine.jax, _chips_here(machine.attribute_type)
    if found.wrong:
        return "failure", f"a product comes out wrong on chips {', '.join(map(str, found.wrong))}"
    if expected and machine.chips and machine.chips < expected:
        return "failure", f"{machine.chips} of {expected} chips of the {machine.attribute_type} are there"
    if found.platform == "tpu" and found.count < (expected or machine.chips):
        return "failure", f"JAX has {found.count} of {expected or machine.chips} chips"
    event = _metadata(machine, "instance/maintenance-event")
    if event not in ("", "NONE"):
        return "warning", f"the cloud is about to maintain this machine: {event}"
    return ("ok", "all chips compute") if found.platform == "tpu" else ("ok", "not asked: see backend")


def disk(machine: Machine) -> Finding:
    """Room for checkpoints, logs and temporary files."""
    free = {folder.absolute(): machine.disk_free(folder) for folder in machine.folders}
    least = min(free, key=lambda folder: free[folder])
    level: Level = "failure" if free[least] < LEAST_DISK else "warning" if free[least] < LITTLE_DISK else "ok"
    return level, f"{free[least] / GIB:.1f} GiB free at {least}"


def metadata_server(machine: Machine) -> Finding:
    """The metadata server answers, with what libtpu asks of it."""
    if machine.host is None:
        return "warning", "none: this is no machine of Google's, so no preemption notice comes"
    if machine.environ.get("TPU_SKIP_MDS_QUERY", "").lower() in ("1", "true"):
        return "ok", "libtpu does not ask it (TPU_SKIP_MDS_QUERY)"
    try:
        zone, _ = read_metadata(machine.host, "instance/zone")
    except OSError as error:
        return "failure", f"{machine.host} does not answer: {error}"
    if not machine.attribute_type:
        return "warning", f"{machine.host} does not name an accelerator type"
    return "ok", f"{machine.attribute_type} in {zone.rpartition('/')[2]}"


def bucket(machine: Machine) -> Finding:
    """The run's bucket can be read and written, and keeps attempts apart."""
    if not machine.bucket:
        return "ok", "not asked (--bucket gs://...)"
    name, data = f"doctor/{secrets.token_hex(8)}", secrets.token_bytes(8)
    try:
        storage = Storage(machine.bucket, create=True)
        if not storage.create(name, data) or storage.create(name, b"") or storage.read(name) != data:
            return "failure", f"{machine.bucket} does not keep an object from being written twice"
        storage.delete([name])
    except UserError as error:
        return "failure", str(error)
    return "ok", f"{machine.bucket} can be read and written"


def clock(machine: Machine) -> Finding:
    """This machine's clock, against that of the metadata server or else of the bucket."""
    there = _metadata_time(machine) or _bucket_time(machine)
    if there is None:
        return "ok", "not compared: neither metadata server nor bucket"
    skew = machine.now() - there
    level: Level = "failure" if abs(skew) > MOST_SKEW else "warning" if abs(skew) > LITTLE_SKEW else "ok"
    return level, f"{abs(skew):.0f} seconds {'ahead' if skew > 0 else 'behind'}"


def huge_pages(machine: Machine) -> Finding:
    """Pages of 2 MB, without which a TPU starts and ends slowly."""
    enabled = machine.text("sys/kernel/mm/transparent_hugepage/enabled")
    reserved = machine.text("proc/sys/vm/nr_hugepages")
    if "[always]" in enabled or reserved not in ("", "0"):
        return "ok", f"transparent: {enabled or 'unknown'}; reserved: {reserved or 0}"
    return "warning", f"transparent huge pages are {enabled or 'unknown'}, and none is reserved"


def _holders(machine: Machine) -> Iterator[str]:
    """Holders of chips: device, number and command of each other process that this one may look into."""
    for process in machine.root.glob("proc/[0-9]*"):
        held = set[str]()
        with contextlib.suppress(OSError):  # of another user, or gone
            for link in (process / "fd").iterdir():
                with contextlib.suppress(OSError):  # closed meanwhile
                    held |= {str(link.readlink())} & set(machine.nodes)
        if held and int(process.name) != os.getpid():
            inside = process.relative_to(machine.root)
            command = machine.text(f"{inside}/cmdline").replace("\0", " ").strip()[:120]
            command = command or machine.text(f"{inside}/comm")
            yield f"{', '.join(sorted(held))} by process {process.name} ({command})"


def _chips_here(slice_name: str) -> int:
    """Chips of one machine of a slice; 0 if it is not known."""
    try:
        chips = parse_slice(slice_name).chips
    except UserError:
        return 0
    return chips if chips <= 8 else 4


def _metadata(machine: Machine, path: str) -> str:
    try:
        return read_metadata(machine.host, path)[0] if machine.host else ""
    except OSError:
        return ""


def _metadata_time(machine: Machine) -> float | None:
    if not machine.host:
        return None
    try:
        _, headers = read_metadata(machine.host, "instance/zone")
        return parsedate_to_datetime(headers["Date"]).timestamp()
    except (OSError, ValueError, TypeError):  # no answer, or one without a time
        return None


def _bucket_time(machine: Machine) -> float | None:
    if not machine.bucket or "://" not in machine.bucket:
        return None
    name = f"doctor/{secrets.token_hex(8)}"
    try:
        storage = Storage(machine.bucket)
        storage.write(name, b"")
        modified = storage.modified(name)
        storage.delete([name])
    except UserError:
        return None
    return modified.timestamp()
