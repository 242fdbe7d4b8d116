"""Every pointwise function in every dtype beside PyTorch's: dtype, values, special values, in-place forms,
and the type of the error where PyTorch refuses.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import kiln
from kiln.testing.compare import close, difference, dtype_name, to_array

torch = pytest.importorskip("torch")

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
SCALAR_SECOND = (
    "add sub mul div floor_divide remainder fmod pow eq ne lt le gt ge bitwise_and bitwise_or bitwise_xor "
    "bitwise_left_shift bitwise_right_shift copysign clamp clip rsub"
).split()


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


def agree(name: str, home: str, arrays: list[tuple[list[Any], str]], *more: Any) -> None:
    """kiln's function and PyTorch's of the same name on the same values."""
    ours, theirs = (getattr(f.nn.functional if home == "nn" else f, name) for f in (kiln, torch))
    got, want = outcome(kiln, ours, arrays, *more), outcome(torch, theirs, arrays, *more)
    assert_alike(got, want, f"{name} {[d for _, d in arrays]} {more}")


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    for dtype in DTYPES:
        agree(name, "", [(values(dtype), dtype)])


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    for dtype in DTYPES:
        given = values(dtype)[:12]
        if name == "gelu":  # PyTorch's of float16 at infinity is NaN
            given = [x for x in given if abs(x) < 100]
        agree(name, "nn", [(given, dtype)])


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    for dtype in DTYPES:
        pairs = list(itertools.product(values(dtype), repeat=2))
        if name in ("floor_divide", "remainder", "fmod") and "float" not in dtype:
            pairs = [(x, y) for x, y in pairs if y]
        if name == "pow" and "float" not in dtype:
            pairs = [(x, y) for x, y in pairs if 0 <= y < 60]
        agree(name, "", [([x for x, _ in pairs], dtype), ([y for _, y in pairs], dtype)])
