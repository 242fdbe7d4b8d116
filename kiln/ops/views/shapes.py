"""Arrays in shapes of others: flattened, with more dims, broadcast together; copies of views; views made in
place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.ops.elementwise.arithmetic import clone, written, written_to
from kiln.ops.indexing.getitem import getitem
from kiln.ops.views import core_views, splits, strided  # noqa: F401
from kiln.ops.views.core_views import expand, reshape, sizes_of
from kiln.ops.views.memory_formats import contiguous, copied
from kiln.ops.views.storage import becoming
from kiln.table import arguments, registry
from kiln.table import drawn as d
from kiln.table.arguments import is_value
from kiln.table.kinds import broadcast, normalize_dim
from kiln.table.public import methods, public
from kiln.table.record import Tensor, find
from kiln.table.registry import forms

_reshape, _expand = reshape.handle, expand.handle


@public(
    "ravel",
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 3), t),), {})),
    dtypes="float32 int64",
)
def ravel(input: Any) -> Any:
    """`input`'s elements as a vector, contiguous: a view where `input` is.

    >>> kiln.ravel(kiln.tensor([[1, 2], [3, 4]]))
    tensor([1, 2, 3, 4])
    """
    return _reshape(input if is_value(input) else contiguous(input), (arguments.numel(input.shape),))


@public("reshape_as", dtypes="all")
def reshape_as(input: Any, other: Any) -> Any:
    """`input` in other's shape. RuntimeError if that holds another number of elements.

    >>> kiln.arange(4).reshape_as(kiln.zeros(2, 2)).shape
    kiln.Size([2, 2])
    """
    return core_views.reshape_(input, tuple(other.shape))


forms("numel", "-> int")


@public("numel", dtypes="all", differentiable=False)
def numel(input: Any) -> Any:
    """How many elements `input` has.

    >>> kiln.numel(kiln.zeros(2, 3))
    6
    """
    return arguments.numel(input.shape)


@public("is_same_size", dtypes="all", differentiable=False)
def is_same_size(input: Any, other: Any) -> bool:
    """Whether two tensors are of one shape.

    >>> kiln.is_same_size(kiln.zeros(2), kiln.zeros(2, 1))
    False
    """
    return tuple(input.shape) == tuple(other.shape)


# Broadcasting


forms("broadcast_shapes", "(*shapes: int | Sequence[int]) -> Size")


@public("broadcast_shapes", method=False, dtypes="", differentiable=False)
def broadcast_shapes(*shapes: Any) -> Any:
    """The shape that shapes (ints or sequences of them) broadcast to. RuntimeError if they do not.

    >>> kiln.broadcast_shapes((2, 1), 3)
    kiln.Size([2, 3])
    """
    given = [(s,) if isinstance(s, int) else tuple(s) for s in shapes]
    result = [1] * max(map(len, given), default=0)
    for number, shape in enumerate(given):
        for place in range(-1, -len(shape) - 1, -1):
            size = shape[place]
            if size == 1 or size == result[place]:
                continue
            if result[place] != 1 or size < 0:
                raise RuntimeError(
                    f"Attempting to broadcast a dimension of length {size} at {place}! Mismatching argument "
                    f"at index {number} had {shape}; but expected shape should be broadcastable to {result}"
                )
            result[place] = size
    return _core.Size(result)


def together(tensors: Any) -> tuple[Any, ...]:
    """Arrays, each expanded to the shape all broadcast to."""
    shapes = [tuple(x.shape) for x in tensors]
    if any(map(is_value, tensors)):
        graph = next(x.graph for x in tensors if is_value(x))
        shape = broadcast(graph, shapes, "broadcast_tensors")
    else:
        shape = ()
        for other in shapes:
            for k in range(1, min(len(shape), len(other)) + 1):
                if shape[-k] != other[-k] and 1 not in (shape[-k], other[-k]):
                    raise RuntimeError(
                        f"The size of tensor a ({shape[-k]}) must match the size of tensor b ({other[-k]}) "
                        f"at non-singleton dimension {max(len(shape), len(other)) - k}"
                    )
            shape = tuple(broadcast_shapes(shape, other))
    return tuple([_expand(x, shape) for x in tensors])


@public(
    "broadcast_tensors",
    method=False,
    samples=d.samples(lambda rng, t: ((d.array(rng, (2, 1), t), d.array(rng, (3,), t)), {})),
    dtypes="float32 int64",
    failures=d.failures(((d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "must match the size")),
)
def broadcast_tensors(*tensors: Any) -> tuple[Any, ...]:
    """Views of all tensors in the shape they broadcast to. RuntimeError if they do not.

    >>> [x.tolist() for x in kiln.broadcast_tensors(kiln.tensor([1, 2]), kiln.tensor(3))]
    [[1, 2], [3, 3]]
    """
    for place, x in enumerate(tensors):
        if not isinstance(x, _core.Tensor) and not is_value(x):
            raise TypeError(f"expected Tensor as element {place} in argument 0, but got {type(x).__name__}")
    return together(tensors)


@public("sum_to_size", dtypes="all")
def sum_to_size(input: Any, *sizes: Any, size: Any = None) -> Any:
    """`input` summed over the dims that broadcasting from `size` would repeat. RuntimeError if it would not
    give input's shape.

    >>> kiln.ones(2, 3).sum_to_size(1, 3)
    tensor([[2., 2., 2.]])
    """
    sizes, shape = tuple(sizes_of(sizes if size is None else (size,))), tuple(input.shape)
    extra = len(shape) - len(sizes)
    if extra < 0 or any(want not in (1, have) for want, have in zip(sizes, shape[extra:])):
        raise RuntimeError(f"size {{{list(sizes)}}} is not expandable to size {{{list(shape)}}}.")
    dims = tuple(k for k in range(len(shape)) if k < extra or sizes[k - extra] != shape[k])
    if dims or not sizes:  # no dims: PyTorch's `x.sum()`
        return _reshape(find("sum").handle(input, dims), sizes)
    return input


def _at_least(name: str, ndim: int, lift: Callable[[Any], Any]) -> Any:
    """atleast_1d, _2d or _3d."""

    def one(x: Tensor) -> Any:
        return x if x.ndim >= ndim else lift(x)

    def function(*tensors: Any) -> Any:
        if len(tensors) == 1 and not isinstance(tensors[0], (tuple, list)):
            return one(tensors[0])
        given = tensors[0] if len(tensors) == 1 else tensors
        return tuple([one(x) for x in given])

    function.__doc__ = f"""A view with at least {ndim} dims; of several tensors (or a list) a tuple of such.

    >>> kiln.{name}(kiln.tensor(5)).shape
    kiln.Size({[1] * ndim})
    """
    return public(
        name,
        method=False,
        samples=d.samples(
            lambda rng, t: ((d.array(rng, (), t),), {}),
            lambda rng, t: ((d.array(rng, (3,), t), d.array(rng, (2, 3), t)), {}),
            lambda rng, t: (([d.array(rng, (2, 2, 2), t), d.array(rng, (2,), t)],), {}),
        ),
        dtypes="float32 int64",
    )(function)


forms(
    "atleast_1d",
    "(tensor: Tensor, /)",
    "(tensors: Sequence[Tensor], /) -> tuple[Tensor, ...]",
    "(tensor: Tensor, other: Tensor, /, *tensors: Tensor) -> tuple[Tensor, ...]",
)
forms(
    "atleast_2d",
    "(tensor: Tensor, /)",
    "(tensors: Sequence[Tensor], /) -> tuple[Tensor, ...]",
    "(tensor: Tensor, other: Tensor, /, *tensors: Tensor) -> tuple[Tensor, ...]",
)
forms(
    "atleast_3d",
    "(tensor: Tensor, /)",
    "(tensors: Sequence[Tensor], /) -> tuple[Tensor, ...]",
    "(tensor: Tensor, other: Tensor, /, *tensors: Tensor) -> tuple[Tensor, ...]",
)


def _lifted_to_3(x: Tensor) -> Any:
    return _reshape(x, (*(1,) * (x.ndim < 2), *(x.shape or (1,)), 1))


atleast_1d = _at_least("atleast_1d", 1, lambda x: _reshape(x, (1,)))
atleast_2d = _at_least("atleast_2d", 2, lambda x: _reshape(x, (1, *(x.shape or (1,)))))
atleast_3d = _at_least("atleast_3d", 3, _lifted_to_3)


# Copies of views: `permute_copy(x, dims)` is `permute(x, dims).clone()`


def _slice_of(input: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    dim = normalize_dim(dim, input.ndim, "slice_copy")
    return getitem(input, (slice(None),) * dim + (slice(start, end, step),))


def _copying(name: str, view: Callable[..., Any], given: str) -> None:
    def function(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        result = view(*args, **kwargs)
        if isinstance(result, tuple):
            return tuple(map(clone, result)) if out is None else written(result, out)
        return clone(result) if out is None else written_to(result, out)

    function.__doc__ = f"""What `{name}` gives as views, as copies.

    >>> y = kiln.{name}_copy(kiln.zeros(2, 2){given})
    """
    function.__wrapped__ = view  # type: ignore[attr-defined]
    public(f"{name}_copy", method=name == "narrow", dtypes="all")(function)


# a view's name -> its arguments behind the tensor, in the example
_VIEWED = {
    "permute": ", (1, 0)", "transpose": ", 0, 1", "view": ", (4,)", "expand": ", (3, 2, 2)", "squeeze": "",
    "unsqueeze": ", 0", "t": "", "unbind": "", "split": ", 1", "split_with_sizes": ", [1, 1]",
    "select": ", 0, 1", "diagonal": "", "as_strided": ", (2,), (2,)", "unfold": ", 0, 2, 1",
    "narrow": ", 0, 0, 1", "slice": ", 0, 0, 1", "alias": "", "detach": "",
}  # fmt: skip
_ALONE = {"slice": _slice_of, "alias": lambda input: input, "detach": lambda input: input.detach()}
for _name, _given in _VIEWED.items():
    _copying(_name, _ALONE.get(_name) or registry.FUNCTIONS[_name], _given)


# Views made in place: the tensor becomes its own view

_with_grad = _core.ModeSwitch(True)


def _becoming(name: str) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        def view(x: Tensor) -> Any:
            if not x.requires_grad or x.is_leaf:
                return registry.function(name)(x, *args, **kwargs)
            # under no_grad too: the tensor keeps its history
            return _with_grad.call(registry.function(name), x, *args, **kwargs)

        return becoming(self, f"{name}_", view)

    method.__name__ = method.__qualname__ = f"{name}_"
    method.__doc__ = f"The tensor becomes its view `{name}(...)`, through which gradients flow on."
    return method


methods({
    f"{name}_": _becoming(name)
    for name in ("t", "transpose", "swapdims", "swapaxes", "squeeze", "unsqueeze", "as_strided")
})  # fmt: skip
registry.FUNCTIONS["as_strided_"] = registry.METHODS["as_strided_"]


# Memory


@public("clone", plain=clone)
def clone_(input: Any, *, memory_format: Any = None) -> Any:
    """A copy of `input` in memory of its own, contiguous or in another `memory_format`; gradients flow
    through it. RuntimeError for a format of another number of dims.

    >>> kiln.clone(kiln.tensor([1, 2]), memory_format=kiln.preserve_format)
    tensor([1, 2])
    """
    return copied("clone", input, memory_format)


methods({"contiguous": contiguous})
