"""What scans and scatters do at each position, as scalars: the interpreter and the kernels both run these.

    scatter   out = step(out, x)
    scan      state = start;  then per position i:  state = step(state, x, i);  out = state[last]

Sums and products of float32 are kept in float64 between positions, those of 16 bits in float32; each stored
result is rounded once. A NaN, once met, stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kiln.ops import mathematics as m
from kiln.ops.kinds import COMPUTE
from kiln.ops.scalar import FLOATS, SIGNED, WIDTH, Scalar, const, select

State = tuple[Scalar, ...]


def _larger(total: Scalar, x: Scalar) -> Scalar:
    """The larger, the earlier of equals; NaN if one is."""
    if x.type == "i1":
        return total | x
    beats = x > total
    return select(beats | x.ne(x) if x.type in FLOATS else beats, x, total)


def _smaller(total: Scalar, x: Scalar) -> Scalar:
    if x.type == "i1":
        return total & x
    beats = x < total
    return select(beats | x.ne(x) if x.type in FLOATS else beats, x, total)


SCATTER: dict[str, Callable[[Scalar, Scalar], Scalar]] = {
    "scatter_add": lambda total, x: total | x if x.type == "i1" else total + x,
    "scatter_set": lambda total, x: x,
    "scatter_prod": lambda total, x: total & x if x.type == "i1" else total * x,
    "scatter_max": _larger,
    "scatter_min": _smaller,
}


def scatter_step(name: str, total: Scalar, x: Scalar) -> Scalar:
    """What a scatter puts where `total` lies."""
    return SCATTER[name](total, x)


class Scan(NamedTuple):
    """A scan: `start(type)` and `step(state, x, position)`; the state's last member is the result."""

    start: Callable[[str], State]
    step: Callable[[State, Scalar, Scalar], State]
    wide: bool = False  # sums of rounded results would lose what a wider state keeps


def lowest(type: str, sign: int) -> Scalar:
    """What nothing is below (sign -1) or above (sign 1)."""
    if type in FLOATS:
        return const(sign * float("inf"), type)
    if type == "i1":
        return const(sign > 0, type)
    bits = WIDTH[type]
    if type in SIGNED:
        return const((1 << (bits - 1)) - 1 if sign > 0 else -(1 << (bits - 1)), type)
    return const((1 << bits) - 1 if sign > 0 else 0, type)


def _extremum(beats: Callable[[Scalar, Scalar], Scalar]) -> Callable[[State, Scalar, Scalar], State]:
    """The position of the best so far, the later of equals; a NaN beats all, the later NaN too."""

    def step(state: State, x: Scalar, position: Scalar) -> State:
        best, place = state
        better = beats(x, best)
        if x.type in FLOATS:
            better = x.ne(x) | (best.eq(best) & better)
        return select(better, x, best), select(better, position, place)

    return step


def _at_least(x: Scalar, best: Scalar) -> Scalar:
    return x | ~best if x.type == "i1" else x >= best


def _at_most(x: Scalar, best: Scalar) -> Scalar:
    return ~x | best if x.type == "i1" else x <= best


def _log_add(state: State, x: Scalar, position: Scalar) -> State:
    """log(exp(total) + exp(x)); equal infinities stay as they are."""
    (total,) = state
    larger, smaller = select(x > total, x, total), select(x > total, total, x)
    same = total.eq(x) & total.eq(total + total) & total.ne(0)
    added = larger + m.log1p(m.exp(select(same, const(0, x.type), smaller - larger)))
    nan = select(x.ne(x), x, total)
    return (select(x.ne(x) | total.ne(total), nan, select(same, total, added)),)


SCANS: dict[str, Scan] = {
    "scan_sum": Scan(lambda t: (const(0, t),), lambda s, x, i: (s[0] + x,), True),
    "scan_prod": Scan(lambda t: (const(1, t),), lambda s, x, i: (s[0] * x,), True),
    "scan_argmax": Scan(lambda t: (lowest(t, -1), const(0, "i64")), _extremum(_at_least)),
    "scan_argmin": Scan(lambda t: (lowest(t, 1), const(0, "i64")), _extremum(_at_most)),
    "scan_logsumexp": Scan(lambda t: (const(float("-inf"), t),), _log_add, True),
}


def state_type(name: str, dtype: str) -> str:
    """The scalar type a scan over elements taken as `dtype` computes in."""
    return "f64" if SCANS[name].wide and dtype == "float32" else COMPUTE[dtype]
