"""A server on the loopback that speaks the completions protocol for a real model, and can misbehave.

It answers `GET /v1/models` and `POST /v1/completions` with `suffix`, `echo` with `logprobs`, `stream` and
`seed`. Each fault is given out once, to the next request; `always` to all.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cpplm.evaluate.models.code_model import CodePrompt
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.evaluate.models.hf_tokens import HfTokens
from cpplm.generate.settings import SamplingSettings

Handler = BaseHTTPRequestHandler
Fault = Callable[[Handler], None]


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
    echoes: bool = True
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

    # ---- answers --------------------------------------------------------------------------------------

    def answer(self, body: dict[str, Any]) -> tuple[int, Any]:
        prompt = body["prompt"]
        (encoded,) = self.tokens.encode([prompt])
        if self.context is not None and len(encoded.ids) + 1 + body["max_tokens"] > self.context:
            return 400, {"error": {"message": f"the prompt has {len(encoded.ids)} tokens, too many"}}
        if body.get("echo"):
            return 200, self._echo(prompt) if self.echoes else {"choices": [{"text": "x", "logprobs": None}]}
        request = CodePrompt(prompt, body.get("suffix"))
        sampling = SamplingSettings(
            body["max_tokens"], body["temperature"], body.get("top_k", 0), body["seed"] % 2**32
        )
        with self.lock:  # torch is quicker one by one
            ((_, (written,)),) = self.model.generate([request], sampling)
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


class _Handler(Handler):
    protocol_version = "HTTP/1.1"
    loopback: Loopback

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""

    def do_GET(self) -> None:  # noqa: N802
        listed = {"data": [{"id": "tiny", "max_model_len": self.loopback.context}]}
        self._reply(200, listed if self.loopback.models is None else self.loopback.models)

    def do_POST(self) -> None:  # noqa: N802
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.loopback.asked.append(body)
        self.loopback.headers.append(dict(self.headers))
        with self.loopback.lock:
            self.loopback.under_way += 1
            self.loopback.most_under_way = max(self.loopback.most_under_way, self.loopback.under_way)
        try:
            fault = self.loopback.faults.pop(0) if self.loopback.faults else self.loopback.always
            if fault is not None:
                fault(self)
            else:
                status, answer = self.loopback.answer(body)
                if status == 200 and body.get("stream"):
                    self._stream(answer["choices"][0]["text"])
                else:
                    self._reply(status, answer)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            with self.loopback.lock:
                self.loopback.under_way -= 1

    def _reply(self, status: int, answer: Any) -> None:
        if self.loopback.key and self.headers.get("Authorization") != f"Bearer {self.loopback.key}":
            status, answer = 401, {"error": {"message": f"wrong key {self.headers.get('Authorization')}"}}
        send(self, status, json.dumps(answer).encode())

    def _stream(self, text: str) -> None:
        records = [{"choices": [{"text": piece, "finish_reason": None}]} for piece in text]
        records.append({"choices": [{"text": "", "finish_reason": "length"}]})
        lines = [f"data: {json.dumps(record)}\n\n" for record in records] + ["data: [DONE]\n\n"]
        send(self, 200, "".join(lines).encode(), kind="text/event-stream")


@contextmanager
def serving(loopback: Loopback) -> Iterator[Loopback]:
    """The server, on a free port, until the block ends."""
    handler = type("_Bound", (_Handler,), {"loopback": loopback})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    loopback.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield loopback
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# ---- faults -----------------------------------------------------------------------------------------------


def send(handler: Handler, status: int, data: bytes, kind: str = "application/json", **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


def status(code: int, data: bytes = b"", **headers: str) -> Fault:
    return lambda handler: send(handler, code, data, **headers)


def says(data: bytes, kind: str = "application/json", **headers: str) -> Fault:
    return lambda handler: send(handler, 200, data, kind, **headers)


def stall(seconds: float) -> Fault:
    def fault(handler: Handler) -> None:
        time.sleep(seconds)
        handler.close_connection = True

    return fault


def drip(seconds: float) -> Fault:
    """A byte now and then: never silent, never done."""

    def fault(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        for _ in range(10_000):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(seconds)

    return fault


def hang_up(handler: Handler) -> None:
    """Close the connection in the middle of an answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"choices": ')
    handler.close_connection = True


def flood(handler: Handler) -> None:
    """An answer without end."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    handler.close_connection = True
    handler.wfile.write(b'{"choices": [{"text": "')
    for _ in range(4096):
        handler.wfile.write(b"x" * 65536)


def counted(reasons: list[str]) -> dict[str, int]:
    return dict(Counter(reasons))
