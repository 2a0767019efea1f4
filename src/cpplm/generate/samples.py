"""Completions of a few fixed prompts: during training into the log, afterwards onto the run page."""

from __future__ import annotations

from typing import Any

from cpplm.core.progress import log_info
from cpplm.generate.engine import Engine
from cpplm.generate.settings import SamplingSettings
from cpplm.tokenizer.special_tokens import BOS
from cpplm.train.torch_backend import torch_model
from cpplm.train.trainer import Callback, StepMetrics, Trainer

EXAMPLE_PROMPTS = (
    "#include <vector>\n#include <algorithm>\n\nint main() {\n  std::vector<int> values;\n ",
    "template<typename T>\n  class stack\n  {\n  public:\n",
    "// Returns the largest element of the range.\ntemplate<typename _Iterator>\n  _Iterator\n  largest(",
)


def example_completions(engine: Engine, settings: SamplingSettings) -> list[dict[str, Any]]:
    """One completion per example prompt that fits into the model's context, as plain JSON."""
    results = []
    room = engine.model.config.max_seq_len - 1
    for prompt in EXAMPLE_PROMPTS:
        if len(engine.tokenizer.encode(prompt, prepend=BOS)) > room:
            continue
        completion = engine.complete(prompt, settings)[0]
        results.append(
            {"prompt": prompt, "completion": completion.text, "finish_reason": completion.finish_reason}
        )
    return results


class SampleCallback(Callback):
    """Writes sample completions into the run log every so many steps."""

    def __init__(self, every: int, settings: SamplingSettings) -> None:
        self._every = every
        self._settings = settings

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Sample when the interval has passed."""
        if trainer.state.step % self._every:
            return
        samples = example_completions(
            Engine(torch_model(trainer.train_module), trainer.tokenizer), self._settings
        )
        trainer.log.write("samples", step=trainer.state.step, samples=samples)
        for sample in samples[:1]:
            log_info(f"step {trainer.state.step}: {sample['prompt']}{sample['completion']}")
