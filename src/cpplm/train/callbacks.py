"""Callbacks of the training loop: the progress bar and log, validation, checkpoints."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info, progress_bar
from cpplm.core.settings import to_dict
from cpplm.dataloader.loader_state import LoaderState
from cpplm.model.flops import count_flops
from cpplm.model.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from cpplm.train.checkpoint.async_writer import CheckpointWriter
from cpplm.train.checkpoint.format import QUANTIZATION, committed_steps, json_bytes
from cpplm.train.checkpoint.save import RankShard, count_files
from cpplm.train.trainer import Callback, StepMetrics, Trainer
from cpplm.train.validation import validate


class ProgressLog(Callback):
    """Each step into the run log and onto the bar: loss, tokens per second, time left."""

    def __init__(self, bar: tqdm[Any], peak_flops: float) -> None:
        """`bar` counts to 100, whoever opened it closes it; `peak_flops` of all devices is an MFU of 1."""
        self._bar = bar
        self._peak_flops = peak_flops
        self._loss_sum, self._weight = 0.0, 0.0
        self._begin = (0.0, 0.0)

    @staticmethod
    def open_bar(progress: float) -> tqdm[Any]:
        """A bar that starts where the run stands, as a context manager."""
        return progress_bar(
            100,
            "train",
            "%",
            initial=round(100 * progress, 2),
            bar_format="{desc} {percentage:5.1f}% |{bar:20}| {elapsed}<{remaining}{postfix}",
        )

    def on_start(self, trainer: Trainer) -> None:
        """The time left is judged by what this session does."""
        self._begin = trainer.progress, time.monotonic()

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Log one step."""
        state, losses = trainer.state, metrics.losses
        self._loss_sum = 0.9 * self._loss_sum + 0.1 * losses.next_token
        self._weight = 0.9 * self._weight + 0.1  # 1 - 0.9^steps: the average has no bias to its start
        rate = metrics.tokens / metrics.seconds
        flops = rate * count_flops(trainer.train_module.config)["total"]
        trainer.log.write(
            "step",
            step=state.step,
            tokens=state.tokens,
            seconds=round(state.seconds, 3),
            progress=round(trainer.progress, 5),
            loss=round(losses.next_token, 5),
            **_nonzero(multi_token_loss=losses.multi_token, indexer_loss=losses.indexer),
            gradient_norm=round(losses.gradient_norm, 5),
            lr_multiplier=round(metrics.lr_multiplier, 5),
            step_seconds=round(metrics.seconds, 4),
            data_seconds=round(metrics.data_seconds, 4),
            tokens_per_second=round(rate, 1),
            flops_per_second=round(flops),
            mfu=round(flops / self._peak_flops, 4),
            eta_seconds=round(self._eta(trainer.progress)),
            peak_memory_bytes=trainer.train_module.peak_memory(),
        )
        self._bar.set_postfix_str(
            f"step {state.step}, loss {self._loss_sum / self._weight:.3f}, {rate:,.0f} tokens/s, "
            f"MFU {flops / self._peak_flops:.0%}",
            refresh=False,
        )
        self._bar.update(100 * trainer.progress - self._bar.n)

    def _eta(self, progress: float) -> float:
        """Seconds until the end, with what validation, checkpoints and samples take."""
        begun, since = self._begin
        return (time.monotonic() - since) * (1 - progress) / (progress - begun)


class ValidationCallback(Callback):
    """Bits per byte at the start, every so many steps, and at the end."""

    def __init__(self, batches: Callable[[], Iterable[tuple[Tensor, Tensor]]]) -> None:
        """`batches` gives a fresh pass over the validation tokens."""
        self._batches = batches
        self._measured_at = -1

    def on_start(self, trainer: Trainer) -> None:
        """Measure the untrained model, to compare with."""
        if trainer.state.step == 0:
            self._measure(trainer)

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Measure when the interval has passed."""
        if trainer.state.step % trainer.settings.eval_every == 0:
            self._measure(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Measure the result, unless the run was stopped before."""
        if trainer.progress >= 1 and self._measured_at != trainer.state.step:
            self._measure(trainer)

    def _measure(self, trainer: Trainer) -> None:
        sizes = torch.from_numpy(trainer.tokenizer.token_bytes)
        limit = trainer.settings.eval_tokens
        with progress_bar(
            limit, "validate, at most", " tokens", unit_scale=True, delay=1, leave=False
        ) as bar:
            batches = _with_progress(trainer.iterate_until_stop(self._batches()), bar)
            with trainer.train_module.phases.record("eval"):
                result = validate(trainer.train_module, batches, sizes, trainer.dist)
        if trainer.should_stop():
            return  # half a measurement is none
        if not math.isfinite(result.loss):
            raise UserError(
                f"the validation loss is {result.loss} at step {trainer.state.step}",
                fix="Lower the learning rates and go on from an earlier checkpoint (--resume_from_step).",
            )
        self._measured_at = trainer.state.step
        trainer.log.write("validation", step=trainer.state.step, **asdict(result))
        log_info(
            f"step {trainer.state.step}: validation {result.bits_per_byte:.4f} bits per byte "
            f"(loss {result.loss:.4f} over {result.tokens:,} tokens)"
        )


