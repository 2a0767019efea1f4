"""Threads of tools: results, faults, places."""

import asyncio
import threading

import pytest

from cpplm.serve.tool_threads import ToolThreads


def test_results_and_faults_come_back() -> None:
    async def main() -> None:
        threads = ToolThreads(1)
        assert await threads.run(lambda: "408") == "408"
        with pytest.raises(ZeroDivisionError):
            await threads.run(lambda: str(1 // 0))
        assert await threads.run(lambda: threading.current_thread().name) == "cpplm-tool"

    asyncio.run(main())


def test_a_place_is_free_only_when_the_work_is_over() -> None:
    """Also of work that nobody waits for any more."""

    async def main() -> None:
        threads, gate, begun = ToolThreads(2), threading.Event(), []

        def work() -> str:
            begun.append(1)
            gate.wait(30)
            return "done"

        tasks = [asyncio.create_task(threads.run(work)) for _ in range(5)]
        while len(begun) < 2:
            await asyncio.sleep(0.01)
        for task in tasks[:2]:
            task.cancel()
        await asyncio.sleep(0.1)
        assert len(begun) == 2
        gate.set()
        assert await asyncio.gather(*tasks[2:]) == ["done"] * 3
        assert len(begun) == 5

    asyncio.run(main())


def test_the_loop_may_be_gone() -> None:
    gate = threading.Event()

    async def main() -> None:
        task = asyncio.create_task(ToolThreads(1).run(lambda: str(gate.wait(30))))
        await asyncio.sleep(0.05)
        task.cancel()

    asyncio.run(main())
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "cpplm-tool":
            thread.join(10)
            assert not thread.is_alive()
