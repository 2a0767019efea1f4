"""What the schema of the API says about answers."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from cpplm.serve.errors import ErrorBody

_FAILURES = {
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

# One record of a stream: what its data holds is JSON, but for the last.
_EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}


def answers(model: Any, *, stream: bool = False) -> dict[int | str, dict[str, Any]]:
    """Of an endpoint: a success of this form, or one of the failures.

    Args:
        model: the body of a success, a type.
        stream: whether it may also come as server-sent events.
    """
    success: dict[str, Any] = {"model": model, "description": "The answer."}
    if stream:
        success["content"] = {"text/event-stream": {"schema": _EVENT}}
    failures: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorBody, "description": text} for status, text in _FAILURES.items()
    }
    return {200: success, **failures}


def drop_defaults(app: FastAPI) -> None:
    """Take out the status that the framework would give to a wrong body: this server never does."""
    for methods in app.openapi()["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
