import io

import pytest

from cpplm.cli.generate import GenerateSettings, _from_stdin, _print_as_written
from cpplm.core.errors import UserError
from cpplm.generate.engine import Engine
from cpplm.generate.load import ModelSource
from cpplm.generate.sampling import SamplingSettings
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.tokenizer.tokenizer import Tokenizer

MODEL = ModelSource(run="runs/any")


@pytest.fixture(scope="module")
def engine(tokenizer: Tokenizer) -> Engine:
    config = ModelConfig.from_depth(
        1, vocab_size=tokenizer.vocab_size, max_seq_len=32, aspect_ratio=16, head_dim=16
    )
    model = Transformer(config)
    model.init_weights(0)
    return Engine(model, tokenizer)


def test_what_is_printed_is_the_prompt_and_the_completion(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    sampling = SamplingSettings(max_new_tokens=12, seed=1)
    completion = _print_as_written(engine, "int é = ", sampling)
    assert capsys.readouterr().out == f"int é = {completion}\n"
    assert completion == engine.complete("int é = ", sampling)[0].text


def test_a_prompt_that_is_refused_is_not_printed(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="context 32"):
        _print_as_written(engine, "int x; " * 40, SamplingSettings())
    assert capsys.readouterr().out == ""


def test_the_prompt_may_be_piped_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("int main() {\n"))
    assert _from_stdin() == "int main() {\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(UserError, match="empty"):
        _from_stdin()


def test_a_terminal_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    with pytest.raises(UserError, match="--prompt TEXT or --examples"):
        _from_stdin()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"examples": True, "prompt": "x"}, "--examples and --prompt"),
        ({"examples": True, "num_samples": 2}, "--num_samples"),
        ({"save": True}, "Add --examples"),
        ({"prompt": "x", "num_samples": 0}, "--num_samples 0"),
    ],
)
def test_contradictions_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        GenerateSettings(model=MODEL, **values)  # type: ignore[arg-type]
