"""The elementary functions and the NumPy handler: errors in ULPs, special values, the bits of kernels."""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from codegen_peer import run, same
from test_codegen_nest import LEVEL_NAMES

from kiln.codegen.compile import compile_text
from kiln.codegen.nests.generate import nest_text
from kiln.codegen.nests.nest import Nest, Operand
from kiln.codegen.target import LEVELS
from kiln.scalars import mathematics, on_numpy, philox
from kiln.scalars.on_numpy import DTYPE, evaluate
from kiln.scalars.scalar import Scalar, arg, const, convert, fma, round_to, select

mpmath = pytest.importorskip("mpmath")
Array = np.ndarray[Any, Any]

_spec = importlib.util.spec_from_file_location("ulp", Path(__file__).parents[2] / "bench" / "ulp.py")
assert _spec is not None and _spec.loader is not None
ulp = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ulp)

ONE = sorted(ulp.BOUNDS)
INF, NAN = math.inf, math.nan
# where a function changes path or range, and the values that break
SWITCHES = [
    0.0, 1.0, 2.0, 2 / 3, 4 / 3, 1 / 3, 0.25, 0.5, math.sqrt(0.5), math.sqrt(2), math.log(2),
    math.log(2) / 2, 1.5 * math.log(2), 9.1, 9.01, 3.93, 88.7228, 88.3763, 89.0, 103.97, 104.0, 87.3365,
    126.0, 127.0, 128.0, 129.0, 149.0, 150.0, 151.0, 17.0, 18.0, 16.64, 2.0**-26, 2.0**-24, 2.0**-12,
    math.pi / 4, math.pi / 2, math.pi, 100.0, 2.0**15, 2.0**22, 2.0**24, 2.0**-126, 2.0**-149,
    3.4028234663852886e38, INF,
]  # fmt: skip


def on(make: Callable[..., Scalar], *arrays: Array) -> Array:
    """A scalar function through the NumPy handler."""
    types = {np.dtype(d): t for t, d in DTYPE.items()}
    root = make(*(arg(k, types[a.dtype]) for k, a in enumerate(arrays)))
    return np.broadcast_to(evaluate([root], lambda leaf: arrays[leaf.data])[0], arrays[0].shape)


def around(values: list[float], dtype: Any, width: int) -> Array:
    """Each value and its `width` neighbours on both sides, both signs, and NaN."""
    kind = np.dtype(dtype)
    raw = np.array([v for v in values if v != INF], kind).view(f"i{kind.itemsize}")
    near = (raw[:, None] + np.arange(-width, width + 1, dtype=raw.dtype)).ravel()
    near = near[near >= 0].view(kind)
    return np.concatenate([near, -near, np.array([INF, -INF, NAN], kind)])


def float32_samples(rng: np.random.Generator) -> Array:
    """300 thousand float32: every exponent, neighbourhoods of the switch points, specials."""
    exponents = np.arange(256, dtype=np.uint32).repeat(400) << 23
    uniform = exponents | rng.integers(0, 2**23, len(exponents), dtype=np.uint32)
    signed = np.concatenate([uniform, uniform | np.uint32(2**31)]).view(np.float32)
    usual = np.concatenate([rng.uniform(-1.5, 1.5, 40000), rng.uniform(-105, 105, 40000)]).astype(np.float32)
    return np.concatenate([signed, usual, around(SWITCHES, np.float32, 60)])


@pytest.mark.parametrize("name", ONE)
def test_float32_error(name: str, rng: np.random.Generator) -> None:
    """Within the promised ULPs of float64 everywhere, exact in zeros, infinities and NaNs."""
    x = float32_samples(rng)
    with np.errstate(all="ignore"):
        want = ulp.REFERENCE[name](x.astype(np.float64))
        error = ulp.ulps(on(ulp.body(name), x), want)
    worst = int(np.argmax(error))
    assert error[worst] <= ulp.BOUNDS[name], (x[worst], error[worst])


