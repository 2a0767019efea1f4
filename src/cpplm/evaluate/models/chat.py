"""Conversations answered: by our own engine, many at a time and with tools; by chat templates of others."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.evaluate.models.code_model import ChatAnswer, Conversation, StopCondition
from cpplm.generate.conversation import chat_request
from cpplm.generate.engine import Engine
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.generate.tools.loop import ToolLoop
from cpplm.generate.tools.toolbox import ToolBox


@dataclass
class _Chat:
    """A conversation that is being answered."""

    number: int
    loop: ToolLoop
    box: ToolBox | None
    results: list[str] = field(default_factory=list)

    def call_tools(self) -> None:
        """Answer the call that waits, if there is one."""
        while self.loop.call is not None:
            result = "error: there are no tools" if self.box is None else self.box.call(self.loop.call)
            self.results.append(result)
            self.loop.add_result(result)


def answer_conversations(
    engine: Engine,
    conversations: Sequence[Conversation],
    sampling: SamplingSettings,
    stop: StopCondition | None,
    boxes: Sequence[ToolBox | None],
    rows: int,
) -> Iterator[tuple[int, ChatAnswer]]:
    """Number and answer of each conversation.

    Round by round: all write up to a call or the end, then all calls are answered.
    """
    waiting: list[_Chat] = []
    for number, (conversation, box) in enumerate(zip(conversations, boxes, strict=True)):
        request = replace(chat_request(engine, conversation, sampling), stop=stop)
        loop = ToolLoop(engine.tokenizer, request, engine.model.config.max_seq_len)
        waiting.append(_Chat(number, loop, box))
    while waiting:
        requests = (chat.loop.request for chat in waiting if chat.loop.request is not None)
        going = []
        for answer in engine.complete_many(requests, SchedulerLimits(max_batch=rows)):
            chat = waiting[answer.number]
            if answer.failed:
                yield chat.number, ChatAnswer("", failed=answer.failed)
                continue
            chat.loop.add_completion(answer.completions[0])
            chat.call_tools()
            if chat.loop.finish_reason is None:
                going.append(chat)
            else:
                completion = chat.loop.completion()
                yield chat.number, ChatAnswer(completion.text, tuple(chat.results))
        waiting = sorted(going, key=lambda chat: chat.number)


def chat_template_ids(folder: Path, conversations: Sequence[Conversation]) -> Iterator[list[int]]:
    """The prompts of conversations by a Hugging Face directory's chat template, in Jinja's sandbox."""
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )
    for messages in map(list, conversations):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        yield tokenizer(text, add_special_tokens=False)["input_ids"]


def refuse_tools(boxes: Sequence[ToolBox | None]) -> None:
    """For models that are given no tools.

    Raises:
        UserError: there are some.
    """
    if any(box is not None for box in boxes):
        raise UserError("tools are for runs of cpplm alone", fix="Leave out tasks that need them.")
