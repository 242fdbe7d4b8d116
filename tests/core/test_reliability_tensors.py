"""Tensors that break naive kernels: odd shapes and strides, foreign memory, extreme values, wrong
arguments.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from backend import WAYS, kiln, needs, needs_kiln, normal, tensor, torch, values, where_supported
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kiln.testing.compare import close, same_bits, to_array

INF, NAN = float("inf"), float("nan")
BIG = 2**40


def raises(error: Any, match: str | None = None) -> Any:
    """`pytest.raises`; the message is asked of kiln only."""
    return pytest.raises(error, match=match if kiln.is_kiln else None)


# -- shapes ----------------------------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("shape", [(), (0,), (1,), (0, 3), (3, 0), (1, 1), (2, 0, 3), (1, 5, 1), (1,) * 12])
def test_degenerate_shapes(way: Any, shape: tuple[int, ...]) -> None:
    """0-d tensors and dims of size 0 and 1 in every op of a small expression, forward and backward."""

    def program(x: Any) -> Any:
        y = kiln.tanh(x) * x + x.sum()
        y.sum().backward()
        return y, x.grad

    array = np.asarray(np.random.default_rng(0).normal(size=shape), np.float64)
    x = kiln.from_numpy(array.copy()).requires_grad_()
    y, grad = way(program)(x)
    expected = np.tanh(array) * array + array.sum()
    assert close(to_array(y), expected, "float64")
    slope = np.tanh(array) + array * (1 - np.tanh(array) ** 2) + array.size
    assert close(to_array(grad), slope, "float64")


@pytest.mark.parametrize("ndim", [16, 24, 25, 64, 65])
def test_many_dims(ndim: int) -> None:
    """24 dims compute; more compute too, or the limit is named."""
    x = normal(2, 3).reshape(*(1,) * (ndim - 2), 2, 3)
    plain = normal(2, 3)
    programs = (
        lambda: (x.transpose(0, ndim - 1) * 2, plain.t() * 2),
        lambda: (x + x[..., :1], plain + plain[:, :1]),
        lambda: (x.sum(ndim - 1), plain.sum(1)),
        lambda: (x * x.sum(), plain * plain.sum()),
    )
    for program in programs:
        try:
            got, expected = program()
        except (RuntimeError, NotImplementedError) as error:
            assert ndim > 24 and "dim" in str(error)
            continue
        assert same_bits(to_array(got.reshape(expected.shape)), to_array(expected))


def test_views_of_views() -> None:
    """Slices of transposes of expanded slices read the right elements."""
    array = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    x = kiln.from_numpy(array)
    y = x[:, 1:].permute(3, 0, 2, 1)[1::2, :, None, ::3].expand(2, 2, 4, 2, 2)
    z = np.broadcast_to(array[:, 1:].transpose(3, 0, 2, 1)[1::2, :, None, ::3], (2, 2, 4, 2, 2))
    assert same_bits(to_array(y * 1), z * 1)
    assert same_bits(to_array(y.sum(2)), z.sum(2))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from("=1x")), max_size=4),
    st.integers(0, 4),
    st.randoms(),
)
@settings(max_examples=60, deadline=None)
def test_broadcasting_is_numpy(dims: list[tuple[int, str]], drop: int, random: Any) -> None:
    """Shapes that broadcast in NumPy broadcast here to the same values; the others raise."""
    one = tuple(n for n, _ in dims)
    two = tuple({"=": n, "1": 1, "x": random.randint(0, 4)}[how] for n, how in dims)[min(drop, len(dims)) :]
    a, b = (np.asarray(np.random.default_rng(len(s)).normal(size=s), np.float32) for s in (one, two))
    try:
        expected = a + b
    except ValueError:
        with pytest.raises(RuntimeError):
            kiln.from_numpy(a) + kiln.from_numpy(b)
        return
    assert same_bits(to_array(kiln.from_numpy(a) + kiln.from_numpy(b)), np.asarray(expected))


INDEX = st.one_of(
    st.integers(-6, 6), st.none(), st.just(...),
    st.builds(slice, *[st.one_of(st.none(), st.integers(-6, 6))] * 2),
    st.builds(slice, st.integers(-3, 3), st.integers(-3, 6), st.integers(1, 3)),
)  # fmt: skip


@given(st.lists(INDEX, max_size=5))
@settings(max_examples=100, deadline=None)
def test_basic_indexing_is_numpy(index: list[Any]) -> None:
    """Every basic index reads and writes what NumPy's does, or raises IndexError as it does."""
    assume(index.count(...) <= 1)
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    x, key = kiln.from_numpy(array.copy()), tuple(index)
    try:
        expected = array[key]
    except IndexError:
        with pytest.raises(IndexError):
            x[key]
        return
    assert same_bits(to_array(x[key]), np.asarray(expected))
    x[key] = -1.0
    array[key] = -1.0
    assert same_bits(to_array(x), array)


