"""Requests as editors send them, byte for byte the fields of their sources, over plain HTTP.

llama.vscode: src/llama-server.ts, `createRequestPayload` and `createChatEditRequestPayload`. llama.vim:
autoload/llama.vim. Continue: core/llm/llms/OpenAI.ts, `_streamFim` and `_convertArgs`, as its provider
"mistral" uses them.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from cpplm.generate.engine import Engine
from cpplm.generate.project.context import project_context
from cpplm.generate.project.line_retrieval import RetrievedLines
from cpplm.generate.settings import ProjectSettings, SamplingSettings
from cpplm.serve.api.infill import InfillStop, infill_context
from cpplm.serve.request_builder import RequestBuilder, ServedModel
from cpplm.serve.settings import RequestSettings
from cpplm.tokenizer.special_tokens import BOS, FIM_PREFIX
from tests.serve.served import NAME, Served, chunks, error_of, events, serving
from tests.texts import cpp_document

PREFIX = "#include <vector>\n\nint area(int width, int height) {\n"
SUFFIX = "\n}\n\nint main() {}\n"
EXTRA = [
    {"text": "struct Shape;\n", "time": 1_700_000_000_000, "filename": "shape.h"},
    {"text": "int width(const Shape&);\n", "time": 1_700_000_000_001, "filename": "width.h"},
]


def llama_vscode(**changed: Any) -> dict[str, Any]:
    return {
        "input_prefix": PREFIX, "input_suffix": SUFFIX, "input_extra": EXTRA, "prompt": "    return wid",
        "n_predict": 24, "top_k": 40, "top_p": 0.99, "stream": False,
        "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "n_indent": 4,
        "t_max_prompt_ms": 500, "t_max_predict_ms": 2500, **changed,
    }  # fmt: skip


# ---- llama.vscode and llama.vim ---------------------------------------------------------------------------


def test_a_completion_at_the_cursor(served: Served, engine: Engine) -> None:
    """With every field that the plug-in then reads for its status bar."""
    body = llama_vscode(temperature=0, n_indent=0, input_extra=[], t_max_predict_ms=60_000)
    answer = served.post("/infill", body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    sampling = SamplingSettings(24, 0, 40, top_p=0.99)
    request = engine.request(PREFIX + "    return wid", SUFFIX, settings=sampling)
    (expected,) = next(iter(engine.complete_many([request]))).completions
    assert found["content"] == expected.text
    assert found["generation_settings"]["n_ctx"] == engine.model.config.max_seq_len
    assert found["tokens_cached"] == len(request.ids) + len(expected.ids)
    assert found["truncated"] is False
    assert (found["stop"], found["stop_type"]) == (True, "limit")
    timings = found["timings"]
    assert timings["prompt_n"] == found["tokens_evaluated"] == len(request.ids)
    assert timings["predicted_n"] == found["tokens_predicted"] == len(expected.ids)
    for name in ("prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_second"):
        assert timings[name] > 0


def test_syntax_is_watched(served: Served, engine: Engine) -> None:
    """Until the watch has changed a text, but of three seeds at least."""
    line, found = "    return 2 *", set()
    body = llama_vscode(n_indent=0, input_extra=[], t_max_predict_ms=60_000, prompt=line, temperature=1)
    for seed in range(8):
        settings = SamplingSettings(24, 1, 40, top_p=0.99, seed=seed)
        request = engine.request(PREFIX + line, SUFFIX, settings=settings, valid=True)
        (expected,) = next(iter(engine.complete_many([request]))).completions
        watched, free = (
            served.post("/infill", {**body, "seed": seed, **more}).json()["content"]
            for more in ({"valid": "cpp"}, {})
        )
        assert watched == expected.text
        found.add(watched != free)
        if True in found and seed >= 2:
            break
    assert True in found


def test_what_is_read_ahead_stays_read(engine: Engine) -> None:
    """`n_predict` 0 tells of pieces of other files before they are needed; they come first in the prompt."""
    with serving(engine, requests=RequestSettings(fim_order="psm")) as served:
        ahead = {
            "input_prefix": "", "input_suffix": "", "input_extra": EXTRA * 3, "prompt": "", "n_predict": 0,
            "samplers": [], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1,
        }  # fmt: skip
        answer = served.post("/infill", ahead).json()
        assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
        served.settle()
        tokenizer, scheduler = served.engine.engine.tokenizer, served.engine.scheduler
        extra = tokenizer.encode("".join(each["text"] + "\n" for each in EXTRA * 3))
        body = llama_vscode(input_extra=EXTRA * 3)
        assert served.post("/infill", body).status_code == 200
        served.settle()
        sequence = scheduler.cache.begin((BOS, FIM_PREFIX, *extra))
        assert sequence.length >= len(extra) // 16 * 16 - 16
        scheduler.cache.release(sequence)


@pytest.mark.parametrize("ngrams", ["on", "off"])
def test_text_of_the_project_stands_before_the_prefix(
    engine: Engine, tmp_path: Path, ngrams: Literal["on", "off"]
) -> None:
    last = PREFIX.split("\n")[-2]
    (tmp_path / "other.cpp").write_text(f"{last}\nint of_the_project;\n")
    settings = ProjectSettings(tmp_path, project_ngrams=ngrams)
    project = project_context(engine.tokenizer, settings)
    assert project is not None
    with serving(engine, project=settings) as served:
        body = llama_vscode(temperature=0, n_indent=0, input_file="a.cpp", t_max_predict_ms=60_000)
        found = served.post("/infill", body).json()
        extra = "".join(each["text"] + "\n" for each in EXTRA) + f"{last}\nint of_the_project;\n\n"
        typed = PREFIX + "    return wid"
        request = engine.request(
            extra + typed, SUFFIX, settings=SamplingSettings(24, 0, 40, top_p=0.99),
            ngrams=project.ngrams("a.cpp", typed, SUFFIX),
        )  # fmt: skip
        assert found["tokens_evaluated"] == len(request.ids)
        (expected,) = next(iter(engine.complete_many([request]))).completions
        assert found["content"] == expected.text
        (alone,) = next(iter(engine.complete_many([replace(request, ngrams=None)]))).completions
        assert (alone.text == expected.text) == (ngrams == "off")
        answer = served.post("/infill", {**body, "input_file": "../secret.cpp"})
        assert answer.status_code == 400
        assert "is not in the project" in answer.json()["error"]["message"]
        served.settle()


def test_lines_of_the_project_are_answers_where_they_are_likely(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = ["open(a, b);", "if (c) {", "begin(1.5);", "}", "close(d);"]
    (tmp_path / "other.cpp").write_text("\n".join([*around[:3], "one(2);", "two *= 3;", *around[3:]]) * 3)
    body = llama_vscode(
        input_prefix="\n".join(around[:3]) + "\n", prompt="", input_suffix="\n" + "\n".join(around[3:]),
        n_indent=0, input_file="a.cpp", temperature=0,
    )  # fmt: skip
    with serving(engine, project=ProjectSettings(tmp_path, 0.01)) as served:
        found = served.post("/infill", body).json()
        assert (found["content"], found["stop_type"], found["tokens_predicted"]) == (
            "one(2);\ntwo *= 3;",
            "eos",
            0,
        )
        assert 0.01 < found["project_probability"] < 1
        assert found["tokens_evaluated"] == 0  # the model read nothing
        stopped = served.post("/infill", {**body, "stop": ["two"]}).json()
        assert stopped["content"] == "one(2);\n"
        assert served.post("/infill", {**body, "stream": True}).text.count("data:") == 1
        ahead = served.post("/infill", {**body, "n_predict": 0}).json()
        assert (ahead["content"], ahead["project_probability"]) == ("", 0)
        served.settle()
    with serving(engine, project=ProjectSettings(tmp_path, 1, "off")) as served:
        written = served.post("/infill", body).json()
        assert written["project_probability"] == 0
        assert written["tokens_predicted"] > 0
    with serving(engine, project=ProjectSettings(tmp_path, 0.999, "off")) as served:  # the likelier answer
        likelier = served.post("/infill", {**body, "stop": ["two"]}).json()
        assert likelier["content"] == "one(2);\n"
        assert likelier["project_probability"] == found["project_probability"]
        assert likelier["tokens_predicted"] > 0
        assert served.post("/infill", {**body, "stream": True}).text.count("data:") == 1
        unlikely = RetrievedLines("one(2);", 1e-300)
        monkeypatch.setattr("cpplm.generate.project.context.retrieve_lines", lambda *_: unlikely)
        same = served.post("/infill", body).json()
        assert (same["content"], same["project_probability"]) == (written["content"], 0)
        monkeypatch.setattr(
            "cpplm.generate.project.line_retrieval.MODEL_ADVANTAGE", 1e301
        )  # of a model that is never sure
        assert served.post("/infill", body).json()["content"] == "one(2);"
        served.settle()


@pytest.mark.parametrize("suffix", [{}, {"input_suffix": ""}, {"input_suffix": "\n\n"}])
def test_any_model_goes_on_at_the_end_of_a_file(engine: Engine, suffix: dict[str, str]) -> None:
    """Also one that was not trained to fill in; the end of the prompt is spelt anew and counted as prompt."""
    with serving(engine, supports_fim=False) as other:
        body = {"input_prefix": PREFIX, "prompt": "    ret", "n_predict": 12, "temperature": 0, **suffix}
        found = other.post("/infill", body).json()
        prompt = f"{PREFIX}    ret"
        (expected,) = engine.complete(prompt, SamplingSettings(12, 0))
        assert found["content"] == expected.text
        tokens = len(engine.tokenizer.encode(prompt)) + 1
        assert found["tokens_evaluated"] == found["timings"]["prompt_n"] == tokens
        assert found["tokens_predicted"] == found["timings"]["predicted_n"] == 12
        long = other.post("/infill", {**body, "input_prefix": PREFIX * 40}).json()
        assert (long["truncated"], long["tokens_predicted"]) == (True, 12)
        error_of(other.post("/infill", {**body, "input_suffix": SUFFIX}), 400, "no_fill_in")


def test_only_some_fields(served: Served) -> None:
    """As llama.vim asks for them."""
    body = llama_vscode(response_fields=["content", "timings/prompt_n", "truncated", "no/such", "content/x"])
    found = served.post("/infill", body).json()
    assert set(found) == {"content", "timings/prompt_n", "truncated"}
    assert found["timings/prompt_n"] > 10


def test_a_stream(served: Served) -> None:
    whole = served.post("/infill", llama_vscode(temperature=0)).json()
    found = [
        json.loads(each) for each in events(served.post("/infill", llama_vscode(temperature=0, stream=True)))
    ]
    assert "".join(each["content"] for each in found) == whole["content"]
    assert [each["stop"] for each in found] == [False] * (len(found) - 1) + [True]


def test_surroundings_of_any_length(served: Served) -> None:
    """An editor does not know the context: what is farthest away is left out."""
    text = "".join(map(cpp_document, range(30)))
    for body in (
        llama_vscode(input_prefix=text, input_suffix=text),
        llama_vscode(input_prefix=text, input_suffix=""),
        llama_vscode(input_prefix="", input_suffix=text, prompt=""),
        llama_vscode(input_extra=[{"text": text, "filename": "x"}] * 3),
        llama_vscode(input_prefix="é漢" * 5000, n_predict=100_000),
    ):
        found = served.post("/infill", body)
        assert found.status_code == 200, found.text
        assert found.json()["truncated"] is True


def test_the_chat_of_llama_vscode(served: Served) -> None:
    """Its request to edit a selection, with all that it says about sampling."""
    body = {
        "messages": [{"role": "system", "content": "You are an expert coder."},
                     {"role": "user", "content": "modify: int x;"}],
        "stream": False, "cache_prompt": True, "samplers": "edkypmxt", "temperature": 0.8,
        "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05,
        "typical_p": 1,
        "xtc_probability": 0, "xtc_threshold": 0.1, "repeat_last_n": 64, "repeat_penalty": 1,
        "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75,
        "dry_allowed_length": 2, "dry_penalty_last_n": -1, "max_tokens": -1, "timings_per_token": False,
    }  # fmt: skip
    found = served.post("/v1/chat/completions", body)
    assert found.status_code == 200, found.text
    assert found.json()["choices"][0]["message"]["content"]
    tools = [{"type": "function", "function": {"name": "read_file", "description": "x",
              "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}}]  # fmt: skip
    body = {"messages": [{"role": "user", "content": "x"}], "stream": False, "temperature": 0.8,
            "top_p": 0.95, "tools": tools, "tool_choice": "auto", "max_tokens": 5}  # fmt: skip
    assert served.post("/v1/chat/completions", body).status_code == 200


# ---- Continue ---------------------------------------------------------------------------------------------

CONTINUE_STOPS = ["/src/", "#- coding: utf-8", "```", "\nfunction", "\nclass", "\nmodule", "\nexport",
                  "\nimport", "\n\n\n", "<|endoftext|>"]  # fmt: skip


def continue_fim(**changed: Any) -> dict[str, Any]:
    return {
        "model": NAME, "prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 24, "temperature": 0.01,
        "stop": CONTINUE_STOPS, "stream": True, **changed,
    }  # fmt: skip


def test_continue_fills_in(served: Served, engine: Engine) -> None:
    """It reads `choices[0].delta.content` of every record."""
    headers = {"Accept": "application/json", "x-api-key": "", "Authorization": "Bearer undefined"}
    found = chunks(served.post("/v1/fim/completions", continue_fim(seed=1), headers=headers))
    sampling = SamplingSettings(24, 0.01, 0, seed=1, stop=tuple(CONTINUE_STOPS))
    request = engine.request(PREFIX, SUFFIX, settings=sampling)
    (expected,) = next(iter(engine.complete_many([request]))).completions
    assert "".join(each["choices"][0]["delta"]["content"] for each in found) == expected.text
    assert found[-1]["choices"][0]["finish_reason"] == "length"


# ---- where a suggestion ends ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indent", "text", "cut"),
    [
        (4, "x;\n    y;\n}\n", "x;\n    y;"), (4, "x;\n    y;\n  ", "x;\n    y;\n  "),
        (4, "x;\n\n    y;", "x;\n\n    y;"), (4, "}\n}", "}"), (0, "x;\n}\n}", "x;\n}\n}"),
        (2, "a\n\tb\n", "a"),
    ],
)  # fmt: skip
def test_lines_that_are_indented_less(indent: int, text: str, cut: str) -> None:
    enough = InfillStop(indent, 0)
    assert enough.cut(text) == cut
    assert enough(text) == (cut != text)


@pytest.mark.parametrize(
    ("suffix", "text", "cut"),
    [
        ("\n}\n", "x;\n}\nint f;", "x;"), ("\n\n  }\n", "x;\n}\n  } \n", "x;\n}"), ("\n}\n", "x;\n}", "x;"),
        ("\n}\n", "x;\n} else {", "x;\n} else {"), ("\n}\n", "}\n", "}\n"), ("", "x;\n\n", "x;\n\n"),
        (");\n}\n", "x);\n}\n", "x);"), ("\n  return;\n", "a;\n  return", "a;\n  return"),
    ],
)  # fmt: skip
def test_the_line_behind_the_cursor_is_not_written_again(suffix: str, text: str, cut: str) -> None:
    stop = InfillStop(0, 0, suffix)
    assert stop.cut(text, ended=True) == cut
    shown = ""
    for end in range(len(text)):  # what was shown stays
        assert stop.visible(text[:end]).startswith(shown)
        shown = stop.visible(text[:end])
        if stop(text[:end]):
            break
    assert cut.startswith(shown)


def test_time_is_up_behind_a_line_only() -> None:
    enough = InfillStop(0, 1e-9)
    assert not enough("int x")
    assert enough("int x;\n")
    assert not InfillStop(0, 0)("int x;\n")
    assert not InfillStop(0, 60_000)("int x;\n")


# ---- what fits --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def builder(engine: Engine) -> RequestBuilder:
    return RequestBuilder(ServedModel(engine, NAME, True, "base", "run", 0), RequestSettings())


@pytest.mark.parametrize("room", [0, 5, 40, 100, 230, 1000])
def test_surroundings_fit_and_are_the_nearest(builder: RequestBuilder, engine: Engine, room: int) -> None:
    prefix, suffix = "".join(map(cpp_document, range(5))), "".join(map(cpp_document, range(5, 9)))
    extras = ["int oldest;", "int old;", "int new_one;"]
    before, behind, _ = infill_context(builder, extras, prefix, suffix, room)
    tokens = len(engine.tokenizer.encode(before)) + len(engine.tokenizer.encode(behind))
    assert tokens <= room + 4  # cut texts may take a token more
    assert suffix.encode().startswith(behind)
    taken = [each for each in extras if each.encode() in before]
    assert taken == extras[len(extras) - len(taken) :]
    behind_extras = before.removeprefix("".join(f"{each}\n" for each in taken).encode())
    assert prefix.encode().endswith(behind_extras)
    if room >= 100:
        assert behind
        assert behind_extras
        assert len(taken) == 3


def test_extras_stay_the_same_while_somebody_types(builder: RequestBuilder) -> None:
    extras = [cpp_document(n)[:60] for n in range(9)]
    begins = set()
    for length in range(1, 400, 13):
        begins.add(infill_context(builder, extras, cpp_document(4)[:length], SUFFIX, 240)[0][:60])
    assert len(begins) == 1


def test_the_suffix_comes_first(engine: Engine) -> None:
    """Then an editor's next request goes on where the last one ended."""
    with serving(engine) as served:
        found = served.post(
            "/infill", llama_vscode(temperature=0, n_indent=0, input_extra=[], top_k=0, top_p=1)
        )
        request = engine.request(
            PREFIX + "    return wid", SUFFIX, settings=SamplingSettings(24, 0), spm=True
        )
        (expected,) = next(iter(engine.complete_many([request]))).completions
        assert found.json()["content"] == expected.text
        served.settle()
