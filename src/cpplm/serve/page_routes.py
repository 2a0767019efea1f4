"""The web page of `cpplm serve` as routes: its files, and compilations for its compile button.

The files lie in `page/` and are served as they are. They need nothing from elsewhere, and the policy sent
with them lets nothing else in: no script but the page's own, no other host, and no text as HTML (trusted
types). What a browser is asked to compile goes through the sandbox, a few programs at a time.
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Response
from pydantic import Field

from cpplm.core.errors import UserError
from cpplm.sandbox.sandbox import MAX_STDIN_BYTES, Sandbox, SandboxError
from cpplm.serve.errors import ApiError, ErrorBody, response_docs
from cpplm.serve.page_compile import CompileResponse, NoCompilerError, compile_source
from cpplm.serve.request_models import RequestBody, Strict
from cpplm.serve.settings import PageSettings

_FOLDER = Path(__file__).with_name("page")
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

_NOT_HERE = "No sandbox or no compiler works on the server, compiling is switched off, or the server stops."

_Known = Annotated[str | None, Header()]


class CompileRequest(Strict, RequestBody):
    """A program to compile."""

    source: str = Field(description="The text of one C++ file.")
    run: bool = Field(default=False, description="Link it and run it, too.")
    stdin: str = Field(default="", description="What it reads when it runs.")


def router(settings: PageSettings) -> APIRouter:
    """GET / and /page/{file}, POST /api/compile."""
    routes = APIRouter()
    _add_files(routes)
    _add_compile(routes, settings)
    return routes


def _add_files(routes: APIRouter) -> None:
    files = {  # in memory: a few kilobytes
        path.name: path.read_bytes() for path in _FOLDER.iterdir() if path.suffix in _MEDIA_TYPES
    }
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, content in files.items()}

    @routes.get("/page/{name}", include_in_schema=False)
    def file(name: str, if_none_match: _Known = None) -> Response:
        """The file, or nothing when the browser has it already."""
        if name not in files:
            raise ApiError(404, f"the page has no file {name!r}", code="not_found", headers=_HEADERS)
        headers = {**_HEADERS, "ETag": tags[name]}
        if if_none_match is not None and tags[name] in if_none_match:
            return Response(status_code=304, headers=headers)
        return Response(files[name], headers=headers, media_type=_MEDIA_TYPES[Path(name).suffix])

    @routes.get("/", include_in_schema=False)
    def page(if_none_match: _Known = None) -> Response:
        return file("index.html", if_none_match)


def _add_compile(routes: APIRouter, settings: PageSettings) -> None:
    places = threading.BoundedSemaphore(settings.compiles_at_once) if settings.compiles_at_once else None
    errors = {**response_docs(CompileResponse), 503: {"model": ErrorBody, "description": _NOT_HERE}}

    # Not async: it waits for processes, in a thread; no more threads than places are taken.
    @routes.post("/api/compile", responses=errors, summary="Compile a C++ file")
    def compile_file(request: CompileRequest) -> CompileResponse:
        """Compile one C++ file in the sandbox and give the compiler's complaints; run it if asked to."""
        if places is None:
            raise ApiError(503, "compiling is switched off on this server", code="compile_off")
        for name, text, limit in (
            ("source", request.source, settings.max_source_bytes),
            ("stdin", request.stdin, MAX_STDIN_BYTES),
        ):
            if len(text.encode()) > limit:
                raise ApiError(413, f"{name} has more than {limit:,} bytes", code="too_large", param=name)
        if not places.acquire(blocking=False):
            limit = settings.compiles_at_once
            who = "1 program is" if limit == 1 else f"{limit} programs are"
            message = f"{who} being compiled already; try again"
            raise ApiError(429, message, code="busy", headers={"Retry-After": "1"})
        try:
            return _compile(request, settings.cpp_standard)
        finally:
            places.release()


def _compile(request: CompileRequest, standard: str) -> CompileResponse:
    try:
        sandbox = Sandbox.probe()
    except UserError as error:  # its text is for the command line
        message = "no sandbox works on the server, so nothing is compiled: 'cpplm doctor' there says why"
        raise ApiError(503, message, code="no_sandbox") from error
    try:
        return compile_source(
            sandbox, request.source, standard=standard, run=request.run, stdin=request.stdin
        )
    except NoCompilerError as error:
        message = "there is no g++ in the server's sandbox: install it below /usr"
        raise ApiError(503, message, code="no_compiler") from error
    except SandboxError as error:
        raise ApiError(503, f"the sandbox failed: {error}", code="sandbox_failed") from error
