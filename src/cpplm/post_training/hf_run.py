"""A session of `cpplm sft` on a model of the transformers library, and the directory that it leaves.

RUN/checkpoints/step_000200   as of any run; with --lora_rank also an adapter in PEFT's format
RUN/hf                        the model at the end, an adapter merged, for transformers and --hf_dir
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from cpplm.core.progress import log_info
from cpplm.core.storage import Storage
from cpplm.dataloader.loader import Batch
from cpplm.export.atomic_directory import atomic_directory
from cpplm.export.hf_files import copy_companions, is_of_folder
from cpplm.post_training.hf_adapter import with_adapter
from cpplm.post_training.hf_backend import HfBackend, load_trained
from cpplm.post_training.hf_folder import PARENT, HfFolder
from cpplm.train.backend import TrainBackend
from cpplm.train.checkpoint.format import Checkpoint, open_checkpoint
from cpplm.train.checkpoint.parent import parent_record
from cpplm.train.checkpoint.resume import earlier_checkpoint
from cpplm.train.defaults import resolve_batch
from cpplm.train.distributed import DistContext
from cpplm.train.pretrain import PretrainRun, RunSummary, pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback

_MAX_LOGITS = 2**28  # of a forward pass: 1 GiB in float32, and as much again for their gradient


def train_hf(
    settings: TrainSettings, source: HfFolder, extra_callbacks: Sequence[Callback] = ()
) -> RunSummary:
    """Fine-tune a model of `transformers`, or go on, and write its directory when it is trained to the end.

    Raises:
        UserError: as `pretrain`.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    backend = HfBackend(settings, source)
    summary = pretrain(settings, extra_callbacks, backend=backend, run_type=HfRun)
    checkpoint = open_checkpoint(Storage(settings.out / "checkpoints"))
    write_hf_folder(settings, source, checkpoint)
    return summary


class HfRun(PretrainRun):
    """As `PretrainRun`, of a model whose shape and tokenizer are those of a directory."""

    def __init__(self, settings: TrainSettings, backend: TrainBackend, dist: DistContext) -> None:
        assert isinstance(backend, HfBackend)  # noqa: S101  (for mypy)
        self._source = backend.source
        super().__init__(settings, backend, dist)

    @override
    def _open_tokenizer(self, settings: TrainSettings) -> Any:
        return self._source.tokenizer()

    @override
    def _resolve(self, settings: TrainSettings) -> tuple[TrainSettings, Any, dict[str, Any]]:
        config: Any = self._source.config(settings.max_seq_len, settings.lora)
        checkpoint = earlier_checkpoint(settings.out / "checkpoints", settings.upload_dir)
        earlier = checkpoint.json("settings.json") if checkpoint else {}
        if settings.eval_tokens == -1:
            settings = replace(settings, eval_tokens=earlier.get("eval_tokens", -1))
        settings = replace(settings, depth=config.num_layers)
        max_pass_tokens = max(settings.max_seq_len, _MAX_LOGITS // config.vocab_size)
        settings = resolve_batch(settings, config, self.devices, 1, earlier, max_pass_tokens)
        return settings, config, self._source.record()

    @override
    def _initial_state(self) -> tuple[Checkpoint | None, Checkpoint | None]:
        if self.checkpoint is None:
            log_info(f"starting from {self._source.folder}")
        return self.checkpoint, self.checkpoint

    @override
    def _check_batches(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        return batches  # what may be wrong with our own tokenizers


def write_once(out: Path, record: dict[str, Any], write: Callable[[Path], None]) -> bool:
    """Write the model of a checkpoint into a directory, whole or not at all, unless it is there already.

    Args:
        out: the directory.
        record: of the checkpoint; `write` leaves it there.
        write: fills a directory.

    Raises:
        UserError: the disk refuses, or the checkpoint is damaged.
    """
    written = out / PARENT
    if written.is_file() and json.loads(written.read_text())["manifest"] == record["manifest"]:
        return False
    with atomic_directory(out, overwrite=True, known=is_of_folder) as folder:
        write(folder)
    return True


def write_hf_folder(settings: TrainSettings, source: HfFolder, checkpoint: Checkpoint) -> None:
    """Write the model of a checkpoint as a directory like `source`, in its dtype: see `write_once`."""
    out, record = settings.out / "hf", parent_record(checkpoint)

    def write(folder: Path) -> None:
        model = source.load(torch.float32)
        if settings.lora.lora_rank:
            model = with_adapter(model, settings.lora)
        load_trained(model, checkpoint)
        if settings.lora.lora_rank:
            model = model.merge_and_unload()
        model.to(source.dtype).save_pretrained(folder)
        copy_companions(source.folder, folder)
        (folder / PARENT).write_text(json.dumps(record, indent=1) + "\n")

    if write_once(out, record, write):
        log_info(f"the model is in {out}, for transformers and 'cpplm evaluate --hf_dir'")
