"""What a run would take, found out without its hardware (`cpplm train --dry_run`).

Parameters, steps and operations per step (as `cpplm.model.counting` counts them) are exact; memory is partly
exact and partly estimated, see `cpplm.train.memory`. Throughput is an assumption: the share of the devices'
peak rate that is reached (`--mfu`), which also stands for all communication.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpplm.core.data_sheets import PEAK_TERAFLOPS
from cpplm.core.wording import counted
from cpplm.model.counting import count_flops, count_parameters
from cpplm.train.memory import Memory, Plan, memory_of
from cpplm.train.settings import DryRunSettings

# Memory of one device in 10^9 bytes, by the names of PEAK_TERAFLOPS, as the makers state it. Where a
# device is sold with several sizes, the smallest.
MEMORY_GB = {
    "B300": 288, "GB200": 186, "B200": 180, "GH200": 96, "H200": 141, "H100 PCIe": 80, "H100 NVL": 94,
    "H100": 80, "H800": 80, "H20": 96, "A100": 40, "A800": 40, "L40S": 48, "L40": 48, "L4": 24, "A10G": 24,
    "A10": 24, "RTX 5090": 32, "RTX 4090": 24, "RTX 3090": 24,
}  # fmt: skip
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
    memory: Memory
    device_bytes: int
    fits: bool
    tokens_per_second: float
    hours: float
    settings: DryRunSettings

    def text(self) -> str:
        """For people."""
        memory, dry = self.memory, self.settings
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
        passes = counted(self.accumulation, "forward pass", "forward passes")
        lines = [
            f"{self.parameters:,} parameters, {dry.world_size} x {dry.gpu}",
            f"{self.steps:,} steps of {self.tokens // self.steps:,} tokens, each {passes} "
            f"per process and {self.flops_per_step:.3e} operations (exact)",
            *(f"  {name:16} {size / 1e9:9.2f} GB per process ({how})" for name, size, how in parts if size),
            f"{'fits' if self.fits else 'does not fit'}: {USABLE:.0%} of {self.device_bytes / 1e9:.0f} GB "
            "can be used",
            f"{self.tokens_per_second:,.0f} tokens/s, {self.hours:,.1f} hours, if {dry.mfu:.0%} of the "
            "peak rate is reached (assumed)",
        ]
        return "\n".join(lines)


def estimate(
    plan: Plan, dry: DryRunSettings, *, steps: int | None = None, seconds: float | None = None
) -> Estimate:
    """What a run of so many steps, or of so many seconds, takes.

    Raises:
        UserError: these ranks cannot train this model on this batch.
        ValueError: neither or both of `steps` and `seconds`.
    """
    if (steps is None) == (seconds is None):
        raise ValueError("a run is so many steps or so many seconds long")
    flops = count_flops(plan.config)["total"]
    accumulation = plan.accumulation(dry.world_size)
    rate = dry.mfu * PEAK_TERAFLOPS[dry.gpu] * 1e12 * dry.world_size / flops
    if steps is None:
        assert seconds is not None  # noqa: S101  (checked above)
        steps = max(1, round(seconds * rate / plan.total_batch_size))
    tokens = steps * plan.total_batch_size
    memory = memory_of(plan, dry.world_size)
    device_bytes = round(1e9 * (MEMORY_GB[dry.gpu] if dry.gpu_memory_gb == -1 else dry.gpu_memory_gb))
    return Estimate(
        parameters=count_parameters(plan.config)["total"],
        steps=steps,
        tokens=tokens,
        accumulation=accumulation,
        flops_per_step=flops * plan.total_batch_size,
        memory=memory,
        device_bytes=device_bytes,
        fits=memory.peak <= USABLE * device_bytes,
        tokens_per_second=rate,
        hours=tokens / rate / 3600,
        settings=dry,
    )
