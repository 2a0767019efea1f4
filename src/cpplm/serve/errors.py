"""What a client is told when a request fails: a status, and OpenAI's {"error": {...}}."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response

from cpplm.core.errors import UserError

ErrorType = Literal[
    "invalid_request_error", "authentication_error", "rate_limit_error", "timeout_error", "server_error"
]
_KINDS: dict[int, ErrorType] = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error",
                           504: "timeout_error"}  # fmt: skip


_STATUS_DESCRIPTIONS = {
    400: "Not of the form that is asked for, a value that is not done, or too long a prompt.",
    401: "No key, or not the right one.",
    403: "Meant for a server of another name.",
    404: "No such model.",
    408: "The request did not come in time.",
    413: "Too long a body.",
    429: "Too many requests wait; Retry-After says when to come again.",
    500: "The model failed.",
    503: "The server stops, or nothing was written in time.",
    504: "The request took too long.",
}

_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
"""One server-sent event in the schema: its data is JSON, but for the last one's."""

_SEND = ": send a JSON object with the header Content-Type: application/json"


class ErrorDetail(BaseModel):
    """OpenAI's error object."""

    message: str
    type: ErrorType
    param: str | None
    """The field that is to blame, if one is."""
    code: str | None
    """For programs."""


class ErrorBody(BaseModel):
    """The body of every answer that is no success."""

    error: ErrorDetail


class ApiError(Exception):
    """A request fails, with this status."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """Say why.

        Args:
            status: of HTTP.
            message: what is wrong and how to fix it.
            code: for programs.
            param: the field of the request that is to blame.
            headers: of the answer, such as Retry-After.
        """
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, dict(headers or {})

    def response(self) -> JSONResponse:
        """The answer."""
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        detail = ErrorDetail(message=str(self), type=kind, param=self.param, code=self.code)
        return JSONResponse(ErrorBody(error=detail).model_dump(), self.status, headers=self.headers)


class OverloadedError(ApiError):
    """Too many requests wait already."""

    def __init__(self, waiting: int, seconds: int) -> None:
        who = "1 request is" if waiting == 1 else f"{waiting} requests are"
        super().__init__(
            429, f"{who} waiting already; try again in {seconds} s", code="overloaded",
            headers={"Retry-After": str(seconds)},
        )  # fmt: skip


class EngineError(ApiError):
    """The model's thread failed at a request, or at what it did beside it."""

    def __init__(self, message: str) -> None:
        super().__init__(500, message, code="model_failed")


class ShutdownError(ApiError):
    """The server stops, and ends what is under way."""

    def __init__(self, message: str = "the server stops") -> None:
        super().__init__(503, message, code="stopping", headers={"Retry-After": "5"})


def to_api_error(error: UserError | TimeoutError, *, begun: bool) -> ApiError:
    """An error of the scheduler or of a time limit as one for the client.

    Args:
        error: its text is shown.
        begun: whether something of the response was generated already.
    """
    if isinstance(error, UserError):
        return ApiError(400, str(error), code="invalid_value")
    if begun:
        return ApiError(504, "the request took too long", code="timeout")
    return ApiError(
        503, "nothing was written in time: the server is busy", code="first_token_timeout",
        headers={"Retry-After": "10"},
    )  # fmt: skip


def too_long(tokens: int | str, context: int, param: str | None) -> ApiError:
    """A prompt that leaves no room in the context."""
    return ApiError(
        400,
        f"the prompt has {tokens} tokens and the model's context is {context}: send less",
        code="context_length_exceeded",
        param=param,
    )


def from_validation(errors: Sequence[Mapping[str, Any]], known: Sequence[str]) -> ApiError:
    """A body that is not of the endpoint's form.

    Args:
        errors: as pydantic gives them; the first is told.
        known: the fields that the endpoint has, for a field that it has not.
    """
    first = errors[0]
    _, *where = first["loc"]  # the first says that it is in the body
    if first["type"] == "json_invalid" or not where:
        return ApiError(400, _no_object(first), code="invalid_json")
    param = json_path(*where)
    if first["type"] == "extra_forbidden":
        similar = difflib.get_close_matches(str(where[-1]), known, n=1)
        hint = f". Did you mean {similar[0]!r}?" if similar else ""
        return ApiError(400, f"unknown parameter: {param}{hint}", code="unknown_parameter", param=param)
    reason = first["msg"].removeprefix("Value error, ")
    return ApiError(400, f"{param}: {reason}", code="invalid_value", param=param)


