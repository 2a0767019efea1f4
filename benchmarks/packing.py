"""How many of the documents that fit into a row are cut all the same: our packing against concatenation.

    python benchmarks/packing.py --data_dir runs/demo/corpus --tokenizer runs/demo/tokenizer.json \
        [--seq_len 512 2048] [--windows 240]

Packs the first windows of the first epoch as the loader does, lane by lane. Concatenation cuts the same
documents, end to end in the order in which they are read, after every `seq_len` tokens.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from measuring import describe_machine, progress, publish

from cpplm.core.shards import ShardReader
from cpplm.dataloader.encoding import PlainEncoder, RawDocument
from cpplm.dataloader.loader_state import NUM_STREAMS, Cursor
from cpplm.dataloader.packing import pack_rows
from cpplm.dataloader.sampler import EpochShuffler
from cpplm.tokenizer.tokenizer import Tokenizer


def window_lengths(reader: ShardReader, encoder: PlainEncoder, most: int) -> list[list[int]]:
    """Tokens of each document, window by window, of the first epoch."""
    order, position, found, texts = EpochShuffler(reader, 0), Cursor(), [], {}
    while len(found) < most:
        position = order.advance(Cursor(), len(found))
        if position is None or position.epoch > 0:
            break
        window = order.group_at(position)
        if window.shard not in texts:
            texts = {window.shard: reader.table(window.shard, ["text"])["text"].to_pylist()}
        documents = [RawDocument(texts[window.shard][number], (0, 0, number)) for number in window.documents]
        found.append([len(ids) for [ids] in encoder.encode(documents)])
    return found


def share_cut(windows: list[list[int]], seq_len: int) -> float:
    """Of the documents of at most `seq_len` tokens, those in more than one row."""
    carry: list[list[tuple[int, int]]] = [[] for _ in range(NUM_STREAMS)]
    cut = 0
    for number, lengths in enumerate(windows):
        documents = carry[number % NUM_STREAMS] + [(0, length) for length in lengths]
        rows, rest = pack_rows(documents, seq_len)
        carry[number % NUM_STREAMS] = [(piece.start, piece.stop) for piece in rest]
        beginnings = (piece for row in rows for piece in row if piece.start == 0)
        cut += sum(piece.stop < documents[piece.document][1] <= seq_len for piece in beginnings)
    return cut / sum(length <= seq_len for lengths in windows for length in lengths)


def share_cut_by_concatenation(windows: list[list[int]], seq_len: int) -> float:
    """The same for rows that are cut out of one stream."""
    lengths = np.concatenate(windows)
    ends = np.cumsum(lengths)
    fits = lengths <= seq_len
    return float(((ends - lengths) // seq_len != (ends - 1) // seq_len)[fits].mean())


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--seq_len", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--windows", type=int, default=240)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.load(arguments.tokenizer)
    encoder = PlainEncoder(arguments.tokenizer, tokenizer.hash, threads=2)
    windows = window_lengths(ShardReader(arguments.data_dir), encoder, arguments.windows)
    lengths = np.concatenate(windows)
    figures: dict[int, Any] = {}
    for seq_len in arguments.seq_len:
        figures[seq_len] = {
            "documents_that_fit": round(float((lengths <= seq_len).mean()), 4),
            "cut": round(share_cut(windows, seq_len), 4),
            "cut_by_concatenation": round(share_cut_by_concatenation(windows, seq_len), 4),
        }
        progress(f"rows of {seq_len}: {figures[seq_len]}")
    publish({"benchmark": "packing", "machine": describe_machine(), "settings": vars(arguments),
             "documents": len(lengths), "tokens": int(lengths.sum()), "by_seq_len": figures})  # fmt: skip


if __name__ == "__main__":
    main()
