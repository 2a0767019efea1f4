"""Every kind of attention against dense float32, forward and backward, on one device and on eight."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import Array
from jax.experimental.pallas.ops.tpu.splash_attention import LocalMask

from cpplm.core.errors import UserError
from cpplm.jax.attention.dense import attention_mask, dense_attention, left_window
from cpplm.jax.attention.dispatch import attend, check_row_lengths, resolve_attention
from cpplm.jax.attention.splash import _kernel, _WindowMask
from cpplm.model.config import ModelConfig
from cpplm.model.kernels.attention import attention
from cpplm.model.kernels.masks import visible as torch_visible
from tests.jax.devices import mesh_of


@dataclass(frozen=True)
class Case:
    batch: int = 1
    length: int = 256
    heads: int = 2
    groups: int = 2
    width: int = 64
    window: int | None = None
    documents: bool = False

    def arrays(self) -> tuple[Array, Array, Array, Array]:
        """Queries, keys, values and a weight for each output, so that no gradient cancels."""
        random = np.random.default_rng(self.length + self.width)  # JAX compiles its own for each shape
        query, key, value, weight = (
            jnp.asarray(random.standard_normal((self.batch, self.length, n, self.width), np.float32))
            for n in (self.heads, self.groups, self.groups, self.heads)
        )
        return query, key, value, weight

    def document_ids(self) -> Array | None:
        if not self.documents:
            return None
        ends = np.arange(1, self.batch + 1)[:, None] * self.length // (self.batch + 2)
        at = np.arange(self.length)[None, :]
        return jnp.asarray((at >= ends).astype(np.int32) + (at >= self.length * 3 // 4))


def outputs_and_gradients(run: Callable[..., Array], case: Case) -> list[np.ndarray]:
    query, key, value, weight = case.arrays()

    def loss(query: Array, key: Array, value: Array) -> tuple[Array, Array]:
        mixed = run(query, key, value, window=case.window, document_ids=case.document_ids())
        return (mixed * weight).sum(), mixed

    function = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (_, mixed), gradients = jax.jit(function)(query, key, value)
    return [np.asarray(x) for x in (mixed, *gradients)]


def check(run: Callable[..., Array], case: Case) -> None:
    expected = outputs_and_gradients(dense_attention, case)
    for name, ours, theirs in zip("oqkv", outputs_and_gradients(run, case), expected, strict=True):
        assert np.abs(theirs).max() > 0.1
        np.testing.assert_allclose(ours, theirs, atol=2e-5, rtol=2e-5, err_msg=name)


def of_kind(kind: str, **more: object) -> Callable[..., Array]:
    return lambda *args, **kwargs: attend(*args, kind=kind, interpret=True, **kwargs, **more)


# ---- windows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 5, 30, 31, None])
def test_a_window_means_the_same_everywhere(window: int | None) -> None:
    """The mask by definition, ours, PyTorch's and splash attention's; and the count of tokens seen."""
    length = 32
    i, j = np.arange(length)[:, None], np.arange(length)[None, :]
    expected = (j <= i) if window is None else (j <= i) & (i - j < window + 1)
    assert (np.asarray(attention_mask(length, window, None))[0, 0] == expected).all()
    assert (torch_visible(length, length, window, torch.device("cpu")).numpy() == expected).all()
    left = left_window(window, length)
    assert (LocalMask((length, length), (left, 0), 0)[:, :] == expected).all()
    assert expected[-1].sum() == (length if window is None else min(length, window + 1))


def test_a_window_of_the_whole_row_is_none() -> None:
    assert [left_window(w, 32) for w in (30, 31, 99, None)] == [30, None, None, None]


@pytest.mark.parametrize("left", [None, 0, 40, 128, 200])
def test_blocks_answered_as_one_element_are_what_the_mask_has_there(left: int | None) -> None:
    ours, theirs = (kind((512, 512), (left, 0), 0) for kind in (_WindowMask, LocalMask))
    for row in range(0, 512, 128):
        for column in range(0, 512, 128):
            index = (slice(row, row + 128), slice(column, column + 128))
            assert (np.broadcast_to(ours[index], (128, 128)) == theirs[index]).all()


def test_the_plan_of_65536_tokens_is_made_once_per_window_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense blocks take half a minute; only those on an edge of the window are computed."""
    asked = []
    computed = LocalMask.__getitem__
    monkeypatch.setattr(LocalMask, "__getitem__", lambda *a: asked.append(1) or computed(*a))
    first = _kernel(65_536, 4096, 8, 1, 1, False)
    edges = len(asked)
    assert 0 < edges < 3000  # of 128 * 128 blocks, three plans, two looks at each
    assert _kernel(65_536, 4096, 8, 1, 1, False) is first
    assert len(asked) == edges


# ---- one device -------------------------------------------------------------------------------------------


