"""Many clients that stream at the same time from `cpplm serve`: errors, starvation, throughput, memory.

    python benchmarks/serve.py [--clients 64] [--seconds 120] [--depth 4] [--run RUN] [--threads 2]

The server is the command, in a process of its own on the CPU; the clients are tasks of this one, each with
one request after the other, of random lengths, as long as there is time. Unless a run is named, the model
has random weights and never ends by itself.

A gap is the time between two records of one stream, as its client sees them. What a client suffers is its
99th percentile over its median. Memory is the server's, as it says itself: after the first requests, and then
twelve times, with the cache's share, which grows until prompts of ended requests fill what is kept of them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from measuring import THREADS, Spread, command_line, prepare_environment, progress, publish

from cpplm.core.settings import to_dict
from cpplm.core.storage import Storage
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import BOS, EOS
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.save import write_checkpoint

LINE = "int value_{0} = compute(first_{0}, second_{0}) + {0};\n"
LINE_TOKENS = 30
"""A line has fewer."""
MOST_LINES = 24
LOOKS = 12
"""At the server's figures, during the run."""
PATIENCE = 120.0
"""Seconds without a record after which a client counts an error."""


@dataclass
class Client:
    """What one client saw."""

    gaps: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Seconds to the first record of each request."""
    errors: list[str] = field(default_factory=list)
    requests: int = 0
    records: int = 0


def write_run(folder: Path, depth: int, context: int, tokenizer: Tokenizer) -> Path:
    """A checkpoint with random weights."""
    config = ModelConfig.from_depth(depth, vocab_size=tokenizer.vocab_size, max_seq_len=context)
    model = Transformer(config)
    model.init_weights()
    with torch.no_grad():
        model.lm_head.weight[[BOS, EOS]] = 0
    files = {"config.json": to_dict(config), "state.json": {"step": 1}, "settings.json": {}}
    encoded = {name: json.dumps(value).encode() for name, value in files.items()}
    encoded["tokenizer.json"] = tokenizer.to_json()
    tensors = {"model.safetensors": model.state_dict()}
    write_checkpoint(Storage(folder, create=True), 1, tensors, encoded)
    progress(f"a model of {sum(p.numel() for p in model.parameters()):,} parameters, random")
    return folder


@contextlib.contextmanager
def server(run: str, arguments: argparse.Namespace) -> Iterator[str]:
    """The command until the block ends; gives its URL."""
    flags = ["--run", run, "--port", "0", "--device_type", "cpu", "--precision", arguments.precision,
             "--max_batch", str(arguments.clients), "--max_waiting", str(2 * arguments.clients),
             "--draft", arguments.draft, "--prefill_chunk", str(arguments.prefill_chunk)]  # fmt: skip
    command = [sys.executable, "-m", "cpplm.cli.main", "serve", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise SystemExit("the server did not start")
            yield url
            process.terminate()
            assert process.wait(PATIENCE) == 0  # it stops as it should
        finally:
            process.kill()


async def get(url: str, path: str) -> str:
    """A body."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text.partition("\r\n\r\n")[2]


async def figures_of(url: str) -> dict[str, float]:
    """GET /metrics."""
    text = await get(url, "/metrics")
    lines = (line.rpartition(" ") for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, _, value in lines if name.startswith(("cpplm_", "process_"))}


async def stream(client: Client, address: Any, body: dict[str, Any]) -> None:
    """One request; raises what goes wrong."""
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    last = time.perf_counter()
    status = await asyncio.wait_for(reader.readline(), PATIENCE)
    if b" 200 " not in status:
        raise RuntimeError(status.decode().strip())
    begun = done = False
    while line := await asyncio.wait_for(reader.readline(), PATIENCE):
        if not line.startswith(b"data: "):
            continue
        now = time.perf_counter()
        (client.gaps if begun else client.first).append(now - last)
        begun, last = True, now
        if line.startswith(b"data: [DONE]"):
            client.gaps.pop()  # no token
            done = True
        elif line.startswith(b'data: {"error"'):
            raise RuntimeError(line.decode().strip())
        else:
            client.records += 1
    writer.close()
    if not done:
        raise RuntimeError("the stream broke off")


