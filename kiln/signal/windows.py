"""Windows under the names of torch.signal.windows: vectors of M values that fall off to both ends.

`sym` says whether the last value is the first one again, or left out as in a period. float32 or float64
(ValueError for others, and for M < 0), computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from kiln import ops
from kiln.ops.creation.constants import chosen_dtype, settle
from kiln.ops.elementwise.arithmetic import convert
from kiln.table.callables import name_helpers as _name_helpers


def _window(name: str, M: int, values: Callable[[Any], Any], options: dict[str, Any], least: int = 2) -> Any:
    """The window of `values(k)` at k = 0 .. M - 1, as its maker was asked for it; ones if M < least."""
    dtype = options.pop("dtype", None)
    named = chosen_dtype(dtype)
    if M < 0:
        raise ValueError(f"{name} requires non-negative window length, got M={M}")
    if named not in ("float32", "float64"):
        raise ValueError(f"{name} expects float32 or float64 dtypes, got: {dtype}")
    device, requires_grad = options.pop("device", None), options.pop("requires_grad", False)
    exact: Any = "float64"
    made = ops.ones(M, dtype=exact) if M < least else values(ops.arange(M, dtype=exact))
    return settle(convert(made, named), requires_grad, device, name, options)


def _period(M: int, sym: bool) -> int:
    return M - 1 if sym else M


def general_cosine(M: int, *, a: Iterable[float], sym: bool = True, **options: Any) -> Any:
    """a[0] - a[1] cos t + a[2] cos 2t - ..., t from 0 to 2 pi. ValueError for no coefficients.

    >>> kiln.signal.windows.general_cosine(3, a=[0.5, 0.5])
    tensor([0., 1., 0.])
    """
    if not isinstance(a, Iterable):
        raise TypeError("Coefficients must be a list/tuple")
    return _cosines("general_cosine", M, a, sym, options)


def _cosines(name: str, M: int, a: Iterable[float], sym: bool, options: dict[str, Any]) -> Any:
    weights = list(a)
    if not weights:
        raise ValueError("Coefficients cannot be empty")

    def values(k: Any) -> Any:
        t = k * (2 * math.pi / _period(M, sym))
        return sum((-1) ** n * w * ops.cos(t * n) for n, w in enumerate(weights))

    return _window(name, M, values, options)


def general_hamming(M: int, *, alpha: float = 0.54, sym: bool = True, **options: Any) -> Any:
    """alpha - (1 - alpha) cos t, t from 0 to 2 pi.

    >>> kiln.signal.windows.general_hamming(3, alpha=0.75)
    tensor([0.5000, 1.0000, 0.5000])
    """
    return _cosines("general_cosine", M, (alpha, 1.0 - alpha), sym, options)


def hamming(M: int, *, sym: bool = True, **options: Any) -> Any:
    """0.54 - 0.46 cos t, t from 0 to 2 pi.

    >>> kiln.signal.windows.hamming(3)
    tensor([0.0800, 1.0000, 0.0800])
    """
    return _cosines("general_cosine", M, (0.54, 0.46), sym, options)


def hann(M: int, *, sym: bool = True, **options: Any) -> Any:
    """0.5 - 0.5 cos t, t from 0 to 2 pi.

    >>> kiln.signal.windows.hann(3)
    tensor([0., 1., 0.])
    """
    return _cosines("general_cosine", M, (0.5, 0.5), sym, options)


def blackman(M: int, *, sym: bool = True, **options: Any) -> Any:
    """0.42 - 0.5 cos t + 0.08 cos 2t, t from 0 to 2 pi.

    >>> kiln.signal.windows.blackman(5)[1:4]
    tensor([0.3400, 1.0000, 0.3400])
    """
    return _cosines("blackman", M, (0.42, 0.5, 0.08), sym, options)


def nuttall(M: int, *, sym: bool = True, **options: Any) -> Any:
    """Four cosines with the lowest side lobes that end continuously.

    >>> kiln.signal.windows.nuttall(5)[1:4]
    tensor([0.2270, 1.0000, 0.2270])
    """
    return _cosines("general_cosine", M, (0.3635819, 0.4891775, 0.1365995, 0.0106411), sym, options)


def bartlett(M: int, *, sym: bool = True, **options: Any) -> Any:
    """A triangle from 0 to 1 to 0.

    >>> kiln.signal.windows.bartlett(5)
    tensor([0.0000, 0.5000, 1.0000, 0.5000, 0.0000])
    """
    return _window("bartlett", M, lambda k: 1 - ops.abs(k * (2 / _period(M, sym)) - 1), options)


def cosine(M: int, *, sym: bool = True, **options: Any) -> Any:
    """Half a sine.

    >>> kiln.signal.windows.cosine(3)
    tensor([0.5000, 1.0000, 0.5000])
    """
    return _window("cosine", M, lambda k: ops.sin((k + 0.5) * (math.pi / (_period(M, sym) + 1))), options)


def exponential(
    M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, **options: Any
) -> Any:
    """exp(-|k - center| / tau), from the middle or from `center`. ValueError for a center with `sym`, and for
    tau <= 0.

    >>> kiln.signal.windows.exponential(3)
    tensor([0.3679, 1.0000, 0.3679])
    """
    if tau <= 0:
        raise ValueError(f"Tau must be positive, got: {tau} instead.")
    if sym and center is not None:
        raise ValueError("Center must be None for symmetric windows")
    middle = _period(M, sym or M == 1) / 2 if center is None else center
    return _window("exponential", M, lambda k: ops.exp(-ops.abs(k - middle) / tau), options, 1)


def gaussian(M: int, *, std: float = 1.0, sym: bool = True, **options: Any) -> Any:
    """exp(-(k - middle)**2 / (2 std**2)). ValueError for std <= 0.

    >>> kiln.signal.windows.gaussian(3)
    tensor([0.6065, 1.0000, 0.6065])
    """
    if std <= 0:
        raise ValueError(f"Standard deviation must be positive, got: {std} instead.")

    def values(k: Any) -> Any:
        return ops.exp(-ops.square((k - _period(M, sym) / 2) / (std * math.sqrt(2))))

    return _window("gaussian", M, values, options)


def kaiser(M: int, *, beta: float = 12.0, sym: bool = True, **options: Any) -> Any:
    """i0(beta sqrt(1 - t**2)) / i0(beta), t from -1 to 1. ValueError for beta < 0.

    >>> kiln.signal.windows.kaiser(3, beta=1.0)
    tensor([0.7898, 1.0000, 0.7898])
    """
    if beta < 0:
        raise ValueError(f"beta must be non-negative, got: {beta} instead.")

    def values(k: Any) -> Any:
        t = k * (2 / _period(M, sym)) - 1
        whole = ops.i0(ops.full((), float(beta), dtype=k.dtype))
        return ops.i0(beta * ops.sqrt(ops.clamp(1 - t * t, min=0))) / whole

    return _window("kaiser", M, values, options)


_name_helpers(globals(), __name__, "signal.windows.")
