"""Engines on other machines: servers with OpenAI's completions that take and return token ids, as vLLM's do.

The trainer writes its weights as an exported model, OUT/weights/step_000010, and tells each server to load
them. All that comes back is checked before it is learned from: other ids than were asked, ids that no
vocabulary has, probabilities that are missing or no numbers, an answer that goes on behind its end or stops
before it. A server that fails so, or does not answer, is not asked again before the next step.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.evaluate.models.async_jobs import run_jobs
from cpplm.evaluate.models.server import ApiClient, RequestFailed, read_key
from cpplm.export.hf import export_model
from cpplm.generate.engine import RequestResult
from cpplm.generate.sequence import CompletionOutput, GenerationRequest, SequenceState, TokenLogprob
from cpplm.generate.settings import SchedulerLimits
from cpplm.model.transformer import Transformer
from cpplm.post_training.rl.settings import EngineSettings
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.distributed import DistContext

if TYPE_CHECKING:
    import httpx2

_ATTEMPTS = 2  # at one server, before another is asked
_ROUNDING = 1e-3  # by which the logarithm of a probability may be above 0


@dataclass
class _Server:
    """One server.

    Attributes:
        api: where it answers.
        control: where it is told of new weights.
        step: of the weights that it has; None where nobody knows.
        failure: why not.
        under_way: requests.
    """

    api: ApiClient
    control: ApiClient
    step: int | None = None
    failure: str = ""
    under_way: int = 0


class UrlEngine:
    """All servers together, as one engine."""

    def __init__(self, settings: EngineSettings, weights: Path, tokenizer: Tokenizer) -> None:
        """Nothing is asked yet.

        Args:
            settings: the servers.
            weights: folder of the exports.
            tokenizer: of the model.

        Raises:
            UserError: no such URL, or no key.
        """
        client = partial(
            ApiClient, api_key=read_key(settings.rollout_key_env, "--rollout_key_env"),
            timeout=settings.rollout_timeout, attempts=_ATTEMPTS, flag="--rollout_urls",
        )  # fmt: skip
        urls = [url.rstrip("/") for url in settings.rollout_urls]
        self.tokenizer = tokenizer
        self._servers = [_Server(client(url), client(url.removesuffix("/v1"))) for url in urls]
        self._settings, self._weights = settings, weights
        self._step = 0
        self._written: int | None = None

    def refresh(self, model: Transformer, step: int, dist: DistContext) -> UrlEngine:
        """Have the first rank hand over the weights of a step, when it is time to; returns itself.

        Raises:
            UserError: the disk is full, or no server has weights that are new enough.
        """
        self._step = step
        known = dist.gather_objects([server.step is not None for server in self._servers])
        for server, by_rank in zip(self._servers, zip(*known, strict=True), strict=True):
            server.step = server.step if all(by_rank) else None
        if self._written is None or step - self._written >= self._settings.sync_every:
            folder = self._weights / f"step_{step:06d}"
            dist.run_on_first(lambda: export_model(model, self.tokenizer, folder))
            self._written = step
        outcomes = dist.run_on_first(self._hand_over)
        for server, (loaded, failure) in zip(self._servers, outcomes, strict=True):
            server.step, server.failure = loaded, failure
        self._require_server()
        return self

    def _hand_over(self) -> list[tuple[int | None, str]]:
        """Have servers load the newest weights; of each the step that it is at, and its failure."""
        newest = self._weights / f"step_{self._written:06d}"
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(newest.resolve())}}

        async def load(client: httpx2.AsyncClient, server: _Server) -> tuple[int | None, str]:
            if server.step == self._written:
                return server.step, ""
            try:
                await server.control.post(client, "/collective_rpc", body)
            except RequestFailed as error:
                log_info(f"warning: {server.api.url} did not load {newest}: {error}")
                if server.step is not None and 400 <= error.status < 500:
                    return server.step, ""  # it refused, and has what it had; of any other nobody knows
                return None, str(error)
            return self._written, ""

        outcomes = dict(run_jobs(self._servers, load, self._connection, at_once=len(self._servers)))
        for old in self._weights.glob("step_*"):
            if old != newest:
                shutil.rmtree(old, ignore_errors=True)
        return [outcomes[number] for number in range(len(self._servers))]

    def complete_many(
        self, requests: Iterable[GenerationRequest], limits: SchedulerLimits | None = None
    ) -> Iterator[RequestResult]:
        """As `Engine.complete_many`; `limits` are those of each server.

        Raises:
            UserError: no server is left.
        """
        jobs, rows = list(requests), (limits or SchedulerLimits()).max_batch
        samples = max((request.num_samples for request in jobs), default=1)
        at_once = len(self._servers) * max(1, rows // samples)

        async def work(client: httpx2.AsyncClient, request: GenerationRequest) -> RequestResult:
            refused = 0
            while True:
                server = self._require_server()
                age = self._age(server)
                server.under_way += 1
                try:
                    answer = await server.api.post(client, "/completions", self._body(request, server))
                    completions = read_completions(answer, request, self.tokenizer)
                except (RequestFailed, ValueError) as error:
                    refused += request.num_samples
                    if server.step is not None:
                        log_info(f"warning: {server.api.url}: {error}; it is asked again at the next step")
                    server.step, server.failure = None, str(error)  # it may be another one when it is back
                else:
                    return RequestResult(0, completions, staleness=age, refused=refused)
                finally:
                    server.under_way -= 1

        for number, result in run_jobs(jobs, work, self._connection, at_once=at_once):
            yield replace(result, number=number)

    def _connection(self) -> Any:
        return self._servers[0].api.connection()

    def _age(self, server: _Server) -> int:
        assert server.step is not None  # noqa: S101  (it was asked)
        return self._step - server.step

    def _require_server(self) -> _Server:
        """The server with the least to do of those that may be asked; UserError if there is none."""
        most = self._settings.max_staleness
        usable = [server for server in self._servers if server.step is not None and self._age(server) <= most]
        if not usable:
            reasons = "; ".join(
                f"{server.api.url}: {server.failure or f'has no weights of the last {most} steps'}"
                for server in self._servers
            )
            raise UserError(
                f"no engine of --rollout_urls is left: {reasons}",
                fix="Mend them (vLLM needs VLLM_SERVER_DEV_MODE=1, 'cpplm serve' --weights_dir), then go on.",
            )
        return min(usable, key=lambda server: server.under_way)

    @staticmethod
    def _body(request: GenerationRequest, server: _Server) -> dict[str, Any]:
        """Everything that could cut the distribution is said, since servers have defaults of their own."""
        settings = request.settings
        return {
            "prompt": list(request.ids), "n": request.num_samples, "max_tokens": settings.max_new_tokens,
            "temperature": settings.temperature, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
            "repetition_penalty": 1.0, "seed": settings.seed, "logprobs": 0, "return_token_ids": True,
            "stop_token_ids": list(request.end_ids),
            "cache_salt": f"step_{server.step}",  # what was read with other weights is no prefix of this
        }  # fmt: skip


def read_completions(
    answer: dict[str, Any], request: GenerationRequest, tokenizer: Tokenizer
) -> tuple[CompletionOutput, ...]:
    """The completions in a server's answer, as our own engine would have given them.

    Raises:
        ValueError: they are not what was asked for.
    """
    try:
        choices = sorted(answer["choices"], key=lambda choice: int(choice["index"]))
        if [choice["index"] for choice in choices] != list(range(request.num_samples)):
            raise ValueError(f"{len(choices)} answers came, not {request.num_samples}")
        return tuple(_completion(choice, request, tokenizer) for choice in choices)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the answer has no token ids with log-probabilities ({error!r})") from error


def _completion(choice: dict[str, Any], request: GenerationRequest, tokenizer: Tokenizer) -> CompletionOutput:
    """One completion, written again token by token: it ends where our own engine would have ended it.

    Of tokens behind a complete answer (`GenerationRequest.stop`) nothing is learned; that is no truncation of
    the distribution, since the answer's own tokens decide where they begin.
    """
    if choice["prompt_token_ids"] != list(request.ids):
        raise ValueError("it answers other ids than were sent")
    ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    if not all(type(id_) is int and 0 <= id_ < tokenizer.vocab_size for id_ in ids):
        raise ValueError("a token id is not in the vocabulary: the server has another tokenizer")
    if len(logprobs) != len(ids):
        raise ValueError(f"{len(logprobs)} log-probabilities for {len(ids)} tokens")
    if not all(type(value) in (int, float) and -math.inf < value <= _ROUNDING for value in logprobs):
        raise ValueError("a log-probability is no finite number below 0")
    state = SequenceState(tokenizer, request, choice["index"], room=request.settings.max_new_tokens)
    for id_, logprob in zip(ids, logprobs, strict=True):
        if state.finish_reason is not None:
            break
        state.logprobs.append(TokenLogprob(id_, float(logprob), ()))
        state.append(id_)
    if state.finish_reason is None:
        raise ValueError("an answer broke off before its end and its limit")
    if len(state.logprobs) < len(ids) and state.finish_reason != "stop":
        raise ValueError("an answer goes on behind its end")
    return state.completion()
