"""From settings to training batches and validation passes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.shards import SPLITS, ShardReader
from cpplm.core.spans import BORROWED_COLUMN
from cpplm.core.storage import is_bucket, sha256
from cpplm.dataloader.conversations import ConversationEncoder
from cpplm.dataloader.encoding import DocumentEncoder, PlainEncoder
from cpplm.dataloader.fim import FimEncoder
from cpplm.dataloader.loader import Batch, TrainLoader, conversation_batches, validation_batches
from cpplm.dataloader.loader_state import LoaderState
from cpplm.dataloader.mixture import Mixture
from cpplm.dataloader.streaming import StreamingReader
from cpplm.tokenizer.sanity_checks import check_batch, check_hashes, check_vocabulary
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.distributed import DistContext
from cpplm.train.settings import TrainSettings
from cpplm.train.training_length import TrainingBudget


def open_readers(settings: TrainSettings) -> list[ShardReader]:
    """The data sets, in the order of `--data_dir`. Validation is with the first.

    Raises:
        UserError: one does not exist, is unfinished, or has no documents for what is asked of it.
    """
    validates = settings.eval_every > 0
    readers: list[ShardReader] = []
    for number, location in enumerate(settings.data_dir):
        if settings.data.streaming_data:
            readers.append(StreamingReader(location, needs_validation=validates and number == 0))
        else:
            readers.append(ShardReader(location))
        if not readers[-1].shards("train"):
            raise UserError(f"{location} has no train documents", fix="Build a corpus with more code.")
        holds = "conversations" if readers[-1].manifest.get("kind") == "conversations" else "documents"
        if (settings.stage in ("sft", "rl")) != (holds == "conversations"):
            raise UserError(
                f"{location} holds {holds}, which --stage {settings.stage} does not train on",
                fix="Conversations are for 'cpplm sft', documents for 'cpplm train'.",
            )
    if validates and not readers[0].shards("val"):
        raise UserError(f"{settings.data_dir[0]} has no val documents", fix="Or train with --eval_every -1.")
    return readers


@contextmanager
def verify_in_background(readers: Sequence[ShardReader], dist: DistContext) -> Iterator[Future[None]]:
    """Compares the hashes of all shards in local folders with the manifests, in a thread of its own.

    The ranks share the work. Shards of buckets, and those that arrive later, are compared when they are read.

    Yields:
        A future that raises a UserError, which names the shard, if one is damaged.
    """
    local = [reader for reader in readers if not is_bucket(reader.storage.location)]
    shards = [(reader, shard) for reader in local for split in SPLITS for shard in reader.shards(split)]
    stop = threading.Event()

    def verify() -> None:
        for reader, shard in shards[dist.process_index :: dist.process_count]:
            reader.verify(shard, stop)

    with ThreadPoolExecutor(1, thread_name_prefix="verify") as thread:
        try:
            yield thread.submit(verify)
        finally:
            stop.set()


def corpus_fingerprint(readers: Sequence[ShardReader]) -> str:
    """A hash of the contents of all data sets."""
    prints = [reader.fingerprint() for reader in readers]
    return prints[0] if len(prints) == 1 else sha256("\n".join(prints).encode())


def validation_text(reader: ShardReader) -> dict[str, Any]:
    """Identify the validation text for the run log: its hash, and what its corpus records of it.

    Nothing of a set that still grows.
    """
    if reader.first_epoch_in_order:
        return {}
    hashes = "\n".join(shard.sha256 for shard in reader.shards("val"))
    return {"sha256": sha256(hashes.encode()), **reader.manifest.get("validation", {})}


def check_data(
    settings: TrainSettings, readers: Sequence[ShardReader], tokenizer: Tokenizer, budget: TrainingBudget
) -> None:
    """Find out before anything is written whether batches can be made as the settings say.

    Raises:
        UserError: weights that do not suit the data sets or the horizon, or a corpus without what holes need.
    """
    _mixture(settings, readers, budget)
    _require_columns(readers, _encoder(settings, tokenizer).columns)


def train_loader(
    settings: TrainSettings,
    readers: Sequence[ShardReader],
    tokenizer: Tokenizer,
    budget: TrainingBudget,
    dist: DistContext,
    state: LoaderState,
    encoder: DocumentEncoder | None = None,
) -> TrainLoader:
    """The batches of this rank, from `state` on, for settings that `check_data` has accepted.

    Documents go through `encoder`; None for the one that the settings say.
    """
    data = settings.data
    return TrainLoader(
        readers,
        encoder or _encoder(settings, tokenizer),
        mixture=_mixture(settings, readers, budget),
        batch_size=settings.device_batch_size * dist.local_data_parallel_size,
        seq_len=settings.max_seq_len,
        seed=settings.seed,
        state=state,
        rank=dist.rank,
        num_ranks=dist.world_size,
        workers=data.data_workers,
        token_cache=data.token_cache,
        document_mask=data.document_mask,
        pin=dist.device.type == "cuda",
    )


def _mixture(settings: TrainSettings, readers: Sequence[ShardReader], budget: TrainingBudget) -> Mixture:
    data = settings.data
    if data.streaming_data and len(readers) > 1 and not data.data_weights:
        raise UserError(
            "how much text arrives in each --data_dir is not known", fix="Give --data_weights for them."
        )
    weights = data.data_weights or tuple(
        float(sum(shard.bytes for shard in reader.shards("train"))) for reader in readers
    )
    late = data.late_data_weights or weights
    for name, given in (("data_weights", weights), ("late_data_weights", late)):
        if len(given) != len(readers):
            raise UserError(
                f"--{name} has {len(given)} values for {len(readers)} data sets",
                fix="Give one for each --data_dir.",
            )
    return Mixture(weights, late, _late_from_row(settings, budget))


def _late_from_row(settings: TrainSettings, budget: TrainingBudget) -> int | None:
    if not settings.data.late_data_weights:
        return None
    if budget.steps is None:
        raise UserError(
            "--late_data_weights need a run whose steps can be counted",
            fix="Give --num_iterations instead of --max_minutes.",
        )
    first = round(budget.steps * (1 - settings.data.late_data_ratio))
    return first * settings.total_batch_size // settings.max_seq_len


def _encoder(settings: TrainSettings, tokenizer: Tokenizer) -> DocumentEncoder:
    path, threads = str(settings.tokenizer), settings.data.tokenizer_threads
    if settings.data.data_workers:
        threads = 1
    if settings.stage in ("sft", "rl"):
        return ConversationEncoder(path, tokenizer.hash, settings.max_seq_len)
    if settings.fim.enabled:
        return FimEncoder(path, tokenizer.hash, settings.fim, settings.max_seq_len, threads)
    return PlainEncoder(path, tokenizer.hash, settings.max_seq_len, threads)


def _require_columns(readers: Sequence[ShardReader], columns: Sequence[str]) -> None:
    """Without spans every hole would be random, and without docstrings there would be none, unnoticed."""
    needed = set(columns) - {BORROWED_COLUMN}  # without this one nothing is left out
    for reader in readers if needed else []:
        table = reader.table(reader.shards("train")[0], list(needed))
        if missing := sorted(needed - set(table.column_names)):
            raise UserError(
                f"{reader.storage.location} has no {' and no '.join(missing)} for fill-in-the-middle",
                fix="Build the corpus anew, or give --syntax_fim_rate 0 and no --structured_fim_rate.",
            )


def warn_of_mismatches(
    batches: Iterator[Batch], readers: Sequence[ShardReader], tokenizer: Tokenizer
) -> Iterator[Batch]:
    """The same batches; with the first come warnings about what does not fit together."""
    first = next(batches)
    counted_with = [reader.manifest.get("identity", {}).get("tokenizer_hash", "") for reader in readers]
    for warning in dict.fromkeys(
        (
            *check_vocabulary(tokenizer),
            *(warning for name in counted_with for warning in check_hashes(tokenizer, name)),
            *check_batch(tokenizer, first.inputs.tolist()),
        )
    ):
        log_info(f"warning: {warning}")
    yield first
    yield from batches


def validation_passes(
    settings: TrainSettings, reader: ShardReader, tokenizer: Tokenizer, dist: DistContext
) -> Callable[[], Iterable[tuple[Tensor, Tensor]]]:
    """A function that begins a fresh pass over the validation tokens."""
    batch_size = settings.device_batch_size * dist.local_data_parallel_size
    if settings.stage in ("sft", "rl"):
        encoder = ConversationEncoder(str(settings.tokenizer), tokenizer.hash, settings.max_seq_len)
        max_rows = max(1, settings.eval_tokens // settings.max_seq_len)
        return lambda: conversation_batches(reader, encoder, batch_size=batch_size, max_rows=max_rows)
    return lambda: validation_batches(
        reader,
        tokenizer,
        batch_size=batch_size,
        seq_len=settings.max_seq_len,
        max_tokens=settings.eval_tokens,
        threads=settings.data.tokenizer_threads,
    )