async def use(client: Client, number: int, url: str, end: float, most: tuple[int, int]) -> None:
    """One request after the other until time is over; `most`: lines of a prompt, and tokens to write."""
    generator, address = random.Random(number), urlsplit(url)
    lines, tokens = most
    while time.perf_counter() < end:
        prompt = "".join(LINE.format(generator.randrange(1000)) for _ in range(generator.randint(1, lines)))
        body = {"prompt": prompt, "stream": True, "temperature": 0.8,
                "max_tokens": generator.randint(max(1, tokens // 4), tokens)}  # fmt: skip
        client.requests += 1
        try:
            await stream(client, address, body)
        except Exception as error:  # counted, whatever it is
            client.errors.append(f"{type(error).__name__}: {error}")


async def measure(
    url: str, arguments: argparse.Namespace
) -> tuple[list[Client], list[dict[str, float]], float]:
    """Let all clients loose; what they saw, the server's figures, and how long it took."""
    clients = [Client() for _ in range(arguments.clients)]
    context = json.loads(await get(url, "/v1/models"))["data"][0]["max_model_len"]
    most = max(1, min(MOST_LINES, (context - arguments.tokens) // LINE_TOKENS)), arguments.tokens
    await use(Client(), -1, url, time.perf_counter() + 1, most)  # warms up
    figures = [await figures_of(url)]
    begin = time.perf_counter()
    end = begin + arguments.seconds

    async def look() -> None:
        while (left := end - time.perf_counter()) > 0:
            await asyncio.sleep(min(arguments.seconds / LOOKS, left))
            figures.append(await figures_of(url))
            records, errors = sum(c.records for c in clients), sum(len(c.errors) for c in clients)
            memory = figures[-1]["process_resident_memory_bytes"] / 2**20
            progress(f"{left:.0f} s left, {records} records, {errors} errors, {memory:.0f} MiB")

    users = [use(client, number, url, end, most) for number, client in enumerate(clients)]
    await asyncio.gather(look(), *users)
    figures.append(await figures_of(url))
    return clients, figures, time.perf_counter() - begin


def percentile(values: list[float], share: float) -> float:
    """Of at least one value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def starvation(client: Client) -> float:
    """The 99th percentile of a client's gaps over its median."""
    return percentile(client.gaps, 0.99) / statistics.median(client.gaps)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = command_line(
        __doc__, clients=64, seconds=120.0, depth=4, context=1024, tokenizer="cpp-32k", prefill_chunk=512,
        threads=THREADS,
    )  # fmt: skip
    parser.add_argument("--run", default="", help="a run of yours instead of random weights")
    parser.add_argument("--tokens", type=int, default=128, help="written by a request, at most")
    parser.add_argument("--precision", choices=["auto", "fp32", "bf16"], default="auto")
    parser.add_argument("--draft", choices=["off", "lookup", "heads"], default="off")
    return parser.parse_args()


def main() -> None:
    """Serve, use, print."""
    arguments = parsed()
    prepare_environment(threads=arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        run = arguments.run or str(
            write_run(Path(folder), arguments.depth, arguments.context, Tokenizer.load(arguments.tokenizer))
        )
        with server(run, arguments) as url:
            clients, figures, seconds = asyncio.run(measure(url, arguments))
    gaps = [gap for client in clients for gap in client.gaps]
    errors = [error for client in clients for error in client.errors]
    worst = max(map(starvation, clients))
    written = figures[-1]["cpplm_generation_tokens_total"] - figures[0]["cpplm_generation_tokens_total"]
    memory = [round(each["process_resident_memory_bytes"] / 2**20) for each in figures]
    cache = [round(each["cpplm_cache_bytes"] / 2**20) for each in figures]
    requests = sum(client.requests for client in clients)
    progress(f"{len(errors)} errors in {requests} requests; {written / seconds:.0f} tokens/s")
    progress(
        f"gaps: median {statistics.median(gaps) * 1e3:.1f} ms, p99 {percentile(gaps, 0.99) * 1e3:.1f} ms"
    )
    progress(f"p99 over median of the worst client: {worst:.2f}; memory, MiB: {memory}")
    publish(
        "serve",
        {
            "settings": vars(arguments),
            "seconds": round(seconds, 1),
            "requests": requests,
            "errors": len(errors),
            "first_errors": errors[:5],
            "tokens_per_second": round(written / seconds, 1),
            "gap_ms": {
                "median": round(statistics.median(gaps) * 1e3, 2),
                "p99": round(percentile(gaps, 0.99) * 1e3, 2),
                "longest": round(max(gaps) * 1e3, 2),
            },
            "p99_over_median": round(percentile(gaps, 0.99) / statistics.median(gaps), 2),
            "p99_over_median_per_client": Spread.of(map(starvation, clients), 2),
            "first_token_ms": Spread.of((1e3 * each for client in clients for each in client.first), 1),
            "memory_mib": {"start": memory[0], "half time": memory[len(memory) // 2], "end": memory[-1]},
            "memory_mib_over_time": memory,
            "cache_mib_over_time": cache,
            "cache_blocks_used_at_end": figures[-1]["cpplm_cache_blocks_used"],
            "cancelled": figures[-1]["cpplm_requests_cancelled_total"],
        },
    )
    if errors:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