# -- overlapping memory --------------------------------------------------------------------------------------

# a write to x (2, 3) from its own memory: refused, where elements would be written before they are read
SELF_COPIES = {
    "a row": (lambda x: x.copy_(x[0]), None),
    "a row as a slice": (lambda x: x.copy_(x[:1]), None),
    "an element": (lambda x: x.copy_(x[0, 1]), None),
    "shifted": (lambda x: x[0, 1:].copy_(x[0, :2]), None),
    "an item shifted": (lambda x: x[0].__setitem__(slice(1, 3), x[0, :2]), None),
    "itself": (lambda x: x.copy_(x), [[0, 1, 2], [3, 4, 5]]),
    "another row": (lambda x: x[1].copy_(x[0]), [[0, 1, 2], [0, 1, 2]]),
    "another column": (lambda x: x[:, 1:].copy_(x[:, :1]), [[0, 0, 0], [3, 3, 3]]),
    "an item, a row": (lambda x: x.__setitem__(slice(None), x[0]), [[0, 1, 2], [0, 1, 2]]),
    "fill_ of an element": (lambda x: x.fill_(x[0, 1]), [[1, 1, 1], [1, 1, 1]]),
}


@WAYS
@pytest.mark.parametrize("name", SELF_COPIES)
def test_copies_from_own_memory(way: Any, name: str) -> None:
    """copy_ refuses a source that overlaps its target otherwise than exactly, also one that is repeated."""
    write, expected = SELF_COPIES[name]
    for _ in range(3):
        x = kiln.arange(6.0).reshape(2, 3)
        if expected is None:
            with raises(RuntimeError, "single memory"):
                way(write)(x)
            expected_now = [[0, 1, 2], [3, 4, 5]]
        else:
            way(write)(x)
            expected_now = expected
        assert values(x) == expected_now


@WAYS
def test_one_number_everywhere_in_an_expanded_tensor(way: Any) -> None:
    """fill_ and zero_ write each place once, and so may write where elements share memory; others may not."""
    x = tensor(1, 2)
    assert values(way(lambda x: x.expand(3, 2).fill_(5))(x)) == [[5.0, 5.0]] * 3
    assert values(x) == [5.0, 5.0]
    way(lambda x: x[:1].expand(4).zero_())(x)
    assert values(x) == [0.0, 5.0]
    for write in (lambda x: x.__setitem__(..., 7), lambda x: x.fill_(tensor(7)[0]), lambda x: x.mul_(2)):
        with raises(RuntimeError, "single memory"):
            way(lambda x, write=write: write(x.expand(3, 2)))(x)
    assert values(x) == [0.0, 5.0]


@pytest.mark.parametrize("sizes", [(1,), (2,), (7,), (17,), (4, 3), (2, 1, 5), (0, 3)])
def test_one_element_expanded(sizes: tuple[int, ...]) -> None:
    """A recorded region that is given one element at many places, then as many elements as places."""
    run = kiln.compile(lambda x: kiln.tanh(x) * 2)
    for _ in range(3):
        assert same_bits(
            to_array(run(tensor(0.5)[0].expand(sizes))), to_array(kiln.tanh(tensor(0.5)[0].expand(sizes)) * 2)
        )
    assert same_bits(to_array(run(normal(*sizes))), to_array(kiln.tanh(normal(*sizes)) * 2))
    for _ in range(3):  # more memory than the view shows, which is not one element either
        x = normal(40)[1:2].expand(sizes)
        assert same_bits(to_array(run(x)), to_array(kiln.tanh(x) * 2))


