"""A model behind a server: the protocol, and every way in which a server fails."""

import itertools
import json
import threading
import time
from collections import Counter
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.models import server as server_module
from cpplm.evaluate.models import url_model
from cpplm.evaluate.models.code_model import CodePrompt, Completion
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.evaluate.models.server import ApiClient
from cpplm.evaluate.models.url_model import UrlModel
from cpplm.generate.settings import SamplingSettings
from tests.evaluate.models import loopback as faults
from tests.evaluate.models.loopback import Loopback
from tests.texts import cpp_document

GREEDY = SamplingSettings(max_new_tokens=8, temperature=0.0)
SAMPLED = SamplingSettings(max_new_tokens=8, temperature=1.0, top_k=20, seed=3)
SPELT = "é漢🙂 x\t{ 漢漢 }\n"


def connect(loopback: Loopback, **more: Any) -> UrlModel:
    return UrlModel.connect(loopback.url, **more)


def samples(
    model: Any, requests: list[CodePrompt], sampling: SamplingSettings, **more: Any
) -> list[list[Completion]]:
    found = dict(model.generate(requests, sampling, **more))
    assert sorted(found) == list(range(len(requests)))
    return [found[number] for number in range(len(requests))]


def one(loopback: Loopback, **more: Any) -> Completion:
    ((written,),) = samples(connect(loopback, **more), [CodePrompt("int f(")], GREEDY)
    return written


# ---- writing ----------------------------------------------------------------------------------------------

REQUESTS = [CodePrompt(cpp_document(number)[: 10 + 5 * number]) for number in range(6)]


def test_texts_are_the_models_own(loopback: Loopback, hf_model: HfModel) -> None:
    model = connect(loopback)
    assert (model.name, model.max_context) == ("tiny", 64)
    assert samples(model, REQUESTS, GREEDY) == samples(hf_model, REQUESTS, GREEDY)


def test_every_sample_has_its_own_seed_and_all_that_was_asked(loopback: Loopback) -> None:
    model = connect(loopback)
    first = samples(model, REQUESTS[:2], SAMPLED, num_samples=3)
    asked = list(loopback.asked)
    assert first == samples(model, REQUESTS[:2], SAMPLED, num_samples=3)
    assert len({written.text for each in first for written in each}) == 6
    assert {body["seed"] for body in asked} == {3_000_009 + index for index in range(3)}
    assert {(body["top_k"], body["temperature"], body["max_tokens"]) for body in asked} == {(20, 1.0, 8)}
    assert not any(body["stream"] for body in asked)


def test_holes_go_out_with_a_suffix_where_the_server_takes_it(loopback: Loopback, hf_model: HfModel) -> None:
    hole = [CodePrompt("int f(", "}")]
    filled = samples(connect(loopback, supports_fim=True), hole, GREEDY)
    assert filled == samples(hf_model, hole, GREEDY)
    assert loopback.asked[-1]["suffix"] == "}"
    assert samples(connect(loopback), hole, GREEDY) == samples(hf_model, [CodePrompt("int f(")], GREEDY)
    assert "suffix" not in loopback.asked[-1]


def test_stop_cuts_a_stream_short(loopback: Loopback) -> None:
    model = connect(loopback)
    full = samples(model, REQUESTS, SAMPLED, num_samples=2)
    cut = samples(model, REQUESTS, SAMPLED, num_samples=2, stop=lambda text: len(text) >= 3)
    assert loopback.asked[-1]["stream"]
    for whole, part in zip(itertools.chain(*full), itertools.chain(*cut), strict=True):
        assert part.text == whole.text[:3]


def test_only_so_many_requests_at_a_time(loopback: Loopback) -> None:
    loopback.always = lambda: (time.sleep(0.02), faults.status(404)())[-1]
    samples(connect(loopback, at_once=3), REQUESTS * 4, GREEDY)
    assert loopback.most_under_way == 3


# ---- a server that fails ----------------------------------------------------------------------------------

TEXT = json.dumps({"choices": [{"text": "x", "finish_reason": "stop"}]}).encode()
STALL = faults.stall(30.0)


