"""`cpplm compress cache build`: one pass of a teacher over the rows that training would read."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpplm.compress.kd.cache import MANIFEST, CacheManifest, CacheShard, pack
from cpplm.compress.kd.settings import CacheBuildSettings
from cpplm.compress.kd.targets import teacher_targets
from cpplm.compress.kd.teacher import Teacher, TeacherForward, find_teacher
from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_device, choose_dtype
from cpplm.core.locking import exclusive_lock
from cpplm.core.progress import progress_bar
from cpplm.core.settings import from_dict, to_dict
from cpplm.core.shards import ShardReader
from cpplm.core.storage import Storage
from cpplm.dataloader.fim import FimSettings
from cpplm.dataloader.loader import Batch
from cpplm.dataloader.loader_state import LoaderState
from cpplm.dataloader.settings import DataSettings
from cpplm.post_training.hf_documents import document_encoder
from cpplm.post_training.hf_tokenizer import HfTokenizer
from cpplm.train.checkpoint.save import write_pieces
from cpplm.train.checkpoint.weights import safetensors_file
from cpplm.train.data import check_data, corpus_fingerprint, open_readers, train_loader
from cpplm.train.distributed import SINGLE_PROCESS
from cpplm.train.settings import TrainSettings
from cpplm.train.training_length import TrainingBudget

PROGRESS = "progress.json"
SHARD_BYTES = 64 << 20  # about; a shard is held in memory while it is written and while it is read
_STEP = TrainingBudget(steps=1)


def build_cache(settings: CacheBuildSettings) -> CacheManifest:
    """Write a cache, or go on with what `settings.out` holds of it.

    Raises:
        UserError: bad settings or data, or `out` holds something else.
    """
    source = find_teacher(settings.teacher)
    vocab_size = source.tokenizer.vocab_size
    seq_len = settings.max_seq_len if settings.max_seq_len > 0 else source.max_seq_len
    if seq_len > source.max_seq_len:
        raise UserError(
            f"--max_seq_len {seq_len}: the teacher has a context of {source.max_seq_len} tokens",
            fix="Leave it out.",
        )
    if settings.topk > vocab_size:
        raise UserError(f"--topk {settings.topk}: there are {vocab_size} tokens", fix="Use 32.")
    storage = Storage(settings.out, create=True)
    with exclusive_lock(settings.out):
        storage.cleanup_partial_writes()
        training = _training(settings, source, seq_len)
        device = choose_device(settings.device_type)
        dtype = choose_dtype(settings.precision, device)
        manifest = _manifest(settings, training, source, str(dtype).removeprefix("torch."))
        finished, shards, state = _earlier(storage, manifest)
        if not finished:
            storage.write("tokenizer.json", source.tokenizer.to_json())
            builder = _Builder(storage, manifest, source.load(device, dtype, False), device)
            shards = builder.write(training, source.tokenizer, shards, state)
            storage.write_json(MANIFEST, to_dict(replace(manifest, shards=shards)))
        storage.delete([PROGRESS])
    return replace(manifest, shards=shards)


def _training(settings: CacheBuildSettings, source: Teacher, seq_len: int) -> TrainSettings:
    """The training whose rows these are: documents masked and rearranged as in the teacher's own."""
    record = source.record
    conversations = ShardReader(settings.corpus).manifest.get("kind") == "conversations"
    fim = FimSettings()
    if not (conversations or settings.no_fim):
        fim = from_dict(FimSettings, record.get("fim", {}), where=f"settings.json of {settings.teacher}")
    foreign = isinstance(source.tokenizer, HfTokenizer)
    if foreign and conversations:
        raise UserError(
            f"{settings.corpus} holds conversations, and {settings.teacher} has no tokenizer of cpplm",
            fix="Name a corpus of documents.",
        )
    mask = conversations or foreign or bool(record.get("data", {}).get("document_mask"))
    return TrainSettings(
        data_dir=(settings.corpus,), tokenizer=settings.out / "tokenizer.json", out=settings.out,
        init_from=settings.teacher, stage="sft" if conversations else "base", max_seq_len=seq_len,
        device_batch_size=settings.device_batch_size, num_iterations=1, eval_every=-1, fim=fim,
        data=DataSettings(document_mask=mask), seed=settings.seed,
    )  # fmt: skip