def test_dense_is_what_pytorch_computes() -> None:
    case = Case(batch=2, length=24, heads=4, groups=2, width=8, window=7, documents=True)
    query, key, value, _ = case.arrays()
    ids = case.document_ids()
    expected = attention(
        *(torch.from_numpy(np.array(x)).transpose(1, 2) for x in (query, key, value)),
        window=case.window,
        documents_BS=None if ids is None else torch.from_numpy(np.array(ids)),
        backend="sdpa",
    )
    ours = jax.jit(partial(dense_attention, window=case.window, document_ids=ids))(query, key, value)
    np.testing.assert_allclose(ours, expected.transpose(1, 2).numpy(), atol=1e-6)


@pytest.mark.parametrize("window", [None, 40])
def test_xla_attention(window: int | None) -> None:
    check(of_kind("jax"), Case(batch=2, length=96, heads=4, groups=2, window=window, documents=True))


@pytest.mark.slow
def test_half_precision_sums_in_float32() -> None:
    query, key, value, _ = Case(length=128).arrays()
    exact = dense_attention(query, key, value, window=100)
    half = [x.astype(jnp.bfloat16) for x in (query, key, value)]
    for kind in ("einsum", "jax", "splash"):
        ours = of_kind(kind)(*half, window=100, document_ids=None)
        assert ours.dtype == jnp.bfloat16
        assert np.abs(ours.astype(jnp.float32) - exact).max() < 0.06


PAIRS = [  # each pair of two settings' values once
    Case(width=width, window=window, groups=groups, heads=4, documents=documents, batch=2)
    for width, window, groups, documents in (
        (64, None, 4, True), (128, None, 1, False), (64, 1, 1, True), (128, 1, 4, False), (64, 130, 4, False),
        (128, 130, 1, True),
    )
]  # fmt: skip


@pytest.mark.slow
def test_splash() -> None:
    """Of rows that are no whole tiles."""
    check(of_kind("splash"), Case(length=200, window=100, groups=1, documents=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", [*PAIRS, Case(length=512, window=200)], ids=str)
def test_splash_in_every_combination(case: Case) -> None:
    check(of_kind("splash"), case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [Case(groups=1, documents=True), Case(width=128, batch=2)], ids=str)
def test_flash(case: Case) -> None:
    check(of_kind("pallas"), case)


# ---- eight devices ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("axes", "window"), [({"data": 4, "model": 2}, None), ({"fsdp": 2, "context": 4}, 200)], ids=str
)
def test_splash_on_a_mesh(axes: dict[str, int], window: int | None) -> None:
    case = Case(batch=4, length=512, heads=4, groups=2, window=window, documents=True)
    check(of_kind("splash", mesh=mesh_of(**axes)), case)


@pytest.mark.slow
def test_flash_on_a_mesh() -> None:
    mesh = mesh_of(data=2, model=2)
    check(of_kind("pallas", mesh=mesh), Case(batch=2, documents=True))


# ---- bad input --------------------------------------------------------------------------------------------


def test_what_cannot_be_done_is_one_clear_error() -> None:
    query, key, value, _ = Case(batch=2, length=256, heads=4, groups=2).arrays()

    def refused(message: str, **asked: object) -> None:
        settings = {"window": None, "document_ids": None, "interpret": True, **asked}
        with pytest.raises(UserError, match=message):
            attend(query, key, value, **settings)

    refused("kernel for TPUs, these devices are cpu", kind="splash", interpret=False)
    refused("kernel for TPUs, these devices are cpu", kind="pallas", mesh=mesh_of(data=2), interpret=False)


def test_rows_are_checked_before_anything_is_traced() -> None:
    def refused(message: str, kind: str, length: int, **axes: int) -> None:
        with pytest.raises(UserError, match=message):
            check_row_lengths(kind, config, [256, length], mesh_of(**axes))

    config = ModelConfig(vocab_size=300, num_layers=4, num_heads=4, num_kv_heads=4, head_dim=64,
                         model_dim=256, max_seq_len=512, window_pattern="SSSL")  # fmt: skip
    refused("causal only, it has no window", "pallas", 512)
    refused("multiple of 512 tokens, not 256", "splash", 512, context=4)
    check_row_lengths("splash", config, [256, 300], mesh_of(data=2))
    check_row_lengths("einsum", config, [300], mesh_of(context=4))
    config = dataclasses.replace(config, window_pattern="L")
    refused("multiple of 128 tokens, not 300", "pallas", 300)
    refused("context axis", "pallas", 512, context=2)
    check_row_lengths("pallas", config, [256, 512], mesh_of(data=2))


def test_auto_takes_what_the_devices_have() -> None:
    assert resolve_attention("auto") == "einsum"
    assert resolve_attention("auto", mesh_of(data=2)) == "einsum"
