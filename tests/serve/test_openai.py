"""The real client of OpenAI's API against a real model, and our own client that measures models."""

from typing import Any

import openai
import pytest

from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.models.url_model import UrlModel
from cpplm.generate.engine import Engine
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.tokenizer.special_tokens import BOS, NUM_SPECIAL
from tests.serve.served import NAME, Served, chunks, error_of, serving
from tests.texts import cpp_document

PROMPT = "int main() {\n    ret"
SAMPLED = {"temperature": 0.7, "top_p": 0.9, "seed": 5}


def settings(tokens: int, **more: object) -> SamplingSettings:
    return SamplingSettings(tokens, 0.7, 0, seed=5, top_p=0.9, **more)  # type: ignore[arg-type]


def by_engine(engine: Engine, request: GenerationRequest) -> list[CompletionOutput]:
    (answer,) = engine.complete_many([request], SchedulerLimits(max_batch=8))
    return list(answer.completions)


# ---- models -----------------------------------------------------------------------------------------------


def test_models(client: openai.OpenAI, engine: Engine) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.owned_by) == (NAME, "cpplm")
    assert client.models.retrieve(NAME) == model
    shown = model.model_dump()
    assert (shown["max_model_len"], shown["stage"]) == (engine.model.config.max_seq_len, "sft")
    assert shown["parent"] is None
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("path", "use"),
    [
        ("/v1/embeddings", "/v1/completions"), ("/v1/responses", "use /v1/chat/completions"),
        ("/responses", "use /v1/chat/completions"), ("/completions", "use /v1/completions"),
        ("/chat/completions", "use /v1/chat/completions"), ("/tokenise", "use /tokenize"),
        ("/something/else", "GET /openapi.json"),
    ],
)  # fmt: skip
def test_what_is_not_there_names_what_is(served: Served, path: str, use: str) -> None:
    error = error_of(served.post(path, {"input": "int"}), 404, "not_found")
    assert use in error["message"]
    assert "\n" not in error["message"]


# ---- completions ------------------------------------------------------------------------------------------


def test_a_completion_is_the_engines(client: openai.OpenAI, engine: Engine) -> None:
    request = engine.request(PROMPT, settings=settings(24), num_samples=3)
    expected = by_engine(engine, request)
    answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=24, n=3, **SAMPLED)
    assert [choice.text for choice in answer.choices] == [each.text for each in expected]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    reasons = [{"end": "stop"}.get(each.finish_reason, each.finish_reason) for each in expected]
    assert [choice.finish_reason for choice in answer.choices] == reasons
    assert answer.object == "text_completion"
    assert answer.model == NAME
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("prompt", [PROMPT, "x", "", "struct é", "int x;\n#  "])
def test_what_spells_the_prompts_end_anew_is_of_the_prompt(
    served: Served, engine: Engine, prompt: str
) -> None:
    """Tokens are counted as the client sees them: its text, and at most `max_tokens` behind it."""
    body = {"prompt": prompt, "max_tokens": 5, "n": 2, "seed": 5}
    written = 2 * 5
    before = served.metric("cpplm_prompt_tokens_total"), served.metric("cpplm_generation_tokens_total")
    streamed = chunks(
        served.post("/v1/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
    )
    after = served.metric("cpplm_prompt_tokens_total"), served.metric("cpplm_generation_tokens_total")
    usage = served.complete(**body)["usage"]
    assert usage == streamed[-1]["usage"]
    assert usage["prompt_tokens"] == len(engine.tokenizer.encode(prompt)) + 1  # <BOS>
    assert usage["completion_tokens"] == written
    assert [b - a for a, b in zip(before, after, strict=True)] == [usage["prompt_tokens"], written]


def test_a_prompt_that_is_only_read_is_counted_too(served: Served) -> None:
    before = served.metric("cpplm_prompt_tokens_total")
    usage = served.complete(prompt=PROMPT, max_tokens=0, echo=True)["usage"]
    assert served.metric("cpplm_prompt_tokens_total") - before == usage["prompt_tokens"] > 0


def test_a_stream_is_the_same_in_pieces(client: openai.OpenAI) -> None:
    asked = {"model": NAME, "prompt": PROMPT, "max_tokens": 24, "n": 2, **SAMPLED}
    whole = client.completions.create(**asked)
    texts, reasons, usages = {0: "", 1: ""}, {}, []
    records = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    for record in records:
        usages.append(record.usage)
        for choice in record.choices:
            texts[choice.index] += choice.text
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    assert [texts[n] for n in (0, 1)] == [choice.text for choice in whole.choices]
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert usages.pop() == whole.usage
    assert records[-1].choices == []
    assert set(usages) == {None}
    assert len({record.id for record in records}) == 1
    assert len(records) > 10  # as soon as it is written


def test_stop_texts(client: openai.OpenAI, engine: Engine) -> None:
    (free,) = by_engine(engine, engine.request(PROMPT, settings=settings(40)))
    stop = free.text[9:12]
    expected = free.text[: free.text.index(stop)]
    for asked in (stop, ["never there", stop]):
        answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=40, stop=asked, **SAMPLED)
        assert answer.choices[0].text == expected
        assert answer.choices[0].finish_reason == "stop"


