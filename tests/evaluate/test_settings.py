"""Settings of `cpplm evaluate` that contradict each other, or are out of range."""

from pathlib import Path
from typing import Any

import pytest

from cpplm.core.errors import UserError
from cpplm.evaluate.settings import (
    BpbSettings,
    CppEvalSettings,
    EvaluatedModel,
    FimEvalSettings,
    SelfTestSettings,
)

URL = "http://x/v1"


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        (EvaluatedModel, {"run": "a", "url": URL}, "--run and --url exclude each other"),
        (EvaluatedModel, {"hf_dir": Path("b"), "step": 3}, "--step only means something with --run"),
        (EvaluatedModel, {"hf_dir": Path("b"), "supports_fim": True}, "only means something with --url"),
        (EvaluatedModel, {"url": URL, "precision": "fp32"}, "--precision is the server's affair"),
        (EvaluatedModel, {"run": "a", "step": -2}, "--step -2"),
        (EvaluatedModel, {"run": "a", "eval_batch_size": 0}, "--eval_batch_size 0"),
        (EvaluatedModel, {"url": URL, "timeout": float("inf")}, "--timeout inf"),
        (BpbSettings, {"data_dir": "x", "context": -2}, "--context -2"),
        (BpbSettings, {"data_dir": "x", "context_bytes": -1}, "--context_bytes -1"),
        (CppEvalSettings, {"num_samples": 0}, "num_samples"),
        (CppEvalSettings, {"max_new_tokens": 0}, "max_new_tokens"),
        (CppEvalSettings, {"workers": -1}, "workers"),
        (CppEvalSettings, {"num_samples": 2}, "equal samples"),
        (CppEvalSettings, {"top_k": 5}, "no effect"),
        (FimEvalSettings, {"holes_per_problem": 0}, "holes_per_problem"),
        (FimEvalSettings, {"suffix_chars": -1}, "suffix_chars"),
        (FimEvalSettings, {"num_samples": 2}, "equal samples"),
        (FimEvalSettings, {"problems": ""}, "no holes"),
        (FimEvalSettings, {"compile_files": True}, "without --files"),
        (SelfTestSettings, {"problems": ()}, "no problems"),
        (SelfTestSettings, {"workers": -1}, "workers"),
    ],
)
def test_bad_settings(settings: type, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings(**given)
