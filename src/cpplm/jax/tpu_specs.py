"""Memory and rates of TPU chips, by Google's data sheets, and the names of slices.

| name | memory | bf16 peak    | data sheet, at docs.cloud.google.com |
|------|--------|--------------|--------------------------------------|
| v4   | 32 GiB | 275 TFLOP/s  | /tpu/docs/v4                         |
| v5e  | 16 GiB | 197 TFLOP/s  | /tpu/docs/v5e                        |
| v5p  | 95 GiB | 459 TFLOP/s  | /tpu/docs/v5p                        |
| v6e  | 32 GiB | 918 TFLOP/s  | /tpu/docs/v6e                        |
| v7x  | 192 GiB| 2307 TFLOP/s | /tpu/docs/tpu7x                      |

A part of the memory is the system's: what a program may use, the compiler knows (15.75 of v5e's 16 GiB).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cpplm.core.errors import UserError

# Shapes of slices by their number of chips: a torus of two dimensions, or of three.
FLAT: dict[int, tuple[int, ...]] = {
    1: (1, 1), 4: (2, 2), 8: (2, 4), 16: (4, 4), 32: (4, 8), 64: (8, 8), 128: (8, 16), 256: (16, 16),
}  # fmt: skip
CUBIC: dict[int, tuple[int, ...]] = {
    4: (2, 2, 1), 8: (2, 2, 2), 16: (2, 2, 4), 32: (2, 4, 4), 64: (4, 4, 4), 128: (4, 4, 8),
}  # fmt: skip
HOST = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}  # chips of a virtual machine, of flat slices

MEGACORE = (("chip_config_name", "megacore"),)  # one device of v4's two cores, as JAX has it on the machine


@dataclass(frozen=True)
class Chip:
    """One kind of TPU."""

    name: str
    kind: str
    """JAX's name of it, `Device.device_kind`."""
    memory_gib: int
    peak_teraflops: float
    """Dense bfloat16 products, 10^12 operations per second."""
    shapes: dict[int, tuple[int, ...]]
    counted: int = 1
    """Units that Google's names count: 2 cores of each chip, as in v5p-8 with its 4 chips, or chips."""
    devices: int = 1
    """JAX devices of a chip, among which its memory and rate are divided."""
    libtpu_name: str = ""
    """libtpu's name of it."""
    libtpu_options: tuple[tuple[str, str], ...] = ()
    """Options with which libtpu sees a chip as one device."""

    @property
    def device_memory(self) -> int:
        """Bytes of one JAX device."""
        return self.memory_gib * 2**30 // self.devices

    @property
    def device_peak(self) -> float:
        """Operations per second of one JAX device."""
        return self.peak_teraflops * 1e12 / self.devices


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "TPU v4", 32, 275.0, CUBIC, counted=2, libtpu_options=MEGACORE),
        Chip("v5e", "TPU v5 lite", 16, 197.0, FLAT),
        Chip("v5p", "TPU v5", 95, 459.0, CUBIC, counted=2),
        Chip("v6e", "TPU v6 lite", 32, 918.0, FLAT),
        Chip("v7x", "TPU7x", 192, 2307.0, CUBIC, devices=2, libtpu_name="tpu7x"),
    )
}
CHIPS_BY_KIND = {chip.kind: chip for chip in CHIPS.values()} | {
    "TPU v5e": CHIPS["v5e"], "TPU v5p": CHIPS["v5p"], "TPU v6e": CHIPS["v6e"],
}  # fmt: skip


@dataclass(frozen=True)
class Slice:
    """Some chips of one kind, connected."""

    name: str
    chip: Chip
    chips: int

    @property
    def devices(self) -> int:
        """Number of devices as JAX counts them."""
        return self.chips * self.chip.devices

    @property
    def topology(self) -> str:
        """The name by which libtpu describes it."""
        shape = "x".join(str(length) for length in self.chip.shapes[self.chips])
        return f"{self.chip.libtpu_name or self.chip.name}:{shape}"

    @property
    def options(self) -> dict[str, object]:
        """Options that libtpu needs besides."""
        options: dict[str, object] = dict(self.chip.libtpu_options)
        if self.chip.shapes is FLAT and self.chips in HOST:
            options["chips_per_host_bounds"] = HOST[self.chips]
        return options


def parse_slice(name: str) -> Slice:
    """The slice of a name such as v6e-4, v5e-8, which Google's command calls v5litepod-8, or v5p-8.

    Raises:
        UserError: no such slice.
    """
    match = re.fullmatch(r"(v\d\w?)-(\d+)", name.replace("v5litepod", "v5e"))
    chip = CHIPS.get(match[1]) if match else None
    if match is None or chip is None:
        raise UserError(
            f"no TPU slice {name!r}", fix=f"Use one of {', '.join(CHIPS)} with a number, as v6e-4."
        )
    chips, rest = divmod(int(match[2]), chip.counted)
    if rest or chips not in chip.shapes:
        known = ", ".join(f"{chip.name}-{number * chip.counted}" for number in chip.shapes)
        raise UserError(f"no TPU slice {name!r}", fix=f"Known are {known}.")
    return Slice(name, chip, chips)
