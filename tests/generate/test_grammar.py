"""Constrained decoding: answers match, and everything else stays as it was."""

import json
import random
import re
import sys
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.grammar import _LIMITS, GrammarKind, GrammarSpec
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.settings import DraftSettings, SamplingSettings, SchedulerLimits
from cpplm.generate.tools.call_grammar import call_grammar
from cpplm.generate.tools.tool_call_format import parse_call
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import babbler
from tests.generate.test_every_feature import engine_of
from tests.generate.test_speculative import HEADS, LOOKUP, answers, with_head
from tests.model.features import CONFIGS

SAMPLED = SamplingSettings(max_new_tokens=200, top_k=0, temperature=1.0)
GREEDY = SamplingSettings(max_new_tokens=24, temperature=0)
LIMITS = SchedulerLimits(max_batch=16)


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    return babbler(tokenizer, context=256)


def random_regex(random_: random.Random, depth: int = 3) -> str:
    """A regular expression of bounded length that Python and Rust read alike."""
    if depth == 0:
        return random_.choice(["int", "[a-z]", "[0-9]{1,3}", r"\{", "x?", "é", "[^;]", "::", r"\n"])
    parts = [random_regex(random_, depth - 1) for _ in range(random_.randint(1, 3))]
    if random_.random() < 0.4:
        return f"({'|'.join(parts)})"
    return f"({''.join(parts)}){random_.choice(['', '', '?', '{1,2}'])}"


