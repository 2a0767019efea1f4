"""Settings of `cpplm rl`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from cpplm.core.errors import UserError
from cpplm.core.settings import Argument, group
from cpplm.core.storage import require_path, split_step
from cpplm.generate.settings import require_at_least
from cpplm.tasks.settings import KindName
from cpplm.train.session_settings import SessionSettings

ObjectiveName = Literal["reinforce", "ppo", "gspo"]
AdvantageName = Literal["rloo", "grpo"]
NormalizerName = Literal["tokens", "constant"]


@dataclass(frozen=True)
class ObjectiveSettings:
    """The objective of reinforcement learning."""

    objective: ObjectiveName = "reinforce"
    """reinforce: log-probabilities times advantages, importance weights truncated (arXiv 2510.13786);
    ppo: the clipped ratio (1707.06347), clip_high as in DAPO (2503.14476); gspo: one ratio for each answer
    (2507.18071)."""
    advantage: AdvantageName = "rloo"
    """rloo: reward less the mean of the group's others (2402.14740); grpo: the deviation from the mean in
    standard deviations (2402.03300)."""
    normalizer: NormalizerName = "tokens"
    """Divide the sum over tokens by the step's number of them, or by a constant (Dr. GRPO, 2503.20783)."""
    max_importance_weight: float = 2.0
    """Upper limit of the importance weight: a token's probability now / when it was sampled."""
    clip_low: float = -1.0
    """A ratio may fall by this much (-1 = 0.2; gspo 0.0003)."""
    clip_high: float = -1.0
    """A ratio may rise by this much (-1 = 0.28; gspo 0.0004)."""
    kl: float = 0.0
    """Weight of the divergence from the model of --init_from, of which a copy stays in memory."""
    anchor_weight: float = 0.0
    """Weight of the cross-entropy of gold answers, of which each step has a batch."""
    updates_per_rollout: int = 1
    """Optimizer steps on each batch of rollouts."""

    def __post_init__(self) -> None:
        require_at_least(self, updates_per_rollout=1, kl=0, anchor_weight=0, max_importance_weight=0)
        for name in ("clip_low", "clip_high"):
            if getattr(self, name) < 0 and getattr(self, name) != -1:
                raise UserError(f"--{name} {getattr(self, name)}", fix="Use a positive number, or -1.")

    @property
    def clip(self) -> tuple[float, float]:
        """The least and the highest ratio that has a gradient."""
        low, high = (3e-4, 4e-4) if self.objective == "gspo" else (0.2, 0.28)
        low = low if self.clip_low < 0 else self.clip_low
        high = high if self.clip_high < 0 else self.clip_high
        return 1 - low, 1 + high


@dataclass(frozen=True)
class EngineSettings:
    """Servers that write the answers."""

    rollout_urls: tuple[str, ...] = ()
    """Servers with OpenAI's completions that return token ids, such as http://host:8000/v1; they load weights
    from OUT/weights, which all of them must see (empty = answers are written here)."""
    rollout_key_env: str = ""
    """Environment variable with their key."""
    rollout_timeout: float = 600.0
    """Seconds without an answer after which another server is asked."""
    sync_every: int = 1
    """Hand over new weights every so many steps."""
    max_staleness: int = 4
    """A server whose weights are older by more steps is not asked."""

    def __post_init__(self) -> None:
        if not 0 < self.rollout_timeout < float("inf"):
            raise UserError(
                f"--rollout_timeout {self.rollout_timeout}", fix="Use a positive number of seconds."
            )
        if self.sync_every < 1 or self.max_staleness < self.sync_every - 1:
            raise UserError(
                f"--sync_every {self.sync_every} --max_staleness {self.max_staleness}",
                fix="Use 1 or more, and a staleness that is not reached between two hand-overs.",
            )


