"""The text of `time_to_bpb.py`: the same files for both contenders, and the held-out files that score them.

    WORK/files/PROJECT/...      a sample of each project: whole folders, chosen by hash
    WORK/built                  what `cpplm corpus build` makes of all of them
    WORK/corpus                 the same documents, those of the held-out projects as its val split
    WORK/vocabulary/            a tokenizer of ours and one of GPT-2's kind, from the training side
    WORK/texts.json             training files and held-out files as text
    WORK/asked.json             what was asked for
    WORK/sample.json            what became of it; written last

The corpus decides which files count, by its filters and its removal of copies. A held-out file of which more
than half of the lines are in training files is left out besides. A text is a whole file as its author wrote
it, in UTF-8 with LF line ends: comments, license and order untouched.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
from measuring import progress

from cpplm.core.errors import UserError
from cpplm.core.shards import SPLITS, ShardReader, Split, write_manifest, write_shard_table
from cpplm.core.storage import Storage, sha256
from cpplm.corpus.build import build
from cpplm.corpus.ingest.discovery import SUFFIXES, FileRules, normalize_source, subfolders
from cpplm.corpus.ingest.walk import SkipCounts, walk
from cpplm.corpus.settings import CorpusSettings
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.tokenizer.train import TokenizerSettings, train_on_corpus

END_OF_TEXT = "<|endoftext|>"
_LEAST_LINE = 12


@dataclass(frozen=True)
class Sample:
    """What decides the data. `held_out` names projects; none means `held_out_share` of them, by hash."""

    projects_dir: list[str]
    held_out: list[str]
    held_out_share: float
    max_project_bytes: int
    eval_bytes: int
    vocab_size: int


@dataclass(frozen=True)
class Data:
    """A work folder that is ready."""

    work: Path

    @property
    def corpus(self) -> Path:
        """Documents of ours: train, and the held-out projects as val."""
        return self.work / "corpus"

    @property
    def our_tokenizer(self) -> Path:
        return self.work / "vocabulary" / "cpplm.json"

    @property
    def peer_tokenizer(self) -> Path:
        return self.work / "vocabulary" / "byte_level_bpe.json"

    def texts(self, side: str) -> list[str]:
        """The files of a side, "train" or "held_out"."""
        found: dict[str, list[str]] = json.loads((self.work / "texts.json").read_text())
        return found[side]

    def held_out_documents(self, wanted: int) -> list[str]:
        """Our documents of the held-out projects: those with the smallest ids, up to so many bytes."""
        texts = [text for _, text in ShardReader(self.corpus).texts("val")]
        return list(up_to(texts, wanted))

    def description(self) -> dict[str, Any]:
        """What stands beside the figures; `fingerprint` changes with any text or tokenizer."""
        found: dict[str, Any] = json.loads((self.work / "sample.json").read_text())
        return found


def prepare(work: Path, sample: Sample) -> Data:
    """Make the work folder ready, unless it is; what an interrupted call left is made anew.

    Raises:
        UserError: bad projects, or the folder holds another sample or other files.
    """
    data, asked = Data(work), work / "asked.json"
    if (work / "sample.json").exists():
        if json.loads(asked.read_text()) != asdict(sample):
            raise UserError(f"{work} holds another sample", fix="Name another --work, or delete that folder.")
        return data
    if work.exists() and any(work.iterdir()) and not asked.exists():
        raise UserError(f"{work} holds other files", fix="Name another --work.")
    _write(asked, asdict(sample))
    for name in ("files", "built", "corpus", "vocabulary"):
        shutil.rmtree(work / name, ignore_errors=True)
    sizes = copy_sample(sample, work / "files")
    held_out = choose_held_out(sorted(sizes), sample)
    figures = make_corpus(data, held_out)
    train = [text for found in raw_texts(data, "train").values() for text in found]
    share = sample.eval_bytes / len(held_out)
    lines = {hash(line) for text in train for line in telling_lines(text)}
    unseen = without_copies(raw_texts(data, "val"), lines)
    texts = {"train": train, "held_out": [text for found in unseen.values() for text in up_to(found, share)]}
    if not texts["held_out"]:
        raise UserError(
            f"the corpus keeps no file of the held-out projects {', '.join(held_out)}",
            fix="Name others with --held_out.",
        )
    _write(work / "texts.json", texts)
    train_tokenizers(data, texts["train"], sample.vocab_size)
    content = {
        "held_out_projects": held_out,
        "training_projects": sorted(sizes.keys() - set(held_out)),
        "files": {side: len(found) for side, found in texts.items()},
        "bytes": {side: sum(len(text.encode()) for text in found) for side, found in texts.items()},
        "documents": figures,
        "bytes_per_token": bytes_per_token(data),
    }
    _write(work / "sample.json", {**content, "fingerprint": fingerprint(data)})
    return data


def _write(path: Path, content: Any) -> None:
    """All of it or nothing."""
    Storage(path.parent, create=True).write_json(path.name, content)


def copy_sample(sample: Sample, out: Path) -> dict[str, int]:
    """Copy C++ files of each project, folder by folder in the order of a hash; returns bytes by project.

    A folder is taken whole, so that most sources keep their headers; the one that goes over is the last.
    """
    sizes: dict[str, int] = {}
    for root in (folder for parent in sample.projects_dir for folder in subfolders(Path(parent))):
        if root.name in sizes:
            raise UserError(f"two projects are named {root.name}", fix="Rename one, or leave it out.")
        folders: dict[Path, list[Path]] = defaultdict(list)
        for path in walk(root, SkipCounts(), lambda path: path.suffix.lower() in SUFFIXES):
            usable = path.is_file() and not path.is_symlink()
            if usable and path.stat().st_size <= FileRules().max_file_bytes:
                folders[path.parent.relative_to(root)].append(path)
        size = 0
        for folder in sorted(folders, key=lambda name: sha256(f"{root.name}/{name.as_posix()}".encode())):
            if size >= sample.max_project_bytes:
                break
            for path in folders[folder]:
                target = out / root.name / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
                size += path.stat().st_size
        if size:
            sizes[root.name] = size
    progress(f"{sum(sizes.values()) / 1e6:.1f} MB of {len(sizes)} projects")
    return sizes


def choose_held_out(projects: Sequence[str], sample: Sample) -> list[str]:
    """The named projects, or a share of all in the order of the SHA-256 of their names.

    Raises:
        UserError: a name that is no project, or nothing left to train on.
    """
    unknown = sorted(set(sample.held_out) - set(projects))
    if unknown:
        raise UserError(
            f"--held_out {unknown[0]} is no project here", fix=f"There are: {', '.join(projects)}."
        )
    ordered = sorted(projects, key=lambda name: sha256(name.encode()))
    chosen = sample.held_out or ordered[: max(1, round(sample.held_out_share * len(ordered)))]
    if len(set(chosen)) >= len(projects):
        raise UserError(f"all of {len(projects)} projects are held out", fix="Give more projects.")
    return sorted(set(chosen))


def make_corpus(data: Data, held_out: Sequence[str]) -> dict[str, int]:
    """`cpplm corpus build` over all projects, then its documents split anew; returns documents by split."""
    built = data.work / "built"
    build(CorpusSettings(out=str(built), projects_dir=data.work / "files", mode="compilable"))
    out = Storage(data.corpus, create=True)
    reader = ShardReader(built)
    tables = [reader.table(shard) for split in SPLITS for shard in reader.shards(split)]
    table = pa.concat_tables(tables).sort_by("id")
    is_val = pc.is_in(table["project"], value_set=pa.array(held_out))
    parts = {"train": table.filter(pc.invert(is_val)), "val": table.filter(is_val)}
    write_manifest(out, [write_shard_table(out, split, 0, parts[split]) for split in SPLITS])
    reader = ShardReader(data.corpus)
    return {split: sum(shard.documents for shard in reader.shards(split)) for split in SPLITS}


def raw_texts(data: Data, split: Split) -> dict[str, list[str]]:
    """By project, the files that the documents of a split were taken from, in the order of their hashes."""
    names: dict[str, set[str]] = defaultdict(set)
    reader = ShardReader(data.corpus)
    for shard in reader.shards(split):
        table = reader.table(shard, ["project", "sources"])
        for project, sources in zip(table["project"].to_pylist(), table["sources"].to_pylist(), strict=True):
            names[project].update(source["file"] for source in sources)
    found = {}
    for project in sorted(names):
        paths = (data.work / "files" / project / name for name in names[project])
        texts = {normalize_source(path.read_bytes()).decode() for path in paths if path.is_file()}
        found[project] = sorted(texts, key=lambda text: sha256(text.encode()))
    return found


def without_copies(held_out: dict[str, list[str]], trained: set[int]) -> dict[str, list[str]]:
    """The held-out files of which at most half of the lines are in training files, too.

    The corpus looks for copies itself, but documents may borrow from one that it left out.

    Args:
        held_out: files by project.
        trained: hashes of the training files' `telling_lines`.
    """

    def is_new(text: str) -> bool:
        lines = telling_lines(text)
        return sum(hash(line) in trained for line in lines) <= len(lines) / 2

    return {project: [text for text in texts if is_new(text)] for project, texts in held_out.items()}


def telling_lines(text: str) -> list[str]:
    """Without those that are in every file, such as a brace alone."""
    return [line for line in map(str.strip, text.split("\n")) if len(line) >= _LEAST_LINE]


def up_to(texts: Iterable[str], wanted: float) -> Iterator[str]:
    """Texts from the first on, without those that would go over so many bytes; at least one."""
    size = 0
    for text in texts:
        length = len(text.encode())
        if size and size + length > wanted:
            continue
        size += length
        yield text


def train_tokenizers(data: Data, texts: Sequence[str], vocab_size: int) -> None:
    """Ours on our training documents, and a byte-level BPE as GPT-2's on the files they come from."""
    train_on_corpus(
        TokenizerSettings(out=data.our_tokenizer, data_dir=str(data.corpus), vocab_size=vocab_size)
    )
    peer = tokenizers.ByteLevelBPETokenizer()
    peer.train_from_iterator(texts, vocab_size=vocab_size, min_frequency=2, special_tokens=[END_OF_TEXT],
                             show_progress=False)  # fmt: skip
    if peer.get_vocab_size() < vocab_size:
        raise UserError(
            f"the training files give only {peer.get_vocab_size():,} tokens, not --vocab_size {vocab_size:,}",
            fix="Use a smaller vocabulary or more code.",
        )
    peer.save(str(data.peer_tokenizer))


def bytes_per_token(data: Data) -> dict[str, float]:
    """Of both vocabularies on the held-out files."""
    texts = data.texts("held_out")
    size = sum(len(text.encode()) for text in texts)
    ours = Tokenizer.load(data.our_tokenizer).encode_batch(texts)
    peer = tokenizers.Tokenizer.from_file(str(data.peer_tokenizer)).encode_batch(texts)
    return {
        "cpplm": round(size / sum(map(len, ours)), 4),
        "byte-level BPE": round(size / sum(len(encoding.ids) for encoding in peer), 4),
    }


def fingerprint(data: Data) -> str:
    """Of all texts, documents and tokenizers."""
    paths = (data.work / "texts.json", data.our_tokenizer, data.peer_tokenizer)
    parts = [sha256(path.read_bytes()) for path in paths]
    parts.append(ShardReader(data.corpus).fingerprint())
    return sha256("\n".join(parts).encode())[:16]
