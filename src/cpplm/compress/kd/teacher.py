"""Teachers: runs of ours, and causal models of the transformers library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cpplm.compress.kd.sparse_head import OutputHead
from cpplm.core.storage import is_hf_folder
from cpplm.model.transformer import Transformer
from cpplm.post_training.hf_documents import document_tokenizer
from cpplm.post_training.hf_folder import HfFolder
from cpplm.post_training.hf_states import HfStates
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.parent import open_parent
from cpplm.train.checkpoint.weights import load_model

TeacherForward = Callable[[Tensor, Tensor | None], OutputHead]
"""Distributions of ids and documents BT, a row for each token."""
States = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""Hidden states BTC and the divergence of indexers, of ids and documents BT."""


@dataclass(frozen=True)
class Teacher:
    """A model whose distributions are learned.

    Attributes:
        hash: of all that makes it.
        tokenizer: of its rows, a `Tokenizer` or an `HfTokenizer`.
        max_seq_len: its context.
        record: settings of its training, where they are known.
        load: puts it on a device, computing in a dtype, compiled or not.
    """

    hash: str
    tokenizer: Any
    max_seq_len: int
    record: dict[str, Any]
    load: Callable[[torch.device, torch.dtype, bool], TeacherForward]


def find_teacher(location: str) -> Teacher:
    """The teacher that RUN, RUN:STEP or hf:DIR names.

    Raises:
        UserError: it is not there.
    """
    if not is_hf_folder(location):
        return checkpoint_teacher(open_parent(location))
    source = HfFolder(location)
    tokenizer = document_tokenizer(source)
    load = partial(_load_hf, source, tokenizer.vocab_size)
    return Teacher(source.record()["manifest"], tokenizer, source.row_length(-1), {}, load)


def checkpoint_teacher(source: Checkpoint) -> Teacher:
    """A model of ours."""
    record = source.json("settings.json") if "settings.json" in source.files else {}
    context = source.config().max_seq_len
    return Teacher(source.manifest_hash, source.tokenizer(), context, record, partial(_load, source))


def _load(source: Checkpoint, device: torch.device, dtype: torch.dtype, compiling: bool) -> TeacherForward:
    model = load_model(source, device=device, compute_dtype=dtype).eval().requires_grad_(False)
    states = states_of(model, compiling=compiling)

    @torch.no_grad()
    def forward(ids_BT: Tensor, documents_BT: Tensor | None) -> OutputHead:
        hidden_BTC, _ = states(ids_BT, documents_BT)
        return output_head(model, hidden_BTC)

    return forward


def output_head(model: Transformer, hidden_BTC: Tensor) -> OutputHead:
    """The logits of a model behind its hidden states, a row for each token."""
    config = model.config
    return OutputHead(hidden_BTC.flatten(0, 1), model.lm_head.weight, config.vocab_size, config.logit_softcap)


def states_of(model: Transformer, *, compiling: bool) -> States:
    """The hidden states of a model, compiled where that works; tables of n-grams are read outside."""

    def states(
        ids_BT: Tensor, documents_BT: Tensor | None, ngrams: dict[int, Tensor]
    ) -> tuple[Tensor, Tensor]:
        return model.states(model.forward_context(ids_BT, None, documents_BT, ngrams))

    fast = torch.compile(states, dynamic=False, fullgraph=True) if compiling else states
    return lambda ids_BT, documents_BT: fast(
        ids_BT, documents_BT, model.embed_ngrams(ids_BT, None, documents_BT)
    )


def _load_hf(
    source: HfFolder, vocab_size: int, device: torch.device, dtype: torch.dtype, _: bool
) -> TeacherForward:
    model = source.load(dtype).to(device).eval().requires_grad_(False)
    states = HfStates(model, str(source.folder))

    @torch.no_grad()
    def forward(ids_BT: Tensor, documents_BT: Tensor | None) -> OutputHead:
        return OutputHead(states(ids_BT, documents_BT).flatten(0, 1), states.head_VC, vocab_size)

    return forward
