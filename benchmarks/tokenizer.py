"""Tokenizers against public ones: density on held-out projects and on prose, and encoding speed.

    recipes/debian_corpus.sh tokenizer FOLDER
    python benchmarks/tokenizer.py FOLDER cpp-32k cpp-65k cpp-32k-dense cpp-65k-dense \
        --peers o200k_base.json cl100k_base.json

Peers are files of the npm package `tiktoken` (in `encoders/`) or tokenizer.json files; they are measured,
never used otherwise. Bytes per token are means over projects. FOLDER/tok-dev is what the pre-tokeniser was
chosen on, FOLDER/tok-blind was looked at afterwards. A held-out file of which more than half of the lines are
also in FOLDER/tok-train is left out. Speeds are of one and two threads, contenders in turn, ratios turn by
turn.
"""

from __future__ import annotations

import base64
import json
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tiktoken
import tokenizers
from bpb.data import telling_lines, without_copies
from measuring import Spread, command_line, progress, publish, ratios

from cpplm.corpus.ingest.raw_files import find_batches
from cpplm.tokenizer.tokenizer import Tokenizer

Encode = Callable[[str], list[int]]
SPLITS = ("tok-dev", "tok-blind")
_COMMENT = re.compile(r"(?:^[ \t]*//.*\n){3,}|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/", re.MULTILINE)
_LEAST_PROSE = 5_000
_MOST_SPEED_BYTES = 12_000_000
TURNS = 7


def peer(path: Path) -> tuple[str, Encode]:
    """A public tokenizer's name and its encoder of ordinary text."""
    content = json.loads(path.read_bytes())
    if "bpe_ranks" not in content:
        encoder = tokenizers.Tokenizer.from_file(str(path))
        return path.parent.name, lambda text: list(encoder.encode(text, add_special_tokens=False).ids)
    ranks = {}
    for line in content["bpe_ranks"].splitlines():
        _, first, *tokens = line.split(" ")
        ranks |= {base64.b64decode(token): int(first) + number for number, token in enumerate(tokens)}
    encoding = tiktoken.Encoding(
        path.stem, pat_str=content["pat_str"], mergeable_ranks=ranks, special_tokens={}
    )
    return path.stem, encoding.encode_ordinary


def texts_of(folder: Path, **kinds: bool) -> dict[str, list[str]]:
    """The files of each project: C++, or Markdown and reStructuredText."""
    texts: dict[str, list[str]] = defaultdict(list)
    for batch in find_batches(folder, sys.maxsize, **kinds)[0]:
        for project, data in batch.texts():
            texts[project].append(data.decode("utf-8", "replace"))
    return texts


def density(contenders: dict[str, Encode], texts: dict[str, list[str]]) -> dict[str, Any]:
    """Bytes per token of each contender, as the mean over projects, and how much text it was."""
    by_project: dict[str, list[float]] = defaultdict(list)
    sizes = {project: sum(len(text.encode()) for text in found) for project, found in texts.items()}
    for project, found in texts.items():
        if sizes[project] < _LEAST_PROSE:
            continue
        for name, encode in contenders.items():
            by_project[name].append(sizes[project] / sum(len(encode(text)) for text in found))
    return {
        "megabytes": round(sum(sizes.values()) / 1e6, 2),
        "projects": len(by_project[next(iter(contenders))]),
        "bytes_per_token": {name: round(statistics.mean(found), 4) for name, found in by_project.items()},
    }


def speeds(contenders: dict[str, Encode], texts: list[str], threads: int) -> dict[str, list[float]]:
    """MB/s of each contender, turn by turn."""
    size = sum(len(text.encode()) for text in texts) / 1e6
    found: dict[str, list[float]] = defaultdict(list)
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(TURNS):
            for name, encode in contenders.items():
                begin = time.perf_counter()
                for _ in pool.map(encode, texts):
                    pass
                found[name].append(size / (time.perf_counter() - begin))
            progress(f"speed, {threads} thread(s), turn {turn + 1}/{TURNS}")
    return found


def training_lines(folder: Path) -> Iterator[int]:
    """Hashes of the lines of the training projects."""
    for batch in find_batches(folder / "tok-train", sys.maxsize, prose=False)[0]:
        for _, data in batch.texts():
            yield from map(hash, telling_lines(data.decode("utf-8", "replace")))


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizers", type=Path, nargs="+")
    parser.add_argument(
        "--peers", type=Path, nargs="+", required=True, help="the first is what ratios refer to"
    )
    options = parser.parse_args()
    peers = dict(map(peer, options.peers))
    base = next(iter(peers))
    ours = {path.stem: Tokenizer.load(path).encode for path in options.tokenizers}
    contenders: dict[str, Encode] = {**peers, **ours}
    trained = set(training_lines(options.folder))
    figures: dict[str, Any] = {}
    for split in SPLITS:
        code = without_copies(texts_of(options.folder / split, prose=False), trained)
        comments = {
            project: ["\n".join(match.group() for match in _COMMENT.finditer(text)) for text in found]
            for project, found in code.items()
        }
        for kind, texts in (
            ("C++", code),
            ("comments", comments),
            ("Markdown", texts_of(options.folder / split, code=False)),
        ):
            result = figures[f"{split} {kind}"] = density(contenders, texts)
            found = result["bytes_per_token"]
            result["ratio"] = {name: round(value / found[base], 4) for name, value in found.items()}
            progress(f"{split} {kind}: {result['megabytes']} MB of {result['projects']} projects")
            for name, value in found.items():
                progress(f"    {name:20} {value:.3f} bytes/token, {result['ratio'][name]:.3f} of {base}")
        if split == SPLITS[0]:
            texts = sorted(text for found in code.values() for text in found)
            speed_texts = texts[:: max(1, sum(map(len, texts)) // _MOST_SPEED_BYTES)]
    for threads in (1, 2):
        found = speeds(contenders, speed_texts, threads)
        figures[f"MB/s, {threads} threads"] = {name: Spread.of(values, 1) for name, values in found.items()}
        figures[f"speed ratio, {threads} threads"] = {
            name: ratios(values, found[base]) for name, values in found.items()
        }
        for name, values in found.items():
            progress(f"    {name:20} {Spread.of(values, 1)} MB/s, {ratios(values, found[base])} of {base}")
    publish("tokenizer", figures)


if __name__ == "__main__":
    main()
