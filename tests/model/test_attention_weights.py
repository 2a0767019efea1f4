"""The weights of attention are those that the layers mix values with."""

import pytest
import torch

from cpplm.model.attention import Attention
from cpplm.model.attention_weights import attention_weights
from tests.model.features import CONFIGS, random_ids, random_model


@pytest.mark.parametrize("name", ["llama", "all"])
def test_values_mixed_by_the_weights_are_what_the_layer_gives(name: str) -> None:
    model = random_model(CONFIGS[name])
    ids = random_ids(1, 16)
    layers = [module for module in model.blocks.modules() if isinstance(module, Attention)]
    seen: list[tuple[Attention, tuple, torch.Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, inputs, output: seen.append((layer, inputs, output[0])))
        for layer in layers
    ]
    with torch.no_grad():
        weights = attention_weights(model, ids[0].tolist())
        for hook in hooks:
            hook.remove()
        assert len(weights) == len(layers) == len(seen)
        for weights_HTS, (layer, (x_BTC, context), output_BTC) in zip(weights, seen, strict=True):
            _, _, value_BGSD = layer._project(x_BTC, context)
            value_HSD = value_BGSD[0].repeat_interleave(layer.num_heads // layer.num_kv_heads, 0)
            mixed_TC = (weights_HTS @ value_HSD).transpose(0, 1).flatten(1)
            torch.testing.assert_close(layer.output(mixed_TC), output_BTC[0], rtol=1e-4, atol=1e-5)
            assert not weights_HTS.triu(1).any()
    again = model.hidden_states(ids)
    assert len(seen) == len(layers), "the hooks are gone"
    assert again.isfinite().all()
