"""Where a continuation ends and what of it is shown, whatever the tokens' borders."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cpplm.core.errors import UserError
from cpplm.generate.sequence import CompletionOutput, GenerationRequest, SequenceState, sample_next
from cpplm.generate.settings import SamplingSettings
from cpplm.tokenizer.special_tokens import BOS, EOS
from cpplm.tokenizer.tokenizer import Tokenizer


def write(
    tokenizer: Tokenizer, request: GenerationRequest, tokens: list[int]
) -> tuple[list[str], CompletionOutput]:
    sample, shown = SequenceState(tokenizer, request, 0, room=100), []
    for token in tokens:
        shown.append(sample.append(token))
        if sample.finish_reason:
            break
    return shown, sample.completion()


def asking(**settings: object) -> GenerationRequest:
    return GenerationRequest((BOS,), SamplingSettings(**{"max_new_tokens": 90, **settings}))  # type: ignore[arg-type]


def split_anywhere(tokenizer: Tokenizer, text: str, cuts: list[int]) -> list[int]:
    """Ids that spell the text with token borders at least at these bytes."""
    data, ends = text.encode(), sorted({min(cut, len(text.encode())) for cut in cuts})
    parts = [data[a:b] for a, b in zip([0, *ends], [*ends, len(data)], strict=True)]
    return [id_ for part in parts for id_ in tokenizer.encode(part)]


def first_stop(text: str, stops: tuple[str, ...]) -> str | None:
    """Character by character: what stands before the stop text that is complete first."""
    for end in range(len(text) + 1):
        whole = [stop for stop in stops if text[:end].endswith(stop)]
        if whole:
            return text[: end - max(map(len, whole))]
    return None


@settings(max_examples=200)
@given(
    text=st.text("ab}\n é", max_size=24),
    stops=st.lists(st.text("ab}\n é", min_size=1, max_size=4), max_size=3, unique=True),
    cuts=st.lists(st.integers(0, 30), max_size=6),
)
def test_stop_texts_across_token_borders(tokenizer: Tokenizer, text, stops, cuts) -> None:
    tokens = split_anywhere(tokenizer, text, cuts)
    shown, completion = write(tokenizer, asking(stop=tuple(stops)), [*tokens, EOS])
    expected = first_stop(text, tuple(stops))
    assert completion.finish_reason == ("end" if expected is None else "stop")
    assert completion.text == (text if expected is None else expected)
    assert "".join(shown) == completion.text
    assert list(completion.ids) == tokens[: len(completion.ids)]


def test_text_is_shown_as_soon_as_it_is_certain(tokenizer: Tokenizer) -> None:
    tokens = [token for letter in "int }\n};" for token in tokenizer.encode(letter)]
    shown, completion = write(tokenizer, asking(stop=("}\n}\n",)), [*tokens, EOS])
    assert shown == ["i", "n", "t", " ", "", "", "", "}\n};", ""]
    assert completion.finish_reason == "end"


def test_half_characters_are_not_shown(tokenizer: Tokenizer) -> None:
    first, second = (tokenizer.ids[bytes([byte])] for byte in "é".encode())
    shown, completion = write(tokenizer, asking(), [first, second, first, EOS])
    assert shown == ["", "é", "", "\N{REPLACEMENT CHARACTER}"]
    assert completion.text == "é\N{REPLACEMENT CHARACTER}"


def test_a_function_may_say_when_it_is_enough(tokenizer: Tokenizer) -> None:
    seen: list[str] = []
    request = GenerationRequest((BOS,), stop=lambda text: bool(seen.append(text)) or text.count("}") == 2)
    tokens = [token for letter in "{}}}" for token in tokenizer.encode(letter)]
    _, completion = write(tokenizer, request, tokens)
    assert (completion.text, completion.finish_reason, seen) == ("{}}", "stop", ["{", "{}", "{}}"])


def test_what_spells_the_prefix_is_neither_counted_nor_shown(tokenizer: Tokenizer) -> None:
    request = GenerationRequest((BOS,), SamplingSettings(max_new_tokens=2), prefix=b"int")
    tokens = [tokenizer.ids[bytes([byte])] for byte in b"int x = 1"]
    _, completion = write(tokenizer, request, tokens)
    assert (completion.text, completion.finish_reason, len(completion.ids)) == (" x", "length", 5)


def test_logprobs_are_those_of_the_model(tokenizer: Tokenizer) -> None:
    """Not of what temperature, filters and penalties make of them."""
    logits = torch.randn(2, tokenizer.vocab_size, generator=torch.Generator().manual_seed(0))
    request = GenerationRequest((BOS,), SamplingSettings(5, 0.5, 3, repetition_penalty=1.5), logprobs=4)
    plain = GenerationRequest((BOS,), SamplingSettings(5, 0.5, 3))
    samples = [SequenceState(tokenizer, each, 0, room=9) for each in (request, plain)]
    token, _ = sample_next(logits.clone(), samples)
    (found,) = samples[0].logprobs
    expected = logits[0].log_softmax(-1)
    assert found.token == token
    assert found.logprob == pytest.approx(float(expected[token]))
    assert [id_ for id_, _ in found.likeliest] == logits[0].argsort(descending=True)[:4].tolist()
    assert [value for _, value in found.likeliest] == sorted(expected.tolist(), reverse=True)[:4]
    assert samples[1].logprobs == []


def test_a_diverged_model_is_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match="NaN"):
        sample_next(torch.full((1, 9), float("nan")), [SequenceState(tokenizer, asking(), 0, room=9)])
