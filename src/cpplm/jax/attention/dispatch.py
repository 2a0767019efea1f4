"""One call for causal attention, whichever way it is computed.

| kind   | how                                 | windows, documents                      | memory        |
|--------|-------------------------------------|-----------------------------------------|---------------|
| einsum | two products and a softmax          | a mask                                  | T x T scores  |
| jax    | `jax.nn.dot_product_attention`, XLA | a mask                                  | T x T scores  |
| splash | Pallas kernel, TPU                  | hidden blocks left out; any mesh        | O(T)          |
| pallas | Pallas kernel, TPU                  | documents only; no context axis         | O(T)          |

`auto` is splash on TPUs and einsum elsewhere. The devices of the mesh decide, also those that are not
here, as in compiling ahead of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import jax
from jax import Array
from jax.sharding import Mesh

from cpplm.core.errors import UserError
from cpplm.jax.attention.dense import dense_attention, xla_attention
from cpplm.jax.attention.flash import check_row, flash_attention
from cpplm.jax.attention.splash import padding_to_tiles, splash_attention
from cpplm.jax.mesh_axes import CONTEXT, axis_size
from cpplm.model.config import ModelConfig

_BY_XLA: dict[str, Callable[..., Array]] = {"einsum": dense_attention, "jax": xla_attention}
_KERNELS: dict[str, Callable[..., Array]] = {"splash": splash_attention, "pallas": flash_attention}


def attend(
    query_BTHD: Array,
    key_BTGD: Array,
    value_BTGD: Array,
    *,
    window: int | None,
    document_ids: Array | None,
    kind: str = "auto",
    mesh: Mesh | None = None,
    interpret: bool = False,
) -> Array:
    """Causal attention of each row over itself.

    Args:
        query_BTHD: queries.
        key_BTGD: keys, G dividing H.
        value_BTGD: values.
        window: earlier tokens visible besides the token itself, as in `ModelConfig`; None, or as many
            as there are, for all.
        document_ids: the document of each token, integers BT; None for one document per row.
        kind: "auto" or one of the table above.
        mesh: the devices that share the work; None for one.
        interpret: run kernels as JAX operations, on any device: for tests.

    Returns:
        The mixed values, BTHD, in the dtype of the queries.

    Raises:
        UserError: that kind cannot do this.
    """
    chosen = resolve_attention(kind, mesh, interpret=interpret)
    run = _BY_XLA.get(chosen) or partial(_KERNELS[chosen], mesh=mesh, interpret=interpret)
    return run(query_BTHD, key_BTGD, value_BTGD, window=window, document_ids=document_ids)


def resolve_attention(kind: str, mesh: Mesh | None = None, *, interpret: bool = False) -> str:
    """Name the kind that computes attention on these devices: what `auto` stands for.

    Raises:
        UserError: a kind that only TPUs have, elsewhere.
    """
    platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
    if kind == "auto":
        return "splash" if platform == "tpu" else "einsum"
    if kind in _KERNELS and platform != "tpu" and not interpret:
        raise UserError(
            f"{kind} attention is a kernel for TPUs, these devices are {platform}", fix="Use einsum, or auto."
        )
    return kind


def check_row_lengths(kind: str, config: ModelConfig, lengths: Sequence[int], mesh: Mesh) -> None:
    """Refuse what a kernel would refuse, before anything is traced.

    Args:
        kind: as `resolve_attention` gives it.
        config: of the model, whose windows count.
        lengths: of rows, in tokens.
        mesh: the devices.

    Raises:
        UserError: this kernel cannot compute these rows on this mesh.
    """
    shards = axis_size(mesh, CONTEXT)
    for length, window in product(lengths, config.windows()):
        if kind == "pallas":
            check_row(length, window, shards)
        elif kind == "splash":
            padding_to_tiles(length, shards)
