"""A plain Llama in the hands of `transformers` and llama.cpp: the same weights, logits and text."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from cpplm.core.errors import UserError
from cpplm.export import gguf as gguf_module
from cpplm.export.gguf import export_to_gguf
from cpplm.export.hf import export_to_hf
from cpplm.export.llama import exported_weights
from cpplm.model.config import ModelConfig, MultiTokenConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import EOS, NUM_SPECIAL
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import Checkpoint
from tests.export.models import (
    CONFIGS,
    generate,
    ids_of,
    prompts,
    random_of,
    save,
    written_by_our_engine,
)
from tests.train.checkpoints import files_below

gguf = pytest.importorskip("gguf")

TYPES = {"F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5}
"""Bits per weight."""


@pytest.fixture(scope="module")
def ours(tokenizer: Tokenizer) -> Transformer:
    """Grouped queries, a head for further tokens that no export has, and a base and width that are nobody's
    defaults."""
    config = ModelConfig.llama(
        2, vocab_size=300, head_dim=32, aspect_ratio=48, num_kv_heads=1, max_seq_len=96,
        rope_base=3_000.0, mtp=MultiTokenConfig(),
    )  # fmt: skip
    return random_of(config, tokenizer.vocab_size)


@pytest.fixture(scope="module")
def checkpoint(
    ours: Transformer, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoint:
    return save(ours, tokenizer, tmp_path_factory.mktemp("llama") / "mine" / "run")


def test_models_of_other_kinds_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    plain = save(random_of(CONFIGS["plain"], tokenizer.vocab_size), tokenizer, tmp_path / "plain")
    every = save(random_of(CONFIGS["all"], tokenizer.vocab_size), tokenizer, tmp_path / "all")
    own = (
        "has sliding windows, squared ReLU, normalized queries and keys, a normalized embedding, scalars of "
    )
    own += "each layer, capped logits"
    more = (
        ", value embeddings, smear, backout, induction, n-gram memory, several residual streams, sparse att"
    )
    for other, message in ((plain, own), (every, own + more)):
        with pytest.raises(UserError, match=message) as refusal:
            export_to_hf(other, tmp_path / "hf", as_llama=True)
        assert "--to hf" in str(refusal.value)
        with pytest.raises(UserError, match=message):
            export_to_gguf(other, tmp_path / "model.gguf")
    assert not {path.name for path in tmp_path.iterdir()} - {"plain", "all"}


@torch.no_grad()
def test_transformers_has_the_same_logits_and_text(
    checkpoint: Checkpoint, ours: Transformer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    result = export_to_hf(checkpoint, tmp_path / "hf", as_llama=True)
    assert result.left_out == ["1 head for further tokens (MTP)"]
    assert not [name for name in files_below(tmp_path / "hf") if name.endswith(".py")]
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "hf", dtype=torch.float32).eval()
    assert type(theirs) is LlamaForCausalLM
    ids = ids_of(ours.config, 3, 96)
    expected = ours(ids)
    assert expected.std() > 0.3
    torch.testing.assert_close(theirs(ids).logits, expected, atol=1e-5 * expected.abs().max().item(), rtol=0)
    rows = prompts(tokenizer.vocab_size, 1, 30, 7)
    assert generate(theirs, rows, 64) == written_by_our_engine(ours, tokenizer, rows, 64)
    assert AutoTokenizer.from_pretrained(tmp_path / "hf")("int x;").input_ids == tokenizer.encode("int x;")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert "LlamaForCausalLM" in card and "trust_remote_code" not in card


@pytest.mark.parametrize("kind", TYPES)
def test_weights_in_a_gguf_file(checkpoint: Checkpoint, ours: Transformer, tmp_path: Path, kind: str) -> None:
    """Within the rounding of the format: of the halves that fp16 and bf16 keep, of the steps of a block."""
    out = tmp_path / "new" / "model.gguf"
    result = export_to_gguf(checkpoint, out, gguf_type=kind)
    reader = gguf.GGUFReader(out)
    found = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors
    }
    expected = exported_weights(ours.config, ours.state_dict())
    assert len(found) == len(expected)
    matrices = sum(weight.numel() for weight in expected.values() if weight.dim() > 1)
    norms = result.parameters - matrices
    assert result.bytes == matrices * TYPES[kind] / 8 + 4 * norms
    metadata = reader.tensors[0].data_offset
    assert out.stat().st_size == pytest.approx(metadata + result.bytes, rel=0.01)
    for name, ours_name in (
        ("token_embd", "model.embed_tokens"), ("output", "lm_head"), ("output_norm", "model.norm"),
        ("blk.1.attn_v", "model.layers.1.self_attn.v_proj"), ("blk.0.ffn_up", "model.layers.0.mlp.up_proj"),
        ("blk.1.ffn_down", "model.layers.1.mlp.down_proj"),
        ("blk.0.attn_norm", "model.layers.0.input_layernorm"),
        ("blk.1.ffn_gate", "model.layers.1.mlp.gate_proj"),
        ("blk.0.attn_output", "model.layers.0.self_attn.o_proj"),
    ):  # fmt: skip
        assert_rounded(found[f"{name}.weight"], expected[f"{ours_name}.weight"].numpy(), kind)
    # Rows 0, 1, 2, 3 of a head are rows 0, 16, 1, 17 in `transformers`, and 16, 0, 17, 1 of ours.
    keys = ours.state_dict()["blocks.1.attention.key.weight"]
    order = [row for pair in range(16) for row in (16 + pair, pair)]
    assert_rounded(found["blk.1.attn_k.weight"], keys[order].numpy(), kind)


def assert_rounded(found: np.ndarray, exact: np.ndarray, kind: str) -> None:
    assert found.shape == exact.shape
    if exact.ndim == 1 or kind == "F32":
        assert np.array_equal(found, exact)
    elif kind == "F16":
        assert np.array_equal(found, exact.astype(np.float16).astype(np.float32))
    elif kind == "BF16":
        assert np.array_equal(found, torch.from_numpy(exact).bfloat16().float().numpy())
    else:
        blocks = exact.reshape(-1, gguf_module.BLOCK)
        extent = blocks.max(1) - blocks.min(1) if kind == "Q4_1" else np.abs(blocks).max(1)
        step = extent / {"Q8_0": 127, "Q4_0": 8, "Q4_1": 15}[kind]
        errors = np.abs(found.reshape(blocks.shape) - blocks).max(1)
        whole = 1 if kind == "Q4_0" else 0.5  # Q4_0 has no +8: the largest may be off by a whole step
        assert (errors <= whole * step + 1e-3 * extent).all()
        assert errors.mean() > 0.2 * step.mean()


def test_metadata_of_a_gguf_file(checkpoint: Checkpoint, tokenizer: Tokenizer, tmp_path: Path) -> None:
    export_to_gguf(checkpoint, tmp_path / "a.gguf", run=str(Path(checkpoint.path()).parent.parent),
                   license_expression="MIT")  # fmt: skip
    fields = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "a.gguf").fields.items()}
    assert fields["general.architecture"] == "llama"
    assert fields["general.license"] == "MIT"
    assert (fields["llama.attention.head_count"], fields["llama.attention.head_count_kv"]) == (3, 1)
    assert (fields["llama.context_length"], fields["llama.rope.freq_base"]) == (96, 3000)
    assert fields["llama.attention.layer_norm_rms_epsilon"] == 2.0**-23
    assert fields["tokenizer.ggml.eos_token_id"] == EOS
    tokens = fields["tokenizer.ggml.tokens"]
    assert len(tokens) == len(fields["tokenizer.ggml.token_type"]) == tokenizer.vocab_size
    pairs = [pair.split(" ") for pair in fields["tokenizer.ggml.merges"]]
    assert {part for pair in pairs for part in (*pair, "".join(pair))} <= set(tokens[NUM_SPECIAL:])
    assert "tokenizer.ggml.fim_pre_token_id" not in fields  # it was not trained to fill in


def test_a_gguf_file_is_whole_or_not_there(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model.gguf"
    export_to_gguf(checkpoint, out)
    before = out.read_bytes()
    with pytest.raises(UserError, match=r"exists.*--overwrite"):
        export_to_gguf(checkpoint, out)

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
        with pytest.raises(UserError, match=r"No space left on device.*Free some space"):
            export_to_gguf(checkpoint, out, overwrite=True)
    assert (files_below(tmp_path), out.read_bytes()) == (["model.gguf"], before)
    export_to_gguf(checkpoint, out, gguf_type="Q8_0", overwrite=True)
    assert out.stat().st_size < len(before)
    with pytest.raises(UserError, match="exists"):
        export_to_gguf(checkpoint, tmp_path, overwrite=True)


def test_narrow_models_are_not_quantized(tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = ModelConfig.llama(1, vocab_size=300, head_dim=8, aspect_ratio=24)
    narrow = save(random_of(config, tokenizer.vocab_size), tokenizer, tmp_path / "run")
    with pytest.raises(UserError, match=r"multiples of 32.*\(24, 24, 64\).*--gguf_type F16"):
        export_to_gguf(narrow, tmp_path / "model.gguf", gguf_type="Q4_0")


def test_llama_cpp_writes_the_same_text(
    checkpoint: Checkpoint, ours: Transformer, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Greedy, and its logits to 1e-4, with float32 weights and keys and values."""
    llama_cpp = pytest.importorskip("llama_cpp")
    export_to_gguf(checkpoint, tmp_path / "model.gguf", gguf_type="F32")
    float32 = 0
    theirs = llama_cpp.Llama(
        str(tmp_path / "model.gguf"), n_ctx=96, n_threads=1, logits_all=True, verbose=False,
        type_k=float32, type_v=float32,
    )  # fmt: skip
    rows = prompts(tokenizer.vocab_size, 5, 30, 16)
    for row, expected in zip(rows, written_by_our_engine(ours, tokenizer, rows, 64), strict=True):
        theirs.reset()
        written: list[int] = []
        theirs.eval(row)
        while len(written) < 64:
            logits = np.array(theirs.scores[theirs.n_tokens - 1])
            logits[:NUM_SPECIAL] = -np.inf  # as our engine, and nothing ends the text
            written.append(int(logits.argmax()))
            theirs.eval(written[-1:])
        assert written == expected
    ids = ids_of(ours.config, 1, 90)
    theirs.reset()
    theirs.eval(ids[0].tolist())
    with torch.no_grad():
        expected_logits = ours(ids)[0]
    torch.testing.assert_close(torch.from_numpy(theirs.scores[:90]), expected_logits, atol=2e-4, rtol=0)
    text = "int main() {\n  return 0;\n}\n"
    encoded = theirs.tokenize(text.encode(), add_bos=False, special=False)
    assert b"".join(tokenizer.tokens[id_ - NUM_SPECIAL] for id_ in encoded) == text.encode()
