"""The modeling code for `transformers` computes what our inference does, for every feature and mixture."""

import dataclasses
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, StaticCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cpplm.export.modeling import attention_cpplm
from cpplm.export.modeling.modeling_cpplm import CpplmForCausalLM
from cpplm.model.config import (
    EngramConfig,
    HyperConnectionsConfig,
    ModelConfig,
    MultiTokenConfig,
    SparseAttentionConfig,
)
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import BOS, PAD
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.export.models import (
    CONFIGS,
    CONTEXT,
    MIXED,
    as_custom,
    assert_close,
    each_but_slowly,
    generate,
    ids_of,
    prompts,
    random_of,
    written_by_our_engine,
)

EACH = pytest.mark.parametrize("name", CONFIGS)
Pair = tuple[Transformer, CpplmForCausalLM]


@pytest.fixture(scope="module")
def pairs() -> dict[str, Pair]:
    models = {name: random_of(config) for name, config in CONFIGS.items()}
    return {name: (model, as_custom(model)) for name, model in models.items()}


# ---- logits -----------------------------------------------------------------------------------------------


@EACH
@torch.no_grad()
def test_logits(pairs: dict[str, Pair], name: str) -> None:
    ours, theirs = pairs[name]
    ids = ids_of(ours.config, 3, CONTEXT)
    assert_close(theirs(ids, use_cache=False).logits, ours(ids))


@EACH
@torch.no_grad()
def test_logits_in_pieces(pairs: dict[str, Pair], name: str) -> None:
    """Long and short ones behind a cache, which `transformers` has made or the model itself."""
    ours, theirs = pairs[name]
    ids = ids_of(ours.config, 2, CONTEXT)
    expected = ours(ids)
    for cache in (None, DynamicCache(config=theirs.config), DynamicCache()):
        parts, past, begin = [], cache, 0
        for length in (1, 1, 30, 1, 13, 2, *[1] * 16):
            out = theirs(ids[:, begin : begin + length], past_key_values=past, use_cache=True)
            past, begin = out.past_key_values, begin + length
            parts.append(out.logits)
        assert begin == CONTEXT
        assert cache is None or past is cache
        assert_close(torch.cat(parts, dim=1), expected)


@EACH
@torch.no_grad()
def test_padding_on_the_left(pairs: dict[str, Pair], name: str) -> None:
    """Each row as if it were alone, in one pass and in pieces whose borders lie inside the padding."""
    ours, theirs = pairs[name]
    lengths = (CONTEXT, 41, 3, 1)
    rows = [ids_of(ours.config, length, seed=length) for length in lengths]
    ids = torch.stack([torch.cat((torch.full((CONTEXT - len(row),), PAD), row)) for row in rows])
    mask = torch.stack([(torch.arange(CONTEXT) >= CONTEXT - length).long() for length in lengths])
    whole = theirs(ids, attention_mask=mask, use_cache=False).logits
    parts, past, begin = [], None, 0
    for length in (20, 40, 1, 1, 2):
        seen, piece = slice(begin + length), slice(begin, begin + length)
        out = theirs(ids[:, piece], attention_mask=mask[:, seen], past_key_values=past, use_cache=True)
        past, begin = out.past_key_values, begin + length
        parts.append(out.logits)
    for found in (whole, torch.cat(parts, dim=1)):
        assert bool(found.isfinite().all())
        for row, logits in zip(rows, found, strict=True):
            torch.testing.assert_close(logits[-len(row) :], ours(row[None])[0], atol=1e-4, rtol=0)


