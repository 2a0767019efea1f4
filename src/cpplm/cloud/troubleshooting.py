"""Faults of machines with TPUs: how `cpplm doctor --tpu` finds each, and what fixes it.

docs/tpu-troubleshooting.md has the same table, with what each looks like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cpplm.cloud import tpu_probes
from cpplm.cloud.tpu_probes import Finding, Level, Machine


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong; `probe` finds it."""

    name: str
    fix: str
    probe: Callable[[Machine], Finding]


@dataclass(frozen=True)
class Diagnosis:
    """Result of one probe; `fix` is empty where nothing is to be fixed."""

    name: str
    level: Level
    value: str
    fix: str


FAULTS = (
    Fault(
        "python",
        "Make the environment anew with Python 3.11 or 3.12: python3.12 -m venv venv; where the image has "
        "neither, `uv venv --python 3.12` brings one.",
        tpu_probes.python,
    ),
    Fault(
        "packages",
        "pip install 'cpplm[tpu]'",
        tpu_probes.packages,
    ),
    Fault(
        "versions",
        "Install all three together: pip install --force-reinstall -c constraints.txt 'cpplm[tpu]'. A "
        "libtpu of torch_xla or of the image in the same environment is what usually changed it.",
        tpu_probes.versions,
    ),
    Fault(
        "chips",
        "Use the image of the generation (v2-alpha-tpuv5-lite, v2-alpha-tpuv6e: cpplm tpu types); in a "
        "container, give it the devices (docker run --privileged). Without any chip on the bus, delete the "
        "machine and create it anew.",
        tpu_probes.chips,
    ),
    Fault(
        "busy",
        "End the process that is named: kill PID, and kill -9 PID where that does nothing for a minute. If "
        "none is named, look again as root; else rm -f /tmp/libtpu_lockfile, or restart the machine.",
        tpu_probes.busy,
    ),
    Fault(
        "backend",
        "Unset JAX_PLATFORMS, JAX_PLATFORM_NAME and PJRT_DEVICE, or set JAX_PLATFORMS=tpu; then see the "
        "lines above. A slice of several machines answers only when all of them ask at once.",
        tpu_probes.backend,
    ),
    Fault(
        "health",
        "Delete the machine and create it anew: cpplm tpu delete, cpplm tpu create; of a run that is "
        "watched, delete it alone, the watcher does the rest.",
        tpu_probes.health,
    ),
    Fault(
        "disk",
        "Delete old runs and what lies in /tmp; lower --keep_last; or attach a disk and name it by --out.",
        tpu_probes.disk,
    ),
    Fault(
        "metadata",
        "Let http://metadata.google.internal through (no_proxy, firewalls, containers with --net=host). On "
        "machines that have none, set TPU_SKIP_MDS_QUERY=1 and TPU_ACCELERATOR_TYPE.",
        tpu_probes.metadata_server,
    ),
    Fault(
        "bucket",
        "Give the machine's service account the role storage.objectAdmin on the bucket and the scope "
        "cloud-platform (create); elsewhere, gcloud auth application-default login, or AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY.",
        tpu_probes.bucket,
    ),
    Fault(
        "clock",
        "sudo timedatectl set-ntp true; or sudo chronyc makestep",
        tpu_probes.clock,
    ),
    Fault(
        "huge pages",
        "sudo sh -c 'echo always > /sys/kernel/mm/transparent_hugepage/enabled'",
        tpu_probes.huge_pages,
    ),
)


def diagnose(machine: Machine) -> list[Diagnosis]:
    """Results of all probes, in the order of `FAULTS`."""
    found = [(fault, *fault.probe(machine)) for fault in FAULTS]
    return [
        Diagnosis(fault.name, level, value, "" if level == "ok" else fault.fix)
        for fault, level, value in found
    ]
