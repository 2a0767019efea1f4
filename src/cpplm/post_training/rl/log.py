"""The answers of each step: into the log, into a file, and a watch on their entropy."""

from __future__ import annotations

from collections.abc import Iterable

from cpplm.core.errors import UserError
from cpplm.core.jsonl import JsonlFile, read_jsonl
from cpplm.core.progress import log_info
from cpplm.core.run_log import LOG, read_run_log
from cpplm.post_training.rl.batches import RolloutBatches
from cpplm.post_training.rl.policy import PolicyTrainModule, decoding_engine
from cpplm.post_training.rl.rollouts import RolloutEngine
from cpplm.post_training.rl.url_engine import UrlEngine
from cpplm.train.distributed import DistContext
from cpplm.train.report.html_rollouts import ROLLOUTS
from cpplm.train.torch_backend import torch_model
from cpplm.train.trainer import Callback, StepMetrics, Trainer

_FIRST_STEPS = 5  # whose entropy later steps are compared with
_WARNING = 4.0  # times `min_entropy`


class EntropyWatch:
    """Compares the entropy of answers with that of the first steps; the same answer always is no policy."""

    def __init__(self, min_share: float, earlier: Iterable[float] = ()) -> None:
        """`earlier`: of the steps before, when a run goes on; `min_share` ends it."""
        self._min_share, self._values, self._warned = min_share, list(earlier), False

    def add(self, entropy: float) -> None:
        """Take the entropy of a step; UserError if the answers are nearly always the same."""
        self._values.append(entropy)
        first, last = self._values[:_FIRST_STEPS], self._values[-_FIRST_STEPS:]
        if len(self._values) < 2 * _FIRST_STEPS or not sum(first):
            return
        share = sum(last) / sum(first)
        if share < self._min_share:
            raise UserError(
                f"the answers are nearly always the same: their entropy is {share:.0%} of the first steps'",
                fix="Lower --adamw_lr/--lr_scale, add --kl or --anchor_weight, or --min_entropy 0 to go on.",
            )
        if share < _WARNING * self._min_share and not self._warned:
            self._warned = True
            log_info(f"warning: the entropy of the answers has fallen to {share:.0%} of the first steps'")


class RolloutLog(Callback):
    """Binds the batches to the model, and logs what the answers of each step were like."""

    def __init__(
        self, rollouts: RolloutBatches, min_entropy: float, dist: DistContext,
        servers: UrlEngine | None = None,
    ) -> None:  # fmt: skip
        self._rollouts, self._min_entropy, self._dist, self._servers = rollouts, min_entropy, dist, servers
        self._watch = EntropyWatch(min_entropy)
        self._file: JsonlFile | None = None

    def on_start(self, trainer: Trainer) -> None:
        """Begin behind the last checkpoint."""
        self._rollouts.make_engine = lambda: self._engine(trainer)
        path = trainer.settings.out / (
            ROLLOUTS if self._dist.is_first else f"rollouts_{self._dist.rank}.jsonl"
        )
        records = [each for each in read_jsonl(path, damaged="skip") if each["step"] <= trainer.state.step]
        self._file = JsonlFile(path, records)
        log = trainer.settings.out / LOG  # up to the checkpoint that the run goes on from
        earlier = self._dist.run_on_first(
            lambda: [each["entropy"] for each in read_run_log(log) if each["event"] == "rollouts"]
        )
        self._watch = EntropyWatch(self._min_entropy, earlier)

    def _engine(self, trainer: Trainer) -> RolloutEngine:
        """With the present weights."""
        model = torch_model(trainer.train_module)
        if self._servers is not None:
            return self._servers.refresh(model, trainer.state.step, self._dist)
        return decoding_engine(model, trainer.tokenizer)

    def on_step(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Log a step; UserError if the answers are nearly always the same."""
        module = trainer.train_module
        assert isinstance(module, PolicyTrainModule)  # noqa: S101  (for mypy)
        assert self._file is not None  # noqa: S101  (the run has begun)
        for record in self._rollouts.records():
            self._file.append({"step": trainer.state.step, **record})
        figures = self._rollouts.figures
        entropies = self._dist.gather_objects(figures["entropy"])  # all ranks must come to the same end
        figures["entropy"] = sum(entropies) / len(entropies)
        trainer.log.write(
            "rollouts", step=trainer.state.step, **figures, **vars(module.figures),
            learn_seconds=metrics.seconds - metrics.data_seconds, examples=self._rollouts.examples(),
        )  # fmt: skip
        self._watch.add(figures["entropy"])

    def on_end(self, trainer: Trainer) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
