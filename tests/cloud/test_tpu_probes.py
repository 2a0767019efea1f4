"""`cpplm doctor --tpu`: a machine on which all is well, then each fault, faked on disk and loopback."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cpplm.cli import doctor as doctor_module
from cpplm.cloud import tpu_probes
from cpplm.cloud.tpu_probes import GIB, Machine
from cpplm.cloud.troubleshooting import FAULTS, diagnose
from tests.commands import assert_one_line_error, cpplm
from tests.metadata_server import MetadataServer, metadata_server
from tests.moto_bucket import moto_bucket

ROOT = Path(__file__).parents[2]
VERSIONS = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
REQUIRED = [
    "jaxlib<=0.10.2,>=0.10.1", 'jaxlib==0.9.0; extra == "minimum-jaxlib"', "numpy>=2.0",
    'libtpu==0.0.42.*; extra == "tpu"',
]  # fmt: skip
PJRT = "RuntimeError: Unexpected PJRT_Plugin_Attributes_Args size: expected 32, got 24"
HELD = "RuntimeError: TPU initialization failed: open(/dev/vfio/0): Device or resource busy: /dev/vfio/0"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def program(platform: str = "tpu", count: int = 4, wrong: tuple[int, ...] = ()) -> tuple[str, ...]:
    """A process that says what JAX would say."""
    answer = json.dumps({"platform": platform, "count": count, "wrong": wrong})
    return sys.executable, "-c", f"print('a warning'); print({answer!r})"


def failing(message: str) -> tuple[str, ...]:
    return sys.executable, "-c", f"import sys; sys.exit({message!r})"


@dataclasses.dataclass
class Fake:
    """A machine and what surrounds it."""

    machine: Machine
    server: MetadataServer
    root: Path


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A v6e-4 on which all is well."""
    root = tmp_path / "root"
    for chip in range(4):
        slot = f"sys/bus/pci/devices/{chip}"
        write(root, {f"{slot}/vendor": "0x1ae0\n", f"{slot}/device": "0x006f\n", f"dev/vfio/{chip}": ""})
    write(root, {
        "dev/vfio/vfio": "", "sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
        "proc/sys/vm/nr_hugepages": "0\n", "proc/77/cmdline": "sshd\0-D\0", "proc/77/fd/.keep": "",
    })  # fmt: skip
    with metadata_server() as server, moto_bucket(monkeypatch) as url:
        server.values |= {
            "instance/zone": "projects/1/zones/europe-west4-a",
            "instance/attributes/accelerator-type": "v6e-4",
            "instance/maintenance-event": "NONE",
        }
        machine = Machine(
            bucket=f"{url}/run",
            root=root,
            environ={"PATH": os.environ["PATH"]},  # JAX sets TPU_SKIP_MDS_QUERY in the process of other tests
            python=(3, 11),
            installed=lambda name: VERSIONS.get(name, ""),
            required=lambda name: REQUIRED,
            host=server.host,
            folders=(tmp_path,),
            disk_free=lambda folder: 50 * GIB,
            jax_command=program(),
        )
        yield Fake(machine, server, root)


def found(machine: Machine) -> dict[str, tuple[str, str]]:
    """Those probes that find something, by name: level and what was seen."""
    return {d.name: (d.level, d.value) for d in diagnose(machine) if d.level != "ok"}


def test_where_all_is_well_nothing_is_found(fake: Fake) -> None:
    diagnoses = diagnose(fake.machine)
    assert {d.name: d.value for d in diagnoses if d.level != "ok"} == {}
    assert [d.name for d in diagnoses] == [fault.name for fault in FAULTS]
    assert all(d.value and not d.fix for d in diagnoses)
    values = {d.name: d.value for d in diagnoses}
    assert values["backend"] == "JAX has 4 TPU devices"
    assert values["metadata"] == "v6e-4 in europe-west4-a"
    assert values["bucket"] == "s3://runs/run can be read and written"
    assert int(values["clock"].split()[0]) <= 2  # the server counts whole seconds


