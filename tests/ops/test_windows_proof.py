"""Windows and contractions, drawn: any geometry, layout and dtype, with derivatives, against float64.

KILN_TEST_FULL=1 draws a hundred times as many, each time others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from backend import needs_torch, torch
from hypothesis import given
from hypothesis import strategies as st
from test_products_proof import drawn

import kiln
from kiln.testing.compare import same_bits

Array = np.ndarray[Any, Any]
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LEAST = {"float64": 1e-300, "float32": 1e-36, "float16": 1e-6, "bfloat16": 1e-36}  # where numbers end


@st.composite
def geometries(draw: Any, transposed: bool) -> dict[str, Any]:
    """Sizes and settings with at least one place to look at."""
    dims = draw(st.sampled_from([1, 2, 2, 3]))

    def each(*values: int) -> list[int]:
        return [draw(st.sampled_from(values)) for _ in range(dims)]

    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 5]))
    inner, outer = draw(st.sampled_from([1, 1, 2, 3, 8, 17])), draw(st.sampled_from([1, 2, 3, 5, 16, 25]))
    kernel, stride, dilation = each(1, 1, 2, 3, 4, 7), each(1, 1, 1, 2, 3, 5), each(1, 1, 1, 2, 3)
    padding = each(0, 0, 1, 2, 4)
    found: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups, "padding": padding}
    if transposed:
        sizes = each(1, 2, 3, 5, 8, 16)
        found["output_padding"] = [draw(st.integers(0, max(s, r) - 1)) for s, r in zip(stride, dilation)]
        for d in range(dims):
            reach = (sizes[d] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + found["output_padding"][d]
            padding[d] = min(padding[d], reach // 2)
        w = (groups * inner, outer, *kernel)
    else:
        sizes = each(0, 1, 2, 5, 9, 16, 33)
        for d in range(dims):
            padding[d] = min(padding[d], 4)
            sizes[d] = max(sizes[d], dilation[d] * (kernel[d] - 1) + 1 - 2 * padding[d], 1)
        w = (groups * outer, inner, *kernel)
    batch = draw(st.sampled_from([1, 1, 2, 3, 0]))
    found["x"], found["w"] = (batch, groups * inner, *sizes), w
    if batch * groups * inner * outer * np.prod(sizes, dtype=int) * np.prod(kernel) > 3_000_000:
        found["x"] = (
            min(batch, 1),
            groups * inner,
            *[min(n, 9 + dilation[d] * kernel[d]) for d, n in enumerate(sizes)],
        )
    found["bias"] = groups * outer if draw(st.booleans()) else 0
    return found


def lie(k: Any, x: Any, way: str) -> Any:
    """The same values in another layout."""
    if way == "channels last":
        order = [0, *range(2, x.ndim), 1]
        back = [0, x.ndim - 1, *range(1, x.ndim - 1)]
        return x.permute(order).contiguous().permute(back)
    if way == "spaced":
        return k.stack([x, x * 0 + 7], -1)[..., 0]
    if way == "permuted":
        return x.transpose(0, x.ndim - 1).contiguous().transpose(0, x.ndim - 1)
    if way == "inside":
        return k.nn.functional.pad(x, (1, 2))[..., 1 : x.shape[-1] + 1]
    return x


WAYS = st.sampled_from(["plain", "plain", "channels last", "spaced", "permuted", "inside"])


def outcome(k: Any, f: Any, arrays: list[Array], weights: Array, dtype: str, ways: list[str]) -> list[Any]:
    """A function's value and the gradients of its weighted sum, as tensors of the dtype."""
    kind = getattr(k, dtype)
    leaves = [lie(k, k.tensor(a).to(kind), way).detach().requires_grad_() for a, way in zip(arrays, ways)]
    y = f(k, *leaves)
    return [y.detach(), *k.autograd.grad((y * k.tensor(weights).to(kind)).sum(), leaves)]


def held(x: Array, dtype: str) -> Array:
    """float64 values as the dtype holds them."""
    return np.asarray(torch.tensor(x).to(getattr(torch, dtype)).double().numpy())


