"""Models of the transformers library as teachers of students of ours."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

from cpplm.compress.kd.build import build_cache
from cpplm.compress.kd.cache import KDCache, unpack
from cpplm.compress.kd.settings import CacheBuildSettings, KDLossSettings
from cpplm.compress.kd.teacher import find_teacher
from cpplm.compress.qat import train_quantized
from cpplm.compress.settings import QatSettings
from cpplm.core.errors import UserError
from cpplm.tokenizer.export import export_hf
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.checkpoint.format import open_run
from tests.commands import assert_one_line_error, cpplm
from tests.compress.hf_models import random_model, write_model
from tests.compress.kd.conftest import write_teacher
from tests.evaluate.models.hf_dirs import write_hf_dir
from tests.texts import cpp_document, make_tokenizer
from tests.train.records import records


def of_hf(settings: CacheBuildSettings, folder: Path, out: Path) -> CacheBuildSettings:
    return dataclasses.replace(settings, teacher=f"hf:{folder}", out=out, num_tokens=200)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_a_cache_holds_the_log_probabilities_of_transformers(
    family: str, build_settings: CacheBuildSettings, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", tokenizer, family)
    build_cache(of_hf(build_settings, folder, tmp_path / "cache"))
    cache = KDCache.open(str(tmp_path / "cache"))
    assert cache.verify() == [] and cache.manifest.tokenizer == tokenizer.hash
    rows = {name: unpack(name, tensor) for name, tensor in cache.shard(0).items()}
    with torch.no_grad():
        logits = random_model(family, tokenizer.vocab_size)(rows["inputs"]).logits
    expected = logits.log_softmax(-1)
    top = expected.gather(-1, rows["topk_ids"])
    torch.testing.assert_close(rows["topk_logprobs"], top, atol=5e-3, rtol=1e-3)
    torch.testing.assert_close(top, expected.topk(5).values, atol=1e-5, rtol=0)
    torch.testing.assert_close(rows["tail_logprob"].exp(), 1 - top.exp().sum(-1), atol=1e-3, rtol=0)


def test_documents_of_a_row_are_kept_apart(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tokenizer)
    forward = find_teacher(f"hf:{folder}").load(torch.device("cpu"), torch.float32, False)
    ids, documents = torch.arange(300, 316)[None], torch.tensor([[0] * 6 + [1] * 10])
    both = forward(ids, documents).hidden_NC
    torch.testing.assert_close(both[6:], forward(ids[:, 6:], None).hidden_NC, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(both[6:], forward(ids, None).hidden_NC[6:], atol=1e-2)


@pytest.mark.parametrize("cached", [False, True])
def test_a_student_of_ours_learns(
    cached: bool, build_settings: CacheBuildSettings, corpus: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", tokenizer, "llama")
    student = write_teacher(tmp_path / "student", tokenizer, seed=1)
    build = of_hf(build_settings, folder, tmp_path / "cache")
    build_cache(build)
    settings = QatSettings(
        (str(corpus),), str(student), tmp_path / "run", recipe="mlp=half4", init="mse", lr_scale=1.0,
        teacher=build.teacher, num_iterations=8, device_batch_size=2, total_batch_size=128, no_compile=True,
        precision="fp32", kd_cache=str(build.out) if cached else "",
        kd=KDLossSettings(kd_loss="topk_tail" if cached else "full"),
    )  # fmt: skip
    train_quantized(settings)
    parts = [record["parts"] for record in records(settings.out, "distillation")]
    assert open_run(settings.out).step == 8 and parts[-1]["kd"] < parts[0]["kd"]
    if cached:
        write_model(tmp_path / "other", tokenizer, seed=2)
        other = dataclasses.replace(settings, teacher=f"hf:{tmp_path / 'other'}", out=tmp_path / "no")
        with pytest.raises(UserError, match="was made with another teacher"):
            train_quantized(other)


@pytest.mark.parametrize("is_ours", [False, True])
def test_other_tokenizers_are_refused(
    is_ours: bool, build_settings: CacheBuildSettings, tokenizer: Tokenizer, corpus: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    if is_ours:
        write_model(folder, make_tokenizer([cpp_document(0)], 383))
    else:
        write_hf_dir(folder)
    student = write_teacher(tmp_path / "student", tokenizer)
    build = of_hf(build_settings, folder, tmp_path / "cache")
    build_cache(build)
    command = ("compress", "qat", corpus, "--run", student, "--teacher", f"hf:{folder}",
               "--out", tmp_path / "r", "--num_iterations", 1)  # fmt: skip
    assert_one_line_error(cpplm(*command), "has another tokenizer than")
    command += ("--kd_cache", build.out, "--kd_loss", "topk")
    assert_one_line_error(cpplm(*command), "was made with another tokenizer")


def test_logits_that_are_no_product_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    export_hf(tokenizer, tmp_path)
    config = Gemma2Config(
        vocab_size=tokenizer.vocab_size, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, final_logit_softcapping=0.5,
        bos_token_id=2, eos_token_id=3, pad_token_id=0, initializer_range=1.0,
    )  # fmt: skip
    Gemma2ForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="more than products"):
        find_teacher(f"hf:{tmp_path}").load(torch.device("cpu"), torch.float32, False)


def test_an_exported_tokenizer_is_known_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    export_hf(tokenizer, tmp_path)
    assert Tokenizer.load(tmp_path / "tokenizer.json") == tokenizer
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    assert Tokenizer.load(tmp_path / "again" / "tokenizer.json").hash == tokenizer.hash
    record = json.loads((tmp_path / "tokenizer.json").read_text())
    record["normalizer"] = {"type": "NFC"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="no tokenizer of cpplm"):
        Tokenizer.load(tmp_path / "tokenizer.json")
