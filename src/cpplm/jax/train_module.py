"""A model in JAX as the training loop sees it: on the chips of one host or several."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil
import torch
from jax.sharding import Mesh
from torch import Tensor
from typing_extensions import override

from cpplm.dataloader.loader import Batch
from cpplm.jax.layers import Params
from cpplm.jax.mesh import HostBatchSharder, gather_host_share, host_rows, put_on_mesh, rows_sharding
from cpplm.jax.model import token_losses
from cpplm.jax.param_stacking import (
    checkpoint_names,
    checkpoint_shapes,
    partition_params,
    to_checkpoint_dtype,
)
from cpplm.jax.quantizer import Quantizer
from cpplm.jax.step import Tokens, TrainStep, matmul_precision, plan_arrays
from cpplm.train.backend import Profiler, StepLosses, StepPlan, TrainModule


@dataclass(frozen=True)
class PlacedBatch(Batch):
    """A batch that is on its way to the chips."""

    tokens: Tokens = field(default_factory=dict)


def to_device(batch: Batch, sharder: HostBatchSharder, mesh: Mesh) -> PlacedBatch:
    """Send this host's rows to its chips; returns at once."""
    named = {"inputs": batch.inputs, "targets": batch.targets}
    if batch.documents is not None:
        named["documents"] = batch.documents
    tokens = {name: sharder.shard(ids.numpy().astype(np.int32), mesh) for name, ids in named.items()}
    return PlacedBatch(batch.inputs, batch.targets, batch.state, batch.documents, tokens)


class JaxTrainModule(TrainModule):
    """A model in JAX on the chips of one host or several.

    `compiled` holds the step's programs by rows and length of their batches; there are no others.
    """

    quantizer: Quantizer | None = None
    """Rounds the weights, where they are to be."""

    def __init__(
        self,
        step: TrainStep,
        sharder: HostBatchSharder,
        weights: Mapping[str, np.ndarray],
        state: Mapping[str, np.ndarray],
    ) -> None:
        """Put weights and state, whole on every host, onto the chips.

        Args:
            step: what a step computes.
            sharder: this host's rows.
            weights: as `cpplm.jax.param_stacking` stacks them.
            state: of the optimizer, as `Optimizer.stack_state` gives it.
        """
        self._sharder = sharder
        self._chip: jax.Device = step.mesh.local_devices[0]
        self.config, self.device, self.precision = step.config, torch.device("cpu"), step.run.compute_dtype
        self.device_type = str(self._chip.platform)
        self.compiled: dict[tuple[int, int], Any] = {}
        self._place(step, weights, state)

    def _place(
        self, step: TrainStep, weights: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray]
    ) -> None:
        self._step = step
        of_weights, of_state = step.weight_shardings(), step.state_shardings()
        placed = {name: put_on_mesh(array, of_weights[name]) for name, array in weights.items()}
        self._learning, self._constants = partition_params(placed)
        self._state = {key: put_on_mesh(array, of_state[key]) for key, array in state.items()}
        self._token_losses = _validation(step)

    def compile(self, rows: int, length: int, *, count: int, documents: bool) -> None:
        """Compile the step for batches of one shape; see `TrainStep.lower`."""
        lowered = self._step.lower(rows, length, count=count, documents=documents)
        self.compiled[rows, length] = lowered.compile()

    def _quantize_when_due(self, plan: StepPlan, batches: list[PlacedBatch]) -> None:
        if self.quantizer is None or self._step.recipe is not None or not self.quantizer.is_due(plan):
            return
        self._place(*self.quantizer.quantize(*self.state(), batches))
        for rows, length in self.compiled:
            self.compile(rows, length, count=len(batches), documents=batches[0].documents is not None)

    @override
    def step(self, batches: Iterator[Batch], count: int, plan: StepPlan) -> StepLosses:
        del count  # the compiled step has it
        placed = [
            b if isinstance(b, PlacedBatch) else to_device(b, self._sharder, self._step.mesh) for b in batches
        ]
        self._quantize_when_due(plan, placed)
        tokens = tuple(batch.tokens for batch in placed)
        rows, length = tokens[0]["inputs"].shape
        program = self.compiled[rows, length]
        with self.phases.record("step"):
            self._learning, self._state, found = program(
                self._learning, self._constants, self._state, tokens, plan_arrays(plan)
            )
            return StepLosses(*np.asarray(found).tolist())

    @override
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        ids, targets = (
            self._sharder.shard(ids.numpy().astype(np.int32), self._step.mesh) for ids in (ids_BT, targets_BT)
        )
        losses = self._token_losses(self._learning, self._constants, ids, targets)
        return torch.from_numpy(host_rows(losses))

    @override
    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Gathered from all hosts, one array after the other."""
        names = checkpoint_shapes(self.config, self._step.recipe)
        weights = gather_host_share(self._learning | self._constants, checkpoint_names(names))
        state = gather_host_share(self._state, self._step.optimizer.state_members())
        return _tensors({name: weights[name] for name in names if name in weights}), _tensors(state)

    @property
    @override
    def quantization(self) -> dict[str, Any] | None:  # type: ignore[override]
        recipe = self._step.recipe
        return None if recipe is None or self.quantizer is None else self.quantizer.record(recipe)

    @property
    def _chip_memory(self) -> dict[str, int]:
        """Memory statistics of one chip; nothing where it is a part of this process."""
        return self._chip.memory_stats() or {}

    @override
    def held_memory(self) -> int:
        return self._chip_memory.get("bytes_in_use") or super().held_memory()

    @override
    def peak_memory(self, *, since_reset: bool = False) -> int:
        """Of a chip the most so far, in any case."""
        peak = self._chip_memory.get("peak_bytes_in_use")
        return peak or super().peak_memory(since_reset=since_reset)

    @override
    def reset_peak_memory(self) -> bool:
        return not self._chip_memory and super().reset_peak_memory()

    @override
    def memory_capacity(self) -> dict[str, int]:
        return {"total_bytes": self._chip_memory.get("bytes_limit") or psutil.virtual_memory().total}

    @override
    def memory_breakdown(self) -> dict[str, int]:
        """Memory of one chip."""
        return {
            "weights_bytes": self._bytes({**self._learning, **self._constants}),
            "gradients_bytes": self._bytes(self._learning),
            "optimizer_bytes": self._bytes(self._state),
        }

    @override
    def compiled_graphs(self) -> int:
        return len(self.compiled)

    @override
    def program_texts(self) -> dict[str, str]:
        return {
            f"step_{rows}x{length}": str(program.as_text())
            for (rows, length), program in self.compiled.items()
        }

    def _bytes(self, arrays: Mapping[str, jax.Array]) -> int:
        """On one chip; where all are of one process's memory, on all of its chips."""
        chips = {self._chip} if self.device_type == "tpu" else set(self._step.mesh.local_devices)
        parts = (shard for array in arrays.values() for shard in array.addressable_shards)
        return sum(shard.data.nbytes for shard in parts if shard.device in chips)

    @override
    def profiler(self, path: Path) -> Profiler:
        return JaxProfiler(path)