# -- foreign memory ----------------------------------------------------------------------------------------


def test_read_only_array() -> None:
    """A read-only array is never written: refused, copied, or written to only by raising."""
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not kiln.is_kiln:
            pytest.skip("PyTorch writes through it")
        x = kiln.from_numpy(array)
        for write in (
            lambda: x.add_(1),
            lambda: x.zero_(),
            lambda: x[:1].copy_(tensor(5)),
            lambda: x.numpy(),
        ):
            try:
                y = write()
            except (ValueError, RuntimeError, TypeError):
                continue
            assert isinstance(y, np.ndarray)
            assert not y.flags.writeable
    assert array.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "array",
    [
        np.array([1.0, 2.0], ">f4"),
        np.array(["a", "b"]),
        np.array([None, 1], object),
        np.array([1 + 2j]),
        np.zeros(2, "M8[s]"),
    ],
    ids=["big-endian", "str", "object", "complex", "datetime"],
)
def test_arrays_of_other_kinds(array: Any) -> None:
    """An array kiln has no dtype for raises TypeError or ValueError and says which dtype came."""
    if array.dtype.kind == "c" and not kiln.is_kiln:
        pytest.skip("PyTorch has complex numbers")
    with raises((TypeError, ValueError), r"dtype|byte|endian|type"):
        kiln.from_numpy(array)


def test_arrays_with_odd_strides() -> None:
    """Negative strides are refused with the way out; misaligned memory is computed or refused, never a
    crash.
    """
    with raises(ValueError, "stride|copy"):
        kiln.from_numpy(np.ones(4, np.float32)[::-1])
    raw = np.zeros(4 * 5 + 1, np.uint8)[1:].view(np.float32)
    raw[:] = 3
    if kiln.is_kiln:
        with pytest.raises(ValueError, match="aligned"):
            kiln.from_numpy(raw)
    assert values(kiln.from_numpy(raw.copy()) * 2) == [6.0] * 5


def test_stride_not_a_multiple_of_the_element() -> None:
    """A field of a record array is refused."""
    records = np.zeros(3, np.dtype([("a", np.float32), ("b", np.uint8)]))
    with pytest.raises((ValueError, RuntimeError)):
        kiln.from_numpy(records["a"])


def test_memory_outlives_its_owner() -> None:
    """An array keeps living under a tensor, and a tensor under an array."""
    x = kiln.from_numpy(np.full(1000, 7.0, np.float32))
    a = (kiln.ones(1000) * 5).numpy()
    for _ in range(10):
        np.zeros(1000, np.float32)
        kiln.zeros(1000) + 1
    assert values(x.sum()) == 7000.0
    assert a.sum() == 5000.0


@needs("from_dlpack")
def test_dlpack_capsule_used_twice() -> None:
    """A capsule is consumed once."""
    capsule = tensor(1, 2).__dlpack__()
    assert values(kiln.from_dlpack(capsule)) == [1.0, 2.0]
    with pytest.raises((RuntimeError, ValueError)):
        kiln.from_dlpack(capsule)


# -- sizes that overflow ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(BIG, BIG), (2**62, 4), (2**63 - 1,), (-1,), (3, -2)])
@pytest.mark.parametrize("make", ["zeros", "empty", "ones"])
def test_impossible_sizes(make: str, shape: tuple[int, ...]) -> None:
    """An element count that overflows, or is negative, raises; no memory is touched."""
    with raises((RuntimeError, MemoryError, ValueError, OverflowError)):
        getattr(kiln, make)(*shape)


@pytest.mark.op_by_op
@WAYS
def test_too_large_a_result(way: Any) -> None:
    """A result that cannot exist raises at its line; operands and framework survive."""
    x = tensor(1, 2)
    with pytest.raises((RuntimeError, MemoryError)):
        way(lambda x: x.expand(2**46, 2) + 1)(x)
    assert values(x + 1) == [2.0, 3.0]


