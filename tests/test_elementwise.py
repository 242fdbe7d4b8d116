"""Every pointwise function in every dtype beside PyTorch's: dtype, values, special values, in-place forms,
and the type of the error where PyTorch refuses.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from backend import kiln, needs_torch, torch

from kiln.testing.compare import close, difference, dtype_name, to_array

DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"
)  # fmt: skip
UNARY = (
    "abs absolute angle ceil conj_physical fix floor frac frexp isfinite isinf isnan isneginf isposinf "
    "isreal logical_not bitwise_not nan_to_num neg negative positive reciprocal round rsqrt sgn sign "
    "signbit sqrt square trunc relu hardshrink selu celu exp sigmoid tanh"
).split()
BINARY = (
    "add sub subtract mul multiply div divide true_divide floor_divide remainder fmod pow eq ne not_equal "
    "lt less le less_equal gt greater ge greater_equal maximum minimum fmax fmin logical_and logical_or "
    "logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift copysign gcd lcm "
    "heaviside nextafter ldexp isclose rsub clamp_min clamp_max"
).split()
LAYERS = (
    "celu elu gelu glu hardsigmoid hardshrink hardswish hardtanh leaky_relu logsigmoid mish relu relu6 "
    "rrelu selu silu softplus softshrink softsign tanhshrink"
).split()
WITH_NUMBERS = (
    "add sub mul div floor_divide remainder fmod pow eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor "
    "bitwise_left_shift bitwise_right_shift copysign clamp_min clamp_max rsub"
).split()
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "&", "|", "^", "<<", ">>", "<", "<=", "==", "!=", ">", ">=")


# a bool tensor with a bool number: PyTorch's pow leaves it as it is, its clamps refuse it
UNLIKE = ("pow", "clamp_min", "clamp_max")


def values(dtype: str) -> list[Any]:
    """Numbers of a dtype where functions are special."""
    if dtype == "bool":
        return [True, False, True, False]
    if dtype == "uint8":
        return [0, 1, 2, 3, 7, 200]
    if dtype.startswith("int"):
        return [0, 1, -1, 2, -2, 3, -7, 100]
    return [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 3.0, -3.0, 6.0, float("inf"), -float("inf"), float("nan")]


def outcome(framework: Any, call: Any, arrays: list[tuple[list[Any], str]], *more: Any) -> Any:
    """What a call gives on tensors of values: (dtype, shape, array) of each result, or the error."""
    tensors = [framework.tensor(v, dtype=getattr(framework, dtype)) for v, dtype in arrays]
    try:
        result = call(*tensors, *more)
    except (RuntimeError, TypeError, NotImplementedError, ValueError) as error:
        return error
    results = result if isinstance(result, tuple) else (result,)
    return [(dtype_name(r.dtype), tuple(r.shape), to_array(r)) for r in results]


def assert_alike(got: Any, want: Any, what: str) -> None:
    """The same results, or an error of the same type."""
    if isinstance(want, Exception) or isinstance(got, Exception):
        assert type(got) is type(want), f"{what}: {got!r} against {want!r}"
        return
    assert [x[:2] for x in got] == [x[:2] for x in want], what
    for (dtype, _, x), (_, _, y) in zip(got, want, strict=True):
        assert close(x, y, dtype, 2.0), f"{what}: {difference(x, y)}"


def agree(answers: Any, name: str, home: str, arrays: list[tuple[list[Any], str]], *more: Any) -> None:
    """kiln's function and PyTorch's of the same name on the same values."""

    def found(f: Any) -> Any:
        return outcome(f, getattr(f.nn.functional if home == "nn" else f, name), arrays, *more)

    want = answers([name, arrays, more], lambda: found(torch))
    assert_alike(found(kiln), want, f"{name} {[d for _, d in arrays]} {more}")


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, answers: Any) -> None:
    for dtype in DTYPES:
        agree(answers, name, "", [(values(dtype), dtype)])


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, answers: Any) -> None:
    for dtype in DTYPES:
        given = values(dtype)[:12]
        if name == "gelu":  # PyTorch's of float16 at infinity is NaN
            given = [x for x in given if abs(x) < 100]
        agree(answers, name, "nn", [(given, dtype)])


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, answers: Any) -> None:
    for dtype in DTYPES:
        pairs = list(itertools.product(values(dtype), repeat=2))
        if name in ("floor_divide", "remainder", "fmod") and "float" not in dtype:
            pairs = [(x, y) for x, y in pairs if y]
        if name == "pow" and "float" not in dtype:
            pairs = [(x, y) for x, y in pairs if 0 <= y < 60]
        agree(answers, name, "", [([x for x, _ in pairs], dtype), ([y for _, y in pairs], dtype)])


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_with_a_number(name: str, answers: Any) -> None:
    """Promotion and values of a tensor, with dims and without, and a Python number."""
    for dtype in DTYPES:
        for number in (2, 1.5, *([True] if dtype != "bool" or name not in UNLIKE else [])):
            agree(answers, name, "", [(values(dtype)[:6], dtype)], number)
            agree(answers, name, "", [(values(dtype)[1], dtype)], number)


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators(operator: str, answers: Any) -> None:
    """Operators, reflected and in place, on every pair of dtypes with a tensor without dims or a number."""

    def plain(x: Any, y: Any) -> Any:
        return eval(f"x {operator} y")

    def in_place(x: Any, y: Any) -> Any:
        names = {"x": x.clone(), "y": y}
        same = names["x"]
        exec(f"x {operator}= y", names)
        assert names["x"] is same
        return same

    def check(way: Any, given: Any, *number: Any) -> None:
        want = answers([operator, way, given, number], lambda: outcome(torch, way, given, *number))
        assert_alike(outcome(kiln, way, given, *number), want, f"{way.__name__} {operator} {given} {number}")

    def reflected(x: Any) -> Any:
        return plain(2, x)

    ways = [plain] if operator in ("<", "<=", "==", "!=", ">", ">=") else [plain, in_place]
    for way, dtype in itertools.product(ways, DTYPES):
        for other in ("int64", "float16"):
            check(way, [([1, 1, 0], dtype), (1, other)])
        for number in (1, 2.0):
            check(way, [([1, 1, 0], dtype)], number)
        if way is plain:
            check(reflected, [([1, 1, 1], dtype)])


def in_place_names() -> list[str]:
    """The in-place methods of pointwise functions that PyTorch has too: `celu_`, `selu_` are functions."""
    return sorted(({*UNARY, *BINARY} & set(kiln.table.registry.INPLACE)) - {"celu", "selu"})


@pytest.mark.parametrize("name", in_place_names())
def test_in_place_methods(name: str, answers: Any) -> None:
    """`x.name_(...)` in every dtype: the values of x afterwards, or the type of the error."""

    def call(x: Any, *others: Any) -> Any:
        assert getattr(x, f"{name}_")(*others) is x
        return x

    for dtype in DTYPES:
        given = [([1, 0, 1, 1], dtype)] * (1 if name in UNARY else 2)
        if name in ("floor_divide", "remainder", "fmod"):
            given = [([1, 0, 1, 1], dtype), ([1, 1, 1, 1], dtype)]
        want = answers([name, call, given], lambda given=given: outcome(torch, call, given))
        assert_alike(outcome(kiln, call, given), want, f"{name}_ {dtype}")


@needs_torch
def test_every_in_place_method_exists() -> None:
    """A pointwise function with an in-place form in PyTorch has one here, as a method and as a function."""
    for name in {*UNARY, *BINARY} - {"nextafter", "positive", "conj_physical"}:
        if hasattr(torch.Tensor, f"{name}_"):
            assert hasattr(kiln.Tensor, f"{name}_"), name
        if hasattr(torch, f"{name}_"):
            assert hasattr(kiln, f"{name}_"), name


@needs_torch
def test_in_place_functions() -> None:
    for name in ("relu_", "exp_", "abs_", "clamp_", "celu_", "zero_", "threshold_", "nan_to_num_"):
        more = (1.0, 2.0) if name == "threshold_" else (0.5,) if name == "clamp_" else ()
        x, y = (f.tensor([-1.5, 2.0]) for f in (kiln, torch))
        assert getattr(kiln, name)(x, *more) is x
        getattr(torch, name)(y, *more)
        assert x.tolist() == pytest.approx(y.tolist()), name
    with pytest.raises(TypeError):
        kiln.exp_(2.0)
    with pytest.raises(TypeError):
        kiln.exp_()


@needs_torch
def test_in_place_where_elements_overlap_or_are_spread() -> None:
    """The in-place forms on views: strided, broadcast, of one memory, and what PyTorch refuses."""
    for f in (kiln, torch):
        x = f.arange(12, dtype=f.float32).reshape(3, 4)
        x[:, ::2].add_(x[:, 1::2])
        x.t().mul_(f.tensor([1.0, 2.0, 3.0]))
        x[0].copysign_(f.tensor(-1.0))
        x[1:].clamp_(max=20.0)
        assert x.tolist() == [[-1, -1, -5, -3], [18, 10, 20, 14], [20, 20, 20, 20]]
        with pytest.raises(RuntimeError):
            f.zeros(1).expand(3).add_(1)
        with pytest.raises(RuntimeError):
            f.zeros(3).add_(f.zeros(2, 3))
        with pytest.raises(RuntimeError):
            f.zeros(3, dtype=f.int64).add_(1.5)
        with pytest.raises(RuntimeError):
            f.ones(2, requires_grad=True).exp_()


def test_in_place_values_reach_backward() -> None:
    """A value saved for backward and written afterwards is noticed, also by the fast in-place calls."""
    for write in ("y.mul_(2)", "y += 1", "y.zero_()", "y.fill_(2.0)", "y.exp_()"):
        x = kiln.tensor([1.0, 2.0], requires_grad=True)
        z = (x * 3).exp()
        y = z.detach()
        exec(write, {"y": y})
        with pytest.raises(RuntimeError, match="modified by an inplace operation|version"):
            z.sum().backward()


@needs_torch
def test_activations_as_functions_and_modules() -> None:
    """`inplace` by place and by name; the modules' texts and values as PyTorch's."""
    functional, theirs = kiln.nn.functional, torch.nn.functional
    for name, args in (("relu", ()), ("elu", (1.0,)), ("hardtanh", (-1.0, 1.0)), ("threshold", (0.0, 5.0))):
        x, y = kiln.tensor([-2.0, 3.0]), torch.tensor([-2.0, 3.0])
        assert getattr(functional, name)(x, *args, True) is x
        getattr(theirs, name)(y, *args, True)
        assert x.tolist() == pytest.approx(y.tolist()), name
        x = kiln.tensor([-2.0, 3.0])
        assert getattr(functional, name)(x, *args, inplace=True) is x
    names = [n for n in dir(kiln.nn.activations) if hasattr(torch.nn, n) and n[0].isupper()]
    assert len(names) > 25
    for name in set(names) - {"Module", "Parameter"}:
        args = (
            (1, 2) if name == "Threshold" else (-1,) if name in ("Softmax", "LogSoftmax", "Softmin") else ()
        )
        ours, other = (getattr(f.nn, name)(*args) for f in (kiln, torch))
        assert repr(ours) == repr(other)
        given = np.linspace(-4, 4, 24, dtype=np.float32).reshape(2, 3, 2, 2)
        got, want = ours.eval()(kiln.tensor(given)), other.eval()(torch.tensor(given))
        assert close(to_array(got), to_array(want), "float32", 4.0), name
        if hasattr(other, "inplace"):
            shown = [repr(getattr(f.nn, name)(*args, inplace=True)) for f in (kiln, torch)]
            assert shown[0] == shown[1]


def test_rrelu_draws_slopes() -> None:
    kiln.manual_seed(0)
    x = kiln.full((1000,), -1.0, requires_grad=True)
    y = kiln.nn.functional.rrelu(x, 0.25, 0.75, training=True)
    assert -0.75 <= float(y.min()) < -0.7 and -0.3 < float(y.max()) <= -0.25
    (slopes,) = kiln.autograd.grad(y.sum(), x)
    assert kiln.equal(slopes, -y)


@needs_torch
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_finfo(name: str) -> None:
    ours, theirs = kiln.finfo(getattr(kiln, name)), torch.finfo(getattr(torch, name))
    for key in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
        assert getattr(ours, key) == getattr(theirs, key), key
    assert repr(ours) == repr(theirs) and ours == kiln.finfo(getattr(kiln, name)) != kiln.iinfo(kiln.int8)


@needs_torch
def test_iinfo_and_wrong_dtypes() -> None:
    for name in ("uint8", "int8", "int16", "int32", "int64"):
        ours, theirs = kiln.iinfo(getattr(kiln, name)), torch.iinfo(getattr(torch, name))
        assert (ours.bits, ours.min, ours.max, repr(ours)) == (
            theirs.bits, theirs.min, theirs.max, repr(theirs)
        )  # fmt: skip
    for wrong in (lambda: kiln.finfo(kiln.int8), lambda: kiln.iinfo(kiln.bool), lambda: kiln.iinfo("int8")):
        with pytest.raises(TypeError):
            wrong()
    assert kiln.finfo().dtype == "float32"


@needs_torch
def test_result_type() -> None:
    """Every pair of a tensor, a tensor without dims and a number, in every dtype."""

    def things(f: Any) -> list[Any]:
        made = [f.ones(s, dtype=getattr(f, d)) for d in DTYPES for s in ((2,), ())]
        return [*made, True, 2, 1.5]

    for (a, b), (c, d) in zip(
        itertools.product(things(kiln), repeat=2), itertools.product(things(torch), repeat=2)
    ):
        assert dtype_name(kiln.result_type(a, b)) == dtype_name(torch.result_type(c, d)), (c, d)


@needs_torch
@pytest.mark.parametrize("decimals", [0, 1, 3, -1])
def test_round_at_decimals(decimals: int) -> None:
    given = np.random.default_rng(0).normal(size=200) * 100
    for dtype in ("float32", "float64"):
        ours, theirs = (
            to_array(f.round(f.tensor(given, dtype=getattr(f, dtype)), decimals=decimals))
            for f in (kiln, torch)
        )
        assert np.array_equal(ours, theirs)


@needs_torch
def test_equal_and_close() -> None:
    """What `equal`, `isclose` and `allclose` say of sizes, dtypes, NaN, infinities and tolerances."""
    inf, nan = float("inf"), float("nan")
    cases = [([1.0, 2.0], [1.0, 2.0]), ([1.0, nan], [1.0, nan]), ([inf, -inf], [inf, -inf]), ([inf], [-inf]),
             ([1.0], [1.0001]), ([], []), ([0.0], [-0.0])]  # fmt: skip
    for x, y in cases:
        ours, theirs = ([f.tensor(v) for v in (x, y)] for f in (kiln, torch))
        assert kiln.equal(*ours) == torch.equal(*theirs)
        for more in ({}, {"equal_nan": True}, {"rtol": 0.0, "atol": 0.0}, {"rtol": 1e-3}):
            assert kiln.allclose(*ours, **more) == torch.allclose(*theirs, **more)
            assert kiln.isclose(*ours, **more).tolist() == torch.isclose(*theirs, **more).tolist()
    assert not kiln.equal(kiln.ones(2), kiln.ones(1, 2))


def test_frexp_and_ldexp_over_all_exponents() -> None:
    """Down to denormals: frexp is exact, and ldexp brings the number back."""
    for dtype, low, high in (("float32", -148, 127), ("float64", -1073, 1023)):
        given = np.ldexp(1.5, np.arange(low, high)).astype(dtype)
        mantissa, exponent = kiln.frexp(kiln.tensor(given))
        want = np.frexp(given)
        assert np.array_equal(mantissa.numpy(), want[0]) and np.array_equal(exponent.numpy(), want[1])
        some = abs(want[1]) < 100
        assert np.array_equal(kiln.ldexp(mantissa, exponent).numpy()[some], given[some])


@needs_torch
@hypothesis.given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    st.sampled_from(["int8", "int16", "int32", "int64", "uint8"]),
    st.integers(-70, 70),
)
def test_whole_numbers_as_python(numbers: list[int], dtype: str, places: int) -> None:
    """gcd and shifts of all integers, beside Python's and PyTorch's."""
    x = np.array(numbers, np.int64).astype(dtype)
    y = np.roll(x, 1)
    low = np.iinfo(dtype).min
    kept = ((x != low) & (y != low)) if low < 0 else np.full(x.shape, True)
    got = kiln.gcd(kiln.tensor(x), kiln.tensor(y)).numpy()
    assert [int(g) for g in got[kept]] == [math.gcd(int(a), int(b)) for a, b in zip(x[kept], y[kept])]
    places %= 128 if dtype == "uint8" else 2**62
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        ours, theirs = (getattr(f, name)(f.tensor(x), places) for f in (kiln, torch))
        assert ours.tolist() == theirs.tolist()
