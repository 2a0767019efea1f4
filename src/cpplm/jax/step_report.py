"""What `cpplm tpu check` and `cpplm tpu bench` both say of the step that they look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jax.sharding import Mesh

from cpplm.jax.settings import RunSettings
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_parameters
from cpplm.train.settings import TrainSettings


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step, and how it is divided and computed; see `describe_step`."""

    devices: int
    mesh: dict[str, int]
    depth: int
    parameters: int
    max_seq_len: int
    tokens_per_step: int
    precision: str
    attention: str
    remat: str

    def headline(self, devices: str) -> list[str]:
        """For people: the devices, in these words, with their mesh; and the step."""
        mesh = " x ".join(f"{axis} {size}" for axis, size in self.mesh.items() if size > 1) or "one device"
        return [
            f"{devices}, {mesh}",
            f"depth {self.depth}, {self.parameters:,} parameters; {self.tokens_per_step:,} tokens a step "
            f"in rows of {self.max_seq_len:,}; {self.precision}, attention {self.attention}, "
            f"remat {self.remat}",
        ]


def describe_step(
    training: TrainSettings, config: ModelConfig, run: RunSettings, attention: str, mesh: Mesh
) -> dict[str, Any]:
    """The fields of a `StepReport`; `attention` is the kind that computes it."""
    return {
        "devices": mesh.size,
        "mesh": dict(mesh.shape),
        "depth": config.num_layers,
        "parameters": count_parameters(config)["total"],
        "max_seq_len": config.max_seq_len,
        "tokens_per_step": training.total_batch_size,
        "precision": run.compute_dtype,
        "attention": attention,
        "remat": run.remat,
    }
