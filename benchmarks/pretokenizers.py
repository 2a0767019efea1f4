"""Which pre-tokeniser gives the better model: bits per byte of small models, equal in all but the tokenizer.

    recipes/debian_corpus.sh tokenizer FOLDER
    python benchmarks/pretokenizers.py FOLDER/tok-train FOLDER/tok-dev WORK_FOLDER [--seeds 3] [--steps 400]

Every variant gets a vocabulary of the same size from the same text, and the same model is trained for the
same number of tokens, so all cost the same floating-point operations. Bits per byte are measured on the same
text of projects that were not trained on, the same amount of each. Models are kept in WORK_FOLDER: run the
command again, and it goes on. With 18 models it takes hours; figures that it gave are in LOG.md.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from measuring import describe_machine, progress, publish

from cpplm.core.shards import COMPLETE, ShardReader, write_manifest, write_shard
from cpplm.core.storage import Storage
from cpplm.corpus.ingest.raw_files import find_batches
from cpplm.tokenizer.bpe_trainer import NUM_BYTES, PairMerger, train_bpe
from cpplm.tokenizer.forced_vocab import forced_tokens
from cpplm.tokenizer.pretoken_counts import FileBatch, WordCounts, count_words
from cpplm.tokenizer.pretokenizer import LEAD, LINE_ENDS, NEWLINES, OPENER, PATTERNS, PUNCTUATION, WORD
from cpplm.tokenizer.special_tokens import NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer

TRAIN_BYTES, VAL_BYTES, MAX_PROJECT_BYTES, VOCABULARY_SHARE = 20_000_000, 800_000, 60_000_000, 0.3
SCHEMA = pa.schema([("text", pa.string()), ("id", pa.string()), ("project", pa.string())])
SETTINGS = ("--total_batch_size", "4096", "--eval_every", "-1", "--save_minutes", "5", "--fim_rate", "0")

LETTER = r"[^\x00-@\[-`{-\x7f]"
LOWER = r"[^\x00-`{-\x7f]"
PART = rf"(?:_{{0,8}}(?:[A-Z]?{LOWER}{{1,64}}|[A-Z]{{1,64}})[0-9]{{0,8}}|_{{1,64}})"
BLANK = r"[ \t\r\n\f\v]"
# Superwords (Liu et al. 2025, https://arxiv.org/abs/2503.13423): the last quarter of the vocabulary is
# learned over whole lines, from the tokens that are there.
DENSE = PATTERNS["dense"]
SUPERWORDS, FIRST_STAGE, MAX_SUPERWORD = "superwords", 0.75, 32
LINE = rf"[^\r\n]{{1,512}}(?:{NEWLINES}{OPENER}?)?|{NEWLINES}{OPENER}?"

INDENT = r"(?:[ \t]{1,96})"

# Ours, the dense one with one thing changed at a time, and GPT-4's in ASCII classes.
VARIANTS = {
    "lines": PATTERNS["lines"],
    "dense": PATTERNS["dense"],
    "gpt4": "|".join(
        (
            r"'(?:[sdmtSDMT]|ll|ve|re)",
            rf"[^\r\n0-9A-Za-z]?{LETTER}{{1,64}}",
            r"[0-9]{1,3}",
            r" ?[!-/:-@\[-`{-\x7f\x00-\x08\x0e-\x1f]{1,64}[\r\n]{0,16}",
            r"[ \t\f\v]{0,96}[\r\n]{1,16}",
            rf"{BLANK}{{1,96}}(?![^ \t\r\n\f\v])",
            rf"{BLANK}{{1,96}}",
        )
    ),
    # Line breaks as in `lines`, and indentation leads what comes first in its line.
    "leading indentation": "|".join(
        (
            rf"(?:{INDENT}|{LEAD})?{WORD}(?:::{WORD}){{0,16}}",
            r"#[ \t]{0,8}[a-z]{1,16}(?: [<\x22])?",
            r"0[xX][0-9a-fA-F]{1,2}",
            r"[0-9]{1,3}",
            rf"{INDENT}?{PUNCTUATION}(?: {PUNCTUATION}){{0,16}}(?:{LINE_ENDS}| )?",
            LINE_ENDS,
            rf"{BLANK}{{1,96}}",
        )
    ),
    # Names are cut at underscores and humps, and before each `::`.
    "parts of names": PATTERNS["dense"].replace(rf"{WORD}(?:::{WORD}){{0,16}}", PART),
    # Punctuation takes in neither line breaks nor single spaces.
    "plain punctuation": PATTERNS["dense"].replace(
        rf"(?: {PUNCTUATION}){{0,16}}(?:{NEWLINES}{OPENER}?| )?", ""
    ),
    SUPERWORDS: LINE,
}


def write_corpus(train: list[FileBatch], val: list[FileBatch], folder: Path) -> None:
    """Files of the training projects, and as much of every held-out project, chosen by their hashes."""
    storage = Storage(folder, create=True)
    if storage.exists(COMPLETE):
        return
    held_out = {batch.project for batch in val}
    shards = [
        write_shard(storage, "train", 0, rows(train, TRAIN_BYTES), SCHEMA),
        write_shard(
            storage,
            "val",
            0,
            [
                row
                for project in sorted(held_out)
                for row in rows([b for b in val if b.project == project], VAL_BYTES // len(held_out))
            ],
            SCHEMA,
        ),
    ]
    write_manifest(storage, shards)


def rows(batches: list[FileBatch], wanted: int) -> list[dict[str, str]]:
    """The texts with the smallest hashes, up to so many bytes."""
    found = sorted(
        (hashlib.sha256(data).hexdigest(), project, data)
        for batch in batches
        for project, data in batch.texts()
        if len(data) < 100_000
    )
    kept, size = [], 0
    for digest, project, data in found:
        try:
            kept.append({"text": data.decode(), "id": digest, "project": project})
        except UnicodeDecodeError:
            continue
        size += len(data)
        if size >= wanted:
            break
    return kept


def learn(
    words: WordCounts, ids: list[list[int]] | None, tokens: list[bytes], room: int, longest: int
) -> list[bytes]:
    """Tokens learned from words, given as bytes or, for the second stage, as ids of `tokens`."""
    if ids is None:
        symbols = np.frombuffer(b"".join(words.words), dtype=np.uint8)
        lengths = np.array([len(word) for word in words.words])
    else:
        symbols = np.fromiter(itertools.chain.from_iterable(ids), dtype=np.int64)
        lengths = np.array([len(row) for row in ids])
    merger = PairMerger(symbols, lengths, words.weights, tokens, max_token_bytes=longest, min_weight=40)
    learned = train_bpe(merger, room, forced_tokens()[: room // 8])
    if learned is None:
        raise SystemExit("the corpus is too small for this vocabulary")
    return learned


def make_tokenizer(variant: str, batches: list[FileBatch], vocab_size: int) -> Tokenizer:
    """Learn the variant's vocabulary from a share of the training projects."""
    room = vocab_size - NUM_SPECIAL
    single = [bytes([value]) for value in range(NUM_BYTES)]
    pattern = VARIANTS[variant]

    def count(by: str) -> WordCounts:
        return count_words(batches, by, workers=1, share=VOCABULARY_SHARE)

    if variant != SUPERWORDS:
        return Tokenizer(pattern, tuple(learn(count(pattern), None, single, room, 64)))
    first = Tokenizer(DENSE, tuple(learn(count(DENSE), None, single, int(room * FIRST_STAGE), 64)))
    lines = count(LINE)
    ids = [[id_ - NUM_SPECIAL for id_ in first.encode(line)] for line in lines.words]
    return Tokenizer(LINE, tuple(learn(lines, ids, list(first.tokens), room, MAX_SUPERWORD)))


