"""C++ problems on one checkpoint in a process of its own, which ends when the process that started it does.

    python -m cpplm.evaluate.eval_worker

takes one line of JSON on stdin (`CppEvalRequest`) and prints one JSON object on stdout: the figures, or
`failed` with the reason. Stdin stays open as long as the answer is wanted: when it closes, however the other
side ended, the process is gone at once. `evaluate/callback.py` is the other side.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

from cpplm.core.errors import UserError
from cpplm.core.settings import from_dict
from cpplm.core.workers import on_stdin_closed
from cpplm.evaluate.completion_cache import CompletionCache
from cpplm.evaluate.functional_correctness import evaluate_problems
from cpplm.evaluate.models.checkpoint_model import CheckpointModel
from cpplm.evaluate.settings import CppEvalSettings
from cpplm.generate.load import load_engine
from cpplm.generate.settings import ModelSource
from cpplm.sandbox.compiler import require_compiler
from cpplm.sandbox.sandbox import Sandbox

# Enough to let training go first. At 19, compilers on a busy machine would run into the sandbox's limits of
# wall-clock time, and the figures would be wrong.
NICENESS = 5


@dataclass(frozen=True)
class CppEvalRequest:
    """A checkpoint and the problems."""

    source: ModelSource
    cpp: CppEvalSettings


def measure(request: CppEvalRequest) -> dict[str, Any]:
    """The figures of one checkpoint.

    Raises:
        UserError: no sandbox or no compiler (found before the model is loaded), or no such checkpoint.
    """
    begin = time.perf_counter()
    sandbox = Sandbox.probe(unsafe=request.cpp.unsafe)
    require_compiler(sandbox)
    torch.set_num_threads(1)  # and one compiler at a time: the training goes on beside it
    engine, _ = load_engine(request.source)
    settings = dataclasses.replace(request.cpp, workers=1)
    report = evaluate_problems(CompletionCache(CheckpointModel(engine)), settings, sandbox=sandbox)
    return {**report.figures(), "seconds": round(time.perf_counter() - begin, 2)}


def main() -> None:
    """Answer one request."""
    request = from_dict(CppEvalRequest, json.loads(sys.stdin.readline()), where="request")
    on_stdin_closed(lambda: os._exit(1))
    os.nice(NICENESS)
    try:
        answer = measure(request)
    except UserError as error:
        answer = {"failed": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
