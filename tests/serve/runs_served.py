"""A server of runs on the loopback, and what is heard of its events."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from cpplm.serve.runs_app import RunsApplication
from cpplm.serve.server import UvicornServer, listen
from cpplm.serve.settings import NetworkSettings
from cpplm.train.report.watch import RunWatcher
from tests.serve.served import PATIENCE, wait_for


class Served:
    """A server that runs."""

    def __init__(self, url: str, application: RunsApplication, server: UvicornServer) -> None:
        self.url, self.application, self.server = url, application, server
        self.http = httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False)

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: row for row in self.http.get("/api/runs").json()}

    @contextmanager
    def events(self, *chosen: str, last: str = "") -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
        """Ids and data of the events of a stream."""
        headers = {"Last-Event-ID": last} if last else {}
        query = [("run", each) for each in chosen]
        with self.http.stream("GET", "/api/events", params=query, headers=headers) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            yield self._events(response.iter_lines())

    @staticmethod
    def _events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        name = ""
        for line in lines:
            if line.startswith("id: "):
                name = line.removeprefix("id: ")
            elif line.startswith("data: {"):
                yield name, json.loads(line.removeprefix("data: "))


@contextmanager
def serving_runs(folder: Path, network: NetworkSettings | None = None) -> Iterator[Served]:
    network = network or NetworkSettings(port=0)
    application = RunsApplication(RunWatcher(folder), network)
    bound, url = listen(network)
    server = UvicornServer(application, network, 0.0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([bound])), name="server")
    thread.start()
    served = Served(url, application, server)
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        yield served
    finally:
        server.stop()
        thread.join(PATIENCE)
        served.http.close()
        assert not thread.is_alive()
        assert application.num_streams == 0
