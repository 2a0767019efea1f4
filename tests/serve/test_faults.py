"""Clients that vanish, stall and come in thousands; a model that fails, tools that hang: nobody else notices.

Each test ends by looking whether every block of the cache was given back.
"""

import asyncio
import dataclasses
import json
import re
import socket
import struct
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
import torch

from cpplm.generate.engine import Engine
from cpplm.generate.settings import SamplingSettings
from cpplm.serve.server import allow_connections
from cpplm.serve.settings import BatchSettings, NetworkSettings, RequestSettings
from cpplm.serve.sse import EventStream
from tests.serve.served import Served, error_of, events, serving, wait_for

PROMPT = "int main() {"
LONG = {
    "prompt": PROMPT,
    "max_tokens": 12_000,
    "temperature": 0,
    "stream": True,
}  # which never ends by itself
SHORT = {"prompt": PROMPT, "max_tokens": 16, "temperature": 1, "seed": 3}


@pytest.fixture(scope="module")
def busy(long_engine: Engine) -> Iterator[Served]:
    with serving(long_engine, batch=BatchSettings(max_batch=64)) as found:
        yield found


@pytest.fixture(scope="module")
def expected(long_engine: Engine) -> str:
    settings = SamplingSettings(16, 1.0, 0, seed=3)
    return long_engine.complete(PROMPT, settings)[0].text


def connect(served: Served) -> socket.socket:
    url = httpx2.URL(served.url)
    assert url.port is not None
    return socket.create_connection((url.host, url.port), timeout=30)


def request(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def vanish(connection: socket.socket) -> None:
    """Without a word: the other side gets a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def begin(served: Served, body: dict[str, Any]) -> socket.socket:
    """A stream of which the first tokens are here."""
    connection = connect(served)
    connection.sendall(request("/v1/completions", body))
    assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    return connection


# ---- clients that vanish ----------------------------------------------------------------------------------


def test_clients_that_vanish_in_the_middle_of_a_stream(busy: Served, expected: str) -> None:
    before = busy.metric("cpplm_requests_cancelled_total")
    gone = [begin(busy, LONG) for _ in range(12)]
    assert busy.engine.scheduler.num_running >= 12
    with ThreadPoolExecutor(4) as pool:
        others = [pool.submit(busy.complete, **SHORT) for _ in range(4)]
        for connection in gone[:6]:
            vanish(connection)
        for connection in gone[6:]:
            connection.close()
        for other in others:
            assert other.result()["choices"][0]["text"] == expected
    busy.settle()
    assert busy.metric("cpplm_requests_cancelled_total") == before + 12


def test_what_was_written_for_clients_that_vanished_is_counted(long_engine: Engine) -> None:
    with serving(long_engine) as served:
        connection = begin(served, LONG)
        wait_for(lambda: served.engine.scheduler._running[0].state.num_new >= 20)
        state = served.engine.scheduler._running[0].state
        vanish(connection)
        served.settle()
        assert served.metric("cpplm_generation_tokens_total") == state.num_new < 12_000


def test_clients_that_do_not_wait_for_their_answer(busy: Served) -> None:
    """Not streamed: nothing was sent to them yet."""
    gone = []
    for path, body in (
        ("/v1/completions", {**LONG, "stream": False, "n": 3}),
        ("/v1/completions", {**LONG, "stream": False, "prompt": [PROMPT] * 3}),
        ("/v1/chat/completions", {**HELLO, "max_tokens": 9000, "temperature": 0, "n": 2}),
        ("/infill", {"input_prefix": PROMPT, "n_predict": 9000, "temperature": 0}),
    ):
        connection = connect(busy)
        connection.sendall(request(path, body))
        gone.append(connection)
    wait_for(lambda: busy.engine.scheduler.num_running >= 9)
    for connection in gone:
        vanish(connection)
    busy.settle()


def test_clients_that_vanish_in_the_queue(long_engine: Engine) -> None:
    with serving(long_engine, batch=BatchSettings(max_batch=1)) as served:
        first = begin(served, LONG)
        waiting = [connect(served) for _ in range(5)]
        for connection in waiting:
            connection.sendall(request("/v1/completions", LONG))
        wait_for(lambda: served.engine.num_waiting == 5)
        for connection in waiting:
            vanish(connection)
        wait_for(lambda: served.engine.num_waiting == 0)
        assert served.engine.scheduler.num_running == 1
        vanish(first)
        served.settle()


def test_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is given up, and what was to be written for it with it."""
    closed: list[str] = []

    async def rest() -> AsyncGenerator[str, None]:
        try:
            while True:
                yield "data: x\n\n"
        finally:
            closed.append("the generator")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr("cpplm.serve.sse.READ_TIMEOUT", 0.05)
    stream = EventStream("data: 1\n\n", rest(), on_disconnect=lambda: closed.append("counted"))

    async def main() -> None:
        await anext(stream._rest)
        await asyncio.wait_for(stream({"type": "http"}, receive, send), 10)

    asyncio.run(main())
    assert closed == ["counted", "the generator"]


# ---- thousands --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_thousand_requests_at_once(engine: Engine) -> None:
    """Each is answered: with what it asked for, or with when to come again."""
    allow_connections(2500)
    statuses: list[int] = []

    async def one(url: httpx2.URL) -> None:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(request("/v1/completions", {**SHORT, "max_tokens": 4}))
        await writer.drain()
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
        statuses.append(int(head.split()[1]))
        body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head).group(1)))  # type: ignore[union-attr]
        if statuses[-1] == 429:
            assert re.search(rb"retry-after: [1-9]", head)
            assert json.loads(body)["error"]["code"] == "overloaded"
        else:
            assert json.loads(body)["usage"]["completion_tokens"] >= 4
        writer.close()

    async def all_of_them(url: httpx2.URL) -> None:
        await asyncio.gather(*(one(url) for _ in range(1000)))

    with serving(engine, batch=BatchSettings(max_batch=16, max_waiting=40)) as served:
        asyncio.run(all_of_them(httpx2.URL(served.url)))
        assert set(statuses) == {200, 429}
        assert len(statuses) == 1000
        assert statuses.count(200) >= 40
        served.settle()


