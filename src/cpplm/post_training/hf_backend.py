"""A causal model of the transformers library as the training loop sees it, whole or with a LoRA adapter.

The model computes without dropout. What is trained is float32; products are in the run's precision.

Conversations that share a row do not see each other: `transformers` builds a block-diagonal mask where
position ids begin anew. Whether a model keeps to it is tried out; one that does not, such as one with a
recurrent state, gets each conversation as a row of its own, padded on the right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

from cpplm.core.errors import UserError
from cpplm.core.hardware import choose_dtype
from cpplm.core.progress import log_info
from cpplm.dataloader.loader import Batch
from cpplm.model.hf_config import HfModelConfig
from cpplm.model.lora import ADAPTER_WEIGHTS
from cpplm.model.quantized.layers import moving_scales
from cpplm.post_training.hf_adapter import adapter_record, with_adapter
from cpplm.post_training.hf_folder import HfFolder
from cpplm.post_training.hf_states import document_positions, isolates_documents
from cpplm.tokenizer.special_tokens import IGNORE_INDEX
from cpplm.tokenizer.tokenizer import Tokenizer
from cpplm.train.backend import StepLosses, StepPlan, TrainModule
from cpplm.train.checkpoint.format import Checkpoint
from cpplm.train.checkpoint.weights import load_tensors
from cpplm.train.distributed import TorchDistContext
from cpplm.train.settings import TrainSettings
from cpplm.train.torch_backend import TorchBackend, TorchTrainModule
from cpplm.train.training_length import TrainingBudget

_MAX_GRADIENT_NORM = 1.0
_STATE = ("step", "exp_avg", "exp_avg_sq")  # of torch.optim.AdamW, by parameter
# Input ids, targets, position ids.
Rows = tuple[Tensor, Tensor, Tensor]


class HfBackend(TorchBackend):
    """Makes `HfTrainModule`s, on one device."""

    def __init__(self, settings: TrainSettings, source: HfFolder) -> None:
        """Nothing is loaded yet."""
        super().__init__(settings)
        self.source = source

    @override
    def estimate_memory(self, settings: TrainSettings, config: Any) -> None:
        return None

    @override
    def check(self, settings: TrainSettings, config: Any) -> dict[str, Any]:
        if self._dist.world_size > 1:
            raise UserError("models of transformers are trained on one device", fix="Start without torchrun.")
        return {}

    @override
    def build(
        self,
        settings: TrainSettings,
        config: Any,
        tokenizer: Tokenizer,
        weights: Checkpoint | None,
        optimizer: Checkpoint | None,
        budget: TrainingBudget,
    ) -> TrainModule:
        dtype = choose_dtype(settings.precision, self._dist.device)
        lora = settings.lora
        model = self._load(settings, dtype).to(self._dist.device).eval()
        packs = isolates_documents(model)
        if not packs:
            log_info(f"{config.architecture} does not tell conversations in a row apart: one in each row")
        if lora.lora_rank:
            model = with_adapter(model, lora, settings.seed)
        if weights is not None:
            load_trained(model, weights)
        trained = sum(weight.numel() for weight in trained_parameters(model).values())
        log_info(f"training {trained:,} parameters of {type(model).__name__}")
        module = self._hf_module(model, config, settings, dtype, packs=packs)
        if optimizer is not None:
            module.load_optimizer(load_tensors(optimizer, "optimizer.safetensors"))
        return module

    def _load(self, settings: TrainSettings, dtype: torch.dtype) -> Any:
        """The model that training begins with."""
        return self.source.load(dtype if settings.lora.lora_rank else torch.float32)

    def _hf_module(
        self, model: Any, config: HfModelConfig, settings: TrainSettings, dtype: torch.dtype, *, packs: bool
    ) -> HfTrainModule:
        rate = settings.lora.lora_lr if settings.lora.lora_rank else settings.rates.matrix_lr
        return HfTrainModule(model, config, rate, dtype, self._dist, packs=packs)


class HfTrainModule(TorchTrainModule):
    """A model of `transformers`, or a `PeftModel` around one, with AdamW."""

    def __init__(
        self, model: Any, config: HfModelConfig, rate: float, dtype: torch.dtype,
        dist: TorchDistContext, *, packs: bool, scale_rate: float = 0.0,
    ) -> None:  # fmt: skip
        """Take a model that is where it shall compute.

        Args:
            model: of `transformers`.
            config: its sizes.
            rate: learning rate.
            dtype: of products.
            dist: the ranks.
            packs: as `isolates_documents` says.
            scale_rate: learning rate of the scales of rounded weights.
        """
        self.model, self._dist, self._packs, self._dtype = model, dist, packs, dtype
        self.config: Any = config
        self.adapter_config = adapter_record(model) if config.lora_rank else None
        self.device, self.device_type = dist.device, dist.device.type
        self.precision = str(dtype).removeprefix("torch.")
        trained = trained_parameters(model)
        scales = {name: trained.pop(name) for name in moving_scales(model, "all")}
        self._parameters = trained | scales  # in the order of the groups
        groups = [(trained, rate), (scales, scale_rate)]
        self._optimizer: Any = torch.optim.AdamW(
            [{"params": list(each.values()), "lr": lr, "rate": lr} for each, lr in groups if each],
            weight_decay=0.0,
            fused=self.device_type == "cuda",
        )

    @override
    def step(self, batches: Iterator[Batch], count: int, plan: StepPlan) -> StepLosses:
        passes = list(batches)
        targets = max(1, sum(int((batch.targets != IGNORE_INDEX).sum()) for batch in passes))
        nats = torch.zeros((), device=self.device)
        for batch in passes:
            for loss in self.phases.record_each("forward", self._sums_of_nats(batch)):
                with self.phases.record("backward"):
                    (loss / targets).backward()
                nats += loss.detach()
        with self.phases.record("optimizer"):
            norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), _MAX_GRADIENT_NORM)
            for group in self._optimizer.param_groups:
                group["lr"] = group["rate"] * plan.learning_rate
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        mean = float(nats) / targets
        return StepLosses(mean, mean, 0.0, 0.0, float(norm))

    def _sums_of_nats(self, batch: Batch) -> Iterator[Tensor]:
        """Losses of parts of a batch, each a sum over the targets that count."""
        for rows in packed_rows(batch) if self._packs else single_rows(batch):
            yield self._sum_of_nats(*(tensor.to(self.device, non_blocking=True) for tensor in rows))

    def _sum_of_nats(self, inputs_BT: Tensor, targets_BT: Tensor, positions_BT: Tensor) -> Tensor:
        """Cross-entropy, summed over the targets that count."""
        positions = {"position_ids": positions_BT} if self._packs else {}
        logits_BTV = self._logits(inputs_BT, **positions)
        counted_BT = targets_BT != IGNORE_INDEX
        return F.cross_entropy(logits_BTV[counted_BT].float(), targets_BT[counted_BT], reduction="sum")

    def _logits(self, inputs_BT: Tensor, **positions: Tensor) -> Tensor:
        with torch.autocast(self.device_type, self._dtype, enabled=self._dtype != torch.float32):
            return self.model(input_ids=inputs_BT, use_cache=False, **positions).logits

    @override
    def loss(self, ids_BT: Tensor, targets_BT: Tensor) -> Tensor:
        logits_BTV = self._logits(ids_BT)
        return F.cross_entropy(
            logits_BTV.transpose(1, 2).float(), targets_BT, ignore_index=IGNORE_INDEX, reduction="none"
        )

    @override
    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What is trained, an adapter alone where there is one."""
        optimizer = {
            f"{name}.{key}": self._optimizer.state[parameter][key]
            for name, parameter in self._parameters.items()
            for key in _STATE
        }
        return {name: parameter.detach() for name, parameter in self._parameters.items()}, optimizer

    def load_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Go on with moments that `state` gave."""
        state = {
            number: {key: tensors[f"{name}.{key}"] for key in _STATE}
            for number, name in enumerate(self._parameters)
        }
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": state, "param_groups": groups})


def packed_rows(batch: Batch) -> Iterator[Rows]:
    """The rows of a batch as they are, with positions that begin anew in each conversation."""
    documents_BT = batch.documents
    assert documents_BT is not None  # noqa: S101  (for mypy: `cpplm sft` asks for them)
    yield batch.inputs, batch.targets, document_positions(documents_BT)


def single_rows(batch: Batch) -> Iterator[Rows]:
    """The conversations of a batch, each a row, those of similar length together."""
    assert batch.documents is not None  # noqa: S101  (as above)
    texts = [
        (ids_T[documents_T == number], targets_T[documents_T == number])
        for ids_T, targets_T, documents_T in zip(batch.inputs, batch.targets, batch.documents, strict=True)
        for number in range(int(documents_T.max()) + 1)
    ]
    texts = [text for text in texts if (text[1] != IGNORE_INDEX).any()]  # the rest is padding
    texts.sort(key=lambda text: len(text[0]))
    while texts:
        longest = len(texts[-1][0])
        count = max(1, batch.inputs.numel() // longest)
        some, texts = texts[-count:], texts[:-count]
        inputs_BT = pad_sequence([ids_T for ids_T, _ in some], batch_first=True)
        targets_BT = pad_sequence([targets_T for _, targets_T in some], True, IGNORE_INDEX)
        yield inputs_BT, targets_BT, torch.arange(longest).expand_as(inputs_BT)


def trained_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters that are trained, shared ones once, by name; an adapter's as in PEFT's files."""
    return {
        name.replace(".default.", "."): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def load_trained(model: Any, checkpoint: Checkpoint) -> None:
    """Give what is trained the values of a checkpoint.

    Raises:
        UserError: the checkpoint is of other parameters.
    """
    name = ADAPTER_WEIGHTS if checkpoint.is_adapter else "model.safetensors"
    tensors, parameters = load_tensors(checkpoint, name), trained_parameters(model)
    if tensors.keys() != parameters.keys():
        raise UserError(f"{checkpoint.path()} holds other weights than those that are trained")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
