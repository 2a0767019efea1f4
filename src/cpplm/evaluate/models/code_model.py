"""The interface of a model under evaluation: it completes code, and says how likely text is.

`checkpoint_model.py` has ours, `hf_model.py` those in a Hugging Face directory, `url_model.py` those behind
an OpenAI-compatible server. No score knows which one it measures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from cpplm.generate.project.context import ContextSource, truncate_with_context
from cpplm.generate.sequence import StopCondition
from cpplm.generate.settings import SamplingSettings
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.generate.truncation import fit_prompt


@dataclass(frozen=True)
class CodePrompt:
    """A prompt for code that follows `prefix`, or with a `suffix` for code between the two."""

    prefix: str
    suffix: str | None = None


@dataclass(frozen=True)
class Completion:
    """One sample; `failed` says why there is none (too long a prompt, a server that stalls), or is empty."""

    text: str
    failed: str = ""


Conversation = Sequence[Mapping[str, Any]]
"""Messages in the form of OpenAI's API, a user's the last."""


@dataclass(frozen=True)
class ChatAnswer:
    """The answer to a conversation, what its tools gave, or why there is none."""

    text: str
    tool_results: tuple[str, ...] = ()
    failed: str = ""


def group_samples(
    samples: Iterable[tuple[int, int, Completion]], num_samples: int
) -> Iterator[tuple[int, list[Completion]]]:
    """Gather samples, which come with the numbers of their prompt and their own, to whole prompts."""
    by_prompt: dict[int, dict[int, Completion]] = {}
    for prompt, index, sample in samples:
        group = by_prompt.setdefault(prompt, {})
        group[index] = sample
        if len(group) == num_samples:
            yield prompt, [group[each] for each in range(num_samples)]


@dataclass(frozen=True)
class TokenBits:
    """The likelihood of a text, token by token; special tokens are not among them.

    All three arrays have one entry per token of the text.
    """

    ends: NDArray[np.int64]
    """The end of each token, in bytes of the text's UTF-8; ascending, the last is the number of bytes. Equal
    to the one before where it is not known how tokens share the bytes of a character."""
    bits: NDArray[np.float64]
    """-log2 of each token's probability after those before it."""
    context: NDArray[np.int64]
    """Tokens before it, <BOS> or the like included, that the model had in view."""


class CodeModel(Protocol):
    """A model under evaluation."""

    name: str
    """Short, for tables."""
    identity: dict[str, Any]
    """Plain JSON that decides its answers (hashes of weights and tokenizer, number format; or address and
    name): the key under which results are kept."""
    supports_fim: bool
    """True if it was trained to see a suffix; a model that was not gets the prefix alone."""
    fim_order: Literal["psm", "spm"] = "spm"
    """Of a model of ours: what it reads first around a hole, the prefix or the suffix."""
    valid: Literal["", "cpp"] = ""
    """`cpp` to draw tokens again that break the syntax of C++, where it can."""
    watches_syntax: bool = False
    """True if it can draw tokens again."""
    supports_chat: bool
    """True if it was trained to answer conversations."""
    max_context: int
    """Tokens that it can have in view, <BOS> or the like included."""

    def fit(self, request: CodePrompt, new_tokens: int, source: ContextSource | None = None) -> CodePrompt:
        """Cut a prompt at its far ends to what the model can have in view (`generate/truncation.py`).

        Unchanged where the context is not known.

        Args:
            request: the prompt.
            new_tokens: to write.
            source: of text that stands before it, for a model whose tokens can be counted.
        """
        suffix = request.suffix if self.supports_fim else None

        def attempt(room: int) -> tuple[CodePrompt, int]:
            front, *near = truncate_with_context(request.prefix, suffix or "", room, self.token_ends, source)
            before, behind = (part.decode(errors="ignore") for part in near)
            cut = CodePrompt("".join(front) + before, request.suffix if suffix is None else behind)
            return cut, self.num_prompt_tokens(cut)

        return fit_prompt(self.max_context, new_tokens, attempt)[0]

    def num_prompt_tokens(self, request: CodePrompt) -> int:
        """Tokens of a prompt, special ones included."""
        raise NotImplementedError

    def token_ends(self, text: str) -> NDArray[np.int64]:
        """The end of each token of a text, in bytes.

        Raises:
            UserError: only a server knows.
        """

    def score_middles(self, requests: Sequence[CodePrompt], middles: Sequence[str]) -> Iterator[float | None]:
        """Bits of what belongs into each hole, in order; None where the model cannot say."""
        del middles
        return itertools.repeat(None, len(requests))

    def generate(
        self,
        requests: Sequence[CodePrompt],
        sampling: SamplingSettings,
        *,
        num_samples: int = 1,
        stop: StopCondition | None = None,
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Number of a request and its samples, each as soon as it is there, in any order.

        Nothing that one request does makes the others fail. Sample i of a request depends on the request, the
        sampling and i alone.
        """

    def chat(
        self,
        conversations: Sequence[Conversation],
        sampling: SamplingSettings,
        *,
        stop: StopCondition | None = None,
        boxes: Sequence[ToolBox | None] = (),
    ) -> Iterator[tuple[int, ChatAnswer]]:
        """Number and answer of each conversation, in any order.

        Args:
            conversations: what is to be answered.
            sampling: how.
            stop: ends an answer that has said all that is wanted.
            boxes: tools for each conversation; none when empty.

        Raises:
            UserError: the model has no form for conversations, or not for tools.
        """

    def score(self, texts: Sequence[str], *, context: int | None = None) -> Iterator[TokenBits]:
        """The likelihood of each text as a document's beginning, in order.

        Args:
            texts: any; one that is longer than the context is read in overlapping windows.
            context: tokens in view at most, up to all that it can have (None).

        Raises:
            UserError: the model cannot say (a server without log-probabilities of the prompt).
        """
