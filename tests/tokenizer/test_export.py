"""The export gives the same ids in Hugging Face's libraries, and its template the same conversations."""

import json
from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.tokenizer.conversations import render_conversation, render_for_completion
from cpplm.tokenizer.export import FILES, export_hf
from cpplm.tokenizer.special_tokens import SPECIAL_TOKENS
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.texts import cpp_document
from tests.tokenizer.test_conversations import ANSWER, SYSTEM, TOOLS, USER


@pytest.fixture(scope="module")
def exported(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("hf")
    export_hf(tokenizer, folder)
    return transformers.AutoTokenizer.from_pretrained(folder)


def hf_ids(exported, text: str) -> list[int]:
    return exported(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]


def test_code(exported, tokenizer: Tokenizer) -> None:
    for number in range(30):
        text = cpp_document(number)
        assert hf_ids(exported, text) == tokenizer.encode(text)
        assert exported.decode(tokenizer.encode(text)) == text


@settings(max_examples=100)
@given(
    text=st.text(max_size=60)
    | st.text("-=*/ \n\t#", max_size=90)
    | st.text("<|bos>BOSuser_start ", max_size=40)
)
def test_fuzz(exported, tokenizer: Tokenizer, text: str) -> None:
    if any(0xD800 <= ord(character) < 0xE000 for character in text):
        return  # not text to that library
    assert hf_ids(exported, text) == tokenizer.encode(text)


def test_special_tokens(exported, tokenizer: Tokenizer) -> None:
    assert len(exported) == tokenizer.vocab_size
    assert exported.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(64))
    assert (exported.pad_token_id, exported.bos_token_id, exported.eos_token_id) == (0, 2, 3)
    assert exported.decode([2, *tokenizer.encode("int x;"), 3], skip_special_tokens=True) == "int x;"


def test_the_chat_template_renders_the_same_conversations(exported, tokenizer: Tokenizer) -> None:
    question = {
        "role": "user",
        "content": "What is 2 << 3?",
    }  # no special token's name: that is theirs to read
    for messages in ([question, ANSWER], [SYSTEM, question, TOOLS], [question, ANSWER, question, TOOLS]):
        ours = render_conversation(tokenizer, {"messages": messages}).ids
        theirs = exported.apply_chat_template(messages, tokenize=True, return_dict=False)
        assert tokenizer.decode(theirs) == tokenizer.decode(ours)
        assert theirs == ours
    prompt = exported.apply_chat_template(
        [SYSTEM, question], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert prompt == render_for_completion(tokenizer, {"messages": [SYSTEM, question]})
    with pytest.raises(Exception, match="roles are system, user and assistant"):
        exported.apply_chat_template([{"role": "tool", "content": "x"}])
    assert USER["content"].endswith("<|user_end|>")


def test_nothing_is_overwritten(tokenizer: Tokenizer, tmp_path: Path) -> None:
    export_hf(tokenizer, tmp_path / "new" / "folder")
    before = {name: (tmp_path / "new" / "folder" / name).read_bytes() for name in FILES}
    assert json.loads(before["tokenizer.json"])["model"]["ignore_merges"] is True
    with pytest.raises(UserError, match=r"tokenizer\.json exists"):
        export_hf(tokenizer, tmp_path / "new" / "folder")
    assert before == {name: (tmp_path / "new" / "folder" / name).read_bytes() for name in FILES}