def test_more_connections_than_are_allowed(engine: Engine) -> None:
    with serving(engine, network=NetworkSettings(port=0, max_connections=5)) as served:
        held = [connect(served) for _ in range(6)]
        wait_for(lambda: len(served.server.server_state.connections) >= 6)
        held[-1].sendall(request("/v1/completions", SHORT))
        assert held[-1].recv(4096).startswith(b"HTTP/1.1 503 ")
        for connection in held:
            connection.close()
        wait_for(lambda: not served.server.server_state.connections)
        assert served.complete(**SHORT)["choices"]


# ---- limits -----------------------------------------------------------------------------------------------


def test_a_full_queue(long_engine: Engine) -> None:
    with serving(long_engine, batch=BatchSettings(max_batch=1, max_waiting=2)) as served:
        first = begin(served, LONG)
        waiting = [connect(served) for _ in range(2)]
        for connection in waiting:
            connection.sendall(request("/v1/completions", LONG))
        wait_for(lambda: served.engine.num_waiting == 2)
        for path, body in (
            ("/v1/completions", SHORT),
            ("/v1/completions", {**SHORT, "stream": True}),
            ("/v1/completions", {**SHORT, "echo": True, "logprobs": 1}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
            ("/v1/fim/completions", SHORT),
            ("/infill", {"input_prefix": "x"}),
        ):
            answer = served.post(path, body)
            assert error_of(answer, 429, "overloaded")["type"] == "rate_limit_error"
            assert 1 <= int(answer.headers["retry-after"]) <= 60
        for connection in (first, *waiting):
            vanish(connection)
        served.settle()
        assert served.complete(**SHORT)["choices"]


def test_time_is_up(long_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RequestSettings(request_timeout=1.5, grace=5)  # long enough for a first token on a busy machine
    with serving(long_engine, requests=limits) as served:
        served.slow_down(monkeypatch)
        with ThreadPoolExecutor(1) as pool:
            whole = pool.submit(served.post, "/v1/completions", {**LONG, "stream": False})
            found = events(served.post("/v1/completions", LONG))
            error_of(whole.result(), 504, "timeout")
        assert json.loads(found.pop())["error"]["code"] == "timeout"
        assert "[DONE]" not in found
        assert all(json.loads(each)["choices"] for each in found)
        served.settle()


def test_nothing_was_written_in_time(long_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(long_engine, batch=BatchSettings(max_batch=1)) as served:
        served.slow_down(monkeypatch)
        first = begin(served, LONG)
        service = served.application.services[0]  # those that come now have less time than the first one had
        service.settings = dataclasses.replace(service.settings, first_token_timeout=0.3)
        for body in (SHORT, {**SHORT, "stream": True}):
            answer = served.post("/v1/completions", body)
            error_of(answer, 503, "first_token_timeout")
            assert answer.headers["retry-after"] == "10"
        vanish(first)
        served.settle()


def test_more_tokens_than_a_request_may_have(engine: Engine) -> None:
    with serving(engine, requests=RequestSettings(max_new_tokens=5, default_new_tokens=3, grace=5)) as served:
        assert served.complete(prompt="x", max_tokens=100, seed=1)["usage"]["completion_tokens"] <= 5
        assert served.complete(prompt="", max_tokens=-1, seed=1)["choices"][0]["finish_reason"] == "length"
        assert served.complete(prompt=[70], seed=1)["usage"]["completion_tokens"] == 3


def test_what_does_not_fit_into_the_cache(engine: Engine) -> None:
    with serving(engine, batch=BatchSettings(max_batch=2, cache_tokens=128)) as served:
        answer = served.post("/v1/completions", {"prompt": "int x; " * 20, "max_tokens": 100})
        assert "do not fit into the cache" in error_of(answer, 400, "invalid_value")["message"]
        assert served.complete(prompt="x", max_tokens=10)["choices"]


# ---- a model that fails -----------------------------------------------------------------------------------


def test_a_model_that_gives_no_numbers(long_engine: Engine, expected: str) -> None:
    weight = long_engine.model.lm_head.weight
    with serving(long_engine) as served:
        streams = [begin(served, LONG) for _ in range(3)]
        with torch.no_grad():
            kept = weight[70].clone()
            weight[70] = float("nan")
        for stream in streams:
            with stream, stream.makefile("rb") as lines:
                last = next(line for line in lines if b'"error"' in line)
            assert b"the model gives no numbers" in last
        error_of(served.post("/v1/completions", SHORT), 500, "model_failed")
        with torch.no_grad():
            weight[70] = kept
        assert served.complete(**SHORT)["choices"][0]["text"] == expected
        assert served.metric("cpplm_model_failures") >= 2
        assert served.http.get("/health").json() == {"status": "ok"}
        served.settle()


# ---- tools that hang --------------------------------------------------------------------------------------


SPIN = {"messages": [{"role": "user", "content": "spin"}], "temperature": 0, "max_tokens": 60}
HELLO = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0}
