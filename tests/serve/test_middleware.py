"""Who may come, how much, how fast, and what everybody else is told."""

import dataclasses
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.serve.server import listen
from cpplm.serve.settings import NetworkSettings
from tests.serve.served import NETWORK, Served, error_of, serving

KEY, OTHER = "sk-one-secret", "sk-two-secret"


@pytest.fixture(scope="module")
def locked(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"{KEY}\n\n  {OTHER}  \n", encoding="utf-8")
    network = NetworkSettings(
        port=0, api_key_file=keys, cors_origins=("https://editor.example",), host_names=("models.example",),
        max_request_bytes=10_000, idle_timeout=1.0,
    )  # fmt: skip
    with serving(engine, network=network) as found:
        yield found


def bearer(key: str) -> dict[str, bytes]:
    return {"Authorization": b"Bearer " + key.encode()}


# ---- keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/openapi.json", "/nowhere"])
def test_without_a_key_there_is_nothing(locked: Served, path: str) -> None:
    for headers in (
        {},
        bearer("wrong"),
        bearer("x" * 9999),
        {"Authorization": KEY},
        {"Authorization": f"Basic {KEY}"},
    ):
        answer = locked.http.get(path, headers=headers)  # type: ignore[arg-type]
        error_of(answer, 401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert KEY not in answer.text
    for body in ({"prompt": "x"}, "not json"):
        error_of(locked.post("/v1/completions", body), 401, "invalid_api_key")


def test_each_key_opens(locked: Served) -> None:
    for key in (KEY, OTHER):
        assert locked.http.get("/v1/models", headers=bearer(key)).status_code == 200
        body = {"prompt": "x", "max_tokens": 2}
        assert locked.post("/v1/completions", body, headers=bearer(key)).status_code == 200


def test_health_and_the_page_need_no_key(locked: Served) -> None:
    assert locked.http.get("/health").json() == {"status": "ok"}
    page = locked.http.get("/")
    assert page.status_code == 200
    assert "text/html" in page.headers["content-type"]
    error_of(locked.post("/api/compile", {"source": "int x;"}), 401, "invalid_api_key")


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CPPLM_TEST_KEY", f" {KEY} ")
    assert NetworkSettings(api_key_env="CPPLM_TEST_KEY").keys() == (KEY.encode(),)
    with pytest.raises(UserError, match="NO_SUCH_VARIABLE"):
        NetworkSettings(api_key_env="NO_SUCH_VARIABLE").keys()
    empty = tmp_path / "keys"
    with pytest.raises(UserError, match="cannot read"):
        NetworkSettings(api_key_file=empty).keys()
    empty.write_text("\n \n")
    with pytest.raises(UserError, match="holds no key"):
        NetworkSettings(api_key_file=empty).keys()
    assert NetworkSettings().keys() == ()


@pytest.mark.parametrize("key", ["sk-é", "sk-\u200b1", "ключ", "sk-\x01", "a\tb"])
def test_keys_that_no_header_carries_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    monkeypatch.setenv("CPPLM_TEST_KEY", key)
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n{key}\n", encoding="utf-8")
    for settings, where in (
        (NetworkSettings(api_key_env="CPPLM_TEST_KEY"), "CPPLM_TEST_KEY"),
        (NetworkSettings(api_key_file=file), "line 2"),
    ):
        with pytest.raises(UserError, match=where) as refused:
            settings.keys()
        assert key not in str(refused.value)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_files_of_any_editor_hold_keys(tmp_path: Path, ending: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(f"\ufeff{KEY}{ending}{OTHER}{ending}".encode())
    assert NetworkSettings(api_key_file=file).keys() == (KEY.encode(), OTHER.encode())


# ---- other people's pages ---------------------------------------------------------------------------------


def test_pages_of_other_origins(served: Served, locked: Served) -> None:
    """A browser asks first; only the origins that were named hear that they may."""
    preflight = {"Origin": "https://editor.example", "Access-Control-Request-Method": "POST",
                 "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    allowed = locked.http.options("/v1/completions", headers=preflight)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://editor.example"
    refused = locked.http.options("/v1/completions", headers={**preflight, "Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in refused.headers
    closed = served.http.options("/v1/completions", headers=preflight)
    assert closed.status_code == 405
    assert "access-control-allow-origin" not in closed.headers
    answer = served.post(
        "/v1/completions", {"prompt": "x", "max_tokens": 1}, headers={"Origin": "https://evil.example"}
    )
    assert "access-control-allow-origin" not in answer.headers


def test_a_form_of_another_page_is_no_request(served: Served) -> None:
    """Browsers send these without asking first."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        answer = served.http.post(
            "/v1/completions", content=b'{"prompt": "x"}', headers={"Content-Type": kind}
        )
        assert answer.status_code == 400


def test_names_that_point_here(served: Served, locked: Served) -> None:
    """A page of anybody's may point its own name at the loopback."""
    error_of(served.http.get("/health", headers={"Host": "evil.example"}), 403, "wrong_host")
    for host in ("localhost:1", "127.0.0.1", "[::1]:80", "LOCALHOST"):
        assert served.http.get("/health", headers={"Host": host}).status_code == 200
    assert locked.http.get("/health", headers={"Host": "models.example:443"}).status_code == 200


# ---- size and time ----------------------------------------------------------------------------------------


def test_too_long_a_body(locked: Served) -> None:
    most = 10_000
    body = json.dumps({"prompt": "x", "max_tokens": 1}).encode()
    fits = body + b" " * (most - len(body))
    kind = {"Content-Type": "application/json", **bearer(KEY)}
    assert locked.http.post("/v1/completions", content=fits, headers=kind).status_code == 200
    for content in (fits + b" ", iter([fits, b" "]), iter([b"x" * 65536] * 50)):
        answer = locked.http.post("/v1/completions", content=content, headers=kind)
        assert error_of(answer, 413, "request_too_large")["message"].startswith(
            "the body has more than 10,000"
        )
    assert locked.http.get("/health").status_code == 200


def talk(url: str, data: bytes, patience: float = 10.0) -> bytes:
    """Send raw bytes; what comes until the server closes the connection."""
    address = httpx2.URL(url)
    assert address.port is not None
    with socket.create_connection((address.host, address.port), timeout=patience) as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def test_clients_that_never_finish_a_request_or_begin_none(locked: Served) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
    with ThreadPoolExecutor(1) as pool:
        silent = pool.submit(talk, locked.url, b"")
        begin = time.monotonic()
        answer = talk(locked.url, f"{head}Content-Length: 100\r\n\r\n{{".encode())
        assert silent.result() == b""
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"request_timeout"' in answer
    assert 0.9 < time.monotonic() - begin < 8


def test_what_is_no_http(served: Served) -> None:
    assert talk(served.url, b"\x16\x03\x01\x02\x00 hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    served.settle()


# ---- malformed requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("application/json", b"", "the body is empty"),
        ("application/json", b'{"prompt": "x",}', "the body is not JSON: "),
        ("application/json", b'{"prompt": x}', "Expecting value at character 12"),
        ("application/json", b"[1]", "the body is JSON, but not an object"),
        ("application/json", b"null", ""),
        ("application/json", b'{"prompt": "\xff"}', "the body is not UTF-8"),
        ("application/json", b"\xff\xfe{}", ""),
        ("application/json", b"[" * 100_000, ""),
        ("application/json", b'{"a":' * 50_000, ""),
        ("application/json", b'{"max_tokens": ' + b"9" * 5000 + b"}", ""),
        ("text/plain", b'{"prompt": "x"}', "the body is not said to be JSON"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_is_said_of_a_body_without_fields(served: Served, kind: str, body: bytes, said: str) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/fim/completions", "/infill"):
        answer = served.http.post(path, content=body, headers={"Content-Type": kind})
        message = error_of(answer, 400, "invalid_json")["message"]
        assert said in message
        assert message.endswith(": send a JSON object with the header Content-Type: application/json")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999", b"[1]"])
def test_what_is_no_number(served: Served, number: bytes) -> None:
    body, headers = b'{"prompt": "x", "temperature": %s}' % number, {"Content-Type": "application/json"}
    answer = served.http.post("/v1/completions", content=body, headers=headers)
    assert error_of(answer, 400, "invalid_value")["param"] == "temperature"


@pytest.mark.parametrize("text", ["\ud800", "\udfff x", "a\u0000b", "\ufffe", "\U0010ffff"])
def test_odd_characters(served: Served, text: str) -> None:
    """Half a surrogate pair is no text; anything else is."""
    body = json.dumps({"prompt": text, "max_tokens": 2, "echo": True}).encode()
    answer = served.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    half = any(0xD800 <= ord(character) < 0xE000 for character in text)
    assert answer.status_code == (400 if half else 200), answer.text
    if not half:
        assert answer.json()["choices"][0]["text"].startswith(text)


def test_paths_and_methods(served: Served) -> None:
    error_of(served.http.get("/v1/nothing"), 404, "not_found")
    answer = served.http.get("/v1/completions")
    error_of(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models"])
def test_only_the_head_is_asked_for(served: Served, path: str) -> None:
    """As monitors and load balancers do; nothing but the head comes."""
    whole, head = served.http.get(path), served.http.head(path)
    assert head.status_code == 200
    assert head.headers["content-type"] == whole.headers["content-type"]
    request = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert talk(served.url, request.encode()).endswith(b"\r\n\r\n")
    assert served.http.head("/v1/completions").status_code == 405


# ---- listening --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("0.0.0.0", "localhost"), ("0", "localhost"), ("::", "localhost"), ("127.0.0.1", "127.0.0.1"),
        ("::1", "[::1]"), ("localhost", "localhost"),
    ],
)  # fmt: skip
def test_the_url_can_be_opened(host: str, shown: str) -> None:
    if ":" in host and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    bound, url = listen(dataclasses.replace(NETWORK, host=host))
    with bound:
        bound.listen()
        assert url == f"http://{shown}:{bound.getsockname()[1]}"
        with socket.create_connection((httpx2.URL(url).host, bound.getsockname()[1]), timeout=5):
            pass


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"port": -1}, "--port -1"), ({"port": 70_000}, "--port 70000"),
        ({"max_connections": 0}, "--max_connections 0"), ({"max_request_bytes": 0}, "--max_request_bytes 0"),
        ({"idle_timeout": 0}, "--idle_timeout 0"), ({"host": ""}, "--host is empty"),
        ({"host": "0.0.0.0", "host_names": ("x",)}, "--host_names"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        NetworkSettings(**values)


def test_figures(served: Served) -> None:
    before = served.metric("cpplm_generation_tokens_total")
    served.complete(prompt="int x", max_tokens=9, temperature=0)  # it never ends by itself then
    served.complete(prompt="int x", max_tokens=3, temperature=0, stream=False, n=2)
    served.settle()
    assert served.metric("cpplm_generation_tokens_total") >= before + 15
    assert served.metric("cpplm_http_requests_total", path="/v1/completions", status="200") >= 2
    assert served.metric("cpplm_cache_blocks_used") == 0
    assert served.metric("cpplm_cache_bytes") > 0
    assert served.metric("cpplm_model_up") == 1
    assert served.metric("cpplm_http_requests_active") == 1  # the one that asks
    assert served.metric("cpplm_time_to_first_token_seconds_count") >= 2
    assert served.metric("process_resident_memory_bytes") > 1e6
