"""Pre-training from settings to finished run: builds the parts, continues where a run stands, trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpplm.batches.loader import Batch, TrainLoader, validation_batches
from cpplm.batches.prefetch import Prefetcher
from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_device, choose_dtype, environment
from cpplm.core.locking import only_writer
from cpplm.core.progress import say
from cpplm.core.runlog import LOG, RunLog, read_run_log
from cpplm.core.settings import to_dict
from cpplm.core.shards import ShardReader
from cpplm.core.storage import Storage
from cpplm.model.config import ModelConfig
from cpplm.model.counting import count_flops, count_parameters, count_scaling_parameters
from cpplm.model.kernels.chosen import training_kernels
from cpplm.model.precision import convert_to_fp8, convert_to_nvfp4, require_fp8, require_nvfp4
from cpplm.model.transformer import Transformer
from cpplm.optim.groups import build_optimizer
from cpplm.optim.muon import MuonAdamW
from cpplm.tokenizer.canonical import canonical_ids
from cpplm.tokenizer.checks import check_batch, check_hashes, check_vocabulary
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.callbacks import CheckpointCallback, ProgressLog, ValidationCallback
from cpplm.train.checkpoint import Checkpoint
from cpplm.train.compiling import can_compile, compiled_losses
from cpplm.train.resume import find_checkpoint, restore_state
from cpplm.train.settings import TrainSettings
from cpplm.train.tracking import make_trackers, require_trackers
from cpplm.train.trainer import Callback, Horizon, Trainer, TrainState


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
    config = model_config(settings, tokenizer.vocab_size)
    horizon = horizon_of(settings, config)
    _check_before_writing(settings, reader)
    kernels = _check_precision(settings, config, device)
    _make_folder(settings.out)
    with ExitStack() as stack:
        stack.enter_context(only_writer(settings.out))
        storage = Storage(settings.checkpoint_dir or settings.out / "checkpoints", create=True)
        storage.remove_leftovers()
        provenance = {"corpus": reader.fingerprint(), "tokenizer": tokenizer.hash}
        checkpoint = find_checkpoint(settings, config, storage, provenance)
        state = TrainState() if checkpoint is None else restore_state(checkpoint)
        if checkpoint is not None:
            if horizon.progress(state) >= 1:
                say(f"{settings.out} is trained to the end (step {state.step}); give a longer run to go on")
                return _summary(settings, state, config, trained_now=False)
            say(f"continuing {settings.out} from step {state.step}")
        model, optimizer = _model_and_optimizer(settings, config, tokenizer, checkpoint, device)
        shape = (settings.device_batch_size, settings.max_seq_len)
        loss_function = model.training_losses if settings.no_compile else compiled_losses(model, shape)

        bar = stack.enter_context(ProgressLog.open_bar(horizon.progress(state)))
        loader = stack.enter_context(closing(Prefetcher(_train_loader(settings, reader, tokenizer, state))))
        log = stack.enter_context(_open_log(settings, state, model, horizon, kernels))
        # Saved before all else: what fails after it cannot take the step along.
        callbacks: list[Callback] = [ProgressLog(bar), CheckpointCallback(storage, provenance)]
        if settings.eval_every > 0:
            callbacks.append(ValidationCallback(_validation_passes(settings, reader, tokenizer)))
        Trainer(
            model=model,
            optimizer=optimizer,
            tokenizer=tokenizer,
            batches=checked(loader, reader, tokenizer),
            horizon=horizon,
            settings=settings,
            state=state,
            log=log,
            callbacks=[*callbacks, *extra_callbacks],
            loss_function=loss_function,
        ).run()
    return _summary(settings, state, config, trained_now=True)


def model_config(settings: TrainSettings, vocab_size: int) -> ModelConfig:
    """The model that the settings describe."""
    return settings.architecture.config(
        settings.depth,
        vocab_size=vocab_size,
        max_seq_len=settings.max_seq_len,
        aspect_ratio=settings.aspect_ratio,
        head_dim=settings.head_dim,
        window_pattern=settings.window_pattern,
        **({"num_kv_heads": settings.num_kv_heads} if settings.num_kv_heads > 0 else {}),
    )


def horizon_of(settings: TrainSettings, config: ModelConfig) -> Horizon:
    """How long to train: by minutes, steps, operations, or tokens per parameter, whichever was given."""
    if settings.max_minutes > 0:
        return Horizon(seconds=60 * settings.max_minutes)
    if settings.num_iterations > 0:
        return Horizon(steps=settings.num_iterations)
    if settings.target_flops > 0:
        tokens = settings.target_flops / count_flops(config)["total"]
    else:
        tokens = settings.target_param_data_ratio * count_scaling_parameters(config)
    return Horizon(steps=max(1, round(tokens / settings.total_batch_size)))


def _check_before_writing(settings: TrainSettings, reader: ShardReader) -> None:
    """What can be refused is refused before the run folder is made."""
    for split in ("train", "val") if settings.eval_every > 0 else ("train",):
        if not reader.shards(split):
            raise UserError(
                f"{reader.storage.location} has no {split} documents",
                fix="Build a corpus with more code."
                if split == "train"
                else "Or train with --eval_every -1.",
            )
    require_trackers(wandb_project=settings.wandb_project, tensorboard=settings.tensorboard)


def _check_precision(settings: TrainSettings, config: ModelConfig, device: torch.device) -> dict[str, str]:
    """The kernels that will run, by what they compute.

    Raises:
        UserError: kernels or number formats that were asked for are not to be had here.
    """
    kernels = settings.kernels
    if kernels.fp8:
        require_fp8()
    if kernels.nvfp4:
        require_nvfp4()
    dtype = choose_dtype(settings.precision, device)
    if (kernels.fp8 or kernels.nvfp4) and dtype != torch.bfloat16:
        raise UserError("8-bit and 4-bit products need bfloat16 around them", fix="Leave out --precision.")
    compiling = not settings.no_compile and can_compile(device)
    return training_kernels(config, kernels, device=device, dtype=dtype, compiling=compiling)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the run folder {out}: {error}", fix="Name another --out.") from error


def _model_and_optimizer(
    settings: TrainSettings,
    config: ModelConfig,
    tokenizer: Tokenizer,
    checkpoint: Checkpoint | None,
    device: torch.device,
) -> tuple[Transformer, MuonAdamW]:
    """New, or as the checkpoint left them."""
    dtype = choose_dtype(settings.precision, device)
    if checkpoint is None:
        with torch.device("meta"):
            model = Transformer(config, compute_dtype=dtype, kernels=settings.kernels)
        model.to_empty(device=device)
        model.init_weights(settings.seed)
        model.set_canonical_ids(torch.from_numpy(canonical_ids(tokenizer)))
    else:
        model = checkpoint.model(device=device, compute_dtype=dtype, kernels=settings.kernels)
    if settings.kernels.fp8:
        convert_to_fp8(model, settings.kernels.fp8_recipe)
    if settings.kernels.nvfp4:
        convert_to_nvfp4(model)
    optimizer = build_optimizer(model, settings.rates, batch_tokens=settings.total_batch_size)
    if checkpoint is not None:
        optimizer.load_named_state(checkpoint.tensors("optimizer.safetensors"))
    return model, optimizer


def _train_loader(
    settings: TrainSettings, reader: ShardReader, tokenizer: Tokenizer, state: TrainState
) -> TrainLoader:
    return TrainLoader(
        reader,
        tokenizer,
        batch_size=settings.device_batch_size,
        seq_len=settings.max_seq_len,
        seed=settings.seed,
        state=state.loader,
        threads=settings.tokenizer_threads,
    )


def checked(batches: Iterator[Batch], reader: ShardReader, tokenizer: Tokenizer) -> Iterator[Batch]:
    """The same batches; with the first come warnings about what does not fit together."""
    first = next(batches)
    counted_with = reader.manifest.get("identity", {}).get("tokenizer_hash", "")
    for warning in (
        *check_vocabulary(tokenizer),
        *check_hashes(tokenizer, counted_with),
        *check_batch(tokenizer, first.inputs.tolist()),
    ):
        say(f"warning: {warning}")
    yield first
    yield from batches


def _validation_passes(
    settings: TrainSettings, reader: ShardReader, tokenizer: Tokenizer
) -> Callable[[], Iterable[tuple[Tensor, Tensor]]]:
    """A function that begins a fresh pass over the validation tokens."""
    return lambda: validation_batches(
        reader,
        tokenizer,
        batch_size=settings.device_batch_size,
        seq_len=settings.max_seq_len,
        max_tokens=settings.eval_tokens,
        threads=settings.tokenizer_threads,
    )


def _open_log(
    settings: TrainSettings,
    state: TrainState,
    model: Transformer,
    horizon: Horizon,
    kernels: dict[str, str],
) -> RunLog:
    """The run log, cut at the step from which the run goes on, with a record of this session."""
    trackers = make_trackers(
        settings.out,
        settings.run_name or settings.out.name,
        wandb_project=settings.wandb_project,
        tensorboard=settings.tensorboard,
        settings=to_dict(settings),
    )
    log = RunLog(settings.out / LOG, trackers=trackers, keep_until_step=state.step)
    log.write(
        "session",
        step=state.step,
        settings=to_dict(settings),
        config=to_dict(model.config),
        parameters=count_parameters(model.config),
        flops_per_token=count_flops(model.config)["total"],
        horizon={"steps": horizon.steps, "seconds": horizon.seconds},
        precision=str(model.compute_dtype).removeprefix("torch."),
        kernels=kernels,
        environment=environment(),
    )
    return log


def _summary(
    settings: TrainSettings, state: TrainState, config: ModelConfig, *, trained_now: bool
) -> RunSummary:
    measured = [record for record in read_run_log(settings.out / LOG) if record["event"] == "validation"]
    return RunSummary(
        step=state.step,
        tokens=state.tokens,
        seconds=state.seconds,
        parameters=count_parameters(config)["total"],
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
