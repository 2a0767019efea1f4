"""llama.cpp's endpoints for tokens and properties."""

from typing import Any

import pytest

from cpplm.generate.engine import Engine
from cpplm.tokenizer.export import chat_template
from cpplm.tokenizer.special_tokens import BOS, NUM_SPECIAL
from tests.serve.served import NAME, Served, error_of

TEXT = "int <BOS>f(); // é 日本 \n\t<|user_start|>"


def tokens(served: Served, content: str, **more: bool) -> list[Any]:
    answer = served.post("/tokenize", {"content": content, **more})
    assert answer.status_code == 200, answer.text
    assert set(answer.json()) == {"tokens"}
    return answer.json()["tokens"]


def text(served: Served, ids: list[int]) -> str:
    answer = served.post("/detokenize", {"tokens": ids})
    assert answer.status_code == 200, answer.text
    return answer.json()["content"]


@pytest.mark.parametrize("content", ["", "int x;", TEXT, TEXT * 500])
def test_tokens_are_the_tokenizers_and_come_back(served: Served, engine: Engine, content: str) -> None:
    ids = tokens(served, content)
    assert ids == engine.tokenizer.encode(content)
    assert not any(id_ < NUM_SPECIAL for id_ in ids)
    assert tokens(served, content, add_special=True) == [BOS, *ids]
    assert text(served, ids) == content


def test_special_tokens_are_parsed_where_that_is_asked_for(served: Served) -> None:
    ids = tokens(served, TEXT, parse_special=True)
    assert [id_ for id_ in ids if id_ < NUM_SPECIAL] == [BOS, 20]
    assert text(served, ids) == TEXT


def test_pieces(served: Served) -> None:
    found = tokens(served, TEXT, with_pieces=True, add_special=True)
    assert [each["id"] for each in found] == tokens(served, TEXT, add_special=True)
    assert found[0]["piece"] == "<BOS>"
    pieces = [each["piece"] for each in found[1:]]
    assert b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in pieces) == TEXT.encode()
    assert any(isinstance(piece, list) for piece in pieces)  # parts of characters


def test_a_token_that_is_none(served: Served, engine: Engine) -> None:
    body = {"tokens": [5, engine.tokenizer.vocab_size]}
    assert error_of(served.post("/detokenize", body), 400, "invalid_value")["param"] == "tokens"


def test_props(served: Served, engine: Engine) -> None:
    props = served.http.get("/props").json()
    defaults = props["default_generation_settings"]
    assert defaults["n_ctx"] == engine.model.config.max_seq_len
    assert (defaults["params"]["temperature"], defaults["params"]["n_predict"]) == (0.8, 256)
    assert (props["total_slots"], props["model_path"], props["model_alias"]) == (8, "some/run", NAME)
    assert (props["chat_template"], props["bos_token"]) == (chat_template(), "<BOS>")
