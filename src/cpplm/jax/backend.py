"""Training with JAX: `cpplm train --backend jax`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Mesh
from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.core.progress import log_info
from cpplm.core.storage import is_bucket
from cpplm.dataloader.loader import Batch
from cpplm.jax.attention.dispatch import check_row_lengths, resolve_attention
from cpplm.jax.compile_cache import CompileCache
from cpplm.jax.distributed import JaxDistContext, initialize
from cpplm.jax.mesh import HostBatchSharder, check_mesh, make_mesh, mesh_sizes
from cpplm.jax.optimizer import Optimizer
from cpplm.jax.param_stacking import init_params, stack_params
from cpplm.jax.quantizer import Quantizer
from cpplm.jax.settings import RunSettings
from cpplm.jax.step import TrainStep
from cpplm.jax.tpu_specs import CHIPS_BY_KIND
from cpplm.jax.train_module import JaxTrainModule, to_device
from cpplm.model.config import ModelConfig
from cpplm.model.quantized.recipe import Recipe
from cpplm.model.settings import DEFAULT_KERNELS
from cpplm.tokenizer.token_normalization import canonical_ids
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.attempt import Attempt
from cpplm.train.backend import TrainBackend, TrainModule
from cpplm.train.backend_registry import register_backend
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.weights import load_tensors, load_weights
from cpplm.train.devices import Devices, local_devices
from cpplm.train.distributed import DistContext
from cpplm.train.quantization import has_latent_weights
from cpplm.train.settings import TrainSettings
from cpplm.train.training_length import TrainingBudget, relative_tokens

_CACHE_DIR = "JAX_COMPILATION_CACHE_DIR"  # a user's own choice


class JaxBackend(TrainBackend):
    """Training with JAX. The mesh is made when the processes are joined."""

    mesh: Mesh
    """The chips of the run, once the processes are joined."""
    sharder: HostBatchSharder
    """This host's rows, likewise."""

    def __init__(self, settings: TrainSettings) -> None:
        """Nothing is touched yet.

        Raises:
            UserError: settings that only PyTorch knows.
        """
        _refuse_settings_of_torch(settings)
        self._settings = settings
        self._compile_cache: CompileCache | None = None

    @override
    @contextmanager
    def init_distributed(self) -> Iterator[DistContext]:
        settings = self._settings
        with initialize(settings) as devices:
            sizes = mesh_sizes(settings.jax.axes(), len(devices))
            self.mesh = make_mesh(sizes, devices)
            if self.mesh.size < len(devices):
                log_info(f"training on {self.mesh.size} of {len(devices)} chips, as --mesh says")
            self.sharder = HostBatchSharder.of(self.mesh)
            if devices[0].platform == "tpu":
                _enable_compilation_cache()
            yield JaxDistContext(self.sharder)

    @override
    @contextmanager
    def sync_compile_cache(self, attempt: Attempt) -> Iterator[None]:
        """On TPUs of a run that uploads to a bucket, and of each attempt at a managed run."""
        on_tpu = self.mesh.devices.flat[0].platform == "tpu"
        shared = attempt.lease is not None or (on_tpu and is_bucket(self._settings.upload_dir))
        if not shared or _CACHE_DIR in os.environ:
            yield
            return
        writes = jax.process_index() == 0
        with CompileCache(attempt.open_storage(attempt.run), writes=writes) as self._compile_cache:
            yield

    @override
    def devices(self, settings: TrainSettings) -> Devices:
        chip = self.mesh.devices.flat[0]
        known = CHIPS_BY_KIND.get(chip.device_kind)
        if known is None:  # virtual chips of one CPU are one device
            dtype = getattr(torch, run_settings(settings, self.mesh).compute_dtype)
            return local_devices(torch.device("cpu"), dtype, jax.process_count())
        chips = self.mesh.size
        return Devices(chip.device_kind, "tpu", chips, known.device_peak, "maker", known.device_memory)

    @override
    def estimate_memory(self, settings: TrainSettings, config: ModelConfig) -> None:
        """None: only the compiler knows it, as `cpplm tpu check` reports."""

    @override
    def check(self, settings: TrainSettings, config: ModelConfig) -> dict[str, Any]:
        run, attention = check_run(settings, config, self.mesh)
        return {
            "kernels": {"attention": attention},
            "run": dataclasses.asdict(run),
            "mesh": dict(self.mesh.shape),
            "chips": self.mesh.size,
            "chip": self.mesh.devices.flat[0].device_kind,
            "jax": jax.__version__,
        }

    @override
    def to_device(self, batch: Batch) -> Batch:
        return to_device(batch, self.sharder, self.mesh)

    @override
    def build(
        self,
        settings: TrainSettings,
        config: ModelConfig,
        tokenizer: Tokenizer,
        weights: Checkpoint | None,
        optimizer: Checkpoint | None,
        budget: TrainingBudget,
    ) -> TrainModule:
        """Build or restore; a new model begins with the weights that PyTorch would give it."""
        make_step = partial(train_step, settings, config, budget, self.mesh)
        recipe = None
        if weights is None:
            params = init_params(config, settings.seed, torch.from_numpy(canonical_ids(tokenizer)))
        elif has_latent_weights(weights, settings):
            recipe = Recipe.parse(settings.quantization.quantize)
            params = stack_params(_arrays(load_tensors(weights, "model.safetensors")), config, recipe)
        else:
            params = stack_params(_arrays(load_weights(weights)), config)
        step = make_step(recipe)
        state = {} if optimizer is None else _arrays(load_tensors(optimizer, "optimizer.safetensors"))
        train_module = JaxTrainModule(step, self.sharder, params, step.optimizer.stack_state(state))
        if settings.quantization.quantize:
            train_module.quantizer = Quantizer(settings, config, make_step, jax.process_count())
        log_info("compiling the training step, before the first one")
        rows = settings.device_batch_size * self.sharder.batch_shards
        for length in settings.data.row_lengths(settings.max_seq_len):
            train_module.compile(
                rows * settings.max_seq_len // length,
                length,
                count=settings.forward_passes(self.sharder.batch_shards),
                documents=settings.data.document_mask,
            )
        if self._compile_cache is not None:
            self._compile_cache.upload()
        return train_module


