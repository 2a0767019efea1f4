"""Models in Hugging Face directories: exact bytes, bits and samples, and nothing of theirs that runs."""

import json
import math
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from cpplm.core.errors import UserError
from cpplm.evaluate.models.code_model import CodePrompt
from cpplm.evaluate.models.hf_model import HfModel
from cpplm.evaluate.models.hf_tokens import SENTINELS, HfTokens
from cpplm.generate.settings import SamplingSettings
from tests.evaluate.models.hf_dirs import byte_level, llama, write_hf_dir, write_tokenizer
from tests.texts import cpp_document

GREEDY = SamplingSettings(max_new_tokens=12, temperature=0.0)
SAMPLED = SamplingSettings(max_new_tokens=12, temperature=1.0, top_k=0)
SPELT = "é漢🙂 x <|endoftext|> <fim_prefix>\t\r\n\x00"


# ---- scoring ----------------------------------------------------------------------------------------------


def test_bits_are_those_of_transformers(hf_model: HfModel, hf_dir: Path, hf_tokens: HfTokens) -> None:
    plain = AutoModelForCausalLM.from_pretrained(hf_dir, dtype=torch.float32)
    (found,) = hf_model.score([SPELT])
    (encoded,) = hf_tokens.encode([SPELT])
    ids = [hf_tokens.ids["<|endoftext|>"], *encoded.ids]
    with torch.no_grad():
        logits = plain(torch.tensor([ids])).logits[0].double().log_softmax(-1)
    expected = [-float(logits[place, id_]) / math.log(2) for place, id_ in enumerate(encoded.ids)]
    assert found.bits.tolist() == pytest.approx(expected, rel=1e-4)
    assert found.ends[-1] == len(SPELT.encode())


def test_bits_do_not_depend_on_the_batch(hf_model: HfModel, hf_dir: Path) -> None:
    documents = [cpp_document(number) for number in range(5)] + ["", SPELT]
    alone = HfModel.load(hf_dir, device_type="cpu", precision="fp32", rows=1)
    for one, other in zip(hf_model.score(documents), alone.score(documents), strict=True):
        assert one.bits.tolist() == pytest.approx(other.bits.tolist(), rel=1e-4)
        assert one.context.tolist() == other.context.tolist()


def test_logits_in_pieces_are_the_same(hf_model: HfModel, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [cpp_document(3), "int x;"]
    whole = list(hf_model.score(documents))
    monkeypatch.setattr(
        "cpplm.evaluate.models.hf_model._MOST_LOGITS", 10 * 400
    )  # ten tokens of the vocabulary
    for one, other in zip(whole, hf_model.score(documents), strict=True):
        assert one.bits.tolist() == pytest.approx(other.bits.tolist(), rel=1e-3)


# ---- writing ----------------------------------------------------------------------------------------------


def written(model: HfModel, requests: list[CodePrompt], sampling: SamplingSettings, **more: Any) -> Any:
    found = dict(model.generate(requests, sampling, **more))
    assert sorted(found) == list(range(len(requests)))
    assert not any(sample.failed for samples in found.values() for sample in samples)
    return [[sample.text for sample in found[number]] for number in range(len(requests))]


PROMPTS = [CodePrompt(cpp_document(number)[: 10 + 7 * number]) for number in range(7)]


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_greedy_texts_are_those_of_transformers(
    hf_model: HfModel, hf_dir: Path, hf_tokens: HfTokens, penalty: float
) -> None:
    sampling = replace(GREEDY, repetition_penalty=penalty)
    plain = AutoModelForCausalLM.from_pretrained(hf_dir, dtype=torch.float32)
    for request, (text,) in zip(PROMPTS, written(hf_model, PROMPTS, sampling), strict=True):
        (prompt,) = hf_tokens.encode([request.prefix])
        ids = torch.tensor([[hf_tokens.ids["<|endoftext|>"], *prompt.ids]])
        out = plain.generate(
            ids, max_new_tokens=12, do_sample=False, eos_token_id=sorted(hf_tokens.end_ids), pad_token_id=0,
            repetition_penalty=penalty,
        )  # fmt: skip
        new = [id_ for id_ in out[0, ids.size(1) :].tolist() if id_ not in hf_tokens.end_ids]
        assert text == hf_tokens.bytes_of(new).decode("utf-8", "replace")


def test_a_sample_is_the_same_whatever_is_written_beside_it(hf_model: HfModel) -> None:
    together = written(hf_model, PROMPTS, SAMPLED, num_samples=3)
    assert len({text for samples in together for text in samples}) > 15
    for request, samples in zip(PROMPTS, together, strict=True):
        assert written(hf_model, [request], SAMPLED, num_samples=2) == [samples[:2]]


def test_stop_texts_are_no_part_of_a_sample(hf_model: HfModel) -> None:
    full = written(hf_model, PROMPTS, SAMPLED)
    stops = tuple(sorted({text[3:5] for (text,) in full if len(text) >= 5}))
    cut = written(hf_model, PROMPTS, replace(SAMPLED, stop=stops))
    for (whole,), (part,) in zip(full, cut, strict=True):
        assert whole.startswith(part)
        assert len(part) <= 3 or part == whole
        assert not any(stop in part for stop in stops)


def test_samples_end_at_the_end_of_the_context_and_too_long_prompts_fail_alone(
    hf_model: HfModel, hf_tokens: HfTokens
) -> None:
    words = cpp_document(4)
    ids = hf_tokens.encode([words])[0]
    almost = words.encode()[: int(ids.ends[58])].decode()  # with the start token 60 of 64
    requests = [PROMPTS[0], CodePrompt(words * 3), CodePrompt(almost)]
    found = dict(hf_model.generate(requests, GREEDY, num_samples=1))
    assert "context 64" in found[1][0].failed
    assert found[0][0].text == written(hf_model, [PROMPTS[0]], GREEDY)[0][0]
    assert 0 < len(hf_tokens.encode([found[2][0].text])[0].ids) <= 6
    assert not found[2][0].failed
    cut = hf_model.fit(requests[1], GREEDY.max_new_tokens)
    assert requests[1].prefix.endswith(cut.prefix)
    ((_, (sample,)),) = hf_model.generate([cut], GREEDY)
    assert not sample.failed
    assert len(hf_tokens.encode([sample.text])[0].ids) > 6
    assert hf_model.fit(requests[0], GREEDY.max_new_tokens) == requests[0]


@pytest.mark.parametrize("names", [SENTINELS[0], SENTINELS[-1]], ids=lambda names: names[0])
def test_holes_are_asked_for_with_the_tokenizers_sentinels(tmp_path: Path, names: tuple[str, ...]) -> None:
    tokenizer = byte_level(["<|endoftext|>", *names])
    tokens = HfTokens(write_tokenizer(tmp_path, tokenizer, eos_token="<|endoftext|>"))
    model = HfModel(llama(tokenizer.get_vocab_size()).eval(), tokens, name="x", identity={})
    assert model.supports_fim
    begin, suffix, middle = (tokens.ids[name] for name in names)
    ids = [tokens.ids["<|endoftext|>"], begin, *tokens.encode(["int f("])[0].ids, suffix]
    ids += [*tokens.encode([f"{names[0]} }}"])[0].ids, middle]
    prompt = torch.tensor([ids])
    out = model._model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False, pad_token_id=0
    )
    new = out[0, len(ids) :].tolist()
    ended = next((place for place, id_ in enumerate(new) if id_ in tokens.end_ids), len(new))
    expected = tokens.bytes_of(new[:ended]).decode("utf-8", "replace")
    assert written(model, [CodePrompt("int f(", f"{names[0]} }}")], GREEDY) == [[expected]]


