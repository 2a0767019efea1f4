"""A server on the loopback that speaks the completions protocol for a real model, and can misbehave.

It answers `GET /v1/models` and `POST /v1/completions` with `suffix`, `echo` with `logprobs`, `stream` and
`seed`. Each fault is given out once, to the next request; `always` to all.
"""

from __future__ import annotations

import atexit
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from cpplm.evaluate.models.code_model import CodePrompt
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.evaluate.models.hf_tokens import HfTokens
from cpplm.generate.settings import SamplingSettings

Fault = Callable[[], Response]


@dataclass
class Loopback:
    """What it serves, how it lists tokens, and what was asked of it."""

    model: HfModel
    tokens: HfTokens
    says_start: bool = True
    """Whether the echo of a prompt begins with a start token."""
    parts_as_bytes: bool = False
    """Whether half characters are listed as OpenAI does."""
    context: int | None = 64
    key: str = ""
    faults: list[Fault] = field(default_factory=list)
    always: Fault | None = None
    models: Any = None
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""
    under_way: int = 0
    most_under_way: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def list_models(self, request: Request) -> Response:
        listed = {"data": [{"id": "tiny", "max_model_len": self.context}]}
        return self._reply(request, 200, listed if self.models is None else self.models)

    def complete(self, request: Request) -> Response:
        body = json.loads(request.data)
        with self.lock:
            self.asked.append(body)
            self.headers.append(dict(request.headers))
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            fault = self.faults.pop(0) if self.faults else self.always
        try:
            if fault is not None:
                return fault()
            status, answer = self._answer(body)
            if status == 200 and body.get("stream"):
                return _stream(answer["choices"][0]["text"])
            return self._reply(request, status, answer)
        finally:
            with self.lock:
                self.under_way -= 1

    def _reply(self, request: Request, status: int, answer: Any) -> Response:
        sent = request.headers.get("Authorization")
        if self.key and sent != f"Bearer {self.key}":
            status, answer = 401, {"error": {"message": f"wrong key {sent}"}}
        return Response(json.dumps(answer), status, content_type="application/json")

    def _answer(self, body: dict[str, Any]) -> tuple[int, Any]:
        prompt = body["prompt"]
        (encoded,) = self.tokens.encode([prompt])
        if self.context is not None and len(encoded.ids) + 1 + body["max_tokens"] > self.context:
            return 400, {"error": {"message": f"the prompt has {len(encoded.ids)} tokens, too many"}}
        if body.get("echo"):
            return 200, self._echo(prompt)
        sampling = SamplingSettings(
            body["max_tokens"], body["temperature"], body.get("top_k", 0), body["seed"] % 2**32
        )
        with self.lock:  # torch is quicker one by one
            ((_, (written,)),) = self.model.generate([CodePrompt(prompt, body.get("suffix"))], sampling)
        return 200, {"choices": [{"index": 0, "text": written.text, "finish_reason": "length"}]}

    def _echo(self, prompt: str) -> dict[str, Any]:
        with self.lock:
            (found,) = self.model.score([prompt])
        (encoded,) = self.tokens.encode([prompt])
        names = [self._name(self.tokens.bytes_of([id_])) for id_ in encoded.ids]
        logprobs: list[float | None] = (-found.bits * 0.6931471805599453).tolist()
        if self.says_start:
            names, logprobs = ["<|endoftext|>", *names], [None, *logprobs]
        elif logprobs:
            logprobs[0] = None
        usage = {"prompt_tokens": len(names), "completion_tokens": 1}
        listed = {"tokens": [*names, " and"], "token_logprobs": [*logprobs, -1.5]}
        return {"choices": [{"text": prompt + " and", "logprobs": listed}], "usage": usage}

    def _name(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            if self.parts_as_bytes:
                return "bytes:" + "".join(f"\\x{value:02x}" for value in data)
            return data.decode("utf-8", "replace")


def _stream(text: str) -> Response:
    records = [{"choices": [{"text": piece, "finish_reason": None}]} for piece in text]
    records.append({"choices": [{"text": "", "finish_reason": "length"}]})
    lines = [f"data: {json.dumps(record)}\n\n" for record in records] + ["data: [DONE]\n\n"]
    return Response("".join(lines), content_type="text/event-stream")


@cache
def _server() -> HTTPServer:
    """One for all tests of a process, on a free port: it takes half a second to stop."""
    server = HTTPServer(host="127.0.0.1", threaded=True)
    server.start()
    atexit.register(server.stop)
    return server


_numbers = itertools.count()


def serve(loopback: Loopback) -> Loopback:
    """Answer from now on as this one, under a path of its own: a late request of a test before gets 404."""
    server = _server()
    server.clear()
    root = f"/{next(_numbers)}/v1"
    server.expect_request(f"{root}/models").respond_with_handler(loopback.list_models)
    server.expect_request(f"{root}/completions").respond_with_handler(loopback.complete)
    loopback.url = server.url_for(root)
    return loopback


# ---- faults -----------------------------------------------------------------------------------------------


def status(code: int, data: bytes = b"", kind: str = "application/json", **headers: str) -> Fault:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: Response(data, code, named, content_type=kind)


def says(data: bytes, kind: str = "application/json", **headers: str) -> Fault:
    return status(200, data, kind, **headers)


def stall(seconds: float) -> Fault:
    def fault() -> Response:
        time.sleep(seconds)
        return Response(b"")

    return fault


def drip(seconds: float) -> Fault:
    """A byte now and then: never silent, never done."""

    def bytes_() -> Iterator[bytes]:
        for _ in range(10_000):
            yield b" "
            time.sleep(seconds)

    return lambda: Response(bytes_(), headers={"Content-Length": "1000000"})


def hang_up() -> Response:
    """Close the connection in the middle of an answer."""
    return Response(iter([b'{"choices": ']), headers={"Content-Length": "1000"})


def flood() -> Response:
    """An answer without end."""
    return Response(
        iter([b'{"choices": [{"text": "', *[b"x" * 65536] * 4096]), content_type="application/json"
    )
