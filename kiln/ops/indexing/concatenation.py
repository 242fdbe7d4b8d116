"""Arrays joined: `cat` along a dim they have, `stack` along a new one; both are the primitive `concat`."""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.views.core_views import reshape, slice_, unsqueeze
from kiln.table import drawn as d
from kiln.table.arguments import dtype_name, is_float, type_name
from kiln.table.kinds import normalize_dim
from kiln.table.public import alias, public
from kiln.table.record import Structure, Tensor, Tensors, composite, primitive


@primitive(
    "concat",
    explain=lambda tensors, dim: _sizes_error(tensors, dim),
    samples=d.samples(
        lambda rng, t: (([d.array(rng, (2, 3), t), d.array(rng, (2, 5), t)], 1), {}),
        lambda rng, t: (([d.array(rng, (2, 3), t)] * 3, 0), {}),
    ),
    reference=d.reference(lambda np, xs, dim: np.concatenate(xs, dim)),
    dtypes="all",
    public=False,
    failures=d.failures((([d.Zeros(2, 3), d.Zeros(3, 3)], 1), {}, RuntimeError, "must match")),
)
def concat(tensors: Tensors, dim: Structure) -> Any:
    """Arrays of one dtype and rank joined along `dim` (counted from the front), other dims equal.

    >>> kiln.cat([kiln.tensor([1]), kiln.tensor([2, 3])])
    tensor([1, 2, 3])
    """


@concat.derivative
def _(g: Tensor, tensors: Any, dim: Any) -> Any:
    parts: list[Any] = []
    start: Any = 0
    for x in tensors:
        parts.append(slice_(g, dim, (start, x.shape[dim], 1)))
        start = start + x.shape[dim]
    return tuple(parts)


@composite(
    native="stack",
    public=False,
    samples=d.samples(
        lambda rng, t: (([d.array(rng, (2, 3), t), d.array(rng, (2, 3), t)], 1), {}),
        lambda rng, t: (([d.array(rng, (), t)] * 3, 0), {}),
    ),
    reference=d.reference(lambda np, xs, dim: np.stack(xs, dim)),
    dtypes="all",
)
def stack_(tensors: Tensors, dim: Structure) -> Any:
    """Arrays of one dtype and shape joined along the new dim `dim`, counted from the front.

    >>> kiln.stack([kiln.tensor(1), kiln.tensor(2)])
    tensor([1, 2])
    """
    shape = tuple(tensors[0].shape)
    return concat([reshape(x, (*shape[:dim], 1, *shape[dim:])) for x in tensors], dim)


def _sizes_error(tensors: Any, dim: int) -> Exception | None:
    """What is wrong with the sizes of arrays to be joined, if anything."""
    try:
        _same_sizes(list(tensors), dim)
    except RuntimeError as error:
        return error
    return None


def _same_sizes(tensors: list[Any], dim: int) -> None:
    first = tensors[0]
    for number, x in enumerate(tensors[1:], 1):
        if x.ndim != first.ndim:
            raise RuntimeError(f"Tensors must have same number of dimensions: got {first.ndim} and {x.ndim}")
        for k, (a, b) in enumerate(zip(first.shape, x.shape)):
            if k != dim and isinstance(a, int) and isinstance(b, int) and a != b:
                raise RuntimeError(
                    f"Sizes of tensors must match except in dimension {dim}. Expected size {a} but got size "
                    f"{b} for tensor number {number} in the list."
                )


# Arrays joined at once where a graph is made of it: a program's text grows as the square of their number.
TOGETHER = 32


def _listed(tensors: Any, name: str) -> list[Any]:
    """Several tensors as a list; PyTorch's errors for what is none."""
    if hasattr(tensors, "ndim"):
        raise TypeError(f"{name}(): argument 'tensors' (position 1) must be tuple of Tensors, not Tensor")
    found: list[Any] = list(tensors)
    for k, x in enumerate(found):
        if not hasattr(x, "ndim"):
            raise TypeError(f"expected Tensor as element {k} in argument 0, but got {type(x).__name__}")
    return found


