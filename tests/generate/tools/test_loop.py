"""Writing with tools: against a plain loop that forces results, and with a model that calls."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from cpplm.generate.conversation import chat_request
from cpplm.generate.engine import Engine
from cpplm.generate.sampling import random_stream, sample
from cpplm.generate.scheduler import Scheduler
from cpplm.generate.sequence import CompletionOutput, GenerationRequest
from cpplm.generate.settings import DraftSettings, SamplingSettings, SchedulerLimits, ToolLimits
from cpplm.generate.tools.loop import (
    Finished,
    TextDelta,
    ToolLoop,
    ToolLoopEvent,
    ToolResult,
    generate_with_tools,
)
from cpplm.generate.tools.tool_call_format import KINDS, RESULTS, ToolCall, parse_call, tool_tokens
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.tokenizer.conversations import render_conversation
from cpplm.tokenizer.special_tokens import BOS, EOS, NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import CONTEXT, GREEDY, LEARNED, babbler, messages, project, talker
from tests.model.features import random_ids


@pytest.fixture(scope="module")
def caller(tokenizer: Tokenizer) -> Engine:
    """A random model that is fond of calls, sensible ones or not."""
    engine = babbler(tokenizer, context=1024)
    fond = [id_ for kind in KINDS for id_ in dataclasses.astuple(tool_tokens(tokenizer, kind))[:2]]
    digits = [tokenizer.ids[digit.encode()] for digit in "123+*"]
    with torch.no_grad():
        usual_C = engine.model.hidden_states(random_ids(8, 30, engine.model.config)).mean((0, 1))
        engine.model.lm_head.weight[fond] += 6 * usual_C / usual_C.square().sum()
        engine.model.lm_head.weight[digits] += 5 * usual_C / usual_C.square().sum()
    return engine


@torch.no_grad()
def plain(engine: Engine, request: GenerationRequest, number: int, box: ToolBox) -> CompletionOutput:
    """Token by token, everything read anew; what a tool answers is read as if it had been written."""
    tokenizer, settings = engine.tokenizer, request.settings
    random = random_stream(settings.seed, number)
    starts = {tool_tokens(tokenizer, kind).start: kind for kind in KINDS}
    ids, texts, call, kind = list(request.ids), [[]], [], None
    left, reason = settings.max_new_tokens, None
    while reason is None:
        logits = engine.model(torch.tensor([ids]))[:, -1]
        calls = starts if kind is None else [tool_tokens(tokenizer, kind).end]
        ends = {BOS, EOS, *request.end_ids, *calls}
        logits[:, [id_ for id_ in range(NUM_SPECIAL) if id_ not in ends]] = float("-inf")
        (token,) = sample(logits, settings, [random.random()])
        if token in (BOS, EOS):
            reason = "end"
            break
        ids.append(token)
        left -= 1
        if token in request.end_ids:
            reason = "end"
        elif kind is None and token in starts:
            kind, call = starts[token], []
            texts.append([])
        elif kind is None:
            texts[-1].append(token)
        elif token != tool_tokens(tokenizer, kind).end:
            call.append(token)
        elif left > 0:
            each, result = tool_tokens(tokenizer, kind), box.call(parse_call(kind, tokenizer.decode(call)))
            ids += [each.result_start, *tokenizer.encode(result), each.result_end]
            kind = None
        if reason is None and left == 0:
            reason = "length"
    text = "".join(tokenizer.decode(part) for part in texts)
    return CompletionOutput(text, tuple(ids[len(request.ids) :]), reason)


def events(
    engine: Engine, request: GenerationRequest, box: ToolBox, limits: SchedulerLimits | None = None
) -> list[ToolLoopEvent]:
    return list(generate_with_tools(engine.scheduler(limits), request, box))


def text_of(found: list[ToolLoopEvent]) -> str:
    return "".join(each.text for each in found if isinstance(each, TextDelta))


def ended(found: list[ToolLoopEvent]) -> CompletionOutput:
    assert isinstance(found[-1], Finished)
    assert not any(isinstance(each, Finished) for each in found[:-1])
    return found[-1].completion


# ---- as in one go -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5])
def test_it_is_as_if_written_in_one_go(caller: Engine, seed: int) -> None:
    settings = SamplingSettings(40, 1.0 if seed else 0, 0, seed=seed)
    request = GenerationRequest((BOS, 100 + seed, 101), settings, first_sample=seed % 3, end_ids=(90, 91, 92))
    expected = plain(caller, request, seed % 3, ToolBox())
    found = events(caller, request, ToolBox())
    assert ended(found) == expected
    assert text_of(found) == expected.text
    assert any(isinstance(each, ToolCall) for each in found)


def test_each_sample_of_a_request_is_what_it_is_alone(caller: Engine) -> None:
    """A chain per sample, worked off together as a server does, with what does not fit held back."""
    request = GenerationRequest(
        (BOS, 100, 101), SamplingSettings(25, 1.0, 0, seed=5), num_samples=6, logprobs=1
    )
    loops = [ToolLoop(caller.tokenizer, request, 512, number) for number in range(6)]
    boxes = [ToolBox() for _ in loops]
    scheduler = caller.scheduler(SchedulerLimits(max_batch=4))
    while any(loop.finish_reason is None for loop in loops):
        submitted = {scheduler.submit(loop.request): loop for loop in loops if loop.request is not None}
        while not scheduler.idle:
            for event in scheduler.step():
                if event.completion is not None:
                    submitted[event.request_id].add_completion(event.completion)
        for loop, box in zip(loops, boxes, strict=True):
            if loop.call is not None:
                loop.add_result(box.call(loop.call))
    alone = dataclasses.replace(request, num_samples=1, logprobs=None)
    for number, loop in enumerate(loops):
        completion = loop.completion()
        assert dataclasses.replace(completion, logprobs=()) == plain(caller, alone, number, ToolBox())
        written = [each.token for each in completion.logprobs]
        assert len(written) >= 25 or completion.finish_reason == "end"
        assert set(written) <= {*completion.ids, BOS, EOS}


# ---- a model that calls -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    return talker(tokenizer)


@pytest.fixture(scope="module")
def box() -> Iterator[ToolBox]:
    with project() as root:
        yield ToolBox(root)


def ask(engine: Engine, question: str, **changes: object) -> GenerationRequest:
    request = chat_request(engine, messages(question)[:1], GREEDY)
    return dataclasses.replace(request, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("draft", ["off", "lookup"])
@pytest.mark.parametrize("question", LEARNED)
def test_it_calls_reads_the_result_and_goes_on(
    engine: Engine, box: ToolBox, question: str, draft: str
) -> None:
    limits = SchedulerLimits(draft=DraftSettings(draft))  # type: ignore[arg-type]
    found = events(engine, ask(engine, question), box.fresh(), limits)
    parts: list[dict[str, str]] = []
    for each in found:
        match each:
            case TextDelta(text) if parts and parts[-1]["type"] == "text":
                parts[-1]["text"] += text
            case TextDelta(text):
                parts.append({"type": "text", "text": text})
            case ToolCall() as call:
                parts.append({"type": call.kind, "text": call.text})
            case ToolResult(call, result):
                parts.append({"type": RESULTS[call.kind], "text": result})
    assert parts == LEARNED[question]
    learned = render_conversation(engine.tokenizer, {"messages": messages(question)}).ids
    completion = ended(found)
    assert [*ask(engine, question).ids, *completion.ids] == learned
    assert completion.finish_reason == "end"
    assert completion.text == "".join(part["text"] for part in parts if part["type"] == "text")


def test_stop_texts_and_functions_see_text_alone(engine: Engine) -> None:
    stopped = dataclasses.replace(GREEDY, stop=("34", "08."))
    found = events(engine, ask(engine, "12*34?", settings=stopped), ToolBox())
    assert (ended(found).text, ended(found).finish_reason) == ("It is 4", "stop")
    seen: list[str] = []
    request = ask(engine, "12*34?", stop=lambda text: bool(seen.append(text)) or text.endswith("is 40"))
    completion = ended(events(engine, request, ToolBox()))
    assert (completion.text, completion.finish_reason) == ("It is 40", "stop")
    assert seen[-1] == "It is 40"
    assert all("It is 408.".startswith(text) for text in seen)


def test_what_is_written_counts_and_results_do_not(engine: Engine) -> None:
    whole = ended(events(engine, ask(engine, "12*34?"), ToolBox()))
    learned = render_conversation(engine.tokenizer, {"messages": messages("12*34?")})
    written = sum(learned.mask)
    for count in range(1, written + 1):
        settings = dataclasses.replace(GREEDY, max_new_tokens=count)
        completion = ended(events(engine, ask(engine, "12*34?", settings=settings), ToolBox()))
        assert completion.finish_reason == ("end" if count == written else "length")
        assert completion.ids == whole.ids[: len(completion.ids)]
        assert sum(learned.mask[len(ask(engine, "12*34?").ids) :][: len(completion.ids)]) == count


def work_off(scheduler: Scheduler, loop: ToolLoop) -> None:
    """Up to the next call or the end."""
    while loop.request is not None:
        scheduler.submit(loop.request)
        while not scheduler.idle:
            for event in scheduler.step():
                if event.completion is not None:
                    loop.add_completion(event.completion)


@pytest.mark.parametrize("length", [1, 50, 10_000])
def test_a_result_takes_no_more_than_the_context(engine: Engine, length: int) -> None:
    """What does not fit is not read; the answer goes on as long as there is room."""
    loop, scheduler = ToolLoop(engine.tokenizer, ask(engine, "where?"), CONTEXT), engine.scheduler()
    work_off(scheduler, loop)
    assert loop.call is not None
    before, result = len(ask(engine, "where?").ids), "a\0" * length
    loop.add_result(result)
    assert loop.request is not None
    read = engine.tokenizer.decode(loop.request.ids[before:])
    assert read.startswith('<QUERY_TOOL>search("area")<CODE_END><TOOL_RESULT>a\0')
    assert read.endswith("\0<CODE_END>" if len(loop.request.ids) < CONTEXT - 1 else "<CODE_END>")
    assert (len(loop.request.ids) == CONTEXT - 1) == (length == 10_000)
    work_off(scheduler, loop)
    assert loop.finish_reason is not None
    assert len(loop.completion().ids) + before <= CONTEXT + 1


@pytest.mark.parametrize("room", range(1, 8))
def test_where_there_is_no_room_it_ends(engine: Engine, room: int) -> None:
    """At a call's begin, at its end, or for the marks of its result; never with a prompt that is refused."""
    request, each = ask(engine, "where?"), tool_tokens(engine.tokenizer, "query_tool")
    loop = ToolLoop(engine.tokenizer, request, len(request.ids) + room)
    loop.add_completion(CompletionOutput("", (each.start,), "end"))
    if loop.finish_reason is None:
        loop.add_completion(CompletionOutput("", (each.end,), "end"))
        assert loop.call is not None
        loop.add_result("1")
    assert loop.finish_reason == ("length" if room < 5 else None)
    assert (loop.request is None) == (room < 5)
    if loop.request is not None:
        assert len(loop.request.ids) < len(request.ids) + room
        assert engine.tokenizer.decode(loop.request.ids).endswith("<TOOL_RESULT>1<CODE_END>") == (room > 5)


