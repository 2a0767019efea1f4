"""No feature, all of them, random mixtures: causal, the same in training and in decoding, counted right."""

import dataclasses
import itertools
import math
import random
from typing import get_args

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cpplm.model.config import ModelConfig
from cpplm.model.flops import count_flops, count_parameters
from cpplm.model.kv_cache.paged_view import CacheReadMode
from cpplm.model.settings import KernelSettings
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from tests.model.caches import Rows
from tests.model.features import CONFIGS, MIXED, random_ids, random_model

MIXTURES = pytest.mark.parametrize("config", MIXED.values(), ids=MIXED.keys())
EACH = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
CHUNKS = [[16], [1] * 16, [5, 1, 1, 9], [15, 1]]
READ_MODES = get_args(CacheReadMode)


def gradients(model: Transformer) -> dict[str, torch.Tensor]:
    dense = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        dense[name] = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
    return dense


@MIXTURES
@torch.no_grad()
def test_causal_in_training(config: ModelConfig) -> None:
    model, ids = random_model(config), random_ids(2, 16)
    before = model(ids)
    changed = ids.clone()
    changed[:, 9] = (changed[:, 9] + 1) % config.vocab_size
    after = model(changed)
    assert torch.equal(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@MIXTURES
@torch.no_grad()
def test_cached_decoding_gives_the_training_logits(config: ModelConfig) -> None:
    """All ways to cut and to read with no feature and with all of them, one of each kind with a mixture."""
    model, ids = random_model(config), random_ids(3, 16)
    expected = model(ids)
    ways = list(itertools.product(CHUNKS, READ_MODES))
    if config not in (CONFIGS["plain"], CONFIGS["all"]):
        ways = random.Random(str(config)).sample(ways, 3)
    for chunks, read_mode in ways:
        decode = Rows(model, 3, read_mode=read_mode)
        logits = torch.cat([decode(chunk) for chunk in ids.split(chunks, dim=1)], dim=1)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@MIXTURES
@pytest.mark.parametrize("read_mode", READ_MODES)
@torch.no_grad()
def test_states_of_the_last_tokens_alone(config: ModelConfig, read_mode: CacheReadMode) -> None:
    """They, and what a cache holds for the tokens that follow, are those of a whole pass."""
    model, ids = random_model(config), random_ids(1, 16)
    expected = model.hidden_states(ids)
    for first, count in ((13, 1), (13, 13), (2, 1), (2, 2)):  # three tokens at most go through kernels
        uncached = model.hidden_states(ids[:, :first], num_outputs=count)
        torch.testing.assert_close(uncached, expected[:, first - count : first], atol=1e-4, rtol=1e-4)
        rows = Rows(model, 1, read_mode=read_mode)
        last = rows.states(ids[:, :first], num_outputs=count)
        torch.testing.assert_close(last, expected[:, first - count : first], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(rows.states(ids[:, first:]), expected[:, first:], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_last_layer_computes_the_last_tokens_alone() -> None:
    model, ids = random_model(CONFIGS["plain"]), random_ids(1, 16)
    flops = []
    for count in (None, 1):
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            model.hidden_states(ids, num_outputs=count)
        flops.append(counter.get_total_flops())
    # MLP and output are three quarters of a layer's products and more.
    assert flops[1] < (1 - 0.7 / model.config.num_layers) * flops[0]


@MIXTURES
def test_untrained_loss_is_uniform(config: ModelConfig) -> None:
    model = Transformer(config)  # 100 ids, 128 rows
    model.init_weights()
    ids = random_ids(4, 16)
    losses = model.training_losses(ids, ids.roll(1), 0.3)
    assert losses.next_token.item() == pytest.approx(math.log(100), rel=0.01)
    if config.mtp:
        assert losses.multi_token.item() == pytest.approx(math.log(100), rel=0.01)


@EACH
def test_every_parameter_learns_and_ignored_targets_do_not_count(config: ModelConfig) -> None:
    model, ids = random_model(config), random_ids(2, 16)
    targets = ids.roll(-1, dims=1)
    targets[0, 10:] = IGNORE_INDEX
    model.training_losses(ids, targets, 0.3).total.backward()
    for name, gradient in gradients(model).items():
        assert torch.isfinite(gradient).all(), name
        assert gradient.abs().max() > 0, name


@MIXTURES
def test_gradient_checkpointing_changes_nothing(config: ModelConfig) -> None:
    ids = random_ids(2, 16)
    seen = []
    for again in (False, True):
        model = random_model(config)
        model.kernels = KernelSettings(gradient_checkpointing=again)
        losses = model.training_losses(ids, ids.roll(-1, dims=1), 0.3)
        losses.total.backward()
        seen.append((losses.total, gradients(model)))
    assert torch.equal(seen[0][0], seen[1][0])
    for name, gradient in seen[0][1].items():
        torch.testing.assert_close(seen[1][1][name], gradient, msg=name)


@EACH
def test_parameter_count(config: ModelConfig) -> None:
    parts = count_parameters(config)
    assert parts["total"] == sum(p.numel() for p in Transformer(config).parameters())
    assert parts["total"] == sum(count for name, count in parts.items() if name != "total")


@EACH
def test_operation_count_matches_the_counter_of_torch(config: ModelConfig) -> None:
    config = dataclasses.replace(config, window_pattern="L", num_kv_heads=config.num_heads)
    model, ids = random_model(config), random_ids(2, 16)
    # The counter knows the plain formulations, neither the fused CPU kernel nor operators of our own.
    model.kernels = KernelSettings(kernel="native", attention="sdpa")
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.training_losses(ids, ids, 0.3).total.backward()
    parts = count_flops(config)
    unseen = 0
    if config.dsa:
        layers = config.num_layers - config.dsa.start_layer
        unseen = layers * 16 * 12 * config.num_heads * config.head_dim
        unseen += parts["indexer"] - 4 * count_parameters(config)["indexer"]
    assert counter.get_total_flops() == (parts["total"] - unseen) * ids.numel()


@pytest.mark.slow
def test_one_graph_and_no_second_compilation() -> None:
    """All features at once compile into one graph, which a new weight of the further tokens does not undo."""
    config = CONFIGS["all"]
    model, ids = random_model(config), random_ids(2, 16)
    eager = model.training_losses(ids, ids.roll(-1, dims=1), 0.1)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(model.training_losses, dynamic=False, fullgraph=True)  # one graph or an error
    graphs = []
    for weight in (0.4, 0.3, 0.2, 0.1):
        losses = compiled(
            ids, ids.roll(-1, dims=1), torch.tensor(weight), ngram_embeddings=model.embed_ngrams(ids)
        )
        losses.total.backward()
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    torch.testing.assert_close(losses, eager, atol=1e-4, rtol=1e-4)
    assert graphs[1] == graphs[-1]  # the loss compiles a kernel of its own at its first two calls
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("name", sorted(MIXED))
@torch.no_grad()
def test_documents_of_a_row_do_not_see_each_other(name: str) -> None:
    model, ids = random_model(MIXED[name]), random_ids(2, 16)
    documents = torch.tensor([0] * 5 + [1] * 4 + [2] * 7).expand_as(ids)
    context = model.forward_context(ids, None, documents, model.embed_ngrams(ids, None, documents))
    apart = [model.hidden_states(part) for part in ids.split([5, 4, 7], dim=1)]
    torch.testing.assert_close(model.states(context)[0], torch.cat(apart, dim=1), atol=1e-4, rtol=1e-4)
