"""A causal model of the transformers library, by what the training loop asks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cpplm.core.errors import UserError


@dataclass(frozen=True)
class HfModelConfig:
    """Sizes of a model whose code is not ours, and the adapter that is trained beside it, if any."""

    architecture: str
    """Class of `transformers`, such as LlamaForCausalLM."""
    vocab_size: int
    """Ids that it knows."""
    num_layers: int
    """Transformer blocks."""
    attention_width: int
    """Query heads times the width of one."""
    max_seq_len: int
    """Tokens of a row."""
    num_parameters: int
    """Of the whole model, without an adapter."""
    embedding_parameters: int
    """Those of them that are looked up only: of the embedding, unless it also is the output's matrix."""
    lora_rank: int = 0
    """0 = the whole model is trained."""
    mtp: ClassVar[None] = None

    def parameters(self) -> dict[str, int]:
        """As `cpplm.model.flops.count_parameters`."""
        embedding = self.embedding_parameters
        return {
            "embedding": embedding,
            "matrices": self.num_parameters - embedding,
            "total": self.num_parameters,
        }

    def flops(self) -> dict[str, int]:
        """As `cpplm.model.flops.count_flops`: of a mixture of experts too many, as if all were asked.

        Frozen matrices need no gradient of their own: 4 operations per weight instead of 6.
        """
        per_weight = 4 if self.lora_rank else 6
        matrices = per_weight * (self.num_parameters - self.embedding_parameters)
        attention = 12 * self.num_layers * self.attention_width * self.max_seq_len
        return {"matrices": matrices, "attention": attention, "total": matrices + attention}


def refuse_hf_checkpoint(config: object, run: object) -> None:
    """Refuse a checkpoint whose `config.json` is that of a model of `transformers`, which we cannot run.

    Raises:
        UserError: it is one.
    """
    if isinstance(config, dict) and "architecture" in config and "num_parameters" in config:
        raise UserError(
            f"{run} is a fine-tuned model of transformers, which only that library runs",
            fix="A finished run has it in RUN/hf: evaluate --hf_dir RUN/hf, sft --init_from hf:RUN/hf.",
        )
