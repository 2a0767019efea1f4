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
from cpplm.serve.async_engine import Cut, Driver, Failed, Overloaded
from cpplm.tokenizer.special_tokens import BOS
from tests.serve.served import assert_nothing_held, wait_for

LONG = SamplingSettings(200, 1.0, 0, seed=3)


def driven(
    engine: Engine, work: Callable[[Driver], Awaitable[None]], *, rows: int = 4, most_waiting: int = 100
) -> None:
    """Run some work on a driver; afterwards nothing is held."""

    async def main() -> Driver:
        driver = Driver(engine, SchedulerLimits(max_batch=rows, prefill_chunk=16), most_waiting=most_waiting)
        driver.start()
        try:
            await asyncio.wait_for(work(driver), 60)
            await asyncio.to_thread(
                wait_for,
                lambda: driver.scheduler.idle and not driver._scorings and not driver._commands.qsize(),
            )
        finally:
            await driver.stop()
        return driver

    driver = asyncio.run(main())
    assert not driver.alive
    assert_nothing_held(driver)


async def written(driver: Driver, *requests: GenerationRequest) -> list[list[CompletionOutput]]:
    done: list[dict[int, CompletionOutput]] = [{} for _ in requests]
    async with driver.write(requests) as writing:
        while (news := await writing.next()) is not None:
            if news.event.completion is not None:
                done[news.number][news.event.sample] = news.event.completion
    return [[of_one[number] for number in sorted(of_one)] for of_one in done]


def test_what_is_written_is_the_engines(engine: Engine) -> None:
    """Of several requests at once, each with samples, from many tasks."""
    requests = [engine.request(f"int f{n}(", settings=dataclasses.replace(LONG, max_new_tokens=20, seed=n))
                for n in range(6)]  # fmt: skip
    requests = [dataclasses.replace(request, num_samples=1 + n % 3) for n, request in enumerate(requests)]
    expected = {answer.number: list(answer.completions) for answer in engine.complete_many(requests)}

    async def work(driver: Driver) -> None:
        found = await asyncio.gather(*(written(driver, each, each) for each in requests))
        for number, (one, other) in enumerate(found):
            assert one == other == expected[number]
        assert driver.waiting == 0

    driven(engine, work)


def test_whoever_leaves_is_cancelled(engine: Engine) -> None:
    async def work(driver: Driver) -> None:
        async with driver.write([GenerationRequest((BOS,), LONG, num_samples=3)]) as writing:
            assert await writing.next() is not None
        await asyncio.to_thread(wait_for, lambda: driver.scheduler.idle)
        assert_nothing_held(driver)

        async def leaves_by_cancellation() -> None:
            await written(driver, GenerationRequest((BOS,), LONG))

        task = asyncio.create_task(leaves_by_cancellation())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    driven(engine, work)


def test_a_refused_request_takes_those_beside_it_along(engine: Engine) -> None:
    """They were asked for together."""

    async def work(driver: Driver) -> None:
        with pytest.raises(UserError, match="the prompt has 256 tokens"):
            await written(driver, GenerationRequest((BOS,), LONG), GenerationRequest((BOS,) * 256, LONG))
        assert len((await written(driver, GenerationRequest((BOS,), LONG)))[0]) == 1

    driven(engine, work)


def test_too_many_are_told_when_to_come_again(engine: Engine) -> None:
    async def work(driver: Driver) -> None:
        async with driver.write([GenerationRequest((BOS,), LONG)]) as first:
            await first.next()
            async with driver.write([GenerationRequest((BOS,), LONG)]):
                driver._most_waiting = 1
                with pytest.raises(Overloaded, match=r"^1 request is waiting already; try again in \d+ s$"):
                    await written(driver, GenerationRequest((BOS,), LONG))
                driver._most_waiting = 2
            async with (
                driver.write([GenerationRequest((BOS,), LONG)]),
                driver.write([GenerationRequest((BOS,), LONG)]),
            ):
                with pytest.raises(Overloaded, match="2 requests are waiting") as refused:
                    await written(driver, GenerationRequest((BOS,), LONG))
                assert 1 <= refused.value.seconds <= 60
                with pytest.raises(Overloaded):
                    await driver.score((BOS, 70), 0)
                async with driver.write([GenerationRequest((BOS,), LONG)], admitted=True):
                    assert driver.waiting == 3
        await written(driver, GenerationRequest((BOS,), LONG))

    driven(engine, work, rows=1, most_waiting=2)


def test_a_failing_step_ends_what_is_under_way_and_no_more(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hidden_states = engine.model.hidden_states

    async def work(driver: Driver) -> None:
        expected = await written(driver, GenerationRequest((BOS,), LONG))
        broken = [asyncio.create_task(written(driver, GenerationRequest((BOS,), LONG))) for _ in range(3)]
        await asyncio.sleep(0.02)

        def fails(*_: object) -> torch.Tensor:
            engine.model.hidden_states = hidden_states  # type: ignore[method-assign]
            raise RuntimeError("secret of the inside")

        monkeypatch.setattr(engine.model, "hidden_states", fails)
        found = await asyncio.gather(*broken, return_exceptions=True)
        assert any(isinstance(each, Failed) for each in found)
        assert {str(each) for each in found if isinstance(each, Failed)} == {
            "the model failed (RuntimeError)"
        }
        assert driver.failures == 1
        assert await written(driver, GenerationRequest((BOS,), LONG)) == expected

    driven(engine, work)
    assert "secret of the inside" in caplog.text  # for whoever runs the server


def test_the_end_cuts_off(engine: Engine) -> None:
    async def work(driver: Driver) -> None:
        async with driver.write([GenerationRequest((BOS,), LONG)]) as writing:
            await writing.next()
            driver.cut()
            with pytest.raises(Cut):
                while await writing.next() is not None:
                    pass

    driven(engine, work)


def test_a_stopped_driver_takes_nothing(engine: Engine) -> None:
    async def main() -> None:
        driver = Driver(engine, SchedulerLimits(max_batch=1), most_waiting=1)
        driver.start()
        await driver.stop()
        with pytest.raises(Failed):
            await written(driver, GenerationRequest((BOS,), LONG))

    asyncio.run(main())


def test_scores_are_those_of_the_whole_pass(engine: Engine) -> None:
    """However the prompt is cut into chunks, and while others write."""
    ids = (BOS, *engine.tokenizer.encode("int main() { return 0; }\n" * 6))
    with torch.no_grad():
        logprobs = engine.model(torch.tensor([ids]))[0].log_softmax(-1)

    async def work(driver: Driver) -> None:
        async with driver.write([GenerationRequest((BOS,), LONG)]):
            found = await driver.score(ids, 3)
        assert [each.token for each in found] == list(ids[1:])
        for place, each in enumerate(found):
            assert each.logprob == pytest.approx(float(logprobs[place, each.token]), abs=1e-4)
            assert [token for token, _ in each.likeliest] == logprobs[place].topk(3).indices.tolist()
        assert await driver.score((BOS,), 1) == []

    driven(engine, work)


def test_a_score_that_nobody_waits_for_is_dropped(engine: Engine) -> None:
    async def work(driver: Driver) -> None:
        task = asyncio.create_task(driver.score((BOS,) * 250, 0))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert driver.waiting == 0

    driven(engine, work)
