"""Every figure that needs a CUDA GPU, in calls of a few minutes; what one call does not reach, the next does.

    make bench-gpu                                          # again and again, until nothing is left
    python benchmarks/gpu.py --work WORK [--minutes 9.5] [--projects DIR ...] [--only PATTERN ...]
    python benchmarks/gpu.py --work WORK --dry_run          # each row, tiny, on a CPU

Rows: the kernels and number formats against float64 (the tests that need a GPU), a training step with each of
them at depth 12, with the usual ones also at depth 20 and with the preset "seed" (nanochat's recipe),
training in 8 and 4 bits and, on several GPUs, divided by FSDP2, decoding against transformers, a model packed
in 4 bits against the one before, the exported model in vLLM where that is installed, and with `--projects`
(folders of C++ projects) the time to a Llama's bits per byte. A row is a command with a limit of its own: one
that fails, hangs or is refused costs its own row only. WORK/results.json and WORK/results.html have what is
known so far; a row is measured once, `--only` measures what it names again.
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from measuring import command_line, describe_machine, progress, refusals
from train_step import KERNELS

from cpplm.core.errors import UserError
from cpplm.core.storage import Storage

HERE = Path(__file__).resolve().parent
CPPLM = (sys.executable, "-m", "cpplm.cli.main")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node")
CUDA_TESTS = ("tests/model/kernels", "tests/core/test_mfu.py", "tests/dataloader/test_loader.py",
              "tests/generate/test_every_feature.py")  # fmt: skip
NO_TESTS = 5  # pytest: none was collected
VLLM = """
import json, sys
from vllm import LLM, SamplingParams
found = LLM(sys.argv[1]).generate(["int main() {"], SamplingParams(temperature=0, max_tokens=16))
print(json.dumps({"text": found[0].outputs[0].text}))
"""


@dataclass(frozen=True)
class Row:
    """One figure, or a few that one command prints.

    Attributes:
        name: unique.
        command: what measures it; a last line of JSON is its figures, else the end of what it prints.
        minutes: after which it is ended.
        missing: why it cannot be measured, if so.
    """

    name: str
    command: tuple[str, ...]
    minutes: float
    missing: str = ""


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """All rows, in the order in which they are worth a GPU's time; data for the later ones is made first."""
    dry, work, device = arguments.dry_run, arguments.work, "cpu" if arguments.dry_run else "cuda"

    def cpplm(
        name: str, *command: object, minutes: float = 1.0, launcher: tuple[str, ...] = (), missing: str = ""
    ) -> Row:
        program = (*launcher, "-m", "cpplm.cli.main", "--") if launcher else CPPLM
        return Row(name, (*program, *map(str, command)), minutes, missing)

    def benchmark(name: str, file: str, *flags: object, minutes: float) -> Row:
        return Row(name, (sys.executable, str(HERE / file), *map(str, flags)), minutes)

    corpus, tokenizer, run = work / "corpus", work / "tokenizer.json", work / "run"
    yield cpplm("doctor", "doctor", "--json")
    tests = (sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider",
             "-m", "slow or not slow", "-k", "cuda or gpu or CUDA",
             *(str(HERE.parent / path) for path in CUDA_TESTS))  # fmt: skip
    yield Row("kernels against float64", tests, 5.0)
    size = {"seq_len": 2048, "batch_size": 16, "vocab_size": 32_768, "head_dim": 128, "steps": 12}
    if dry:
        size = {"seq_len": 64, "batch_size": 2, "vocab_size": 512, "head_dim": 16, "steps": 2}
    shape = [part for name, value in size.items() for part in (f"--{name}", value)]
    for depth, kernels in ((1 if dry else 12, list(KERNELS)), (2 if dry else 20, ["auto", "fp8 tensorwise"])):
        for preset, kernel in (("seed", "auto"), *(("default", name) for name in kernels)):
            flags = ("--kernel", kernel, "--preset", preset, "--depth", depth, *shape)
            title = f"step, depth {depth}, {kernel}" + (", nanochat's recipe" if preset == "seed" else "")
            yield benchmark(title, "train_step.py", *flags, minutes=2.0)
    decode = ("--depth", 1, "--tokens", 4, "--turns", 1, "--batches", 2) if dry else ("--batches", 1, 16)
    yield benchmark("decode", "decode.py", "--device", device, *decode, "--contenders", "cpplm", "exported",
                    "Llama of transformers", minutes=4.0)  # fmt: skip

    cpp = HERE.parent / "src/cpplm/model/kernels"  # the C++ that is in every checkout
    yield cpplm("corpus", "corpus", "build", "--projects", cpp, "--licenses", "any", "--out", corpus)
    yield cpplm("tokenizer", "tokenizer", "train", corpus, "--vocab_size", 512, "--out", tokenizer)
    train = ("train", corpus, "--tokenizer", tokenizer, "--preset", "llama", "--device_type", device,
             *(("--depth", 1, "--aspect_ratio", 32, "--head_dim", 16, "--max_seq_len", 64) if dry
               else ("--depth", 12, "--max_seq_len", 1024, "--total_batch_size", 32_768)),
             "--num_iterations", 4 if dry else 50, "--eval_every", -1)  # fmt: skip
    yield cpplm("train", *train, "--out", run, minutes=2.0)
    for flag in ("fp8", "nvfp4"):
        yield cpplm(f"train --{flag}", *train, f"--{flag}", "--out", work / flag, minutes=2.0)
    ranks = 2 if dry else torch.cuda.device_count()
    yield cpplm("train --shard", *train, "--shard", "--out", work / "shard", minutes=2.0,
                launcher=(*TORCHRUN, str(ranks)),
                missing="" if ranks > 1 else "it needs two GPUs")  # fmt: skip
    yield cpplm("quantize", "compress", "quantize", run, "--recipe", "int4", "--out", work / "int4")
    yield cpplm("packed 4 bits", "compress", "compare", run, "--data_dir", corpus, "--students",
                work / "int4", "--num_tokens", 500 if dry else 50_000, minutes=2.0)  # fmt: skip
    yield cpplm("export", "export", run, "--to", "llama", "--out", work / "llama")
    installed = importlib.util.find_spec("vllm") is not None
    yield Row("vLLM", (sys.executable, "-c", VLLM, str(work / "llama")), 3.0,
              "" if installed else "vllm is not installed")  # fmt: skip
    quick = ("--minutes", 0.2, "--points", 2) if dry else ("--minutes", 2, "--points", 8)
    yield Row(
        "time to bits per byte",
        (sys.executable, str(HERE / "time_to_bpb.py"), *arguments.projects, "--work", str(work / "bpb"),
         "--device", device, *map(str, quick)),
        9.0, "" if arguments.projects else "it needs --projects DIR",
    )  # fmt: skip


