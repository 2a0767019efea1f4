"""The page's routes: its files with their policy, and compilations in the real sandbox."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cpplm.cpp.keywords import KEYWORDS
from cpplm.generate.engine import Engine
from cpplm.generate.settings import ModelSource
from cpplm.sandbox.limits import ResourceLimits
from cpplm.serve import page_compile, page_routes
from cpplm.serve.app import build
from cpplm.serve.page_compile import CompileResponse
from cpplm.serve.request_builder import ServedModel
from cpplm.serve.settings import PageSettings, ServeSettings

FOLDER = Path(page_routes.__file__).with_name("page")
FILES = sorted(FOLDER.iterdir())
HELLO = '#include <cstdio>\nint main() { std::puts("hello"); }\n'


@pytest.fixture(scope="module")
def client_of(engine: Engine) -> Callable[..., TestClient]:
    """A client of a server with these settings of the page; the model is not running."""

    def make(**settings: Any) -> TestClient:
        page = PageSettings(**settings)
        application = build(
            ServedModel(engine, "tiny", True, "base", "run", 0),
            ServeSettings(ModelSource("run"), page=page),
        )
        return TestClient(application.asgi, base_url="http://127.0.0.1")

    return make


@pytest.fixture(scope="module")
def client(client_of: Callable[..., TestClient]) -> TestClient:
    return client_of()


def compiled(client: TestClient, source: str, **more: Any) -> dict[str, Any]:
    answer = client.post("/api/compile", json={"source": source, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


# ---- files ------------------------------------------------------------------------------------------------


def test_the_page_and_all_that_it_asks_for_are_served(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    asked = set(re.findall(r'(?:src|href)="page/([^"]+)"', page.text))
    for path in FILES:
        asked |= set(re.findall(r'from "\./([^"]+)"', path.read_text()) if path.suffix == ".js" else [])
    assert asked == {path.name for path in FILES} - {"index.html"}
    types = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    for name in asked:
        answer = client.get(f"/page/{name}")
        assert answer.content == (FOLDER / name).read_bytes()
        assert answer.headers["content-type"] == types[name.rpartition(".")[2]]


def test_the_policy_lets_nothing_in_but_the_page_itself(client: TestClient) -> None:
    for path in ("/", "/page/main.js", "/page/nothing.js"):
        headers = client.get(path).headers
        policy = dict(
            directive.partition(" ")[::2] for directive in headers["content-security-policy"].split("; ")
        )
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert not any("unsafe" in sources or "*" in sources for sources in policy.values())
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_hold_what_the_policy_allows(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    assert max(map(len, text.splitlines())) <= 300 or path.suffix == ".svg"
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text) == []
    if path.suffix == ".html":
        assert re.findall(r"<script(?! (?:type=\"module\" )?src=)|<style|\son\w+=|\sstyle=", text) == []
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    assert re.findall(forbidden, text) == []


def test_a_file_that_the_browser_has_is_not_sent_again(client: TestClient) -> None:
    tag = client.get("/page/main.js").headers["etag"]
    again = client.get("/page/main.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert client.get("/page/main.js", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "name", ["nothing.js", "../page_routes.py", "%2e%2e%2fpage_routes.py", "..%5cpage_routes.py", "%00"]
)
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


def test_the_keywords_are_those_of_the_corpus() -> None:
    (listed,) = re.findall(r"KEYWORDS = new Set\(`(.*?)`", (FOLDER / "cpp.js").read_text(), re.DOTALL)
    assert set(listed.split()) == KEYWORDS


# ---- compiling --------------------------------------------------------------------------------------------


def test_a_program_compiles_and_runs(client: TestClient) -> None:
    assert compiled(client, HELLO) == {"ok": True, "diagnostics": [], "output": "", "run": None}
    run = compiled(client, HELLO, run=True)["run"]
    assert run.pop("seconds") < 5
    assert run == {"reason": "exit", "exit_code": 0, "signal": None, "stdout": "hello\n", "stderr": ""}


def test_errors_and_warnings_at_their_places(client: TestClient) -> None:
    source = "int f() {\n    int unused;\n    return missing;\n}\n"
    answer = compiled(client, source)
    assert not answer["ok"]
    places = [(each["line"], each["column"], each["severity"]) for each in answer["diagnostics"]]
    assert sorted(places) == [(2, 9, "warning"), (3, 12, "error")]
    assert "missing" in answer["output"]


def test_a_complaint_about_a_header_stands_where_the_file_asks_for_it(client: TestClient) -> None:
    source = (
        "#include <algorithm>\n#include <list>\nvoid f(std::list<int>& l) {\nstd::sort(l.begin(), l.end()); }"
    )
    errors = [each for each in compiled(client, source)["diagnostics"] if each["severity"] == "error"]
    assert errors
    assert {each["line"] for each in errors} == {4}


def test_nothing_of_the_host_comes_in(client: TestClient) -> None:
    answer = compiled(client, 'asm(".incbin \\"/etc/passwd\\"");\n')
    assert not answer["ok"]
    assert not compiled(client, '#include "/etc/passwd"\n')["ok"]
    source = '#include <cstdio>\nint main() { return std::fopen("/etc/passwd", "r") != nullptr; }\n'
    assert compiled(client, source, run=True)["run"]["exit_code"] == 0


def test_programs_that_do_not_end_well(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_compile, "RUN_LIMITS", ResourceLimits(wall_seconds=1))
    source = '#include <cstdio>\nint main() {{ std::puts("begun"); std::fflush(stdout); {} }}\n'
    run = compiled(client, source.format("__builtin_trap();"), run=True)["run"]
    assert (run["reason"], run["stdout"]) == ("signal", "begun\n")
    run = compiled(client, source.format("for (;;) ;"), run=True)["run"]
    assert (run["reason"], run["exit_code"], run["stdout"]) == ("timeout", None, "begun\n")


# ---- limits -----------------------------------------------------------------------------------------------


def refused(client: TestClient, body: dict[str, Any]) -> tuple[int, str, str]:
    answer = client.post("/api/compile", json=body)
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return answer.status_code, error["code"], error["message"]


def test_large_programs_are_refused(client_of: Callable[..., TestClient]) -> None:
    client = client_of(max_source_bytes=10)
    status, code, message = refused(client, {"source": "é" * 6})
    assert (status, code, message) == (413, "too_large", "source has more than 10 bytes")
    assert refused(client, {"source": "", "stdin": "x" * 65_537})[:2] == (413, "too_large")
    assert compiled(client, "é" * 5)["ok"] is False


def test_so_many_at_a_time(client_of: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(compiles_at_once=1)
    inside, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any, **more: Any) -> CompileResponse:
        inside.set()
        assert go_on.wait(30)
        return page_compile.compile_source(*arguments, **more)

    monkeypatch.setattr(page_routes, "compile_source", slow)
    first: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: first.append(compiled(client, HELLO)))
    thread.start()
    assert inside.wait(30)
    answer = client.post("/api/compile", json={"source": HELLO})
    go_on.set()
    thread.join(60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "busy")
    assert int(answer.headers["retry-after"]) >= 1
    assert first[0]["ok"]
    assert compiled(client, HELLO)["ok"]


def test_the_place_of_one_that_failed_is_free_again(
    client_of: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(compiles_at_once=1)
    assert compiled(client, HELLO)["ok"]  # finds the sandbox, which is broken from here on
    for _ in range(3):
        monkeypatch.setattr("cpplm.sandbox.sandbox._START", "raise SystemExit")
        assert refused(client, {"source": HELLO})[:2] == (503, "sandbox_failed")
        monkeypatch.undo()
    assert compiled(client, HELLO)["ok"]


def test_nothing_is_compiled_without_a_sandbox(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cpplm.sandbox.sandbox.BACKENDS", ())
    monkeypatch.setattr(page_routes, "compile_source", None)
    status, code, message = refused(client, {"source": HELLO, "run": True})
    assert (status, code) == (503, "no_sandbox")
    assert "cpplm doctor" in message
    assert "unsafe" not in message


def test_no_compiler(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_compile, "_COMPILER", ("no-such-compiler",))
    assert refused(client, {"source": HELLO})[:2] == (503, "no_compiler")


def test_compiling_can_be_switched_off(client_of: Callable[..., TestClient]) -> None:
    assert refused(client_of(compiles_at_once=0), {"source": HELLO})[:2] == (503, "compile_off")


@pytest.mark.parametrize(
    "body", [{}, {"source": 3}, {"source": "", "unsafe": True}, [], "x", {"source": None}]
)
def test_other_requests_are_refused(client: TestClient, body: Any) -> None:
    assert client.post("/api/compile", json=body).status_code == 400
