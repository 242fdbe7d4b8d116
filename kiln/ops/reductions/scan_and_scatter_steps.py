"""What scans and scatters do at each position, as scalars: the interpreter and the kernels both run these.

    scatter   out = step(out, x)
    scan      state = start;  then per position i:  state = step(state, x, i);  out = state[last]

Sums and products of float32 are kept in float64 between positions, those of 16 bits in float32; each stored
result is rounded once. A NaN, once met, stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kiln.scalars import mathematics as m
from kiln.scalars.scalar import FLOATS, SIGNED, WIDTH, Scalar, bits, const, select
from kiln.table.kinds import COMPUTE

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


def _extremum(sign: int) -> Scan:
    """The position of the largest (sign 1) or smallest so far, the later of equals; a NaN beats all, the
    later NaN too. Floats are compared as integers that order as they do: a step waits for one comparison.
    """

    def step(state: State, x: Scalar, position: Scalar) -> State:
        best, place = state
        rank = _rank(x, sign) if x.type in FLOATS else x
        if x.type == "i1":
            better = (x | ~best) if sign > 0 else (~x | best)
        else:
            better = rank >= best if sign > 0 else rank <= best
        return select(better, rank, best), select(better, position, place)

    return Scan(lambda t: (lowest(_RANKS.get(t, t), -sign), const(0, "i64")), step)


_RANKS = {"f32": "i32", "f64": "i64"}


def _rank(x: Scalar, sign: int) -> Scalar:
    """An integer that orders as x does, -0 as 0; of a NaN the end on the side of `sign`."""
    word = bits(select(x.eq(0), const(0, x.type), x))
    upright = const((1 << (WIDTH[x.type] - 1)) - 1, word.type)
    return select(x.ne(x), lowest(word.type, sign), select(word < 0, word ^ upright, word))


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
    "scan_argmax": _extremum(1),
    "scan_argmin": _extremum(-1),
    "scan_logsumexp": Scan(lambda t: (const(float("-inf"), t),), _log_add, True),
}


def state_type(name: str, dtype: str) -> str:
    """The scalar type a scan over elements taken as `dtype` computes in."""
    return "f64" if SCANS[name].wide and dtype == "float32" else COMPUTE[dtype]
