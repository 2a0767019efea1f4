"""A checkpoint of ours as a model under evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cpplm.core.storage import sha256
from cpplm.evaluate.models.code_model import Completion, Request, Stop, TokenBits, fitted
from cpplm.evaluate.sliding_window import Encoded, score_in_windows
from cpplm.generate.engine import Engine
from cpplm.generate.load import load_engine
from cpplm.generate.sequence import Request as EngineRequest
from cpplm.generate.settings import Limits, ModelSource, SamplingSettings
from cpplm.generate.truncation import token_ends
from cpplm.tokenizer.special_tokens import BOS
from cpplm.train.checkpoint.format import Checkpoint

_WEIGHTS = "model"  # how the names of the files with weights begin


class CheckpointModel:
    """See `CodeModel`."""

    def __init__(
        self, engine: Engine, *, name: str = "", identity: dict[str, Any] | None = None,
        fills_in: bool = False, rows: int = 8, step: int = -1,
    ) -> None:  # fmt: skip
        """Wrap an engine.

        Args:
            engine: model and tokenizer.
            name: see `CodeModel`, as for `identity` and `fills_in`.
            identity: needed only where results are kept.
            fills_in: whether it was trained on rearranged documents.
            rows: of a batch, when it scores and when it writes.
            step: of the checkpoint.
        """
        self.engine = engine
        self.name, self.identity, self.fills_in, self.step = name, identity or {}, fills_in, step
        self.context = engine.model.config.max_seq_len
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
            fills_in=checkpoint.fills_in,
            rows=rows,
            step=checkpoint.step,
        )

    # ---- writing --------------------------------------------------------------------------------------

    def fit(self, request: Request, new_tokens: int) -> Request:
        """Cut a prompt to the context by the run's own tokenizer."""
        tokenizer = self.engine.tokenizer

        def count(cut: Request) -> int:
            asked = self._request(cut)
            return len(asked.ids) + len(tokenizer.encode(asked.prefix))

        return fitted(
            request, count, token_ends(tokenizer), sees_suffix=self.fills_in, context=self.context,
            new_tokens=new_tokens,
        )  # fmt: skip

    def _request(self, request: Request, **more: Any) -> EngineRequest:
        return self.engine.request(request.prefix, request.suffix if self.fills_in else None, **more)

    def write(
        self,
        requests: Sequence[Request],
        sampling: SamplingSettings,
        *,
        num_samples: int = 1,
        stop: Stop | None = None,
    ) -> Iterator[tuple[int, list[Completion]]]:
        """See `CodeModel`."""
        wanted = (
            self._request(request, settings=sampling, num_samples=num_samples, stop=stop)
            for request in requests
        )
        for answer in self.engine.complete_many(wanted, Limits(rows=self._rows)):
            failed = [Completion("", answer.failed)] * num_samples
            yield answer.number, [Completion(each.text) for each in answer.completions] or failed

    # ---- scoring --------------------------------------------------------------------------------------

    def score(self, texts: Sequence[str], *, context: int | None = None) -> Iterator[TokenBits]:
        """See `CodeModel`."""
        tokenizer = self.engine.tokenizer

        def encoded(text: str) -> Encoded:
            ids = tokenizer.encode(text)
            return Encoded(ids, np.cumsum(tokenizer.token_bytes[ids], dtype=np.int64))

        return score_in_windows(
            map(encoded, texts), self._losses, start_id=BOS, context=context or self.context, rows=self._rows
        )

    @torch.no_grad()
    def _losses(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        model = self.engine.model
        return model.loss(inputs_BT.to(model.device), targets_BT.to(model.device), reduction="none")


def _weights_hash(checkpoint: Checkpoint) -> str:
    """One hash of all files with weights, from the manifest."""
    hashes = {
        name: entry["sha256"]
        for name, entry in checkpoint.files.items()
        if name.startswith(_WEIGHTS) and name.endswith(".safetensors")
    }
    return sha256(repr(sorted(hashes.items())).encode())
