"""What tests draw for an entry: samples, references in NumPy, calls that must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.table.arguments import INTEGERS
from kiln.table.record import Failure, Sample, Samples
from kiln.table.record import Tests as Tests


def reference(function: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy reference from a function whose first parameter is the numpy module, imported at the first
    call.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        import numpy as np

        with np.errstate(all="ignore"):
            return function(np, *args, **kwargs)

    return call


def numpy(name: str) -> Callable[..., Any]:
    """The NumPy function `name` as a reference."""
    return reference(lambda np, *args, **kwargs: getattr(np, name)(*args, **kwargs))


def floats(name_or_function: Any) -> Callable[..., Any]:
    """A reference (NumPy's name, or a function of numpy and arrays) of a float function: others as float32
    first.
    """

    def call(np: Any, x: Any) -> Any:
        x = np.asarray(x)
        x = x if x.dtype.kind == "f" else x.astype("float32")
        return (
            getattr(np, name_or_function)(x) if isinstance(name_or_function, str) else name_or_function(np, x)
        )

    return reference(call)


def held(dtype: str) -> str:
    """The NumPy dtype a reference computes `dtype` in: float32 for bfloat16, which NumPy lacks."""
    return "float32" if dtype == "bfloat16" else dtype


def array(rng: Any, shape: tuple[int, ...], dtype: str, low: float = -3.0, high: float = 3.0) -> Any:
    """Random values of a dtype in [low, high): integers are drawn as such; bfloat16 comes as float32."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype("bool")
    if dtype in INTEGERS:
        low, high = (max(low, 0.0), max(high, 4.0)) if dtype == "uint8" else (low, high)
        return rng.integers(int(low), int(high) + 1, shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(held(dtype))


def dividends(np: Any, last: float, by: float) -> Any:
    """Numbers of either sign, and what they are divided by, of either sign: 0 and -0 among them."""
    return np.array([-7.5, 7.5, 0.0, -0.0, last]), np.array([2.0, -2.0, 3.0, 3.0, by])


def distinct(rng: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """Values of a numeric dtype, no two equal."""
    count = 1
    for size in shape:
        count *= size
    places = rng.permutation(count).reshape(shape)
    return (places if dtype in INTEGERS else places / 4 - 5).astype(held(dtype))


def unary(low: float = -3.0, high: float = 3.0) -> Samples:
    """Samples of a function of one array: rows, a larger flat array, 0-d and empty."""
    shapes = ((3, 5), (37,), (), (0, 4), (2, 1, 3))
    return lambda rng, dtype: [Sample((array(rng, s, dtype, low, high),)) for s in shapes]


def binary(
    low: float = -3.0, high: float = 3.0, low2: float | None = None, high2: float | None = None
) -> Samples:
    """Samples of a function of two arrays that broadcast."""
    pairs = (((3, 5), (3, 5)), ((4, 1), (1, 6)), ((2, 3, 4), (4,)), ((), (5,)), ((0, 3), (3,)))
    second = (low if low2 is None else low2, high if high2 is None else high2)
    return lambda rng, dtype: [
        Sample((array(rng, a, dtype, low, high), array(rng, b, dtype, *second))) for a, b in pairs
    ]


def samples(*makers: Callable[[Any, str], Any]) -> Samples:
    """Samples from functions of (rng, dtype) that each give (args, kwargs)."""
    return lambda rng, dtype: [Sample(*make(rng, dtype)) for make in makers]


def failures(
    *cases: tuple[tuple[Any, ...], dict[str, Any], type[Exception], str],
) -> Callable[[], list[Failure]]:
    """Calls that must fail: (args, kwargs, error, match); a tuple of ints wrapped in `Zeros` is an array of
    zeros.
    """
    return lambda: [
        Failure(tuple(map(_filled, args)), kwargs, error, match) for args, kwargs, error, match in cases
    ]


class Zeros:
    """An array of zeros in a declared failure, made when it is asked for."""

    __slots__ = ("dtype", "shape", "value")

    def __init__(self, *shape: int, dtype: str = "float32", value: float = 0) -> None:
        self.shape, self.dtype, self.value = shape, dtype, value


def _filled(x: Any) -> Any:
    if isinstance(x, list):
        return [_filled(v) for v in x]
    if not isinstance(x, Zeros):
        return x
    import numpy as np

    return np.full(x.shape, x.value, x.dtype)


def not_broadcastable() -> list[Failure]:
    """The failure of an op of two arrays that broadcast."""
    return failures(((Zeros(2, 3), Zeros(2, 4)), {}, RuntimeError, "must match the size"))()
