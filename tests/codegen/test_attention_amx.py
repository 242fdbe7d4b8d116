"""Attention of bfloat16 on AMX, forward and gradients: bit by bit what its order says, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_attention import TOLERANCES, as_given, assert_near, operands, run, wanted
from test_codegen_amx import needs_amx, ordered, rounded

import kiln

Array = np.ndarray[Any, Any]


def bits(x: Array) -> Array:
    """float32 as the bits of bfloat16."""
    return rounded(np.ascontiguousarray(x, np.float32))


def total(x: Array) -> Array:
    """Sums of rows, in the order of a reduction."""
    return kiln.tensor(x).sum(-1, keepdim=True).numpy()


def head(q: list[Array], k: Array, v: Array, g: list[Array], scale: Array, causal: bool) -> list[Array]:
    """out and dq of each member of a group, dk, dv: of arrays of bits; float32, not yet rounded."""
    outs, grads, slopes, shares = [], [], [], []
    for own, grad in zip(q, g):
        x = ordered(own, k.T) * scale
        if causal:
            x = np.where(np.tri(*x.shape, dtype=bool), x, -np.inf).astype(np.float32)
        e = kiln.exp(kiln.tensor(x - x.max(-1, keepdims=True))).numpy()
        share = np.float32(1) / total(e)
        outs.append(ordered(bits(e), v) * share)
        d = ordered(grad, v.T)
        p = e * share
        ds = p * (d - total(e * d) * share)
        grads.append(ordered(bits(ds), k) * scale)
        slopes.append(padded(bits(ds)))
        shares.append(padded(bits(p)))
    dk = ordered(np.concatenate(slopes).T, np.concatenate([padded(x) for x in q])) * scale
    dv = ordered(np.concatenate(shares).T, np.concatenate([padded(x) for x in g]))
    return [np.stack(outs), np.stack(grads), dk[None], dv[None]]


def padded(x: Array) -> Array:
    """Rows in whole steps of 32: those of a member begin a new one."""
    return np.pad(x, ((0, -len(x) % 32), (0, 0)))


@needs_amx
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "sizes", [(1, 5, 7, 3, 2), (1, 140, 300, 40, 33), (3, 45, 33, 64, 64), (2, 300, 90, 33, 8)]
)
def test_the_order(sizes: tuple[int, ...], causal: bool) -> None:
    """Members of a group, queries, keys, elements of both: all that a block may end with."""
    members, rows, keys, e, v = sizes
    arrays = operands((1, members), rows, keys, e, v)
    arrays[1:3] = [x[:, :1] for x in arrays[1:3]]
    scale = np.float32(0.3)
    got = run(arrays, "bfloat16", is_causal=causal, scale=float(scale), enable_gqa=True)
    q, k, v_, g = ([bits(member) for member in x[0]] for x in arrays)
    for x, y in zip(got, head(q, k[0], v_[0], g, scale, causal)):
        assert np.array_equal(bits(x.float().numpy()[0]), bits(y))


@needs_amx
@pytest.mark.parametrize("rows", [17, 40])
def test_a_mask_that_adds_much(rows: int) -> None:
    """Whose exp is infinite: a block's rows that do not exist put zeros into the gradients, not NaN."""
    arrays = as_given(operands((2,), rows, 70, 16, 16), "bfloat16")
    got = run([x.astype("float32") for x in arrays], "bfloat16", attn_mask=kiln.full((rows, 70), 100.0))
    assert_near(got, wanted(arrays), TOLERANCES["bfloat16"])