TRUTH: dict[str, Callable[[Any], Any]] = {
    "exp": mpmath.exp, "exp2": lambda x: mpmath.mpf(2) ** x, "expm1": mpmath.expm1, "log": mpmath.log,
    "log2": lambda x: mpmath.log(x, 2), "log1p": mpmath.log1p, "tanh": mpmath.tanh, "erf": mpmath.erf,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "sin": mpmath.sin, "cos": mpmath.cos,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x), "log10": mpmath.log10, "tan": mpmath.tan, "asin": mpmath.asin,
    "acos": mpmath.acos, "atan": mpmath.atan, "sinh": mpmath.sinh, "cosh": mpmath.cosh,
    "asinh": mpmath.asinh, "acosh": mpmath.acosh, "atanh": mpmath.atanh,
}  # fmt: skip


def distance(got: float, want: Any, bits: int = 53, least: int = -1021) -> float:
    """|got - want| in units of the last place of a float of `bits` bits; inf where only one is infinite."""
    largest = mpmath.mpf(2) ** (2 - least) * (1 - mpmath.mpf(2) ** -bits)
    if abs(want) > largest or math.isinf(got):
        return 0.0 if math.isinf(got) and abs(want) > largest * (1 - mpmath.mpf(2) ** (1 - bits)) else INF
    if want == 0:
        return 0.0 if got == 0 else INF
    return float(abs(mpmath.mpf(got) - want) * mpmath.mpf(2) ** (bits - max(mpmath.frexp(want)[1], least)))


def float64_samples(name: str, rng: np.random.Generator, n: int) -> Array:
    """Finite values in the domain of a function, where it has something to do."""
    wide = np.exp(rng.uniform(-30, math.log(745), n)) * rng.choice([-1.0, 1.0], n)
    near = rng.uniform(-3, 3, n)
    x = np.concatenate([wide, near, around([v for v in SWITCHES if 1e-12 < v < 745], np.float64, 2)])
    if name in ("sin", "cos", "tan"):
        multiples = np.round(rng.uniform(0, 1e9, n)) * (math.pi / 2)
        x = np.concatenate(
            [x, 2.0 ** rng.uniform(0, 1024, n), multiples, [6381956970095103.0 * 2.0**797, 2.0**27]]
        )
    if name in ("log", "log2", "log10", "rsqrt"):
        x = np.abs(np.concatenate([x, 2.0 ** rng.uniform(-1074, 1024, n)]))
    if name == "log1p":
        x = np.concatenate([x[x > -1], 2.0 ** rng.uniform(-60, 1024, n)])
    if name in ("tanh", "erf"):
        x = x[np.abs(x) < 40]
    if name in ("asin", "acos", "atanh"):
        x = np.concatenate([x[np.abs(x) < 1], rng.uniform(-1, 1, n), 1 - 2.0 ** rng.uniform(-50, 0, n)])
    if name in ("sinh", "cosh"):
        x = x[np.abs(x) < 709]
    if name in ("asinh", "acosh"):
        x = np.concatenate([x, 2.0 ** rng.uniform(0, 1024, n), 1 + 2.0 ** rng.uniform(-50, 0, n)])
    if name == "acosh":
        x = x[x >= 1]
    return x[np.isfinite(x)]


@pytest.mark.parametrize("name", ONE)
def test_float64_error(name: str, rng: np.random.Generator) -> None:
    """Within 1.5 ULP of the truth."""
    x = float64_samples(name, rng, 400)
    got = on(ulp.body(name), x)
    with mpmath.workdps(380 if name in ("sin", "cos", "tan") else 60):
        error = [distance(float(g), TRUTH[name](mpmath.mpf(float(v)))) for v, g in zip(x, got)]
    worst = int(np.argmax(error))
    assert error[worst] <= 1.5, (x[worst], got[worst], error[worst])


