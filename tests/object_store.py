"""An object store on this machine that speaks what cpplm uses of S3, and can be shut down and opened again.

Signatures are not checked. Objects are kept in memory while the server is down.
"""

import hashlib
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

BUCKET = "bucket"


class ObjectStore:
    """Objects by name, and the names in the order in which they were completed."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.completed: list[str] = []
        self.stalled = False
        """Take requests and never answer them."""
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._port = 0
        self._server: ThreadingHTTPServer | None = None

    def open(self) -> None:
        """Answer, on the same port as before."""
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = _Server(("127.0.0.1", self._port), handler)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    @property
    def running(self) -> bool:
        return self._server is not None

    def use(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let s3:// URLs lead here."""
        for name, value in {
            "AWS_ENDPOINT": f"http://127.0.0.1:{self._port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
        }.items():
            monkeypatch.setenv(name, value)

    def put(self, name: str, data: bytes) -> None:
        self.objects[name] = data
        self.completed.append(name)

    def begin_upload(self) -> str:
        identifier = f"upload-{len(self._uploads)}"
        self._uploads[identifier] = {}
        return identifier

    def put_part(self, identifier: str, number: int, data: bytes) -> None:
        self._uploads[identifier][number] = data

    def finish_upload(self, identifier: str, name: str) -> None:
        parts = self._uploads.pop(identifier)
        self.put(name, b"".join(parts[number] for number in sorted(parts)))

    def abort_upload(self, identifier: str) -> None:
        self._uploads.pop(identifier, None)


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """A running store to which `s3://bucket/...` leads."""
    store = ObjectStore()
    store.open()
    store.use(monkeypatch)
    try:
        yield store
    finally:
        store.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Connections that break when the store is shut down are what tests want."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: ObjectStore

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def _request(self) -> tuple[str, dict[str, str], bytes]:
        """Object name, query and body."""
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        name = urllib.parse.unquote(url.path).removeprefix(f"/{BUCKET}").lstrip("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        while self.store.stalled and self.store.running:
            time.sleep(0.01)
        if not self.store.running:  # a connection that was kept open
            self.close_connection = True
            raise ConnectionAbortedError
        return name, query, body

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        name, query, body = self._request()
        if "partNumber" in query:
            self.store.put_part(query["uploadId"], int(query["partNumber"]), body)
        else:
            self.store.put(name, body)
        self._answer(200, ETag=_tag(body))

    def do_POST(self) -> None:
        name, query, body = self._request()
        if "delete" in query:
            keys = [e.text or "" for e in ElementTree.fromstring(body).iter() if e.tag.endswith("Key")]
            for key in keys:
                self.store.objects.pop(key, None)
            done = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())
        elif "uploads" in query:
            identifier = self.store.begin_upload()
            answer = f"<UploadId>{identifier}</UploadId>"
            self._answer(
                200, f"<InitiateMultipartUploadResult>{answer}</InitiateMultipartUploadResult>".encode()
            )
        else:
            self.store.finish_upload(query["uploadId"], name)
            answer = "<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"
            self._answer(200, answer.encode())

    def do_DELETE(self) -> None:
        name, query, _ = self._request()
        if "uploadId" in query:
            self.store.abort_upload(query["uploadId"])
        else:
            self.store.objects.pop(name, None)
        self._answer(204)

    def do_GET(self) -> None:
        name, query, _ = self._request()
        if "list-type" in query:
            names = sorted(n for n in self.store.objects if n.startswith(query.get("prefix", "")))
            rows = "".join(
                f"<Contents><Key>{escape(n)}</Key><Size>{len(self.store.objects[n])}</Size>"
                f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
                for n in names
            )
            answer = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
            self._answer(200, answer.encode())
            return
        data = self.store.objects.get(name)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        modified = {"Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": _tag(data)}
        self._answer(200, data, Content_Length=str(len(data)), **modified)

    do_HEAD = do_GET


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
