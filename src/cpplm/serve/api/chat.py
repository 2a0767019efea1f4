"""POST /v1/chat/completions: conversations, in which the model may call the client's and the server's tools.

A call that names one of the client's functions ends the response and is handed to the client, which sends the
result with its next request. Any other call is answered here, by the calculator and the tools on the folder
of `--tools`, and the model writes on behind it. The client sees what it says, and the calls beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from cpplm.core.errors import UserError
from cpplm.generate.conversation import chat_request
from cpplm.generate.grammar import GrammarSpec
from cpplm.generate.sequence import GenerationRequest
from cpplm.generate.tools.call_grammar import call_grammar
from cpplm.generate.tools.loop import ToolLoop
from cpplm.generate.tools.tool_call_format import ToolCall
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.serve.async_engine import resolve
from cpplm.serve.errors import ApiError, json_path, response_docs, too_long
from cpplm.serve.logprobs import LogprobBuffer
from cpplm.serve.request_builder import RequestBuilder, off_event_loop
from cpplm.serve.request_models import ChatMessageParam, ChatRequest, FunctionTool
from cpplm.serve.response_formatters import ChatFormatter, Delta
from cpplm.serve.response_models import ChatCompletionResponse, FunctionCall, ServerToolCall
from cpplm.serve.service import (
    FINISH_REASONS,
    DeltaStream,
    Service,
    UsageCounter,
    merge_streams,
    pick_service,
)
from cpplm.serve.structured_output_params import ToolChoice

_MAX_TOOL_THREADS = 4  # calls of the server's tools, each with processes of its own

Functions = Mapping[str, FunctionTool]
"""Functions of the client, by name."""


def add_chat(routes: APIRouter, services: Sequence[Service], box: ToolBox) -> None:
    """Add the route; `box` has the server's tools."""
    threads = ToolThreads(_MAX_TOOL_THREADS)

    @routes.post(
        "/v1/chat/completions",
        responses=response_docs(ChatCompletionResponse, stream=True),
        summary="Answer in a conversation",
    )
    async def completions(params: ChatRequest, http: HttpRequest) -> Response:
        """Answer the last message of a conversation."""
        service = pick_service(services, params)
        builder = service.builder
        builder.check(params)
        tools = () if params.tool_choice == "none" else params.tools or ()
        functions = {tool.function.name: tool.function for tool in tools}
        demanded = await builder.grammar(demanded_call(params, functions))
        grammar = await builder.grammar(params.grammar_spec)
        characters = sum(len(message.text) for message in params.messages)
        request = await off_event_loop(lambda: _request(params, functions, builder), characters)
        request = replace(request, grammar=grammar)
        counter = UsageCounter(prompt_tokens=len(request.ids))
        service.metrics.prompt_tokens.inc(len(request.ids))
        tokenizer, context = service.model.engine.tokenizer, service.model.context
        loops = [
            ToolLoop(tokenizer, request, context, sample, call_grammar=demanded)
            for sample in range(params.num_choices)
        ]
        deltas = merge_streams(
            [
                _deltas(service, n, loop, functions, box.fresh(), threads, counter)
                for n, loop in enumerate(loops)
            ]
        )
        formatter = ChatFormatter(service.model.name, include_usage=params.include_usage)
        return await service.respond(http, deltas, formatter, counter, stream=params.stream)


async def _deltas(
    service: Service, index: int, loop: ToolLoop, functions: Functions, box: ToolBox, threads: ToolThreads,
    counter: UsageCounter,
) -> DeltaStream:  # fmt: skip
    """Yield one choice: what the model says between its calls."""
    begin, since = asyncio.get_running_loop().time(), None
    while loop.finish_reason is None:
        assert loop.request is not None  # noqa: S101  (neither a call nor the end)
        in_text = loop.in_text
        buffer = LogprobBuffer(service.model.engine.tokenizer)
        has_logprobs = in_text and loop.request.logprobs is not None
        async with contextlib.aclosing(service.token_events([loop.request], since=since)) as events:
            async for _, event in events:
                tokens = buffer.append(event) if has_logprobs else None
                if in_text and (event.text or tokens):
                    yield Delta(index, event.text, tokens)
                counter.completion_tokens += event.is_new
                if event.completion is not None:
                    loop.add_completion(event.completion)
        since = begin
        if loop.call is not None:
            result = client_call(loop.call, functions)
            if isinstance(result, FunctionCall):
                yield Delta(index, tool_call=result, finish_reason="tool_calls")
                return
            if result is None:
                result = await service.run_until_shutdown(threads.run(partial(box.call, loop.call)))
                answered = ServerToolCall(call=loop.call.text, result=result)
                yield Delta(index, server_tool_call=answered)
            loop.add_result(result)
    yield Delta(index, finish_reason=FINISH_REASONS[loop.finish_reason])


