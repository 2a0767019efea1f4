"""The modeling code for `transformers` computes what our inference does, for every feature and mixture."""

import ast
import dataclasses
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin, StaticCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cpplm.export.modeling import kernels_cpplm
from cpplm.export.remote_code import SOURCES, source_files
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import BOS, PAD
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.export.models import (
    CONFIGS,
    CONTEXT,
    EACH,
    as_exported,
    assert_close,
    generate,
    ids_of,
    modeling_code,
    prompts,
    random_of,
    written_by_our_engine,
)
from tests.model.features import CHANGES, random_config

Pair = tuple[Transformer, GenerationMixin]
AVAILABLE = {*sys.stdlib_module_names, "torch", "transformers"}


@pytest.fixture(scope="module")
def pairs() -> dict[str, Pair]:
    models = {name: random_of(config) for name, config in CONFIGS.items()}
    return {name: (model, as_exported(model)) for name, model in models.items()}


# ---- the files --------------------------------------------------------------------------------------------


def test_files_need_nothing_of_cpplm() -> None:
    """Each other, `transformers`, torch and the standard library; and none builds code or reads pickles."""
    sources = source_files()
    assert sorted(sources) == sorted(SOURCES)
    for source in sources.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                assert {alias.name.partition(".")[0] for alias in node.names} <= AVAILABLE
            elif isinstance(node, ast.ImportFrom) and node.level:
                assert (node.level, f"{node.module}.py" in SOURCES) == (1, True)
            elif isinstance(node, ast.ImportFrom):
                assert node.module.partition(".")[0] in AVAILABLE
            elif isinstance(node, ast.Name):
                assert node.id not in ("eval", "exec", "compile", "__import__", "pickle")


# ---- logits -----------------------------------------------------------------------------------------------


def in_pieces(
    theirs: GenerationMixin, ids: Tensor, lengths: Iterable[int], mask: Tensor | None = None, past: Any = None
) -> tuple[Tensor, Any]:
    """Logits of the tokens, read piece by piece behind a cache, and that cache."""
    parts: list[Tensor] = []
    for length in lengths:
        begin = sum(part.size(1) for part in parts)
        seen = None if mask is None else mask[:, : begin + length]
        out = theirs(ids[:, begin : begin + length], seen, past_key_values=past, use_cache=True)
        parts, past = [*parts, out.logits], out.past_key_values
    return torch.cat(parts, dim=1), past