def _validation(step: TrainStep) -> Callable[[Params, Params, jax.Array, jax.Array], jax.Array]:
    mesh = step.mesh if step.mesh.size > 1 else None

    def losses(learning: Params, constants: Params, ids: jax.Array, targets: jax.Array) -> jax.Array:
        with matmul_precision(step.run):
            weights = {**step.round(learning, constants), **constants}
            return token_losses(weights, ids, targets, step.config, step.run, mesh=mesh)

    return jax.jit(losses, out_shardings=rows_sharding(step.mesh))


def _tensors(arrays: Mapping[str, np.ndarray]) -> dict[str, Tensor]:
    """Without copies; nobody writes to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return {
            name: torch.from_numpy(np.ascontiguousarray(to_checkpoint_dtype(array))).reshape(array.shape)
            for name, array in arrays.items()
        }


class JaxProfiler(Profiler):
    """Traces of training steps for XProf and TensorBoard: `tensorboard --logdir RUN/profiles/STEP`."""

    def __init__(self, path: Path) -> None:
        """`path` is the folder to be."""
        self.path = path
        self._part = path.with_name(f"{path.name}.part")

    @override
    def start(self) -> None:
        shutil.rmtree(self._part, ignore_errors=True)
        jax.profiler.start_trace(str(self._part))

    @override
    def stop(self) -> list[dict[str, Any]]:
        """Nothing is listed: XProf says which operations took most time."""
        try:
            jax.profiler.stop_trace()
            shutil.rmtree(self.path, ignore_errors=True)
            self._part.replace(self.path)
        except (RuntimeError, OSError):
            shutil.rmtree(self._part, ignore_errors=True)
            raise
        return []