@dataclass(frozen=True)
class RlSettings(SessionSettings):
    """Reinforcement learning on tasks. What is not here is as the run of --init_from had it."""

    tasks: Annotated[Path, Argument("TASKS", positional=True)]
    """Folder of `cpplm tasks build`: its training tasks are asked."""
    init_from: Annotated[str, Argument("RUN")]
    """Model to start from: RUN or RUN:STEP, a folder or bucket URL."""
    out: Annotated[Path, Argument("FOLDER")]
    """Folder of the run: log, checkpoints, answers. Holding a checkpoint, it is continued."""
    kinds: tuple[KindName, ...] = ()
    """Only these kinds of tasks (empty = all in the folder)."""
    method: Literal["rl", "rft"] = "rl"
    """rl: by the rewards of all answers; rft: sample with the model as it is, then train on what was right
    (rejection sampling fine-tuning, arXiv 2308.01825)."""
    rollouts_only: bool = False
    """Only sample answers with the model as it is, into OUT/rollouts.jsonl."""
    train_from: tuple[Path, ...] = ()
    """Only train on the right answers in these files of --rollouts_only."""

    num_prompts: int = 16
    """Tasks per optimizer step; tasks whose answers all have the same reward do not count."""
    num_samples: int = 8
    """Answers to each task."""
    max_new_tokens: int = -1
    """Tokens of an answer (-1 = what its kind allows); a longer one is worth nothing."""
    decode_batch_size: int = 64
    """Answers that are written at the same time."""
    num_iterations: int = -1
    """Train for this many steps (-1 = 100, or by the clock)."""
    max_minutes: float = -1.0
    """Train for this long instead."""
    max_answers_per_task: int = 4
    """Of rft: right answers to one task that are learned, all different."""

    objective: Annotated[ObjectiveSettings, group("objective")] = field(default_factory=ObjectiveSettings)
    """What is minimized."""
    engines: Annotated[EngineSettings, group("engines on other machines")] = field(
        default_factory=EngineSettings
    )
    """Servers that write the answers."""
    shuffle_rewards: bool = False
    """Control: answers get each other's rewards, so nothing can be learned."""
    min_entropy: float = 0.1
    """End the run when the answers' entropy is below this share of the first steps' (warned at 4 times)."""

    max_seq_len: int = -1
    """Tokens of a row; longer tasks are left out (-1 = the model's context)."""
    device_batch_size: int = 8
    """Rows per forward pass."""
    adamw_lr: float = 3e-4
    """Learning rate of AdamW, for all weights."""
    lr_scale: float = -1.0
    """Learn as the run of --init_from did instead, at this multiple of its rates (-1 = not; rft 0.2)."""
    warmdown_ratio: float = 1.0
    """Share of the run, at its end, in which the learning rate falls to zero."""
    eval_every: int = -1
    """Measure the loss of gold answers held out every so many steps, and at start and end (-1 = never)."""

    headers: tuple[Path, ...] = ()
    """Folders of third-party headers (empty = those that the tasks were built with)."""
    workers: int = 0
    """Compilers and programs at the same time (0 = one per core)."""
    audit_items: int = 3
    """Tasks of each kind whose gold answers and cheats are graded before the run (0 = none)."""
    seed: int = 0
    """Of the order of the tasks and of all answers."""
    backend: Literal["auto", "torch", "jax"] = "auto"
    """Library: PyTorch alone samples answers."""
    device_type: Literal["", "cuda", "mps", "cpu", "tpu"] = ""
    """Device (empty = the best one present)."""
    no_compile: bool = False
    """Of rft: train without torch.compile, as rl always does: slower steps, instant start."""

    def __post_init__(self) -> None:
        require_at_least(self, num_prompts=1, num_samples=1, device_batch_size=1, decode_batch_size=1)
        if self.num_samples < 2 and self.method == "rl" and not (self.rollouts_only or self.train_from):
            raise UserError("--num_samples 1 leaves nothing to compare an answer with", fix="Use 8.")
        if self.engines.rollout_urls and (self.method != "rl" or self.rollouts_only or self.train_from):
            raise UserError(
                "--rollout_urls is for --method rl", fix="Leave it out: other methods write answers here."
            )
        for name in ("max_new_tokens", "max_seq_len", "num_iterations"):
            if not (getattr(self, name) > 0 or getattr(self, name) == -1):
                raise UserError(f"--{name} {getattr(self, name)}", fix="Use a positive number, or -1.")
        if not (0 < self.lr_scale < float("inf") or self.lr_scale == -1) or not 0 <= self.min_entropy < 1:
            raise UserError(
                f"--lr_scale {self.lr_scale} or --min_entropy {self.min_entropy} is out of range",
                fix="Use an --lr_scale above 0, or -1, and a --min_entropy from 0 up to, but below, 1.",
            )
        if not 0 < self.adamw_lr < float("inf"):
            raise UserError(f"--adamw_lr {self.adamw_lr} is not a rate", fix="Use 3e-4.")
        if not 0 <= self.warmdown_ratio <= 1:
            raise UserError(f"--warmdown_ratio {self.warmdown_ratio}", fix="Use a number from 0 to 1.")
        if self.rollouts_only and self.train_from:
            raise UserError(
                "--rollouts_only and --train_from are one half each", fix="Use --method rft for both."
            )

    def check_paths(self) -> None:
        """Refuse tasks, files and a run that are not there."""
        for path in (self.tasks, *self.train_from, *self.headers):
            require_path(path)
        if not (self.out.exists() or self.upload_dir):  # a run goes on after its parent is gone
            require_path(split_step(self.init_from)[0])