def test_more_than_2_31_elements_as_a_view() -> None:
    """Sizes and strides are 64-bit: a view of 2^33 elements is made, measured and sliced."""
    x = tensor(1.0).expand(2**33)
    assert x.numel() == 2**33
    assert values(x[2**32 : 2**32 + 2] * 3) == [3.0, 3.0]
    assert x.shape == (2**33,)


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="no address space limit here")
def test_allocation_failure_raises() -> None:
    """Out of memory is an exception, and afterwards the process goes on."""
    code = (
        "import resource, numpy\nfrom kiln.testing.backend import load\nk = load()\nx = k.ones(1000) * 2\n"
        "size = int(open('/proc/self/statm').read().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (size + 2**29, size + 2**29))\n"
        "try:\n    k.ones(2**29) + 1\nexcept (MemoryError, RuntimeError) as e:\n    assert str(e)\n"
        "else:\n    raise SystemExit('no error')\nprint((x + 1).sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.strip()) == (0, "3000.0"), done.stderr


# -- extreme values -----------------------------------------------------------------------------------------

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 1e-40, -1e-40, 3e38, -3e38, 88.8, -104.0, 0.5], np.float32
)


@WAYS
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid", "relu", "sqrt", "abs", "neg"])
def test_special_values(way: Any, name: str) -> None:
    """NaN, infinities, signed zeros and denormals through pointwise functions, with the sign of zero."""
    definitions = {
        "relu": lambda x: np.where(x < 0, 0.0, x),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "neg": np.negative,
    }
    f = getattr(kiln, name, None)
    if f is None:
        pytest.skip(f"kiln has no {name}")
    got = to_array(way(f)(kiln.from_numpy(SPECIAL.copy())))
    with np.errstate(all="ignore"):
        expected = definitions.get(name, getattr(np, name, None))(SPECIAL.astype(np.float64)).astype(
            np.float32
        )
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    assert close(got, expected, "float32")
    zero = (expected == 0) & (SPECIAL == 0)
    assert np.array_equal(np.signbit(got)[zero], np.signbit(expected)[zero])


@WAYS
@pytest.mark.parametrize("name", ["maximum", "minimum", "amax", "amin", "argmax", "sum", "softmax"])
def test_nan_wins(way: Any, name: str) -> None:
    """A NaN is never lost by a maximum, a reduction or a softmax."""
    x = tensor(1, NAN, 3)
    programs = {
        "maximum": lambda x: kiln.maximum(x, x * 0 + 2),
        "minimum": lambda x: kiln.minimum(x * 0 + 2, x),
        "amax": lambda x: x.amax(0),
        "amin": lambda x: x.amin(0),
        "argmax": lambda x: x.argmax(0),
        "sum": lambda x: x.sum(),
        "softmax": lambda x: kiln.softmax(x, 0),
    }
    if name == "amin" and not hasattr(x, "amin"):
        pytest.skip("kiln has no amin")
    got = to_array(way(programs[name])(x))
    assert (
        got == 1
        if name == "argmax"
        else np.isnan(np.atleast_1d(got)[-1 if name == "softmax" else got.ndim and 1])
    )


def test_equal_maxima_take_the_first() -> None:
    """argmax names the first of equals."""
    assert values(kiln.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]]).argmax(1)) == [1, 0]


@WAYS
def test_comparisons_with_nan_and_zero(way: Any) -> None:
    """IEEE comparisons, also for low precision."""
    run = way(lambda x, y: (x == y, x != y, x < y, x >= y))
    for dtype in (kiln.float32, kiln.float64, kiln.float16, kiln.bfloat16):
        x, y = tensor(NAN, 0, 1, INF).to(dtype), tensor(NAN, -0.0, 2, INF).to(dtype)
        assert [values(c) for c in run(x, y)] == [
            [False, True, False, True], [True, False, True, False],
            [False, False, True, False], [False, True, False, True],
        ]  # fmt: skip


def test_half_overflow() -> None:
    """float16 overflows to infinity at its own limit, and rounds to even."""
    x = tensor(65504, 65519, 65520, 1e-8, 2049).to(kiln.float16)
    assert values(x.float()) == [65504.0, 65504.0, INF, 0.0, 2048.0]
    assert values((x[:1] * 2).float()) == [INF]