def test_any_seed_that_openai_takes(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=30, seed=seed)
        return answer.choices[0].text

    assert text(-7) == text(-7) != text(7)
    assert text(2**63 - 1)


def test_a_suffix_is_filled_in(client: openai.OpenAI, engine: Engine) -> None:
    request = engine.request("int f() {\n", "\n}\n", settings=settings(20))
    (expected,) = by_engine(engine, request)
    answer = client.completions.create(
        model=NAME, prompt="int f() {\n", suffix="\n}\n", max_tokens=20, **SAMPLED
    )
    assert answer.choices[0].text == expected.text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(request.ids)


def test_a_prompt_that_fills_the_context_is_refused(served: Served, engine: Engine) -> None:
    """Also one that would fit without its end, which is spelt anew: nothing could be written behind it."""
    words = [f"x{number};" for number in range(400)]
    sizes = {len(engine.tokenizer.encode(" ".join(words[:n]))) + 1: n for n in range(400)}
    context = engine.model.config.max_seq_len
    fits = " ".join(words[: sizes[max(size for size in sizes if size < context)]])
    full = " ".join(words[: sizes[min(size for size in sizes if size >= context)]])
    assert len(engine.request(full).ids) < context
    assert served.complete(prompt=fits, seed=1)["usage"]["completion_tokens"] > 0
    error_of(served.post("/v1/completions", {"prompt": full}), 400, "context_length_exceeded")


def test_prompts_as_tokens(client: openai.OpenAI, engine: Engine) -> None:
    """Taken as they are: nothing of them is spelt anew; <BOS> may be there or not."""
    ids = engine.tokenizer.encode("int main() {")
    (expected,) = by_engine(engine, GenerationRequest((BOS, *ids), settings(12)))
    for prompt in (ids, [BOS, *ids]):
        answer = client.completions.create(model=NAME, prompt=prompt, max_tokens=12, **SAMPLED)
        assert answer.choices[0].text == expected.text
    echoed = client.completions.create(model=NAME, prompt=[ids, ids], max_tokens=12, echo=True, **SAMPLED)
    assert [choice.text for choice in echoed.choices] == ["int main() {" + expected.text] * 2


def test_an_echo(client: openai.OpenAI) -> None:
    plain = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=12, **SAMPLED).choices[0]
    echoed = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=12, echo=True, **SAMPLED)
    assert echoed.choices[0].text == PROMPT + plain.text
    records = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=12, echo=True, stream=True, **SAMPLED
    )
    assert "".join(record.choices[0].text for record in records) == PROMPT + plain.text
    alone = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=0, echo=True)
    assert (alone.choices[0].text, alone.choices[0].finish_reason) == (PROMPT, "length")


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_lists_what_ends_it(served: Served, engine: Engine, stream: bool) -> None:
    """One entry for each token: lm-evaluation-harness takes the last one for the one that was written."""
    ids = engine.tokenizer.encode(PROMPT)
    body = {"prompt": ids, "max_tokens": 1, "temperature": 0, "logprobs": 1, "stream": stream,
            "logit_bias": {"3": 100}, "stop_token_ids": [3]}  # fmt: skip
    listed: list[float | None] = []
    response = served.post("/v1/completions", {**body, "echo": True})
    for answer in chunks(response) if stream else [response.json()]:
        listed += (answer["choices"][0]["logprobs"] or {"token_logprobs": []})["token_logprobs"]
    assert len(listed) == len(ids) + 1
    (alone,) = served.complete(**{**body, "stream": False})["choices"]
    assert (alone["text"], alone["finish_reason"], alone["logprobs"]["tokens"]) == ("", "stop", [])


def test_other_parameters(client: openai.OpenAI, engine: Engine) -> None:
    """Those that OpenAI has not, and those that mean nothing."""
    sampling = SamplingSettings(20, 1.5, 7, 3, 1.0, 0.05, 1.3)
    (expected,) = by_engine(engine, engine.request(PROMPT, settings=sampling))
    answer = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=20, temperature=1.5, seed=3, user="me", frequency_penalty=0,
        presence_penalty=0, best_of=1, logit_bias={},
        extra_body={"top_k": 7, "min_p": 0.05, "repetition_penalty": 1.3, "cache_prompt": True},
    )  # fmt: skip
    assert answer.choices[0].text == expected.text