class CheckpointCallback(Callback):
    """Saves by steps, by time, and at the end of the session. All ranks have one, and write their shares."""

    def __init__(
        self, writer: CheckpointWriter, provenance: dict[str, str], parent: dict[str, Any] | None
    ) -> None:
        """Save nothing yet.

        Args:
            writer: of the files.
            provenance: hashes of corpus, tokenizer and parent, by name.
            parent: the record of the checkpoint that the run started from.
        """
        self._writer = writer
        self._provenance = provenance
        self._parent = parent
        self._saved_seconds = 0.0

    def on_start(self, trainer: Trainer) -> None:
        """The time until the first save begins."""
        self._saved_seconds = trainer.state.seconds

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Save when an interval has passed."""
        self._log(trainer)
        settings, state = trainer.settings, trainer.state
        by_step = settings.save_every > 0 and state.step % settings.save_every == 0
        if by_step or 0 < settings.save_minutes <= (state.seconds - self._saved_seconds) / 60:
            self._save(trainer)

    def on_end(self, trainer: Trainer) -> None:
        """Save what the session reached; that this is on the disk is part of the run."""
        if trainer.state.step == 0:
            return  # a new model is made again as fast as it is read
        dist = trainer.dist
        self._writer.join()
        if not dist.run_on_first(lambda: trainer.state.step in committed_steps(self._writer.storage)):
            self._save(trainer)
        self._writer.join()
        self._log(trainer)
        with dist.raise_on_all_ranks():
            self._writer.wait()

    def _log(self, trainer: Trainer) -> None:
        for event, values in self._writer.events():
            trainer.log.write(event, **values)

    def _save(self, trainer: Trainer) -> None:
        """All ranks agree on what each writes, and begin."""
        self._saved_seconds = trainer.state.seconds
        with trainer.train_module.phases.record("save"):
            self._begin_to_write(trainer)

    def _begin_to_write(self, trainer: Trainer) -> None:
        state, train_module, dist = trainer.state, trainer.train_module, trainer.dist
        self._writer.wait_for_previous(state.step)
        if dist.process_count > 1:
            dist.barrier()  # now nobody is writing
            if dist.is_first:
                self._writer.clear_partial(state.step)
        weights, optimizer = train_module.state()
        adapter = train_module.adapter_config
        weights_file = ADAPTER_WEIGHTS if adapter else "model.safetensors"
        tensors = {weights_file: weights, "optimizer.safetensors": optimizer}
        own = {
            "files": count_files(tensors),
            "loader": state.loader.to_json(),
            # Not to replace what is good: a step may spoil weights although its own loss was a number.
            "non_finite": [name for name, weight in weights.items() if not weight.isfinite().all()],
            "token": secrets.token_hex(8),
        }
        ranks = dist.gather_objects(own)
        non_finite = [name for rank in ranks for name in rank["non_finite"]]
        if non_finite:
            raise UserError(
                f"{non_finite[0]} holds numbers that are not finite",
                fix="Lower the learning rates; the last checkpoint is as it was.",
            )
        share = RankShard(dist.process_index, [rank["files"] for rank in ranks], ranks[0]["token"])
        loader = LoaderState.merge(LoaderState.from_json(rank["loader"]) for rank in ranks)
        files = {
            "config.json": json_bytes(to_dict(train_module.config)),
            "settings.json": json_bytes(to_dict(trainer.settings)),
            "tokenizer.json": trainer.tokenizer.to_json(),
            "state.json": json_bytes({**asdict(state), "loader": loader.to_json(), **self._provenance}),
            **({ADAPTER_CONFIG: json_bytes(adapter)} if adapter else {}),
            **({QUANTIZATION: json_bytes(train_module.quantization)} if train_module.quantization else {}),
            **({"parent.json": json_bytes(self._parent)} if self._parent else {}),
        }
        self._writer.save(state.step, tensors, files if dist.is_first else {}, share)


def _with_progress(
    batches: Iterable[tuple[Tensor, Tensor]], bar: tqdm[Any]
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same batches; `bar` shows the tokens of those that are done."""
    for inputs_BT, targets_BT in batches:
        yield inputs_BT, targets_BT
        bar.update(inputs_BT.numel())


def _nonzero(**losses: float) -> dict[str, float]:
    """Those that the model has."""
    return {name: round(value, 5) for name, value in losses.items() if value}
