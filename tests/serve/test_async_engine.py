"""The model's thread and the loop that talks to it: nothing is lost, nothing is held, no fault ends it."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.serve.async_engine import AsyncEngine
from cpplm.serve.errors import EngineError, OverloadedError, ShutdownError
from cpplm.tokenizer.special_tokens import BOS
from tests.model.features import random_model
from tests.serve.served import assert_nothing_held, wait_for

LONG = SamplingSettings(200, 1.0, 0, seed=3)


def driven(
    engine: Engine, work: Callable[[AsyncEngine], Awaitable[None]], *, rows: int = 4, max_waiting: int = 100
) -> None:
    """Run some work on a driver; afterwards nothing is held."""

    async def main() -> AsyncEngine:
        driver = AsyncEngine(
            engine, SchedulerLimits(max_batch=rows, prefill_chunk=16), max_waiting=max_waiting
        )
        driver.start()
        try:
            await asyncio.wait_for(work(driver), 60)
            await asyncio.to_thread(
                wait_for,
                lambda: driver.scheduler.idle and not driver._scorers and not driver._commands.qsize(),
            )
        finally:
            await driver.stop()
        return driver

    driver = asyncio.run(main())
    assert not driver.alive
    assert_nothing_held(driver)


async def written(driver: AsyncEngine, *requests: GenerationRequest) -> list[list[CompletionOutput]]:
    done: list[dict[int, CompletionOutput]] = [{} for _ in requests]
    async with driver.generate(requests) as writing:
        async for index, event in writing:
            if event.completion is not None:
                done[index][event.sample] = event.completion
    return [[of_one[number] for number in sorted(of_one)] for of_one in done]


def test_what_is_written_is_the_engines(engine: Engine) -> None:
    """Of several requests at once, each with samples, from many tasks."""
    requests = [engine.request(f"int f{n}(", settings=dataclasses.replace(LONG, max_new_tokens=20, seed=n))
                for n in range(6)]  # fmt: skip
    requests = [dataclasses.replace(request, num_samples=1 + n % 3) for n, request in enumerate(requests)]
    expected = {answer.number: list(answer.completions) for answer in engine.complete_many(requests)}

    async def work(driver: AsyncEngine) -> None:
        found = await asyncio.gather(*(written(driver, each, each) for each in requests))
        for number, (one, other) in enumerate(found):
            assert one == other == expected[number]
        assert driver.num_waiting == 0

    driven(engine, work)


def test_a_new_model_ends_what_is_under_way(engine: Engine) -> None:
    """And writes what comes next, without a failure being counted."""
    own = Engine(engine.model, engine.tokenizer)
    other = Engine(random_model(engine.model.config), engine.tokenizer)
    long = own.request("int f(", settings=LONG)
    short = dataclasses.replace(long, settings=dataclasses.replace(LONG, max_new_tokens=10))
    (expected,) = other.complete_many([short])

    async def work(driver: AsyncEngine) -> None:
        async with driver.generate([long]) as stream:
            await anext(stream)
            await driver.replace_model(other.model)
            with pytest.raises(EngineError, match="replaced by another"):
                async for _ in stream:
                    pass
        ((found,),) = await written(driver, short)
        assert found == expected.completions[0]
        assert driver.num_failures == 0

    driven(own, work)


def test_a_refused_request_takes_those_beside_it_along(engine: Engine) -> None:
    """They were asked for together."""

    async def work(driver: AsyncEngine) -> None:
        with pytest.raises(UserError, match="the prompt has 256 tokens"):
            await written(driver, GenerationRequest((BOS,), LONG), GenerationRequest((BOS,) * 256, LONG))
        assert len((await written(driver, GenerationRequest((BOS,), LONG)))[0]) == 1

    driven(engine, work)


def test_too_many_are_told_when_to_come_again(engine: Engine) -> None:
    async def work(driver: AsyncEngine) -> None:
        async with driver.generate([GenerationRequest((BOS,), LONG)]) as first:
            await anext(first)
            async with driver.generate([GenerationRequest((BOS,), LONG)]):
                driver._max_waiting = 1
                with pytest.raises(OverloadedError, match=r"^1 request is waiting already; try again in \d+"):
                    await written(driver, GenerationRequest((BOS,), LONG))
                driver._max_waiting = 2
            async with (
                driver.generate([GenerationRequest((BOS,), LONG)]),
                driver.generate([GenerationRequest((BOS,), LONG)]),
            ):
                with pytest.raises(OverloadedError, match="2 requests are waiting") as refused:
                    await written(driver, GenerationRequest((BOS,), LONG))
                assert 1 <= int(refused.value.headers["Retry-After"]) <= 60
                with pytest.raises(OverloadedError):
                    await driver.score((BOS, 70), 0)
                async with driver.generate([GenerationRequest((BOS,), LONG)], admitted=True):
                    assert driver.num_waiting == 3
        await written(driver, GenerationRequest((BOS,), LONG))

    driven(engine, work, rows=1, max_waiting=2)


def test_a_failing_step_ends_what_is_under_way_and_no_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hidden_states = engine.model.hidden_states

    async def work(driver: AsyncEngine) -> None:
        expected = await written(driver, GenerationRequest((BOS,), LONG))
        broken = [asyncio.create_task(written(driver, GenerationRequest((BOS,), LONG))) for _ in range(3)]
        await asyncio.sleep(0.02)

        def fails(*_: object, **_options: object) -> torch.Tensor:
            engine.model.hidden_states = hidden_states  # type: ignore[method-assign]
            raise RuntimeError("secret of the inside")

        monkeypatch.setattr(engine.model, "hidden_states", fails)
        found = await asyncio.gather(*broken, return_exceptions=True)
        assert any(isinstance(each, EngineError) for each in found)
        assert {str(each) for each in found if isinstance(each, EngineError)} == {
            "the model failed (RuntimeError)"
        }
        assert driver.num_failures == 1
        assert await written(driver, GenerationRequest((BOS,), LONG)) == expected

    driven(engine, work)
    assert "secret of the inside" in caplog.text  # for whoever runs the server


def test_the_end_cuts_off(engine: Engine) -> None:
    async def work(driver: AsyncEngine) -> None:
        async with driver.generate([GenerationRequest((BOS,), LONG)]) as writing:
            await anext(writing)
            driver.abort_all()
            with pytest.raises(ShutdownError):
                async for _ in writing:
                    pass

    driven(engine, work)


def test_a_stopped_driver_takes_nothing(engine: Engine) -> None:
    async def main() -> None:
        driver = AsyncEngine(engine, SchedulerLimits(max_batch=1), max_waiting=1)
        driver.start()
        await driver.stop()
        with pytest.raises(EngineError):
            await written(driver, GenerationRequest((BOS,), LONG))
        with pytest.raises(EngineError):
            await asyncio.wait_for(driver.replace_model(engine.model), 10)

    asyncio.run(main())


def test_the_end_cuts_off_a_new_model(engine: Engine) -> None:
    """It waits for a thread that may never come to it."""

    async def work(driver: AsyncEngine) -> None:
        waiting = asyncio.create_task(driver.replace_model(driver.engine.model))
        await asyncio.sleep(0)  # it has begun, and nothing of the thread's has come back
        driver.abort_all()
        with pytest.raises(ShutdownError):
            await asyncio.wait_for(waiting, 10)

    driven(Engine(engine.model, engine.tokenizer), work)


def test_scores_are_those_of_the_whole_pass(engine: Engine) -> None:
    """However the prompt is cut into chunks, and while others write."""
    ids = (BOS, *engine.tokenizer.encode("int main() { return 0; }\n" * 6))
    with torch.no_grad():
        logprobs = engine.model(torch.tensor([ids]))[0].log_softmax(-1)

    async def work(driver: AsyncEngine) -> None:
        async with driver.generate([GenerationRequest((BOS,), LONG)]):
            found = await driver.score(ids, 3)
        assert [each.token for each in found] == list(ids[1:])
        for place, each in enumerate(found):
            assert each.logprob == pytest.approx(float(logprobs[place, each.token]), abs=1e-4)
            assert [token for token, _ in each.likeliest] == logprobs[place].topk(3).indices.tolist()
        assert await driver.score((BOS,), 1) == []

    driven(engine, work)


def test_a_score_that_nobody_waits_for_is_dropped(engine: Engine) -> None:
    async def work(driver: AsyncEngine) -> None:
        task = asyncio.create_task(driver.score((BOS,) * 250, 0))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert driver.num_waiting == 0

    driven(engine, work)