def cpplm(*arguments: str) -> dict[str, Any]:
    """Run a command in a process of its own; returns the object that it prints."""
    command = [str(Path(sys.executable).with_name("cpplm")), *arguments, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stderr[-2000:]}")
    return dict(json.loads(result.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("train", type=Path)
    parser.add_argument("held_out", type=Path)
    parser.add_argument("work_folder", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--vocab_size", type=int, default=8192)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    work: Path = options.work_folder
    batches, _ = find_batches(options.train, MAX_PROJECT_BYTES, prose=False)
    held_out, _ = find_batches(options.held_out, sys.maxsize, prose=False)
    write_corpus(batches, held_out, work / "corpus")
    reader = ShardReader(work / "corpus")
    size = sum(shard.bytes for shard in reader.shards("val"))
    figures: dict[str, dict[str, Any]] = {}
    for variant in options.variants:
        path = work / f"{variant.replace(' ', '_')}.json"
        if not path.exists():
            path.write_bytes(make_tokenizer(variant, batches, options.vocab_size).to_json())
        tokenizer = Tokenizer.load(path)
        texts = [text for _, text in reader.texts("val")]
        assert all(tokenizer.decode(tokenizer.encode(text)) == text for text in texts), variant
        tokens = sum(len(row) for row in tokenizer.encode_batch(texts))
        figures[variant] = {"bytes_per_token": size / tokens, "bits_per_byte": []}
        progress(f"{variant}: {size / tokens:.3f} bytes per token")
    for seed in range(options.seeds):
        for variant in options.variants:
            name = variant.replace(" ", "_")
            run = work / f"{name}_{seed}"
            cpplm(
                "train", "--config", "recipes/demo.toml", *SETTINGS, "--data_dir", str(work / "corpus"),
                "--tokenizer", str(work / f"{name}.json"), "--out", str(run), "--seed", str(seed),
                "--depth", str(options.depth),
                "--num_iterations", str(options.steps),
            )  # fmt: skip
            result = cpplm("evaluate", "bpb", "--run", str(run), "--data_dir", str(work / "corpus"))["bpb"]
            figures[variant]["bits_per_byte"].append(result["bits_per_byte"])
            progress(f"{variant}, seed {seed}: {result['bits_per_byte']:.4f} bits per byte")
    for variant, found in figures.items():
        bits = found["bits_per_byte"]
        spread = f"{statistics.mean(bits):.4f} ({min(bits):.4f}-{max(bits):.4f})" if bits else ""
        progress(f"{variant:20} {found['bytes_per_token']:.3f} bytes/token {spread} bits/byte")
    publish({"machine": describe_machine(), "steps": options.steps, "variants": figures})


if __name__ == "__main__":
    main()
