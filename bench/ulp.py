"""The error of an elementary function over all float32 values: a slow job, not a test.

    python bench/ulp.py                     all functions, one after the other
    python bench/ulp.py exp                 every float32, compiled kernels (kiln.exp on tensors)
    python bench/ulp.py exp --handler       every float32 through the NumPy handler (slower by far)
    python bench/ulp.py tanh --step 61      every 61st
    python bench/ulp.py sin --low 0x42c80000 --high 0x4b000000     a range of bit patterns

The reference is float64 from NumPy or Python's math. An ULP is the spacing of float32 at the true result, at
least the smallest denormal. Values come in chunks. A function takes two to ten minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Function = Callable[[Array], Array]
CHUNK = 1 << 17  # its float64 arrays stay in the cache
BOUNDS = {
    "exp": 1.0, "exp2": 1.0, "expm1": 1.0, "log": 1.0, "log2": 1.0, "log1p": 1.0,
    "log10": 1.0, "tanh": 2.5, "sigmoid": 2.5, "erf": 2.5, "sin": 2.0, "cos": 2.0, "tan": 2.5, "asin": 1.5,
    "acos": 1.5, "atan": 1.5, "sinh": 1.0, "cosh": 1.0, "asinh": 1.0, "acosh": 1.5, "atanh": 1.5,
    "rsqrt": 1.5,
}  # fmt: skip

# f(-x) = f(x) times this: the results of negative arguments are compared with those of positive ones
MIRRORED = {
    **dict.fromkeys(("tanh", "erf", "sin", "tan", "asin", "atan", "sinh", "asinh", "atanh"), -1),
    "cos": 1, "cosh": 1,
}  # fmt: skip


def each(function: Callable[[float], float]) -> Function:
    """A function of Python floats, on arrays; NaN where it raises."""

    def one(x: float) -> float:
        try:
            return function(x)
        except ValueError:
            return math.nan

    return lambda x: np.array([one(v) for v in x.tolist()], dtype=np.float64)


REFERENCE: dict[str, Function] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "tanh": np.tanh, "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)), "erf": each(math.erf),
    "log10": np.log10, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "sin": np.sin, "cos": np.cos, "rsqrt": lambda x: 1.0 / np.sqrt(x),
}  # fmt: skip


def ulps(got: Array, want: Array) -> Array:
    """How far float32 results are from float64 truths, in ULPs; inf where a zero, inf or NaN differs."""
    rounded = want.astype(np.float32)
    # one over the spacing: 2^(23 - e) for a truth of 2^e and more, the smallest normal's below it
    exponent = np.clip(want.view(np.int64) >> 52 & 0x7FF, 1023 - 126, 2046)
    error = np.abs(got - want) * ((2046 + 23 - exponent) << 52).view(np.float64)
    edge = ~(np.isfinite(rounded) & np.isfinite(got)) | (want == 0)
    if edge.any():
        error[edge] = edge_ulps(got[edge], want[edge], rounded[edge])
    return error


def edge_ulps(got: Array, want: Array, rounded: Array) -> Array:
    """The same where a zero, inf or NaN is in play: 0, or inf; 1 on one side of where rounding overflows."""
    same = (got == rounded) & (np.signbit(got) == np.signbit(rounded)) | np.isnan(got) & np.isnan(rounded)
    beside_overflow = np.isinf(got) != np.isinf(rounded)
    near = beside_overflow & (np.abs(want) >= 2.0**128 * (1 - 2.0**-24)) & (np.abs(want) < 2.0**128)
    return np.where(same, 0.0, np.where(near, 1.0, np.inf))


def compiled(name: str) -> Function:
    """The function as kiln runs it: tensors over the chunk's memory."""
    import kiln

    function = getattr(kiln, name)
    return lambda x: np.asarray(function(kiln.from_numpy(x)).numpy())


def body(name: str) -> Callable[..., Any]:
    """The function on scalars."""
    from kiln.scalars import hyperbolic, inverses, mathematics

    homes = (mathematics, inverses, hyperbolic)
    return next(f for home in homes if (f := getattr(home, name, None)) is not None)


