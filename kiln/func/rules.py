"""How each kind of op is done for a batch: one rule for each, on tensors and on graph values alike.

An operand that is batched has the batch as its dim 0; the dims an op speaks of are counted without it. A rule
gives one result with the batch in front. Ops are called through `apply`, so the rules serve calls (on
tensors) and composites (on values, where the calls become nodes of one graph).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kiln.graph.graph import Value
from kiln.graph.size import product
from kiln.late import later
from kiln.table.kinds import operand_dtypes
from kiln.table.record import Op, find


class Operand(NamedTuple):
    """An argument of an op: an array, batched or not, or a number."""

    value: Any
    batched: bool

    @property
    def is_array(self) -> bool:
        """Whether it has a shape."""
        return isinstance(self.value, Value) and not self.value.weak or hasattr(self.value, "stride")

    @property
    def ndim(self) -> int:
        """How many dims one sample has."""
        return int(self.value.ndim) - self.batched if self.is_array else 0

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of one sample."""
        return tuple(self.value.shape)[self.batched :]


_control_of_batch = later("kiln.func.control", "of_batch")
_attention_of_samples = later("kiln.ops.nn.attention.written", "of_samples")
Operands = list[Operand]
Attrs = list[Any]


def apply(op: Op, operands: list[Any], attrs: Attrs) -> Any:
    """A call of op: a node where an operand is a value of a graph."""
    first = next((x for x in operands if isinstance(x, Value)), None)
    if first is not None:
        return first.graph.add(op, tuple(operands), tuple(attrs))
    values, structure = iter(operands), iter(attrs)
    args = [
        next(structure) if p.kind in "SZ" else list(values) if p.kind == "L" else next(values)
        for p in op.params
    ]
    return op.handle(*args)


def reshape(x: Any, shape: tuple[Any, ...]) -> Any:
    """x in another shape."""
    return x if tuple(x.shape) == shape else apply(find("reshape"), [x], [shape])


def expand(x: Any, shape: tuple[Any, ...]) -> Any:
    """x repeated over a shape."""
    return x if tuple(x.shape) == shape else apply(find("expand"), [x], [shape])


def in_batch(x: Operand, size: Any, ndim: int | None = None) -> Any:
    """An operand with the batch in front, each sample of `ndim` dims (new ones of size 1 before its own)."""
    shape = x.shape
    shape = shape if ndim is None else (*[1] * (ndim - len(shape)), *shape)
    if x.batched:
        return reshape(x.value, (size, *shape))
    return expand(reshape(x.value, shape), (size, *shape))


