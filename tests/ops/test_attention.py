"""scaled_dot_product_attention: values and gradients beside NumPy and PyTorch; the same bits by any way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from backend import kiln, torch

from kiln.autograd import gradcheck, gradgradcheck
from kiln.nn.attention import SDPBackend, sdpa_kernel
from kiln.nn.functional import scaled_dot_product_attention as attention

# query, key, value: leading dims, L, S, E, V
SHAPES = [
    ((2, 3), 5, 5, 4, 4),
    ((1, 2), 1, 1, 1, 1),
    ((2,), 49, 33, 17, 40),
    ((), 100, 7, 64, 2),
    ((2, 1, 3), 31, 65, 8, 33),
    ((1, 1), 97, 600, 16, 16),
    ((1, 1), 3, 4, 600, 5),
    ((2,), 1, 300, 64, 64),
    ((2,), 14, 300, 20, 32),
]
EMPTY = [((0, 2), 3, 4, 5, 6), ((2,), 0, 4, 5, 6), ((2,), 3, 0, 5, 6), ((2,), 3, 4, 0, 6), ((2,), 3, 4, 5, 0)]


def operands(lead: Any, rows: int, keys: int, e: int, v: int, dtype: str = "float32", seed: int = 0) -> Any:
    """query, key, value and a gradient of the output."""
    rng = np.random.default_rng(seed)
    shapes = (*lead, rows, e), (*lead, keys, e), (*lead, keys, v), (*lead, rows, v)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def as_given(arrays: Any, dtype: str) -> list[Any]:
    """What arrays are once they are of a dtype."""
    return [kiln.tensor(x).to(getattr(kiln, dtype)).double().numpy() for x in arrays]


def run(arrays: Any, dtype: str | None = None, **settings: Any) -> list[Any]:
    """The output and the gradients of query, key and value, of kiln."""
    *inputs, g = [
        kiln.tensor(x) if dtype is None else kiln.tensor(x).to(getattr(kiln, dtype)) for x in arrays
    ]
    for x in inputs:
        x.requires_grad_()
    out = attention(*inputs, **settings)
    return [out.detach(), *kiln.autograd.grad(out, inputs, g)]


def wanted(arrays: Any, mask: Any = None, causal: bool = False, factors: Any = 1.0) -> list[Any]:
    """The same in NumPy, in float64; `factors`: what dropout multiplies the weights by."""
    q, k, v, g = (np.asarray(x, np.float64) for x in arrays)
    scale = 1 / np.sqrt(q.shape[-1]) if q.shape[-1] else 1.0
    x = q @ k.swapaxes(-1, -2) * scale
    if mask is not None:
        x = np.where(mask, x, -np.inf) if mask.dtype == bool else x + mask
    if causal:
        x = np.where(np.tri(*x.shape[-2:], dtype=bool), x, -np.inf)
    top = x.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(x - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    slopes = g @ v.swapaxes(-1, -2) * factors
    slopes = p * (slopes - (p * slopes).sum(-1, keepdims=True))
    p = p * factors
    return [p @ v, slopes @ k * scale, slopes.swapaxes(-1, -2) @ q * scale, p.swapaxes(-1, -2) @ g]


def assert_near(got: list[Any], expected: list[Any], tolerance: float) -> None:
    for x, y in zip(got, expected):
        x = x.double().numpy()
        assert x.shape == y.shape
        size = np.abs(y).max(initial=1.0)
        assert np.abs(x - y).max(initial=0.0) <= tolerance * size


def assert_bits(got: list[Any], expected: list[Any]) -> None:
    for x, y in zip(got, expected):
        assert x.shape == y.shape and x.dtype == y.dtype
        assert np.array_equal(x.float().numpy(), y.float().numpy(), equal_nan=True)


TOLERANCES = {"float32": 5e-6, "bfloat16": 2e-2}
both_dtypes = pytest.mark.parametrize("dtype", list(TOLERANCES))  # bfloat16 may run on AMX


@both_dtypes
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [*SHAPES, *EMPTY, ((1, 1), 300, 1000, 70, 100), ((1, 2), 70, 17000, 4, 8)])
def test_values(sizes: Any, causal: bool, dtype: str) -> None:
    """Every size, those of nothing among them, more keys than queries and fewer."""
    arrays = as_given(operands(*sizes), dtype)
    assert_near(run(arrays, dtype, is_causal=causal), wanted(arrays, None, causal), TOLERANCES[dtype])


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-13), ("float16", 4e-3)])
def test_dtypes(dtype: str, tolerance: float) -> None:
    """The other dtypes; float16 is computed in float32 and rounded once."""
    arrays = as_given(operands((2, 2), 50, 40, 20, 24), dtype)
    assert_near(run(arrays, dtype, is_causal=True), wanted(arrays, None, True), tolerance)


MASKS: list[Callable[[Any], Any]] = [
    lambda rng: rng.random((2, 3, 50, 37)) > 0.5,
    lambda rng: rng.random((50, 37)) > 0.5,
    lambda rng: rng.random((2, 1, 1, 37)) > 0.5,
    lambda rng: rng.random((3, 50, 1)) > 0.5,
    lambda rng: rng.standard_normal((1, 3, 50, 37)),
    lambda rng: rng.standard_normal((37, 50)).T,
    lambda rng: np.where(rng.random((50, 37)) > 0.5, 0, -np.inf),
]


@both_dtypes
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", MASKS)
def test_masks(make: Any, causal: bool, dtype: str) -> None:
    """Of bool or added, broadcast in any way, of other strides; with causal the two together."""
    arrays = as_given(operands((2, 3), 50, 37, 16, 16), dtype)
    mask = make(np.random.default_rng(1))
    mask = mask if mask.dtype == bool else mask.astype("float32")
    got = run(arrays, dtype, attn_mask=kiln.from_numpy(mask), is_causal=causal)
    assert_near(got, wanted(arrays, mask, causal), TOLERANCES[dtype])


@both_dtypes
def test_rows_that_look_at_nothing(dtype: str) -> None:
    """Give zeros, and gradients of zeros."""
    arrays = as_given(operands((), 3, 4, 5, 6), dtype)
    mask = np.array([[True] * 4, [False] * 4, [True, False, True, False]])
    for given in (kiln.tensor(mask), kiln.tensor(np.where(mask, 0, -np.inf).astype("float32"))):
        got = run(arrays, dtype, attn_mask=given)
        assert not got[0][1].any() and not got[1][1].any()
        assert_near(got, wanted(arrays, mask), TOLERANCES[dtype])


@both_dtypes
def test_low_numbers_hide_as_well(dtype: str) -> None:
    """A mask that adds a number so low that no weight is left has the bits of one that says so."""
    arrays = operands((2,), 50, 70, 16, 16)
    mask = np.random.default_rng(1).random((50, 70)) > 0.5
    got = run(arrays, dtype, attn_mask=kiln.tensor(np.where(mask, 0, -1e9).astype("float32")))
    assert_bits(got, run(arrays, dtype, attn_mask=kiln.tensor(mask)))


WRITTEN = [
    (((2, 3), 70, 90, 24, 40), "float64"),
    (((2,), 20, 700, 3, 5), "float32"),
    (((2, 1), 60, 40, 40, 33), "bfloat16"),
    (((2, 2), 170, 700, 64, 40), "bfloat16"),
    (((3,), 40, 17000, 70, 8), "bfloat16"),
    (((2,), 1, 520, 64, 64), "bfloat16"),
    (((1,), 5, 3, 530, 64), "float32"),
    (((2,), 1, 520, 64, 64), "float32"),
]


@pytest.mark.parametrize("sizes, dtype", WRITTEN)
def test_the_kernel_is_what_is_written_out(sizes: Any, dtype: str) -> None:
    """Bit by bit: products, a softmax and products in memory give what the kernel gives."""
    arrays = operands(*sizes)
    mask = kiln.tensor(np.random.default_rng(2).standard_normal((sizes[1], sizes[2])).astype("float32"))
    for settings in ({"is_causal": True}, {"attn_mask": mask, "scale": 0.3}):
        fused = run(arrays, dtype, **settings)
        with sdpa_kernel(SDPBackend.MATH):
            assert_bits(run(arrays, dtype, **settings)[:1], fused[:1])


@both_dtypes
def test_groups_of_heads(dtype: str) -> None:
    """Heads of the query that share keys are heads with the keys repeated."""
    q, k, v, g = as_given(operands((2, 6), 55, 40, 8, 12), dtype)
    k, v = k[:, :2], v[:, :2]
    got = run((q, k, v, g), dtype, enable_gqa=True, is_causal=True)
    out, dq, dk, dv = wanted((q, *(np.repeat(x, 3, 1) for x in (k, v)), g), None, True)
    expected = [out, dq, *(x.reshape(2, 2, 3, *x.shape[2:]).sum(2) for x in (dk, dv))]
    assert_near(got, expected, TOLERANCES[dtype])


def test_leading_dims_broadcast() -> None:
    """Keys of all batches, values of all heads."""
    q, k, v, g = operands((2, 3), 9, 7, 4, 5)
    k, v = k[:1], v[:, :1]
    shape = (2, 3)
    out, dq, dk, dv = wanted((q, *(np.broadcast_to(x, (*shape, *x.shape[2:])) for x in (k, v)), g))
    expected = [out, dq, dk.sum(0, keepdims=True), dv.sum(1, keepdims=True)]
    assert_near(run((q, k, v, g)), expected, 5e-6)


@both_dtypes
def test_layouts_do_not_matter(dtype: str) -> None:
    """Heads beside each other as a projection leaves them, columns of one array, last dims transposed."""
    rng = np.random.default_rng(3)
    whole = kiln.tensor(rng.standard_normal((2, 50, 3, 4, 19)).astype("float32")).to(getattr(kiln, dtype))
    views = [whole[:, :, i].transpose(1, 2) for i in range(3)]
    expected = attention(*(x.contiguous() for x in views), is_causal=True)
    assert_bits([attention(*views, is_causal=True)], [expected])
    leaf = whole.clone().requires_grad_()
    attention(*(leaf[:, :, i].transpose(1, 2) for i in range(3)), is_causal=True).sum().backward()
    apart = [x.contiguous().requires_grad_() for x in views]
    attention(*apart, is_causal=True).sum().backward()
    assert_bits([leaf.grad[:, :, i].transpose(1, 2) for i in range(3)], [x.grad for x in apart])
    transposed = [x.transpose(-1, -2).contiguous().requires_grad_() for x in views]
    out = attention(*(x.transpose(-1, -2) for x in transposed), is_causal=True)
    out.backward(kiln.ones(2, 4, 19, 50).to(out.dtype).transpose(-1, -2))
    assert_bits([out.detach()], [expected])
    assert_bits([x.grad.transpose(-1, -2) for x in transposed], [x.grad for x in apart])


@both_dtypes
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("rows", [10, 50])
def test_a_head_of_nothing_leaves_others_alone(rows: int, apart: bool, dtype: str, threads: Any) -> None:
    """What a head with NaN left in memory reaches no other, whatever is left of the last blocks."""
    threads(1)
    arrays = operands((3,), rows, 40, 32, 32)
    expected = run(arrays, dtype)
    for x in arrays:
        x[0] = np.nan
    *leaves, g = [kiln.tensor(x).to(getattr(kiln, dtype)).requires_grad_() for x in arrays]
    *given, g = [kiln.stack((x, x), -1)[..., 0] if apart else x for x in (*leaves, g)]
    out = attention(*given)
    got = [out.detach(), *kiln.autograd.grad(out, leaves, g)]
    assert_bits([x[1:] for x in got], [x[1:] for x in expected])


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    count = kiln.get_num_threads()
    yield kiln.set_num_threads
    kiln.set_num_threads(count)


@both_dtypes
def test_threads_do_not_matter(threads: Any, dtype: str) -> None:
    """Bits are those of one thread."""
    for lead in ((3, 4), (1, 1)):  # one head alone is cut
        arrays = operands(lead, 250, 770, 32, 32)
        for causal in (True, False):
            threads(1)
            expected = run(arrays, dtype, is_causal=causal)
            for count in (2, 3):
                threads(count)
                assert_bits(run(arrays, dtype, is_causal=causal), expected)


@both_dtypes
def test_recorded_is_eager(dtype: str) -> None:
    """A recorded step, with its gradients, has the bits of an eager one, at every size."""
    step = kiln.compile(lambda arrays: run(arrays, dtype, is_causal=True))
    for rows in (20, 20, 20, 61, 61):
        arrays = operands((2, 2), rows, rows, 8, 8)
        assert_bits(step(arrays), run(arrays, dtype, is_causal=True))


def check_gradients(kind: str, rows: int, keys: int, second: Any = gradgradcheck) -> None:
    """First and second derivatives of two heads (four that share keys)."""
    rng = np.random.default_rng(4)
    heads = 4 if kind == "groups" else 2
    shapes = [(heads, rows, 3), (2, keys, 3), (2, keys, 2)]
    inputs = [kiln.tensor(rng.standard_normal(s)).requires_grad_() for s in shapes]
    if kind == "added":
        inputs.append(kiln.tensor(rng.standard_normal((1, rows, keys))).requires_grad_())
    settings = {"is_causal": kind == "causal", "enable_gqa": kind == "groups"}

    def call(*xs: Any) -> Any:
        kiln.manual_seed(9)
        return attention(*xs, dropout_p=0.3 if kind == "dropout" else 0.0, **settings)

    fast = rows > 10
    assert gradcheck(call, inputs, fast_mode=fast)
    assert second(call, inputs, fast_mode=fast)


KINDS = ["causal", "added", "groups", "dropout"]


@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck(kind: str) -> None:
    """First and second derivatives, of a mask that is added too."""
    check_gradients(kind, 5, 4)


@pytest.mark.skipif(os.environ.get("KILN_TEST_FULL") != "1", reason="KILN_TEST_FULL=1 runs it")
@pytest.mark.parametrize("sizes", [(97, 70), (48, 33), (150, 200)])
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_of_several_blocks(kind: str, sizes: Any) -> None:
    """The same where queries are several blocks, whole and ragged, and keys several panels."""
    check_gradients(kind, *sizes)


def test_dropout() -> None:
    """Zero weights with the probability, the others scaled: the mean stays; all dropped gives zeros."""
    x = kiln.zeros(2, 100, 8)
    values = kiln.eye(100).expand(2, 100, 100)
    kiln.manual_seed(0)
    p = attention(x, x, values, dropout_p=0.25)
    kept = p > 0
    assert abs(kept.float().mean().item() - 0.75) < 0.02
    assert np.allclose(p[kept].numpy(), 0.01 / 0.75)
    kiln.manual_seed(0)
    assert_bits([attention(x, x, values, dropout_p=0.25)], [p])
    assert not attention(x, x, values, dropout_p=1.0).any()


def dropped(arrays: Any, p: float, seed: int, dtype: str | None = None, **settings: Any) -> list[Any]:
    """`run` with dropout, from a seed."""
    kiln.manual_seed(seed)
    return run(arrays, dtype, dropout_p=p, **settings)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_dropout_is_what_is_written_out(dtype: str) -> None:
    """Bit by bit forward, beside NumPy in the gradients; those of a softmax drop out."""
    arrays = as_given(operands((2, 2), 101, 70, 12, 40), dtype)
    kiln.manual_seed(5)
    factors = kiln.nn.functional.dropout(kiln.ones(2, 2, 101, 70), 0.3).double().numpy()
    got = dropped(arrays, 0.3, 5, dtype, is_causal=True)
    with sdpa_kernel(SDPBackend.MATH):
        assert_bits(dropped(arrays, 0.3, 5, dtype, is_causal=True)[:1], got[:1])
    tolerance = {"float64": 1e-6, "float16": 4e-3, **TOLERANCES}[dtype]
    assert_near(got, wanted(arrays, None, True, factors), tolerance)


@both_dtypes
def test_dropout_any_way(threads: Any, dtype: str) -> None:
    """Threads and recording change no bit; each call draws anew; half the heads' keys are shared."""
    arrays = operands((2, 4), 130, 130, 16, 16)
    arrays[1:3] = [x[:, :2] for x in arrays[1:3]]
    settings = {"dropout_p": 0.2, "enable_gqa": True}
    step = kiln.compile(lambda arrays: [run(arrays, dtype, **settings) for _ in range(2)])
    threads(1)
    first = dropped(arrays, 0.2, 7, dtype, enable_gqa=True)
    second = run(arrays, dtype, **settings)
    assert not (first[0] == second[0]).all()
    for count in (1, 2, 2):
        threads(count)
        assert_bits(dropped(arrays, 0.2, 7, dtype, enable_gqa=True), first)
        kiln.manual_seed(7)
        for got, expected in zip(step(arrays), (first, second)):
            assert_bits(got, expected)


