"""The web page of `cpplm serve` as routes: its files, and compilations for its compile button.

The files lie in `page/` and are served as they are (`static_files.py`). What a browser is asked to compile
goes through the sandbox, a few programs at a time.
"""

from __future__ import annotations

import threading
from pathlib import Path

from fastapi import APIRouter
from pydantic import Field

from cpplm.core.errors import UserError
from cpplm.sandbox.sandbox import MAX_STDIN_BYTES, Sandbox, SandboxError
from cpplm.serve.errors import ApiError, ErrorBody, response_docs
from cpplm.serve.page_compile import CompileResponse, compile_source
from cpplm.serve.request_models import RequestBody, Strict
from cpplm.serve.settings import PageSettings
from cpplm.serve.static_files import add_files

_FOLDER = Path(__file__).with_name("page")
_NOT_HERE = "No sandbox or no compiler works on the server, compiling is switched off, or the server stops."


class CompileRequest(Strict, RequestBody):
    """A program to compile."""

    source: str = Field(description="The text of one C++ file.")
    run: bool = Field(default=False, description="Link it and run it, too.")
    stdin: str = Field(default="", description="What it reads when it runs.")


def add_page(routes: APIRouter, settings: PageSettings) -> None:
    """Add GET / and /page/{file}, POST /api/compile."""
    add_files(routes, {path.name: path.read_bytes() for path in _FOLDER.iterdir()})
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
    except SandboxError as error:
        raise ApiError(503, f"the sandbox failed: {error}", code="sandbox_failed") from error
