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
from backend import filled, kiln, torch

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
# functions are made as they are asked for; of those not made no in-place form is known
ASKED = [getattr(kiln, name) for name in (*UNARY, *BINARY)]
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


def test_every_in_place_method_exists(answers: Any) -> None:
    """A pointwise function with an in-place form in PyTorch has one here, as a method and as a function."""
    names = sorted({*UNARY, *BINARY} - {"nextafter", "positive", "conj_physical"})

    def there(f: Any, names: list[str]) -> list[tuple[str, str]]:
        homes = {"a method": f.Tensor, "a function": f}
        return [(n, kind) for n in names for kind, home in homes.items() if hasattr(home, f"{n}_")]

    ours, theirs = answers.both(there, names)
    assert len(theirs) > 60
    assert not set(theirs) - set(ours)


def test_in_place_functions(answers: Any) -> None:
    names = ("relu_", "exp_", "abs_", "clamp_", "celu_", "zero_", "threshold_", "nan_to_num_")

    def written(f: Any, names: tuple[str, ...]) -> list[list[float]]:
        found = []
        for name in names:
            more = (1.0, 2.0) if name == "threshold_" else (0.5,) if name == "clamp_" else ()
            x = f.tensor([-1.5, 2.0])
            assert getattr(f, name)(x, *more) is x
            found.append(x.tolist())
        return found

    for name, x, y in zip(names, *answers.both(written, names), strict=True):
        assert x == pytest.approx(y), name
    with pytest.raises(TypeError):
        kiln.exp_(2.0)
    with pytest.raises(TypeError):
        kiln.exp_()


def test_in_place_where_elements_overlap_or_are_spread(answers: Any) -> None:
    """The in-place forms on views: strided, broadcast, of one memory, and what PyTorch refuses."""

    def written(f: Any) -> Any:
        x = f.arange(12, dtype=f.float32).reshape(3, 4)
        x[:, ::2].add_(x[:, 1::2])
        x.t().mul_(f.tensor([1.0, 2.0, 3.0]))
        x[0].copysign_(f.tensor(-1.0))
        x[1:].clamp_(max=20.0)
        with pytest.raises(RuntimeError):
            f.zeros(1).expand(3).add_(1)
        with pytest.raises(RuntimeError):
            f.zeros(3).add_(f.zeros(2, 3))
        with pytest.raises(RuntimeError):
            f.zeros(3, dtype=f.int64).add_(1.5)
        with pytest.raises(RuntimeError):
            f.ones(2, requires_grad=True).exp_()
        return x.tolist()

    ours, theirs = answers.both(written)
    assert ours == theirs == [[-1, -1, -5, -3], [18, 10, 20, 14], [20, 20, 20, 20]]


def test_in_place_values_reach_backward() -> None:
    """A value saved for backward and written afterwards is noticed, also by the fast in-place calls."""
    for write in ("y.mul_(2)", "y += 1", "y.zero_()", "y.fill_(2.0)", "y.exp_()"):
        x = kiln.tensor([1.0, 2.0], requires_grad=True)
        z = (x * 3).exp()
        y = z.detach()
        exec(write, {"y": y})
        with pytest.raises(RuntimeError, match="modified by an inplace operation|version"):
            z.sum().backward()


def layers_of(f: Any, names: list[str]) -> dict[str, Any]:
    """Of each activation: the module's text, with `inplace` where it has that, and its values."""
    found = {}
    given = np.linspace(-4, 4, 24, dtype=np.float32).reshape(2, 3, 2, 2)
    for name in names:
        softmax = name in ("Softmax", "LogSoftmax", "Softmin")
        args = (1, 2) if name == "Threshold" else (-1,) if softmax else ()
        layer = getattr(f.nn, name)(*args)
        texts = [repr(layer)]
        if hasattr(layer, "inplace"):
            texts.append(repr(getattr(f.nn, name)(*args, inplace=True)))
        filled(f, layer)
        found[name] = (texts, to_array(layer.eval()(f.tensor(given))))
    return found


def test_activations_as_functions_and_modules(answers: Any) -> None:
    """`inplace` by place and by name; the modules' texts and values as PyTorch's."""
    calls = (("relu", ()), ("elu", (1.0,)), ("hardtanh", (-1.0, 1.0)), ("threshold", (0.0, 5.0)))

    def written(f: Any, calls: Any) -> list[list[float]]:
        found = []
        for name, args in calls:
            x = f.tensor([-2.0, 3.0])
            assert getattr(f.nn.functional, name)(x, *args, True) is x
            found.append(x.tolist())
            x = f.tensor([-2.0, 3.0])
            assert getattr(f.nn.functional, name)(x, *args, inplace=True) is x
            found.append(x.tolist())
        return found

    for x, y in zip(*answers.both(written, calls), strict=True):
        assert x == pytest.approx(y)
    made = sorted(n for n in dir(kiln.nn.activations) if n[0].isupper() and n not in ("Module", "Parameter"))
    names = answers(made, lambda: [n for n in made if hasattr(torch.nn, n)])
    assert len(names) > 23
    ours, theirs = answers.both(layers_of, names)
    for name, (texts, got) in ours.items():
        assert texts == theirs[name][0]
        assert close(got, theirs[name][1], "float32", 4.0), name


