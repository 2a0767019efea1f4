"""The tokenizer and the chat template of a Hugging Face directory, for what is to train on.

Templates are rendered by `transformers`, in Jinja's sandbox. What the assistant writes is what the template
marks by its generation blocks, or, of a template without them, what a turn adds to the text before it. The
special token that ends a turn belongs to it; prompts and results of tools do not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpplm.core.errors import UserError
from cpplm.core.storage import sha256
from cpplm.evaluate.models.hf_loading import import_transformers
from cpplm.evaluate.models.hf_tokens import HfTokens
from cpplm.generate.conversation import conversation_turns
from cpplm.post_training.conversations import openai_messages, require_answers
from cpplm.tokenizer.conversations import PARTS, RenderedConversation, alternating_turns

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
Messages = list[dict[str, Any]]


class HfTokenizer:
    """Ids of a directory's tokenizer; what a run asks of a tokenizer."""

    start_id = -1
    """The id before each document, where documents are what is to train on."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """Read the tokenizer of a directory whose model knows `vocab_size` ids.

        Raises:
            UserError: there is none, or it cannot give back the text that it was given.
        """
        self.tokens = HfTokens(folder)
        self.folder, self.vocab_size, self.hash = folder, vocab_size, self.tokens.hash
        self._special = self.tokens.end_ids

    @cached_property
    def token_bytes(self) -> npt.NDArray[np.int64]:
        """Bytes that each id stands for, 0 for special tokens."""
        sizes = np.zeros(self.vocab_size, dtype=np.int64)
        for id_ in self.tokens.ids.values():
            if id_ < self.vocab_size and id_ not in self._special:
                sizes[id_] = len(self.tokens.bytes_of([id_]))
        return sizes

    def encode_batch(self, texts: Sequence[str], **_: Any) -> list[list[int]]:
        """The ids of documents, as `Tokenizer.encode_batch` with <BOS> before each."""
        return [[self.start_id, *encoded.ids] for encoded in self.tokens.encode(texts)]

    def to_json(self) -> bytes:
        """The file `tokenizer.json`, as it is."""
        return (self.folder / "tokenizer.json").read_bytes()


class HfChatTokenizer(HfTokenizer):
    """Conversations to ids, with a mask of what the assistant writes."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        """Read the tokenizer of a directory whose model knows `vocab_size` ids.

        Raises:
            UserError: there is none, it cannot be loaded without its own code, or it has no chat template.
        """
        super().__init__(folder, vocab_size)
        self._name = folder.resolve().name
        try:
            self._tokenizer = import_transformers().AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # whatever a stranger's files make the library raise
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"the tokenizer in {folder} cannot be loaded: {reason}") from error
        template = self._tokenizer.chat_template
        if not template:
            raise UserError(
                f"{folder} has no chat template",
                fix="Put one there as chat_template.jinja, such as that of a model tuned to chat.",
            )
        if not self._tokenizer.is_fast:
            raise UserError(
                f"the tokenizer in {folder} is a slow one, without the offsets of tokens in the text",
                fix="Convert it to a fast tokenizer (tokenizer.json): AutoTokenizer, then save_pretrained.",
            )
        self._end: str = self._tokenizer.eos_token or template  # a template is in no text
        self._special = self.tokens.end_ids.union(self._tokenizer.all_special_ids)
        names = [name for name, id_ in self.tokens.ids.items() if id_ in self._special]
        self._special_names = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self.hash = sha256(json.dumps([self.tokens.hash, template], sort_keys=True).encode())

    def encode_record(self, record: Mapping[str, Any]) -> RenderedConversation:
        """The conversation of a record, with its `tools` if it has any.

        Raises:
            UserError: it is none, or the template cannot tell it, or not what the assistant writes of it.
        """
        messages, tools = chat_messages(record), record.get("tools") or None
        if tools is not None and not (isinstance(tools, list) and all(isinstance(t, dict) for t in tools)):
            raise UserError("tools are a list of JSON schemas")
        if self._special_names.search("\n".join(_strings([messages, tools]))):
            raise UserError("a text holds a special token of the model's tokenizer")
        text = self._render(messages, tools)
        self._require_whole(text, messages, tools)
        template = self._tokenizer.get_chat_template(tools=tools)
        if _GENERATION.search(template):
            ids, mask = self._marked(messages, tools)
        else:
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            ids, starts = encoded["input_ids"], np.array(encoded["offset_mapping"]).reshape(-1, 2)[:, 0]
            mask = np.zeros(len(ids), dtype=bool)
            for first, last in self._answers(text, messages, tools):
                mask |= (starts >= first) & (starts < last)
        if max(ids) >= self.vocab_size:
            raise UserError("the tokenizer gives ids that the model does not know")
        return RenderedConversation(ids, self._with_ends(ids, mask).astype(int).tolist())

    def _render(self, messages: Messages, tools: Any, *, prompt: bool = False) -> str:
        return str(self._apply(messages, tools, tokenize=False, add_generation_prompt=prompt))

    def _apply(self, messages: Messages, tools: Any, **options: Any) -> Any:
        try:
            return self._tokenizer.apply_chat_template(messages, tools=tools, **options)
        except Exception as error:  # whatever a stranger's template makes Jinja raise
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"the chat template of {self._name} refuses it: {reason}") from error

    def _require_whole(self, text: str, messages: Messages, tools: Any) -> None:
        """Refuse a template that leaves out a message, a call, or the tools."""
        for message in messages:
            content = message["content"].strip()
            if content not in text and json.dumps(content, ensure_ascii=False)[1:-1] not in text:
                raise UserError(
                    f"the chat template of {self._name} leaves out what the {message['role']} says"
                )
            if not all(call["function"]["name"] in text for call in message.get("tool_calls", ())):
                raise UserError(f"the chat template of {self._name} leaves out calls of tools")
        if tools is not None and text == self._render(messages, None):
            raise UserError(f"the chat template of {self._name} leaves out the tools")

    def _marked(self, messages: Messages, tools: Any) -> tuple[list[int], npt.NDArray[np.bool_]]:
        """Ids, and what stands in the generation blocks of the template."""
        encoded = self._apply(
            messages, tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
        )
        return encoded["input_ids"], np.array(encoded["assistant_masks"], dtype=bool)

    def _answers(self, text: str, messages: Messages, tools: Any) -> Iterator[tuple[int, int]]:
        """Begin and end of what the assistant adds to the text, in characters, turn by turn."""
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before, behind = (self._render(messages[:end], tools) for end in (number, number + 1))
            prompt = self._render(messages[:number], tools, prompt=True)
            # As far as both agree: a prompt may begin a thought that is not there.
            agree = takewhile(lambda pair: pair[0] == pair[1], zip(text, prompt, strict=False))
            start = sum(1 for _ in agree)
            if text.startswith(behind) and len(behind) > start:
                end = len(behind)
            else:  # a turn that looks otherwise when more follows, such as without its thoughts
                end = text.find(self._end, start) + len(self._end)
            if start < len(before) or end < start:
                raise UserError(
                    f"the chat template of {self._name} does not say where the assistant writes: it has no "
                    "generation blocks, and the beginning of a conversation looks otherwise when more follows"
                )
            yield start, end

    def _with_ends(self, ids: Sequence[int], mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The mask, of each turn up to the special token that ends it, without a line break behind that."""
        edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
        if not len(edges):
            raise UserError(f"the chat template of {self._name} marks nothing that the assistant writes")
        for first, last in edges:
            special = [place for place in range(first, last) if ids[place] in self._special]
            end = special[-1] if special else last
            if special and not self._tokenizer.decode(ids[end + 1 : last]).strip():
                mask[end + 1 : last] = False
            elif last < len(ids) and ids[last] in self._special:
                mask[last] = True
            else:
                raise UserError(
                    f"the chat template of {self._name} ends a turn of the assistant without a special token"
                )
        return mask


