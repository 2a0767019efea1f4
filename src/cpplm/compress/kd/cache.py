"""A teacher's distributions on disk, written once by `build.py` and read by any number of students.

    tokenizer.json              the tokenizer, whole
    shard_00000.safetensors ... rows in the order of training, fixed shapes
    manifest.json               `CacheManifest`, written last; a folder without it is still being built
    progress.json               until then: the manifest so far, and where the loader stands

Entry t of a row is the teacher's distribution of the token that follows the inputs up to t, `targets[t]`.
Ids take two bytes each where the vocabulary has at most 65,535 tokens, else four; log-probabilities two.
With 32 likeliest tokens that is 134 bytes for each token of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cpplm.compress.kd.targets import TeacherTargets
from cpplm.core.errors import UserError
from cpplm.core.settings import from_dict, to_dict
from cpplm.core.storage import Storage, sha256
from cpplm.dataloader.loader import Batch
from cpplm.dataloader.loader_state import LoaderState
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

MANIFEST = "manifest.json"
VERSION = 1
_SHORT_IGNORED = 65_535  # of a target that does not count, where ids take two bytes
_OPEN_SHARDS = 2  # that a reader keeps in memory


@dataclass(frozen=True)
class CacheShard:
    """One file; `bytes` and `sha256` are of it."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class CacheManifest:
    """The contents of a cache. All but `shards` is decided before the first one.

    Attributes:
        teacher: sha256 of the manifest of its checkpoint.
        tokenizer, corpus: hashes of what the rows were made of.
        stage: "sft" for rows of conversations, else "base".
        fim: settings of fill-in-the-middle.
        document_mask: attention stays inside documents, which the rows name.
        precision: of the teacher's matrix products.
        vocab_size: tokens, V.
        topk: likeliest tokens of each position, K.
        negatives: tokens drawn uniformly from all, R.
        seq_len: tokens of a row, L.
        rows: in all shards together.
        batch_rows: that the teacher read at once.
        rows_per_shard: but for the last one.
        seed: of the order of the rows and of the negatives.
        shards: in their order.
        version: of this format.
    """

    teacher: str
    tokenizer: str
    corpus: str
    stage: str
    fim: dict[str, Any]
    document_mask: bool
    precision: str
    vocab_size: int
    topk: int
    negatives: int
    seq_len: int
    rows: int
    batch_rows: int
    rows_per_shard: int
    seed: int
    shards: tuple[CacheShard, ...] = ()
    version: int = VERSION

    @classmethod
    def from_json(cls, values: Any, where: str) -> CacheManifest:
        """Read a manifest.

        Raises:
            UserError: it is of a later version, or none.
        """
        if isinstance(values, dict) and values.get("version", 0) > VERSION:
            raise UserError(f"{where} was written by a later cpplm", fix="Read it with that one.")
        return from_dict(cls, values, where=where)

    def differences(self, other: CacheManifest) -> str:
        """Differences from another cache, for a message; empty if the two are alike."""
        ours, theirs = to_dict(replace(self, shards=())), to_dict(replace(other, shards=()))
        return ", ".join(
            f"{name} {_short(theirs[name])}, not {_short(value)}"
            for name, value in ours.items()
            if value != theirs[name]
        )

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.rows * self.seq_len


def _short(value: Any) -> Any:
    return value[:12] if isinstance(value, str) else value


@dataclass(frozen=True, kw_only=True)
class KDBatch(Batch):
    """A training batch with the teacher's distributions, whose shapes begin with (batch_size, seq_len)."""

    teacher: TeacherTargets

    def flat_teacher(self, device: torch.device) -> TeacherTargets:
        """The distributions on a device with one row for each token, as losses take them."""
        ids, logprobs, tail, negatives = self.teacher
        return TeacherTargets(
            ids.flatten(0, 1).to(device), logprobs.flatten(0, 1).to(device), tail.flatten().to(device),
            None if negatives is None else negatives.flatten(0, 1).to(device),
        )  # fmt: skip