# ---- what is refused --------------------------------------------------------------------------------------


class Evil:
    """Pickled, it makes a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_pickled_weights_are_never_loaded(hf_dir: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = copy(hf_dir, tmp_path / "evil")
    (evil / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(mark)))
    HfModel.load(evil, device_type="cpu")  # beside safetensors it is passed over
    (evil / "model.safetensors").unlink()
    with pytest.raises(UserError, match="never loaded"):
        HfModel.load(evil, device_type="cpu")
    (evil / "other.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="cannot be loaded"):
        HfModel.load(evil, device_type="cpu")
    assert not mark.exists()


def copy(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_code_of_the_directory_never_runs(hf_dir: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    evil = copy(hf_dir, tmp_path / "evil")
    (evil / "modeling_evil.py").write_text(f"import pathlib\npathlib.Path({str(mark)!r}).touch()\n")
    config = json.loads((evil / "config.json").read_text())
    auto = {"AutoConfig": "modeling_evil.C", "AutoModelForCausalLM": "modeling_evil.M"}
    config |= {"model_type": "evil", "architectures": ["M"], "auto_map": auto}
    (evil / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"code of its own.*--url") as caught:
        HfModel.load(evil, device_type="cpu")
    assert "trust_remote_code" not in str(caught.value)  # no such option here
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", None, "no config.json"),
        ("config.json", b'{"model_type": "t5"}', "cannot be loaded"),
        ("tokenizer.json", None, "tokenizer.json"),
        ("tokenizer.json", b'{"model": 3}', "is no tokenizer"),
        ("tokenizer.json", b"[" * 100_000, "cannot read"),
        ("model.safetensors", b"\x00" * 100, "cannot be loaded"),
        ("adapter_config.json", b"{}", "adapter"),
    ],
)
def test_damaged_directories(
    hf_dir: Path, tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    damaged = copy(hf_dir, tmp_path / "damaged")
    if content is None:
        (damaged / name).unlink()
    else:
        (damaged / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        HfModel.load(damaged, device_type="cpu")


def test_missing_weights_are_named(tmp_path: Path) -> None:
    """transformers would fill them with random numbers."""
    broken = write_hf_dir(tmp_path / "broken")
    state = llama(400).state_dict()
    del state["model.layers.1.mlp.up_proj.weight"]
    llama(400).save_pretrained(broken, state_dict=state)
    with pytest.raises(UserError, match=r"missing.*layers\.1\.mlp\.up_proj"):
        HfModel.load(broken, device_type="cpu")


def test_a_model_without_a_start_is_refused(tmp_path: Path) -> None:
    tokens = HfTokens(write_tokenizer(tmp_path, byte_level()))
    with pytest.raises(UserError, match="no token that begins or ends a text"):
        HfModel(llama(400), tokens, name="x", identity={})


def test_a_missing_library_is_named(hf_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"pip install 'cpplm\[hf\]'"):
        HfModel.load(hf_dir)