def compare(f: Any, arrays: list[Array], dtype: str, ways: list[str]) -> None:
    """Sums of products and their gradients against PyTorch's in float64: each element as near as its
    number of terms, and what they add up to without signs, allow. Layouts change no bit.
    """
    arrays = [held(a, dtype) for a in arrays]
    ones = [np.ones_like(a) for a in arrays]
    shape = tuple(f(torch, *map(torch.tensor, arrays)).shape)
    weights = held(np.cos(np.arange(np.prod(shape, dtype=int))).reshape(shape), dtype)
    plain = ["plain"] * len(arrays)
    got = outcome(kiln, f, arrays, weights, dtype, ways)
    exact = outcome(torch, f, arrays, weights, "float64", plain)
    sizes = outcome(torch, f, [np.abs(a) for a in arrays], np.abs(weights), "float64", plain)
    terms = outcome(torch, f, ones, np.ones(shape), "float64", plain)
    chain = UNIT["float64" if dtype == "float64" else "float32"]
    for mine, true, size, count in zip(got, exact, sizes, terms, strict=True):
        assert tuple(mine.shape) == tuple(true.shape)
        error = (mine.double() - kiln.tensor(true.numpy())).abs().numpy()
        allowed = ((count.numpy() + 4) * chain + 4 * UNIT[dtype]) * size.numpy() + LEAST[dtype]
        assert np.all(error <= allowed), (error.max(), shape)
    for x, y in zip(got, outcome(kiln, f, arrays, weights, dtype, plain)):
        assert same_bits(x.double().numpy(), y.double().numpy())


def values(shape: tuple[int, ...], seed: int) -> Array:
    """Normal values."""
    return np.random.default_rng(seed).normal(size=shape)


DTYPES = st.sampled_from(["float64", "float32", "float32", "bfloat16", "float16"])


@needs_torch
@drawn(8)
@given(case=geometries(False), dtype=DTYPES, ways=st.lists(WAYS, min_size=3, max_size=3))
def test_convolutions(case: dict[str, Any], dtype: str, ways: list[str]) -> None:
    check_window("conv", case, dtype, ways)


@needs_torch
@drawn(6)
@given(case=geometries(True), dtype=DTYPES, ways=st.lists(WAYS, min_size=3, max_size=3))
def test_transposed_convolutions(case: dict[str, Any], dtype: str, ways: list[str]) -> None:
    check_window("conv_transpose", case, dtype, ways)


def check_window(name: str, case: dict[str, Any], dtype: str, ways: list[str]) -> None:
    """One drawn convolution."""
    case = dict(case)
    x, w, bias = (case.pop(key) for key in ("x", "w", "bias"))
    arrays = [values(x, 1), values(w, 2)] + ([values((bias,), 3)] if bias else [])
    ways = [*ways[:2], "plain"][: len(arrays)]
    function = f"{name}{len(x) - 2}d"
    compare(lambda k, *leaves: getattr(k.nn.functional, function)(*leaves, **case), arrays, dtype, ways)


SIZE = st.sampled_from([0, 1, 1, 2, 3, 5, 16, 17, 33, 70, 130])
EINSUMS = [
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ki", "bij,bjk->bik", "bij,jk->bik", "bij,bkj->ikb", "bhid,bhjd->bhij",
    "ij,j->i", "i,j->ij", "ij,ij->i", "bij,bij->", "ijb,jkb->bik", "abi,aci->bc", "ij,jk,kl->il",
    "bi,bj,bk->ijk",
]  # fmt: skip


@needs_torch
@drawn(12)
@given(
    equation=st.sampled_from(EINSUMS), sizes=st.dictionaries(st.sampled_from("abcdhijkl"), SIZE, min_size=9),
    dtype=DTYPES, ways=st.lists(WAYS, min_size=3, max_size=3),
)  # fmt: skip
def test_contractions(equation: str, sizes: dict[str, int], dtype: str, ways: list[str]) -> None:
    parts = equation.split("->")[0].split(",")
    if len(parts) > 2:  # what lies between is rounded
        dtype = "float64"
    while np.prod([sizes[c] for c in {*equation} & {*sizes}], dtype=float) > 2_000_000:
        largest = max({*equation} & {*sizes}, key=sizes.__getitem__)
        sizes = {**sizes, largest: sizes[largest] // 2}
    arrays = [values(tuple(sizes[c] for c in part), n) for n, part in enumerate(parts)]
    ways = ["plain" if way == "inside" or a.ndim < 2 else way for a, way in zip(arrays, ways)]
    compare(lambda k, *leaves: k.einsum(equation, *leaves), arrays, dtype, ways)
