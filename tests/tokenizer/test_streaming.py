"""Streamed text is the whole text, and never half a character."""

from hypothesis import given
from hypothesis import strategies as st

from cpplm.tokenizer.streaming import StreamDecoder
from cpplm.tokenizer.tokenizer import Tokenizer


@given(
    data=st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")) | st.binary(max_size=40)
)
def test_the_parts_are_the_whole(tokenizer: Tokenizer, data: bytes) -> None:
    decoder = StreamDecoder(tokenizer)
    ids = tokenizer.encode(data)
    parts = [decoder.push(id_) for id_ in ids]
    assert "".join(parts) + decoder.finish() == tokenizer.decode(ids)


def test_a_character_comes_when_it_is_whole(tokenizer: Tokenizer) -> None:
    decoder = StreamDecoder(tokenizer)
    first, second, third = tokenizer.encode("\u4e2d")
    assert (decoder.push(first), decoder.push(second), decoder.push(third)) == ("", "", "\u4e2d")
    assert decoder.push(first) == ""
    assert decoder.finish() == "\ufffd"