def handled(name: str) -> Function:
    """The function through the NumPy handler."""
    from kiln.scalars.on_numpy import evaluate
    from kiln.scalars.scalar import arg

    root = body(name)(arg(0, "f32"))
    return lambda x: evaluate([root], lambda leaf: x)[0]


def chunks(low: int, high: int, step: int) -> Iterator[Array]:
    """The floats of bit patterns low, low + step, ... below high."""
    for start in range(low, high, CHUNK * step):
        stop = min(start + CHUNK * step, high)
        yield np.arange(start, stop, step, dtype=np.uint64).astype(np.uint32).view(np.float32)


def settled(name: str, x: Array, got: Array) -> bool:
    """Whether results are known to be within half an ULP without a truth for each.

    Between two arguments whose truths round to one float (or are NaN) a function that only rises or falls
    stays there.
    """
    if name in ("sin", "cos", "tan", "cosh"):
        return False
    first, last = REFERENCE[name](x[[0, -1]].astype(np.float64)).astype(np.float32)
    if np.isnan(first) and np.isnan(last):
        return bool(np.isnan(got).all())
    return bool(first == last and (got.view(np.int32) == first.view(np.int32)).all())


def worst_of(name: str, x: Array, got: Array, least: float) -> tuple[float, int]:
    """(worst error, its place) among results whose error may be above `least`; (-1, 0) if none is."""
    if settled(name, x, got):
        return min(0.5, least), 0
    want = REFERENCE[name](x.astype(np.float64))
    # as integers, neighbouring floats differ by 1; a result is at most half an ULP off the rounded truth
    steps = np.abs(got.view(np.int32) - want.astype(np.float32).view(np.int32))
    (places,) = np.nonzero((steps + 0.5 > least) | (steps < 0))
    if not len(places):
        return -1.0, 0
    error = ulps(got[places], want[places])
    k = int(np.argmax(error))
    return float(error[k]), int(places[k])


def sweep(name: str, function: Function, low: int, high: int, step: int) -> tuple[float, float, float, int]:
    """(worst error in ULPs, its argument, the result there, how many values were tried)."""
    worst, where, result, count = -1.0, math.nan, math.nan, 0
    mirrored = name in MIRRORED and (low, high) == (0, 2**32)
    with np.errstate(all="ignore"):
        for x in chunks(low, 2**31 if mirrored else high, step):
            got = function(x)
            if mirrored:
                other = MIRRORED[name] * function(-x)
                signs = (np.signbit(got) != np.signbit(other)) & ~np.isnan(got)
                if not np.array_equal(got, other, equal_nan=True) or signs.any():
                    raise SystemExit(f"{name}: not symmetric between {x[0]!r} and {x[-1]!r}")
            error, k = worst_of(name, x, got, worst)
            count += len(x) * (1 + mirrored)
            if error > worst:
                worst, where, result = error, float(x[k]), float(got[k])
    return worst, where, result, count


def main() -> int:
    """Sweep the named functions; the exit code is 1 if one is beyond its bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(REFERENCE)}; none: all")
    parser.add_argument("--handler", action="store_true", help="through the NumPy handler, not kernels")
    parser.add_argument("--step", type=int, default=1, help="try every n-th bit pattern")
    parser.add_argument("--low", type=lambda v: int(v, 0), default=0, help="first bit pattern")
    parser.add_argument("--high", type=lambda v: int(v, 0), default=2**32, help="end of the bit patterns")
    given = parser.parse_args()
    failed = False
    for name in given.names or REFERENCE:
        function = handled(name) if given.handler else compiled(name)
        worst, where, result, count = sweep(name, function, given.low, given.high, given.step)
        failed |= worst > BOUNDS[name]
        verdict = "BEYOND" if worst > BOUNDS[name] else "within"
        place = f"{where!r} ({where.hex()}) -> {result!r}"
        print(f"{name:8} {worst:.4f} ULP at {place}; {verdict} {BOUNDS[name]}; {count} values")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
