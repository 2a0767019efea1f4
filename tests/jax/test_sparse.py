"""Sparse attention in JAX: the choice by its definition, and memory that grows with the length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpplm.jax.sparse import IndexerOutput, _kth_largest, _ordered, _select_keys, sparse_attention
from cpplm.model.config import SparseAttentionConfig

numbers = st.sampled_from([0.0, -0.0, 1.0]) | st.floats(width=32, allow_nan=False, allow_subnormal=False)


@pytest.mark.slow
@given(st.lists(numbers, min_size=1, max_size=20), st.data())
def test_the_kth_largest(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    x = np.asarray(values, np.float32)
    ordered = np.asarray(_ordered(jnp.asarray(x)))
    least = np.asarray(_kth_largest(jnp.asarray(ordered), k))
    assert ((ordered >= least) == (x >= np.sort(x)[::-1][k - 1])).all()


def test_keys_nearby_and_ties_are_taken() -> None:
    score = jnp.asarray([[[3.0, 1.0, 2.0, 2.0, -5.0, 0.0]]])
    visible = jnp.asarray([[[True, True, True, True, True, False]]])
    near = jnp.asarray([[[False, False, False, False, True, True]]])

    def taken(k: int) -> list[int]:
        return np.flatnonzero(_select_keys(score, visible, near, k) & visible).tolist()

    assert taken(1) == [4]
    assert taken(2) == [0, 4]
    assert taken(3) == taken(4) == [0, 2, 3, 4]
    assert taken(5) == taken(6) == [0, 1, 2, 3, 4]


def bytes_of_scores(length: int, block: int) -> int:
    """Memory beside inputs and outputs of forward and backward pass, as compiled."""
    config = SparseAttentionConfig(
        top_k=length // 2, local_window=16, indexer_heads=2, indexer_dim=8, start_layer=0
    )

    def total(query: jax.Array, key: jax.Array, index: IndexerOutput) -> jax.Array:
        mixed, divergence = sparse_attention(
            query, key, key, index, config=config, document_ids=None, dense=False, block=block, mesh=None
        )
        return mixed.sum() + divergence.sum()

    shapes = (
        jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32),
        jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32),
        IndexerOutput(
            jax.ShapeDtypeStruct((1, length, 2, 8), jnp.float32),
            jax.ShapeDtypeStruct((1, length, 8), jnp.float32),
            jax.ShapeDtypeStruct((1, length, 2), jnp.float32),
        ),
    )
    step = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    return int(step.lower(*shapes).compile().memory_analysis().temp_size_in_bytes)


@pytest.mark.slow
def test_memory_grows_with_the_length_and_not_with_its_square() -> None:
    short, long = bytes_of_scores(4096, 64), bytes_of_scores(16_384, 64)
    assert long < 5 * short
    assert long < 16_384 * 16_384 * 4 / 4  # of one head's scores, a quarter
