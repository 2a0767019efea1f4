"""The tokens of a text with their probabilities, as the two endpoints list them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cpplm.generate.scheduler import TokenEvent
from cpplm.generate.sequence import TokenLogprob
from cpplm.serve.response_models import ChatToken, CompletionLogprobs, LikelyToken
from cpplm.tokenizer.streaming import StreamDecoder
from cpplm.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class ListedToken:
    """One token of a text."""

    data: bytes
    """Bytes of it that belong to the text."""
    offset: int
    """Begin in characters of the text; inside a character, where that one ends."""
    logprob: float | None
    """None for a first token, before which nothing stands."""
    likeliest: tuple[tuple[bytes, float], ...]
    """Tokens that could have stood there."""
    id: int = -1
    """-1 for tokens of a prompt."""


class LogprobBuffer:
    """The tokens of one completion as its text becomes visible: none that a stop text will cut off."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip: int = 0,
        offset: int = 0,
        has_ids: bool = False,
        has_end: bool = False,
    ) -> None:
        """Nothing written yet.

        Args:
            tokenizer: the model's.
            skip: bytes at the beginning that are no part of the text (`GenerationRequest.prefix`).
            offset: characters in front of the text.
            has_ids: list every token as it comes, also what ends the text.
            has_end: list the special token that ends the text, behind it.
        """
        self._tokenizer, self._skip, self._has_ids, self._has_end = tokenizer, skip, has_ids, has_end
        self._decoder = StreamDecoder(tokenizer, skip=skip)
        self._written = self._visible = offset
        self._pending: deque[tuple[int, ListedToken]] = deque()  # with where its text ends

    def append(self, event: TokenEvent) -> tuple[ListedToken, ...]:
        """Take a sample's next token; returns those of the characters that became visible with it."""
        done = event.completion
        if self._has_ids:
            token = event.logprob
            return (self._listed(token, self._written),) if token is not None else ()
        ends = done is not None and done.finish_reason == "end"
        if event.logprob is not None and not ends:
            self._push(event.logprob)
        released = self._release(len(event.text), last=done is not None)
        if ends and self._has_end and event.logprob is not None:
            return (*released, self._listed(event.logprob, self._visible))
        return released

    def _push(self, token: TokenLogprob) -> None:
        data = self._tokenizer.decode_bytes([token.token])
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        offset, self._written = self._written, self._written + len(self._decoder.push(token.token))
        if skipped < len(data):
            listed = self._listed(token, offset, skipped)
            self._pending.append((self._written, listed))

    def _listed(self, token: TokenLogprob, offset: int, skipped: int = 0) -> ListedToken:
        data = self._tokenizer.decode_bytes([token.token])[skipped:]
        return ListedToken(data, offset, token.logprob, _likeliest(self._tokenizer, token), token.token)

    def _release(self, characters: int, *, last: bool) -> tuple[ListedToken, ...]:
        """Tokens of the next so many visible characters; with `last`, also one that is cut off inside."""
        self._visible += characters
        released = []
        while self._pending and (
            self._pending[0][0] <= self._visible or (last and self._pending[0][1].offset < self._visible)
        ):
            released.append(self._pending.popleft()[1])
        return tuple(released)


def prompt_tokens(
    tokenizer: Tokenizer, ids: Sequence[int], scores: Iterable[TokenLogprob]
) -> Iterator[ListedToken]:
    """The tokens of a prompt but the first.

    Args:
        tokenizer: the model's.
        ids: of the prompt, <BOS> first.
        scores: of all but the first.
    """
    decoder, offset = StreamDecoder(tokenizer), 0
    for id_, score in zip(ids[1:], scores, strict=True):
        yield ListedToken(tokenizer.decode_bytes([id_]), offset, score.logprob, _likeliest(tokenizer, score))
        offset += len(decoder.push(id_))


def completion_logprobs(tokens: Sequence[ListedToken]) -> CompletionLogprobs:
    """List tokens as the completions endpoint does."""
    return CompletionLogprobs(
        tokens=[_name(token.data) for token in tokens],
        token_logprobs=[token.logprob for token in tokens],
        top_logprobs=[{_name(data): logprob for data, logprob in token.likeliest} for token in tokens],
        text_offset=[token.offset for token in tokens],
    )


def chat_logprobs(tokens: Sequence[ListedToken]) -> list[ChatToken]:
    """List tokens as the chat endpoint does."""
    return [
        ChatToken(
            token=token.data.decode("utf-8", "replace"), bytes=list(token.data), logprob=token.logprob or 0.0,
            top_logprobs=[
                LikelyToken(token=data.decode("utf-8", "replace"), bytes=list(data), logprob=logprob)
                for data, logprob in token.likeliest
            ],
        )
        for token in tokens
    ]  # fmt: skip


def _likeliest(tokenizer: Tokenizer, token: TokenLogprob) -> tuple[tuple[bytes, float], ...]:
    return tuple((tokenizer.decode_bytes([id_]), logprob) for id_, logprob in token.likeliest)


def _name(data: bytes) -> str:
    """Text, or the bytes of a part of a character, named as OpenAI does."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{value:02x}" for value in data)
