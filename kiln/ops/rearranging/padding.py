"""Arrays made larger or smaller at their edges: `pad` in its four modes.

A constant's surroundings are filled and the input written into them, one kernel; the other modes read the
input at computed places, all dims at once.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln import _core
from kiln.graph.size import product
from kiln.ops.creation.constants import filled
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.indexing.concatenation import cat
from kiln.ops.indexing.gathering import gather
from kiln.ops.rearranging.reorder import flip
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import expand, reshape, slice_, write
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, number
from kiln.table.public import public
from kiln.table.record import Number, Sizes, Structure, Tensor, composite, find
from kiln.table.registry import forms

_slice = slice_.handle


def _surrounded(np: ModuleType, x: Any, value: Any, dims: Any, before: Any, after: Any) -> Any:
    widths = [(0, 0)] * x.ndim
    for dim, a, b in zip(dims, before, after):
        widths[dim] = (a, b)
    return np.pad(x, widths, constant_values=value)


@composite(
    dtypes="all",
    public=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3), t), 1, (0, 1), (1, 2), (0, 3)), {})),
    reference=d.reference(_surrounded),
)
def surround(input: Tensor, value: Number, dims: Structure, before: Sizes, after: Sizes) -> Any:
    """`input` with `value` at before[k] places in front of it and after[k] behind it along dims[k].

    >>> kiln.nn.functional.pad(kiln.tensor([1, 2]), (1, 1))
    tensor([0, 1, 2, 0])
    """
    shape = list(input.shape)
    for dim, a, b in zip(dims, before, after):
        shape[dim] = shape[dim] + a + b
    strides = tuple(product(tuple(shape[k + 1 :])) for k in range(len(shape)))
    offset: Any = 0
    for dim, a in zip(dims, before):
        offset = offset + a * strides[dim]
    return write(filled(input.graph, value, tuple(shape), input.dtype), input, strides, (offset,))


@surround.derivative
def _(g: Tensor, input: Tensor, dims: tuple[int, ...], before: Any) -> Any:
    for dim, a in zip(dims, before):
        g = slice_(g, dim, (a, input.shape[dim], 1))
    return g, None


def _by_dim(pad: Any, ndim: int) -> list[tuple[int, int, int]]:
    """(dim, before, after) of what changes, from PyTorch's list, which begins with the last dim."""
    if len(pad) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    if len(pad) > 2 * ndim:
        raise RuntimeError(
            "Padding length should be less than or equal to two times the input dimension but got padding "
            f"length {len(pad)} and input of dimension {ndim}"
        )
    pairs = zip(pad[::2], pad[1::2])
    return [(ndim - 1 - k, a, b) for k, (a, b) in enumerate(pairs) if a != 0 or b != 0]


def _cropped(input: Tensor, dim: int, before: int, after: int) -> Any:
    """`input` without what negative pads take away along `dim`."""
    start, end = max(-before, 0), max(-after, 0)
    if not start and not end:
        return input
    size = input.shape[dim]
    if isinstance(size, int) and size < start + end:
        raise RuntimeError(
            f"pad: length must be non-negative: ({before}, {after}) takes more than the {size} of dim {dim}"
        )
    return _slice(input, dim, (start, size - start - end, 1))


@public(
    "constant_pad_nd",
    method=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3), t), (1, 0, 2, 1), 1), {}),
        lambda rng, t: ((d.array(rng, (2, 3), t), (-1, 2)), {}),
        lambda rng, t: ((d.array(rng, (0, 3), t), (0, 0, 1, 1)), {}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 3), (1,)), {}, RuntimeError, "divisible by 2"),
        ((d.Zeros(3), (1, 1, 1, 1)), {}, RuntimeError, "less than or equal to two times"),
        ((d.Zeros(3), (-2, -2)), {}, RuntimeError, "non-negative"),
    ),
)
def constant_pad_nd(input: Any, pad: Any, value: Any = 0) -> Any:
    """A copy with `value` added at the edges: pad[0] in front of and pad[1] behind the last dim, then the dim
    before it, and so on; a negative number takes away.

    RuntimeError for an odd count, too many, or a size below 0.

    >>> kiln.constant_pad_nd(kiln.tensor([1, 2]), (1, -1), 7)
    tensor([7, 1])
    """
    _core.check_in_range(value, dtype_name(input.dtype))
    dims = _by_dim(pad, input.ndim)
    for dim, before, after in dims:
        input = _cropped(input, dim, before, after)
    places = tuple(dim for dim, _, _ in dims)
    fronts, backs = (tuple(max(entry[k], 0) for entry in dims) for k in (1, 2))
    return surround.handle(input, value, places, fronts, backs)


