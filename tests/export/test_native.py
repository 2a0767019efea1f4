"""Models that `transformers` has an architecture for: its own code, no file of ours, the same logits."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, NanoChatForCausalLM

from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.export.hf import SUPPRESSED, export_to_hf
from cpplm.export.native import lacking
from cpplm.generate.engine import Engine
from cpplm.model.config import ModelConfig, MultiTokenConfig
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import open_run
from cpplm.train.checkpoint.import_nanochat import import_nanochat
from tests.export.models import (
    CONTEXT,
    NATIVE,
    assert_close,
    generate,
    ids_of,
    load,
    native_model,
    prompts,
    save,
    written_by_our_engine,
)
from tests.model.features import CHANGES, PLAIN, random_model
from tests.texts import cpp_document
from tests.train import nanochat_reference as nanochat

SHAPES = {
    "grouped": NATIVE,
    "all heads": dataclasses.replace(NATIVE, num_kv_heads=4, mlp_ratio=3, logit_softcap=10.0),
    "windows that hide nothing": dataclasses.replace(NATIVE, window_pattern="SSSL", short_window="quarter"),
    "further tokens": dataclasses.replace(NATIVE, mtp=MultiTokenConfig(2)),
    "one layer": dataclasses.replace(NATIVE, num_layers=1),
}


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES.keys())
@torch.no_grad()
def test_logits(config: ModelConfig, tokenizer: Tokenizer, tmp_path: Path) -> None:
    ours = native_model(config, tokenizer.vocab_size)
    exported = export_to_hf(save(ours, tokenizer, tmp_path / "run"), tmp_path / "hf")
    assert (exported.architecture, exported.lacking) == ("NanoChatForCausalLM", [])
    assert exported.left_out == (["2 heads for further tokens (MTP)"] if config.mtp else [])
    assert not list((tmp_path / "hf").glob("*.py"))
    theirs = load(tmp_path / "hf", trust_remote_code=False)
    assert type(theirs) is NanoChatForCausalLM
    ids = ids_of(ours.config, 2, CONTEXT)
    expected = ours(ids)
    assert_close(theirs(ids).logits, expected)
    past = theirs(ids[:, :40], use_cache=True)
    assert_close(theirs(ids[:, 40:], past_key_values=past.past_key_values).logits, expected[:, 40:])


def test_evaluated_and_continued_as_a_run_is(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """`cpplm evaluate --hf_dir` reads it: the same bits of the same texts, the same greedy completions."""
    ours = native_model(vocab_size=tokenizer.vocab_size)
    export_to_hf(save(ours, tokenizer, tmp_path / "run"), tmp_path / "hf")
    theirs = HfModel.load(tmp_path / "hf", device_type="cpu", precision="fp32")
    model = CheckpointModel(Engine(ours, tokenizer))
    assert theirs.context == model.context == CONTEXT
    texts = [cpp_document(number) for number in range(3)]
    for found, expected in zip(theirs.score(texts), model.score(texts), strict=True):
        torch.testing.assert_close(torch.tensor(found.bits), torch.tensor(expected.bits), atol=1e-3, rtol=0)
    rows = prompts(tokenizer.vocab_size, 1, 30, 7)
    expected = written_by_our_engine(ours, tokenizer, rows, CONTEXT - 31)
    exported = load(tmp_path / "hf", trust_remote_code=False)
    assert exported.generation_config.suppress_tokens == SUPPRESSED
    assert generate(exported, rows, CONTEXT - 31) == expected


LACKS = {
    "plain": ["sliding windows in layers 0, 1, 2"],
    "values": ["normalized queries and keys scaled by 1.2", "value embeddings in layers 1, 3"],
    "swiglu": ["SwiGLU"],
    "smear": ["smear"],
    "induction": ["induction"],
    "backout": ["backout"],
    "memory": ["n-gram memory of the kind 'memory' in layers 0, 2"],
    "local": ["n-gram memory of the kind 'local' in layers 1, 3"],
    "streams": ["3 residual streams (hyper-connections)"],
    "further": [],
    "sparse": ["sparse attention from layer 2 on"],
}


@pytest.mark.parametrize("name", LACKS)
def test_what_is_lacking(name: str) -> None:
    config = dataclasses.replace(NATIVE, **CHANGES[name])
    if name == "plain":
        config = dataclasses.replace(config, window_pattern="SSSL")
    assert lacking(config, native_model(config).state_dict()) == LACKS[name]
    assert LACKS.keys() == CHANGES.keys()


def test_scalars_that_are_lacking() -> None:
    model = native_model()
    with torch.no_grad():
        model.embedding_scales[2:] = 1e-9
        assert lacking(NATIVE, model.state_dict()) == [
            "a share of the embedding mixed in again before layers 2, 3"
        ]
        model.embedding_scales[1:] = 0
        for first, second in ((-0.6, 1.0), (0.7, 0.0), (0.7, -1.0), (0.7, float("nan"))):
            model.residual_scales[0], model.residual_scales[1] = first, second
            assert lacking(NATIVE, model.state_dict()) == [
                "scales of the residual stream that are not positive"
            ]
    narrow = dataclasses.replace(NATIVE, head_dim=4)
    assert lacking(narrow, native_model(narrow).state_dict()) == [
        "heads that together are not as wide as the model"
    ]


def test_every_preset_needs_code_once_it_is_trained() -> None:
    """The plain recipe differs in its scalars alone: training moves them."""
    for preset in (ModelConfig.seed, ModelConfig.nanochat, ModelConfig.from_depth):
        config = preset(2, vocab_size=100, head_dim=8, aspect_ratio=8, window_pattern="L")
        assert lacking(config, random_model(config).state_dict())
    untrained = ModelConfig.seed(2, vocab_size=100, head_dim=8, aspect_ratio=8, window_pattern="L")
    scales = {"residual_scales": torch.ones(2), "embedding_scales": torch.zeros(2)}
    assert lacking(untrained, scales) == []


@torch.no_grad()
def test_an_imported_model_of_nanochat(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """nanochat's first models had no scalars: they go through us to `transformers` and compute the same."""
    record = {"sequence_len": 64, "vocab_size": 512, "n_layer": 3, "n_head": 4, "n_kv_head": 2, "n_embd": 32,
              "window_pattern": "L"}  # fmt: skip
    state = nanochat.random_state(record, newer=False, rows=512)
    early = {name: tensor for name, tensor in state.items() if not name.endswith("_lambdas")}
    torch.save(early, tmp_path / "model_000020.pt")
    (tmp_path / "meta_000020.json").write_text(json.dumps({"model_config": record}))
    import_nanochat(tmp_path, tmp_path / "run", tokenizer)
    exported = export_to_hf(open_run(tmp_path / "run"), tmp_path / "hf")
    assert exported.architecture == "NanoChatForCausalLM"
    assert "from nanochat's `model_000020.pt`" in (tmp_path / "hf" / "README.md").read_text()
    ids = ids_of(PLAIN, 2, 50)
    without = {"resid_lambdas": torch.ones(3), "x0_lambdas": torch.zeros(3)}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32)
    assert_close(theirs(ids).logits, nanochat.logits({**state, **without}, record, ids, newer=False))
