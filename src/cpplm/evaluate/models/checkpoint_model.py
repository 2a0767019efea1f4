"""A checkpoint of ours as a model under evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from cpplm.core.storage import sha256
from cpplm.evaluate.models.chat import answer_conversations
from cpplm.evaluate.models.code_model import (
    ChatAnswer,
    CodeModel,
    CodePrompt,
    Completion,
    Conversation,
    TokenBits,
)
from cpplm.evaluate.sliding_window import EncodedText, score_in_windows
from cpplm.generate.engine import Engine
from cpplm.generate.load import load_engine
from cpplm.generate.sequence import GenerationRequest, StopCondition
from cpplm.generate.settings import ModelSource, SamplingSettings, SchedulerLimits
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.generate.truncation import token_ends
from cpplm.tokenizer.special_tokens import BOS
from cpplm.train.checkpoint.format import Checkpoint


class CheckpointModel(CodeModel):
    """A checkpoint behind our own engine."""

    watches_syntax = True

    def __init__(
        self, engine: Engine, *, name: str = "", identity: dict[str, Any] | None = None,
        supports_fim: bool = False, supports_chat: bool = False, rows: int = 8, step: int = -1,
    ) -> None:  # fmt: skip
        """Wrap an engine.

        Args:
            engine: model and tokenizer.
            name: short, for tables.
            identity: needed only where results are kept.
            supports_fim: whether it was trained on rearranged documents.
            supports_chat: whether it was trained on conversations.
            rows: of a batch, when it scores and when it writes.
            step: of the checkpoint.
        """
        self.engine = engine
        self.name, self.identity, self.supports_fim, self.step = name, identity or {}, supports_fim, step
        self.supports_chat = supports_chat
        self.max_context = engine.model.config.max_seq_len
        self._rows = rows

    @classmethod
    def load(cls, source: ModelSource, *, rows: int = 8) -> CheckpointModel:
        """The checkpoint that a source names.

        Raises:
            UserError: no such run, checkpoint or device.
        """
        engine, checkpoint = load_engine(source)
        return cls(
            engine,
            name=f"{source.run.rstrip('/')} step {checkpoint.step}",
            identity={
                "model": _weights_hash(checkpoint),
                "tokenizer": engine.tokenizer.hash,
                "precision": str(engine.model.compute_dtype),
            },
            supports_fim=checkpoint.supports_fim,
            supports_chat=checkpoint.supports_chat,
            rows=rows,
            step=checkpoint.step,
        )

    # ---- writing --------------------------------------------------------------------------------------

    @override
    def num_prompt_tokens(self, request: CodePrompt) -> int:
        return self.engine.num_prompt_tokens(self._request(request))

    @override
    def token_ends(self, text: str) -> NDArray[np.int64]:
        return token_ends(self.engine.tokenizer)(text)

    def _request(self, request: CodePrompt, **more: Any) -> GenerationRequest:
        suffix = request.suffix if self.supports_fim else None
        return self.engine.request(request.prefix, suffix, spm=self.fim_order == "spm", **more)

    @override
    def generate(
        self,
        requests: Sequence[CodePrompt],
        sampling: SamplingSettings,
        *,
        num_samples: int = 1,
        stop: StopCondition | None = None,
    ) -> Iterator[tuple[int, list[Completion]]]:
        prompts = (
            self._request(
                request, settings=sampling, num_samples=num_samples, stop=stop, valid=self.valid == "cpp"
            )
            for request in requests
        )
        for answer in self.engine.complete_many(prompts, SchedulerLimits(max_batch=self._rows)):
            failed = [Completion("", answer.failed)] * num_samples
            yield answer.number, [Completion(each.text) for each in answer.completions] or failed

    @override
    def chat(
        self,
        conversations: Sequence[Conversation],
        sampling: SamplingSettings,
        *,
        stop: StopCondition | None = None,
        boxes: Sequence[ToolBox | None] = (),
    ) -> Iterator[tuple[int, ChatAnswer]]:
        boxes = boxes or [None] * len(conversations)
        return answer_conversations(self.engine, conversations, sampling, stop, boxes, self._rows)

    # ---- scoring --------------------------------------------------------------------------------------

    @override
    def score(self, texts: Sequence[str], *, context: int | None = None) -> Iterator[TokenBits]:
        tokenizer = self.engine.tokenizer

        def encoded(text: str) -> EncodedText:
            ids = tokenizer.encode(text)
            return EncodedText(ids, np.cumsum(tokenizer.token_bytes[ids], dtype=np.int64))

        return self._scored(map(encoded, texts), context or self.max_context)

    @override
    def score_middles(self, requests: Sequence[CodePrompt], middles: Sequence[str]) -> Iterator[float | None]:
        encode = self.engine.tokenizer.encode
        written = [encode(middle) for middle in middles]

        def encoded(request: CodePrompt, middle: list[int]) -> EncodedText:
            prompt = self._request(request)
            ids = [*prompt.ids[1:], *encode(prompt.prefix), *middle]
            return EncodedText(ids, np.arange(1, len(ids) + 1))

        scored = self._scored(map(encoded, requests, written), self.max_context)
        for each, middle in zip(scored, written, strict=True):
            yield float(each.bits[len(each.bits) - len(middle) :].sum())

    def _scored(self, documents: Iterable[EncodedText], context: int) -> Iterator[TokenBits]:
        return score_in_windows(documents, self._losses, start_id=BOS, context=context, rows=self._rows)

    @torch.no_grad()
    def _losses(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        model = self.engine.model
        return model.loss(inputs_BT.to(model.device), targets_BT.to(model.device), reduction="none")


def _weights_hash(checkpoint: Checkpoint) -> str:
    """One hash of all files with weights, from the manifest."""
    hashes = {
        name: entry["sha256"]
        for name, entry in checkpoint.files.items()
        if name.startswith("model") and name.endswith(".safetensors")
    }
    return sha256(repr(sorted(hashes.items())).encode())