def test_dropout_of_mapped_functions() -> None:
    """vmap: one draw for all samples or one each; a batch of gradients has one draw."""
    q, k, v = (kiln.tensor(x) for x in operands((3, 2), 5, 7, 4, 4)[:3])
    call = lambda *xs: attention(*xs, dropout_p=0.4)  # noqa: E731
    kiln.manual_seed(1)
    whole = call(q, k, v)
    kiln.manual_seed(1)
    assert_bits([kiln.func.vmap(call, randomness="different")(q, k, v)], [whole])
    kiln.manual_seed(1)
    same = kiln.func.vmap(call, randomness="same")(q, k, v)
    kiln.manual_seed(1)
    assert_bits([same[2]], [call(q[2], k[2], v[2])])
    leaf = q[0].clone().requires_grad_()
    out, grads = call(leaf, k[0], v[0]), kiln.randn(3, 2, 5, 4)
    (batch,) = kiln.autograd.grad(out, leaf, grads, is_grads_batched=True, retain_graph=True)
    for g, got in zip(grads, batch):
        (expected,) = kiln.autograd.grad(out, leaf, g, retain_graph=True)
        assert_near([got], [expected.double().numpy()], 1e-6)


@both_dtypes
def test_infinities_of_keys_nobody_sees(dtype: str) -> None:
    """A key with NaN that a bool mask hides changes nothing before its block's product; its value would."""
    q, k, v, _ = operands((), 4, 6, 3, 5)
    mask = np.ones((4, 6), bool)
    mask[:, 5] = False
    hidden = k.copy()
    hidden[5] = np.nan
    q, k, v, hidden = (kiln.tensor(x).to(getattr(kiln, dtype)) for x in (q, k, v, hidden))
    given = [q, hidden, v]
    expected = attention(q, k, v, attn_mask=kiln.tensor(mask))
    assert_bits([attention(*given, attn_mask=kiln.tensor(mask))], [expected])
    assert attention(*given).isnan().all()