SPECIAL = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)],
    "exp2": [
        (0.0, 1.0),
        (-0.0, 1.0),
        (INF, INF),
        (-INF, 0.0),
        (10.0, 1024.0),
        (-149.0, 2.0**-149),
        (1e4, INF),
        (-1e4, 0.0),
    ],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (1e4, INF), (-1e4, -1.0)],
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (INF, INF), (-INF, NAN), (-1.0, NAN)],
    "log2": [
        (0.0, -INF),
        (-0.0, -INF),
        (1.0, 0.0),
        (8.0, 3.0),
        (2.0**-149, -149.0),
        (INF, INF),
        (-INF, NAN),
        (-1.0, NAN),
    ],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-INF, NAN), (-2.0, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (30.0, 1.0)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (40.0, 1.0)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (7.0, 1.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)],
    "log10": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (1e3, 3.0), (INF, INF), (-INF, NAN), (-1.0, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.0, math.pi / 2), (-1.0, -math.pi / 2), (1.5, NAN), (INF, NAN)],
    "acos": [(0.0, math.pi / 2), (1.0, 0.0), (-1.0, math.pi), (-1.5, NAN), (INF, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (1.0, math.pi / 4), (INF, math.pi / 2), (-INF, -math.pi / 2)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (1e4, INF)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (-1e4, INF)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1.0, 0.0), (INF, INF), (0.5, NAN), (-INF, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (-INF, NAN)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (4.0, 0.5), (INF, 0.0), (-INF, NAN), (-1.0, NAN)],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ONE)
def test_special_values(name: str, dtype: str) -> None:
    """Exact results, signs of zeros included; NaN gives NaN; tiny values pass where f(x) = x + O(x^2)."""
    x, want = (np.array(v, dtype) for v in zip(*SPECIAL[name], (NAN, NAN)))
    assert same(on(ulp.body(name), x), want)
    if name in ("expm1", "log1p", "tanh", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh"):
        least = np.finfo(dtype).smallest_subnormal
        tiny = np.array([least, -least, 5 * least, np.finfo(dtype).tiny, -np.finfo(dtype).tiny], dtype)
        assert same(on(ulp.body(name), tiny), tiny)


def test_masked_scores_take_no_slow_instruction(monkeypatch: Any) -> None:
    """Processors take a hundred times as long where a result is too small for a normal number."""
    scaled: list[Array] = []
    real = on_numpy._ldexp

    def noted(x: Array, n: Array) -> Array:
        scaled.append(real(x, n))
        return scaled[-1]

    monkeypatch.setattr(on_numpy, "_ldexp", noted)
    for name in ("exp", "exp2"):
        for dtype, lowest in ((np.float32, -152.0), (np.float64, -1077.0)):
            x = np.array([-np.inf, np.finfo(dtype).min, -1e30, -1e9, -1e4, lowest, 0.0], dtype)
            scaled.clear()
            assert on(getattr(mathematics, name), x).tolist() == [0.0] * 6 + [1.0]
            assert scaled and all((np.abs(y) >= np.finfo(dtype).tiny).all() for y in scaled)


@pytest.mark.parametrize("name", ["tanh", "erf", "sin"])
def test_odd_and_bounded(name: str, rng: np.random.Generator) -> None:
    """f(-x) = -f(x) to the bit, and |f| <= 1."""
    for dtype in (np.float32, np.float64):
        x = np.concatenate([rng.uniform(0, 12, 50000), rng.uniform(0, 1, 50000)]).astype(dtype)
        y = on(ulp.body(name), x)
        assert same(on(ulp.body(name), -x), -y)
        assert np.all(np.abs(y) <= 1)


def test_pow_float32_error(rng: np.random.Generator) -> None:
    """Within 2.5 ULP of float64, over the range and close to 1 with large exponents."""
    n = 60000
    x = np.concatenate(
        [np.exp(rng.uniform(-4, 4, n)), np.exp(rng.uniform(-103, 88, n)), 1 + rng.uniform(-1e-3, 1e-3, n)]
    )
    y = np.concatenate([rng.uniform(-25, 25, n), rng.uniform(-1.2, 1.2, n), rng.uniform(-1e5, 1e5, n)])
    x, y = x.astype(np.float32), y.astype(np.float32)
    with np.errstate(all="ignore"):
        error = ulp.ulps(on(ulp.body("pow"), x, y), np.power(x.astype(np.float64), y.astype(np.float64)))
    worst = int(np.argmax(error))
    assert error[worst] <= 2.5, (x[worst], y[worst], error[worst])


def test_pow_float64_error(rng: np.random.Generator) -> None:
    """Within 1.5 ULP of the truth, also where |y log x| is largest."""
    n = 500
    x = np.concatenate(
        [
            np.exp(rng.uniform(-4, 4, n)),
            1 + rng.uniform(-1e-3, 1e-3, n),
            rng.uniform(0.5, 2, n),
            2.0 ** rng.uniform(-1074, -1022, 50),
        ]
    )
    y = np.concatenate(
        [
            rng.uniform(-150, 150, n),
            rng.uniform(-7e5, 7e5, n),
            rng.uniform(-1000, 1000, n),
            rng.uniform(-1, 1, 50),
        ]
    )
    got = on(ulp.body("pow"), x, y)
    with mpmath.workdps(60):
        error = [
            distance(float(g), mpmath.mpf(float(a)) ** mpmath.mpf(float(b))) for a, b, g in zip(x, y, got)
        ]
    worst = int(np.argmax(error))
    assert error[worst] <= 1.5, (x[worst], y[worst], got[worst], error[worst])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pow_special_values(dtype: str) -> None:
    """The table of IEEE 754, as Python's `math.pow` and NumPy have it."""
    values = [
        0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 2.5, -2.5, INF, -INF, NAN, 1e-42,
        -1e-42, 1e30, -1e30, 16777215.0, 16777217.0, 9007199254740991.0, -9007199254740991.0
    ]  # fmt: skip
    x, y = (
        np.ascontiguousarray(v.ravel()) for v in np.meshgrid(np.array(values, dtype), np.array(values, dtype))
    )
    got = on(ulp.body("pow"), x, y)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), y.astype(np.float64)).astype(dtype)
        exact = (want == 0) | ~np.isfinite(want) | (np.abs(want) == 1)
        assert same(got[exact], want[exact])
        assert np.all(np.abs(got[~exact] / want[~exact] - 1) < 1e-6)


