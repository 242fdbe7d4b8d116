"""Images of whole numbers, 0 to 255, of other sizes: `interpolate` of uint8.

The weights of a result's element are whole numbers of 16 bits, w = round(weight * 2**p) with the largest p
that lets all of them fit, and an element is (sum(w * x) + 2**(p - 1)) >> p within 0 to 255: after the
columns, and again after the rows. It is what Pillow does, and PyTorch.
"""

from __future__ import annotations

from functools import lru_cache
from math import floor
from typing import Any

from kiln.ops.creation.data import tensor
from kiln.ops.elementwise.arithmetic import convert

_SLOPE, _SMOOTH_SLOPE = -0.75, -0.5  # of cubic weights one element away; with antialiasing
_HALF = 15  # bits of a weight
_MOST = 22  # bits behind the point


@lru_cache(maxsize=32)
def weights(
    n: int, out: int, scale: float, cubic: bool, corners: bool, smooth: bool
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], int]:
    """For n elements made `out`: by tap the positions read and the whole weights of all results, and p.

    >>> weights(2, 3, 0.5, False, True, False)
    (((0, 0, 1), (1, 1, 1)), ((16384, 8192, 16384), (0, 8192, 0)), 14)
    """
    made = _smooth_rows(n, out, scale, cubic) if smooth else _rows(n, out, scale, cubic, corners)
    most = max(w for _, row in made for w in row)
    bits = next((k for k in range(_MOST) if int(0.5 + most * (1 << (k + 1))) >= 1 << _HALF), _MOST)
    taps = max(len(row) for _, row in made)
    places = tuple(tuple(min(first + k, n - 1) for first, _ in made) for k in range(taps))
    whole = [[int(w * (1 << bits) + (0.5 if w >= 0 else -0.5)) for w in row] for _, row in made]
    return places, tuple(tuple(row[k] if k < len(row) else 0 for row in whole) for k in range(taps)), bits


def _cubic(t: float, slope: float) -> float:
    """The weight of an element at a distance t."""
    if t < 1:
        return ((slope + 2) * t - (slope + 3)) * t * t + 1
    return (((t - 5) * t + 8) * t - 4) * slope if t < 2 else 0.0


def _rows(n: int, out: int, scale: float, cubic: bool, corners: bool) -> list[tuple[int, list[float]]]:
    """For each result the first position and the weights from there; what lies outside is the edge's."""
    made = []
    for i in range(out):
        at = scale * i if corners else scale * (i + 0.5) - 0.5
        at = at if cubic else max(at, 0.0)
        low = min(floor(at), n - 1)
        share = min(max(at - low, 0.0), 1.0)
        first = low - 1 if cubic else low
        row = [_cubic(abs(share - k), _SLOPE) for k in (-1, 0, 1, 2)] if cubic else [1.0 - share, share]
        inside: dict[int, float] = {}
        for k, w in enumerate(row):
            place = min(max(first + k, 0), n - 1)
            inside[place] = inside.get(place, 0.0) + w
        made.append((min(inside), list(inside.values())))
    return made


def _smooth_rows(n: int, out: int, scale: float, cubic: bool) -> list[tuple[int, list[float]]]:
    """The same with antialiasing: of all elements as far away as the result's are from one another."""
    wider = max(scale, 1.0)
    support = (2.0 if cubic else 1.0) * wider
    made = []
    for i in range(out):
        center = scale * (i + 0.5)
        first = max(int(center - support + 0.5), 0)
        end = min(int(center + support + 0.5), n)
        away = [abs((j - center + 0.5) / wider) for j in range(first, end)]
        row = [_cubic(t, _SMOOTH_SLOPE) if cubic else max(1.0 - t, 0.0) for t in away]
        total = sum(row) or 1.0
        made.append((first, [w / total for w in row]))
    return made


def resample_bytes(x: Any, dim: int, out: int, scale: float, cubic: bool, corners: bool, smooth: bool) -> Any:
    """uint8 `x` with `out` elements along `dim`: int32 sums of its elements by whole weights, rounded.

    >>> kiln.nn.functional.interpolate(kiln.tensor([[[[0, 255]]]], dtype=kiln.uint8), (1, 3), mode="bilinear")
    tensor([[[[  0, 128, 255]]]], dtype=kiln.uint8)
    """
    places, taps, bits = weights(x.shape[dim], out, scale, cubic, corners, smooth)
    shape = [1] * x.ndim
    shape[dim] = out
    total: Any = 1 << (bits - 1)
    for where, weight in zip(places, taps):
        share = convert(tensor(weight), "int32").reshape(shape)
        total = convert(x.index_select(dim, tensor(where)), "int32") * share + total
    return convert((total >> bits).clamp(0, 255), "uint8")
