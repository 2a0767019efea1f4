"""Corpus and tokenizer of a run: put into its bucket once, fetched by each machine, compared by hash."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from cpplm.cloud.spec import RunSpec
from cpplm.core.errors import UserError
from cpplm.core.shards import COMPLETE, MANIFEST, open_corpus, read_manifest
from cpplm.core.storage import Storage, is_bucket, sha256
from cpplm.tokenizer.tokenizer import PUBLISHED


def add_inputs(spec: RunSpec, run: Storage) -> RunSpec:
    """The specification with the hashes of corpus and tokenizer, which are put where machines see them.

    Raises:
        UserError: one is not there, or is not what it should be.
    """
    corpus = open_corpus(spec.corpus)
    _, shards = read_manifest(corpus)
    spec = replace(spec, corpus_sha256=sha256(corpus.read(MANIFEST)))
    far = spec.backend == "cloud"
    if not is_bucket(spec.corpus):
        spec = replace(spec, corpus=str(Path(corpus.location).resolve()))
        if far:
            there = Storage(run.path(f"inputs/corpus_{spec.corpus_sha256[:16]}"), create=True)
            for name in [*(shard.name for shard in shards), MANIFEST, COMPLETE]:
                if not there.exists(name):
                    there.write(name, corpus.read(name))
            spec = replace(spec, corpus=there.location)
    if spec.tokenizer in PUBLISHED:
        return spec
    folder, name = _split(spec.tokenizer)
    data = Storage(folder).read(name)
    spec = replace(spec, tokenizer_sha256=sha256(data))
    if is_bucket(spec.tokenizer):
        return spec
    if not far:
        return replace(spec, tokenizer=str(Path(spec.tokenizer).expanduser().resolve()))
    stored = f"inputs/tokenizer_{spec.tokenizer_sha256[:16]}.json"
    run.write(stored, data)
    return replace(spec, tokenizer=run.path(stored))


def fetch_corpus(spec: RunSpec, folder: Path) -> str:
    """The corpus on this machine: its folder.

    Raises:
        UserError: a file of it is not the one that the run was started with.
    """
    corpus = Storage(spec.corpus)
    _require(corpus.read(MANIFEST), spec.corpus_sha256, corpus.path(MANIFEST))
    if not is_bucket(spec.corpus):
        return spec.corpus  # its shards are compared while training begins
    _, shards = read_manifest(corpus)
    here = Storage(folder, create=True)
    for shard in shards:
        if not (folder / shard.name).exists() or _digest(folder / shard.name) != shard.sha256:
            with here.open_write(shard.name) as file:
                for chunk in corpus.chunks(shard.name):
                    file.write(chunk)
            if _digest(folder / shard.name) != shard.sha256:
                raise UserError(f"{corpus.path(shard.name)} is damaged", fix="Build the corpus again.")
    for name in (MANIFEST, COMPLETE):
        here.write(name, corpus.read(name))
    return str(folder)


def fetch_tokenizer(spec: RunSpec, folder: Path) -> str:
    """The tokenizer on this machine: its file, or the name of one that comes with cpplm.

    Raises:
        UserError: it is not the one that the run was started with.
    """
    if spec.tokenizer in PUBLISHED:
        return spec.tokenizer
    place, name = _split(spec.tokenizer)
    data = Storage(place).read(name)
    _require(data, spec.tokenizer_sha256, spec.tokenizer)
    Storage(folder, create=True).write("tokenizer.json", data)
    return str(folder / "tokenizer.json")


def _split(location: str) -> tuple[str, str]:
    """Folder and name of a file or an object."""
    folder, _, name = location.rpartition("/")
    return folder or ".", name


def _require(data: bytes, digest: str, path: str) -> None:
    if sha256(data) != digest:
        raise UserError(f"{path} is not the one that the run was started with", fix="Put that one back.")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