@EACH
@torch.no_grad()
def test_logits(pairs: dict[str, Pair], name: str) -> None:
    """In one pass, and in long and short pieces behind a cache, which is given or made by the model."""
    ours, theirs = pairs[name]
    ids = ids_of(ours.config, 2, CONTEXT)
    expected = ours(ids)
    assert_close(theirs(ids, use_cache=False).logits, expected)
    for cache in (None, DynamicCache(config=theirs.config), DynamicCache()):
        logits, past = in_pieces(theirs, ids, (1, 1, 30, 1, 13, 2, *[1] * 16), past=cache)
        assert_close(logits, expected)
        assert cache is None or past is cache


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
    for logits_BTV in (whole, in_pieces(theirs, ids, (20, 40, 1, 1, 2), mask)[0]):
        assert bool(logits_BTV.isfinite().all())
        for row, logits in zip(rows, logits_BTV, strict=True):
            torch.testing.assert_close(logits[-len(row) :], ours(row[None])[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(8))
@torch.no_grad()
def test_mixtures_of_features(seed: int) -> None:
    """In one pass, and padded behind a cache in random pieces."""
    config, chance = random_config(seed), random.Random(seed)
    ours = random_of(config, config.vocab_size, seed)
    theirs, ids = as_exported(ours), ids_of(config, 2, 40, seed=seed)
    expected = ours(ids)
    torch.testing.assert_close(theirs(ids, use_cache=False).logits, expected, atol=1e-4, rtol=0)
    padding = chance.randint(0, 9)
    padded = torch.cat((torch.full((2, padding), PAD), ids), dim=1)
    mask = (torch.arange(padding + 40) >= padding).long().expand(2, -1)
    pieces = [*chance.choices((1, 1, 5, 9), k=4), padding + 40]
    logits, _ = in_pieces(theirs, padded, [*pieces[:-1], pieces[-1] - sum(pieces[:-1])], mask)
    torch.testing.assert_close(logits[:, padding:], expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_sparse_attention_in_blocks(pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pairs["all"]
    ids = ids_of(ours.config, 2, CONTEXT)
    kernels = sys.modules[theirs.__module__.replace("modeling_", "kernels_")]
    monkeypatch.setattr(kernels, "BLOCK_ELEMENTS", 7 * 2 * 6 * CONTEXT)
    assert_close(theirs(ids, use_cache=False).logits, ours(ids))


@pytest.mark.parametrize("name", ["plain", "all"])
def test_loss(pairs: dict[str, Pair], name: str) -> None:
    ours, theirs = pairs[name]
    ids = ids_of(ours.config, 2, 30)
    labels = ids.clone()
    labels[0, :11] = -100
    targets = torch.cat((labels[:, 1:], torch.full((2, 1), -100)), dim=1)
    loss = theirs(ids, labels=labels).loss
    with torch.no_grad():
        torch.testing.assert_close(loss, ours.loss(ids, targets.where(targets >= 0, -1)), atol=1e-4, rtol=0)
    loss.backward()
    gradients = [w.grad for name, w in theirs.named_parameters() if "indexer" not in name]
    for gradient in gradients:
        assert gradient is not None
        assert not gradient.is_sparse
        assert bool(gradient.isfinite().all())
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


@torch.no_grad()
def test_a_model_that_is_not_read_from_files(pairs: dict[str, Pair], tmp_path: Path) -> None:
    """Every weight has a value; tokens can be added, and the model is read again with them."""
    config = pairs["all"][1].config
    assert bool(modeling_code()(config)(ids_of(CONFIGS["all"], 1, 20)).logits.isfinite().all())
    ours = random_of(CONFIGS["plain"])
    theirs = as_exported(ours)
    theirs.resize_token_embeddings(ours.config.vocab_size + 3)
    theirs.save_pretrained(tmp_path)
    ids = ids_of(ours.config, 1, 20)
    again = modeling_code().from_pretrained(tmp_path)
    assert_close(again(ids).logits[..., : ours.config.vocab_size], ours(ids))


# ---- generate ---------------------------------------------------------------------------------------------


@EACH
def test_greedy_as_our_engine(name: str, tokenizer: Tokenizer) -> None:
    """Of prompts of different lengths, up to the end of the context, past the windows."""
    model = random_of(CONFIGS[name], tokenizer.vocab_size)
    theirs, rows = as_exported(model), prompts(tokenizer.vocab_size, 1, 30, 7)
    count = CONTEXT - 31
    expected = written_by_our_engine(model, tokenizer, rows, count)
    assert [len(row) for row in expected] == [count] * 3
    assert generate(theirs, rows, count) == expected
    assert generate(theirs, rows[1:2], count) == expected[1:2]


@EACH
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
def test_attention_of_another_backend(pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as vLLM's: it learns the layer, the scale and the window; what it cannot keep is refused."""
    calls = {}

    def spy(module, query, key, value, mask, *, scaling, sliding_window, marker, **rest):
        calls[module.layer_idx] = (sliding_window, marker)
        assert (mask, scaling) == (None, module.head_dim**-0.5)
        window = None if sliding_window is None else sliding_window - 1
        return kernels_cpplm.attention(query, key, value, window=window).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS.register("spy", spy)
    ours = random_of(dataclasses.replace(CONFIGS["plain"], **CHANGES["values"], **CHANGES["streams"]))
    theirs, ids = as_exported(ours), ids_of(ours.config, 1, CONTEXT)
    monkeypatch.setattr(theirs.config, "_attn_implementation", "spy")
    assert_close(theirs(ids, use_cache=False, marker="passed on").logits, ours(ids))
    assert calls == {layer: (33 if layer < 3 else None, "passed on") for layer in range(4)}
    other = pairs["all"][1]
    monkeypatch.setattr(other.config, "_attn_implementation", "spy")
    with pytest.raises(ValueError, match=r"cannot keep.*engram ids.*index keys, induction ids, smear$"):
        other(ids)


def test_a_window_is_not_forgotten() -> None:
    """The configuration of `transformers` counts the token itself, ours does not."""
    config = dataclasses.replace(CONFIGS["plain"], short_window="quarter", max_seq_len=256, num_layers=5)
    theirs = as_exported(random_of(config))
    assert config.windows() == [128, 128, 128, None, None]
    assert theirs.config.sliding_window == 129
    assert theirs.config.layer_types == ["sliding_attention"] * 3 + ["full_attention"] * 2