def measure(row: Row) -> dict[str, Any]:
    """Run the command of a row: its state, seconds, figures or the end of its output."""
    begin = time.monotonic()
    with subprocess.Popen(
        row.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=60 * row.minutes)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return {"state": "failed", "output": f"ended after {row.minutes:g} minutes"}
    states = {0: "measured", 2: "refused", NO_TESTS: "measured"}
    found: dict[str, Any] = {"state": states.get(process.returncode, "failed")}
    found["seconds"] = round(time.monotonic() - begin, 1)
    printed = stdout.strip().splitlines()
    try:
        found["figures"] = json.loads(stdout if row.name == "doctor" else printed[-1])
    except (ValueError, IndexError):
        lines = [*stderr.strip().splitlines(), *printed] if process.returncode else printed
        found["output"] = "\n".join(lines[-12:])[-1500:]
    return found


def write(storage: Storage, results: dict[str, Any]) -> None:
    """Both files."""
    storage.write("results.json", json.dumps(results, indent=1).encode())
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{row['state']}</td><td>{row.get('seconds', '')}</td>"
        f"<td><pre>{html.escape(_shown(row))}</pre></td></tr>\n"
        for name, row in results["rows"].items()
    )
    machine = html.escape(json.dumps(results["machine"], indent=1))
    page = (
        "<!doctype html><meta charset=utf-8><title>cpplm on a GPU</title>"
        "<style>body{font:14px system-ui;margin:2em;color-scheme:light dark}td{vertical-align:top;"
        "padding:.2em .8em;border-top:1px solid #8884}pre{margin:0;white-space:pre-wrap}</style>"
        f"<h1>cpplm on a GPU</h1><table>{cells}</table><pre>{machine}</pre>"
    )
    storage.write("results.html", page.encode())


def _shown(row: dict[str, Any]) -> str:
    figures = {
        key: value for key, value in row.get("figures", {}).items() if key not in ("machine", "settings")
    }
    return json.dumps(figures) if figures else row.get("output", "")


def main() -> None:
    """Measure what is missing, as far as the time goes."""
    parser = command_line(__doc__, minutes=9.5)
    parser.add_argument("--work", type=Path, required=True, help="folder for results and data")
    parser.add_argument("--projects", nargs="+", default=[], help="folders whose sub-folders are projects")
    parser.add_argument("--only", nargs="+", default=[], help="names of rows, with * and ?, to measure again")
    parser.add_argument("--dry_run", action="store_true", help="each row on a CPU, tiny")
    arguments = parser.parse_args()
    arguments.work = arguments.work.resolve()
    if not arguments.dry_run and not torch.cuda.is_available():
        raise UserError("there is no CUDA GPU here", fix="Use --dry_run to try each row on a CPU.")
    storage = Storage(arguments.work, create=True)
    results: dict[str, Any] = {"rows": {}}
    if storage.exists("results.json"):
        results = storage.read_json("results.json")
        if results["dry_run"] != arguments.dry_run:
            raise UserError(f"{arguments.work} has rows of another kind", fix="Name another --work.")
    results |= {"machine": describe_machine(), "dry_run": arguments.dry_run}
    end, left = time.monotonic() + 60 * arguments.minutes, 0
    for row in rows(arguments):
        again = any(fnmatchcase(row.name, pattern) for pattern in arguments.only)
        known = results["rows"].get(row.name, {}).get("state") in ("measured", "refused", "failed")
        if (known and not again) or (arguments.only and not again):
            continue
        if row.missing:
            found = {"state": "not measured", "output": row.missing}
        elif time.monotonic() + 60 * row.minutes > end and not arguments.dry_run:
            left += 1
            continue
        else:
            if again and "--out" in row.command:
                shutil.rmtree(row.command[row.command.index("--out") + 1], ignore_errors=True)
            found = measure(row)
        results["rows"][row.name] = found
        write(storage, results)
        progress(f"{row.name}: {found['state']} {_shown(found)[-200:]}")
    progress(
        f"{left} rows are left: the same command goes on" if left else f"all in {arguments.work}/results.html"
    )


if __name__ == "__main__":
    with refusals("gpu"):
        main()
