"""Requests that come, wait, share and go: nobody stops the others, and no block is lost."""

import dataclasses
import random

import pytest

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.scheduler import Scheduler
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.model.kv_cache.block_pool import BLOCK_SIZE
from cpplm.tokenizer.special_tokens import BOS
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.naive import greedy, naive_sample
from tests.generate.test_every_feature import engine_of
from tests.model.features import CONFIGS


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    """Everything that remembers something."""
    return engine_of(dataclasses.replace(CONFIGS["all"], hyper_connections=None), tokenizer)


def ids(count: int, seed: int = 0) -> tuple[int, ...]:
    generator = random.Random(seed)
    return (BOS, *(generator.randrange(64, 500) for _ in range(count - 1)))


def finish(scheduler: Scheduler) -> dict[tuple[int, int], CompletionOutput]:
    done = {}
    while not scheduler.idle:
        for event in scheduler.step():
            if event.completion is not None:
                done[event.request_id, event.sample] = event.completion
    return done


def alone(engine: Engine, request: GenerationRequest, number: int = 0) -> CompletionOutput:
    return naive_sample(engine.model, engine.tokenizer, request, number)


def test_a_long_prompt_does_not_stop_the_others(engine: Engine) -> None:
    """While it is read, a few tokens per step, each step gives those that write a token."""
    scheduler = engine.scheduler(SchedulerLimits(prefill_chunk=8))
    writing = scheduler.submit(GenerationRequest(ids(4), SamplingSettings(60, 1.0, 0, seed=1)))
    scheduler.step()
    long = scheduler.submit(GenerationRequest(ids(64), greedy(3)))
    for _ in range(64 // 8 - 1):
        assert [event.request_id for event in scheduler.step()] == [writing]
    assert long in [event.request_id for event in scheduler.step()]


def test_samples_share_what_was_read(engine: Engine) -> None:
    """Blocks of a prompt count once, however many samples follow it."""
    used = []
    for samples in (1, 8):
        scheduler = engine.scheduler()
        scheduler.submit(GenerationRequest(ids(65), SamplingSettings(20, 1.0, 0), samples))
        scheduler.step()
        used.append(scheduler.cache.num_used_blocks)
    groups = len(scheduler.cache._groups)
    assert used[1] <= used[0] + 7 * groups  # one block each behind the prompt
    assert used[0] >= 65 // BLOCK_SIZE


def test_a_shared_beginning_is_read_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    read, hidden_states = [], engine.model.hidden_states

    def counted(ids_BT, *arguments, **options):
        read.append(ids_BT.size(1))
        return hidden_states(ids_BT, *arguments, **options)

    monkeypatch.setattr(engine.model, "hidden_states", counted)
    header = ids(50)
    requests = [GenerationRequest((*header, 100 + number), greedy(1)) for number in range(4)]
    scheduler = engine.scheduler()
    for request in requests:
        scheduler.submit(request)
        finish(scheduler)
    assert read == [51, 3, 3, 3]
    read.clear()
    forgetful = engine.scheduler(SchedulerLimits(prefix_cache_tokens=0))
    for request in requests[:2]:
        forgetful.submit(request)
        finish(forgetful)
    assert read == [51, 51]


@pytest.mark.parametrize("steps", [0, 3])
def test_a_cancelled_request_frees_its_memory_at_once(engine: Engine, steps: int) -> None:
    """Waiting, half read, or writing; the others go on as if it had never been."""
    other = GenerationRequest(ids(5, seed=1), SamplingSettings(30, 1.0, 0))
    scheduler, twin = engine.scheduler(SchedulerLimits(prefill_chunk=16)), engine.scheduler()
    kept = scheduler.submit(other)
    twin.submit(other)
    ticket = scheduler.submit(GenerationRequest(ids(60), greedy(30), num_samples=3))
    for _ in range(1 + steps):
        scheduler.step()
        twin.step()
    assert scheduler.cache.num_used_blocks > twin.cache.num_used_blocks
    scheduler.cancel(ticket)
    scheduler.cancel(ticket)  # once more is no error
    assert scheduler.cache.num_used_blocks == twin.cache.num_used_blocks
    assert finish(scheduler) == {(kept, 0): alone(engine, other)}
    assert scheduler.cache.num_used_blocks == 0
    assert scheduler._free_blocks == scheduler._blocks


def test_random_traffic_loses_no_block(engine: Engine) -> None:
    generator = random.Random(0)
    scheduler = engine.scheduler(
        SchedulerLimits(max_batch=5, cache_tokens=400, prefill_chunk=24, prefix_cache_tokens=64)
    )
    alive: set[int] = set()
    sizes = []
    for step in range(160):
        if generator.random() < 0.3 and scheduler.num_waiting < 4:
            settings = SamplingSettings(generator.randrange(1, 30), 1.0, 0, seed=step)
            request = GenerationRequest(
                ids(generator.randrange(1, 60), step % 4), settings, generator.randrange(1, 5)
            )
            alive.add(scheduler.submit(request))
        if alive and generator.random() < 0.1:
            ticket = generator.choice(sorted(alive))
            alive.remove(ticket)
            scheduler.cancel(ticket)
        alive -= {event.request_id for event in scheduler.step() if event.last}
        assert scheduler.num_running <= 5
        sizes.append(scheduler.cache.bytes)
    finish(scheduler)
    assert scheduler.cache.num_used_blocks == 0
    assert scheduler._free_blocks == scheduler._blocks
    groups = len(scheduler.cache._groups)
    assert 0 < scheduler.cache.num_cached_blocks <= groups * 64 // BLOCK_SIZE
    assert sizes[-1] == sizes[110]  # memory is flat once it is full


def test_the_cache_has_a_bound(engine: Engine) -> None:
    """Who does not fit waits; what can never fit is refused."""
    scheduler = engine.scheduler(SchedulerLimits(max_batch=8, cache_tokens=7 * BLOCK_SIZE))
    for seed in range(4):
        scheduler.submit(GenerationRequest(ids(30, seed), greedy(20)))  # 2 blocks and 3
    most = 0
    while not scheduler.idle:
        scheduler.step()
        assert scheduler.num_running <= 1
        most = max(most, scheduler.cache.num_used_blocks)
    assert most <= len(scheduler.cache._groups) * 7
    with pytest.raises(UserError, match="do not fit into the cache of 112"):
        scheduler.submit(GenerationRequest(ids(60), greedy(90)))
    assert scheduler.idle


@pytest.mark.parametrize("name", ["max_batch", "prefill_chunk"])
def test_bad_limits(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} 0"):
        SchedulerLimits(**{name: 0})
