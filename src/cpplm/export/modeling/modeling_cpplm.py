"""A cpplm model for `transformers`: the modeling code that goes with exported weights.

    model = AutoModelForCausalLM.from_pretrained(FOLDER, trust_remote_code=True)

It computes what cpplm's own inference does: rotary positions, normalized queries and keys, squared ReLU or
SwiGLU, RMSNorm without weights (also right after the embedding), no biases, capped logits, and per layer two
learned scalars, one of which scales the residual stream while the other mixes the embedding back in. What
else a model has, `CpplmConfig` says: sliding windows, grouped queries, embeddings among the values, smear,
induction, backout, memory of n-grams, several residual streams, sparse attention.

Texts of different lengths are padded on the left, with an `attention_mask`. The model reads ids
(`inputs_embeds` does not say enough) and keeps what it needs in a `DynamicCache`.

Shapes: B batch, T new tokens, C hidden_size, N streams, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .attention_cpplm import OWN_ATTENTION, Context, CpplmAttention, rotary_angles
from .configuration_cpplm import CpplmConfig
from .memory_cpplm import Connection, Induction, NgramBranch, NgramMemory, Past, norm, with_all_layers

SMEAR_GATE_INPUTS = 24  # channels that gate the token before


class CpplmMLP(nn.Module):
    """Two matrices around a squared ReLU, or with a third one for the gate (SwiGLU)."""

    def __init__(self, config: CpplmConfig) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.gate_proj: nn.Linear | None = None
        if config.hidden_act == "silu":
            self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        """BTC to BTC, each token alone."""
        if self.gate_proj is not None:
            return self.down_proj(F.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))
        return self.down_proj(F.relu(self.up_proj(x_BTC)).square())


class CpplmLayer(nn.Module):
    """Memory of n-grams, attention, MLP, each added to the residual stream or streams."""

    def __init__(self, config: CpplmConfig, layer: int) -> None:
        super().__init__()
        self.engram: NgramMemory | NgramBranch | None = None
        if config.ngrams is not None and layer in config.ngrams["layers"]:
            kind = NgramBranch if config.ngrams["kind"] == "local" else NgramMemory
            self.engram = kind(config, layer)
        self.self_attn = CpplmAttention(config, layer)
        self.mlp = CpplmMLP(config)
        self.connections: nn.ModuleDict | None = None
        if config.streams is not None:
            names = ("attention", "mlp") if self.engram is None else ("engram", "attention", "mlp")
            self.connections = nn.ModuleDict({name: Connection(config) for name in names})

    def forward(self, x: Tensor, context: Context, **kwargs: Any) -> Tensor:
        """The residual stream BTC, or streams BTNC, after this layer."""
        engram = self.engram
        if engram is not None:
            x = self._add("engram", x, lambda x_BTC: engram(norm(x_BTC), context.ids_BT, context.past))
        x = self._add("attention", x, lambda x_BTC: self.self_attn(norm(x_BTC), context, **kwargs))
        return self._add("mlp", x, lambda x_BTC: self.mlp(norm(x_BTC)))

    def _add(self, name: str, x: Tensor, sublayer: Any) -> Tensor:
        return x + sublayer(x) if self.connections is None else self.connections[name](x, sublayer)


class CpplmPreTrainedModel(PreTrainedModel):
    """What `transformers` is told of both classes below."""

    config_class = CpplmConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True


class CpplmModel(CpplmPreTrainedModel):
    """Ids to normalized states."""

    def __init__(self, config: CpplmConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(CpplmLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.residual_scales = nn.Parameter(torch.ones(config.num_hidden_layers))
        self.embedding_scales = nn.Parameter(torch.zeros(config.num_hidden_layers))
        if config.smear:
            gates = min(SMEAR_GATE_INPUTS, config.hidden_size)
            self.smear_gate = nn.Linear(gates, 1, bias=False)
            self.smear_scale = nn.Parameter(torch.zeros(()))
        if config.backout_layer is not None:
            self.backout_scale = nn.Parameter(torch.zeros(()))
        self.induction = Induction(config) if config.induction_lengths else None
        self.post_init()

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
        self._refuse_backend()
        if past_key_values is None and (self.config.use_cache if use_cache is None else use_cache):
            past_key_values = DynamicCache()
        if past_key_values is not None:
            with_all_layers(past_key_values, self.config)
        past = Past(self.config, past_key_values, input_ids.size(1), attention_mask)
        if position_ids is None:
            position_ids = (torch.arange(input_ids.size(1), device=input_ids.device) + past.first)[None]
        states_BTC = self._states(self._context(input_ids, position_ids, past), kwargs)
        output = BaseModelOutputWithPast(last_hidden_state=states_BTC, past_key_values=past_key_values)
        return output.to_tuple() if return_dict is False else output

    def _refuse_backend(self) -> None:
        """A backend with a cache of its own runs many texts in one row and keeps keys and values alone."""
        kind = self.config._attn_implementation
        if kind not in OWN_ATTENTION and self.config.kept_rows():
            kept = ", ".join(sorted({name.rstrip(" 0123456789") for name in self.config.kept_rows()}))
            raise ValueError(
                f"attention {kind!r} cannot keep what this model needs of earlier tokens: {kept}"
            )

    def _context(self, ids_BT: Tensor, positions_BT: Tensor, past: Past) -> Context:
        angles = rotary_angles(positions_BT, self.config.head_dim, self.config.rope_theta)
        masks: dict[int | None, Tensor | None] = {}
        if self.config._attn_implementation in OWN_ATTENTION:
            windows = {self.config.earlier(layer) for layer in range(self.config.num_hidden_layers)}
            masks = {window: past.mask(window, ids_BT.device) for window in windows}
        return Context(ids_BT, positions_BT, angles, past, masks)

    def _states(self, context: Context, kwargs: dict[str, Any]) -> Tensor:
        embedded = self._smear(norm(self.embed_tokens(context.ids_BT)), context.past)
        if self.induction is not None:
            found_BT, lengths_BT = self.induction.find(context.ids_BT, context.past)
            embedded = embedded + self.induction(norm(self.embed_tokens(found_BT)), lengths_BT)
        if self.config.streams is not None:
            embedded = embedded.unsqueeze(-2).expand(-1, -1, self.config.streams["count"], -1)
        x = middle = embedded
        for index, layer in enumerate(self.layers):
            x = self.residual_scales[index] * x + self.embedding_scales[index] * embedded
            x = layer(x, context, **kwargs)
            if index == self.config.backout_layer:
                middle = x
        if self.config.backout_layer is not None:
            x = x - self.backout_scale * middle
        return norm(x if self.config.streams is None else x.mean(-2))

    def _smear(self, embedded_BTC: Tensor, past: Past) -> Tensor:
        """Each token's embedding with a gated share of the one before it."""
        if not self.config.smear:
            return embedded_BTC
        before_BTC = past.recent("smear", embedded_BTC, 1)[:, :-1]
        gate_BT1 = self.smear_gate(embedded_BTC[..., : self.smear_gate.in_features]).sigmoid()
        return embedded_BTC + self.smear_scale * gate_BT1 * before_BTC


class CpplmForCausalLM(CpplmPreTrainedModel, GenerationMixin):
    """Ids to logits of the next token."""

    def __init__(self, config: CpplmConfig) -> None:
        super().__init__(config)
        self.model = CpplmModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
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
        """Capped float32 logits, shape BTV.

        Args:
            input_ids: see `CpplmModel.forward`, as for what is not named here.
            attention_mask: likewise.
            position_ids: likewise.
            past_key_values: likewise.
            labels: the same ids, -100 where they do not count; gives a mean loss of the next tokens.
            use_cache: likewise.
            logits_to_keep: of so many last tokens alone, or of these; 0 for all.
            return_dict: False for a tuple.
            kwargs: likewise.
        """
        states = self.model(
            input_ids, attention_mask, position_ids, past_key_values, use_cache, return_dict=True, **kwargs
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        cap = self.config.final_logit_softcapping
        logits_BTV = self.lm_head(states.last_hidden_state[:, kept]).float()
        logits_BTV = cap * torch.tanh(logits_BTV / cap)
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
            with_all_layers(cache, self.config)
            if getattr(generation_config, "is_assistant", False):
                cache.activate_past_recording()