def _request(params: ChatRequest, functions: Functions, builder: RequestBuilder) -> GenerationRequest:
    builder.check_generates(params)
    if params.top_logprobs is not None and not params.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs", code="invalid_value", param="top_logprobs")
    sampling = builder.sampling(params)
    messages = conversation_messages(params.messages, functions)
    builder.check_length(sum(len(str(message["content"] or "")) for message in messages), "messages")
    # A conversation that is too long would lose its beginning, and with it what it was told to do.
    request = chat_request(
        builder.model.engine, messages, replace(sampling, max_new_tokens=1),
        logprobs=(params.top_logprobs or 0) if params.logprobs else None,
    )  # fmt: skip
    context = builder.model.context
    if len(request.ids) >= context - 1:
        raise too_long(f"{context - 1} or more", context, "messages")
    return replace(request, settings=sampling)


# ---- messages and calls -----------------------------------------------------------------------------------


def conversation_messages(messages: Sequence[ChatMessageParam], functions: Functions) -> list[dict[str, Any]]:
    """Messages of a request as those of the model's conversations.

    There one text of the system stands first: messages of the system or of the user that stand in a row are
    joined, and the client's functions are described in the system's text.

    Raises:
        ApiError: one of them says nothing.
    """
    turns: list[dict[str, Any]] = []
    for number, message in enumerate(messages):
        if message.content is None and message.role != "assistant":
            param = json_path("messages", number, "content")
            raise ApiError(400, f"{param}: there is none", code="invalid_value", param=param)
        role = "system" if message.role == "developer" else message.role
        if turns and turns[-1]["role"] == role and role in {"system", "user"}:
            turns[-1]["content"] += f"\n\n{message.text}"
            continue
        turn: dict[str, Any] = {"role": role, "content": message.text}
        if message.tool_calls:
            turn["tool_calls"] = [call.model_dump() for call in message.tool_calls]
            turn["content"] = message.text or None
        if role == "tool":
            turn["tool_call_id"] = message.tool_call_id
        turns.append(turn)
    if functions:
        usage = "\n".join(["You may call these functions:", *map(signature, functions.values())])
        if turns[0]["role"] == "system":
            turns[0]["content"] += f"\n\n{usage}"
        else:
            turns.insert(0, {"role": "system", "content": usage})
    return turns


def _parameters(function: FunctionTool) -> dict[str, Any]:
    properties = (function.parameters or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def signature(function: FunctionTool) -> str:
    """Describe for the model how a function is called."""
    parameters = [
        f"{name}: {schema['type']}"
        if isinstance(schema, dict) and isinstance(schema.get("type"), str)
        else name
        for name, schema in _parameters(function).items()
    ]
    text = f"{function.name}({', '.join(parameters)})"
    return f"{text}: {function.description}" if function.description else text


def demanded_call(params: ChatRequest, functions: Functions) -> GrammarSpec | None:
    """Grammar of the call that an answer has to be; None where the model may choose.

    Raises:
        ApiError: there is no such function, or no call of it can be written.
    """
    if params.tool_choice in (None, "none", "auto"):
        return None
    name = params.tool_choice.function.name if isinstance(params.tool_choice, ToolChoice) else None
    demanded = [each for each in functions.values() if name in {None, each.name}]
    if not demanded:
        what = "names no function" if name is None else f"has no function {name}"
        raise ApiError(400, f"tool_choice: tools {what}", code="invalid_value", param="tool_choice")
    if params.grammar_spec is not None:
        raise ApiError(
            400,
            "tool_choice demands a call: ask for no other form",
            code="invalid_value",
            param="tool_choice",
        )
    try:
        return call_grammar({each.name: each.parameters or {} for each in demanded})
    except UserError as error:
        raise ApiError(400, str(error), code="invalid_value", param="tools") from error


def client_call(call: ToolCall, functions: Functions) -> FunctionCall | str | None:
    """Return the call of a client's function that the model wrote, or an error for the model.

    None if it calls none of the client's. The model gives arguments by place, in the order in which the
    function's schema lists them.
    """
    function = functions.get(call.name)
    if call.problem or function is None:
        return None
    names = list(_parameters(function))
    if len(call.arguments) > len(names):
        return f"error: call it like this: {signature(function)}"
    arguments = dict(zip(names, call.arguments, strict=False))
    return FunctionCall(name=function.name, arguments=json.dumps(arguments, ensure_ascii=False))


class ToolThreads:
    """Runs each call of a tool in a thread, a few at a time, so that the loop goes on.

    `ThreadPoolExecutor` would wait for the last of them when the process ends.
    """

    def __init__(self, max_threads: int) -> None:
        """Prepare; calls beyond `max_threads` wait."""
        self._slots = asyncio.Semaphore(max_threads)

    async def run(self, work: Callable[[], str]) -> str:
        """Return the result of some work. If the caller is cancelled, the slot is free when the work ends."""
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()

        def finish(result: str | Exception) -> None:
            self._slots.release()
            resolve(future, result)

        def in_thread() -> None:
            try:
                result: str | Exception = work()
            except Exception as error:  # for the caller
                result = error
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(finish, result)

        threading.Thread(target=in_thread, name="cpplm-tool", daemon=True).start()
        return await future
