"""Cross-entropy of a linear output head, by the fastest kernel that can do what is asked.

    logits = softcap * tanh(hidden @ weight[:vocab_size].T / softcap)

or without a cap where it is 0. The product is in the dtype of the hidden states, everything behind it in
float32 or better.

Shapes: N rows, C width, V vocabulary with its padding.

| backend | where            | logits held at once          | weight gradient is summed in |
|---------|------------------|------------------------------|------------------------------|
| chunked | everywhere       | 256 rows, 2048 on a GPU      | float32                      |
| native  | everywhere       | all, several times           | one product, dtype of hidden |
| cce     | CUDA, bf16, fp16 | none, tiles in registers     | dtype of hidden              |
| liger   | CUDA             | some rows                    | float32                      |

Cut cross-entropy is Wijmans et al. 2024, arXiv 2411.09009; Liger is Hsu et al. 2024, arXiv 2410.10989.
`auto` takes chunked, and native for a softcap above 60. cce and liger run when they are asked for: on an H200
they agree with float64 (2026-11-26), but nothing says that they are faster. They read sizes back from the
GPU, which torch.compile cannot trace: use them with --no_compile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cpplm.model.kernels.chunked_loss import MAX_SOFTCAP, LossOptions, Reduction, chunked_loss
from cpplm.model.kernels.registry import (
    HALF,
    KernelBackend,
    KernelRequest,
    KernelTable,
    OptionalImport,
    accum_dtype,
    compute_capability,
)
from cpplm.tokenizer.special_tokens import IGNORE_INDEX


@dataclass(frozen=True)
class LossRequest(KernelRequest):
    """One call of `linear_cross_entropy`, without its tensors."""

    softcap: float
    reduction: Reduction

    @classmethod
    def training(
        cls, device: torch.device, dtype: torch.dtype, *, softcap: float, compiling: bool = False
    ) -> LossRequest:
        """The call that training makes, to check a person's choice before anything is compiled."""
        return cls(device.type, dtype, True, compiling, compute_capability(device), softcap, "mean")


def linear_cross_entropy(
    hidden_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    *,
    vocab_size: int,
    softcap: float,
    reduction: Reduction = "mean",
    backend: str = "auto",
) -> Tensor:
    """Cross-entropy in nats.

    Args:
        hidden_NC: states before the output head.
        weight_VC: its weight, any floating dtype; rows from `vocab_size` on are padding and take no part.
        targets_N: ids below `vocab_size`, or `IGNORE_INDEX`, which counts nothing.
        vocab_size: rows of the weight that are tokens.
        softcap: logits lie between this and its negative; 0 is no cap.
        reduction: "mean" over the counted targets, 0 when there are none; "none" for each row, 0 where
            ignored.
        backend: "auto", "chunked", "native", "cce" or "liger".

    Returns:
        A scalar or shape N, float32 (float64 for float64 inputs).

    Raises:
        UserError: that backend does not exist or cannot do this.
    """
    request = LossRequest(
        device=hidden_NC.device.type,
        dtype=hidden_NC.dtype,
        gradient=torch.is_grad_enabled() and (hidden_NC.requires_grad or weight_VC.requires_grad),
        compiling=torch.compiler.is_compiling(),
        capability=compute_capability(hidden_NC.device),
        softcap=softcap,
        reduction=reduction,
    )
    run = LOSS.select(request, backend).run
    return run(hidden_NC, weight_VC, targets_N, LossOptions(vocab_size, softcap, reduction))


def _native(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, options: LossOptions) -> Tensor:
    product_NV = F.linear(hidden_NC, weight_VC[: options.vocab_size].to(hidden_NC.dtype))
    logits_NV = product_NV.to(accum_dtype(hidden_NC.dtype))
    if options.softcap:
        logits_NV = options.softcap * torch.tanh(logits_NV / options.softcap)
    losses_N = F.cross_entropy(logits_NV, targets_N, ignore_index=IGNORE_INDEX, reduction="none")
    return losses_N if options.reduction == "none" else _mean(losses_N.sum(), targets_N)


def _mean(total: Tensor, targets_N: Tensor) -> Tensor:
    """Over the counted targets; of none it is 0, with gradients that are 0."""
    return total / (targets_N != IGNORE_INDEX).sum().clamp(min=1)


def _cce(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, options: LossOptions) -> Tensor:
    """Its filter, which skips small gradients, stays off: it starves rare tokens in pretraining."""
    loss: Tensor = CCE(
        hidden_NC,
        weight_VC[: options.vocab_size].to(hidden_NC.dtype),
        targets_N,
        ignore_index=IGNORE_INDEX,
        softcap=options.softcap or None,
        reduction="none" if options.reduction == "none" else "sum",
        filter_eps=None,
    )
    return loss if options.reduction == "none" else _mean(loss, targets_N)


def _liger(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, options: LossOptions) -> Tensor:
    function = LIGER(
        ignore_index=IGNORE_INDEX,
        softcap=options.softcap or None,
        reduction="none" if options.reduction == "none" else "sum",
        accum_dtype=torch.float32,
    )
    loss: Tensor = function(weight_VC[: options.vocab_size].to(hidden_NC.dtype), hidden_NC, targets_N)
    return loss if options.reduction == "none" else _mean(loss, targets_N)


def _chunked_refuses(request: LossRequest) -> str:
    if request.softcap > MAX_SOFTCAP:
        return f"needs a softcap of at most {MAX_SOFTCAP:g}, not {request.softcap:g}: exp would overflow"
    return ""


def _syncs_with_host(request: LossRequest) -> str:
    return "reads sizes back from the GPU, which torch.compile cannot trace" if request.compiling else ""


def _liger_refuses(request: LossRequest) -> str:
    if request.gradient and request.reduction == "none":
        return 'gives wrong gradients for reduction "none" up to at least 0.7 (its issue 968)'
    return _syncs_with_host(request)


CCE = OptionalImport.load("cut_cross_entropy", "linear_cross_entropy")
LIGER = OptionalImport.load("liger_kernel.transformers", "LigerFusedLinearCrossEntropyLoss")
BACKENDS: dict[str, KernelBackend[LossRequest]] = {
    backend.name: backend
    for backend in (
        KernelBackend("chunked", chunked_loss, refusal=_chunked_refuses),
        KernelBackend("native", _native),
        KernelBackend("cce", _cce, ("cuda",), HALF, (8, 0), CCE, _syncs_with_host),
        KernelBackend("liger", _liger, ("cuda",), (), (8, 0), LIGER, _liger_refuses),
    )
}
LOSS = KernelTable("loss", BACKENDS, lambda _: ("chunked", "native"))
