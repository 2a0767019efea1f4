"""Answers of servers: the same as of our own engine, and nothing is learned from one that fails or lies."""

import dataclasses
import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from cpplm.core.errors import UserError
from cpplm.core.jsonl import read_jsonl
from cpplm.export.hf import load_exported
from cpplm.generate.engine import Engine
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.post_training.rl.policy import decoding_engine
from cpplm.post_training.rl.run import train_by_rewards
from cpplm.post_training.rl.settings import EngineSettings, RlSettings
from cpplm.post_training.rl.url_engine import UrlEngine
from cpplm.tokenizer.special_tokens import BOS, NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.distributed import SINGLE_PROCESS
from tests.commands import start_cpplm
from tests.model.features import random_model
from tests.serve.test_process import serve
from tests.system.test_kill import finish
from tests.train.records import records

Choice = dict[str, Any]
LIMITS = SchedulerLimits(max_batch=16)


class FakeVllm:
    """A server of vLLM's protocol around an engine; `change` is what is wrong with its answers."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.lock = tokenizer, threading.Lock()
        self.begin(model)
        self.http = HTTPServer(host="127.0.0.1", threaded=True)
        self.http.expect_request("/v1/completions").respond_with_handler(self.complete)
        self.http.expect_request("/collective_rpc").respond_with_handler(self.reload)
        self.http.start()
        self.url = self.http.url_for("/v1")

    def begin(self, model: Transformer) -> None:
        """Serve this model, without a fault; nothing was asked yet."""
        self.model = model
        self.change: Callable[[Choice], object] = lambda choice: None
        self.fault: Callable[[], Response] | None = None
        self.reload_status, self.reloads, self.bodies = 200, 0, []

    def reload(self, request: Request) -> Response:
        body = json.loads(request.data)
        assert body["method"] == "reload_weights"
        self.reloads += 1
        if self.reload_status == 200:
            self.model = load_exported(Path(body["kwargs"]["weights_path"]), self.model)
        return Response('{"results": [null]}', self.reload_status, content_type="application/json")

    def complete(self, request: Request) -> Response:
        if self.fault is not None:
            return self.fault()
        with self.lock:
            self.bodies.append(json.loads(request.data))
            choices = self.choices(self.bodies[-1])
        for choice in choices:
            self.change(choice)
        return Response(json.dumps({"choices": choices}), content_type="application/json")

    def choices(self, body: dict[str, Any]) -> list[Choice]:
        assert (body["temperature"], body["top_p"], body["top_k"], body["min_p"]) == (1.0, 1.0, -1, 0.0)
        sampling = SamplingSettings(body["max_tokens"], 1.0, 0, body["seed"])
        request = GenerationRequest(
            tuple(body["prompt"]), sampling, body["n"], logprobs=0, end_ids=tuple(body["stop_token_ids"])
        )
        (result,) = decoding_engine(self.model, self.tokenizer).complete_many([request])
        return [
            {
                "index": index, "text": each.text, "prompt_token_ids": body["prompt"],
                "token_ids": [token.token for token in each.logprobs],
                "logprobs": {"token_logprobs": [token.logprob for token in each.logprobs]},
            }
            for index, each in enumerate(result.completions)
        ]  # fmt: skip


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> Transformer:
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=1, model_dim=32, num_heads=2, num_kv_heads=2, head_dim=16,
        max_seq_len=96,
    )  # fmt: skip
    return random_model(config)


@pytest.fixture(scope="module")
def servers(model: Transformer, tokenizer: Tokenizer) -> Iterator[list[FakeVllm]]:
    """Two servers for all tests: to stop one takes half a second."""
    both = [FakeVllm(model, tokenizer) for _ in range(2)]
    yield both
    for each in both:
        each.http.stop()


@pytest.fixture
def fakes(servers: list[FakeVllm], model: Transformer, no_pauses: None) -> list[FakeVllm]:
    for each in servers:
        each.begin(model)
    return servers


@pytest.fixture
def request_(tokenizer: Tokenizer) -> GenerationRequest:
    settings = SamplingSettings(6, temperature=1.0, top_k=0, seed=5)
    return GenerationRequest(
        (BOS, 70, 71), settings, 4, logprobs=0, end_ids=tuple(range(NUM_SPECIAL)),
        stop=lambda text: len(text) > 10,
    )  # fmt: skip


def connected(
    fakes: list[FakeVllm], model: Transformer, tokenizer: Tokenizer, folder: Path, **settings: Any
) -> UrlEngine:
    urls = tuple(each.url for each in fakes)
    engine = UrlEngine(EngineSettings(urls, **settings), folder, tokenizer)
    return engine.refresh(model, 0, SINGLE_PROCESS)


def test_a_server_is_our_own_engine(
    fakes: list[FakeVllm],
    model: Transformer,
    tokenizer: Tokenizer,
    request_: GenerationRequest,
    tmp_path: Path,
) -> None:
    """Token by token, also where an answer is complete before the model ends it; all servers have work."""
    ours = Engine(decoding_engine(model, tokenizer).model, tokenizer)
    jobs = [
        dataclasses.replace(request_, settings=dataclasses.replace(request_.settings, seed=seed))
        for seed in range(12)
    ]
    theirs = connected(fakes, model, tokenizer, tmp_path)
    expected = {each.number: each.completions for each in ours.complete_many(jobs, LIMITS)}
    for result in theirs.complete_many(jobs, LIMITS):
        assert result.staleness == result.refused == 0
        for mine, other in zip(expected[result.number], result.completions, strict=True):
            assert (mine.text, mine.ids, mine.finish_reason) == (other.text, other.ids, other.finish_reason)
            assert [token.logprob for token in mine.logprobs] == pytest.approx(
                [token.logprob for token in other.logprobs], abs=1e-5
            )
    reasons = {each.finish_reason for completions in expected.values() for each in completions}
    assert reasons == {"stop", "end", "length"}
    assert all(each.bodies for each in fakes)


def _tokens(change: Callable[[list[int], list[Any]], object]) -> Callable[[Choice], object]:
    return lambda choice: change(choice["token_ids"], choice["logprobs"]["token_logprobs"])


def _hang() -> Response:
    time.sleep(1.5)
    return Response(b"")


FAULTS: dict[str, tuple[Callable[[Choice], object] | Callable[[], Response], str]] = {
    "other prompt": (lambda choice: choice.update(prompt_token_ids=[2, 3]), "other ids than were sent"),
    "no prompt": (lambda choice: choice.pop("prompt_token_ids"), "no token ids"),
    "no ids": (lambda choice: choice.update(token_ids=None), "no token ids"),
    "no logprobs": (lambda choice: choice.update(logprobs=None), "no token ids"),
    "another index": (lambda choice: choice.update(index=7), "4 answers came, not 4"),
    "id out of the vocabulary": (_tokens(lambda ids, _: ids.__setitem__(0, 10**6)), "not in the vocabulary"),
    "negative id": (_tokens(lambda ids, _: ids.__setitem__(0, -1)), "not in the vocabulary"),
    "text for an id": (_tokens(lambda ids, _: ids.__setitem__(0, "70")), "not in the vocabulary"),
    "fewer logprobs": (_tokens(lambda _, logprobs: logprobs.pop()), "log-probabilities for"),
    "NaN": (_tokens(lambda _, logprobs: logprobs.__setitem__(0, math.nan)), "no finite number"),
    "infinite": (_tokens(lambda _, logprobs: logprobs.__setitem__(0, -math.inf)), "no finite number"),
    "null": (_tokens(lambda _, logprobs: logprobs.__setitem__(0, None)), "no finite number"),
    "above 0": (_tokens(lambda _, logprobs: logprobs.__setitem__(0, 0.5)), "no finite number"),
    "broken off": (_tokens(lambda ids, logprobs: (ids.pop(), logprobs.pop())), "broke off"),
    "behind its end": (
        _tokens(lambda ids, logprobs: (ids.__setitem__(0, 5), logprobs)), "goes on behind its end"
    ),
    "dies": (lambda: Response(iter([b"{"]), headers={"Content-Length": "99"}), "the connection failed"),
    "hangs": (_hang, "no answer within"),
    "fails": (lambda: Response(b"", 500), "HTTP 500"),
    "no JSON": (lambda: Response(b"<html>", 200), "not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda name: name.replace(" ", "_"))
def test_what_a_server_says_wrongly_is_not_learned(
    fault: str, fakes: list[FakeVllm], model: Transformer, tokenizer: Tokenizer, request_: GenerationRequest,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The other server answers instead; without another the refusal names the one that failed, and why."""
    request_ = dataclasses.replace(request_, stop=None)
    bad, good = fakes
    change, reason = FAULTS[fault]
    if fault in ("dies", "hangs", "fails", "no JSON"):
        bad.fault = change
    else:
        bad.change = change
    seconds = 0.5 if fault == "hangs" else 60.0
    engine = connected(fakes, model, tokenizer, tmp_path, rollout_timeout=seconds)
    (result,) = engine.complete_many([request_], LIMITS)
    assert result.refused == 4
    assert len(good.bodies) == 1
    assert f"warning: {bad.url}: " in (said := capsys.readouterr().err)
    assert reason in said
    engine.refresh(model, 0, SINGLE_PROCESS)  # nobody knows what it has become: it loads the weights anew
    assert (bad.reloads, good.reloads) == (2, 1)
    alone = connected([bad], model, tokenizer, tmp_path, rollout_timeout=seconds)
    with pytest.raises(UserError, match=f"no engine of --rollout_urls is left: {bad.url}: .*{reason}"):
        list(alone.complete_many([request_], LIMITS))