def _edges(np: ModuleType, x: Any, mode: Any, dims: Any, before: Any, after: Any) -> Any:
    widths = [(0, 0)] * x.ndim
    for dim, a, b in zip(dims, before, after):
        widths[dim] = (a, b)
    return np.pad(x, widths, {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])


def _seen(mode: str, place: Any, size: Any) -> Any:
    """The place in [0, size) whose element is seen at a place that may lie in front of it or behind it."""
    if mode == "circular":
        place = p.where(place < 0, place + size, place)
        return p.where(place < size, place, place - size)
    low, last = (0 - place if mode == "reflect" else 0), size - 1
    place = p.where(place < 0, low, place)
    return p.where(place > last, last - (place - last) if mode == "reflect" else last, place)


@composite(
    dtypes="all",
    public=False,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3, 4), t), "reflect", (2, 1), (1, 2), (3, 0)), {}),
        lambda rng, t: ((d.array(rng, (2, 3, 2), t), "replicate", (1, 0), (1, 2), (0, 3)), {}),
        lambda rng, t: ((d.array(rng, (2, 3, 4), t), "circular", (2, 1), (4, 0), (1, 3)), {}),
    ),
    reference=d.reference(_edges),
)
def extend(input: Tensor, mode: Structure, dims: Structure, before: Sizes, after: Sizes) -> Any:
    """`input` with before[k] places in front of it and after[k] behind it along dims[k], which repeat it: in
    the mirror of its edge ("reflect"), the edge ("replicate"), from the other end ("circular").

    The dims from the first to the last that grow are read as one, at places computed from all of them.

    >>> kiln.nn.functional.pad(kiln.tensor([[1.0, 2.0]]), (1, 1), mode="circular")
    tensor([[2., 1., 2., 1.]])
    """
    start, end = min(dims), max(dims) + 1
    shape, sizes = tuple(input.shape), list(input.shape)
    front = dict(zip(dims, before))
    for dim, a, b in zip(dims, before, after):
        sizes[dim] = sizes[dim] + a + b
    place: Any = None
    for dim in range(start, end):
        at: Any = input.graph.add(find("iota"), (), (tuple(sizes), dim))
        if dim in front:
            at = _seen(mode, at - number(input, front[dim]), number(input, shape[dim]))
        stride = product(shape[dim + 1 : end])
        at = at if stride == 1 else at * number(input, stride)
        place = at if place is None else place + at
    flat = product(shape[start:end])
    source = reshape(input, (*shape[:start], *(1,) * (end - start - 1), flat, *shape[end:]))
    return gather(expand(source, (*sizes[: end - 1], flat, *shape[end:])), end - 1, place)


@extend.derivative
def _(g: Tensor, input: Tensor, mode: Any, dims: tuple[int, ...], before: Any, after: Any) -> Any:
    zero = number(g, 0)
    for dim, a, b in zip(dims, before, after):
        size = g.shape[dim] - a - b
        front, back = slice_(g, dim, (0, a, 1)), slice_(g, dim, (a + size, b, 1))
        places = {"reflect": (1, size - 1 - b), "replicate": (0, size - 1), "circular": (size - a, 0)}[mode]
        if mode == "reflect":
            front, back = flip(front, (dim,)), flip(back, (dim,))
        elif mode == "replicate":
            front, back = (reduce_sum(x, (dim,), True) for x in (front, back))
        g = slice_(g, dim, (a, size, 1))
        for x, first in zip((front, back), places):
            g = g + surround(x, zero, (dim,), (first,), (size - first - x.shape[dim],))
    return g if mode == "circular" else p.overwrite(input, g)  # see by_steps


