"""Faults of machines with TPUs: how `cpplm doctor --tpu` finds each, and what mends it.

`python -m cpplm.cloud.troubleshooting > docs/tpu-troubleshooting.md` writes the page of the same name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from cpplm.cloud import tpu_probes
from cpplm.cloud.tpu_probes import Finding, Level, Machine


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong; `probe` finds it. `looks` says at what it looks, for the page."""

    name: str
    symptom: str
    looks: str
    fix: str
    probe: Callable[[Machine], Finding]


@dataclass(frozen=True)
class Diagnosis:
    """Result of one probe; `fix` is empty where nothing is to be mended."""

    name: str
    level: Level
    value: str
    fix: str


FAULTS = (
    Fault(
        "python",
        "`pip` finds no cpplm or an old JAX; a syntax error at the start",
        "the version of the interpreter that runs `cpplm`",
        "Make the environment anew with Python 3.11 or 3.12: python3.12 -m venv venv; where the image has "
        "neither, `uv venv --python 3.12` brings one.",
        tpu_probes.python,
    ),
    Fault(
        "packages",
        "`No module named jax`; `Unable to initialize backend 'tpu'`",
        "jax, jaxlib and libtpu among the installed packages",
        "pip install 'cpplm[tpu]'",
        tpu_probes.packages,
    ),
    Fault(
        "versions",
        "`Unexpected PJRT_Plugin_Attributes_Args size`, or a crash when the step is compiled",
        "what JAX's own metadata asks of jaxlib and libtpu, and JAX's first words",
        "Install all three together: pip install --force-reinstall -c constraints.txt 'cpplm[tpu]'. A "
        "libtpu of torch_xla or of the image in the same environment is what usually changed it.",
        tpu_probes.versions,
    ),
    Fault(
        "chips",
        "`No TPU found`; `/dev/accel0` does not exist",
        "Google's chips on the PCI bus, and their device files",
        "Use the image of the generation (v2-alpha-tpuv5-lite, v2-alpha-tpuv6e: cpplm tpu types); in a "
        "container, give it the devices (docker run --privileged). Without any chip on the bus, delete the "
        "machine and create it anew.",
        tpu_probes.chips,
    ),
    Fault(
        "busy",
        "`Device or resource busy`; `The TPU is already in use by process`",
        "the open files of all processes, which root sees: sudo",
        "End the process that is named: kill PID, and kill -9 PID where that does nothing for a minute. If "
        "none is named, look again as root; else rm -f /tmp/libtpu_lockfile, or restart the machine.",
        tpu_probes.busy,
    ),
    Fault(
        "backend",
        "Training runs, a hundred times too slow: JAX has taken the CPU without a word",
        "a small product on each device that JAX has, in a process of its own",
        "Unset JAX_PLATFORMS, JAX_PLATFORM_NAME and PJRT_DEVICE, or set JAX_PLATFORMS=tpu; then see the "
        "lines above. A slice of several machines answers only when all of them ask at once.",
        tpu_probes.backend,
    ),
    Fault(
        "health",
        "Steps hang or give numbers that are none; the cloud lists UNHEALTHY_TENSORFLOW",
        "chips there against chips of the slice's type, that product's result, the maintenance event",
        "Delete the machine and create it anew: cpplm tpu delete, cpplm tpu create; of a run that is "
        "watched, delete it alone, the watcher does the rest.",
        tpu_probes.health,
    ),
    Fault(
        "disk",
        "`No space left on device` when a checkpoint is saved",
        "free space of /, of this folder and of the folder for temporary files",
        "Delete old runs and what lies in /tmp; lower --keep_last; or attach a disk and name it by --out.",
        tpu_probes.disk,
    ),
    Fault(
        "metadata",
        "libtpu waits for minutes at its start; no preemption notice is heard",
        "the metadata server's zone and type of slice",
        "Let http://metadata.google.internal through (no_proxy, firewalls, containers with --net=host). On "
        "machines that have none, set TPU_SKIP_MDS_QUERY=1 and TPU_ACCELERATOR_TYPE.",
        tpu_probes.metadata_server,
    ),
    Fault(
        "bucket",
        "`403`, `401` or a time-out when a checkpoint is uploaded or the run is resumed",
        "an object created, not created again, read and deleted, where --bucket names the run",
        "Give the machine's service account the role storage.objectAdmin on the bucket and the scope "
        "cloud-platform (create); elsewhere, gcloud auth application-default login, or AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY.",
        tpu_probes.bucket,
    ),
    Fault(
        "clock",
        "`RequestTimeTooSkewed`, `invalid_grant`, or heartbeats of the future",
        "the Date of the metadata server, or else of an object in the bucket",
        "sudo timedatectl set-ntp true; or sudo chronyc makestep",
        tpu_probes.clock,
    ),
    Fault(
        "huge pages",
        "The TPU starts and ends slowly; JAX warns of transparent huge pages",
        "transparent_hugepage/enabled and nr_hugepages",
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


def troubleshooting_page() -> str:
    """The page for people, from the same table."""
    rows = [f"| **{f.name}** | {f.symptom} | {f.looks} | {f.fix} |" for f in FAULTS]
    return f"""# When it goes wrong on a TPU

```sh
cpplm doctor --tpu
cpplm doctor --tpu --bucket gs://my-bucket/runs/mine --json
```

Run it on the machine, with the Python that trains. It probes what follows and prints a line for each, with
its fix where one is needed. Its status is 1 if training would fail, and 0 otherwise, also with warnings. It
takes hold of the chips for some seconds: not beside a run. No TPU was at hand when it was written: each fault
is faked in its tests.

| probe | what you see | at what it looks | what mends it |
|---|---|---|---|
{chr(10).join(rows)}

What no probe finds:

- **The first step takes minutes.** The step is being compiled; `heartbeat.json` of the run says `compiling`.
  Programs are kept in the run's bucket (`compile_cache/`): the next machine starts without.
- **PREEMPTED, SUSPENDED, a request that is never filled.** Such a machine or request does not come back: it
  is deleted and made anew, in the next zone. `cpplm tpu watch` does so.
- **`attempt 3 of gs://... is over`**, status 2. Another machine has taken the run over, and this one must not
  write any more. Nothing is to be done.
"""


if __name__ == "__main__":
    sys.stdout.write(troubleshooting_page())
