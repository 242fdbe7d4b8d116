"""Arrays made larger or smaller at their edges: `pad` in its four modes.

A constant's surroundings are filled and the input written into them, one kernel; the other modes join slices
of the input, dim by dim.
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.graph.size import product
from kiln.ops import declare as d
from kiln.ops.creation import filled
from kiln.ops.declare import dtype_name, public
from kiln.ops.indexing import cat
from kiln.ops.moves import flip
from kiln.ops.record import Number, Sizes, Structure, Tensor, composite
from kiln.ops.views import expand, slice_, write

_slice, _expand, _flip = slice_.handle, expand.handle, flip.handle


def _surrounded(np: Any, x: Any, value: Any, dims: Any, before: Any, after: Any) -> Any:
    widths = [(0, 0)] * x.ndim
    for dim, a, b in zip(dims, before, after):
        widths[dim] = (a, b)
    return np.pad(x, widths, constant_values=value)


@composite(
    dtypes="all",
    public=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3), t), 1, (0, 1), (1, 2), (0, 3)), {})),
    reference=d.reference(_surrounded),
    onnx="Pad",
    failures=d.not_an_array("surround"),
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
def _(g: Any, input: Any, dims: Any, before: Any) -> Any:
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


def _cropped(input: Any, dim: int, before: int, after: int) -> Any:
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


def _replicated(input: Any, dim: int, before: int, after: int) -> Any:
    shape = tuple(input.shape)
    if isinstance(shape[dim], int) and shape[dim] == 0:
        raise RuntimeError(f"pad: expected non-zero dimensions to replicate, got {list(shape)}")

    def edge(place: Any, count: int) -> Any:
        return _expand(_slice(input, dim, (place, 1, 1)), (*shape[:dim], count, *shape[dim + 1 :]))

    return cat([edge(0, before), input, edge(shape[dim] - 1, after)], dim)


def _reflected(input: Any, dim: int, before: int, after: int) -> Any:
    size = input.shape[dim]
    if isinstance(size, int) and max(before, after) >= size:
        raise RuntimeError(
            "Argument #4: Padding size should be less than the corresponding input dimension, but got: "
            f"padding ({before}, {after}) at dimension {dim} of input {list(input.shape)}"
        )
    front = _flip(_slice(input, dim, (1, before, 1)), (dim,))
    back = _flip(_slice(input, dim, (size - 1 - after, after, 1)), (dim,))
    return cat([front, input, back], dim)


def _wrapped(input: Any, dim: int, before: int, after: int) -> Any:
    size = input.shape[dim]
    if isinstance(size, int) and max(before, after) > size:
        raise RuntimeError("Padding value causes wrapping around more than once.")
    front = _slice(input, dim, (size - before, before, 1))
    return cat([front, input, _slice(input, dim, (0, after, 1))], dim)


_MODES = {"reflect": _reflected, "replicate": _replicated, "circular": _wrapped}


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
    for dim, before, after in reversed(dims):
        grown = (dim, max(before, 0), max(after, 0))
        if mode == "circular":
            input = _cropped(input, dim, before, after)
        if max(grown[1:]):
            input = _MODES[mode](input, *grown)
        if mode != "circular":  # what is taken away is still seen in the mirror
            input = _cropped(input, dim, before, after)
    return input if dims else cat([input], 0)