# -- the same bits as kernels ---------------------------------------------------------------------


def as_nest(make: Callable[..., Scalar], types: list[str]) -> Nest:
    """`make` of contiguous operands, stored contiguously."""
    root = make(*(Scalar("load", (), t, k) for k, t in enumerate(types)))
    names = {"f32": "float32", "f64": "float64"}
    operands = [Operand(names[t], "in", ("1",)) for t in types] + [Operand(names[root.type], "out", ("1",))]
    return Nest(("p",), tuple(operands), (), ((len(types), root),))


@pytest.mark.parametrize("type", ["f32", "f64"])
@pytest.mark.parametrize("name", [*ONE, "pow"])
def test_kernels_give_the_same_bits(name: str, type: str, rng: np.random.Generator) -> None:
    """A compiled kernel and the NumPy handler agree to the bit, at every level this machine has."""
    dtype = DTYPE[type]
    kind = f"u{dtype.itemsize}"
    count = 2 if name == "pow" else 1
    ordinary = [rng.uniform(-4, 4, 3000).astype(dtype) for _ in range(count)]
    raw = [rng.integers(0, 2 ** (8 * dtype.itemsize), 3000, dtype=kind).view(dtype) for _ in range(count)]
    special = around(SWITCHES, dtype, 1)
    arrays = [
        np.concatenate([*p, special if k == 0 else special[::-1]]) for k, p in enumerate(zip(ordinary, raw))
    ]
    function = ulp.body(name)
    want = on(function, *arrays)
    for level in LEVEL_NAMES:
        out = np.zeros_like(want)
        run(as_nest(function, [type] * count), [len(out)], [*arrays, out], level=level)
        assert same(out, want), (level, [a[~((out == want) | np.isnan(want))][:5] for a in arrays])


@pytest.mark.parametrize("level", list(LEVELS))
@pytest.mark.parametrize("name", [*ONE, "pow"])
def test_compiles_on_every_level(name: str, level: str) -> None:
    """No call is left in the object, on machines this one is not, too."""
    for type in ("f32", "f64"):
        nest = as_nest(ulp.body(name), [type] * (2 if name == "pow" else 1))
        compile_text(nest_text(nest, LEVELS[level]), LEVELS[level])


# -- the handler ----------------------------------------------------------------------------------