def of_peer(arrays: Any, dtype: str, settings: dict[str, Any]) -> list[Any]:
    """PyTorch's output and gradients."""
    *inputs, g = [torch.tensor(x).to(getattr(torch, dtype)) for x in arrays]
    for x in inputs:
        x.requires_grad_()
    out = torch.nn.functional.scaled_dot_product_attention(*inputs, **settings)
    out.backward(g)
    return [out.detach(), *(x.grad for x in inputs)]


@pytest.mark.parametrize("settings", [{}, {"is_causal": True}, {"scale": 0.1}, {"enable_gqa": True}])
def test_peer(settings: Any, answers: Any) -> None:
    """PyTorch's values and gradients."""
    arrays = operands((1, 4), 33, 33, 8, 8)
    if "enable_gqa" in settings:
        arrays[1], arrays[2] = arrays[1][:, :2], arrays[2][:, :2]
    expected = answers([arrays, settings, of_peer], lambda: of_peer(arrays, "float32", settings))
    got = run(arrays, **settings)
    assert len(got) == len(expected)
    assert_near(got, [x.numpy().astype(np.float64) for x in expected], 5e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_bfloat16_is_as_near_as_the_peer(causal: bool, answers: Any) -> None:
    """To float64, on the average, forward and in the gradients; where it has a kernel of its own, too."""
    arrays = as_given(operands((2, 3), 200, 300, 64, 64), "bfloat16")
    exact = wanted(arrays, None, causal)

    def errors(found: list[Any]) -> list[float]:
        return [float(np.abs(x.double().numpy() - z).mean()) for x, z in zip(found, exact, strict=True)]

    # by machines PyTorch rounds in other orders: its errors are as large within a tenth
    of_theirs = answers(
        [arrays, causal, of_peer], lambda: errors(of_peer(arrays, "bfloat16", {"is_causal": causal})), 5000.0
    )
    for own, theirs in zip(errors(run(arrays, "bfloat16", is_causal=causal)), of_theirs, strict=True):
        assert own <= 1.02 * theirs


def test_mistakes() -> None:
    """What PyTorch refuses, in its words."""
    x = kiln.zeros(2, 3, 4)
    cases: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
        ((x, x, x, 0.5), {}, TypeError, "attn_mask"),
        ((x, x.int(), x), {}, RuntimeError, "same dtype"),
        ((x.int(), x.int(), x.int()), {}, RuntimeError, "expected scalar type Float but found Int"),
        ((x, x, x, kiln.zeros(3, 3).int()), {}, RuntimeError, "Expected attn_mask dtype to be bool or float"),
        ((x[None], x[None], x[None], kiln.zeros(3)), {}, IndexError, "Dimension out of range"),
        (
            (x, x, x, kiln.zeros(3, 3)),
            {"is_causal": True},
            RuntimeError,
            "Explicit attn_mask should not be set",
        ),
        ((x, kiln.zeros(3, 3, 4), x), {}, RuntimeError, "must match the size"),
        ((kiln.zeros(5, 3, 4), x, x), {"enable_gqa": True}, RuntimeError, "must divide the number of heads"),
        ((kiln.zeros(3, 4),) * 3, {"enable_gqa": True}, IndexError, "Dimension out of range"),
    ]
    for args, settings, error, words in cases:
        with pytest.raises(error, match=words):
            attention(*args, **settings)
    with pytest.raises(AssertionError, match="SDPBackend"), sdpa_kernel(3):  # type: ignore[arg-type]
        pass
