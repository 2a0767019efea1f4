"""A checkpoint of ours under evaluation: what it writes and how it scores, against the plain model."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from cpplm.dataloader.fim import render_fim_prompt
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.models.code_model import CodePrompt
from cpplm.generate.engine import Engine
from cpplm.generate.settings import ModelSource, SamplingSettings
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.special_tokens import BOS, EOS
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.generate.talker import write_run
from tests.texts import cpp_document

SAMPLING = SamplingSettings(max_new_tokens=12, temperature=0.9, top_k=0)
CONTEXT = 64


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    return Engine(random_model(tokenizer), tokenizer)


def random_model(tokenizer: Tokenizer) -> Transformer:
    """Tiny, with weights everywhere, so that every token before one matters."""
    config = ModelConfig.nanochat(
        2, vocab_size=tokenizer.vocab_size, aspect_ratio=16, head_dim=16, max_seq_len=CONTEXT
    )
    model = Transformer(config)
    model.init_weights()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model


def written(model: CheckpointModel, requests: Sequence[CodePrompt], **more: object) -> list[list[str]]:
    found = dict(model.generate(requests, SAMPLING, **more))  # type: ignore[arg-type]
    assert sorted(found) == list(range(len(requests)))
    return [[sample.text for sample in found[number]] for number in range(len(requests))]


# ---- scoring ----------------------------------------------------------------------------------------------


def test_bits_are_those_of_the_logits(engine: Engine) -> None:
    text = "int main() { return 'é' + 漢; }\n"
    (found,) = CheckpointModel(engine).score([text])
    ids = engine.tokenizer.encode(text)
    logits = engine.model(torch.tensor([[BOS, *ids[:-1]]]))[0].double().log_softmax(-1)
    expected = -logits[torch.arange(len(ids)), ids] / math.log(2)
    assert found.bits.tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    assert found.context.tolist() == list(range(1, len(ids) + 1))
    assert [text.encode()[a:b] for a, b in zip([0, *found.ends], found.ends, strict=False)] == [
        engine.tokenizer.decode_bytes([id_]) for id_ in ids
    ]


def test_less_context_changes_only_tokens_that_had_more(engine: Engine) -> None:
    text = cpp_document(4)
    model = CheckpointModel(engine)
    (long,), (short,) = model.score([text]), model.score([text], context=16)
    assert short.context.max() == 16 < long.context.max() == CONTEXT
    assert short.bits[:16] == pytest.approx(long.bits[:16], rel=1e-4)
    assert not np.allclose(short.bits[16:], long.bits[16:], rtol=1e-3)


# ---- writing ----------------------------------------------------------------------------------------------


def test_samples_are_the_engines(engine: Engine) -> None:
    prompts = ["int f(", "#include <vec", cpp_document(0)[:40]]
    found = written(CheckpointModel(engine), [CodePrompt(prompt) for prompt in prompts], num_samples=3)
    for prompt, samples in zip(prompts, found, strict=True):
        assert samples == [completion.text for completion in engine.complete(prompt, SAMPLING, 3)]
    assert len({sample for samples in found for sample in samples}) > 5


def test_stop_ends_each_sample_by_itself(engine: Engine) -> None:
    asked = []

    def stop(text: str) -> bool:
        asked.append(text)
        return len(text) >= 5

    (full,) = written(CheckpointModel(engine), [CodePrompt("int f(")], num_samples=4)
    (cut,) = written(CheckpointModel(engine), [CodePrompt("int f(")], num_samples=4, stop=stop)
    assert all(whole.startswith(part) for whole, part in zip(full, cut, strict=True))
    assert all(len(part) >= 5 or part == whole for whole, part in zip(full, cut, strict=True))
    assert sum(map(len, cut)) < sum(map(len, full))
    assert len(asked) == len([text for text in asked if len(text) < 5]) + sum(len(part) >= 5 for part in cut)


def test_a_prompt_that_is_too_long_fails_alone(engine: Engine) -> None:
    model = CheckpointModel(engine)
    requests = [CodePrompt("int f("), CodePrompt("int x;\n" * 100), CodePrompt("int g(")]
    found = dict(model.generate(requests, SAMPLING, num_samples=2))
    assert [bool(sample.failed) for sample in found[1]] == [True, True]
    assert "context 64" in found[1][0].failed
    assert [sample.text for sample in found[1]] == ["", ""]
    assert written(model, [requests[0], requests[2]]) == [[found[0][0].text], [found[2][0].text]]


@pytest.mark.parametrize("supports_fim", [False, True])
@pytest.mark.parametrize("length", [0, 8, 100])
@pytest.mark.parametrize("new_tokens", [1, 500])
def test_a_prompt_is_cut_at_its_far_ends(
    engine: Engine, supports_fim: bool, length: int, new_tokens: int
) -> None:
    """As little as it takes to leave room for writing; what is not seen takes no room and stays."""
    model, line = CheckpointModel(engine, supports_fim=supports_fim), "int é = 1;\n"
    request = CodePrompt(line * length + "int f(", line * length)
    cut = model.fit(request, new_tokens)
    assert request.prefix.endswith(cut.prefix)
    assert cut.suffix is not None
    assert (request.suffix or "").startswith(cut.suffix)
    if not supports_fim:
        assert cut.suffix == request.suffix
    if length == 100:
        assert cut.prefix.startswith("int")  # with a line
        assert len(cut.prefix) > len("int f(")
    if length == 0:
        assert cut == request
    assert model.fit(cut, new_tokens) == cut
    ((_, (sample,)),) = model.generate([cut], SamplingSettings(new_tokens, temperature=0))
    assert not sample.failed


def test_a_model_that_was_not_trained_on_holes_gets_the_prefix_alone(engine: Engine) -> None:
    plain = CheckpointModel(engine)
    assert written(plain, [CodePrompt("int f(", "}")]) == written(plain, [CodePrompt("int f(")])
    filling = CheckpointModel(engine, supports_fim=True)
    (found,) = written(filling, [CodePrompt("int f(", "<EOS>}")])
    ids = render_fim_prompt(engine.tokenizer, "int f(", "<EOS>}")
    assert EOS not in ids  # a special token that a text spells is text
    (answer,) = engine.complete_many([engine.request("int f(", "<EOS>}", settings=SAMPLING)])
    assert found == [answer.completions[0].text]
    assert found != written(plain, [CodePrompt("int f(", "<EOS>}")])[0]
    filling.fim_order = "psm"
    (answer,) = engine.complete_many([engine.request("int f(", "<EOS>}", settings=SAMPLING, spm=False)])
    assert written(filling, [CodePrompt("int f(", "<EOS>}")]) == [[answer.completions[0].text]] != [found]


def test_syntax_is_watched(engine: Engine) -> None:
    model, prompt = CheckpointModel(engine, supports_fim=True), CodePrompt("int f() { return 2 *", "; }\n")
    model.valid = "cpp"
    request = engine.request(prompt.prefix, prompt.suffix, settings=SAMPLING, valid=True)
    (answer,) = engine.complete_many([request])
    assert written(model, [prompt]) == [[answer.completions[0].text]]
    model.valid = ""
    assert written(model, [prompt]) != [[answer.completions[0].text]]


# ---- loading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fim", "supports_fim"),
    [
        ({"fim_rate": 0.5, "structured_fim_rate": 0.0}, True),
        ({"fim_rate": 0.0, "structured_fim_rate": 0.1}, True),
        (None, False),
    ],
)
def test_the_settings_of_a_run_say_whether_it_fills_in(
    engine: Engine, tmp_path: Path, fim: dict[str, float] | None, supports_fim: bool
) -> None:
    run = write_run(tmp_path, engine, {"fim": fim} if fim else None)
    model = CheckpointModel.load(ModelSource(str(run), precision="fp32"))
    assert model.supports_fim is supports_fim
    assert (model.step, model.max_context) == (1, CONTEXT)
    assert json.loads(json.dumps(model.identity)) == model.identity


def test_identity_says_what_decides_the_answers(engine: Engine, tmp_path: Path) -> None:
    def identity(name: str, engine: Engine, precision: str = "fp32") -> dict[str, object]:
        source = ModelSource(str(write_run(tmp_path / name, engine)), precision=precision)  # type: ignore[arg-type]
        return CheckpointModel.load(source).identity

    first = identity("a", engine)
    assert identity("b", engine) == first
    assert identity("a", engine, "bf16") != first
    other = random_model(engine.tokenizer)
    with torch.no_grad():
        other.lm_head.weight[0, 0] += 1
    assert identity("c", Engine(other, engine.tokenizer)) != first