def test_old_weights_are_counted_and_then_not_asked(
    fakes: list[FakeVllm],
    model: Transformer,
    tokenizer: Tokenizer,
    request_: GenerationRequest,
    tmp_path: Path,
) -> None:
    """A server that takes no new weights is asked up to the bound; later it comes back with new ones."""
    engine = connected(fakes[:1], model, tokenizer, tmp_path, max_staleness=2)
    fakes[0].reload_status = 403
    ages = []
    for step in (1, 2):
        engine.refresh(model, step, SINGLE_PROCESS)
        ages += [result.staleness for result in engine.complete_many([request_], LIMITS)]
    assert ages == [1, 2]
    with pytest.raises(UserError, match="has no weights of the last 2 steps"):
        engine.refresh(model, 3, SINGLE_PROCESS)
    fakes[0].reload_status = 500  # nobody knows what it has then
    with pytest.raises(UserError, match="HTTP 500"):
        engine.refresh(model, 4, SINGLE_PROCESS)
    fakes[0].reload_status = 200
    engine.refresh(model, 5, SINGLE_PROCESS)
    assert [each.staleness for each in engine.complete_many([request_], LIMITS)] == [0]
    assert [each.name for each in tmp_path.glob("step_*")] == ["step_000005"]
    assert fakes[0].bodies[-1]["cache_salt"] == "step_5"