def hold(fake: Fake) -> None:
    write(fake.root, {"proc/4711/cmdline": "python\0-m\0old_training\0", "proc/4711/fd/0": ""})
    (fake.root / "proc/4711/fd/7").symlink_to("/dev/vfio/2")
    for number in range(8, 40):
        (fake.root / f"proc/4711/fd/{number}").symlink_to("/dev/null")


def change(**values: Any) -> Callable[[Fake], None]:
    def apply(fake: Fake) -> None:
        for name, value in values.items():
            setattr(fake.machine, name, value)

    return apply


def set_environment(**values: str) -> Callable[[Fake], None]:
    return lambda fake: change(environ={**fake.machine.environ, **values})(fake)


def remove(*names: str) -> Callable[[Fake], None]:
    def apply(fake: Fake) -> None:
        for name in names:
            for path in fake.root.glob(name):
                path.unlink()

    return apply


def both(*changes: Callable[[Fake], None]) -> Callable[[Fake], None]:
    def apply(fake: Fake) -> None:
        for each in changes:
            each(fake)

    return apply


def without(name: str) -> Callable[[str], str]:
    return lambda package: "" if package == name else VERSIONS[package]


def in_place_of(**versions: str) -> Callable[[str], str]:
    return lambda package: {**VERSIONS, **versions}.get(package, "")


def free(gib: float) -> Callable[[Path], int]:
    return lambda folder: int(gib * GIB)


def pages(text: str) -> Callable[[Fake], None]:
    return lambda fake: write(fake.root, {"sys/kernel/mm/transparent_hugepage/enabled": text})


def serve(name: str, value: Any) -> Callable[[Fake], None]:
    return lambda fake: setattr(fake.server, name, value)


def answer(path: str, value: str | None) -> Callable[[Fake], None]:
    def apply(fake: Fake) -> None:
        if value is None:
            del fake.server.values[path]
        else:
            fake.server.values[path] = value

    return apply