def test_numbers_at_the_ends_of_their_dtype() -> None:
    """What just fits is taken; negative ints count from the end of uint8; bool takes everything."""
    assert values(kiln.tensor([127, -128, -1.9], dtype=kiln.int8)) == [127, -128, -1]
    assert values(kiln.tensor([255, -1, -255], dtype=kiln.uint8)) == [255, 255, 1]
    assert values(kiln.tensor([2**63 - 1, -(2**63)])) == [2**63 - 1, -(2**63)]
    assert values(kiln.tensor([300, NAN, 0], dtype=kiln.bool)) == [True, True, False]
    assert values(kiln.tensor([1e300], dtype=kiln.float32)) == [INF]


def test_integers_wrap() -> None:
    """Integer arithmetic wraps, and the least integer is its own negative."""
    least = kiln.tensor([-(2**63)])
    assert values(least * -1) == [-(2**63)]
    assert values(least - 1) == [2**63 - 1]
    assert values(kiln.tensor([200], dtype=kiln.uint8) + kiln.tensor([100], dtype=kiln.uint8)) == [44]


def test_conversions_out_of_range() -> None:
    """A float beyond an integer dtype becomes one fixed value, and one within is cut towards zero."""
    least = -(2**63)
    assert values(tensor(1e20, -1e20, NAN, INF, 2.9, -2.9).long()) == [least, least, least, least, 2, -2]
    assert values(tensor(3e9, -3e9, NAN, 2.9).to(kiln.int32)) == [-(2**31)] * 3 + [2]
    assert values(kiln.tensor([1e300, -1e300], dtype=kiln.float64).float()) == [INF, -INF]