def _grown(input: Tensor, mode: str, dims: list[tuple[int, int, int]]) -> Any:
    """`input` grown by (dim, before, after), none below 0; RuntimeError where it has too little to repeat."""
    for dim, before, after in reversed(dims):
        size = input.shape[dim]
        if not isinstance(size, int):
            continue
        if mode == "replicate" and size == 0:
            raise RuntimeError(f"pad: expected non-zero dimensions to replicate, got {list(input.shape)}")
        if mode == "reflect" and max(before, after) >= size:
            raise RuntimeError(
                "Argument #4: Padding size should be less than the corresponding input dimension, but got: "
                f"padding ({before}, {after}) at dimension {dim} of input {list(input.shape)}"
            )
        if mode == "circular" and max(before, after) > size:
            raise RuntimeError("Padding value causes wrapping around more than once.")
    places, fronts, backs = (tuple(entry[k] for entry in dims) for k in (0, 1, 2))
    return extend.handle(input, mode, places, fronts, backs) if dims else input


_MODES = ("reflect", "replicate", "circular")


forms("pad", "(input, pad: Sequence[int], mode='constant', value: float | None = None)")


@public(
    "pad",
    method=False,
    layer=True,
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3), t), (1, 2)), {"mode": "reflect"}),
        lambda rng, t: ((d.array(rng, (1, 2, 3, 4), t), (1, 2, 0, 1)), {"mode": "replicate"}),
        lambda rng, t: ((d.array(rng, (2, 3, 4), t), (3, 2, -1, 1)), {"mode": "circular"}),
    ),
    dtypes="float32 bfloat16",
    failures=d.failures(
        ((d.Zeros(2, 3), (3, 0), "reflect"), {}, RuntimeError, "less than the corresponding"),
        ((d.Zeros(2, 3), (4, 0), "circular"), {}, RuntimeError, "more than once"),
        ((d.Zeros(3), (1, 1), "replicate"), {}, NotImplementedError, "Only 2D, 3D, 4D, 5D"),
        ((d.Zeros(3), (1, 1), "wrong"), {}, NotImplementedError, "Unrecognised padding mode"),
        ((d.Zeros(2, 3), (1, 1), "reflect", 1.0), {}, RuntimeError, "value argument"),
        ((d.Zeros(2, 0), (1, 1), "replicate"), {}, RuntimeError, "non-zero"),
    ),
)
def pad(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
    """`input` with pad[0] places in front of and pad[1] behind its last dim, then the dim before it, and so
    on; negative numbers take away. `mode`: "constant" (`value`, 0 by default), "reflect" (without the edge),
    "replicate" (the edge), "circular" (the other end); the last three of the last 1 to 3 dims.

    RuntimeError for pads that do not fit, NotImplementedError for another mode or number of dims.

    >>> kiln.nn.functional.pad(kiln.tensor([[1.0, 2.0, 3.0]]), (2, 1), mode="reflect")
    tensor([[3., 2., 1., 2., 3., 2.]])
    """
    if mode == "constant":
        return constant_pad_nd(input, pad, 0 if value is None else value)
    dims = _by_dim(pad, input.ndim)
    if value is not None and value != 0:
        raise RuntimeError(f'Padding mode "{mode}" doesn\'t take in value argument')
    if mode not in _MODES:
        raise NotImplementedError(f"Unrecognised padding mode {mode}")
    if len(pad) // 2 not in (1, 2, 3) or input.ndim - len(pad) // 2 not in (1, 2):
        raise NotImplementedError(
            "Only 2D, 3D, 4D, 5D padding with non-constant padding are supported for now"
        )
    grown = [(dim, max(a, 0), max(b, 0)) for dim, a, b in dims if max(a, b) > 0]
    if mode != "circular":  # what is taken away is still seen in the mirror
        input = _grown(input, mode, grown)
    for dim, before, after in dims:
        input = _cropped(input, dim, before, after)
    if mode == "circular":
        input = _grown(input, mode, grown)
    made = grown and (mode == "circular" or all(min(a, b) >= 0 for _, a, b in dims))
    return input if made else cat([input])
