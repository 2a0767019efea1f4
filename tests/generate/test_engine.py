"""The cached engine against the plain loop; sampling and its seeds."""

import pytest
import torch

from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.sampling import SamplingSettings, generators, sample
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.healing import heal
from cpplm.tokenizer.special import BOS, EOS
from cpplm.tokenizer.tokenizer import Tokenizer
from tests.model.test_transformer import random_model


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    config = ModelConfig(
        vocab_size=tokenizer.vocab_size, num_layers=3, model_dim=32, num_heads=4, num_kv_heads=2, head_dim=8,
        max_seq_len=48, window_pattern="SL",
    )  # fmt: skip
    return Engine(random_model(config), tokenizer)


def naive(model: Transformer, ids: list[int], count: int) -> list[int]:
    """Greedy decoding, without healing, that reads everything anew for each token."""
    ids = ids.copy()
    start = len(ids)
    for _ in range(count):
        token = int(model(torch.tensor([ids]))[0, -1].argmax())
        if token in (BOS, EOS):
            break
        ids.append(token)
    return ids[start:]


@pytest.mark.parametrize(
    "prompt", ["int", "namespace part_3 {\n\n", "#include <vector>\nint shift(int value"]
)
def test_greedy_equals_the_naive_loop(engine: Engine, prompt: str) -> None:
    settings = SamplingSettings(max_new_tokens=20, temperature=0)
    ids = engine.tokenizer.encode(prompt, prepend=BOS)
    steps = list(engine.stream(ids, settings, num_samples=3))
    expected = naive(engine.model, ids, 20)
    assert [[step[row] for step in steps if step[row] is not None] for row in range(3)] == [expected] * 3


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_a_prompt_may_end_anywhere(engine: Engine, cut: int) -> None:
    """What is written goes on with the prompt, byte for byte, and the tokens together spell both."""
    prompt = "#include <vector>\n\nnamespace part_3 {\n\nint shift_3_1(int value) {"[:cut]
    healed = heal(engine.tokenizer, prompt)
    for settings in (SamplingSettings(8, 0), SamplingSettings(8, 1.0, 5, seed=cut)):
        for completion in engine.complete(prompt, settings, num_samples=2):
            written = engine.tokenizer.decode([*healed.ids, *completion.ids])
            assert written == prompt + completion.text or len(written) < len(prompt)
            spelling = len(completion.ids) - 8
            assert (completion.reason == "length") == (
                len(engine.tokenizer.decode_bytes(completion.ids[:spelling])) >= len(healed.taken)
            )


def test_healing_takes_the_likeliest_token_that_spells_the_end(engine: Engine) -> None:
    """Token by token the same as the plain loop whose logits know only what begins with the rest."""
    prompt = "int shift_3_1(int value) {\n"
    healed = heal(engine.tokenizer, prompt)
    completion = engine.complete(prompt, SamplingSettings(6, 0))[0]
    ids, rest = [BOS, *healed.ids], healed.taken
    for token in completion.ids:
        logits = engine.model(torch.tensor([ids]))[0, -1]
        if rest:
            for id_, spelt in enumerate(engine.tokenizer.tokens, 64):
                if not (spelt.startswith(rest) or rest.startswith(spelt)):
                    logits[id_] = float("-inf")
            logits[:64] = float("-inf")
        assert token == int(logits.argmax())
        ids.append(token)
        rest = rest[len(engine.tokenizer.decode_bytes([token])) :]
    assert rest == b""


def test_a_sample_does_not_depend_on_its_neighbours(engine: Engine) -> None:
    settings = SamplingSettings(max_new_tokens=12, temperature=1.0, top_k=0, seed=4)
    four, two = (engine.complete("int", settings, num_samples=n) for n in (4, 2))
    assert four[:2] == two
    assert len({c.ids for c in four}) > 1
    other = SamplingSettings(max_new_tokens=12, temperature=1.0, top_k=0, seed=5)
    assert engine.complete("int", other, num_samples=4) != four


def test_stops_at_the_context_length(engine: Engine) -> None:
    prompt_ids = [BOS] + [100] * 40
    steps = list(engine.stream(prompt_ids, SamplingSettings(max_new_tokens=100, temperature=0)))
    assert len(prompt_ids) + len(steps) <= 48 + 1
    with pytest.raises(UserError, match="49 tokens, the model's context 48"):
        next(engine.stream([BOS] * 49, SamplingSettings()))
    with pytest.raises(UserError, match="0 tokens"):
        next(engine.stream([], SamplingSettings()))


def test_ends_at_a_document_end(engine: Engine) -> None:
    with torch.no_grad():
        old = engine.model.lm_head.weight[EOS].clone()
        engine.model.lm_head.weight[EOS] = 1e3 * engine.model.hidden_states(torch.tensor([[BOS, 110]]))[0, -1]
    completion = engine.complete("", SamplingSettings(temperature=0, max_new_tokens=30))
    first = next(engine.stream([BOS, 110], SamplingSettings(temperature=0)))
    with torch.no_grad():
        engine.model.lm_head.weight[EOS] = old
    assert first == [None]
    assert EOS not in completion[0].ids


def test_sampling_follows_the_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    draws, settings = 4000, SamplingSettings(temperature=0.7, top_k=3)
    streams = generators(settings, draws)
    counts = torch.bincount(torch.tensor(sample(logits.expand(draws, -1), settings, streams)), minlength=4)
    expected = draws * torch.cat([(logits[0, :3] / 0.7).softmax(-1), torch.zeros(1)])
    assert counts[3] == 0
    chi_square = ((counts[:3] - expected[:3]) ** 2 / expected[:3]).sum()
    assert chi_square < 13.8  # 2 degrees of freedom, p = 0.001


@pytest.mark.parametrize("change", [{"temperature": -1}, {"top_k": -2}, {"max_new_tokens": 0}])
def test_bad_settings(change: dict) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        SamplingSettings(**change)
