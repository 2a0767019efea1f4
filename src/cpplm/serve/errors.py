"""What a client is told when a request fails: a status, and OpenAI's {"error": {...}}."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel
from starlette.responses import JSONResponse

Kind = Literal[
    "invalid_request_error", "authentication_error", "rate_limit_error", "timeout_error", "server_error"
]
_KINDS: dict[int, Kind] = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error",
                           504: "timeout_error"}  # fmt: skip


class ErrorDetail(BaseModel):
    """What was wrong."""

    message: str
    type: Kind
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
            message: what is wrong and how to mend it.
            code: for programs.
            param: the field of the request that is to blame.
            headers: of the answer, such as Retry-After.
        """
        super().__init__(message)
        self.status, self.code, self.param, self.headers = status, code, param, dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """As JSON."""
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        detail = ErrorDetail(message=str(self), type=kind, param=self.param, code=self.code)
        return ErrorBody(error=detail).model_dump()

    def response(self) -> JSONResponse:
        """The answer."""
        return JSONResponse(self.body, self.status, headers=self.headers)


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
        errors: as pydantic gives them; those of a union come one by one.
        known: the fields that the endpoint has, for a field that it has not.
    """
    first = errors[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {first['ctx']['error']}", code="invalid_json")
    if not where:
        about_text = first["type"] == "value_error"
        said = (
            str(first["ctx"]["error"])
            if about_text
            else "the body is not a JSON object sent as application/json"
        )
        return ApiError(400, said, code="invalid_json")
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where[-1], known, n=1)
        hint = f". Did you mean {near[0]!r}?" if near else ""
        return ApiError(
            400,
            f"unknown parameter: {'.'.join(where)}{hint}",
            code="unknown_parameter",
            param=".".join(where),
        )
    alike = [each for each in errors if each["loc"][:2] == first["loc"][:2]]
    reasons = dict.fromkeys(each["msg"].removeprefix("Value error, ") for each in alike)
    param = ".".join(where if len(errors) == 1 else where[:1])
    return ApiError(400, f"{param}: {'; or '.join(list(reasons)[:4])}", code="invalid_value", param=param)


def of_status(status: int, detail: str) -> ApiError:
    """What the framework refuses by itself: an unknown path, a method that a path has not."""
    message = detail if detail != HTTPStatus(status).phrase else f"{status} {detail}"
    return ApiError(status, message, code=HTTPStatus(status).name.lower())
