"""The configuration of a cpplm model for `transformers`."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig

from cpplm.model.config import EngramConfig, HyperConnectionsConfig, ModelConfig, SparseAttentionConfig

PARTS = {"engram": EngramConfig, "hyper_connections": HyperConnectionsConfig, "dsa": SparseAttentionConfig}
TINY = {"vocab_size": 320, "num_layers": 2, "model_dim": 8, "num_heads": 2, "num_kv_heads": 2, "head_dim": 4}


class UnpaddedConfig(ModelConfig):
    """The shape of an exported model: its tables have no rows of padding."""

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding and of the output head."""
        return self.vocab_size


class CpplmConfig(PretrainedConfig):
    """The model's shape under the usual names, which other software reads; `shape` is what the model reads.

    Attributes:
        shape: the record of a `ModelConfig` (`config_cpplm.py` explains each entry).
    """

    model_type = "cpplm"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        shape: dict[str, Any] | None = None,
        vocab_size: int | None = None,
        use_cache: bool = True,
        **kwargs: Any,
    ) -> None:
        """Of a record; `vocab_size` says how many ids there are now, when some were added."""
        self.shape = dict(shape or TINY)
        self.vocab_size = vocab_size or self.shape["vocab_size"]
        self.use_cache = use_cache
        usual = self._usual_names(self.model_config())
        for name, value in usual.items():
            setattr(self, name, value)
        kwargs["tie_word_embeddings"] = False
        super().__init__(**{name: value for name, value in kwargs.items() if name not in usual})

    def model_config(self) -> UnpaddedConfig:
        """The record as the model takes it."""
        record: dict[str, Any] = _without_lists(self.shape) | {"vocab_size": self.vocab_size}
        for name, part in PARTS.items():
            if record.get(name) is not None:
                record[name] = part(**_without_lists(record[name]))
        return UnpaddedConfig(**record)

    @staticmethod
    def _usual_names(config: ModelConfig) -> dict[str, Any]:
        windows = config.windows()
        window = next((window for window in windows if window is not None), None)
        return {
            "hidden_size": config.model_dim,
            "intermediate_size": config.mlp_dim,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "num_key_value_heads": config.num_kv_heads,
            "head_dim": config.head_dim,
            "max_position_embeddings": config.max_seq_len,
            "layer_types": ["full_attention" if each is None else "sliding_attention" for each in windows],
            "sliding_window": None if window is None else window + 1,  # there the token itself counts
            "final_logit_softcapping": config.logit_softcap or None,
        }


def _without_lists(record: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}
