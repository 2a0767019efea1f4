"""Assignment of parameters to update rules and learning rates.

Base rates hold at a batch of 2^19 tokens and a width of 768; others follow from them: all rates by the square
root of the batch, AdamW's also by width^-0.5, weight decay by 1/depth^2 or by the length of the run.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from torch.distributed import ProcessGroup

from cpplm.core.errors import UserError
from cpplm.model.config import ModelConfig
from cpplm.model.quantized.layers import plain_name
from cpplm.model.transformer import Transformer
from cpplm.optim.buckets import ParamGroup
from cpplm.optim.muon import MuonAdamW
from cpplm.optim.schedules import LearningRates

REFERENCE_BATCH = 2**19  # tokens
REFERENCE_DIM = 768
REFERENCE_DEPTH = 12
LORA_LR = 0.006  # at the reference width; at 256 it is 0.01 (docs/post-training.md)


# Which rule a parameter learns by, by the first pattern that its name matches. What matches none is a matrix
# of the transformer, and learns by Muon. Numbers are shares of the rate that is named.
ROLES: tuple[tuple[str, str, float], ...] = (
    ("embedding.weight", "embedding", 1.0),
    ("*.value_embedding.weight", "embedding", 0.5),  # as nanochat has it
    ("*.engram.table.weight", "embedding", 1.0),
    ("lm_head.weight", "unembedding", 1.0),
    ("*.connections.*.scores.weight", "unembedding", 1.0),
    ("embedding_scales", "scalar", 1.0),
    ("residual_scales", "scalar", 0.01),  # it multiplies through all layers
    ("*.connections.*", "scalar", 0.05),
    ("*.engram.taps", "scalar", 0.1),
    ("smear_*", "scalar", 0.4),
    ("induction.scales", "scalar", 0.1),
    ("backout_scale", "scalar", 0.4),
    ("*.scales", "scale", 1.0),  # of quantised weights
    ("*.scale_left", "scale", 1.0),
    ("*.scale_right", "scale", 1.0),
    ("*.rank_magnitude", "scale", 1.0),
)
MATRIX = ("", "matrix", 1.0)
SLOW_FIRST_MOMENT = {"embedding_scales": 0.96}  # these gradients change sign from batch to batch


def param_role(name: str) -> tuple[str, str, float]:
    """Pattern, which rate, and share of it, for a parameter's name; rounded weights learn as others do."""
    return next((entry for entry in ROLES if fnmatchcase(plain_name(name), entry[0])), MATRIX)


def param_groups(
    parameters: Iterable[str],
    config: ModelConfig,
    rates: LearningRates,
    *,
    batch_tokens: int,
    budget: float | None = None,
    scale_lr: float = 0.0,
) -> list[ParamGroup]:
    """The groups of parameters by rule and rate.

    Args:
        parameters: their names.
        config: of the model.
        rates: at the reference batch, width and depth.
        batch_tokens: per step, of all ranks together.
        budget: training tokens over those of the reference model, for weight decay that follows them.
        scale_lr: of the scales of quantised weights, whatever the batch.

    Raises:
        UserError: weight decay follows a budget that is not known.
    """
    batch_scale = (batch_tokens / REFERENCE_BATCH) ** 0.5
    width_scale = (config.model_dim / REFERENCE_DIM) ** -0.5
    decay = rates.weight_decay * (REFERENCE_DEPTH / config.num_layers) ** 2
    if rates.weight_decay_by == "horizon":
        if budget is None:
            raise UserError(
                "--weight_decay_by horizon needs a run whose tokens can be counted",
                fix="Give --num_iterations instead of --max_minutes.",
            )
        # The time scale of weight decay in epochs stays the same (Wang and Aitchison 2024, arXiv 2405.13698).
        decay = rates.weight_decay * batch_scale / budget
    base_rates = {
        "matrix": rates.matrix_lr * batch_scale,
        "embedding": rates.embedding_lr * batch_scale * width_scale,
        "unembedding": rates.unembedding_lr * batch_scale * width_scale,
        "scalar": rates.scalar_lr * batch_scale,
        "scale": scale_lr,
    }
    names_by_role: dict[tuple[str, str, float], list[str]] = {}
    for name in parameters:
        names_by_role.setdefault(param_role(name), []).append(name)
    return [
        _group(tuple(members), pattern, rate, base_rates[rate] * share, rates, decay)
        for (pattern, rate, share), members in names_by_role.items()
    ]


def _group(
    names: tuple[str, ...], pattern: str, rate: str, learning_rate: float, rates: LearningRates, decay: float
) -> ParamGroup:
    """The group of the parameters of one role: `decay` is Muon's."""
    if rate == "matrix" and not rates.adamw_lr:
        beta2 = rates.muon_beta2 or None
        return ParamGroup(names, muon=True, learning_rate=learning_rate, weight_decay=decay, beta2=beta2)
    beta1, decay = SLOW_FIRST_MOMENT.get(pattern, rates.adam_beta1), 0.0
    if rates.adamw_lr and rate != "scale":
        learning_rate, beta1 = rates.adamw_lr, rates.adam_beta1
        decay = rates.weight_decay if rate == "matrix" else 0.0
    return ParamGroup(
        names,
        muon=False,
        learning_rate=learning_rate,
        weight_decay=decay,
        beta1=beta1,
        beta2=rates.adam_beta2,
    )


def build_optimizer(
    model: Transformer,
    rates: LearningRates,
    *,
    batch_tokens: int,
    budget: float | None = None,
    scale_lr: float = 0.0,
    process_group: ProcessGroup | None = None,
) -> MuonAdamW:
    """The optimizer for one model on its device, and a group of ranks; other arguments and errors are those
    of `param_groups`."""
    names = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
    groups = param_groups(
        names, model.config, rates, batch_tokens=batch_tokens, budget=budget, scale_lr=scale_lr
    )
    return MuonAdamW(model, groups, product_dtype=model.compute_dtype, process_group=process_group)


def build_lora_optimizer(
    model: Transformer,
    learning_rate: float,
    rates: LearningRates,
    *,
    process_group: ProcessGroup | None = None,
) -> MuonAdamW:
    """AdamW without weight decay for the adapters of a model, at one rate for all of them (-1 = by width)."""
    names = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
    if learning_rate == -1:
        learning_rate = LORA_LR * (model.config.model_dim / REFERENCE_DIM) ** -0.5
    group = ParamGroup(
        names, muon=False, learning_rate=learning_rate, beta1=rates.adam_beta1, beta2=rates.adam_beta2
    )
    return MuonAdamW(model, [group], process_group=process_group)
