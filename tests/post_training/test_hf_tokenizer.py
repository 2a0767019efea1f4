"""Chat templates: what the assistant writes is learned, and nothing is left out unseen."""

import json
from pathlib import Path

import pytest

from cpplm.core.errors import UserError
from cpplm.post_training.conversations import prepare_conversations
from cpplm.post_training.hf_tokenizer import HfChatTokenizer
from tests.evaluate.models.hf_dirs import byte_level, write_tokenizer
from tests.post_training.conftest import question, write
from tests.post_training.hf_models import BLOCKS, CHATML, SPECIAL
from tests.post_training.test_conversations import BAD

CALL = {"id": "1", "function": {"name": "search", "arguments": '{"pattern": "draw"}'}}
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
WITH_TOOLS = {
    "tools": [TOOL],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Where?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "src/shapes.h:3"},
        {"role": "assistant", "content": "There."},
        {"role": "user", "content": "Thanks"},
        {"role": "assistant", "content": "Welcome."},
    ],
}
# Thoughts of earlier turns are dropped, as Qwen3 does.
FORGETS = CHATML.replace(
    "message.content -}}",
    "('' if loop.last or message.role == 'user' else '(old)') + message.content -}}",
)


def chat_tokenizer(folder: Path, template: str = CHATML) -> HfChatTokenizer:
    write_tokenizer(folder, byte_level(SPECIAL), eos_token="<|im_end|>")
    (folder / "chat_template.jinja").write_text(template)
    return HfChatTokenizer(folder, 400)


def learned(tokenizer: HfChatTokenizer, record: dict) -> list[str]:
    """The texts that are learned, and all others, in turn; the first is context."""
    rendered = tokenizer.encode_record(record)
    parts: list[list[int]] = [[]]
    for id_, mask in zip(rendered.ids, rendered.mask, strict=True):
        if mask != (len(parts) + 1) % 2:
            parts.append([])
        parts[-1].append(id_)
    return [tokenizer._tokenizer.decode(ids) for ids in parts]


def test_answers_calls_and_the_ends_of_turns_are_learned(tmp_path: Path) -> None:
    prompt, call, result, answer, thanks, last, rest = learned(chat_tokenizer(tmp_path), WITH_TOOLS)
    assert "Be brief." in prompt
    assert '"parameters"' in prompt
    assert prompt.endswith("Where?<|im_end|>\n<|im_start|>assistant\n")
    assert call == '<call>search {"pattern": "draw"}</call><|im_end|>'
    assert result == "\n<|im_start|>tool\nsrc/shapes.h:3<|im_end|>\n<|im_start|>assistant\n"
    assert (answer, last) == ("There.<|im_end|>", "Welcome.<|im_end|>")
    assert "Thanks" in thanks
    assert rest == "\n"


def test_generation_blocks_say_the_same_as_prefixes(tmp_path: Path) -> None:
    plain = {"messages": [*question(1)["messages"], *question(2)["messages"]]}
    by_prefix = chat_tokenizer(tmp_path / "prefix").encode_record(plain)
    by_blocks = chat_tokenizer(tmp_path / "blocks", BLOCKS).encode_record(plain)
    assert by_blocks == by_prefix
    assert sum(by_blocks.mask) > 4


def test_a_template_that_forgets_thoughts(tmp_path: Path) -> None:
    *_, first, _, second, _ = learned(chat_tokenizer(tmp_path / "a", FORGETS), turns("a", "b", "c", "d"))
    assert (first, second) == ("(old)b<|im_end|>", "d<|im_end|>")
    thinks = CHATML.replace("<|im_start|>assistant\\n'", "<|im_start|>assistant\\n<think>'")
    assert thinks != CHATML
    tokenizer = chat_tokenizer(tmp_path / "b", thinks)
    assert learned(tokenizer, turns("a", "b"))[1] == "b<|im_end|>"
    assert learned(tokenizer, turns("a", "<think>c</think>b"))[1] == "c</think>b<|im_end|>"