class KDCache:
    """Reads a finished cache; each shard is compared with its hash when it is opened."""

    def __init__(self, storage: Storage, manifest: CacheManifest) -> None:
        """Nothing is read yet; `open` finds the manifest."""
        self.storage, self.manifest = storage, manifest
        self.shard = lru_cache(_OPEN_SHARDS)(self._load_shard)
        """The tensors of a shard as they are stored."""

    @classmethod
    def open(cls, location: str) -> KDCache:
        """Open a folder or bucket URL.

        Raises:
            UserError: it holds no finished cache.
        """
        storage = Storage(location)
        if not storage.exists(MANIFEST):
            raise UserError(
                f"{storage.location} holds no finished cache (no {MANIFEST})",
                fix="Run 'cpplm compress cache build' until it ends.",
            )
        manifest = CacheManifest.from_json(storage.read_json(MANIFEST), storage.path(MANIFEST))
        if sum(shard.rows for shard in manifest.shards) != manifest.rows:
            raise UserError(f"{storage.path(MANIFEST)} does not list all rows", fix="Build the cache anew.")
        return cls(storage, manifest)

    def check(self, *, tokenizer: str, teacher: str, corpus: str) -> None:
        """Refuse a cache of something else than what is named by these hashes.

        Raises:
            UserError: says what differs.
        """
        expected = {"tokenizer": tokenizer, "teacher": teacher, "corpus": corpus}
        for name, value in expected.items():
            cached = getattr(self.manifest, name)
            if value != cached:
                raise UserError(
                    f"{self.storage.location} was made with another {name} ({cached[:12]}, not {value[:12]})",
                    fix="Build a cache with 'cpplm compress cache build', or name what this one is of.",
                )

    def verify(self) -> list[str]:
        """The shards that are not what was written, each with what is wrong; none if all are well."""
        problems = []
        for number in range(len(self.manifest.shards)):
            try:
                self._read(number)
            except UserError as error:
                problems.append(str(error))
        return problems

    def _read(self, number: int) -> bytes:
        shard = self.manifest.shards[number]
        path = self.storage.path(shard.name)
        fix = "Delete the folder and build the cache again, or copy the shard again."
        if not self.storage.exists(shard.name):
            raise UserError(f"{path} is missing", fix=fix)
        data = self.storage.read(shard.name)
        if len(data) != shard.bytes:
            raise UserError(f"{path} is damaged: {len(data):,} bytes, not {shard.bytes:,}", fix=fix)
        if sha256(data) != shard.sha256:
            raise UserError(f"{path} is damaged: its hash is not the one in {MANIFEST}", fix=fix)
        return data

    def _load_shard(self, number: int) -> dict[str, Tensor]:
        return safetensors.torch.load(self._read(number))

    def batches(
        self, start_row: int, rows_per_batch: int, rank: int = 0, world_size: int = 1
    ) -> Iterator[KDBatch]:
        """Batches without end, in the order in which the rows were written, again and again.

        Args:
            start_row: rows that are past, of all ranks together; `LoaderState.rows` of the last batch.
            rows_per_batch: of this rank.
            rank: this one's number; of the rows r it takes those with r mod world_size = rank.
            world_size: ranks.
        """
        row = start_row
        while True:
            end = row + rows_per_batch * world_size
            numbers = [each % self.manifest.rows for each in range(row, end) if each % world_size == rank]
            row = end
            yield self._batch(numbers, end)

    def _batch(self, numbers: list[int], past: int) -> KDBatch:
        columns: dict[str, list[Tensor]] = {}
        for number in numbers:
            shard, row = divmod(number, self.manifest.rows_per_shard)
            for name, tensor in self.shard(shard).items():
                columns.setdefault(name, []).append(tensor[row])
        rows = {name: unpack(name, torch.stack(tensors)) for name, tensors in columns.items()}
        return KDBatch(
            rows["inputs"], rows["targets"],
            LoaderState(past, seq_len=self.manifest.seq_len, seed=self.manifest.seed),
            rows.get("documents"),
            teacher=TeacherTargets(
                rows["topk_ids"], rows["topk_logprobs"], rows["tail_logprob"], rows.get("negative_ids")
            ),
        )  # fmt: skip


def pack(tensor: Tensor, limit: int) -> Tensor:
    """A tensor as shards hold it; its integers are below `limit`, or `IGNORE_INDEX` among the targets."""
    if tensor.is_floating_point():
        return tensor.clamp(min=torch.finfo(torch.float16).min).half()
    if limit > _SHORT_IGNORED:
        return tensor.int()
    return tensor.where(tensor != IGNORE_INDEX, _SHORT_IGNORED).to(torch.uint16)


def unpack(name: str, tensor: Tensor) -> Tensor:
    """The inverse of `pack`: int64 and float32."""
    if tensor.is_floating_point():
        return tensor.float()
    ids = tensor.long()
    short = tensor.dtype == torch.uint16 and name == "targets"
    return ids.where(ids != _SHORT_IGNORED, IGNORE_INDEX) if short else ids