def _manifest(
    settings: CacheBuildSettings, training: TrainSettings, source: Teacher, precision: str
) -> CacheManifest:
    vocab_size, seq_len = source.tokenizer.vocab_size, training.max_seq_len
    batch_rows, tokenizer = settings.device_batch_size, source.tokenizer
    readers = open_readers(training)
    check_data(training, readers, tokenizer, _STEP)
    id_bytes = pack(torch.zeros(1, dtype=torch.int64), vocab_size).element_size()
    row_bytes = seq_len * (id_bytes * (2 + settings.topk + settings.negatives) + 2 * (settings.topk + 1))
    return CacheManifest(
        teacher=source.hash, tokenizer=tokenizer.hash, corpus=corpus_fingerprint(readers),
        stage=training.stage, fim=to_dict(training.fim), document_mask=training.data.document_mask,
        precision=precision, vocab_size=vocab_size, topk=settings.topk, negatives=settings.negatives,
        seq_len=seq_len, rows=math.ceil(settings.num_tokens / seq_len), batch_rows=batch_rows,
        rows_per_shard=max(1, SHARD_BYTES // (row_bytes * batch_rows)) * batch_rows, seed=settings.seed,
    )  # fmt: skip


def _earlier(storage: Storage, manifest: CacheManifest) -> tuple[bool, tuple[CacheShard, ...], LoaderState]:
    """The state of a folder: whether the cache is whole, its shards, and where the loader stands.

    Raises:
        UserError: it holds something else.
    """
    finished, names = storage.exists(MANIFEST), storage.list_names()
    if not finished and PROGRESS not in names:
        if others := sorted({name for name in names if not name.startswith("shard_")} - {"tokenizer.json"}):
            raise UserError(f"{storage.location} holds {others[0]}", fix="Name another --out.")
        return False, (), LoaderState()
    name = MANIFEST if finished else PROGRESS
    record = storage.read_json(name)
    earlier = CacheManifest.from_json(record if finished else record["manifest"], storage.path(name))
    if differences := manifest.differences(earlier):
        raise UserError(
            f"{storage.location} holds another cache: {differences}",
            fix="Name another --out, or delete that folder.",
        )
    return finished, earlier.shards, LoaderState() if finished else LoaderState.from_json(record["loader"])


class _Builder:
    """Runs the teacher over rows, and writes shards."""

    def __init__(
        self, storage: Storage, manifest: CacheManifest, teacher: TeacherForward, device: torch.device
    ) -> None:
        self._storage, self._manifest, self._teacher, self._device = storage, manifest, teacher, device

    def write(
        self, training: TrainSettings, tokenizer: Any, shards: tuple[CacheShard, ...], state: LoaderState
    ) -> tuple[CacheShard, ...]:
        """Write the shards that are not there yet; all of them."""
        manifest, written = self._manifest, sum(shard.rows for shard in shards)
        encoder = document_encoder(tokenizer, manifest.seq_len)
        readers = open_readers(training)
        loader = train_loader(training, readers, tokenizer, _STEP, SINGLE_PROCESS, state, encoder)
        bar = progress_bar(
            manifest.tokens, "teacher", "tok", initial=written * manifest.seq_len, unit_scale=True
        )
        with closing(loader), bar:
            while written < manifest.rows:
                rows = min(manifest.rows_per_shard, manifest.rows - written)
                batches: list[dict[str, Tensor]] = []
                while len(batches) * manifest.batch_rows < rows:
                    batch = next(loader)
                    batches.append(self._tensors(batch, written + len(batches) * manifest.batch_rows))
                    bar.update(batch.inputs.numel())
                tensors = {name: torch.cat([each[name] for each in batches])[:rows] for name in batches[0]}
                shards += (self._write_shard(len(shards), tensors, rows),)
                written += rows
                record = {
                    "manifest": to_dict(replace(manifest, shards=shards)),
                    "loader": batch.state.to_json(),
                }
                self._storage.write_json(PROGRESS, record)
        return shards

    def _write_shard(self, number: int, tensors: dict[str, Tensor], rows: int) -> CacheShard:
        name = f"shard_{number:05d}.safetensors"
        entry = write_pieces(self._storage, name, safetensors_file(tensors))
        self._storage.sync([name])
        return CacheShard(name, rows, **entry)

    @torch.no_grad()
    def _tensors(self, batch: Batch, first_row: int) -> dict[str, Tensor]:
        """The tensors of one batch in a shard."""
        manifest, device = self._manifest, self._device
        documents = None if batch.documents is None else batch.documents.to(device)
        teacher = self._teacher(batch.inputs.to(device), documents)
        targets = teacher_targets(teacher, manifest.topk)
        shape = batch.inputs.shape
        tensors = {
            "inputs": batch.inputs,
            "targets": batch.targets,
            "topk_ids": targets.topk_ids_NK.view(*shape, -1),
            "topk_logprobs": targets.topk_logprobs_NK.view(*shape, -1),
            "tail_logprob": targets.tail_logprob_N.view(shape),
        }
        if batch.documents is not None:
            tensors["documents"] = batch.documents
        if manifest.negatives:
            rows = range(first_row, first_row + len(batch.inputs))
            tensors["negative_ids"] = torch.stack([self._negatives(row) for row in rows])
        return {
            name: pack(tensor.cpu(), manifest.seq_len if name == "documents" else manifest.vocab_size)
            for name, tensor in tensors.items()
        }

    def _negatives(self, row: int) -> Tensor:
        """Drawn for a row by its number alone, so that resuming changes nothing."""
        manifest = self._manifest
        rng = np.random.default_rng([manifest.seed, row])
        drawn = rng.integers(manifest.vocab_size, size=(manifest.seq_len, manifest.negatives))
        return torch.from_numpy(drawn)