def json_path(*where: str | int) -> str:
    """Names and numbers that lead to a value, as `messages[0].content`."""
    return "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in where).removeprefix(".")


def _no_object(error: Mapping[str, Any]) -> str:
    """Describe what is wrong with a body that holds no fields at all."""
    match error["type"]:
        case "json_invalid":
            _, at = error["loc"]
            return f"the body is not JSON: {error['ctx']['error']} at character {at + 1}{_SEND}"
        case "value_error":
            return str(error["ctx"]["error"])
        case "missing":
            return f"the body is empty{_SEND}"
    if isinstance(error["input"], bytes):  # nobody tried to read it
        return f"the body is not said to be JSON{_SEND}"
    return f"the body is JSON, but not an object{_SEND}"


_INSTEAD = {
    "/v1/embeddings": "a model that writes C++ gives no embeddings: use a model that was trained for them; "
    "this server writes, at /v1/completions and /v1/chat/completions",
    "/v1/responses": "the Responses API is not supported: use /v1/chat/completions, which has conversations, "
    "tools and streams, too",
}
"""Endpoints of OpenAI's and llama.cpp's servers that clients look for, and what to use."""
_INSTEAD["/embeddings"] = _INSTEAD["/embedding"] = _INSTEAD["/v1/embeddings"]
_INSTEAD["/responses"] = _INSTEAD["/v1/responses"]


def unknown_path(path: str, paths: Collection[str]) -> ApiError:
    """A path that the server has not, and what there is instead.

    Args:
        path: of the request.
        paths: those of the server.
    """
    suggestion = (
        f"/v1{path}" if f"/v1{path}" in paths else next(iter(difflib.get_close_matches(path, paths, 1)), "")
    )
    use = f"use {suggestion}" if suggestion else "GET /openapi.json lists what there is"
    return ApiError(404, _INSTEAD.get(path, f"there is no {path} here: {use}"), code="not_found")


def response_docs(model: Any, *, stream: bool = False) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` of an endpoint for the OpenAPI schema: one success, and the failures.

    Args:
        model: type of the body of a success.
        stream: whether it may also come as server-sent events.
    """
    success: dict[str, Any] = {"model": model, "description": "The response."}
    if stream:
        success["content"] = {"text/event-stream": {"schema": _EVENT}}
    failures: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": text} for status, text in _STATUS_DESCRIPTIONS.items()
    }
    return {200: success, **failures}


def from_status(status: int, detail: str) -> ApiError:
    """Make an error of one that the framework raised: an unknown path, a method that a path has not."""
    if status == HTTPStatus.BAD_REQUEST:  # all that it cannot read but for wrong JSON
        message = "the body is not UTF-8, is nested too deeply, or has a number of thousands of digits"
        return ApiError(status, f"{message}{_SEND}", code="invalid_json")
    message = detail if detail != HTTPStatus(status).phrase else f"{status} {detail}"
    return ApiError(status, message, code=HTTPStatus(status).name.lower())


def paths_of(app: FastAPI) -> frozenset[str]:
    """The paths of an application, as its schema lists them."""
    return frozenset(app.openapi()["paths"])


def add_error_handlers(app: FastAPI) -> None:
    """Every failure has the same form."""

    async def refused(_: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, ApiError)  # noqa: S101  (it is registered for these)
        return error.response()

    async def malformed(http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        return from_validation(error.errors(), _body_fields(http)).response()

    async def by_framework(http: HttpRequest, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        if error.status_code == HTTPStatus.NOT_FOUND:
            return unknown_path(http.url.path, paths_of(app)).response()
        response = from_status(error.status_code, str(error.detail)).response()
        response.headers.update(error.headers or {})
        return response

    async def defect(_: HttpRequest, error: Exception) -> Response:
        del error  # uvicorn logs it; clients learn nothing of the inside
        return ApiError(500, "a defect of the server", code="internal").response()

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, by_framework)
    app.add_exception_handler(Exception, defect)


def _body_fields(http: HttpRequest) -> list[str]:
    """The fields that the body of a request may have."""
    route = http.scope.get("route")
    field = route.body_field if isinstance(route, APIRoute) else None
    return list(getattr(field.field_info.annotation, "model_fields", ())) if field is not None else []
