"""Listed tokens: those of the visible text and no others, however it becomes visible."""

from hypothesis import given
from hypothesis import strategies as st

from cpplm.generate.scheduler import TokenEvent
from cpplm.generate.sequence import GenerationRequest, SequenceState, TokenLogprob
from cpplm.generate.settings import SamplingSettings
from cpplm.serve.logprobs import ListedToken, LogprobBuffer, chat_logprobs, completion_logprobs
from cpplm.tokenizer.special_tokens import BOS
from cpplm.tokenizer.tokenizer import Tokenizer


def listed(
    tokenizer: Tokenizer, request: GenerationRequest, ids: list[int]
) -> tuple[str, list[ListedToken], bool]:
    """Text and tokens of a continuation, as a server shows them step by step, and whether it has ended."""
    state = SequenceState(tokenizer, request, 0, 1000)
    buffer = LogprobBuffer(tokenizer, skip=len(request.prefix))
    text, tokens = "", list[ListedToken]()
    for id_ in ids:
        shown = state.append(id_)
        completion = None if state.finish_reason is None else state.completion()
        logprob = TokenLogprob(id_, -1.0, ((id_, -1.0),))
        tokens += buffer.append(TokenEvent(0, 0, shown, completion, completion is not None, logprob))
        text += shown
        if completion is not None:
            return text, tokens, True
    return text, tokens, False


@given(st.data())
def test_tokens_spell_the_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    """Of any tokens, with a stop text or without; a token that it cuts is the last one."""
    ids = data.draw(st.lists(st.integers(64, tokenizer.vocab_size - 1), max_size=30))
    whole = tokenizer.decode(ids)
    stop = data.draw(st.sampled_from([whole[place : place + 2] for place in range(len(whole))] or ["x"]))
    stops = (stop,) if stop and data.draw(st.booleans()) else ()
    request = GenerationRequest((BOS,), SamplingSettings(1000, stop=stops))
    text, tokens, stopped = listed(tokenizer, request, ids)
    spelt = b"".join(token.data for token in tokens).decode("utf-8", "replace")
    if stops and not stopped:  # a token of which a part may begin the stop text is shown with the next one
        assert text.startswith(spelt.rstrip("\ufffd"))
    elif stops:
        assert spelt.startswith(text.rstrip("\ufffd"))
        assert len(tokens) < 2 or tokens[-1].offset <= len(text)
    else:
        held = text[: len(text)]
        assert spelt.startswith(held)
    offsets = [token.offset for token in tokens]
    assert offsets == sorted(offsets)


def test_parts_of_characters(tokenizer: Tokenizer) -> None:
    """They are named as OpenAI does, and the whole of them is one character of the text."""
    ids = [tokenizer.ids[bytes([value])] for value in "é!".encode()]
    text, tokens, _ = listed(tokenizer, GenerationRequest((BOS,)), ids)
    assert text == "é!"
    assert completion_logprobs(tokens).tokens == ["bytes:\\xc3", "bytes:\\xa9", "!"]
    assert completion_logprobs(tokens).text_offset == [0, 0, 1]
    assert [each.bytes for each in chat_logprobs(tokens)] == [[0xC3], [0xA9], [0x21]]
