"""What a run would take, found out without its hardware (`cpplm train --dry_run`).

Parameters, steps and operations per step (as `cpplm.model.flops` counts them) are exact; memory is partly
exact and partly estimated, see `memory_estimate`. Throughput is an assumption: the share of the devices'
peak rate that is reached (`--mfu`), which also stands for all communication.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpplm.core.text import pluralize
from cpplm.model.flops import count_flops, count_parameters
from cpplm.train.devices import Devices
from cpplm.train.memory_estimate import MemoryEstimate, MemoryPlan, estimate_memory

USABLE = 0.92  # share of a device's memory; the driver, communication buffers and fragments take the rest


@dataclass(frozen=True)
class Estimate:
    """A run's needs. Exact: parameters, accumulation, flops_per_step, of `memory` weights and
    optimizer_state, and steps and tokens where the length was given in steps."""

    parameters: int
    steps: int
    tokens: int
    accumulation: int
    flops_per_step: int
    memory: MemoryEstimate
    fits: bool
    tokens_per_second: float
    hours: float
    mfu: float
    devices: Devices

    def text(self) -> str:
        """For people."""
        memory, devices = self.memory, self.devices
        parts = (
            ("weights", memory.weights, "exact"),
            ("gathered blocks", memory.gathered, "estimate"),
            ("gradients", memory.gradients, "estimate"),
            ("optimizer state", memory.optimizer_state, "exact"),
            ("optimizer step", memory.optimizer_work, "estimate"),
            ("activations", memory.activations, "traced"),
            ("loss", memory.loss, "estimate"),
            ("peak", memory.peak, "estimate, not the sum"),
        )
        passes = pluralize(self.accumulation, "forward pass", "forward passes")
        lines = [
            f"{self.parameters:,} parameters, {devices.count} x {devices.name}",
            f"{self.steps:,} steps of {self.tokens // self.steps:,} tokens, each {passes} "
            f"per process and {self.flops_per_step:.3e} operations (exact)",
            *(f"  {name:16} {size / 1e9:9.2f} GB per process ({how})" for name, size, how in parts if size),
            f"{'fits' if self.fits else 'does not fit'}: {USABLE:.0%} of {devices.memory_bytes / 1e9:.0f} GB "
            "can be used",
            f"{self.tokens_per_second:,.0f} tokens/s, {self.hours:,.1f} hours, if {self.mfu:.0%} of the "
            f"peak rate of {devices.peak_flops / 1e12:,.2f} TFLOP/s is reached (assumed)",
        ]
        return "\n".join(lines)


def estimate(
    plan: MemoryPlan, devices: Devices, mfu: float, *, steps: int | None = None, seconds: float | None = None
) -> Estimate:
    """What a run of so many steps, or of so many seconds, takes.

    Raises:
        UserError: these ranks cannot train this model on this batch.
        ValueError: neither or both of `steps` and `seconds`.
    """
    if (steps is None) == (seconds is None):
        raise ValueError("a run is so many steps or so many seconds long")
    flops = count_flops(plan.config)["total"]
    accumulation = plan.accumulation(devices.count)
    rate = devices.tokens_per_second(flops, mfu)
    if steps is None:
        assert seconds is not None  # noqa: S101  (checked above)
        steps = max(1, round(seconds * rate / plan.total_batch_size))
    tokens = steps * plan.total_batch_size
    memory = estimate_memory(plan, devices.count, device_type=devices.kind)
    return Estimate(
        parameters=count_parameters(plan.config)["total"],
        steps=steps,
        tokens=tokens,
        accumulation=accumulation,
        flops_per_step=flops * plan.total_batch_size,
        memory=memory,
        fits=memory.peak <= USABLE * devices.memory_bytes,
        tokens_per_second=rate,
        hours=tokens / rate / 3600,
        mfu=mfu,
        devices=devices,
    )
