"""The configuration of a cpplm model for `transformers`; `cpplm export` writes it beside the weights."""

from __future__ import annotations

from typing import Any

from transformers import PretrainedConfig


class CpplmConfig(PretrainedConfig):
    """Shape and features of a model; `modeling_cpplm.py` says what each of them computes.

    Sizes in elements, lengths in tokens, layers counted from 0.

    Attributes:
        vocab_size: ids of the tokenizer.
        hidden_size: width of the residual stream.
        intermediate_size: width of the MLP's hidden layer.
        hidden_act: "relu2", a squared ReLU, or "silu", of a gate beside the hidden layer (SwiGLU).
        num_hidden_layers: transformer layers.
        num_attention_heads: query heads.
        num_key_value_heads: key and value heads.
        head_dim: width of one head.
        max_position_embeddings: context that the model was trained for.
        layer_types: per layer "full_attention" or "sliding_attention"; None for all full.
        sliding_window: what a token of a sliding layer sees, itself included.
        rope_theta: base of the rotary frequencies.
        qk_scale: factor on normalized queries and keys.
        final_logit_softcapping: logits pass through cap * tanh(logits / cap).
        value_embedding_layers: layers that add a gated embedding of the token to their values.
        smear: whether an embedding takes in a gated share of the one before it.
        induction_lengths: of matches after which the token that followed is told; None for none.
        backout_layer: the layer a share of whose output is taken off the last one's; None for none.
        ngrams: memory of n-grams: "kind", "layers", "orders", and of the kind "memory" "heads",
            "head_dim", "taps", "table_rows" and "multipliers" per layer, of "local" "bottleneck_dim".
        streams: several residual streams: "count" and "iterations" of the normalization.
        sparse_attention: "first_layer", "top_k", "local_window", "heads", "head_dim" of an indexer.
        use_cache: whether keys and values are kept by default.
        pad_token_id: see `PretrainedConfig`, as for the other two.
        bos_token_id: begins a document.
        eos_token_id: ends a text.
    """

    model_type = "cpplm"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        vocab_size: int = 320,
        hidden_size: int = 64,
        intermediate_size: int = 256,
        hidden_act: str = "relu2",
        num_hidden_layers: int = 2,
        num_attention_heads: int = 2,
        num_key_value_heads: int = 2,
        head_dim: int = 32,
        max_position_embeddings: int = 2048,
        layer_types: list[str] | None = None,
        sliding_window: int | None = None,
        rope_theta: float = 10_000.0,
        qk_scale: float = 1.0,
        final_logit_softcapping: float = 15.0,
        value_embedding_layers: list[int] | None = None,
        smear: bool = False,
        induction_lengths: list[int] | None = None,
        backout_layer: int | None = None,
        ngrams: dict[str, Any] | None = None,
        streams: dict[str, int] | None = None,
        sparse_attention: dict[str, int] | None = None,
        use_cache: bool = True,
        pad_token_id: int | None = 0,
        bos_token_id: int | None = 2,
        eos_token_id: int | list[int] | None = 3,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.num_key_value_heads = num_key_value_heads
        self.head_dim = head_dim
        self.max_position_embeddings = max_position_embeddings
        self.layer_types = layer_types or ["full_attention"] * num_hidden_layers
        self.sliding_window = sliding_window
        self.rope_theta = rope_theta
        self.qk_scale = qk_scale
        self.final_logit_softcapping = final_logit_softcapping
        self.value_embedding_layers = value_embedding_layers or []
        self.smear = smear
        self.induction_lengths = induction_lengths
        self.backout_layer = backout_layer
        self.ngrams = ngrams
        self.streams = streams
        self.sparse_attention = sparse_attention
        self.use_cache = use_cache
        kwargs["tie_word_embeddings"] = False
        super().__init__(
            pad_token_id=pad_token_id, bos_token_id=bos_token_id, eos_token_id=eos_token_id, **kwargs
        )

    def earlier(self, layer: int) -> int | None:
        """How many earlier tokens a layer sees besides the token itself; None for all."""
        if self.sliding_window is None or self.layer_types[layer] != "sliding_attention":
            return None
        return self.sliding_window - 1

    def is_sparse(self, layer: int) -> bool:
        """Whether the layer attends to an indexer's choice."""
        return self.sparse_attention is not None and layer >= self.sparse_attention["first_layer"]

    def kept_rows(self) -> dict[str, int | None]:
        """What is kept of earlier tokens beside keys and values: how many rows of each, None for all."""
        rows: dict[str, int | None] = {"smear": 1} if self.smear else {}
        if self.induction_lengths:
            rows["induction ids"] = None
        for layer in range(self.num_hidden_layers):
            if self.ngrams is not None and layer in self.ngrams["layers"]:
                longest = max(self.ngrams["orders"])
                if self.ngrams["kind"] == "local":
                    rows[f"states {layer}"] = longest - 1
                else:
                    rows[f"ids {layer}"] = longest - 1
                    if self.ngrams["taps"] > 1:
                        rows[f"gated {layer}"] = longest * (self.ngrams["taps"] - 1)
            if self.is_sparse(layer):
                rows[f"index keys {layer}"] = None
        return rows
