"""Tokenizers of Hugging Face directories: where each token ends in the bytes of a text."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from cpplm.evaluate.models.hf_tokens import SENTINELS, HfTokens
from tests.evaluate.models.hf_dirs import byte_level, sentence_piece, write_tokenizer
from tests.texts import cpp_document

SPELT = "é漢🙂 x <|endoftext|> <fim_prefix>\t\r\n\x00"
texts = st.one_of(
    st.text(max_size=60),
    st.text("aé漢🙂 \n\u0301\u00a0<|>", max_size=40),
    st.integers(0, 99).map(cpp_document),
    st.just(SPELT),
)


@given(texts)
def test_byte_level_tokens_end_where_their_bytes_do(hf_tokens: HfTokens, text: str) -> None:
    (found,) = hf_tokens.encode([text])
    edges = [0, *found.ends.tolist()]
    data = text.encode()
    assert edges[-1] == len(data)
    for id_, begin, end in zip(found.ids, edges, edges[1:], strict=False):
        assert hf_tokens.bytes_of([id_]) == data[begin:end]
    assert not set(found.ids) & hf_tokens.end_ids


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> HfTokens:
    return HfTokens(write_tokenizer(tmp_path_factory.mktemp("sp"), sentence_piece(), bos_token="<s>"))


@given(texts)
def test_sentence_pieces_end_where_their_bytes_do(pieces: HfTokens, text: str) -> None:
    """Their first token has a space more than the text; a text of U+2581 is read as spaces by design."""
    text = text.replace("▁", "")
    (found,) = pieces.encode([text])
    assert (b" " + text.encode() if text else b"") == pieces.bytes_of(found.ids)
    edges = [0, *found.ends.tolist()]
    assert edges[-1] == len(text.encode())
    for id_, begin, end in list(zip(found.ids, edges, edges[1:], strict=False))[1:]:
        assert pieces.bytes_of([id_]) == text.encode()[begin:end]


@pytest.fixture(scope="module")
def normalizing(tmp_path_factory: pytest.TempPathFactory) -> HfTokens:
    tokenizer = byte_level(normalizer=normalizers.NFC())
    return HfTokens(write_tokenizer(tmp_path_factory.mktemp("nfc"), tokenizer, eos_token="<|endoftext|>"))


@given(texts)
def test_normalized_texts_keep_their_own_bytes(normalizing: HfTokens, text: str) -> None:
    (found,) = normalizing.encode([text])
    ends = found.ends.tolist()
    assert ends == sorted(ends)
    assert (ends[-1] if ends else 0) == (len(text.encode()) if found.ids else 0)


def test_a_normalized_character_is_one_place(normalizing: HfTokens) -> None:
    decomposed = "e\u0301"  # becomes one character of two bytes, which are two tokens here
    (found,) = normalizing.encode([f"a{decomposed}b"])
    assert found.ends.tolist() == [1, 1, 2, 5]  # the accent, which is in no token, counts with what follows


def test_a_space_before_the_text_belongs_to_no_text(tmp_path: Path) -> None:
    tokens = HfTokens(write_tokenizer(tmp_path, byte_level(prefix_space=True), eos_token="<|endoftext|>"))
    (found,) = tokens.encode(["int x"])
    assert found.ends[-1] == 5
    assert tokens.bytes_of(found.ids) == b" int x"
    assert tokens.bytes_of(tokens.encode_inside("int x")) == b"int x"


@pytest.mark.parametrize("text", ["x", " x", "é", "", "▁", "\n}"])
def test_text_inside_a_document_gets_no_space(pieces: HfTokens, text: str) -> None:
    assert pieces.bytes_of(pieces.encode_inside(text)) == text.replace("▁", " ").encode()


def test_marks_that_a_tokenizer_takes_for_text_are_special_here(tmp_path: Path) -> None:
    """Qwen's tokenizer lists <|fim_prefix|> among the tokens that are not special."""
    tokenizer = byte_level(["<|endoftext|>", *SENTINELS[2]])
    record = json.loads(tokenizer.to_str())
    for token in record["added_tokens"][1:]:
        token["special"] = False
    write_tokenizer(tmp_path, tokenizer, eos_token="<|endoftext|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(record))
    tokens = HfTokens(tmp_path)
    (found,) = tokens.encode(["a<|fim_prefix|>b"])
    assert tokens.ids["<|fim_prefix|>"] not in found.ids
    assert tokens.ids["<|fim_prefix|>"] in tokens.end_ids


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokens = HfTokens(write_tokenizer(tmp_path, tokenizer, eos_token="<|endoftext|>"))
    assert tokens.encode([cpp_document(1), "x"])[0].ends[-1] == len(cpp_document(1))
    assert len(tokens.encode(["x"])[0].ids) == 1
