"""Costs and gains of documents against plain files: the same model, steps and held-out files for each mode.

    recipes/debian_corpus.sh dev FOLDER; recipes/debian_corpus.sh blind FOLDER
    python benchmarks/corpus_modes.py FOLDER/dev FOLDER/blind --work WORK [--modes file compilable half]

Trains on the projects of the first folder, `recipes/demo.toml` but for the context, and scores on those of
the second: bits per byte of raw files (without the license notices at their heads) and of documents, then
holes in raw files and in the small problems. One model and one size of batch make steps cost the same in
every mode, so equal steps are equal time, whatever else the machine does. `half` is documents
and files together. Results are kept in WORK: run the command again, and it goes on. Each training takes 3
minutes on 2 cores.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from bpb.data import up_to
from bpb.ours import held_out_texts, score_of
from measuring import command_line, prepare_environment, progress, publish, refusals

from cpplm.core.settings import from_command_line
from cpplm.core.shards import SPLITS, ShardReader, write_manifest, write_shard_table
from cpplm.core.storage import Storage
from cpplm.corpus.build import build
from cpplm.corpus.settings import CorpusSettings, Mode
from cpplm.tokenizer.train import TokenizerSettings, train_on_corpus
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback, Trainer

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.toml"
TOKENS_PER_BATCH = 4096
_LONGEST_HELD_OUT = 40_000  # characters: a single file must not decide
MODES = ("file", "compilable", "half")


def documents(work: Path, projects: Path, mode: Mode) -> pa.Table:
    """The documents of a folder's projects in one mode, built once."""
    out = work / "built" / f"{projects.name}-{mode}"
    if not (out / "_COMPLETE").exists():
        build(CorpusSettings(out=str(out), projects_dir=projects, mode=mode))
    reader = ShardReader(out)
    tables = [reader.table(shard) for split in SPLITS for shard in reader.shards(split)]
    return pa.concat_tables(tables).sort_by("id")


def prepare(work: Path, train: Path, held_out: Path) -> list[str]:
    """The corpora of all modes in WORK/MODE, with one tokenizer; returns the held-out raw files."""
    files, compilable = (documents(work, train, mode) for mode in ("file", "compilable"))
    validation = documents(work, held_out, "compilable")
    raw = [text for text in documents(work, held_out, "file")["text"].to_pylist() if text.strip()]
    random.Random(2).shuffle(raw)
    for mode in MODES:
        if not (work / mode / "_COMPLETE").exists():
            parts = {"file": [files], "compilable": [compilable], "half": [files, compilable]}[mode]
            table = pa.concat_tables(parts)
            storage = Storage(work / mode, create=True)
            order = random.Random(5).sample(range(table.num_rows), table.num_rows)
            shards = [write_shard_table(storage, "train", 0, table.take(order))]
            write_manifest(storage, [*shards, write_shard_table(storage, "val", 0, validation)])
    if not (work / "tokenizer.json").exists():
        train_on_corpus(
            TokenizerSettings(out=work / "tokenizer.json", data_dir=str(work / "file"), vocab_size=4096)
        )
    return [text for text in raw if len(text) < _LONGEST_HELD_OUT]


class _AtTheEnd(Callback):
    """Scores the model after its last step."""

    def __init__(self, raw: list[str], own: list[str]) -> None:
        self._texts = {"raw_files": raw, "documents": own}
        self.bits_per_byte: dict[str, float] = {}

    def on_end(self, trainer: Trainer) -> None:
        """Bits per byte of both."""
        for name, texts in self._texts.items():
            self.bits_per_byte[name] = score_of(trainer, held_out_texts(trainer, texts)).code


def run(work: Path, mode: str, context: int, seed: int, args: Any, raw: list[str]) -> dict[str, Any]:
    """Train one model and measure it, unless that was done."""
    out = work / "runs" / f"{mode}-{context}-{seed}"
    result = out / "result.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    shutil.rmtree(out, ignore_errors=True)
    flags = ["--data_dir", str(work / mode), "--tokenizer", str(work / "tokenizer.json"), "--out", str(out)]
    flags += ["--seed", str(seed), "--num_iterations", str(args.steps), "--max_seq_len", str(context)]
    flags += ["--device_batch_size", str(TOKENS_PER_BATCH // context)]
    settings = from_command_line(
        TrainSettings, flags, program="corpus_modes.py", description="", recipe=RECIPE
    )
    own = [text for _, text in ShardReader(work / mode).texts("val")]
    scores = _AtTheEnd(list(up_to(raw, args.eval_bytes)), list(up_to(own, args.eval_bytes // 2)))
    pretrain(settings, [scores])
    found = {"mode": mode, "context": context, "seed": seed, "bits_per_byte": scores.bits_per_byte}
    if args.holes:
        command = [str(Path(sys.executable).with_name("cpplm")), "evaluate", "fim", str(out), "--json"]
        command += ["--files", str(args.held_out), "--max_new_tokens", "64"]
        command += ["--holes_per_kind", str(args.holes)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        found["fim"] = json.loads(done.stdout.splitlines()[-1])
    result.write_text(json.dumps(found))
    return found


def main() -> None:
    """The command line."""
    parser = command_line(__doc__, seeds=3, steps=168, holes=60, eval_bytes=400_000)
    parser.add_argument("train", type=Path, help="folder whose sub-folders are projects to train on")
    parser.add_argument("held_out", type=Path, help="the same, to measure on")
    parser.add_argument("--work", type=Path, required=True, help="folder for corpora, runs and results")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--contexts", nargs="+", type=int, default=[512, 2048])
    args = parser.parse_args()
    prepare_environment(2)
    raw = prepare(args.work, args.train, args.held_out)
    results: list[dict[str, Any]] = []
    for seed in range(1, args.seeds + 1):
        for context in args.contexts:
            for mode in args.modes:
                results.append(run(args.work, mode, context, seed, args, raw))
                progress(f"{mode}, context {context}, seed {seed}: {results[-1]['bits_per_byte']}")
    medians = {
        f"{mode}, {context}": statistics.median(
            each["bits_per_byte"]["raw_files"]
            for each in results
            if (each["mode"], each["context"]) == (mode, context)
        )
        for mode in args.modes
        for context in args.contexts
    }
    publish("corpus_modes", {"runs": results, "median_bits_per_byte_of_raw_files": medians})


if __name__ == "__main__":
    with refusals("corpus_modes.py"):
        main()