CASES: dict[str, tuple[Callable[[Fake], None], str, str, str]] = {
    "old Python": (change(python=(3, 10)), "python", "failure", "Python 3.10; cpplm needs 3.11 or 3.12"),
    "new Python": (change(python=(3, 14)), "python", "warning", "Python 3.14: untried"),
    "no libtpu": (change(installed=without("libtpu")), "packages", "failure", "not installed: libtpu"),
    "libtpu of another JAX": (
        change(installed=in_place_of(libtpu="0.0.23.1")), "versions", "failure",
        "libtpu 0.0.23.1, but JAX 0.10.2 needs ==0.0.42.*",
    ),
    "old jaxlib": (
        change(installed=in_place_of(jaxlib="0.10.0")), "versions", "failure", "needs <=0.10.2,>=0.10.1"),
    "new jaxlib": (change(installed=in_place_of(jaxlib="0.11.0")), "versions", "failure", "jaxlib 0.11.0"),
    "no device files": (remove("dev/vfio/*"), "chips", "failure", "4 chips, but neither"),
    "a process": (hold, "busy", "failure", "/dev/vfio/2 by process 4711 (python -m old_training)"),
    "the CPU": (change(jax_command=program("cpu", 1)), "backend", "failure", "JAX computes on cpu"),
    "the CPU, as told": (
        both(change(jax_command=program("cpu", 1)), set_environment(JAX_PLATFORMS="cpu")), "backend",
        "failure", "JAX computes on cpu (JAX_PLATFORMS=cpu)",
    ),
    "a wrong product": (
        change(jax_command=program(wrong=(2,))), "health", "failure", "comes out wrong on chips 2"),
    "a lost device": (change(jax_command=program(count=3)), "health", "failure", "JAX has 3 of 4 chips"),
    "a lost chip": (
        lambda fake: write(fake.root, {"sys/bus/pci/devices/3/device": "0x1"}), "health", "failure",
        "3 of 4 chips of the v6e-4 are there",
    ),
    "maintenance": (
        answer("instance/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"), "health", "warning",
        "about to maintain this machine: TERMINATE_ON_HOST_MAINTENANCE",
    ),
    "a full disk": (change(disk_free=free(0.5)), "disk", "failure", "0.5 GiB free at /"),
    "a disk nearly full": (change(disk_free=free(5)), "disk", "warning", "5.0 GiB free at /"),
    "metadata of another server": (
        serve("flavor", "proxy"), "metadata", "failure", "does not answer: status 200"),
    "no accelerator type": (
        answer("instance/attributes/accelerator-type", None), "metadata", "warning",
        "does not name an accelerator type",
    ),
    "no such bucket": (change(bucket="s3://other/run"), "bucket", "failure", "s3://other/run"),
    "a clock ahead": (serve("clock_skew", -3600.0), "clock", "failure", "360"),
    "a clock behind": (serve("clock_skew", 60.0), "clock", "warning", "seconds behind"),
    "small pages": (
        pages("always madvise [never]"), "huge pages", "warning", "always madvise [never], and none"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_fault_is_found_by_its_probe_alone(case: str, fake: Fake) -> None:
    break_it, name, level, said = CASES[case]
    break_it(fake)
    (only,) = (d for d in diagnose(fake.machine) if d.level != "ok")
    assert (only.name, only.level) == (name, level)
    assert said in only.value
    assert only.fix == next(fault.fix for fault in FAULTS if fault.name == name)


def test_a_real_process_that_holds_a_file_is_named(tmp_path: Path) -> None:
    device = tmp_path / "accel0"
    device.touch()
    machine = Machine()
    machine.nodes = [str(device)]
    waits = f"import time; file = open({str(device)!r}); print('open', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", waits], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        level, said = tpu_probes.busy(machine)
        process.kill()
    assert level == "failure"
    assert said.startswith(f"{device} by process {process.pid} ({sys.executable} -c import time")


def test_every_fault_of_the_table_is_faked() -> None:
    assert {name for _, name, _, _ in CASES.values()} == {fault.name for fault in FAULTS}
    failures = {name for _, name, level, _ in CASES.values() if level == "failure"}
    assert failures == {fault.name for fault in FAULTS} - {"huge pages"}


@pytest.mark.parametrize(
    ("message", "name", "said"),
    [
        (PJRT, "versions", "different versions of PJRT: RuntimeError: Unexpected PJRT_Plugin"),
        (HELD, "busy", "held by a process that is not seen from here: RuntimeError: TPU initialization"),
        ("Unable to initialize backend 'tpu'", "backend", "JAX does not start: Unable to initialize"),
    ],
)
def test_what_jax_says_when_it_does_not_start_has_its_cause(
    message: str, name: str, said: str, fake: Fake
) -> None:
    fake.machine.jax_command = failing(message)
    seen = found(fake.machine)
    assert seen.keys() == {name, "backend"}
    assert said in seen[name][1]


def test_a_jax_that_hangs_is_given_up(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu_probes, "_JAX_SECONDS", 0.3)
    fake.machine.jax_command = (sys.executable, "-c", "import time; time.sleep(60)")
    begin = time.monotonic()
    assert found(fake.machine)["backend"][1] == "JAX does not start: JAX found no device within 0.3 seconds"
    assert time.monotonic() - begin < 30


def test_a_machine_elsewhere_has_no_tpu_and_no_metadata(fake: Fake) -> None:
    remove("sys/bus/pci/devices/*/device", "dev/vfio/*")(fake)
    change(host=None, bucket="", jax_command=program("cpu", 1))(fake)
    seen = found(fake.machine)
    assert {name: level for name, (level, _) in seen.items()} == {
        "chips": "failure", "backend": "failure", "metadata": "warning"}  # fmt: skip
    assert seen["chips"][1] == "no TPU on the PCI bus"
    values = {d.name: d.value for d in diagnose(fake.machine)}
    assert values["clock"] == "not compared: neither metadata server nor bucket"
    assert values["bucket"] == "not asked (--bucket gs://...)"


def test_without_metadata_the_bucket_tells_the_time(fake: Fake) -> None:
    change(host=None, now=lambda: time.time() + 1000)(fake)
    level, said = found(fake.machine)["clock"]
    assert level == "failure"
    assert 990 < int(said.split()[0]) < 1020


def test_a_server_that_is_not_there_does_not_matter_where_libtpu_does_not_ask_it(fake: Fake) -> None:
    change(host="127.0.0.1:9")(fake)
    assert found(fake.machine)["metadata"][0] == "failure"
    set_environment(TPU_SKIP_MDS_QUERY="1")(fake)
    assert "metadata" not in found(fake.machine)


def test_a_bucket_in_which_attempts_are_not_kept_apart_is_refused(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tpu_probes.Storage, "create", lambda storage, name, data: True)
    level, said = found(fake.machine)["bucket"]
    assert (level, said) == ("failure", "s3://runs/run does not keep an object from being written twice")


@pytest.mark.parametrize(
    ("version", "wanted", "right"),
    [
        ("0.10.2", "==0.10.*", True), ("0.1.2", "==0.10.*", False), ("0.10.2", "==0.10.2", True),
        ("0.10.20", "==0.10.2", False), ("0.9.9", ">=0.10", False), ("1.0", ">=0.10,<=0.12", False),
        ("2", "", True), ("0.0.42.1", "==0.0.42.*", True), ("0.0.4.21", "==0.0.42.*", False),
    ],
)  # fmt: skip
def test_versions_are_compared_by_their_numbers(version: str, wanted: str, right: bool, fake: Fake) -> None:
    change(installed=in_place_of(jaxlib=version), required=lambda name: [f"jaxlib{wanted}"])(fake)
    assert (tpu_probes.versions(fake.machine)[0] == "ok") == right


def test_what_is_asked_of_jax_runs_on_the_cpu_of_this_machine() -> None:
    """The program itself, which says cpu here."""
    done = subprocess.run(
        Machine().jax_command, env={**os.environ, "JAX_PLATFORMS": "cpu"}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["platform"] == "cpu"
    assert answer["count"] >= 1
    assert answer["wrong"] == []


# ---- the command and the page -----------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "status"), [(None, 0), ("small pages", 0), ("a full disk", 1)])
def test_the_command_prints_all_and_ends_with_1_if_training_would_fail(
    case: str | None, status: int, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case:
        CASES[case][0](fake)
    monkeypatch.setattr(doctor_module, "Machine", lambda bucket: fake.machine)
    result = cpplm("doctor", "--tpu", "--bucket", fake.machine.bucket, "--json")
    assert (result.returncode, result.stderr) == (status, "")
    *rows, figures = result.stdout.splitlines()
    findings = json.loads(figures)["findings"]
    assert json.loads(figures)["ready"] == (status == 0)
    assert findings.keys() == {fault.name for fault in FAULTS}
    assert rows[-1] == ("training would work here" if status == 0 else "training would fail: disk")
    bad = [row for row in rows if row.lstrip().startswith(("FAIL", "WARN"))]
    assert len(bad) == (1 if case else 0)
    if case:
        name = CASES[case][1]
        assert f"-> {findings[name]['fix']}" in result.stdout


def test_a_bucket_is_tried_with_tpus_alone() -> None:
    assert_one_line_error(cpplm("doctor", "--bucket", "gs://bucket"), "--bucket is tried with --tpu alone")


def test_the_page_has_the_faults_of_the_table() -> None:
    page = (ROOT / "docs/tpu-troubleshooting.md").read_text(encoding="utf-8")
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| **")]
    assert [(row[0], row[-1]) for row in rows] == [(f"**{fault.name}**", fault.fix) for fault in FAULTS]
    assert {len(row) for row in rows} == {4}