def exact_fma(a: float, b: float, c: float, dtype: Any) -> float:
    """a * b + c of finite floats with a nonzero sum, rounded once, by integers."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if dtype == np.float64:
        try:
            return exact.numerator / exact.denominator
        except OverflowError:
            return INF if exact > 0 else -INF
    exponent = max(math.frexp(float(exact))[1] - 24, -149)
    scaled = exact / Fraction(2) ** exponent
    rounded = float(round(scaled) * Fraction(2) ** exponent)
    return rounded if abs(rounded) < 2.0**128 else math.copysign(INF, rounded)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_is_exact(dtype: Any, rng: np.random.Generator) -> None:
    """Against fractions: all exponents, near cancellation, ties, products and results among denormals."""
    n, kind = 1500, f"u{np.dtype(dtype).itemsize}"
    x = [rng.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), n, dtype=kind).view(dtype) for _ in range(3)]
    y = [rng.standard_normal(n).astype(dtype) for _ in range(3)]
    y[2][: n // 2] = -(y[0] * y[1])[: n // 2]
    least = dtype(2.0**-70 if dtype == np.float32 else 2.0**-520)
    z = [rng.standard_normal(n).astype(dtype) * least for _ in range(2)]
    z.append((rng.standard_normal(n).astype(dtype) * least * least).astype(dtype))
    whole = [rng.integers(1, 64, n).astype(dtype) for _ in range(3)]
    whole[2] *= dtype(2.0**24 if dtype == np.float32 else 2.0**53)
    a, b, c = (np.concatenate(p) for p in zip(x, y, z, whole))
    keep = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = a[keep], b[keep], c[keep]
    got = on(lambda p, q, r: fma(p, q, r), a, b, c)
    for p, q, r, g in zip(a.tolist(), b.tolist(), c.tolist(), got.tolist()):
        if Fraction(p) * Fraction(q) + Fraction(r):
            assert g == exact_fma(p, q, r, dtype), (p.hex(), q.hex(), r.hex(), g.hex())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_special_values(dtype: Any) -> None:
    """Infinities, NaN and the sign of exact zeros."""
    big, least = float(np.finfo(dtype).max), float(np.finfo(dtype).smallest_subnormal)
    cases = [
        (0.0, 1.0, 0.0, 0.0),
        (-0.0, 1.0, -0.0, -0.0),
        (0.0, -1.0, 0.0, 0.0),
        (1.0, 1.0, -1.0, 0.0),
        (INF, 0.0, 1.0, NAN),
        (INF, 1.0, -INF, NAN),
        (big, big, -INF, -INF),
        (big, 2.0, -big, big),
        (big, big, 0.0, INF),
        (-least, least, 0.0, -0.0),
        (least, least, -0.0, 0.0),
        (0.0, 5.0, -3.0, -3.0),
        (NAN, 0.0, 0.0, NAN),
        (1.0, 2.0, NAN, NAN),
        (least, 0.5, least, 2 * least),
    ]
    a, b, c, want = (np.array(v, dtype) for v in zip(*cases))
    assert same(on(lambda p, q, r: fma(p, q, r), a, b, c), want)


def test_total_integer_ops() -> None:
    """Division by zero, MIN / -1, shifts by the width and more, conversions out of range."""
    low = -(2**31)
    x = np.array([7, -7, low, 5, low], np.int32)
    y = np.array([-2, 2, -1, 0, 0], np.int32)
    assert on(lambda a, b: a / b, x, y).tolist() == [-3, -3, low, 0, 0]
    assert on(lambda a, b: Scalar("rem", (a, b), "i32"), x, y).tolist() == [1, -1, 0, 0, 0]
    amounts = np.array([0, 31, 32, 100, -1], np.int32)
    ones = np.full(5, -3, np.int32)
    assert on(lambda a, b: a << b, ones, amounts).tolist() == [-3, low, 0, 0, 0]
    assert on(lambda a, b: a >> b, ones, amounts).tolist() == [-3, -1, -1, -1, -1]
    unsigned = np.array([200, 7, 255], np.uint8)
    assert on(lambda a, b: a / b, unsigned, np.array([7, 0, 255], np.uint8)).tolist() == [28, 0, 1]
    assert on(lambda a, b: a >> b, unsigned, np.array([1, 8, 200], np.uint8)).tolist() == [100, 0, 0]
    floats = np.array([NAN, INF, -INF, 2.0**31, -(2.0**31), 2.9, -2.9, -0.5], np.float32)
    assert on(lambda a: convert(a, "i32"), floats).tolist() == [low, low, low, low, low, 2, -2, 0]
    assert on(lambda a: convert(a, "u8"), floats).tolist() == [0, 0, 0, 0, 0, 2, 0, 0]
    assert on(lambda a: convert(a, "i1"), floats).tolist() == [True] * 8


def test_rounding_to_sixteen_bits() -> None:
    """float16 and bfloat16: nearest even, infinities, NaN."""
    x = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 65520.0, 2.0**-25, NAN, -INF], np.float32)
    assert same(
        on(lambda a: round_to(a, "float16"), x), np.array([1, 1 + 2.0**-9, INF, 0, NAN, -INF], np.float32)
    )
    x = np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, 3.3961775e38, 1e-45, NAN, -INF], np.float32)
    assert same(
        on(lambda a: round_to(a, "bfloat16"), x), np.array([1, 1 + 2.0**-6, INF, 0, NAN, -INF], np.float32)
    )


def test_evaluate_shapes_sharing_and_silence() -> None:
    """Broadcasting, several roots, a repeated root, a root that is a leaf, a gather; no warnings."""
    x, row = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0.0, -1.0, 1.0], np.float32)
    a, b = arg(0, "f32"), arg(1, "f32")
    quotient = a / b
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, again, leaf = evaluate([quotient, quotient, a], lambda n: (x, row)[n.data])
        assert first.shape == (2, 3) and again is first and leaf is x
        position = Scalar("index", (), "i64", 0)
        load = Scalar("load", (position,), "f32", 0)
        (picked,) = evaluate([load + 1.0], lambda n: np.array([2, 0]), lambda n, at: row[at[0]])
        assert picked.tolist() == [2.0, 1.0]
        reduced = Scalar("sum", (a,), "f32")
        assert evaluate([select(reduced > 1.0, reduced, 0.0)], lambda n: np.float32([3.0]))[0].tolist() == [
            3.0
        ]
        assert evaluate([const(-0.0, "f32")], lambda n: x)[0].shape == ()


# -- random numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "counter", "stream", "words"),
    [
        (0, 0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E,
         (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ],
)  # fmt: skip
def test_philox_known_answers(seed: int, counter: int, stream: int, words: tuple[int, ...]) -> None:
    """The published vectors of philox4x32-10."""
    values = [np.array([v], np.uint64) for v in (seed, counter, stream)]
    roots = philox.philox(*(arg(k, "u64") for k in range(3)))
    assert tuple(int(v[0]) for v in evaluate(list(roots), lambda leaf: values[leaf.data])) == words


def test_random_distributions() -> None:
    """Uniforms lie in [0, 1), normals have the moments of a normal, in both types; a pair is uncorrelated."""
    n = 200000
    words = philox.philox(const(1234, "i64"), arg(0, "i64"))
    roots = [*philox.normal_f32(words[0], words[1]), *philox.normal_f64(words), philox.uniform_f32(words[2]),
             philox.uniform_f64(words[2], words[3])]  # fmt: skip
    out = evaluate(roots, lambda leaf: np.arange(n))
    for z in out[:4]:
        moments = [float(np.mean(z.astype(np.float64) ** k)) for k in (1, 2, 3, 4)]
        assert np.allclose(moments, [0, 1, 0, 3], atol=0.06), moments
    for u in out[4:]:
        assert 0 <= u.min() and u.max() < 1
        assert np.allclose(np.histogram(u, 16, (0, 1))[0], n / 16, rtol=0.05)
    assert abs(np.corrcoef(out[0], out[1])[0, 1]) < 0.01


def test_random_edges() -> None:
    """The extreme words give finite normals and uniforms below 1."""
    top = np.array([0, 2**32 - 1], np.uint32)
    a, b = arg(0, "u32"), arg(1, "u32")
    x, y = (np.ascontiguousarray(v.ravel()) for v in np.meshgrid(top, top))
    roots = [
        *philox.normal_f32(a, b),
        *philox.normal_f64((a, a, b, b)),
        philox.uniform_f32(a),
        philox.uniform_f64(a, b),
    ]
    out = evaluate(roots, lambda leaf: (x, y)[leaf.data])
    assert all(np.all(np.isfinite(v)) for v in out)
    assert out[4].max() < 1 and out[5].max() < 1
    assert np.abs(out[0]).max() < 6.8