def _alike(tensors: list[Any]) -> bool:
    """Whether all are of one shape, known here, and of one dtype: nothing else to look at."""
    first = tensors[0]
    shape, dtype = first.shape, first.dtype
    known = type(shape)
    return known is _core.Size and all(
        type(x.shape) is known and x.shape == shape and x.dtype == dtype for x in tensors
    )


def _fitting(tensors: list[Any]) -> list[Any]:
    """Those that take part, in their common dtype: an empty vector joins with anything."""
    kept = [
        x for x in tensors if not (x.ndim == 1 and isinstance(x.shape[0], int) and x.shape[0] == 0)
    ] or tensors[:1]
    if any(x.ndim == 0 for x in kept):
        raise RuntimeError(
            f"zero-dimensional tensor (at position {[x.ndim for x in kept].index(0)}) cannot be concatenated"
        )
    first = tensors[0].dtype
    if any(x.dtype != first for x in tensors):
        dtype = common(tensors)
        kept = [x if dtype_name(x.dtype) == dtype else p.convert(x, dtype) for x in kept]
    return kept


@public("cat", method=False, dtypes="all", quick=True)
def cat(tensors: Any, dim: int = 0, *, out: Any = None) -> Any:
    """Arrays joined along `dim`, in their common dtype. ValueError for none, RuntimeError if other dims
    differ.

    >>> kiln.cat([kiln.tensor([1]), kiln.tensor([2.5])])
    tensor([1.0000, 2.5000])
    """
    kept = tensors = _listed(tensors, "cat")
    if not kept:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    if not (kept[0].ndim and _alike(tensors)):
        kept = _fitting(tensors)
    dim = normalize_dim(dim, kept[0].ndim, "cat")
    if kept is not tensors:
        _same_sizes(kept, dim)
    return _joined(concat, kept, dim, out)


def _joined(op: Any, tensors: list[Any], dim: int, out: Any) -> Any:
    """Arrays that fit, joined along `dim` by `op`, many in groups first; to `out` if it is given."""
    while len(tensors) > TOGETHER and _by_program(tensors):
        groups = range(0, len(tensors), TOGETHER)
        tensors, op = [op.handle(tensors[k : k + TOGETHER], dim) for k in groups], concat
    result = op.handle(tensors, dim)
    if out is not None and is_float(result) and not is_float(out):
        kind = type_name(dtype_name(out.dtype))
        raise TypeError(f"torch.cat(): input types can't be cast to the desired output type {kind}")
    return p.written_to(result, out)


def _by_program(tensors: list[Any]) -> bool:
    """Whether a program joins them, or a derivative's takes them apart; else the core copies any number."""
    plain = all(isinstance(x, _core.Tensor) for x in tensors)
    return not plain or _core.recording() or (_core.grad_enabled() and any(x.requires_grad for x in tensors))


for _name in ("concat", "concatenate"):
    alias(_name, "cat", method=False)


def common(tensors: list[Any]) -> str:
    """The name of the dtype several arrays promote to."""
    result = dtype_name(tensors[0].dtype)
    for x in tensors[1:]:
        result = _core.result_type([(result, 0), (dtype_name(x.dtype), 0)])
    return result


@public("stack", method=False, dtypes="all", quick=True)
def stack(tensors: Any, dim: int = 0, *, out: Any = None) -> Any:
    """Arrays of one shape joined along a new dim. RuntimeError for none, or different shapes.

    >>> kiln.stack([kiln.tensor([1, 2]), kiln.tensor([3, 4])])
    tensor([[1, 2],
            [3, 4]])
    """
    tensors = _listed(tensors, "stack")
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    alike = _alike(tensors)
    for number, x in () if alike else enumerate(tensors[1:], 1):
        if len(x.shape) != len(tensors[0].shape) or any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(x.shape, tensors[0].shape)
        ):
            raise RuntimeError(
                f"stack expects each tensor to be equal size, but got {list(tensors[0].shape)} at entry 0 "
                f"and {list(x.shape)} at entry {number}"
            )
    dim = normalize_dim(dim, tensors[0].ndim + 1, "stack")
    if alike:
        return _joined(stack_, tensors, dim, out)
    return cat([unsqueeze(x, dim) for x in tensors], dim, out=out)