def _pointwise(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    ndim = max(x.ndim for x in operands)
    given = [
        reshape(x.value, (size, *[1] * (ndim - x.ndim), *x.shape)) if x.batched else x.value
        for x in _promoted(op, operands, attrs)
    ]
    return apply(op, given, attrs)


def _promoted(op: Op, operands: Operands, attrs: Attrs) -> Operands:
    """The operands in the dtypes that samples of them have in common, where the batch could change that: a
    sample of no dims counts for less than its batch.
    """
    arrays = [x for x in operands if x.is_array]
    names = {_name(x.value) for x in arrays}
    if len(names) == 1 and (len(arrays) == len(operands) or not _of_no_dims(arrays)):
        return operands
    wanted, _ = operand_dtypes(op, tuple(map(_Look, operands)), tuple(attrs))  # type: ignore[arg-type]
    convert = find("convert")
    return [
        x._replace(value=apply(convert, [x.value], [d])) if x.is_array and _name(x.value) != d else x
        for x, d in zip(operands, wanted)
    ]


def _of_no_dims(arrays: Operands) -> bool:
    return all(x.ndim == 0 for x in arrays)


def _name(x: Any) -> str:
    return x.dtype if isinstance(x.dtype, str) else x.dtype.name


class _Look:
    """What an operand's dtype and sample look like, as the rules of promotion ask."""

    def __init__(self, x: Operand) -> None:
        kind = {bool: "bool", int: "int64"}.get(type(x.value), "float64")
        self.weak = not x.is_array
        self.dtype = _name(x.value) if hasattr(x.value, "dtype") else kind
        self.shape = x.shape if x.is_array else ()


def _reduce(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    dims, keepdim = attrs
    return apply(op, [operands[0].value], [tuple(d + 1 for d in dims), keepdim])


def _reshape(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    return apply(op, [operands[0].value], [(size, *_sizes(attrs[0]))])


def _permute(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    return apply(op, [operands[0].value], [(0, *(d + 1 for d in attrs[0]))])


def _expand(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    sizes = _sizes(attrs[0])
    return apply(op, [in_batch(operands[0], size, len(sizes))], [(size, *sizes)])


def _sizes(sizes: Any) -> tuple[Any, ...]:
    return tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)


def _strided(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    """The sample's places, one sample after the other; of the views that have names the dims they name."""
    x, (sizes, strides, offset, *dims) = operands[0], attrs
    step = product(x.shape) if isinstance(x.value, Value) else x.value.stride(0)
    if op.name == "unfold" and x.ndim == 0:  # a number is a window of its own
        return reshape(x.value, (size, *_sizes(sizes)))
    if op.name == "diagonal":
        dims = [(dims[0][0], dims[0][1] + 1, dims[0][2] + 1)]
    elif op.name == "unfold":
        dims = [(dims[0][0] + 1, *dims[0][1:])]
    return apply(op, [x.value], [(size, *_sizes(sizes)), (step, *_sizes(strides)), offset, *dims])


def _along(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    """What is done along one dim, the first attribute; all arrays batched."""
    return apply(op, [in_batch(x, size) for x in operands], [attrs[0] + 1, *attrs[1:]])


def _gather(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    """Of one source for all samples their positions one after the other along the dim: so its gradient is
    scattered into one array, not into one for each sample.
    """
    source, index = operands
    if source.batched or not source.ndim:
        return _along(op, operands, attrs, size)
    dim, shape = attrs[0], tuple(index.shape)
    order = (*range(1, dim + 1), 0, *range(dim + 1, index.ndim + 1))
    together = (*shape[:dim], size * shape[dim], *shape[dim + 1 :])
    positions = index.value if not dim else apply(find("permute"), [index.value], [order])
    found = apply(op, [source.value, reshape(positions, together)], attrs)
    apart = reshape(found, (*shape[:dim], size, *shape[dim:]))
    back = (dim, *range(dim), *range(dim + 1, index.ndim + 1))
    return apart if not dim else apply(find("permute"), [apart], [back])


def _write(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    strides, offset = attrs
    step = product(operands[0].shape)
    return apply(op, [in_batch(x, size) for x in operands], [(step, *strides), offset])


def _matmul(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    """Rows of all samples are multiplied by one matrix at once; else the batch is one dim more."""
    a, b = operands
    if not b.batched and a.ndim == b.ndim == 2:
        rows, inner = a.shape
        whole = apply(op, [reshape(a.value, (size * rows, inner)), b.value], [])
        return reshape(whole, (size, rows, b.shape[1]))
    return apply(op, [in_batch(a, size), in_batch(b, size)], [])


def _attention(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    """The samples are further batches, the first dim of all arrays; the rest are numbers. Dropout knows a
    weight by its place, and drops the same of every sample: it is written out then.
    """
    given, batches = [], None
    for x in operands:
        if x.ndim == 0:
            given.append(x.value)
            continue
        value = in_batch(x, size)
        batches = value.shape[1]
        given.append(reshape(value, (size * batches, *value.shape[2:])))
    out = _attention_of_samples(op.rule, given, attrs[0], size) if attrs[1] else apply(op, given, attrs)
    return reshape(out, (size, batches, *out.shape[1:]))


def _search(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    """The rows searched are dim 0, before the batch."""
    values, rows = (in_batch(x, size) for x in operands)
    order = (1, 0, *range(2, rows.ndim))
    return apply(op, [values, apply(find("permute"), [rows], [order])], attrs)


def _windows(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    """Samples are further planes."""
    return apply(op, [in_batch(x, size) for x in operands], [(size, *attrs[0]), *attrs[1:]])


def _full(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    sizes, dtype = _sizes(attrs[0]), attrs[1]
    value = apply(find("convert"), [in_batch(operands[0], size, len(sizes))], [dtype])
    return expand(value, (size, *sizes))


RULES: dict[str, Callable[[Op, Operands, Attrs, Any], Any]] = {
    "pointwise": _pointwise,
    "control": _control_of_batch,
    "reduce": _reduce,
    "reshape": _reshape,
    "permute": _permute,
    "expand": _expand,
    "as_strided": _strided,
    "slice": _along,
    "embed": _along,
    "write": _write,
    "matmul": _matmul,
    "gather": _gather,
    "concat": _along,
    "full": _full,
}

ALGORITHMS: dict[str, Callable[[Op, Operands, Attrs, Any], Any]] = {
    "scatter": _along,
    "scan": _along,
    "sort": _along,
    "search": _search,
    "windows": _windows,
    "attention": _attention,
}


def batched(op: Op, operands: Operands, attrs: Attrs, size: Any) -> Any:
    """The op of a batch. RuntimeError for an op whose result has a size that depends on values."""
    rule = ALGORITHMS.get(op.algorithm) if op.algorithm else RULES.get(op.kind)
    if rule is None:
        raise RuntimeError(
            f"vmap: {op.name}: the size of its result depends on the values of a sample, so samples cannot "
            "be computed together; compute it outside vmap, or use where() and masks"
        )
    return rule(op, operands, attrs, size)