def check_run(settings: TrainSettings, config: ModelConfig, mesh: Mesh) -> tuple[RunSettings, str]:
    """How the model is computed on these chips, and the kind of attention that does.

    Raises:
        UserError: the mesh does not divide the model, or the kernel cannot compute its rows.
    """
    lengths = settings.data.row_lengths(settings.max_seq_len)
    check_mesh(mesh.shape, config, lengths)
    run = run_settings(settings, mesh)
    attention = resolve_attention(run.jax_attention, mesh)
    check_row_lengths(attention, config, lengths, mesh)
    return run, attention


def train_step(
    settings: TrainSettings,
    config: ModelConfig,
    budget: TrainingBudget,
    mesh: Mesh,
    recipe: Recipe | None = None,
) -> TrainStep:
    """The step that these settings describe, for chips that need not be here; of weights that are rounded
    by a recipe, or are not.

    Raises:
        UserError: weight decay follows a budget that is not known.
    """
    run = run_settings(settings, mesh)
    optimizer = Optimizer.of(
        config,
        settings.rates,
        batch_tokens=settings.total_batch_size,
        budget=relative_tokens(settings, config, budget),
        product_dtype=run.dtype,
        mesh=mesh,
        recipe=recipe,
        scale_lr=settings.quantization.scale_lr,
    )
    return TrainStep(config, run, optimizer, mesh, recipe)


def run_settings(settings: TrainSettings, mesh: Mesh) -> RunSettings:
    """Settings of how the model is computed: in bfloat16 on TPUs unless another precision is given."""
    on_tpu = mesh.devices.flat[0].platform == "tpu"
    bfloat16 = settings.precision == "bf16" or (settings.precision == "auto" and on_tpu)
    return RunSettings(
        **dataclasses.asdict(settings.jax), compute_dtype="bfloat16" if bfloat16 else "float32"
    )


def _refuse_settings_of_torch(settings: TrainSettings) -> None:
    """Refuse settings that JAX would pass over in silence."""
    instead = {
        "shard": "Use --mesh fsdp=CHIPS.",
        "gradient_checkpointing": "Use --remat full.",
        "attention": "Use --jax_attention.",
    }
    given = [
        name
        for name in ("attention", "kernel", "gradient_checkpointing", "fp8", "nvfp4")
        if getattr(settings.kernels, name) != getattr(DEFAULT_KERNELS, name)
    ]
    given += [name for name in ("shard", "no_compile") if getattr(settings, name)]
    for name in given:
        raise UserError(
            f"--{name} is PyTorch's, and --backend jax does not know it",
            fix=instead.get(name, "Leave it out."),
        )


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {key: tensor.numpy() for key, tensor in tensors.items()}


def _enable_compilation_cache() -> None:
    """In a folder, so that the next start of the same run takes seconds."""
    if _CACHE_DIR not in os.environ:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(cache / "cpplm" / "jax"))


register_backend("jax", JaxBackend)
