"""`cpplm serve` as a process of its own: how it begins, how it stops, and files that change under it."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from cpplm.cli.serve import serve as command
from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.settings import ModelSource
from cpplm.serve.settings import NetworkSettings, ServeSettings
from tests.generate.talker import write_run
from tests.serve.served import PATIENCE, chunks, error_of, events, wait_for
from tests.serve.test_faults import SPIN

LONG = {"prompt": "int main() {", "max_tokens": 3000, "temperature": 0, "stream": True}
ENDLESS = {**LONG, "max_tokens": 12_000}


@pytest.fixture(scope="module")
def run(long_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "run"
    return write_run(folder, long_engine, {"fim": {"fim_rate": 0.5}})


@contextmanager
def serve(run: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
    """The command, once it takes connections; killed at the end if it still runs."""
    command = [sys.executable, "-m", "cpplm.cli.main", "serve", "--run", str(run), "--port", "0",
               "--device_type", "cpu", "--precision", "fp32", *flags]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), (url, process.communicate())
            with httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False) as http:
                yield process, http
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=PATIENCE)
    return process.returncode, stdout, stderr


@pytest.mark.slow
def test_sigterm_under_load(run: Path) -> None:
    """Who is being answered gets all of it, who comes new is told to go elsewhere, and it ends with 0."""
    with serve(run, "--grace", "600", "--json") as (process, http), ThreadPoolExecutor(8) as pool:
        assert http.get("/v1/models").json()["data"][0]["id"] == f"{run.parent.name}/run:1"
        streams = [pool.submit(http.post, "/v1/completions", json=LONG) for _ in range(6)]
        wait_for(lambda: b"cpplm_num_samples_running 6.0" in http.get("/metrics").content)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: http.get("/health").status_code == 503)
        assert http.get("/health").json() == {"status": "stopping"}
        answer = http.post("/v1/completions", json=LONG)
        error_of(answer, 503, "stopping")
        assert answer.headers["retry-after"] == "5"
        texts = set()
        for stream in streams:
            found = chunks(stream.result())
            texts.add("".join(each["choices"][0]["text"] for each in found))
            assert found[-1]["choices"][0]["finish_reason"] in {"length", "stop"}
        assert len(texts) == 1
        code, stdout, stderr = ended(process)
        assert code == 0, stderr
        assert "stopping: 6 requests" in stderr
        assert "Traceback" not in stderr
        assert json.loads(stdout.splitlines()[-1])["generated_tokens"] >= 6


@pytest.mark.slow
def test_what_takes_too_long_is_cut(run: Path) -> None:
    with serve(run, "--grace", "0.5") as (process, http), ThreadPoolExecutor(8) as pool:
        streams = [pool.submit(http.post, "/v1/completions", json=ENDLESS) for _ in range(3)]
        whole = pool.submit(http.post, "/v1/completions", json={**ENDLESS, "stream": False})
        wait_for(lambda: b"cpplm_num_samples_running 4.0" in http.get("/metrics").content)
        process.send_signal(signal.SIGTERM)
        for stream in streams:
            last = json.loads(events(stream.result()).pop())
            assert last["error"]["code"] == "stopping"
        error_of(whole.result(), 503, "stopping")
        assert ended(process)[0] == 0


@pytest.mark.slow
def test_a_model_file_swapped_under_the_server(run: Path, tmp_path: Path, long_engine: Engine) -> None:
    """The model is in memory: what becomes of its files changes no answer."""
    own = write_run(tmp_path / "run", long_engine, {"fim": {"fim_rate": 0.5}})
    body = {"prompt": "int main() {", "max_tokens": 40, "temperature": 0}

    def text(http: httpx2.Client) -> Any:
        answer = http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    with serve(own) as (process, http):
        before = text(http)
        for file in sorted(own.rglob("*")):
            if file.is_file():
                file.write_bytes(file.read_bytes()[::-1])
        assert text(http) == before
        shutil.rmtree(own)
        assert text(http) == before
        process.terminate()
        assert ended(process)[0] == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"network": NetworkSettings(port=0, api_key_file=Path("none"))}, "cannot read --api_key_file"),
        ({"network": NetworkSettings(port=0), "tools": Path("no such folder")}, "no such folder"),
    ],
)
def test_what_it_cannot_begin_with(run: Path, flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        command(ServeSettings(ModelSource(str(run), device_type="cpu"), **flags))


def test_a_port_that_is_taken(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        network = NetworkSettings(port=taken.getsockname()[1])
        with pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1 port .* --port"):
            command(ServeSettings(ModelSource(str(run)), network=network))


@pytest.mark.slow
def test_a_tool_that_hangs_does_not_keep_it(talking: Engine, tmp_path: Path) -> None:
    """Two signals end it, long before the tool's own time is up."""
    own, root = write_run(tmp_path / "run", talking), tmp_path / "project"
    root.mkdir()
    for folder in (root, *root.parents):  # the sandbox reads as somebody else
        if folder.is_relative_to(tempfile.gettempdir()) and not folder.stat().st_mode & 0o005:
            folder.chmod(folder.stat().st_mode | 0o055)
    flags = ("--tools", str(root), "--tool_seconds", "600", "--grace", "600")
    with serve(own, *flags) as (process, http), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(http.post, "/v1/chat/completions", json=SPIN, timeout=120)
        wait_for(lambda: programs_of(process) > 0)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: http.get("/health").status_code == 503)
        process.send_signal(signal.SIGTERM)
        assert ended(process)[0] == 0
        with contextlib.suppress(httpx2.HTTPError):
            assert answer.result().status_code >= 500


def programs_of(process: subprocess.Popen[str]) -> int:
    return len(psutil.Process(process.pid).children(recursive=True))
