"""A real server on the loopback, in a thread of its own, and what tests ask it."""

import asyncio
import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from cpplm.generate.engine import Engine
from cpplm.generate.settings import ModelSource
from cpplm.serve.app import Application, build
from cpplm.serve.async_engine import AsyncEngine
from cpplm.serve.request_builder import ServedModel
from cpplm.serve.server import UvicornServer, listen
from cpplm.serve.settings import BatchSettings, NetworkSettings, RequestSettings, ServeSettings
from cpplm.train.checkpoint.format import Stage

NAME = "tiny"
NETWORK = NetworkSettings(port=0)
PATIENCE = 30.0  # seconds after which something that should happen did not


@dataclasses.dataclass
class Served:
    """A server that runs."""

    url: str
    application: Application
    server: UvicornServer
    http: httpx2.Client

    @property
    def engine(self) -> AsyncEngine:
        return self.application.services[0].engine

    def post(self, path: str, body: Any, **options: Any) -> httpx2.Response:
        return self.http.post(path, json=body, **options)

    def complete(self, **body: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def metric(self, name: str, **labels: str) -> float:
        """One value of GET /metrics."""
        want = ",".join(f'{key}="{value}"' for key, value in labels.items())
        start = f"{name}{{{want}}} " if want else f"{name} "
        lines = self.http.get("/metrics").text.splitlines()
        return next((float(line.removeprefix(start)) for line in lines if line.startswith(start)), 0.0)

    def slow_down(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No request ends by itself before a browser has looked."""
        step = self.engine.scheduler.step

        def slow() -> list[Any]:
            time.sleep(0.005)
            return step()

        monkeypatch.setattr(self.engine.scheduler, "step", slow)

    def settle(self) -> None:
        """Wait until nothing is under way; no block of the cache is held then."""
        wait_for(lambda: not self.application.gate.num_active and self.engine.scheduler.idle)
        assert_nothing_held(self.engine)


def assert_nothing_held(driver: AsyncEngine) -> None:
    scheduler = driver.scheduler
    assert scheduler.idle
    assert (scheduler.num_running, scheduler.num_waiting) == (0, 0)
    assert scheduler.cache.num_used_blocks == 0
    assert scheduler._free_blocks == scheduler._blocks
    assert not driver._by_id
    assert not driver._scorers
    assert not driver._streams


def wait_for(happened: Callable[[], bool], patience: float = PATIENCE) -> None:
    end = time.monotonic() + patience
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@contextmanager
def serving(
    engine: Engine, *, supports_fim: bool = True, stage: Stage = "sft", network: NetworkSettings = NETWORK,
    batch: BatchSettings | None = None, requests: RequestSettings | None = None,
    adapters: Sequence[ServedModel] = (), **more: Any,
) -> Iterator[Served]:  # fmt: skip
    """The server until the block ends; then nothing may be held any more."""
    settings = ServeSettings(
        ModelSource("some/run"), network=network, batch=batch or BatchSettings(max_batch=8),
        requests=requests or RequestSettings(grace=5.0), **more,
    )  # fmt: skip
    model = ServedModel(engine, NAME, supports_fim, stage, settings.model.run, created=1_700_000_000)
    application = build(model, settings, adapters)
    bound, url = listen(network)
    server = UvicornServer(application, network, settings.requests.grace)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])), name="server")
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        with httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
            yield Served(url, application, server, http)
    finally:
        server.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert_nothing_held(application.services[0].engine)
    assert not application.services[0].engine.alive


def events(response: httpx2.Response) -> list[str]:
    """The data of a stream's records."""
    assert response.headers["content-type"].startswith("text/event-stream")
    records = response.text.split("\n\n")
    assert records.pop() == ""
    assert all(record.startswith("data: ") and "\n" not in record for record in records)
    return [record.removeprefix("data: ") for record in records]


def chunks(response: httpx2.Response) -> list[dict[str, Any]]:
    """The records of a stream that ended as it should."""
    found = events(response)
    assert found.pop() == "[DONE]"
    return [json.loads(record) for record in found]


def error_of(response: httpx2.Response, status: int, code: str) -> dict[str, Any]:
    """The error of an answer, which has OpenAI's form."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"] == code, body
    assert body["error"]["message"]
    return body["error"]