def chat_messages(record: Mapping[str, Any]) -> Messages:
    """The messages of a record as chat templates want them: texts, and arguments of calls as objects.

    Raises:
        UserError: what `cpplm sft` refuses for our own models too, or parts that are our tokenizer's own.
    """
    turns = conversation_turns(openai_messages(record))
    alternating_turns({"messages": turns})
    for part in (part for turn in turns if turn["role"] == "assistant" for part in turn["content"]):
        kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (None, None)
        if str(kind) not in PARTS or not isinstance(text, str):
            raise UserError(f"the assistant's content has a part that is not understood: {part!r:.100}")
    require_answers(turns)
    messages = []
    for message in openai_messages(record):
        parts = message.get("content") or ""
        if not isinstance(parts, str):
            if any(part["type"] != "text" for part in parts):
                raise UserError("parts other than texts are for cpplm's own models; use tool_calls and tool")
            parts = "".join(part["text"] for part in parts)
        kept = {name: message[name] for name in ("name", "tool_call_id") if name in message}
        if message.get("tool_calls"):
            kept["tool_calls"] = [_call(call) for call in message["tool_calls"]]
        messages.append({"role": message["role"], "content": parts, **kept})
    return messages


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = json.loads(function["arguments"])
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _strings(value: Any) -> Iterator[str]:
    """All texts in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings([*value.keys(), *value.values()])
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)
