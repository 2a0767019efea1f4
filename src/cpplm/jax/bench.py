"""`cpplm tpu bench`: how fast the training step is on the devices of this machine.

The step, its state and the mesh are the trainer's; batches are random ids, sent to the devices once. On a
TPU tokens per second are also given as a share of the chips' peak (MFU, Chowdhery et al. 2022, arXiv
2204.02311, appendix B). Works on any device of JAX; not seen to run on a TPU.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import jax
import torch

from cpplm.core.hardware import count_tpus
from cpplm.core.progress import log_info, progress_bar
from cpplm.dataloader.loader import Batch
from cpplm.dataloader.loader_state import LoaderState
from cpplm.jax.backend import JaxBackend, check_run, train_step
from cpplm.jax.check_settings import BenchSettings
from cpplm.jax.param_stacking import init_params
from cpplm.jax.step import NEUTRAL_PLAN
from cpplm.jax.step_report import StepReport, describe_step
from cpplm.jax.tpu_specs import CHIPS_BY_KIND
from cpplm.jax.train_module import JaxTrainModule
from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops
from cpplm.train.defaults import resolve_run
from cpplm.train.training_length import training_budget


@dataclass(frozen=True, kw_only=True)
class BenchReport(StepReport):
    """The outcome of `bench`: seconds of one step, tokens per second of all devices together."""

    device: str
    compile_seconds: float
    step_seconds: float
    fastest_seconds: float
    slowest_seconds: float
    tokens_per_second: float
    flops_per_second: float
    """Operations of the model, by `cpplm.model.flops`."""
    mfu: float | None
    """Share of the devices' peak; None where it is not known, as on a CPU."""
    peak_memory_bytes: int
    """Most memory of one device; on a CPU, of the process."""
    loss: float
    """Loss of random ids, after the last step."""

    def text(self) -> str:
        """For people."""
        share = (
            "no share of a peak rate: this is no TPU that cpplm knows"
            if self.mfu is None
            else f"{self.mfu:.1%} of the chips' peak"
        )
        return "\n".join([
            *self.headline(f"{self.devices} x {self.device}"),
            f"compiled in {self.compile_seconds:.0f} s",
            f"step: {self.step_seconds:.3f} s (median, "
            f"{self.fastest_seconds:.3f}-{self.slowest_seconds:.3f})",
            f"{self.tokens_per_second:,.0f} tokens/s, {self.flops_per_second:.3e} operations/s, {share}",
            f"memory of a device: {self.peak_memory_bytes / 2**30:.2f} GiB at most",
        ])  # fmt: skip


def bench(settings: BenchSettings) -> BenchReport:
    """Time steps of a new model on all devices of this machine, or of the slice with --multi_host.

    Raises:
        UserError: a mesh that does not fit, or a TPU that JAX cannot use.
    """
    backend = JaxBackend(settings if count_tpus() else replace(settings, device_type="cpu"))
    with backend.init_distributed() as dist:
        shares, mesh = dist.data_parallel_size, backend.mesh
        if mesh.devices.flat[0].platform == "cpu":
            log_info("no TPU here: these are figures of the CPU")
        training, config, _ = resolve_run(settings, backend.devices(settings), shares)
        run, attention = check_run(training, config, mesh)
        trained = train_step(training, config, training_budget(training, config), mesh)
        train_module = JaxTrainModule(
            trained, backend.sharder, init_params(config), trained.optimizer.stack_state({})
        )
        count, rows = training.forward_passes(shares), training.device_batch_size * shares
        log_info("compiling the training step")
        begin = time.perf_counter()
        documents = training.data.document_mask
        train_module.compile(rows, config.max_seq_len, count=count, documents=documents)
        compile_seconds = time.perf_counter() - begin
        own_rows = rows // backend.sharder.num_readers
        batches = [backend.to_device(batch) for batch in _random_batches(config, own_rows, count, documents)]
        seconds, loss = _time_steps(train_module, batches, settings)
        kind = mesh.devices.flat[0].device_kind
        chip = CHIPS_BY_KIND.get(kind)
        rate = training.total_batch_size / statistics.median(seconds)
        flops = rate * count_flops(config)["total"]
        return BenchReport(
            **describe_step(training, config, run, attention, mesh),
            device=kind,
            compile_seconds=compile_seconds,
            step_seconds=statistics.median(seconds),
            fastest_seconds=min(seconds),
            slowest_seconds=max(seconds),
            tokens_per_second=rate,
            flops_per_second=flops,
            mfu=None if chip is None else flops / (chip.device_peak * mesh.size),
            peak_memory_bytes=train_module.peak_memory(),
            loss=loss,
        )


def _time_steps(
    train_module: JaxTrainModule, batches: list[Batch], settings: BenchSettings
) -> tuple[list[float], float]:
    """Seconds of each measured step, and the loss of the last one. A step has ended when its loss is here."""
    seconds, loss = [], 0.0
    with progress_bar(settings.warm_up + settings.steps, "steps", "step") as bar:
        for number in range(settings.warm_up + settings.steps):
            begin = time.perf_counter()
            loss = train_module.step(iter(batches), len(batches), NEUTRAL_PLAN).next_token
            if number >= settings.warm_up:
                seconds.append(time.perf_counter() - begin)
            bar.update(1)
    return seconds, loss


def _random_batches(config: ModelConfig, rows: int, count: int, documents: bool) -> list[Batch]:
    """Random ids; with documents, four in each row. Of this host's rows."""
    length = config.max_seq_len
    generator = torch.Generator().manual_seed(jax.process_index())
    found = []
    for _ in range(count):
        ids_BT = torch.randint(config.vocab_size, (rows, length + 1), generator=generator)
        documents_BT = (torch.arange(length) * 4 // length).expand(rows, -1)
        found.append(Batch(ids_BT[:, :-1], ids_BT[:, 1:], LoaderState(), documents_BT if documents else None))
    return found
