"""Any causal model in a Hugging Face directory as a model under evaluation, with its own tokenizer.

The directory is untrusted: weights are read from safetensors only, none of its code runs, and nothing is
looked up on a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from cpplm.core.hardware import choose_device, choose_dtype
from cpplm.core.settings import Precision
from cpplm.evaluate.models.chat import chat_template_ids, refuse_tools
from cpplm.evaluate.models.code_model import (
    ChatAnswer,
    CodeModel,
    CodePrompt,
    Completion,
    Conversation,
    TokenBits,
    group_samples,
)
from cpplm.evaluate.models.hf_folder import has_chat_template, require_readable
from cpplm.evaluate.models.hf_loading import (
    context_length,
    files_hash,
    import_transformers,
    read_model,
    start_id,
    token_ids,
)
from cpplm.evaluate.models.hf_tokens import HfTokens
from cpplm.evaluate.sliding_window import MAX_BATCH_TOKENS, score_in_windows
from cpplm.generate.sampling import apply_penalties, random_stream, sample
from cpplm.generate.sequence import StopCondition, stop_place
from cpplm.generate.settings import SamplingSettings
from cpplm.generate.tools.toolbox import ToolBox
from cpplm.tokenizer.special_tokens import IGNORE_INDEX

# Logits held at once when scoring: 512 MiB in float32, and as much again for the loss.
_MOST_LOGITS = 2**27


@dataclass(frozen=True)
class _SampleJob:
    """One sample to write: of which request, its number there, and what the model reads."""

    request: int
    sample: int
    ids: list[int]


class HfModel(CodeModel):
    """A model of `transformers` with the tokenizer of its directory."""

    def __init__(
        self,
        model: Any,
        tokens: HfTokens,
        *,
        name: str,
        identity: dict[str, Any],
        rows: int = 8,
        folder: Path | None = None,
    ) -> None:
        """Wrap a model of `transformers` that is where it shall compute.

        Raises:
            UserError: nothing in it says how a document begins or how long its context is.
        """
        self._model, self._tokens, self._rows = model, tokens, rows
        self.name, self.identity = name, identity
        config = model.config.get_text_config(decoder=True)
        self.max_context, self._vocab_size = context_length(config, name), config.vocab_size
        self._start_id = start_id(config, tokens, name)
        self._end_ids = tokens.end_ids.union(token_ids(config, "eos_token_id"))
        self._sentinels = tokens.sentinels()
        self.supports_fim = self._sentinels is not None
        self._folder, self.supports_chat = folder, folder is not None and has_chat_template(folder)

    @classmethod
    def load(
        cls, folder: Path, *, device_type: str = "", precision: Precision = "auto", rows: int = 8
    ) -> HfModel:
        """Read a directory with `config.json`, `tokenizer.json` and safetensors.

        Raises:
            UserError: `transformers` is not installed, or something in the directory is missing, damaged, of
                another kind, or would run code; names it.
        """
        folder = folder.expanduser()
        transformers = import_transformers()
        require_readable(folder)
        tokens = HfTokens(folder)
        device = choose_device(device_type)
        dtype = choose_dtype(precision, device)
        model = read_model(transformers, folder, dtype, device).eval()
        # What it says about sampling is not asked for here.
        model.generation_config = transformers.GenerationConfig()
        identity = {
            "model": files_hash(folder, "*.safetensors"),
            "config": files_hash(folder, "config.json"),
            "tokenizer": tokens.hash,
            "precision": str(dtype),
        }
        return cls(model, tokens, name=folder.resolve().name, identity=identity, rows=rows, folder=folder)

    # ---- writing --------------------------------------------------------------------------------------

    @override
    def num_prompt_tokens(self, request: CodePrompt) -> int:
        return len(self._prompt(request))

    @override
    def token_ends(self, text: str) -> NDArray[np.int64]:
        return self._tokens.encode([text])[0].ends

    @override
    def generate(
        self,
        requests: Sequence[CodePrompt],
        sampling: SamplingSettings,
        *,
        num_samples: int = 1,
        stop: StopCondition | None = None,
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Prompts of similar length are written side by side, padded on the left."""
        jobs = []
        for number, request in enumerate(requests):
            ids = self._prompt(request)
            if len(ids) >= self.max_context:
                why = f"the prompt has {len(ids):,} tokens, the model's context {self.max_context:,}"
                yield number, [Completion("", why)] * num_samples
            else:
                jobs += [_SampleJob(number, index, ids) for index in range(num_samples)]
        samples = (
            (job.request, job.sample, Completion(text))
            for batch in self._batches(jobs, sampling.max_new_tokens)
            for job, text in zip(batch, self._generate(batch, sampling, stop), strict=True)
        )
        yield from group_samples(samples, num_samples)

    def _prompt(self, request: CodePrompt) -> list[int]:
        tokens = self._tokens
        (prefix,) = tokens.encode([request.prefix])
        if request.suffix is None or self._sentinels is None:
            return [self._start_id, *prefix.ids]
        first, second, third = self._sentinels
        return [self._start_id, first, *prefix.ids, second, *tokens.encode_inside(request.suffix), third]

    @override
    def chat(
        self,
        conversations: Sequence[Conversation],
        sampling: SamplingSettings,
        *,
        stop: StopCondition | None = None,
        boxes: Sequence[ToolBox | None] = (),
    ) -> Iterator[tuple[int, ChatAnswer]]:
        """By the directory's own chat template, which transformers renders in Jinja's sandbox."""
        refuse_tools(boxes)
        assert self._folder is not None  # noqa: S101  (`supports_chat`)
        jobs = []
        for number, ids in enumerate(chat_template_ids(self._folder, conversations)):
            if len(ids) < self.max_context:
                jobs.append(_SampleJob(number, 0, ids))
            else:
                yield number, ChatAnswer("", failed=f"the prompt has {len(ids):,} tokens")
        for batch in self._batches(jobs, sampling.max_new_tokens):
            for job, text in zip(batch, self._generate(batch, sampling, stop), strict=True):
                yield job.request, ChatAnswer(text)

    def _batches(self, jobs: list[_SampleJob], new_tokens: int) -> Iterator[list[_SampleJob]]:
        """Jobs by length. Those that may reach the end of the context share a batch with equal lengths only.

        Else a longer neighbour would cut a sample short.
        """
        batch: list[_SampleJob] = []
        for job in sorted(jobs, key=lambda job: (len(job.ids), job.request, job.sample)):
            fits = len(job.ids) + new_tokens <= self.max_context
            if batch and (len(batch) == self._rows or not (fits or len(job.ids) == len(batch[0].ids))):
                yield batch
                batch = []
            batch.append(job)
        if batch:
            yield batch

    def _generate(
        self, batch: list[_SampleJob], sampling: SamplingSettings, stop: StopCondition | None
    ) -> list[str]:
        longest = len(batch[-1].ids)
        ids = torch.full((len(batch), longest), self._start_id)
        mask = torch.zeros_like(ids)
        for row, job in enumerate(batch):
            ids[row, longest - len(job.ids) :] = torch.tensor(job.ids)
            mask[row, longest - len(job.ids) :] = 1
        rows = _BatchSampler(self._tokens, self._end_ids, self._start_id, batch, sampling, stop)
        self._model.generate(
            input_ids=ids.to(self._model.device),
            attention_mask=mask.to(self._model.device),
            max_new_tokens=min(sampling.max_new_tokens, self.max_context - longest),
            do_sample=False,  # `_BatchSampler` draws
            pad_token_id=self._start_id,
            logits_processor=[rows.choose],
            stopping_criteria=[rows.have_ended],
        )
        return rows.texts()

    # ---- scoring --------------------------------------------------------------------------------------

    @override
    def score(self, texts: Sequence[str], *, context: int | None = None) -> Iterator[TokenBits]:
        return score_in_windows(
            (self._tokens.encode([text])[0] for text in texts),
            self._losses,
            start_id=self._start_id,
            context=context or self.max_context,
            rows=self._rows,
            batch_tokens=max(1, min(MAX_BATCH_TOKENS, _MOST_LOGITS // self._vocab_size)),
        )

    @torch.no_grad()
    def _losses(self, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Nats BT, piece by piece behind a cache where the logits of all would be too many."""
        device = self._model.device
        inputs, targets = inputs_BT.to(device), targets_BT.to(device)
        rows, length = inputs.shape
        step = max(1, _MOST_LOGITS // (rows * self._vocab_size))
        if step >= length:
            return _cross_entropy(self._model(input_ids=inputs, use_cache=False).logits, targets)
        parts, cache = [], None
        for begin in range(0, length, step):
            piece = slice(begin, begin + step)
            out = self._model(input_ids=inputs[:, piece], past_key_values=cache, use_cache=True)
            parts.append(_cross_entropy(out.logits, targets[:, piece]))
            cache = out.past_key_values
        return torch.cat(parts, dim=1)


class _BatchSampler:
    """Chooses the next token of every row, and ends a row by itself.

    A row has its own random stream, so that a sample is the same whatever is written beside it.
    """

    def __init__(
        self, tokens: HfTokens, end_ids: frozenset[int], pad_id: int, jobs: list[_SampleJob],
        sampling: SamplingSettings, stop: StopCondition | None,
    ) -> None:  # fmt: skip
        self._tokens, self._end_ids, self._pad_id = tokens, end_ids, pad_id
        self._sampling, self._stop = sampling, stop
        self._streams = [random_stream(sampling.seed, job.sample) for job in jobs]
        self._read = [job.ids for job in jobs]
        self._ids: list[list[int]] = [[] for _ in jobs]
        self._ended = [False] * len(jobs)

    def choose(self, _: Tensor, logits_BV: Tensor) -> Tensor:
        """A logits processor that rules out all but the token that it draws for each row."""
        rows = zip(logits_BV.float(), self._read, self._ids, strict=True)
        possible_BV = torch.stack([apply_penalties(row_V, self._sampling, *ids) for row_V, *ids in rows])
        chosen = sample(possible_BV, self._sampling, [stream.random() for stream in self._streams])
        for row, token in enumerate(chosen):
            if not self._ended[row] and token not in self._end_ids:
                self._ids[row].append(token)
                text = self._text(row, "ignore")
                stopped = stop_place(text, self._sampling.stop) is not None
                self._ended[row] = stopped or (self._stop is not None and self._stop(text))
            else:
                self._ended[row] = True
                chosen[row] = self._pad_id
        index_B1 = torch.tensor(chosen, device=logits_BV.device)[:, None]
        return torch.full_like(logits_BV, float("-inf")).scatter(1, index_B1, 0.0)

    def have_ended(self, ids_BT: Tensor, _: Any, **__: Any) -> Tensor:
        """A stopping criterion: the rows that have ended."""
        return torch.tensor(self._ended, device=ids_BT.device)

    def texts(self) -> list[str]:
        """The generated texts, each up to the stop text that was complete first."""
        texts = [self._text(row, "replace") for row in range(len(self._ids))]
        return [text[: stop_place(text, self._sampling.stop)] for text in texts]

    def _text(self, row: int, errors: str) -> str:
        return self._tokens.bytes_of(self._ids[row]).decode("utf-8", errors)


def _cross_entropy(logits_BTV: Tensor, targets_BT: Tensor) -> Tensor:
    nats = F.cross_entropy(
        logits_BTV.float().flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORE_INDEX, reduction="none"
    )
    return nats.view_as(targets_BT)
