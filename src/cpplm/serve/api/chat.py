"""POST /v1/chat/completions: conversations, in which the model may call the client's and the server's tools.

A call that names one of the client's functions ends the answer and is handed to the client, which sends the
result with its next request. Any other call is answered here, by the calculator and the tools on the folder
of `--tools`, and the model writes on behind the result. The client sees only what the model says.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cpplm.generate.conversation import chat_request
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.tools.loop import ToolLoop
from cpplm.generate.tools.tool_call_format import ToolCall as WrittenCall
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.serve.errors import ApiError, place, too_long
from cpplm.serve.logprobs import TokenTrail
from cpplm.serve.openapi import answers
from cpplm.serve.request_models import ChatRequest, FunctionTool, Message
from cpplm.serve.request_validation import Planner, planned
from cpplm.serve.response_formatters import ChatStyle
from cpplm.serve.response_models import ChatCompletion
from cpplm.serve.service import ENDED, Call, Piece, Pieces, Service, Tally, merged
from cpplm.serve.tool_threads import ToolThreads


class Chat:
    """Answers to conversations."""

    def __init__(self, service: Service, planner: Planner, box: ToolBox, *, tools_at_once: int) -> None:
        """Nothing asked yet.

        Args:
            service: writes.
            planner: of the model.
            box: the server's tools.
            tools_at_once: calls of them that are answered at the same time.
        """
        self._service, self._planner, self._box = service, planner, box
        self._threads = ToolThreads(tools_at_once)

    async def answer(self, asked: ChatRequest, http: HttpRequest) -> Response:
        """One request.

        Raises:
            ApiError: it cannot be answered.
        """
        service, planner = self._service, self._planner
        planner.check_model(asked.model)
        planner.check_choices(asked.choices)
        functions = (
            {} if asked.tool_choice == "none" else {t.function.name: t.function for t in asked.tools or ()}
        )
        characters = sum(len(message.text) for message in asked.messages)
        request = await planned(lambda: self._request(asked, functions), characters)
        tally = Tally(prompt=len(request.ids))
        service.metrics.prompt_tokens.inc(len(request.ids))
        tokenizer, context = service.model.engine.tokenizer, service.model.context
        loops = [ToolLoop(tokenizer, request, context, sample) for sample in range(asked.choices)]
        pieces = merged([self._pieces(n, loop, functions, tally) for n, loop in enumerate(loops)])
        style = ChatStyle(service.model.name, usage=asked.wants_usage)
        return await service.respond(http, pieces, style, tally, stream=bool(asked.stream))

    def _request(self, asked: ChatRequest, functions: Mapping[str, FunctionTool]) -> GenerationRequest:
        self._planner.check_writes(asked)
        if asked.top_logprobs is not None and not asked.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs", code="invalid_value", param="top_logprobs")
        sampling = self._planner.sampling(asked)
        messages = messages_of(asked.messages, functions)
        characters = sum(len(str(message["content"] or "")) for message in messages)
        self._planner.check_size(characters, "messages")
        # A conversation that is too long would lose its beginning, and with it what it was told to do.
        request = chat_request(
            self._planner.model.engine, messages, replace(sampling, max_new_tokens=1),
            logprobs=(asked.top_logprobs or 0) if asked.logprobs else None,
        )  # fmt: skip
        context = self._planner.model.context
        if len(request.ids) >= context - 1:
            raise too_long(f"{context - 1} or more", context, "messages")
        return replace(request, settings=sampling)

    async def _pieces(
        self, number: int, loop: ToolLoop, functions: Mapping[str, FunctionTool], tally: Tally
    ) -> Pieces:
        """One answer: what the model says between its calls."""
        service, box = self._service, self._box.fresh()
        begin, since = service.since(), None
        while loop.finish_reason is None:
            assert loop.request is not None  # noqa: S101  (neither a call nor the end)
            shows, asks = loop.in_text, loop.request.logprobs is not None
            trail = TokenTrail(service.model.engine.tokenizer)
            async with contextlib.aclosing(service.news([loop.request], since=since)) as source:
                async for news in source:
                    event, done = news.event, news.event.completion
                    if event.logprob is not None and not (done and done.finish_reason == "end"):
                        trail.push(event.logprob)
                    tokens = trail.show(len(event.text), last=done is not None) if asks and shows else None
                    if shows and (event.text or tokens):
                        yield Piece(number, event.text, tokens)
                    tally.written += event.is_new
                    if done is not None:
                        loop.add_completion(done)
            since = begin
            if loop.call is not None:
                call = call_of(loop.call, functions)
                if isinstance(call, Call):
                    yield Piece(number, calls=(call,), ended="tool_calls")
                    return
                if call is None:
                    call = await service.unless_cut(self._threads.run(partial(box.call, loop.call)))
                loop.add_result(call)
        yield Piece(number, ended=ENDED[loop.finish_reason])


def add_chat(routes: APIRouter, chat: Chat) -> None:
    """The one route."""

    @routes.post(
        "/v1/chat/completions",
        responses=answers(ChatCompletion, stream=True),
        summary="Answer in a conversation",
    )
    async def completions(asked: ChatRequest, http: HttpRequest) -> Response:
        """Answer the last message of a conversation."""
        return await chat.answer(asked, http)


# ---- messages and calls -----------------------------------------------------------------------------------


def messages_of(messages: Sequence[Message], functions: Mapping[str, FunctionTool]) -> list[dict[str, Any]]:
    """The messages as the model's conversations have them.

    There users and assistants take turns, behind one text of the system: what stands in a row is joined. What
    may be called is told to the model there.

    Raises:
        ApiError: one of them says nothing.
    """
    found: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            param = place("messages", number, "content")
            raise ApiError(400, f"{param}: there is none", code="invalid_value", param=param)
        role = "system" if message.role == "developer" else message.role
        if found and found[-1]["role"] == role and role in {"system", "user"}:
            found[-1]["content"] += f"\n\n{message.text}"
            continue
        turn: dict[str, Any] = {"role": role, "content": message.text}
        if message.tool_calls:
            turn["tool_calls"] = [call.model_dump() for call in message.tool_calls]
            turn["content"] = message.text or None
        if role == "tool":
            turn["tool_call_id"] = message.tool_call_id
        found.append(turn)
    if functions:
        usage = "\n".join(["You may call these functions:", *map(signature, functions.values())])
        if found[0]["role"] == "system":
            found[0]["content"] += f"\n\n{usage}"
        else:
            found.insert(0, {"role": "system", "content": usage})
    return found


def signature(function: FunctionTool) -> str:
    """How a function is called, for the model."""
    properties = (function.parameters or {}).get("properties")
    properties = properties if isinstance(properties, dict) else {}
    parameters = [
        f"{name}: {kind['type']}" if isinstance(kind, dict) and isinstance(kind.get("type"), str) else name
        for name, kind in properties.items()
    ]
    text = f"{function.name}({', '.join(parameters)})"
    return f"{text}: {function.description}" if function.description else text


def call_of(call: WrittenCall, functions: Mapping[str, FunctionTool]) -> Call | str | None:
    """A call of the client's that the model wrote, or what is wrong with it; None for the server's affair.

    The model gives arguments by place, in the order in which the function's schema lists them.
    """
    function = functions.get(call.name)
    if call.problem or function is None:
        return None
    properties = (function.parameters or {}).get("properties")
    names = list(properties) if isinstance(properties, dict) else []
    if len(call.arguments) > len(names):
        return f"error: call it like this: {signature(function)}"
    arguments = dict(zip(names, call.arguments, strict=False))
    return Call(function.name, json.dumps(arguments, ensure_ascii=False))