engrams = st.one_of(
    st.none(),
    st.builds(
        EngramConfig,
        layers=st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True).map(tuple),
        ngram_orders=st.lists(st.integers(2, 5), min_size=1, max_size=3, unique=True).map(tuple),
        num_heads=st.integers(1, 3),
        head_dim=st.integers(1, 5),
        table_size=st.integers(1, 60),
        kernel_size=st.integers(1, 4),
    ),
    st.builds(
        EngramConfig,
        kind=st.just("local"),
        layers=st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True).map(tuple),
        ngram_orders=st.lists(st.integers(2, 5), min_size=1, max_size=3, unique=True).map(tuple),
        bottleneck_dim=st.integers(1, 9),
    ),
)
sparse = st.builds(
    SparseAttentionConfig,
    start_layer=st.integers(0, 2),
    top_k=st.integers(4, 40),
    local_window=st.integers(0, 3),
    indexer_heads=st.integers(1, 3),
    indexer_dim=st.sampled_from([2, 6]),
)
configs = st.builds(
    ModelConfig,
    vocab_size=st.integers(65, 140),
    num_layers=st.just(3),
    model_dim=st.sampled_from([8, 24, 40]),
    num_heads=st.sampled_from([2, 4]),
    num_kv_heads=st.sampled_from([1, 2]),
    head_dim=st.sampled_from([2, 8]),
    max_seq_len=st.sampled_from([8, 33, CONTEXT]),
    window_pattern=st.text("SL", min_size=1, max_size=3),
    mlp=st.sampled_from(["relu2", "swiglu"]),
    mlp_ratio=st.integers(1, 4),
    rope_base=st.sampled_from([100.0, 100_000.0]),
    qk_scale=st.sampled_from([1.0, 1.2]),
    logit_softcap=st.sampled_from([5.0, 15.0]),
    value_embeddings=st.booleans(),
    smear=st.booleans(),
    induction=st.booleans(),
    backout=st.booleans(),
    engram=engrams,
    hyper_connections=st.none() | st.builds(HyperConnectionsConfig, st.integers(2, 3), st.integers(1, 3)),
    mtp=st.none() | st.just(MultiTokenConfig(1)),
    dsa=st.none() | sparse,
)