def random_schema(random_: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema of bounded values."""
    kind = random_.choice(
        ["string", "enum", "bounded", "const", *(["object", "array", "any"] if depth else [])]
    )
    if kind == "object":
        names = random_.sample(["a", "b", 'c"', "é", "int"], random_.randint(1, 3))
        properties = {name: random_schema(random_, depth - 1) for name in names}
        return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}
    if kind == "array":
        return {"type": "array", "items": random_schema(random_, depth - 1), "minItems": 1, "maxItems": 2}
    if kind == "any":
        return {"anyOf": [random_schema(random_, depth - 1), {"type": "null"}]}
    return {
        "string": {"type": "string", "maxLength": random_.randint(0, 5)},
        "enum": {"enum": [1, "two", False, None]},
        "bounded": {"type": "integer", "minimum": -3, "maximum": 1200},
        "const": {"const": {"x": [1.5, "y"]}},
    }[kind]


def test_random_regexes_and_schemas_are_matched_side_by_side(engine: Engine) -> None:
    random_ = random.Random(7)
    regexes = [f"{random_regex(random_)}y" for _ in range(25)]
    schemas = [random_schema(random_) for _ in range(25)]
    specs = [GrammarSpec("regex", each) for each in regexes]
    specs += [GrammarSpec("json_schema", json.dumps(each)) for each in schemas]
    prompts = ["", "int x = ", "std::vec"]  # the last ones are spelt anew
    requests = [
        engine.request(
            prompts[n % 3], settings=replace(SAMPLED, seed=n), grammar=engine.grammars.compile(spec)
        )
        for n, spec in enumerate(specs)
    ]
    completions = [completion for (completion,) in answers(engine, requests, LIMITS)]
    assert {completion.finish_reason for completion in completions} <= {"stop", "end"}
    for regex, completion in zip(regexes, completions[:25], strict=True):
        assert re.fullmatch(regex, completion.text), (regex, completion.text)
    for schema, completion in zip(schemas, completions[25:], strict=True):
        jsonschema.validate(json.loads(completion.text), schema)
    assert len({completion.text for completion in completions}) > 35  # and not always the same


def any_text(engine: Engine, settings: SamplingSettings) -> SamplingSettings:
    """Without tokens that are no whole characters, which a grammar never has."""
    parts = [
        id_ for token, id_ in engine.tokenizer.ids.items() if token.decode(errors="ignore").encode() != token
    ]
    return replace(settings, logit_bias=tuple((id_, -100.0) for id_ in parts))


@pytest.mark.parametrize("settings", [GREEDY, replace(SAMPLED, max_new_tokens=24)], ids=["greedy", "sampled"])
def test_a_form_that_allows_all_changes_nothing(engine: Engine, settings: SamplingSettings) -> None:
    """Neither behind a prompt that ends in a token, nor in a hole, with stop texts and logprobs."""
    settings = replace(any_text(engine, settings), stop=("a b",))
    free = [
        engine.request("int ma", settings=settings, num_samples=3, logprobs=2),
        engine.request("int x = ", "; return", settings=settings, num_samples=2),
    ]
    grammar = engine.grammars.compile(GrammarSpec("regex", "(?s:.*)"))
    assert answers(engine, [replace(each, grammar=grammar) for each in free], LIMITS) == answers(
        engine, free, LIMITS
    )


def test_free_requests_beside_it_are_as_alone(engine: Engine) -> None:
    grammar = engine.grammars.compile(GrammarSpec("regex", r"(int [a-z]{1,3} = [0-9]+;\n){2}"))
    mixed = [
        engine.request(
            f"int f{n}", "}" if n % 4 > 1 else None, settings=replace(GREEDY, temperature=n % 3 / 2),
            num_samples=2, grammar=grammar if n % 2 else None,
        )
        for n in range(6)
    ]  # fmt: skip
    together = answers(engine, mixed, LIMITS)
    assert together == [answers(engine, [each], LIMITS)[0] for each in mixed]
    assert all(re.match(r"int [a-z]{1,3} = [0-9]", each.text) for pair in together[1::2] for each in pair)


@pytest.mark.parametrize("draft", [LOOKUP, HEADS], ids=["lookup", "heads"])
def test_drafts_change_no_text(tokenizer: Tokenizer, draft: DraftSettings) -> None:
    engine = engine_of(with_head(CONFIGS["plain"]), tokenizer)
    grammar = engine.grammars.compile(GrammarSpec("regex", r"(int x = [0-9]{1,2};\n)+"))
    requests = [
        engine.request(
            "int x = 1;\nint x = 2;\nint ", settings=replace(GREEDY, temperature=t), grammar=grammar
        )
        for t in (0.0, 1.0)
    ]
    plain = answers(engine, requests, LIMITS)
    scheduler = engine.scheduler(SchedulerLimits(draft=draft))
    ids = [scheduler.submit(each) for each in requests]
    done = {}
    while not scheduler.idle:
        done |= {event.request_id: event.completion for event in scheduler.step() if event.completion}
    assert [(done[id_],) for id_ in ids] == plain
    assert scheduler.num_accepted < scheduler.num_drafted  # some were not of the form
    assert draft is HEADS or scheduler.num_accepted


def complete(engine: Engine, kind: GrammarKind, text: str, settings: SamplingSettings) -> Any:
    request = engine.request("", settings=settings, grammar=engine.grammars.compile(GrammarSpec(kind, text)))
    ((completion,),) = answers(engine, [request], LIMITS)
    return completion


def test_ends(engine: Engine) -> None:
    """Cut by a limit or a stop text; over as soon as nothing may follow; ended by the model where it may."""
    cut = complete(engine, "regex", "[0-9]{500}", replace(SAMPLED, max_new_tokens=9))
    assert (cut.finish_reason, len(cut.ids)) == ("length", 9)
    stopped = complete(engine, "regex", "ab+c", replace(GREEDY, stop=("b",)))
    assert (stopped.finish_reason, stopped.text) == ("stop", "a")
    over = complete(engine, "grammar", 'root ::= "int" x\nx ::= " x;"', GREEDY)
    assert (over.finish_reason, over.text) == ("stop", "int x;")
    eager = replace(GREEDY, logit_bias=((3, 100.0),))  # <EOS>
    assert complete(engine, "regex", "x{3,}", eager).text == "xxx"


def test_a_text_that_takes_too_much_to_follow_is_cut(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_LIMITS, "max_items_in_row", 30)
    endless = replace(SAMPLED, logit_bias=((2, -100.0), (3, -100.0)))
    ambiguous = complete(engine, "grammar", 'start: "x" start | "x"', endless)
    assert ambiguous.finish_reason == "length"
    assert 3 < len(ambiguous.ids) < 30
    assert set(ambiguous.text) == {"x"}


REFUSED: list[tuple[GrammarKind, str, str]] = [
    ("regex", "((", "unclosed group"),
    ("regex", "", "matches no text"),
    ("regex", "[^\\s\\S]", "matches no text"),
    ("regex", "(?=a)b", "look-around"),
    ("regex", "(a{1000}){1000}", "too complex"),
    ("regex", "x" * 300_000, "300,000 characters"),
    ("json_schema", "{", "not understood: Expecting"),
    ("json_schema", "7", "a schema is a JSON object"),
    ("json_schema", '{"type": "objekt"}', "Invalid type: objekt"),
    ("json_schema", '{"properties": {"a": {"mimimum": 1}}}', "unknown keyword 'mimimum'"),
    ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
    ("json_schema", '{"items": {"$ref": "https://example.com/x"}}', "leads out of the schema"),
    ("json_schema", '{"$ref": "#"}', "matches no text"),
    ("json_schema", "[" * 100_000, "recursion"),
    ("json_schema", json.dumps({"allOf": [{"pattern": f"a.{{{n}}}b"} for n in range(40)]}), "12 patterns"),
    ("grammar", "start: name", "unknown name"),
    ("grammar", "root ::= (", "Expected ')'"),
    ("grammar", "start: <[3]>", "matches no text"),  # a special token
    ("choice", "[]", "matches no text"),
]


@pytest.mark.parametrize(("kind", "text", "message"), REFUSED, ids=lambda value: str(value)[:30])
def test_what_is_refused(engine: Engine, kind: GrammarKind, text: str, message: str) -> None:
    with pytest.raises(UserError) as refused:
        engine.grammars.compile(GrammarSpec(kind, text))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_without_the_package(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UserError, match=r"need a package.*cpplm\[grammar\]"):
        engine.grammars.compile(GrammarSpec("regex", "not compiled before"))


FUNCTIONS: dict[str, dict[str, Any]] = {
    "search": {
        "properties": {
            "text": {"type": "string", "maxLength": 9}, "lines": {"type": "integer", "minimum": 1},
            "deep": {"type": "boolean"}, "options": {"type": "object"},
        },
        "required": ["text", "lines"],
    },
    "stop": {},
}  # fmt: skip


def test_calls_are_read_as_they_are_demanded(engine: Engine) -> None:
    grammar = engine.grammars.compile(call_grammar(FUNCTIONS))
    request = GenerationRequest((2,), SAMPLED, num_samples=16, grammar=grammar)
    (completions,) = answers(engine, [request], LIMITS)
    calls = [parse_call("query_tool", completion.text) for completion in completions]
    assert {call.name for call in calls} == {"search", "stop"}
    for call in calls:
        assert not call.problem
        assert tuple(map(type, call.arguments)) in (
            {(str, int), (str, int, bool)} if call.name == "search" else {()}
        )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"properties": {"x": {"type": "number"}}, "required": ["x"]}, "'x' is no text"),
        ({"properties": {"x": {"type": "string", "pattrn": "a"}}}, "unknown keyword 'pattrn'"),
        ({"properties": {}, "required": [7]}, "no JSON schema of an object"),
    ],
)
def test_calls_that_cannot_be_written(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call_grammar({"f": parameters})
    with pytest.raises(UserError, match=r"none of C\+\+"):
        call_grammar({"f-g": {}})
