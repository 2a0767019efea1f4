"""`make demo-tpu`: a training run on spot TPUs from its recipe to its end, without a cloud.

Everything real but the cloud: Google's client speaks gRPC to a service on the loopback, whose machines are
processes that run the start-up script; the bucket is moto's S3. Three times a machine is taken away: while it
trains, with notice; while it compiles; while it trains, without notice. The weights at the end are compared
with those of a run that nothing happened to.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

from cpplm.train.report.html import write_page
from cpplm.train.report.machine_timeline import PARTS, TIMELINE, recoveries
from tests.cloud.harness import SAVE_EVERY, Loopback, loopback
from tests.conftest import write_corpus
from tests.texts import cpp_document, make_tokenizer

STEPS = 120
PREEMPTIONS = (("training", True), ("compiling", False), ("training", False))


def take_away(world: Loopback) -> None:
    """The three preemptions."""
    attempt = 0
    for state, warn in PREEMPTIONS:
        while not (len(world.fake.made) > attempt and world.is_at(state, world.fake.made[-1])):
            time.sleep(0.02)
        time.sleep(2.0 if state == "training" else 0.2)
        attempt = len(world.fake.made)
        world.fake.preempt(world.fake.made[-1], warn=warn)
        print(f"          >>> {world.fake.made[-1]} is taken away while it is {state}, "
              f"{'with' if warn else 'without'} notice", flush=True)  # fmt: skip


def follow(world: Loopback) -> None:
    """Run to the end, and print what the watcher says as it says it."""
    threading.Thread(target=take_away, args=(world,), daemon=True).start()
    begin, shown = time.monotonic(), 0
    watcher = world.start("tpu", "run", "--recipe", world.recipe, "--spot", "--max_cost", "5")
    while shown < len(lines := world.output(0).splitlines()) or watcher.poll() is None:
        for line in lines[shown:]:
            print(f"{time.monotonic() - begin:6.1f} s  {line}", flush=True)
        shown = len(lines)
        time.sleep(0.1)
    if watcher.returncode:
        sys.exit(f"the run failed: exit status {watcher.returncode}")


def keep(world: Loopback, out: Path) -> Path:
    """Time line, log and page in a folder of this machine."""
    logs = sorted(name for name in world.run.list_names("logs") if name.endswith("log.jsonl"))
    for name, source in ((TIMELINE, TIMELINE), ("log.jsonl", logs[-1])):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(world.run.read(source))
    return write_page(out)


def main() -> None:
    out, begin = Path(sys.argv[1]), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        corpus = write_corpus(folder / "corpus", {"train": [70, 9, 21], "val": [8]})
        tokenizer = folder / "tokenizer.json"
        tokenizer.write_bytes(make_tokenizer(map(cpp_document, range(100)), 512).to_json())
        train = {"num_iterations": STEPS}
        print("A run that nothing happens to, to compare with:", flush=True)
        with loopback(folder / "alone", corpus, tokenizer, train=train) as world:
            done = world.cpplm("tpu", "run", "--recipe", world.recipe)
            if done.returncode:
                sys.exit(done.stderr)
            expected = world.weights()
        print(
            f"  {STEPS} steps in {time.monotonic() - begin:.0f} s\n\nA spot run, three preemptions:",
            flush=True,
        )
        with loopback(folder / "spot", corpus, tokenizer, train=train, step_seconds=0.1) as world:
            world.fake.out_of_stock.add("us-east5-b")  # the first zone of the recipe
            world.fake.queue_seconds = world.fake.create_seconds = world.fake.delete_seconds = 0.5
            follow(world)
            print("\nrecoveries, in seconds, from the loss seen to the first new step (target: 60):")
            for each in recoveries(world.events()):
                print(
                    f"  {each['seconds']:5.1f} = " + " + ".join(f"{part} {each[part]:.1f}" for part in PARTS)
                )
            lost, same = world.lost_steps(), world.weights() == expected
            print(f"steps made again: {lost}; a checkpoint every {SAVE_EVERY}")
            print(f"machines: {len(world.fake.made)}; at most {world.fake.most_alive} at a time")
            verdict = "are" if same else "ARE NOT"
            print(f"weights and optimizer state {verdict} those of the other run, bit for bit")
            page = keep(world, out)
    print(f"{time.monotonic() - begin:.0f} s; the time line as a picture: {page}")
    sys.exit(0 if same and world.fake.most_alive == 1 else 1)


if __name__ == "__main__":
    main()