def test_tools_that_are_used_up_are_told_and_it_ends(caller: Engine) -> None:
    """A model that calls for ever ends by the tokens that it writes."""
    request = GenerationRequest((BOS, 100), SamplingSettings(60, 1.0, 0, seed=1))
    found = events(caller, request, ToolBox(None, ToolLimits(tool_calls=1)))
    results = [each.result for each in found if isinstance(each, ToolResult)]
    assert len(results) > 1
    assert set(results[1:]) == {"error: 1 calls are all that an answer may have"}
    assert ended(found).finish_reason in {"length", "end"}


def test_the_prompts_end_is_spelt_before_anything_is_called(caller: Engine) -> None:
    """Token healing: the request's prefix is written first, is no text, and does not count."""
    request = caller.request("int shift_3_1(int", settings=SamplingSettings(20, 1.0, 0, seed=2))
    assert request.prefix
    starts = tuple(tool_tokens(caller.tokenizer, kind).start for kind in KINDS)
    (answer,) = caller.complete_many([dataclasses.replace(request, end_ids=starts)])
    (alone,) = answer.completions
    loop = ToolLoop(caller.tokenizer, request, 512)
    assert loop.request is not None
    assert loop.request.prefix == request.prefix
    completion = ended(events(caller, request, ToolBox(None, ToolLimits(tool_calls=0))))
    spelt = caller.tokenizer.decode_bytes(completion.ids)
    assert spelt.startswith(request.prefix)
    assert completion.ids[: len(alone.ids)] == alone.ids


def test_who_stops_listening_leaves_nothing_behind(engine: Engine, box: ToolBox) -> None:
    scheduler = engine.scheduler()
    answer = generate_with_tools(scheduler, ask(engine, "12*34?"), box.fresh())
    for each in answer:
        if isinstance(each, TextDelta):
            break
    assert isinstance(answer, Iterator)
    answer.close()  # type: ignore[attr-defined]
    assert_free(scheduler)
    assert text_of(list(generate_with_tools(scheduler, ask(engine, "12*34?"), box.fresh()))) == "It is 408."
    assert_free(scheduler)


def assert_free(scheduler: Scheduler) -> None:
    assert scheduler.idle
    assert scheduler._free_blocks == scheduler._blocks
