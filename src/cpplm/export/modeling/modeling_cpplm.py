"""A cpplm model for `transformers`: its own decoder behind the interface that `generate` and others ask for.

    model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

Texts of different lengths are padded on the left, with an `attention_mask`. The model reads ids
(`inputs_embeds` does not say enough) and keeps what it needs in a `DynamicCache`.

Shapes: B batch, T new tokens, C hidden_size, V vocabulary, H query heads, G key-value heads, S keys, D head
width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cpplm.export.modeling.cache_cpplm import DynamicCacheView, Layers, cache_layers, with_all_layers
from cpplm.export.modeling.configuration_cpplm import CpplmConfig
from cpplm.model.attention import Attention, ForwardContext, IndexerOutput
from cpplm.model.config import ModelConfig
from cpplm.model.decoder import Decoder
from cpplm.model.layers import Linear

OWN_ATTENTION = ("sdpa", "eager")  # others, such as vLLM's, bring their own function, and their own cache


class BackendAttention(Attention):
    """Attention of one layer, by the function of another library where one is set."""

    is_causal = True

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.layer_idx = layer
        self.num_key_value_groups = config.num_heads // config.num_kv_heads

    def _attend(
        self, query_BHTD: Tensor, key_BGSD: Tensor, value_BGSD: Tensor, index: IndexerOutput | None,
        documents_BS: Tensor | None, context: ForwardContext,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        if context.backend in OWN_ATTENTION:
            return super()._attend(query_BHTD, key_BGSD, value_BGSD, index, documents_BS, context)
        assert isinstance(context.cache, DynamicCacheView)  # noqa: S101  (see `CpplmModel.forward`)
        mixed, _ = ALL_ATTENTION_FUNCTIONS[context.backend](
            self, query_BHTD, key_BGSD, value_BGSD, None, dropout=0.0, scaling=self.head_dim**-0.5,
            sliding_window=None if self.window is None else self.window + 1, **context.cache.options,
        )  # fmt: skip
        batch, _, length, _ = query_BHTD.shape
        return mixed.reshape(batch, length, self.num_heads, -1).transpose(1, 2), None


class CpplmPreTrainedModel(PreTrainedModel):
    """What `transformers` has to know of both classes below."""

    config_class = CpplmConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True


class CpplmModel(CpplmPreTrainedModel):
    """Ids to normalized states."""

    def __init__(self, config: CpplmConfig) -> None:
        super().__init__(config)
        shape = config.model_config()
        self.decoder = Decoder(shape)
        for layer, block in enumerate(self.decoder.blocks):
            block.attention = BackendAttention(shape, layer)
        for module in self.decoder.modules():
            if isinstance(module, nn.Embedding):
                module.sparse = False  # a sparse gradient needs optimizers of its own
        if self.decoder.device.type != "meta":  # a model that is not read from files
            self.decoder.init_weights()
        del self.decoder.lm_head  # `transformers` has it beside this model
        self.post_init()

    def cache_layers(self) -> Layers:
        """What each layer of a cache holds."""
        return cache_layers(self.decoder.cache_specs())

    def get_input_embeddings(self) -> nn.Embedding:
        """The table of tokens."""
        return self.decoder.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another table of tokens in its place."""
        self.decoder.embedding = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast | tuple[Any, ...]:
        """Normalized states of the last layer, shape BTC.

        Args:
            input_ids: the new tokens, BT.
            attention_mask: over all tokens so far, 0 for padding on the left; None for no padding.
            position_ids: of the new tokens; by default they count on from those in the cache.
            past_key_values: what came before; takes in what is new.
            use_cache: make such a cache where none is given.
            return_dict: False for a tuple.
            kwargs: for the attention function of another backend.

        Raises:
            ValueError: no ids, or a cache, mask or backend that this model cannot work with.
            TypeError: a cache of another kind.
        """
        if input_ids is None:
            raise ValueError(
                "this model reads input_ids: embeddings alone do not say which tokens stand there"
            )
        layers = self.cache_layers()
        self._refuse_backend(layers)
        if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache):
            past_key_values = DynamicCache()
        if past_key_values is not None:
            with_all_layers(past_key_values, layers)
        if position_ids is None:
            first = 0 if past_key_values is None else past_key_values.get_seq_length()
            position_ids = torch.arange(first, first + input_ids.size(1), device=input_ids.device)[None]
        view = DynamicCacheView(layers, past_key_values, position_ids, attention_mask, kwargs)
        states_BTC = self._states(input_ids, view)
        output = BaseModelOutputWithPast(last_hidden_state=states_BTC, past_key_values=past_key_values)
        return output.to_tuple() if return_dict is False else output

    def _refuse_backend(self, layers: Layers) -> None:
        """A backend with a cache of its own runs many texts in one row and keeps keys and values alone."""
        kind = self.config._attn_implementation
        others = {specs[0].name.rstrip(" 0123456789") for specs in layers if len(specs) == 1}
        if kind not in OWN_ATTENTION and others:
            raise ValueError(
                f"attention {kind!r} cannot keep what this model needs of earlier tokens: "
                + ", ".join(sorted(others))
            )

    def _states(self, ids_BT: Tensor, view: DynamicCacheView) -> Tensor:
        decoder = self.decoder
        decoder.compute_dtype = decoder.embedding.weight.dtype
        context = decoder.forward_context(
            ids_BT, view, None, decoder.embed_ngrams(ids_BT, view), backend=self.config._attn_implementation
        )
        return decoder.states(context)[0]


class CpplmForCausalLM(CpplmPreTrainedModel, GenerationMixin):
    """Ids to logits of the next token."""

    def __init__(self, config: CpplmConfig) -> None:
        super().__init__(config)
        self.model = CpplmModel(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """The float32 logits, shape BTV; arguments that are not named here are those of `CpplmModel`.

        Args:
            labels: the same ids, -100 where they do not count; gives a mean loss of the next tokens.
            logits_to_keep: of so many last tokens alone, or of these; 0 for all.
        """
        states = self.model(
            input_ids, attention_mask, position_ids, past_key_values, use_cache, return_dict=True, **kwargs
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        cap = self.config.final_logit_softcapping
        logits_BTV = self.lm_head(states.last_hidden_state[:, kept]).float()
        logits_BTV = logits_BTV if cap is None else cap * torch.tanh(logits_BTV / cap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size)
        output = CausalLMOutputWithPast(loss=loss, logits=logits_BTV, past_key_values=states.past_key_values)
        return output.to_tuple() if return_dict is False else output

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Also make room for what is kept beside keys and values, before anyone decides how to use it."""
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        cache = model_kwargs.get("past_key_values")
        if cache is not None:
            with_all_layers(cache, self.model.cache_layers())
            if getattr(generation_config, "is_assistant", False):
                cache.activate_past_recording()
