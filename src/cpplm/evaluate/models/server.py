"""Requests to an OpenAI-compatible server that may stall, fail, or answer with anything.

httpx2 is the client: well kept, small, with server-sent events, and it hands out the bytes as they come, so
that an answer without end is cut off. The `openai` package would bring more and reads every answer whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from cpplm.core.errors import UserError, import_extra
from cpplm.generate.sequence import StopCondition

if TYPE_CHECKING:
    import httpx2

ResultT = TypeVar("ResultT")

MAX_ANSWER_BYTES = 64 << 20  # of log-probabilities of a long prompt: some 100 bytes a token
ATTEMPTS = 5
FIRST_WAIT = 1.0  # seconds before the second attempt; doubles with each
_LONGEST_WAIT = 60.0  # that a server may ask for
_WHOLE = 5  # times the limit of silence: what a whole answer may take
_RETRYABLE = frozenset({408, 409, 425, 429})  # besides 5xx
_EXCERPT = 300


class RequestFailed(Exception):  # noqa: N818  (an outcome to be counted, not a fault of the program)
    """Why there is none."""

    def __init__(self, why: str, *, retryable: bool, status: int = 0, wait: float = 0.0) -> None:
        """Say why.

        Args:
            why: for people.
            retryable: whether a later attempt may succeed.
            status: of the answer, if there was one.
            wait: seconds that the server asks to wait.
        """
        super().__init__(why)
        self.retryable, self.status, self.wait = retryable, status, wait


def read_key(variable: str, flag: str) -> str:
    """The key in an environment variable that a flag names, "" where it names none; unset is a UserError."""
    key = os.environ.get(variable, "") if variable else ""
    if variable and not key:
        raise UserError(f"the environment variable {variable} ({flag}) is not set")
    return key


class ApiClient:
    """An address, and how it is talked to."""

    def __init__(
        self, url: str, *, api_key: str = "", timeout: float = 120.0, attempts: int = ATTEMPTS,
        flag: str = "--url",
    ) -> None:  # fmt: skip
        """Name a server.

        Args:
            url: up to and with `/v1`.
            api_key: sent as a bearer token; never shown.
            timeout: seconds without a byte after which an attempt is given up.
            attempts: at a request.
            flag: that named the URL.

        Raises:
            UserError: no such URL, or one with a password or a query in it, which results would show; or
                httpx2 is not installed.
        """
        self._http = import_extra("httpx2", "--url needs", "url")
        try:
            parsed = self._http.URL(url)
        except self._http.InvalidURL as error:
            raise UserError(f"{flag} {url!r}: {error}") from error
        if parsed.scheme not in ("http", "https") or not parsed.host or not 0 < (parsed.port or 80) < 2**16:
            raise UserError(f"{flag} {url!r} is not an HTTP address", fix="Write http://localhost:8000/v1.")
        if parsed.userinfo or parsed.query or parsed.fragment:
            raise UserError(
                f"{flag} may not hold a password or a query: it is stored with the results",
                fix="Put the key into an environment variable, named by --api_key_env or --rollout_key_env.",
            )
        self.url, self._key, self._timeout, self._attempts = url.rstrip("/"), api_key, timeout, attempts

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[httpx2.AsyncClient]:
        """A pool of connections; redirects, to which a key might be sent, are not followed."""
        headers = {"Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        async with self._http.AsyncClient(headers=headers, timeout=self._timeout) as client:
            yield client

    async def models(self, client: httpx2.AsyncClient) -> list[dict[str, Any]]:
        """List the models that the server says it serves; empty where it does not say.

        Raises:
            UserError: nobody answers at that address, or the key is refused.
        """
        try:
            answer = await self._once(client, "GET", "/models", None, None)
        except RequestFailed as failure:
            error = self._without_key(failure)
            if error.status in (401, 403):
                raise UserError(
                    f"{self.url} refuses the key: {error}", fix="Name its variable: --api_key_env NAME."
                ) from error
            if error.status:
                return []
            raise UserError(
                f"{self.url} does not answer: {error}", fix="Check the address and that it runs."
            ) from error
        listed = answer.get("data")
        return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []

    async def complete(
        self, client: httpx2.AsyncClient, body: dict[str, Any], stop: StopCondition | None = None
    ) -> str:
        """The text of a completion, after as many attempts as it takes, up to ATTEMPTS.

        With `stop` it is streamed, and the connection closed as soon as there is enough of it.

        Raises:
            RequestFailed: none came, or it is of no use.
        """

        async def attempt() -> str:
            payload = body | {"stream": stop is not None}
            return _text_of(await self._once(client, "POST", "/completions", payload, stop))[0]

        return await self._tried(attempt)

    async def chat(self, client: httpx2.AsyncClient, body: dict[str, Any]) -> str:
        """The assistant's text in answer to a conversation, with the attempts of `complete`.

        Raises:
            RequestFailed: none came, or it is of no use.
        """

        async def attempt() -> str:
            answer = await self._once(client, "POST", "/chat/completions", body, None)
            try:
                return str(answer["choices"][0]["message"]["content"] or "")
            except (KeyError, IndexError, TypeError) as error:
                what = f"the answer holds no message: {json.dumps(answer)[:_EXCERPT]}"
                raise RequestFailed(what, retryable=True) from error

        return await self._tried(attempt)

    async def post(self, client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The whole answer to a request, with the attempts of `complete`.

        Raises:
            RequestFailed: none came.
        """
        return await self._tried(lambda: self._once(client, "POST", path, body, None))

    async def _tried(self, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """The result of the first attempt that has one; in between the server has time to recover."""
        number = 1
        while True:
            try:
                return await attempt()
            except RequestFailed as error:
                if not error.retryable or number == self._attempts:
                    raise self._without_key(error) from error
                backoff = FIRST_WAIT * 2 ** (number - 1) * random.uniform(0.5, 1.0)  # noqa: S311
                await asyncio.sleep(max(backoff, min(error.wait, _LONGEST_WAIT)))
                number += 1

    def _without_key(self, error: RequestFailed) -> RequestFailed:
        """Some servers repeat the key in what they say."""
        why = str(error).replace(self._key, "***") if self._key else str(error)
        return RequestFailed(why, retryable=error.retryable, status=error.status)

    async def _once(
        self, client: httpx2.AsyncClient, method: str, path: str, body: Any, stop: StopCondition | None
    ) -> dict[str, Any]:
        http = self._http
        try:
            async with (
                asyncio.timeout(_WHOLE * self._timeout),
                client.stream(method, self.url + path, json=body) as response,
            ):
                if response.status_code != 200:
                    raise await _refusal(response)
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise RequestFailed("a compressed answer, which was not asked for", retryable=False)
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    return await _streamed(http.EventSource(response), response, stop)
                return _parsed(await _read(response, MAX_ANSWER_BYTES))
        except (http.TimeoutException, TimeoutError) as error:
            raise RequestFailed(f"no answer within {self._timeout:g} s", retryable=True) from error
        except (http.HTTPError, http.StreamError) as error:
            why = f"the connection failed: {type(error).__name__} {error}".strip()
            raise RequestFailed(why, retryable=True) from error


async def _refusal(response: httpx2.Response) -> RequestFailed:
    """The error for a status other than 200, with the beginning of the server's message."""
    status = response.status_code
    try:
        message = (await _read(response, 1 << 16)).decode("utf-8", "replace")
    except RequestFailed:
        message = ""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        message = str(json.loads(message)["error"]["message"])
    message = " ".join("".join(c if c.isprintable() else " " for c in message).split())[:_EXCERPT]
    try:
        wait = max(0.0, float(response.headers.get("retry-after", "0")))
    except ValueError:  # a date
        wait = 0.0
    retryable = status in _RETRYABLE or status >= 500
    return RequestFailed(f"HTTP {status} {message}".strip(), retryable=retryable, status=status, wait=wait)


async def _read(response: httpx2.Response, most: int) -> bytes:
    data = bytearray()
    async for chunk in response.aiter_raw():
        data += chunk
        if len(data) > most:
            raise RequestFailed(f"an answer of more than {most:,} bytes", retryable=False)
    return bytes(data)


def _parsed(data: bytes | str) -> dict[str, Any]:
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestFailed(
            "the answer is not JSON" if data else "the answer is empty", retryable=True
        ) from error
    if not isinstance(answer, dict):
        raise RequestFailed("the answer is not a JSON object", retryable=True)
    return answer


def _text_of(answer: dict[str, Any]) -> tuple[str, bool]:
    """The text of the first choice, and whether it is complete; "" of a record without choices.

    Raises:
        RequestFailed: the record is of another kind.
    """
    choices = answer.get("choices")
    if choices == [] and "error" not in answer:
        return "", False
    try:
        text, reason = choices[0]["text"], choices[0].get("finish_reason")  # type: ignore[index]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise RequestFailed(
            f"the answer holds no text: {json.dumps(answer)[:_EXCERPT]}", retryable=True
        ) from error
    if not isinstance(text, str):
        raise RequestFailed("the answer's text is not a string", retryable=True)
    return text.encode("utf-8", "replace").decode(), reason is not None


async def _streamed(
    events: httpx2.EventSource, response: httpx2.Response, stop: StopCondition | None
) -> dict[str, Any]:
    """A streamed answer in the form of one that came as a whole."""
    text, complete = "", False
    async with contextlib.aclosing(aiter(events)) as records:  # type: ignore[type-var]
        async for record in records:
            if response.num_bytes_downloaded > MAX_ANSWER_BYTES:
                raise RequestFailed(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes", retryable=False)
            if record.data == "[DONE]":
                complete = True
                break
            piece, ended = _text_of(_parsed(record.data))
            text, complete = text + piece, complete or ended
            if stop is not None and stop(text):
                complete = True
                break
    if not complete:
        raise RequestFailed("the answer broke off", retryable=True)
    return {"choices": [{"text": text, "finish_reason": "stop"}]}