def test_penalties_and_bias(client: openai.OpenAI, served: Served, engine: Engine) -> None:
    """In completions and chats alike; a token that the model does not have is refused."""
    more: dict[str, Any] = {"frequency_penalty": 1.5, "presence_penalty": -0.5}
    sampling = settings(20, **more, logit_bias=((70, 4.0), (71, -100.0)))
    (expected,) = by_engine(engine, engine.request(PROMPT, settings=sampling))
    more["logit_bias"] = {"70": 4, "71": -100}
    answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=20, **SAMPLED, **more)
    assert answer.choices[0].text == expected.text
    (plain,) = by_engine(engine, engine.request(PROMPT, settings=settings(20)))
    assert plain.text != expected.text
    forced = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "logit_bias": {"70": 100}}
    content = served.post("/v1/chat/completions", forced).json()["choices"][0]["message"]["content"]
    assert content == engine.tokenizer.decode([70] * 3)
    beyond = {"prompt": "x", "logit_bias": {str(engine.tokenizer.vocab_size): 1}}
    error_of(served.post("/v1/completions", beyond), 400, "invalid_value")


# ---- probabilities ----------------------------------------------------------------------------------------


def data_of(token: str) -> bytes:
    """The bytes that a listed token stands for."""
    if token.startswith("bytes:"):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode()