@settings(max_examples=25)
@given(configs, st.integers(0, 2**20))
@torch.no_grad()
def test_mixtures_of_features(config: ModelConfig, seed: int) -> None:
    """In one pass, and padded behind a cache in random pieces."""
    ours = random_of(config, config.vocab_size, seed)
    theirs = as_custom(ours)
    ids = ids_of(config, 2, 40, seed=seed)
    expected = ours(ids)
    torch.testing.assert_close(theirs(ids, use_cache=False).logits, expected, atol=1e-4, rtol=0)
    chance = random.Random(seed)
    padding = chance.randint(0, 9)
    padded = torch.cat((torch.full((2, padding), PAD), ids), dim=1)
    mask = (torch.arange(padding + 40) >= padding).long().expand(2, -1)
    parts, past, begin = [], None, 0
    while begin < padding + 40:
        end = min(padding + 40, begin + chance.choice((1, 1, 5, 17)))
        out = theirs(padded[:, begin:end], mask[:, :end], past_key_values=past, use_cache=True)
        past, begin = out.past_key_values, end
        parts.append(out.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1)[:, padding:], expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_sparse_attention_in_blocks(pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pairs["sparse"]
    ids = ids_of(ours.config, 2, CONTEXT)
    monkeypatch.setattr(attention_cpplm, "BLOCK_ELEMENTS", 7 * 2 * 6 * CONTEXT)
    assert_close(theirs(ids, use_cache=False).logits, ours(ids))


@EACH
def test_loss(pairs: dict[str, Pair], name: str) -> None:
    ours, theirs = pairs[name]
    ids = ids_of(ours.config, 2, 30)
    labels = ids.clone()
    labels[0, :11] = -100
    targets = torch.cat((labels[:, 1:], torch.full((2, 1), -100)), dim=1)
    found = theirs(ids, labels=labels).loss
    with torch.no_grad():
        torch.testing.assert_close(found, ours.loss(ids, targets.where(targets >= 0, -1)), atol=1e-4, rtol=0)
    found.backward()
    gradient = theirs.model.embed_tokens.weight.grad
    assert gradient is not None
    assert bool(gradient.isfinite().all())
    assert bool((gradient != 0).any())
    theirs.zero_grad()


@torch.no_grad()
def test_last_logits_alone_and_tuples(pairs: dict[str, Pair]) -> None:
    ours, theirs = pairs["all"]
    ids = ids_of(ours.config, 2, 30)
    whole = theirs(ids).logits
    assert torch.equal(theirs(ids, logits_to_keep=2).logits, whole[:, -2:])
    assert torch.equal(theirs(ids, use_cache=False, return_dict=False)[0], whole)
    states = theirs.model(ids, use_cache=False, return_dict=False)
    assert len(states) == 1
    torch.testing.assert_close(states[0], ours.hidden_states(ids), atol=1e-4, rtol=0)


# ---- generate ---------------------------------------------------------------------------------------------


@each_but_slowly(*MIXED, "sparse")
def test_greedy_as_our_engine(name: str, tokenizer: Tokenizer) -> None:
    """Of prompts of different lengths, up to the end of the context, past the windows."""
    model = random_of(CONFIGS[name], tokenizer.vocab_size)
    theirs, rows = as_custom(model), prompts(tokenizer.vocab_size, 1, 30, 7)
    count = CONTEXT - 31
    expected = written_by_our_engine(model, tokenizer, rows, count)
    assert [len(row) for row in expected] == [count] * 3
    assert generate(theirs, rows, count) == expected
    assert generate(theirs, rows[1:2], count) == expected[1:2]


@each_but_slowly(*MIXED)
def test_what_transformers_does_to_a_cache(pairs: dict[str, Pair], name: str) -> None:
    """Rows that change places (beams), tokens taken back (drafts from the prompt): as without a cache."""
    _, theirs = pairs[name]
    rows = prompts(100, 30, 12)
    beams = generate(theirs, rows, 12, num_beams=3)
    assert beams == generate(theirs, rows, 12, num_beams=3, use_cache=False)
    repeating = [BOS, *([70, 71, 72, 73] * 10)]
    plain = generate(theirs, [repeating], 12)
    assert plain == generate(theirs, [repeating], 12, use_cache=False)
    assert plain == generate(theirs, [repeating], 12, prompt_lookup_num_tokens=4)
    assert plain == generate(theirs, [repeating], 12, assistant_model=theirs)


# ---- what it refuses --------------------------------------------------------------------------------------


def test_what_it_cannot_work_with(pairs: dict[str, Pair]) -> None:
    ours, theirs = pairs["all"]
    ids = ids_of(ours.config, 1, 8)
    with pytest.raises(ValueError, match="reads input_ids"):
        theirs.model()
    with pytest.raises(TypeError, match="not in StaticCache"):
        theirs(ids, past_key_values=StaticCache(config=theirs.config, max_cache_len=16))
    with pytest.raises(ValueError, match="a column for each of the 8 tokens so far"):
        theirs(ids, attention_mask=torch.ones(1, 7))
    other = pairs["plain"][1](ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="not filled by this model"):
        theirs(ids, past_key_values=other)


@torch.no_grad()
def test_attention_of_another_backend(pairs: dict[str, Pair]) -> None:
    """Such as vLLM's: it is told the layer, the scale and the window, and refused what it cannot keep."""
    told = {}

    def spy(module, query, key, value, mask, *, scaling, sliding_window, marker, **rest):
        told[module.layer_idx] = (sliding_window, marker)
        assert mask is None
        distance = torch.arange(query.size(2))[:, None] - torch.arange(key.size(2))
        seen = (distance >= 0) & (distance < (sliding_window or CONTEXT))
        return attention_cpplm.attend(query, key, value, seen, scaling).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("spy", spy)
    for name, allowed in {"values": True, "streams": True, "smear": False, "sparse": False}.items():
        ours, theirs = pairs[name]
        ids = ids_of(ours.config, 1, CONTEXT)
        theirs.config._attn_implementation = "spy"
        try:
            if allowed:
                assert_close(theirs(ids, use_cache=False, marker="kept").logits, ours(ids))
                assert told == {0: (33, "kept"), 1: (33, "kept"), 2: (33, "kept"), 3: (None, "kept")}
            else:
                with pytest.raises(
                    ValueError, match=f"cannot keep.*{'index keys' if name == 'sparse' else name}"
                ):
                    theirs(ids)
        finally:
            theirs.config._attn_implementation = "sdpa"


def test_a_window_is_not_forgotten() -> None:
    """The configuration of `transformers` counts the token itself, ours does not."""
    config = dataclasses.replace(CONFIGS["plain"], short_window="quarter", max_seq_len=256, num_layers=5)
    theirs = as_custom(random_of(config))
    assert config.windows() == [128, 128, 128, None, None]
    assert theirs.config.sliding_window == 129
    assert [layer.self_attn.earlier for layer in theirs.model.layers] == config.windows()
