"""`cpplm evaluate [bpb|cpp]`."""

from __future__ import annotations

from typing import Any

from cpplm.cli.report import Report
from cpplm.evaluate.run import BpbCommand, CppCommand, EvaluateCommand, Evaluation


def bpb(settings: BpbCommand) -> Report:
    """Bits per byte."""
    evaluation = Evaluation(settings.model)
    result = evaluation.bits_per_byte(settings.bpb)
    return Report(_bpb_line(evaluation.step, result), {"step": evaluation.step, "bpb": result})


def cpp(settings: CppCommand) -> Report:
    """C++ problems."""
    evaluation = Evaluation(settings.model)
    result = evaluation.cpp(settings.cpp)
    return Report(result["table"], {"step": evaluation.step, "cpp": _figures(result)})


def everything(settings: EvaluateCommand) -> Report:
    """Both."""
    evaluation = Evaluation(settings.model)
    bits = evaluation.bits_per_byte(settings.bpb)
    problems = evaluation.cpp(settings.cpp)
    text = f"{_bpb_line(evaluation.step, bits)}\n{problems['table']}"
    return Report(text, {"step": evaluation.step, "bpb": bits, "cpp": _figures(problems)})


def _bpb_line(step: int, result: dict[str, Any]) -> str:
    return (
        f"step {step}: {result['bits_per_byte']:.4f} bits per byte "
        f"(loss {result['loss']:.4f} nats per token, {result['tokens']:,} tokens, {result['bytes']:,} bytes)"
    )


def _figures(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in ("table", "details")}
