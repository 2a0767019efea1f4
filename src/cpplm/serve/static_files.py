"""Files of a web page as routes, with the headers that every page of ours is sent with.

They need nothing from elsewhere, and the policy sent with them lets nothing else in: no script but the
page's own, no other host, and no text as HTML (trusted types).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated

from fastapi import APIRouter, Header, Response

from cpplm.serve.errors import ApiError

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
PAGE_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

_Known = Annotated[str | None, Header()]


def add_files(routes: APIRouter, files: Mapping[str, bytes]) -> None:
    """GET /page/NAME for every file, and / for index.html; they are kept in memory, a few kilobytes."""
    tags = {name: f'"{hashlib.sha256(content).hexdigest()[:32]}"' for name, content in files.items()}

    @routes.get("/page/{name}", include_in_schema=False)
    def file(name: str, if_none_match: _Known = None) -> Response:
        """The file, or nothing when the browser has it already."""
        if name not in files:
            raise ApiError(404, f"the page has no file {name!r}", code="not_found", headers=PAGE_HEADERS)
        headers = {**PAGE_HEADERS, "ETag": tags[name]}
        if if_none_match is not None and tags[name] in if_none_match:
            return Response(status_code=304, headers=headers)
        return Response(files[name], headers=headers, media_type=_MEDIA_TYPES[PurePath(name).suffix])

    @routes.get("/", include_in_schema=False)
    def page(if_none_match: _Known = None) -> Response:
        return file("index.html", if_none_match)