def test_probabilities_of_a_completion(client: openai.OpenAI, engine: Engine) -> None:
    """Those of the tokens of the text: not of what spells the prompt's end anew."""
    request = engine.request(PROMPT, settings=settings(16), logprobs=4)
    (expected,) = by_engine(engine, request)
    answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=16, logprobs=4, **SAMPLED)
    found = answer.choices[0].logprobs
    assert found is not None
    assert found.tokens and found.token_logprobs and found.text_offset and found.top_logprobs
    assert request.prefix  # so there is something to leave out
    spelled = b"".join(map(data_of, found.tokens)).decode("utf-8", "replace")
    assert spelled == answer.choices[0].text == expected.text
    spelt = len(expected.logprobs) - len(found.tokens)
    assert spelt >= 0
    listed = expected.logprobs[spelt:]
    assert found.token_logprobs == pytest.approx([each.logprob for each in listed], abs=1e-4)
    assert all(len(top) <= 4 for top in found.top_logprobs)
    for token, offset in zip(found.tokens, found.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert (PROMPT + expected.text)[offset:].lstrip("\ufffd").startswith(token)


def test_probabilities_in_a_stream_are_the_same(client: openai.OpenAI, engine: Engine) -> None:
    """Also where a stop text cuts tokens off."""
    (free,) = by_engine(engine, engine.request(PROMPT, settings=settings(40)))
    asked = {"model": NAME, "prompt": PROMPT, "max_tokens": 40, "logprobs": 2, "stop": free.text[14:16],
             **SAMPLED}  # fmt: skip
    whole = client.completions.create(**asked).choices[0]
    assert whole.logprobs is not None
    tokens, offsets = [], []
    for record in client.completions.create(**asked, stream=True):
        logprobs = record.choices[0].logprobs
        if logprobs is not None:
            tokens += logprobs.tokens or []
            offsets += logprobs.text_offset or []
    assert (tokens, offsets) == (whole.logprobs.tokens, whole.logprobs.text_offset)
    assert "".join(tokens).startswith(whole.text)
    assert not "".join(tokens[:-1]).startswith(whole.text) or "".join(tokens) == whole.text


def test_our_own_client_scores_as_the_model_itself(served: Served, engine: Engine) -> None:
    ours, local = UrlModel.connect(f"{served.url}/v1"), CheckpointModel(engine)
    assert ours.max_context == local.max_context
    for text in (cpp_document(3)[:400], "é漢🙂 x\t{ 漢漢 }\n", "x"):
        (found,), (expected,) = ours.score([text]), local.score([text])
        assert found.ends.tolist() == expected.ends.tolist()
        assert found.bits == pytest.approx(expected.bits, abs=2e-3)


# ---- what is refused --------------------------------------------------------------------------------------

PROMPTS = (
    "prompt: must be text, a list of token ids (whole numbers from 0), or a list of either; "
    "no list may be empty"
)
STOPS = "stop: must be text of 1 to 1000 characters, or a list of at most 128 such texts"
REFUSED = [
    ({"temperature": "0.5"}, "temperature", "valid number"),
    ({"repetition_penalty": 5e-324}, "repetition_penalty", "greater than or equal to 0.01"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": 100}, "n", "100 completions in one request: the most is 16"),
    ({"prompt": 7}, "prompt", PROMPTS),
    ({"prompt": []}, "prompt", PROMPTS),
    ({"prompt": [1, "x"]}, "prompt", PROMPTS),
    ({"prompt": [10**6]}, "prompt", "the model has no token 1000000"),
    ({"stop": ""}, "stop", STOPS),
    ({"stop": 7}, "stop", STOPS),
    ({"stop": ["x", None]}, "stop", STOPS),
    ({"stop": ["x"] * 200}, "stop", STOPS),
    ({"best_of": 3}, "best_of", "not supported"),
    ({"return_token_ids": True}, "return_token_ids", "needs logprobs"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids", "has no token 1000000"),
    ({"logit_bias": {"70": 100.5}}, "logit_bias", "number from -100 to 100"),
    ({"logit_bias": {"int": 5}}, "logit_bias", "token ids, as text"),
    ({"frequency_penalty": 2.5}, "frequency_penalty", "less than or equal to 2"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "'text'"),
    ({"temprature": 1}, "temprature", "unknown parameter: temprature. Did you mean 'temperature'?"),
    ({"suffix": "x", "echo": True}, "echo", "exclude each other"),
    ({"suffix": "x", "prompt": [70]}, "prompt", "is text"),
    ({"seed": 2**63}, "seed", "less than"),
    ({"prompt": "int x; " * 400}, "prompt", "context is 256"),
    ({"prompt": "x" * 10_000_000 }, None, "more than 4,194,304 bytes"),
    ({"prompt": "x" * 4_000_000 }, "prompt", "the prompt has more than"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "param", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_refused(
    client: openai.OpenAI, change: dict[str, object], param: str | None, message: str
) -> None:
    """With the field that is to blame, and a message that says how to mend it."""
    with pytest.raises(openai.APIStatusError) as refused:
        client.completions.create(
            model=NAME,
            prompt=change.pop("prompt", PROMPT),
            extra_body=change,  # type: ignore[arg-type]
        )
    error = refused.value
    assert error.status_code == (413 if "bytes" in message else 400)
    assert message in str(error.body["message"])  # type: ignore[index]
    assert error.param == param
    assert error.type == "invalid_request_error"


def test_another_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="only 'tiny'"):
        client.completions.create(model="gpt-4", prompt="x")


def test_a_model_that_was_not_trained_to_fill_in(engine: Engine) -> None:
    with serving(engine, supports_fim=False) as other:
        answer = other.post("/v1/completions", {"prompt": "x", "suffix": "y"})
        assert "was not trained to fill in" in error_of(answer, 400, "no_fill_in")["message"]
        assert other.complete(prompt="x", suffix="", max_tokens=2)["choices"][0]["text"]
        entry = other.http.get("/v1/models").json()["data"][0]
        assert entry["supports_fim"] is False


@pytest.mark.parametrize("temperature", [5e-324, 1e-38, 1e-6, 0.002, 100])
def test_any_temperature(client: openai.OpenAI, temperature: float) -> None:
    """Logits divided by it, and by a penalty, stay finite."""
    answer = client.completions.create(
        model=NAME, prompt=PROMPT, max_tokens=20, temperature=temperature, top_p=0,
        extra_body={"repetition_penalty": 0.01, "min_p": 5e-324},
    )  # fmt: skip
    assert answer.choices[0].text


def test_ids_are_given_with_the_end_that_was_allowed(served: Served) -> None:
    """Of prompts side by side, each with its completions: as vLLM gives them."""
    prompts = [[BOS, 70, 71], [BOS, 80]]
    answer = served.complete(
        prompt=prompts, n=2, max_tokens=40, temperature=2.0, seed=1, logprobs=0, return_token_ids=True,
        stop_token_ids=list(range(NUM_SPECIAL)),
    )  # fmt: skip
    choices = answer["choices"]
    assert [each["prompt_token_ids"] for each in choices] == [prompts[0]] * 2 + [prompts[1]] * 2
    for each in choices:
        ids = each["token_ids"]
        assert len(ids) == len(each["logprobs"]["token_logprobs"])
        assert all(id_ >= NUM_SPECIAL for id_ in ids[:-1])
        assert (ids[-1] < NUM_SPECIAL) == (each["finish_reason"] == "stop")
    assert any(each["finish_reason"] == "stop" for each in choices)
    assert "token_ids" not in served.complete(prompt=prompts[0], max_tokens=1, logprobs=0)["choices"][0]
