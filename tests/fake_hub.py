"""A Hugging Face hub on this machine: what the library asks of it for models and data sets, without Xet.

Files above `LARGE` bytes go by Git LFS, to another path than the hub's own. Commits are kept in memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

LARGE = 1000
TOKEN, READ_TOKEN = "hf_ofTheTestWhichMayWrite", "hf_ofTheTestWhichMayRead"
API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(\w+)(?:/([^/]+))?)?")
RESOLVE = re.compile(r"/(?:(datasets)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """Commits by their hash, each with all of its files, and what branches point to."""

    private: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Let a branch have just these files; the hash of the commit."""
        content = "".join(f"{name}\0{hashlib.sha1(data).hexdigest()}" for name, data in sorted(files.items()))
        commit = hashlib.sha1(f"{len(self.commits)} {content}".encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.branches[branch] = commit
        return commit

    def files(self, revision: str = "main") -> dict[str, bytes] | None:
        """The files of a branch or commit; None if there is none of that name."""
        return self.commits.get(self.branches.get(revision, revision))


class FakeHub:
    """Repositories by "models/OWNER/NAME" or "datasets/OWNER/NAME"."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.faults: list[tuple[str, Callable[[_Handler], None]]] = []
        """Requests whose "METHOD path" has this in it fail so, each entry once."""
        self.address = ""

    def add(self, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        """Commit files to a repository, which is made if it is not there; the hash of the commit."""
        return self.repositories.setdefault(name, Repository()).commit(files, branch)

    def add_folder(self, name: str, folder: Path) -> str:
        """`add` for the files of a folder."""
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return self.add(name, {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths})

    def fail(self, request: str, status: int, times: int = 99, **headers: str) -> None:
        """Answer requests with an error."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"error": f"because of {TOKEN}"}
        self.faults += [(request, lambda handler: handler.answer(body, status, headers))] * times

    def stall(self, request: str, times: int = 99) -> None:
        """Keep the connection for a while and say nothing."""

        def wait(handler: _Handler) -> None:
            self._closed.wait(3)
            handler.close_connection = True

        self.faults += [(request, wait)] * times

    def cut(self, request: str, *, announced: bool, times: int = 99) -> None:
        """Send half of a file, with the size of all of it (`announced`) or of that half."""

        def half(handler: _Handler) -> None:
            data = handler.file() or b""
            handler.send_response(200)
            handler.send_header("Content-Length", str(len(data) if announced else len(data) // 2))
            handler.end_headers()
            handler.wfile.write(data[: len(data) // 2])
            handler.close_connection = True

        self.faults += [(request, half)] * times

    @property
    def storage(self) -> str:
        """The address of large files: to the library another host, which must not see the token."""
        return self.address.replace("127.0.0.1", "localhost")

    @contextmanager
    def open(self) -> Iterator[None]:
        """Answer on the loopback."""
        self._closed = threading.Event()
        handler = type("Handler", (_Handler,), {"hub": self})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        self.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield
        finally:
            self._closed.set()
            server.shutdown()
            server.server_close()

    def use(self, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
        """Let the library, which reads its environment when it is imported, lead here."""
        for name, value in self.environment(home).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "ENDPOINT", self.address)
        url = self.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)

    def environment(self, home: Path) -> dict[str, str]:
        """Environment by which a process finds the hub, as one who may write."""
        return {
            "HF_ENDPOINT": self.address,
            "HF_HOME": str(home),
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
        }


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def missing(self, code: str) -> None:
        """No such thing; of repositories that are not to be seen, too."""
        self.answer({"error": code}, 401 if code == "RepoNotFound" else 404, {"X-Error-Code": code})

    def do_GET(self) -> None:
        self._respond()

    do_HEAD = do_POST = do_PUT = do_GET

    def _respond(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.path, _, self.query = self.path.partition("?")
        request = f"{self.command} {urllib.parse.unquote(self.path)}"
        self.hub.requests.append(request)
        self.token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        for fault in self.hub.faults:
            if fault[0] in request:
                self.hub.faults.remove(fault)
                fault[1](self)
                return
        if self.path.startswith("/large/"):
            self._large()
        elif self.path == "/api/whoami-v2":
            known = self.token in (TOKEN, READ_TOKEN)
            self.answer({"name": "me", "type": "user"} if known else {"error": "who?"}, 200 if known else 401)
        elif self.path == "/api/repos/create":
            self._create()
        elif self.path == "/api/validate-yaml":
            self.answer({})
        elif self.path.endswith(".git/info/lfs/objects/batch"):
            self._batch()
        elif match := API.fullmatch(self.path):
            self._api(*match.groups())
        elif match := RESOLVE.fullmatch(self.path):
            self._resolve(match)
        else:
            self.missing("EntryNotFound")

    def _repository(self, name: str) -> Repository | None:
        repository = self.hub.repositories.get(name)
        hidden = repository is None or (repository.private and self.token not in (TOKEN, READ_TOKEN))
        return None if hidden else repository

    def _create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked.get('type', 'model')}s/{asked['organization']}/{asked['name']}"
        url = f"{self.hub.address}/{name.removeprefix('models/')}"
        if self.token != TOKEN or asked["organization"] != "me":
            self.answer({"error": "no right"}, 403)
        elif name in self.hub.repositories:
            self.answer({"url": url}, 409)
        else:
            self.hub.repositories[name] = Repository(private=asked.get("visibility") == "private")
            self.hub.add(name, {".gitattributes": b""})
            self.answer({"url": url})

    def _batch(self) -> None:
        objects = [
            {**entry, "actions": {"upload": {"href": f"{self.hub.storage}/large/{entry['oid']}"}}}
            for entry in json.loads(self.body)["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def _large(self) -> None:
        oid = self.path.rpartition("/")[2]
        assert not self.token
        if self.command == "PUT":
            assert hashlib.sha256(self.body).hexdigest() == oid
            self.hub.large[oid] = self.body
        self.answer(self.hub.large[oid] if self.command == "GET" else b"")

    def _api(self, kind: str, name: str, what: str | None, revision: str | None) -> None:
        repository = self._repository(f"{kind}/{name}")
        revision = urllib.parse.unquote(revision or "main")
        if repository is None:
            self.missing("RepoNotFound")
        elif what == "branch":
            repository.branches.setdefault(revision, repository.branches["main"])
            self.answer({})
        elif (files := repository.files(revision)) is None:
            self.missing("RevisionNotFound")
        elif what in (None, "revision"):
            sha = repository.branches.get(revision, revision)
            siblings = [{"rfilename": name, "size": len(data), "blobId": "x"} for name, data in files.items()]
            self.answer({"id": name, "sha": sha, "private": repository.private, "siblings": siblings})
        elif what == "preupload":
            self.answer({"files": [
                {"path": file["path"], "uploadMode": "lfs" if file["size"] > LARGE else "regular",
                 "shouldIgnore": False, "oid": None} for file in json.loads(self.body)["files"]
            ]})  # fmt: skip
        elif what == "commit":
            self._commit(name, repository, revision)

    def _commit(self, name: str, repository: Repository, revision: str) -> None:
        files = dict(repository.files(revision) or {})
        for record in map(json.loads, self.body.splitlines()):
            value = record["value"]
            if record["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif record["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
            elif record["key"] == "deletedFile":
                del files[value["path"]]
        commit = repository.commit(files, revision)
        self.answer({"commitUrl": f"{self.hub.address}/{name}/commit/{commit}", "commitOid": commit})

    def file(self) -> bytes | None:
        """What a path leads to."""
        if self.path.startswith("/large/"):
            return self.hub.large.get(self.path.rpartition("/")[2])
        match = RESOLVE.fullmatch(self.path)
        repository = match and self._repository(f"{match[1] or 'models'}/{match[2]}")
        files = match and repository and repository.files(urllib.parse.unquote(match[3]))
        return files.get(urllib.parse.unquote(match[4])) if match and files else None

    def _resolve(self, match: re.Match[str]) -> None:
        repository = self._repository(f"{match[1] or 'models'}/{match[2]}")
        if repository is None:
            self.missing("RepoNotFound")
            return
        data, revision = self.file(), urllib.parse.unquote(match[3])
        if data is None:
            self.missing("EntryNotFound")
            return
        headers = {"X-Repo-Commit": repository.branches.get(revision, revision)}
        oid = hashlib.sha256(data).hexdigest()
        if len(data) > LARGE:
            self.hub.large[oid] = data
            headers |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(data))}
            self.answer(b"", 302, headers | {"Location": f"{self.hub.storage}/large/{oid}"})
        else:
            self.answer(data, 200, headers | {"ETag": f'"{oid}"'})


def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time-outs that come at once, and waits that are only noted: what they would have been."""
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr("cpplm.core.hub.TIMEOUT", 0.3)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    return waits