def test_positions_named_twice() -> None:
    """scatter_add adds once for each time a position is named, in order; take one of it, all come."""
    x, index = kiln.zeros(2, 3, requires_grad=True), kiln.tensor([[1, 1, 1, 0]])
    y = x.scatter_add(1, index, kiln.tensor([[1e8, 1.0, -1e8, 5.0]]))
    assert values(y) == [[5.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    source = tensor(1, 2, 3, grad=True)
    source[kiln.tensor([2, 2, -1, 0])].sum().backward()
    assert values(source.grad) == [1.0, 0.0, 3.0]


@WAYS
def test_sums_of_nothing(way: Any) -> None:
    """The sum over nothing is 0, the mean NaN, the product of nothing zeros; a maximum raises."""
    x = kiln.zeros(0, 3)
    assert values(way(lambda x: x.sum(0))(x)) == [0.0] * 3
    assert np.isnan(values(way(lambda x: x.mean(0))(x))).all()
    assert values(way(lambda x: x.sum())(x)) == 0.0
    assert values(way(lambda a, b: a @ b)(kiln.zeros(2, 0), kiln.zeros(0, 3))) == [[0.0] * 3] * 2
    for f in (lambda x: x.amax(0), lambda x: x.argmax(0)):
        with raises((IndexError, RuntimeError), "amax|argmax"):
            way(f)(x)


def test_large_sums_are_accurate() -> None:
    """Millions of equal floats sum to their number: an element passes through 8 + 128 + 4 additions in its
    block of 16384, and 184 blocks follow one another. Added one by one they would be 3 % off.
    """
    roundings = 8 + 128 + 4 + 184
    assert (kiln.ones(3_000_001) * 0.1).sum().item() == pytest.approx(300000.1, rel=roundings * 2.0**-25)
    assert kiln.full((1_000_003,), 1.0).sum().item() == 1_000_003.0


# -- wrong arguments ----------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, Any, str]] = {
    "broadcast": (lambda: tensor(1, 2) + tensor(1, 2, 3), RuntimeError, r"add.*(2|3)|broadcast|match"),
    "matmul sizes": (lambda: kiln.ones(2, 3) @ kiln.ones(4, 5), RuntimeError, r"matmul.*3.*4|3.*4"),
    "matmul 0-d": (lambda: kiln.ones(2) @ kiln.tensor(1.0), RuntimeError, "matmul|dim"),
    "dim out of range": (lambda: kiln.ones(2, 3).sum(2), IndexError, r"\[-2, 1\].*2"),
    "argmax of nothing": (lambda: kiln.zeros(0, 3).argmax(), IndexError, "argmax"),
    "argmin of nothing": (lambda: kiln.zeros(0, 3).argmin(), IndexError, "argmin"),
    "amax of nothing": (lambda: kiln.zeros(0, 3).amax(), RuntimeError, "amax"),
    "max of nothing": (lambda: kiln.zeros(0, 3).max(), RuntimeError, "max"),
    "max of nothing along a dim": (lambda: kiln.zeros(0, 3).max(0), IndexError, "max"),
    "int8 of 300": (lambda: kiln.tensor(300, dtype=kiln.int8), RuntimeError, "int8.*overflow"),
    "int8 of 300 in a list": (lambda: kiln.tensor([1, 300], dtype=kiln.int8), RuntimeError, "overflow"),
    "uint8 of -1.5": (lambda: kiln.tensor(-1.5, dtype=kiln.uint8), RuntimeError, "uint8.*overflow"),
    "int64 of NaN": (lambda: kiln.tensor(NAN, dtype=kiln.int64), RuntimeError, "int64.*overflow"),
    "full of int8": (lambda: kiln.full((2,), 300, dtype=kiln.int8), RuntimeError, "overflow"),
    "fill_ of int8": (lambda: kiln.zeros(2, dtype=kiln.int8).fill_(-129), RuntimeError, "overflow"),
    "negative dim out of range": (lambda: kiln.ones(2, 3).sum(-3), IndexError, r"\[-2, 1\].*-3"),
    "repeated dim": (lambda: kiln.ones(2, 3).sum((0, 0)), RuntimeError, "multiple|repeated|twice"),
    "permute length": (lambda: kiln.ones(2, 3).permute(0), RuntimeError, "permute|dim"),
    "permute repeated": (lambda: kiln.ones(2, 3).permute(0, 0), RuntimeError, "permute|duplicate|repeat"),
    "reshape size": (lambda: kiln.ones(2, 3).reshape(4), RuntimeError, "reshape.*4|shape"),
    "reshape two unknown": (lambda: kiln.ones(2, 3).reshape(-1, -1), RuntimeError, "-1|infer"),
    "expand": (lambda: kiln.ones(2, 3).expand(4, 3), RuntimeError, "expand"),
    "view of strided": (lambda: kiln.ones(2, 3).t().view(6), RuntimeError, "view|reshape|contiguous"),
    "index": (lambda: kiln.ones(3)[3], IndexError, "3"),
    "index negative": (lambda: kiln.ones(3)[-4], IndexError, "-4"),
    "too many indices": (lambda: kiln.ones(3)[0, 0], IndexError, "indices"),
    "index of 0-d": (lambda: kiln.tensor(1.0)[0], IndexError, "0-dim|dim"),
    "slice step 0": (lambda: kiln.ones(3)[::0], ValueError, "step"),
    "slice step negative": (lambda: kiln.ones(3)[::-1], ValueError, "step"),
    "gather index dtype": (lambda: kiln.ones(3).gather(0, kiln.ones(2)), RuntimeError, "gather.*int64|int64"),
    "gather dims": (lambda: kiln.ones(3, 2).gather(0, kiln.tensor([0])), RuntimeError, "gather|dim"),
    "gather range": (lambda: kiln.ones(3).gather(0, kiln.tensor([3])), (RuntimeError, IndexError), "3"),
    "gather negative": (lambda: kiln.ones(3).gather(0, kiln.tensor([-1])), (RuntimeError, IndexError), "-1"),
    "scatter range": (
        lambda: kiln.zeros(3).scatter_add(0, kiln.tensor([5]), kiln.ones(1)), (RuntimeError, IndexError), "5",
    ),
    "cat nothing": (lambda: kiln.cat([]), (RuntimeError, ValueError), "cat|empty"),
    "cat sizes": (lambda: kiln.cat([kiln.ones(2, 3), kiln.ones(2, 4)], 0), RuntimeError, "cat|[Ss]izes"),
    "item of many": (lambda: kiln.ones(2).item(), (RuntimeError, ValueError), "item|one element|to Scalar"),
    "bool of many": (lambda: bool(kiln.ones(2)), RuntimeError, "ambiguous|[Bb]ool"),
    "float of many": (
        lambda: float(kiln.ones(2)), (RuntimeError, ValueError,
        TypeError), "one element|scalar|item",
    ),
    "ragged list": (lambda: kiln.tensor([[1, 2], [3]]), ValueError, "length|size|ragged|sequence"),
    "list of strings": (lambda: kiln.tensor(["a"]), (TypeError, ValueError), "str|type"),
    "where condition": (
        lambda: kiln.where(kiln.ones(2), kiln.ones(2), kiln.ones(2)),
        RuntimeError, "bool|condition",
    ),
    "expanded target": (lambda: kiln.ones(1, 2).expand(3, 2).add_(1), RuntimeError, "memory|expand|overlap"),
    "in-place result grows": (lambda: kiln.ones(1, 2).add_(kiln.ones(3, 2)), RuntimeError, "shape|broadcast"),
    "in-place dtype": (lambda: kiln.ones(2, dtype=kiln.int64).add_(0.5), RuntimeError, "cast|dtype|type"),
    "copy_ shape": (lambda: kiln.ones(2).copy_(kiln.ones(3)), RuntimeError, "copy_|shape|size|expand|match"),
    "linear sizes": (
        lambda: kiln.nn.functional.linear(kiln.ones(2, 3), kiln.ones(4, 5)),
        RuntimeError, "3.*5|linear",
    ),
    "cross_entropy classes": (
        lambda: kiln.nn.functional.cross_entropy(kiln.ones(2, 3), kiln.tensor([0, 3])),
        (IndexError, RuntimeError), "3",
    ),
    "layer_norm shape": (
        lambda: kiln.nn.functional.layer_norm(kiln.ones(2, 3), (4,)),
        RuntimeError, "layer_norm|normalized_shape",
    ),
    "numpy of grad": (lambda: tensor(1, grad=True).numpy(), RuntimeError, "grad|detach"),
    "len of 0-d": (lambda: len(kiln.tensor(1.0)), TypeError, "0-d"),
    "integer grad": (lambda: kiln.tensor([1], requires_grad=True), RuntimeError, "float|dtype"),
    "unknown attribute": (lambda: kiln.ones(2).no_such_method, AttributeError, "no_such_method"),
    "unknown function": (lambda: kiln.no_such_function, AttributeError, "no_such_function"),
    "wrong keyword": (lambda: kiln.ones(2).sum(axes=1), TypeError, "axes|argument"),
    "missing argument": (lambda: kiln.tanh(), TypeError, "tanh"),
    "not a tensor": (lambda: kiln.tanh("x"), TypeError, "str"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    """Bad input raises PyTorch's exception type with a message that names the problem, three times in a
    row.
    """
    call, error, match = WRONG[name]
    with where_supported():
        for _ in range(3):
            with raises(error, match):
                call()


@WAYS
@pytest.mark.parametrize(
    "name", ["broadcast", "matmul sizes", "dim out of range", "gather range", "scatter range"]
)
def test_wrong_arguments_where_they_are_caught(way: Any, name: str) -> None:
    """A wrong line can be caught, and the lines around it keep their values."""

    def program(x: Any) -> Any:
        y = x * 2
        try:
            WRONG[name][0]()
        except WRONG[name][1]:
            y = y + 1
        return y

    run = way(program)
    for _ in range(3):
        assert values(run(tensor(1, 2))) == [3.0, 5.0]


def promoted(k: Any, left: str, right: str, shapes: Any) -> list[str]:
    """The dtypes of results of two tensors."""
    x, y = (k.ones(shape, dtype=getattr(k, dtype)) for shape, dtype in zip(shapes, (left, right)))
    results = (x * y, x + y, x == y, k.where(x > 0, x, y), x * 2, x * 2.5)
    return [str(z.dtype).split(".")[-1] for z in results]


@needs_kiln
@pytest.mark.parametrize(
    "left", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
)
def test_promotion_is_pytorch(left: str, answers: Any) -> None:
    """The dtype of x + y, x * number and comparisons over all pairs, dimensioned and 0-d."""
    names = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    for right in names:
        for shapes in (((2,), (2,)), ((2,), ()), ((), (2,)), ((), ())):
            want = answers([left, right, shapes], partial(promoted, torch, left, right, shapes))
            assert promoted(kiln, left, right, shapes) == want, (left, right, shapes)
