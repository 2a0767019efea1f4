"""A model behind an OpenAI-compatible server as a model under evaluation.

It writes through the completions endpoint, and fills in where the server takes a `suffix`. It scores where
the server repeats a prompt with log-probabilities (`echo` with `logprobs`), as vLLM does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.evaluate.models.async_jobs import run_jobs
from cpplm.evaluate.models.chat import refuse_tools
from cpplm.evaluate.models.code_model import (
    ChatAnswer,
    CodeModel,
    CodePrompt,
    Completion,
    Conversation,
    TokenBits,
    group_samples,
)
from cpplm.evaluate.models.prompt_logprobs import parse_prompt_logprobs
from cpplm.evaluate.models.server import ApiClient, RequestFailed, read_key
from cpplm.generate.project.context import ContextSource
from cpplm.generate.sequence import StopCondition
from cpplm.generate.settings import SamplingSettings
from cpplm.generate.tools.toolbox import ToolBox

if TYPE_CHECKING:
    import httpx2

# Where the server does not say how long its context is.
UNKNOWN_CONTEXT = 2048
# Requests without an answer in a row, each after all its attempts, after which no more are made.
GIVE_UP_AFTER = 20
# Of the context, when a prompt is scored: a start token or two, and the one token that has to be written.
_ROOM = 4
# Of the tokens that a window is expected to have: its text may be denser than the one before it.
_MARGIN = 0.9


class UrlModel(CodeModel):
    """A model behind the completions endpoint of a server."""

    def __init__(
        self, server: ApiClient, model_name: str, *, supports_fim: bool = False,
        context: int = UNKNOWN_CONTEXT, at_once: int = 8,
    ) -> None:  # fmt: skip
        """Name a model of a server; nothing is asked yet."""
        self._server, self._at_once = server, at_once
        self.name, self.supports_fim, self.max_context = model_name, supports_fim, context
        self.supports_chat = True  # a server without that endpoint says so
        self.identity: dict[str, Any] = {"url": server.url, "model": model_name, "supports_fim": supports_fim}

    @classmethod
    def connect(
        cls, url: str, model_name: str = "", *, api_key_env: str = "", supports_fim: bool = False,
        timeout: float = 120.0, at_once: int = 8,
    ) -> UrlModel:  # fmt: skip
        """Look the server up, so that a wrong address, key or name is found before anything is measured.

        Raises:
            UserError: nobody answers, the key is missing or refused, or there is no such model.
        """
        server = ApiClient(url, api_key=read_key(api_key_env, "--api_key_env"), timeout=timeout)

        async def look(client: httpx2.AsyncClient, _: None) -> list[dict[str, Any]]:
            return await server.models(client)

        ((_, listed),) = run_jobs([None], look, server.connection, at_once=1)
        entries = {str(entry["id"]): entry for entry in listed if "id" in entry}
        if not model_name and len(entries) == 1:
            (model_name,) = entries
        if not model_name or (entries and model_name not in entries):
            shown = ", ".join(sorted(entries)[:10]) or "it does not say which"
            what = f"no model {model_name!r}" if model_name else "more than one model, or says none"
            raise UserError(f"{server.url} has {what}", fix=f"Name one with --model_name: {shown}.")
        context = _context(entries.get(model_name, {}))
        return cls(server, model_name, supports_fim=supports_fim, context=context, at_once=at_once)

    # ---- writing --------------------------------------------------------------------------------------

    @override
    def fit(self, request: CodePrompt, new_tokens: int, source: ContextSource | None = None) -> CodePrompt:
        """Return the prompt uncut: only the server knows its tokens."""
        del new_tokens, source
        return request

    @override
    def token_ends(self, text: str) -> NDArray[np.int64]:
        raise UserError(
            "--project_context counts tokens, which only the server can", fix="Measure a RUN or --hf_dir."
        )

    @override
    def generate(
        self,
        requests: Sequence[CodePrompt],
        sampling: SamplingSettings,
        *,
        num_samples: int = 1,
        stop: StopCondition | None = None,
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Every sample is a request of its own with its own seed."""
        jobs = [(number, index) for number in range(len(requests)) for index in range(num_samples)]
        unanswered = 0

        async def work(client: httpx2.AsyncClient, job: tuple[int, int]) -> Completion:
            nonlocal unanswered
            if unanswered >= GIVE_UP_AFTER:
                return Completion("", f"not asked: {unanswered} requests in a row had no answer")
            body = self._body(requests[job[0]], sampling, job[1])
            try:
                text = await self._server.complete(client, body, stop)
            except RequestFailed as error:
                unanswered += error.retryable
                return Completion("", str(error))
            unanswered = 0
            return Completion(text)

        results = run_jobs(jobs, work, self._server.connection, at_once=self._at_once)
        yield from group_samples(((*jobs[place], sample) for place, sample in results), num_samples)

    def _body(self, request: CodePrompt, sampling: SamplingSettings, index: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.name,
            "prompt": request.prefix,
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "seed": (sampling.seed * 1_000_003 + index) % 2**31,
        }
        if request.suffix is not None and self.supports_fim:
            body["suffix"] = request.suffix
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.logit_bias:
            body["logit_bias"] = {str(id_): bias for id_, bias in sampling.logit_bias}
        neutral = {"top_p": 1, "frequency_penalty": 0, "presence_penalty": 0}
        neutral |= {"repetition_penalty": 1}  # from here on not OpenAI's own; vLLM and llama.cpp know it
        if sampling.temperature:
            neutral |= {"top_k": 0, "min_p": 0}
        return body | {k: getattr(sampling, k) for k in neutral if getattr(sampling, k) != neutral[k]}

    @override
    def chat(
        self,
        conversations: Sequence[Conversation],
        sampling: SamplingSettings,
        *,
        stop: StopCondition | None = None,
        boxes: Sequence[ToolBox | None] = (),
    ) -> Iterator[tuple[int, ChatAnswer]]:
        """Whole answers are asked for: what `stop` would leave out is cut by whoever reads them."""
        refuse_tools(boxes)

        async def work(client: httpx2.AsyncClient, conversation: Conversation) -> ChatAnswer:
            body = {
                "model": self.name, "messages": list(conversation), "max_tokens": sampling.max_new_tokens,
                "temperature": sampling.temperature, "seed": sampling.seed,
            }  # fmt: skip
            try:
                return ChatAnswer(await self._server.chat(client, body))
            except RequestFailed as error:
                return ChatAnswer("", failed=str(error))

        return run_jobs(conversations, work, self._server.connection, at_once=self._at_once)

    # ---- scoring --------------------------------------------------------------------------------------

    @override
    def score(self, texts: Sequence[str], *, context: int | None = None) -> Iterator[TokenBits]:
        """Score windows without a tokenizer, each measured by the bytes per token of the one before.

        The first is a short trial. Each begins in the middle of the one before, and the server puts its start
        token before it.
        """
        length = context or self.max_context

        async def work(client: httpx2.AsyncClient, text: str) -> TokenBits:
            return await self._score(client, text, length)

        waiting: dict[int, TokenBits] = {}
        due = 0
        for number, tokens in run_jobs(texts, work, self._server.connection, at_once=self._at_once):
            waiting[number] = tokens
            while due in waiting:
                yield waiting.pop(due)
                due += 1

    async def _score(self, client: httpx2.AsyncClient, text: str, context: int) -> TokenBits:
        data = text.encode()
        if not data:
            return TokenBits(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0, dtype=np.int64))
        surely = max(1, context - _ROOM)  # bytes that fit: no token has less than one
        window, tokens = await self._window(client, data, 0, surely, surely)
        if window == len(data):
            return tokens
        so_far, begin, end = tokens, 0, 0
        while end < len(data):
            size = max(surely, int(_MARGIN * context * window / len(tokens.ends)))
            window, tokens = await self._window(client, data, begin, size, surely)
            so_far = tokens if begin == 0 else _joined(so_far, tokens, begin)
            end = begin + window
            middle = begin + int(tokens.ends[(len(tokens.ends) - 1) // 2])
            begin = middle if begin < middle < end else end
        return so_far

    async def _window(
        self, client: httpx2.AsyncClient, data: bytes, begin: int, size: int, surely: int
    ) -> tuple[int, TokenBits]:
        """Score whole characters from `begin` on; a shorter window where the server finds it too long."""
        text = _characters(data, begin, size)
        body = {"model": self.name, "prompt": text, "max_tokens": 1, "temperature": 0}
        try:
            answer = await self._server.post(client, "/completions", {**body, "echo": True, "logprobs": 1})
            return len(text.encode()), parse_prompt_logprobs(text, answer)
        except RequestFailed as error:
            if error.status in (400, 413, 422) and size > surely:
                return await self._window(client, data, begin, max(surely, size * 3 // 4), surely)
            if error.retryable:
                raise UserError(
                    f"{self._server.url}: {error}", fix="Run the same command again when it answers."
                ) from error
            raise self._cannot_score(str(error)) from error
        except ValueError as error:
            raise self._cannot_score(str(error)) from error

    def _cannot_score(self, why: str) -> UserError:
        return UserError(
            f"{self._server.url} does not say how likely a prompt is (echo with logprobs): {why}",
            fix="Measure the model's files with --hf_dir, or serve them with vLLM, which does.",
        )


def _context(entry: dict[str, Any]) -> int:
    """The context length of an entry in the server's list, in the form of vLLM or llama.cpp."""
    meta = entry.get("meta")
    candidates = [entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, dict) else None]
    lengths = [length for length in candidates if isinstance(length, int) and length > _ROOM]
    return lengths[0] if lengths else UNKNOWN_CONTEXT


def _characters(data: bytes, begin: int, size: int) -> str:
    """Whole characters of a text's bytes, at least one."""
    end = begin + size
    while end < len(data) and data[end] & 0xC0 == 0x80:  # inside a character
        end -= 1
    if end <= begin:
        end = begin + 1
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
    return data[begin:end].decode()


def _joined(before: TokenBits, window: TokenBits, begin: int) -> TokenBits:
    """Append a window's tokens behind the last border that it shares with the tokens before.

    The last tokens before may be cut by the window's end, so these are taken from the next one.
    """
    ends = window.ends + begin
    shared = np.intersect1d(before.ends, ends)
    border = shared[-1] if len(shared) else begin
    # The first token that reaches a place is the one that ends there; others only begin a character.
    num_before = int(np.searchsorted(before.ends, border)) + 1
    new = int(np.searchsorted(ends, border)) + 1 if border > begin else 0
    return TokenBits(
        np.concatenate([before.ends[:num_before], ends[new:]]),
        np.concatenate([before.bits[:num_before], window.bits[new:]]),
        np.concatenate([before.context[:num_before], window.context[new:]]),
    )