@pytest.mark.parametrize(
    "fault",
    [
        faults.status(500, b"oops"),
        faults.status(429, b"{}", Retry_After="0.01"),
        faults.status(429, Retry_After="Fri, 31 Dec 1999 23:59:59 GMT"),
        faults.says(b""),
        faults.says(b"[" * 100_000),
        faults.says(b'{"choices": [{"text": 7}]}'),
        faults.says(b'{"choices": [null]}'),
        faults.hang_up,
    ],
    ids=lambda fault: fault.__qualname__.split(".")[0],
)
def test_what_may_pass_is_tried_again(loopback: Loopback, fault: faults.Fault, hf_model: HfModel) -> None:
    loopback.faults = [fault, fault]
    written = one(loopback)
    assert written == samples(hf_model, [CodePrompt("int f(")], GREEDY)[0][0]
    assert len(loopback.asked) == 3


@pytest.mark.parametrize(
    ("fault", "reason", "attempts"),
    [
        (faults.status(500, b"<html>a\x00\x1b[31mb</html>"), "HTTP 500 <html>a [31mb</html>", 5),
        (faults.status(400, b'{"error": {"message": "no such"}}'), "HTTP 400 no such", 1),
        (faults.status(302, Location="http://127.0.0.1:1/"), "HTTP 302", 1),
        (faults.says(TEXT, Content_Encoding="gzip"), "compressed answer", 1),
        (faults.flood, "an answer of more than 1,000,000 bytes", 1),
    ],
)
def test_what_does_not_pass_is_named(
    loopback: Loopback, fault: faults.Fault, reason: str, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_ANSWER_BYTES", 1_000_000)
    model = connect(loopback)
    loopback.always = fault
    ((written,),) = samples(model, [CodePrompt("int f(")], GREEDY)
    assert written.text == ""
    assert reason in written.failed
    assert len(loopback.asked) == attempts


@pytest.mark.parametrize("fault", [STALL, faults.drip(0.05)], ids=["stall", "drip"])
def test_silence_is_named(loopback: Loopback, fault: faults.Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_WHOLE", 1.5)
    loopback.always = fault
    model = UrlModel(ApiClient(loopback.url, timeout=0.3, attempts=2), "tiny")
    assert samples(model, [CodePrompt("int f(")], GREEDY) == [[Completion("", "no answer within 0.3 s")]]
    assert len(loopback.asked) == 2


def test_a_failure_takes_no_other_request_with_it(loopback: Loopback, hf_model: HfModel) -> None:
    too_long = CodePrompt("int x;\n" * 100)
    requests = [REQUESTS[0], too_long, *REQUESTS[1:]]
    found = samples(connect(loopback), requests, GREEDY)
    assert "too many" in found[1][0].failed
    assert [found[0], *found[2:]] == samples(hf_model, REQUESTS, GREEDY)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'data: {"choices": [{"text": "a"}]}\n\n', "broke off"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "out of memory"),
        (b"data: " + b"x" * 2_000_000, "connection failed|more than"),
        (b'data: {"choices": []}\n\n' * 50_000, "more than"),
    ],
)
def test_streams_that_fail(
    loopback: Loopback, data: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_ANSWER_BYTES", 1_000_000)
    loopback.always = faults.says(data, "text/event-stream")
    ((written,),) = samples(connect(loopback), [CodePrompt("x")], GREEDY, stop=lambda text: False)
    assert any(part in written.failed for part in reason.split("|")), written.failed


def test_a_dead_server_is_not_asked_for_ever(loopback: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(url_model, "GIVE_UP_AFTER", 4)
    model = connect(loopback, at_once=2)
    loopback.always = faults.status(500)
    found = samples(model, REQUESTS * 5, GREEDY)
    reasons = Counter(written.failed for each in found for written in each)
    assert reasons["HTTP 500"] <= 6
    assert sum(count for reason, count in reasons.items() if "not asked" in reason) >= 24


def test_whoever_has_enough_waits_for_nobody(loopback: Loopback) -> None:
    model = connect(loopback, timeout=60.0)
    loopback.faults = [faults.says(TEXT)]
    loopback.always = STALL
    begin = time.monotonic()
    found = model.generate(REQUESTS, GREEDY)
    next(found)
    found.close()
    assert time.monotonic() - begin < 20
    assert "requests" not in {thread.name for thread in threading.enumerate()}


# ---- addresses and keys -----------------------------------------------------------------------------------


def test_the_key_goes_to_the_server_and_nowhere_else(
    loopback: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    loopback.key = "sk-secret"
    model = connect(loopback, api_key_env="SOME_KEY")
    assert samples(model, REQUESTS[:1], GREEDY)[0][0].failed == ""
    assert loopback.headers[-1]["Authorization"] == "Bearer sk-secret"
    assert "secret" not in json.dumps(model.identity) + model.name
    loopback.key = "sk-other"  # the server repeats the wrong key
    failed = samples(model, REQUESTS[:1], GREEDY)[0][0].failed
    assert "wrong key Bearer ***" in failed
    with pytest.raises(UserError, match="refuses the key") as caught:
        connect(loopback, api_key_env="SOME_KEY")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8000", "not an HTTP address"),
        ("http://user:word@127.0.0.1/v1", "password"),
        ("http://127.0.0.1/v1?key=1", "password or a query"),
        ("http://127.0.0.1:99999/v1", "not an HTTP address"),
        ("http://127.0.0.1:9/v1", "does not answer"),
    ],
)
def test_wrong_addresses(url: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        UrlModel.connect(url, "x")
    assert "word@" not in str(caught.value)


@pytest.mark.parametrize(
    ("models", "name", "found"),
    [
        ({"data": [{"id": "a"}]}, "", "a"),
        ({"data": [{"id": "a"}, {"id": "b"}]}, "b", "b"),
        ({"object": 3}, "b", "b"),
        ({"data": [{"id": "a"}, {"id": "b"}]}, "", None),
    ],
)
def test_the_name_of_the_model(loopback: Loopback, models: Any, name: str, found: str | None) -> None:
    loopback.models = models
    if found is None:
        with pytest.raises(UserError, match="--model_name"):
            connect(loopback, model_name=name)
    else:
        assert connect(loopback, model_name=name).name == found


# ---- scoring ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts_as_bytes", [False, True])
def test_bits_are_the_models_own(loopback: Loopback, hf_model: HfModel, parts_as_bytes: bool) -> None:
    loopback.parts_as_bytes = parts_as_bytes
    texts = ["int f(int x) { return x; }\n", SPELT, "", "x"]
    for theirs, ours in zip(connect(loopback).score(texts), hf_model.score(texts), strict=True):
        assert theirs.bits.tolist() == pytest.approx(ours.bits.tolist(), rel=1e-4)
        assert theirs.context.tolist() == ours.context.tolist()
        whole = [place for place, end in enumerate(ours.ends) if end in theirs.ends]
        assert theirs.ends[whole].tolist() == ours.ends[whole].tolist()
        assert theirs.ends.tolist() == sorted(theirs.ends)


def test_without_a_start_token_the_first_one_is_plain_text(loopback: Loopback, hf_model: HfModel) -> None:
    loopback.says_start = False
    ((theirs,), (ours,)) = connect(loopback).score(["int f();"]), hf_model.score(["int f();"])
    assert theirs.bits[0] == pytest.approx(8 * ours.ends[0])
    assert theirs.bits[1:].tolist() == pytest.approx(ours.bits[1:].tolist(), rel=1e-4)
    assert theirs.context.tolist() == list(range(len(ours.bits)))


def test_long_texts_are_scored_in_windows(loopback: Loopback, hf_model: HfModel) -> None:
    texts = [cpp_document(4), "é漢🙂\n" * 40, "x" * 400]
    for text, theirs, ours in zip(texts, connect(loopback).score(texts), hf_model.score(texts), strict=True):
        assert theirs.ends[-1] == len(text.encode())
        assert len(theirs.bits) == len(ours.bits)
        assert theirs.bits.sum() == pytest.approx(ours.bits.sum(), rel=0.1)
        late = theirs.context[80:]
        assert late.min() >= 20  # windows are measured in bytes, so half of 64 is not exact
        assert late.max() <= 64


def test_a_window_that_is_too_long_for_the_server_is_shortened(loopback: Loopback) -> None:
    """Easy text first, so that what follows is guessed to take fewer tokens than it does."""
    text = "    return (value << 1) + 12;\n" * 6 + "q漢z" * 60
    (found,) = connect(loopback).score([text])
    assert found.ends[-1] == len(text.encode())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            faults.status(400, b'{"error": {"message": "echo is not supported"}}'),
            "echo is not supported.*--hf_dir",
        ),
        (faults.says(b'{"choices": [{"text": "x", "logprobs": null}]}'), "no log-probabilities.*--hf_dir"),
        (faults.status(500), "Run the same command again"),
    ],
)
def test_a_server_that_cannot_score(loopback: Loopback, fault: faults.Fault, message: str) -> None:
    model = connect(loopback)
    loopback.always = fault
    with pytest.raises(UserError, match=message):
        list(model.score(["int x;"]))
