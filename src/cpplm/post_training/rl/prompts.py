"""Tasks as prompts of token ids, in the form that a model was trained on, and their gold answers as rows."""

from __future__ import annotations

from dataclasses import dataclass

from cpplm.dataloader.fim import render_fim_prompt
from cpplm.generate.conversation import conversation_turns
from cpplm.post_training.conversations import mark_context
from cpplm.tasks.item import TaskItem
from cpplm.tokenizer.conversations import render_conversation, render_for_completion
from cpplm.tokenizer.special_tokens import BOS, EOS
from cpplm.tokenizer.tokenizer import Tokenizer

_CHAT_END = "<|assistant_end|>"


@dataclass(frozen=True)
class TaskPrompt:
    """A task as a model reads it.

    Attributes:
        ids: ending where the answer begins.
        end_id: the token that ends an answer.
        stops_early: whether an answer that is complete ends without it: no hole, no turn has an end there.
    """

    ids: tuple[int, ...]
    end_id: int
    stops_early: bool = False


def task_prompt(item: TaskItem, tokenizer: Tokenizer, *, chat: bool, fim: bool) -> TaskPrompt | None:
    """The prompt of a task; None for one that such a model cannot be asked.

    Args:
        item: the task.
        tokenizer: of the model.
        chat: whether the model was trained on conversations.
        fim: whether it was trained to fill in the middle.
    """
    if chat and item.prompt:
        ids = render_for_completion(tokenizer, {"messages": list(item.messages[:1])}, max_tokens=2**62)
        return TaskPrompt(tuple(ids), tokenizer.encode_special(_CHAT_END))
    if item.suffix and fim:
        return TaskPrompt(tuple(render_fim_prompt(tokenizer, item.prefix, item.suffix)), EOS)
    if item.prefix and not item.suffix:
        return TaskPrompt((BOS, *tokenizer.encode(item.prefix)), EOS, stops_early=True)
    return None


def gold_ids(item: TaskItem, tokenizer: Tokenizer, *, chat: bool, fim: bool) -> list[int]:
    """The gold answer behind its prompt, as `cpplm.dataloader.conversations` reads it: what is context is
    complemented; empty for a task that has no prompt."""
    prompt = task_prompt(item, tokenizer, chat=chat, fim=fim)
    if prompt is None:
        return []
    if chat and item.prompt:
        turns = conversation_turns(item.messages)
        rendered = render_conversation(tokenizer, {"messages": turns}, max_tokens=2**62)
        return mark_context(rendered.ids, rendered.mask)
    answer = [*tokenizer.encode(item.answer), prompt.end_id]
    return mark_context([*prompt.ids, *answer], [0] * len(prompt.ids) + [1] * len(answer))
