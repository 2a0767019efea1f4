"""Pre-training from settings to finished run: builds the parts, continues where a run stands, trains."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpplm.batches.loader import LoaderState, TrainLoader, validation_batches
from cpplm.batches.prefetch import Prefetcher
from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_device, choose_dtype, environment
from cpplm.core.progress import say
from cpplm.core.runlog import RunLog, read_run_log
from cpplm.core.settings import to_dict
from cpplm.core.shards import ShardReader
from cpplm.core.storage import Storage
from cpplm.model.config import ModelConfig
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import Rates, build_optimizer
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.callbacks import CheckpointCallback, ProgressLog, ValidationCallback
from cpplm.train.checkpoint import Checkpoint, committed_steps, open_checkpoint
from cpplm.train.settings import TrainSettings
from cpplm.train.tracking import make_trackers
from cpplm.train.trainer import Callback, Horizon, Trainer, TrainState

LOG = "log.jsonl"
# A continued run must agree in these; the other settings may change between sessions.
FIXED = ("depth", "aspect_ratio", "head_dim", "num_kv_heads", "max_seq_len", "window_pattern",
         "device_batch_size", "total_batch_size", "seed")  # fmt: skip


@dataclass(frozen=True)
class RunSummary:
    """How a run ended. `validation` is its last measurement, None when it never measured."""

    step: int
    tokens: int
    seconds: float
    parameters: int
    trained_now: bool
    validation: dict[str, Any] | None


def pretrain(settings: TrainSettings, extra_callbacks: Sequence[Callback] = ()) -> RunSummary:
    """Train a model, or go on with the run that `settings.out` holds.

    Raises:
        UserError: bad settings or data, or `out` holds a run that these settings do not continue.
        KeyboardInterrupt: stopped on request; the state is saved.
    """
    device = choose_device(settings.device_type)
    reader = ShardReader(settings.data_dir)
    tokenizer = Tokenizer.load(settings.tokenizer)
    provenance = {"corpus": reader.fingerprint(), "tokenizer": tokenizer.hash}
    settings.out.mkdir(parents=True, exist_ok=True)
    storage = Storage(settings.checkpoint_dir or settings.out / "checkpoints", create=True)
    checkpoint = _find_checkpoint(settings, storage, provenance)
    config = model_config(settings, tokenizer.vocab_size)
    horizon = horizon_of(settings, config)
    state = TrainState() if checkpoint is None else _restore_state(checkpoint)
    if checkpoint is not None and horizon.progress(state) >= 1:
        say(f"{settings.out} is trained to the end (step {state.step}); give a longer run to go on")
        return _summary(settings, state, config, trained_now=False)

    dtype = choose_dtype(settings.precision, device)
    if checkpoint is None:
        model = Transformer(config, compute_dtype=dtype).to(device)
        model.init_weights(settings.seed)
    else:
        model = checkpoint.model(device=device, compute_dtype=dtype)
    optimizer = build_optimizer(model, _rates(settings), batch_tokens=settings.total_batch_size)
    if checkpoint is not None:
        optimizer.load_named_state(checkpoint.tensors("optimizer.safetensors"))
        say(f"continuing {settings.out} from step {state.step}")

    def batches_for_validation() -> Any:
        return validation_batches(
            reader,
            tokenizer,
            batch_size=settings.device_batch_size,
            seq_len=settings.max_seq_len,
            max_tokens=settings.eval_tokens,
            threads=settings.tokenizer_threads,
        )

    loader = TrainLoader(
        reader,
        tokenizer,
        batch_size=settings.device_batch_size,
        seq_len=settings.max_seq_len,
        seed=settings.seed,
        state=state.loader,
        threads=settings.tokenizer_threads,
    )
    callbacks: list[Callback] = [ProgressLog()]
    if settings.eval_every > 0:
        callbacks.append(ValidationCallback(batches_for_validation))
    callbacks += [*extra_callbacks, CheckpointCallback(storage, provenance)]
    trackers = make_trackers(
        settings.out,
        settings.run_name or settings.out.name,
        wandb_project=settings.wandb_project,
        tensorboard=settings.tensorboard,
        settings=to_dict(settings),
    )
    prefetcher = Prefetcher(loader)
    with RunLog(settings.out / LOG, trackers=trackers, keep_until_step=state.step) as log:
        log.write(
            "session",
            step=state.step,
            settings=to_dict(settings),
            config=to_dict(config),
            parameters=config.num_parameters(),
            flops_per_token=config.flops_per_token(),
            horizon={"steps": horizon.steps, "seconds": horizon.seconds},
            precision=str(dtype).removeprefix("torch."),
            environment=environment(),
        )
        trainer = Trainer(
            model=model,
            optimizer=optimizer,
            tokenizer=tokenizer,
            batches=prefetcher,
            horizon=horizon,
            settings=settings,
            state=state,
            log=log,
            callbacks=callbacks,
            loss_function=_compiled(model, settings, device),
        )
        try:
            trainer.run()
        finally:
            prefetcher.close()
    return _summary(settings, state, config, trained_now=True)


def model_config(settings: TrainSettings, vocab_size: int) -> ModelConfig:
    """The model that the settings describe."""
    return ModelConfig.from_depth(
        settings.depth,
        vocab_size=vocab_size,
        max_seq_len=settings.max_seq_len,
        aspect_ratio=settings.aspect_ratio,
        head_dim=settings.head_dim,
        num_kv_heads=settings.num_kv_heads if settings.num_kv_heads > 0 else None,
        window_pattern=settings.window_pattern,
    )


def horizon_of(settings: TrainSettings, config: ModelConfig) -> Horizon:
    """How long to train: by steps, minutes, operations, or tokens per parameter, whichever was given."""
    if settings.max_minutes > 0:
        return Horizon(seconds=60 * settings.max_minutes)
    if settings.num_iterations > 0:
        return Horizon(steps=settings.num_iterations)
    if settings.target_flops > 0:
        tokens = settings.target_flops / config.flops_per_token()
    else:
        tokens = settings.target_param_data_ratio * config.num_parameters()["total"]
    return Horizon(steps=max(1, round(tokens / settings.total_batch_size)))


def _rates(settings: TrainSettings) -> Rates:
    return Rates(
        matrix_lr=settings.matrix_lr,
        embedding_lr=settings.embedding_lr,
        unembedding_lr=settings.unembedding_lr,
        scalar_lr=settings.scalar_lr,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
    )


def _find_checkpoint(
    settings: TrainSettings, storage: Storage, provenance: dict[str, str]
) -> Checkpoint | None:
    """The checkpoint to continue from, after making sure that it belongs to these settings."""
    steps = committed_steps(storage)
    if settings.resume_from_step == -1:
        if steps:
            raise UserError(
                f"{storage.location} already holds checkpoints of steps {steps}",
                fix="Name another --out, delete the folder, or leave out --resume_from_step to continue.",
            )
        return None
    if not steps and settings.resume_from_step < 0:
        return None
    checkpoint = open_checkpoint(
        storage, None if settings.resume_from_step < 0 else settings.resume_from_step
    )
    then, now = checkpoint.json("settings.json"), to_dict(settings)
    differences = [
        f"{name} was {then.get(name)}, is {now[name]}" for name in FIXED if then.get(name) != now[name]
    ]
    then_provenance = checkpoint.json("state.json")
    differences += [
        f"{name} was {then_provenance[name][:12]}, is {provenance[name][:12]}"
        for name in provenance
        if then_provenance[name] != provenance[name]
    ]
    if differences:
        raise UserError(
            f"{settings.out} holds another run: {'; '.join(differences)}",
            fix="Name another --out, or delete the folder to start anew.",
        )
    return checkpoint


def _restore_state(checkpoint: Checkpoint) -> TrainState:
    values = checkpoint.json("state.json")
    return TrainState(
        step=values["step"],
        tokens=values["tokens"],
        seconds=values["seconds"],
        loader=LoaderState(**values["loader"]),
    )


def _compiled(
    model: Transformer, settings: TrainSettings, device: torch.device
) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss, compiled where that works."""
    if settings.no_compile or device.type == "mps":
        return model.loss
    if device.type == "cpu" and shutil.which("g++") is None:
        say("no g++ found: training without torch.compile, which is slower")
        return model.loss
    return torch.compile(model.loss, dynamic=False)


def _summary(
    settings: TrainSettings, state: TrainState, config: ModelConfig, *, trained_now: bool
) -> RunSummary:
    measured = [record for record in read_run_log(settings.out / LOG) if record["event"] == "validation"]
    return RunSummary(
        step=state.step,
        tokens=state.tokens,
        seconds=state.seconds,
        parameters=config.num_parameters()["total"],
        trained_now=trained_now,
        validation=measured[-1] if measured else None,
    )


def run_folder(run: str | Path) -> Path:
    """The local folder of a run, for its log and page.

    Raises:
        UserError: it is not a run folder.
    """
    path = Path(run).expanduser()
    if not (path / LOG).exists():
        raise UserError(
            f"{path} is not the folder of a run (no {LOG})", fix="Name the --out of 'cpplm train'."
        )
    return path
