"""Hidden states of a causal model of the transformers library, for losses that compute logits themselves."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cpplm.core.errors import UserError


class HfStates:
    """States before the output head of a model whose logits are their products with it, and that head."""

    def __init__(self, model: Any, name: str) -> None:
        """Try out on a few tokens whether the model is one.

        Args:
            model: of `transformers`, where it shall compute.
            name: of it, for errors.

        Raises:
            UserError: its logits are no such products; they are capped or scaled, say.
        """
        self._model, self._name = model, name
        self._isolates = isolates_documents(model)
        ids_BT = torch.arange(8, device=model.device)[None] % self.head_VC.shape[0]
        with torch.no_grad():
            expected = model(input_ids=ids_BT, use_cache=False).logits.float()
            found = (self(ids_BT, None) @ self.head_VC.T.to(model.dtype)).float()
        tolerance = 16 * torch.finfo(model.dtype).eps * float(expected.abs().max())
        if not torch.allclose(found, expected, rtol=0.0, atol=tolerance):
            raise UserError(
                f"the logits of {name} are not its last hidden states times its output embedding (they are "
                "more than products with that matrix, such as soft-capped or scaled), as needed here",
                fix="Use another model.",
            )

    @property
    def head_VC(self) -> Tensor:  # noqa: N802  (shapes)
        """The weight of the output head."""
        return self._model.get_output_embeddings().weight

    def __call__(self, ids_BT: Tensor, documents_BT: Tensor | None) -> Tensor:
        """States BTC; documents, where they are given, do not see each other.

        Raises:
            UserError: the model cannot keep documents of a row apart.
        """
        options = {}
        if documents_BT is not None:
            if not self._isolates:
                raise UserError(f"{self._name} cannot keep the documents of a row apart")
            options["position_ids"] = document_positions(documents_BT)
        return self._model.base_model(input_ids=ids_BT, use_cache=False, **options).last_hidden_state


def document_positions(documents_BT: Tensor) -> Tensor:
    """Positions that begin anew in each document of a row, BT."""
    places_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    begins_BT = F.pad(documents_BT[:, 1:] != documents_BT[:, :-1], (1, 0), value=True)
    return places_T - torch.where(begins_BT, places_T, 0).cummax(dim=1).values


@torch.no_grad()
def isolates_documents(model: Any) -> bool:
    """True if position ids that begin anew keep what stands before them out of sight, tried out."""
    if "position_ids" not in inspect.signature(model.forward).parameters:
        return False
    length, vocab_size = 8, model.get_input_embeddings().weight.shape[0]
    first = torch.arange(length)
    pairs = [torch.cat([first + shift, first]) for shift in (1, length)]
    inputs_BT = (torch.stack(pairs) % vocab_size).to(model.device)
    positions_BT = first.repeat(2).expand_as(inputs_BT).to(model.device)
    logits = model(input_ids=inputs_BT, position_ids=positions_BT, use_cache=False).logits[:, length:]
    return torch.allclose(logits[0], logits[1], rtol=0.0, atol=1e-5 * float(logits.abs().max()))
