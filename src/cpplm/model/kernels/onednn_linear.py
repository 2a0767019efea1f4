"""Matrix products on a CPU with weights in the order in which oneDNN wants to read them.

For a few tokens at a time, as in decoding, a product mostly waits for its weights; with ordinary ones oneDNN
brings them into its own order every time. Packed once, bfloat16 gives the same bits. Time of packed over
ordinary, one thread of an AMD EPYC with AVX512-BF16, torch 2.13, 3072 x 768, 2026-11-22:

| tokens | bfloat16 | float32 |
|--------|----------|---------|
| 1      | 0.55     | 0.77    |
| 4      | 0.42     | 0.43    |
| 16     | 0.55     | 0.54    |
| 128    | 0.74     | 0.62    |

A few rows in bfloat16 are quicker still with the weight as it was, by a kernel that reads it as fast as
memory gives it (`small_batch_linear.py`), or where that is missing a single row by torch's own loop over its
rows, which runs only where oneDNN is switched off: 0.7 of the time of packed products, for all of a model of
110 million weights. So each weight is kept twice, as many bytes as once in float32.

The two operators are those that torch.compile uses for the same end (`torch/_inductor/fx_passes/
mkldnn_fusion.py`). They are no documented interface: where they are missing nothing is packed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cpplm.model.kernels.small_batch_linear import gemv, supports

_TYPICAL_TOKENS = 16
_LEAST_WEIGHTS = 2**14  # packing smaller ones saves nothing


class PackedLinear(nn.Module):
    """A linear layer without bias, for inference: it has no gradient."""

    def __init__(self, linear: nn.Linear, *, keep_weight: bool) -> None:
        """Pack a layer's weight.

        Args:
            linear: the layer that it stands for.
            keep_weight: whether the weight stays there as it is, too, for others to read; in bfloat16 always.
        """
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self._row_by_row = linear.weight.dtype == torch.bfloat16
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _TYPICAL_TOKENS)
        if keep_weight or self._row_by_row:
            self.weight = linear.weight

    def forward(self, x: Tensor) -> Tensor:
        """(..., in_features) to (..., out_features), in the dtype of the weight."""
        if self._row_by_row:
            if supports(x):
                return gemv(x, self.weight)
            if x.numel() == self.in_features:
                return self._of_one_row(x)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, None, "none", [], "")

    def _of_one_row(self, x: Tensor) -> Tensor:
        before = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            return torch.mv(self.weight, x.reshape(-1)).view(*x.shape[:-1], -1)
        finally:
            torch._C._set_mkldnn_enabled(before)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """True if packed weights work here."""
    operators = ("_reorder_linear_weight", "_linear_pointwise", "_is_mkldnn_bf16_supported")
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if not all(hasattr(torch.ops.mkldnn, name) for name in operators):
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def pack_linear_layers(model: nn.Module, keep_weights: tuple[str, ...] = ()) -> None:
    """Put packed layers in the place of the large linear ones, which must have one dtype already, in place.

    Args:
        model: whose layers they are.
        keep_weights: names of layers whose weights are read elsewhere.
    """
    for name, module in list(model.named_modules()):
        if (
            isinstance(module, nn.Linear)
            and module.bias is None
            and module.weight.numel() >= _LEAST_WEIGHTS
            and can_pack(module.weight.device, module.weight.dtype)
        ):
            model.set_submodule(name, PackedLinear(module, keep_weight=name in keep_weights))
