"""Tokens per second of `cpplm sft` over those of `cpplm train`, of one model; padding does not count.

    python benchmarks/sft.py RUN CORPUS [--steps 40] [--threads 2]

RUN is a run of `cpplm train`, CORPUS what it was trained on. Both contenders go on from its weights with its
batch sizes, as the commands do it, each in a process of its own, and take turns step by step. Packing, masks
and the optimizer are in the clock; compiling and checkpoints are not. The conversations are documents of the
corpus cut in two, of 20 to 1,500 characters. Seconds of the processor are given, too: other work on the
machine changes them less, and the thread that makes the batches is in them.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Semaphore
from pathlib import Path
from typing import Any

from measuring import Spread, command_line, prepare_environment, progress, publish, ratios
from typing_extensions import override

from cpplm.core.settings import from_dict
from cpplm.core.shards import ShardReader
from cpplm.dataloader.loader import Batch
from cpplm.post_training.settings import SftSettings
from cpplm.post_training.sft import fine_tune
from cpplm.tokenizer.special_tokens import PAD
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.pretrain import pretrain
from cpplm.train.settings import TrainSettings
from cpplm.train.trainer import Callback, StepMetrics, Trainer

_WARM_UP = 4  # steps that do not count
_PATIENCE = 600.0  # seconds
_LENGTHS = (20, 1500)  # characters of a conversation


class TakeTurns(Callback):
    """Makes a step when it is its turn; notes what each took, and its tokens that are no padding."""

    def __init__(self, mine: Semaphore, others: Semaphore) -> None:
        self._mine, self._others = mine, others
        self._tokens = 0
        self._processor = 0.0
        self.steps: list[dict[str, float]] = []

    @override
    def on_start(self, trainer: Trainer) -> None:
        trainer.batches = self._counted(trainer.batches)
        self._wait()

    def _wait(self) -> None:
        if not self._mine.acquire(timeout=_PATIENCE):
            raise TimeoutError("the other contender does not make its step")
        self._tokens, self._processor = 0, time.process_time()

    def _counted(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self._tokens += int((batch.inputs != PAD).sum())
            yield batch

    @override
    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        processor = time.process_time() - self._processor
        self.steps.append(
            {
                "tokens_per_second": self._tokens / metrics.seconds,
                "tokens_per_processor_second": self._tokens / processor,
                "counted": self._tokens / metrics.tokens,
            }
        )
        self._others.release()
        self._wait()

    @override
    def on_end(self, trainer: Trainer) -> None:
        self._others.release()


def train_from(run: str, corpus: str, steps: int, turns: TakeTurns) -> None:
    """Go on pre-training."""
    parent = open_parent(run)
    record = {name: value for name, value in parent.json("settings.json").items() if name != "dry"}
    settings = from_dict(TrainSettings, record, where=parent.path("settings.json"))
    with tempfile.TemporaryDirectory() as folder:
        pretrain(
            replace(
                settings, data_dir=(corpus,), tokenizer=Path(parent.path("tokenizer.json")), stage="mid",
                init_from=run, out=Path(folder) / "run", num_iterations=steps, max_minutes=-1.0,
                target_flops=-1.0, eval_every=-1, save_minutes=-1.0, save_every=-1,
            ),
            [turns],
        )  # fmt: skip


def tune_from(run: str, conversations: str, steps: int, turns: TakeTurns) -> None:
    """Fine-tune."""
    record = open_parent(run).json("settings.json")
    with tempfile.TemporaryDirectory() as folder:
        fine_tune(
            SftSettings(
                data=(Path(conversations),), init_from=run, out=Path(folder) / "run", num_iterations=steps,
                device_batch_size=record["device_batch_size"], total_batch_size=record["total_batch_size"],
                eval_every=-1, save_minutes=-1.0,
            ),
            [turns],
        )  # fmt: skip


CONTENDERS: dict[str, Callable[[str, str, int, TakeTurns], None]] = {"train": train_from, "sft": tune_from}


def contend(
    name: str, run: str, data: str, steps: int, mine: Semaphore, others: Semaphore, found: Queue[Any]
) -> None:
    """In a contender's process: its steps but the first ones."""
    turns = TakeTurns(mine, others)
    CONTENDERS[name](run, data, steps, turns)
    found.put((name, turns.steps[_WARM_UP:]))


def write_conversations(corpus: str, file: Path) -> None:
    """Documents of a corpus as conversations: the first part asks, what follows it answers."""
    reader, lengths = ShardReader(corpus), random.Random(0)
    with file.open("w") as lines:
        for shard in reader.shards("train"):
            for text in reader.table(shard, ["text"])["text"].to_pylist():
                at = 0
                while at < len(text):
                    size = lengths.randint(*_LENGTHS)
                    piece, at = text[at : at + size], at + size
                    half = len(piece) // 2
                    turns = [("user", piece[:half]), ("assistant", piece[half:].strip() or ";")]
                    messages = [{"role": role, "content": content} for role, content in turns]
                    lines.write(json.dumps({"messages": messages}) + "\n")


def compare(run: str, data: dict[str, str], steps: int) -> dict[str, list[dict[str, float]]]:
    """What the steps of both contenders took."""
    context = multiprocessing.get_context("spawn")
    turns = {"train": context.Semaphore(1), "sft": context.Semaphore(0)}
    found: Queue[Any] = context.Queue()
    processes = [
        context.Process(target=contend, args=(name, run, data[name], steps, turns[name], turns[other], found))
        for name, other in (("train", "sft"), ("sft", "train"))
    ]
    for process in processes:
        process.start()
    results = dict(found.get(timeout=2 * _PATIENCE) for _ in processes)
    for process in processes:
        process.join()
    return results


def main() -> None:
    """Measure, print."""
    parser = command_line(__doc__, steps=40, threads=2)
    parser.add_argument("run")
    parser.add_argument("corpus")
    arguments = parser.parse_args()
    prepare_environment(threads=arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        conversations = Path(folder) / "conversations.jsonl"
        write_conversations(arguments.corpus, conversations)
        data = {"train": arguments.corpus, "sft": str(conversations)}
        found = compare(arguments.run, data, arguments.steps)
    figures: dict[str, dict[str, Spread]] = {"sft_over_train": {}}
    for key in found["sft"][0]:
        rates = {name: [step[key] for step in steps] for name, steps in found.items()}
        figures[key] = {name: Spread.of(values) for name, values in rates.items()}
        figures["sft_over_train"][key] = ratios(rates["sft"], rates["train"])
    progress(f"sft is {figures['sft_over_train']['tokens_per_second']} times as fast as train")
    publish("sft", {"settings": vars(arguments), **figures})


if __name__ == "__main__":
    main()
