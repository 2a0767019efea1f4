"""A causal model of the transformers library in a local directory, as what a run starts from.

The directory is untrusted, as in `cpplm.evaluate.models.hf_model`: weights are read from safetensors only,
none of its code runs, and nothing is looked up on a network.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from cpplm.core.errors import UserError
from cpplm.core.storage import sha256
from cpplm.evaluate.models.hf_folder import require_readable
from cpplm.evaluate.models.hf_loading import (
    context_length,
    files_hash,
    import_transformers,
    read_config,
    read_model,
    refuse_what_fails,
    start_id,
)
from cpplm.model.hf_config import HfModelConfig
from cpplm.model.quantized.directory import is_packed
from cpplm.model.settings import LoraSettings
from cpplm.optim.schedules import LearningRates
from cpplm.post_training.hf_adapter import with_adapter
from cpplm.post_training.hf_tokenizer import HfChatTokenizer, HfTokenizer

PARENT = "cpplm_parent.json"
"""In a directory that a run wrote: the record of the checkpoint that it was written from."""
_LONGEST_ROW = 4096  # when nobody says; contexts of 131,072 are common, conversations of that length are not
_RATE, _LORA_RATE = 1e-4, 2e-4  # the first with the default of --lr_scale: 2e-5


class HfFolder:
    """A directory with `config.json`, `tokenizer.json`, safetensors and, where it chats, a chat template."""

    def __init__(self, location: str, lora: LoraSettings | None = None) -> None:
        """Look at all but the weights.

        Args:
            location: hf:DIR.
            lora: of training on conversations, the adapter if any; None for documents.

        Raises:
            UserError: something is missing, refused, would run code, or cannot be adapted so; names it.
        """
        self.folder = Path(location.removeprefix("hf:")).expanduser()
        self._transformers = import_transformers()
        require_readable(self.folder)
        self._config = read_config(self._transformers, self.folder)
        with refuse_what_fails(self.folder), torch.device("meta"):
            model = self._transformers.AutoModelForCausalLM.from_config(self._config, trust_remote_code=False)
        self._sizes = _sizes(model, self._config)
        if lora is not None and lora.lora_rank:
            with_adapter(model, lora)
        self.is_quantized = is_packed(self.folder) or hasattr(self._config, "quantization_config")
        """Its weights have few bits."""
        text_config, vocab_size = self._config.get_text_config(decoder=True), self._sizes["vocab_size"]
        self.max_context = context_length(text_config, self.folder.name)
        if lora is not None:
            self._tokenizer: HfTokenizer = HfChatTokenizer(self.folder, vocab_size)
        else:
            self._tokenizer = HfTokenizer(self.folder, vocab_size)
            self._tokenizer.start_id = start_id(text_config, self._tokenizer.tokens, self.folder.name)

    def tokenizer(self) -> HfTokenizer:
        """Its tokenizer."""
        return self._tokenizer

    def chat_tokenizer(self) -> HfChatTokenizer:
        """Its tokenizer, with its chat template, of a directory that was opened for conversations."""
        assert isinstance(self._tokenizer, HfChatTokenizer)  # noqa: S101  (for mypy)
        return self._tokenizer

    def row_length(self, max_seq_len: int) -> int:
        """Tokens of a row: `max_seq_len`, or at -1 the context, but no more than `_LONGEST_ROW`.

        Raises:
            UserError: more than the model's context.
        """
        if max_seq_len > self.max_context:
            raise UserError(
                f"--max_seq_len {max_seq_len}: the context of {self.folder} is {self.max_context}",
                fix="Lower it.",
            )
        return max_seq_len if max_seq_len > 0 else min(self.max_context, _LONGEST_ROW)

    def config(self, max_seq_len: int, lora: LoraSettings) -> HfModelConfig:
        """The model, and the adapter that is trained beside it, if any."""
        return HfModelConfig(**self._sizes, max_seq_len=max_seq_len, lora_rank=lora.lora_rank)

    def rates(self, lr_scale: float, lora: LoraSettings) -> tuple[LearningRates, LoraSettings]:
        """One rate for all parameters, or that of the adapter."""
        if lora.lora_rank:
            return LearningRates(), lora if lora.lora_lr > 0 else replace(lora, lora_lr=_LORA_RATE)
        rate = lr_scale * _RATE
        rates = LearningRates(
            matrix_lr=rate, embedding_lr=rate, unembedding_lr=rate, scalar_lr=rate, weight_decay=0.0
        )
        return rates, lora

    def load(self, dtype: torch.dtype) -> Any:
        """The model with its weights, on the CPU."""
        return read_model(self._transformers, self.folder, dtype)

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights in the directory, as its configuration says."""
        return getattr(self._config, "dtype", None) or torch.float32

    def record(self) -> dict[str, Any]:
        """As `cpplm.train.checkpoint.parent.parent_record`: "manifest" is a hash of all that makes the model.

        Reads all weights.
        """
        patterns = ("config.json", "*.safetensors", "tokenizer.json")
        hashes = {pattern: files_hash(self.folder, pattern) for pattern in patterns}
        parent = self.folder / PARENT
        return {
            "location": str(self.folder.resolve()),
            "step": None,
            "manifest": sha256(json.dumps([hashes, self._tokenizer.hash], sort_keys=True).encode()),
            "stage": "hf",
            "parent": json.loads(parent.read_text()) if parent.is_file() else None,
        }


def _sizes(model: Any, config: Any) -> dict[str, Any]:
    """The fields of `HfModelConfig` that say how large a model is; nothing of it has to be in memory."""
    text = config.get_text_config(decoder=True)
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings()
    heads = getattr(text, "num_attention_heads", 0)
    is_output = output is not None and output.weight is embedding
    return {
        "architecture": type(model).__name__,
        "vocab_size": embedding.shape[0],
        "num_layers": text.num_hidden_layers,
        "attention_width": heads * (getattr(text, "head_dim", None) or text.hidden_size // max(1, heads)),
        "num_parameters": sum(weight.numel() for weight in model.parameters()),
        "embedding_parameters": 0 if is_output else embedding.numel(),
    }