def test_rrelu_draws_slopes() -> None:
    kiln.manual_seed(0)
    x = kiln.full((1000,), -1.0, requires_grad=True)
    y = kiln.nn.functional.rrelu(x, 0.25, 0.75, training=True)
    assert -0.75 <= float(y.min()) < -0.7 and -0.3 < float(y.max()) <= -0.25
    (slopes,) = kiln.autograd.grad(y.sum(), x)
    assert kiln.equal(slopes, -y)


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_finfo(name: str, answers: Any) -> None:
    keys = ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype")

    def info(f: Any, name: str, keys: tuple[str, ...]) -> list[str]:
        found = f.finfo(getattr(f, name))
        return [repr(getattr(found, key)) for key in keys] + [repr(found)]

    mine, theirs = answers.both(info, name, keys)
    assert mine == theirs
    ours = kiln.finfo(getattr(kiln, name))
    assert ours == kiln.finfo(getattr(kiln, name)) != kiln.iinfo(kiln.int8)


def test_iinfo_and_wrong_dtypes(answers: Any) -> None:
    def infos(f: Any, names: tuple[str, ...]) -> list[Any]:
        found = [f.iinfo(getattr(f, name)) for name in names]
        return [(x.bits, str(x.min), str(x.max), repr(x)) for x in found]

    ours, theirs = answers.both(infos, ("uint8", "int8", "int16", "int32", "int64"))
    assert ours == theirs
    for wrong in (lambda: kiln.finfo(kiln.int8), lambda: kiln.iinfo(kiln.bool), lambda: kiln.iinfo("int8")):
        with pytest.raises(TypeError):
            wrong()
    assert kiln.finfo().dtype == "float32"


def test_result_type(answers: Any) -> None:
    """Every pair of a tensor, a tensor without dims and a number, in every dtype."""

    def types(f: Any, dtypes: tuple[str, ...]) -> list[str]:
        made = [f.ones(s, dtype=getattr(f, d)) for d in dtypes for s in ((2,), ())]
        return [
            dtype_name(f.result_type(a, b)) for a, b in itertools.product([*made, True, 2, 1.5], repeat=2)
        ]

    things = [*itertools.product(DTYPES, ((2,), ())), True, 2, 1.5]
    for pair, ours, theirs in zip(
        itertools.product(things, repeat=2), *answers.both(types, DTYPES), strict=True
    ):
        assert ours == theirs, pair


@pytest.mark.parametrize("decimals", [0, 1, 3, -1])
def test_round_at_decimals(decimals: int, answers: Any) -> None:
    given = np.random.default_rng(0).normal(size=200) * 100

    def found(f: Any, given: Any, decimals: int) -> list[Any]:
        kinds = (f.float32, f.float64)
        return [to_array(f.round(f.tensor(given, dtype=kind), decimals=decimals)) for kind in kinds]

    for ours, theirs in zip(*answers.both(found, given, decimals), strict=True):
        assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)


def test_equal_and_close(answers: Any) -> None:
    """What `equal`, `isclose` and `allclose` say of sizes, dtypes, NaN, infinities and tolerances."""
    inf, nan = float("inf"), float("nan")
    cases = [([1.0, 2.0], [1.0, 2.0]), ([1.0, nan], [1.0, nan]), ([inf, -inf], [inf, -inf]), ([inf], [-inf]),
             ([1.0], [1.0001]), ([], []), ([0.0], [-0.0])]  # fmt: skip
    options = ({}, {"equal_nan": True}, {"rtol": 0.0, "atol": 0.0}, {"rtol": 1e-3})

    def said(f: Any, cases: Any, options: Any) -> list[Any]:
        pairs = [(f.tensor(x), f.tensor(y)) for x, y in cases]
        near = [[f.allclose(*p, **more), f.isclose(*p, **more).tolist()] for p in pairs for more in options]
        return [[f.equal(*p) for p in pairs], near]

    ours, theirs = answers.both(said, cases, options)
    assert ours == theirs
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


@hypothesis.given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20),
    st.sampled_from(["int8", "int16", "int32", "int64", "uint8"]),
)
def test_gcd_as_python(numbers: list[int], dtype: str) -> None:
    """gcd of all integers, beside Python's."""
    x = np.array(numbers, np.int64).astype(dtype)
    y = np.roll(x, 1)
    low = np.iinfo(dtype).min
    kept = ((x != low) & (y != low)) if low < 0 else np.full(x.shape, True)
    got = kiln.gcd(kiln.tensor(x), kiln.tensor(y)).numpy()
    assert [int(g) for g in got[kept]] == [math.gcd(int(a), int(b)) for a, b in zip(x[kept], y[kept])]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8"])
def test_shifts_of_all_places(dtype: str, answers: Any) -> None:
    """By more than a number has bits, and by less than none, of any numbers and of the ends of the range."""
    ends = np.iinfo(dtype)
    drawn = np.random.default_rng(0).integers(ends.min, ends.max, 30, dtype)
    x = np.array([ends.min, ends.max, 0, 1, *(() if dtype == "uint8" else (-1,)), *drawn], dtype)
    places = [n % (128 if dtype == "uint8" else 2**62) for n in range(-70, 71)]

    def shifted(f: Any, x: Any, places: list[int]) -> list[Any]:
        ways = (f.bitwise_left_shift, f.bitwise_right_shift)
        return [to_array(way(f.tensor(x), n)) for way in ways for n in places]

    for ours, theirs, n in zip(*answers.both(shifted, x, places), places * 2, strict=True):
        assert ours.tolist() == theirs.tolist(), n
