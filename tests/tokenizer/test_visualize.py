"""The pictures hold the whole text, and nothing in it steers the terminal or the page."""

import html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.tokenizer.visualize import to_html, to_shaded_html, to_terminal

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
CODE = "int main() {\n\treturn 0;\n}\n"


def test_terminal(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(CODE, prepend="<BOS>")
    shown = to_terminal(tokenizer, ids)
    assert ESCAPE.sub("", shown) == "<BOS>" + CODE.replace("\n", "↵\n").replace("\t", "→\t")
    assert (
        len(set(re.findall(r"48;5;(\d+)m", shown))) == 5
    )  # four colours in turn, and that of special tokens
    with_ids = ESCAPE.sub("", to_terminal(tokenizer, ids, with_ids=True))
    assert with_ids.startswith("<BOS>2")
    assert all(str(id_) in with_ids for id_ in ids)


def test_a_mask_has_two_colours(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("int x;")
    all_trained = to_terminal(tokenizer, ids, [1] * len(ids))
    none = to_terminal(tokenizer, ids, [0] * len(ids))
    assert len(set(re.findall(r"48;5;(\d+)m", all_trained))) == 1
    assert all_trained != none
    with pytest.raises(UserError, match="a mask of 1"):
        to_terminal(tokenizer, [*ids, *ids], [1])


@given(data=st.binary(max_size=40) | st.text("<>&\"'\x1b[31m\x9b\u202e\n", max_size=20).map(str.encode))
def test_nothing_in_the_text_steers_terminal_or_page(tokenizer: Tokenizer, data: bytes) -> None:
    ids = tokenizer.encode(data)
    plain = ESCAPE.sub("", to_terminal(tokenizer, ids))
    assert all(character in "\n\t" or character.isprintable() for character in plain)
    page = to_html(tokenizer, ids)
    shaded = to_shaded_html(tokenizer, ids, [2.5] * len(ids), most=2)
    assert shaded.count("1.00)") >= len(ids)  # as dark as can be
    for each in (page, shaded):
        assert each.count("<span") == each.count("</span>") == len(ids)
        assert each.count("<") == 2 * len(ids) + 2
        inside = html.unescape(re.sub(r"<[^>]*>", "", each)).rstrip("\n")
        assert inside == plain.rstrip("\n")


def test_html_names_the_token(tokenizer: Tokenizer) -> None:
    page = to_html(tokenizer, tokenizer.encode("\xe9", prepend="<BOS>"))
    assert 'title="2 b&#x27;&lt;BOS&gt;&#x27;"' in page
    assert "&lt;0xC3&gt;" in page