@pytest.mark.slow
def test_our_own_server_writes_what_the_run_would(settings: RlSettings, tmp_path: Path) -> None:
    """A process of its own, which is handed the weights of each step: the same answers, the same losses."""
    settings = dataclasses.replace(settings, num_iterations=3)
    train_by_rewards(settings)
    out = tmp_path / "there"
    late = dataclasses.replace(settings, out=tmp_path / "late")
    with serve(Path(settings.init_from), "--weights_dir", str(tmp_path)) as (_, http):
        url = (f"{http.base_url}/v1",)
        train_by_rewards(dataclasses.replace(settings, out=out, engines=EngineSettings(url)))
        train_by_rewards(dataclasses.replace(late, engines=EngineSettings(url, sync_every=2)))
    for ours, theirs in zip(records(settings.out, "step"), records(out, "step"), strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4)
    ours, theirs = (list(read_jsonl(each / "rollouts.jsonl")) for each in (settings.out, out))
    assert ours == theirs
    assert [step["staleness"] for step in records(out, "rollouts")] == [0, 0, 0]
    assert [step["staleness"] for step in records(late.out, "rollouts")] == [0, 1, 0]
    assert all(step["mismatch"] < 1e-3 for step in records(out, "rollouts"))
    assert [each.name for each in (out / "weights").glob("step_*")] == ["step_000002"]


@pytest.mark.slow
def test_ranks_share_the_servers(settings: RlSettings, tmp_path: Path) -> None:
    """The first hands over the weights; both ask, and learn what one alone would."""
    with serve(Path(settings.init_from), "--weights_dir", str(tmp_path)) as (_, http):
        for ranks in (1, 2):
            finish(
                start_cpplm(
                    "rl", settings.tasks, "--init_from", settings.init_from, "--out", tmp_path / str(ranks),
                    "--num_prompts", 4, "--num_samples", 6, "--num_iterations", 3, "--audit_items", 0,
                    "--device_type", "cpu", "--precision", "fp32", "--rollout_urls", f"{http.base_url}/v1",
                    ranks=ranks,
                )
            )  # fmt: skip
    one, two = ([step["loss"] for step in records(tmp_path / str(n), "step")] for n in (1, 2))
    assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_weights_come_from_their_folder_alone(chat_model: Path, model: Transformer, tmp_path: Path) -> None:
    (tmp_path / "weights").mkdir()
    with serve(chat_model, "--weights_dir", str(tmp_path / "weights")) as (_, http):
        for path, status in ((tmp_path, 403), (tmp_path / "weights", 400), (chat_model, 403)):
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
            assert http.post("/collective_rpc", json=body).status_code == status
        assert http.post("/collective_rpc", json={"method": "exit", "kwargs": {}}).status_code == 400