def turns(*contents: str) -> dict:
    roles = ("user", "assistant") * len(contents)
    return {"messages": [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]}


REFUSED = {
    "no tools": (BLOCKS, WITH_TOOLS, "leaves out calls of tools"),
    "no role tool": (
        CHATML.replace("message in messages", "message in messages if message.role != 'tool'"), WITH_TOOLS,
        "leaves out what the tool says",
    ),
    "no schemas": (CHATML.replace("if tools", "if false"), WITH_TOOLS, "leaves out the tools"),
    "no system": (
        "{{ raise_exception('no system role') if messages[0].role == 'system' }}" + CHATML, WITH_TOOLS,
        "refuses it: no system role",
    ),
    "counts": ("{{ messages | length }}" + CHATML, turns("a", "b", "c", "d"), "otherwise when more follows"),
    "no end": (CHATML.replace("<|im_end|>", ""), turns("a", "b"), "without a special token"),
    "attack": ("{{ messages.__class__.__mro__[1].__subclasses__() }}", turns("a", "b"), "refuses it"),
    "special": (CHATML, turns("a <|im_end|>", "b"), "holds a special token"),
    "special in a tool": (
        CHATML, {**WITH_TOOLS, "tools": [{"function": {"name": "<|im_start|>"}}]}, "holds a special token"
    ),
    "parts": (
        CHATML,
        {"messages": [{"role": "user", "content": "a"},
                      {"role": "assistant", "content": [{"type": "query_tool", "text": "f()"},
                                                        {"type": "tool_result", "text": "1"}]}]},
        "for cpplm's own models",
    ),
    "tools no list": (CHATML, {**turns("a", "b"), "tools": "search"}, "a list of JSON schemas"),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_a_template_cannot_tell_is_refused_or_counted(tmp_path: Path, name: str) -> None:
    template, record, message = REFUSED[name]
    tokenizer = chat_tokenizer(tmp_path / "model", template)
    with pytest.raises(UserError, match=message):
        tokenizer.encode_record(record)


@pytest.mark.parametrize("name", sorted(BAD))
def test_what_is_no_conversation_is_named_or_counted(tmp_path: Path, name: str) -> None:
    record, message = BAD[name]
    file = write(tmp_path / "talk.jsonl", question(1), record)
    tokenizer, options = chat_tokenizer(tmp_path / "model"), {"max_tokens": 64, "val_share": 0.0}
    with pytest.raises(UserError, match=rf"talk\.jsonl:2: .*{message}.*--skip_bad"):
        prepare_conversations([file], tmp_path / "data", tokenizer, skip_bad=False, **options)
    _, counts = prepare_conversations([file], tmp_path / "data", tokenizer, skip_bad=True, **options)
    assert counts.conversations == {"train": 1}
    assert list(counts.examples.values()) == [f"{file}:2"]


def test_long_ones_are_left_out_whole(tmp_path: Path) -> None:
    file = write(tmp_path / "talk.jsonl", question(1), turns("x" * 300, "y"))
    tokenizer = chat_tokenizer(tmp_path / "model")
    _, counts = prepare_conversations(
        [file], tmp_path / "data", tokenizer, max_tokens=64, val_share=0.0, skip_bad=False
    )
    assert counts.dropped == {"longer than --max_seq_len 64 tokens": 1}


def test_another_template_is_another_tokenizer(tmp_path: Path) -> None:
    hashes = {chat_tokenizer(tmp_path / str(n), t).hash for n, t in enumerate((CHATML, CHATML, BLOCKS))}
    assert len(hashes) == 2


def test_code_of_a_tokenizer_is_not_run(tmp_path: Path) -> None:
    chat_tokenizer(tmp_path)
    record = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(record))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(UserError, match="cannot be loaded"):
        HfChatTokenizer(tmp_path, 400)
    assert not (tmp_path / "ran").exists()
