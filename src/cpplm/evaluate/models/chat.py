"""Conversations answered: by our own engine, many at a time and with tools; by chat templates of others."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cpplm.core.errors import UserError
from cpplm.evaluate.models.code_model import ChatAnswer, Conversation
from cpplm.generate.conversation import chat_request
from cpplm.generate.engine import Engine, RequestResult
from cpplm.generate.sequence import CompletionOutput, StopCondition
from cpplm.generate.settings import SamplingSettings, SchedulerLimits
from cpplm.generate.tools.loop import ToolLoop
from cpplm.generate.tools.toolbox import ToolBox


@dataclass
class ToolChat:
    """A conversation that is being answered.

    Attributes:
        loop: what is to be written next.
        box: its tools, if there are any.
        rounds: of each all that was read before, and what was written.
        results: of the tools that were called.
        failed: why there is no answer.
    """

    loop: ToolLoop
    box: ToolBox | None
    rounds: list[tuple[tuple[int, ...], CompletionOutput]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    failed: str = ""

    def take(self, result: RequestResult) -> None:
        """Take what was written, and answer the call at its end, if there is one."""
        if result.failed:
            self.failed = result.failed
            return
        assert self.loop.request is not None  # noqa: S101  (it was answered)
        (completion,) = result.completions
        self.rounds.append((self.loop.request.ids, completion))
        self.loop.add_completion(completion)
        if self.loop.call is not None:
            no_tools = "error: there are no tools"
            self.results.append(no_tools if self.box is None else self.box.call(self.loop.call))
            self.loop.add_result(self.results[-1])

    @property
    def is_over(self) -> bool:
        """True if nothing more is to be written."""
        return bool(self.failed) or self.loop.finish_reason is not None


def answer_chats(
    engine: Engine, chats: Sequence[ToolChat], limits: SchedulerLimits
) -> Iterator[tuple[int, ToolChat]]:
    """Each chat with its number, as soon as it is over.

    Round by round: all write up to a call or the end; a call is answered before the next round.
    """
    waiting = list(enumerate(chats))
    while waiting:
        requests = (chat.loop.request for _, chat in waiting if chat.loop.request is not None)
        for result in engine.complete_many(requests, limits):
            number, chat = waiting[result.number]
            chat.take(result)
            if chat.is_over:
                yield number, chat
        waiting = [each for each in waiting if not each[1].is_over]


def answer_conversations(
    engine: Engine,
    conversations: Sequence[Conversation],
    sampling: SamplingSettings,
    stop: StopCondition | None,
    boxes: Sequence[ToolBox | None],
    rows: int,
) -> Iterator[tuple[int, ChatAnswer]]:
    """Number and answer of each conversation, as soon as it is there."""
    chats = []
    for conversation, box in zip(conversations, boxes, strict=True):
        request = replace(chat_request(engine, conversation, sampling), stop=stop)
        chats.append(ToolChat(ToolLoop(engine.tokenizer, request, engine.model.config.max_seq_len), box))
    for number, chat in answer_chats(engine, chats, SchedulerLimits(max_batch=rows)):
        if chat.failed:
            yield number, ChatAnswer("", failed=chat.failed)
        else:
            yield number, ChatAnswer(chat.loop.completion().text, tuple(chat.results))


def chat_template_ids(folder: Path, conversations: Sequence[Conversation]) -> Iterator[list[int]]:
    """The prompts of conversations by a Hugging Face directory's chat template, in Jinja's sandbox."""
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(
        folder, trust_remote_code=False, local_files_only=True
    )
    for messages in map(list, conversations):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        yield tokenizer(text, add_special_tokens=False)["input_ids"]


def refuse_tools(boxes: Sequence[ToolBox | None]) -> None:
    """Refuse tools with UserError, for models that are given none."""
    if any(box is not None for box in boxes):
        raise UserError("tools are for runs of cpplm alone", fix="Leave out tasks that need them.")
