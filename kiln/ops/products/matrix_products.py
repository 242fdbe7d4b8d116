"""Matrix products: one primitive, and PyTorch's functions that bring their operands into its form.

    product(a, b)    [batch..., m, k] @ [batch..., k, n] -> [batch..., m, n], batch dims equal

A product with one matrix on the right is one 2-D product over all rows: [.., m, k] @ [k, n] = [.. * m, k] @
[k, n].
"""

from __future__ import annotations

from typing import Any

from kiln.graph.size import product as product_of
from kiln.ops.elementwise.arithmetic import convert
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import expand, permute, reshape
from kiln.table import drawn as d
from kiln.table import kinds
from kiln.table.arguments import dtype_name, type_name
from kiln.table.record import Tensor, composite, primitive


def _matrices(*shapes: tuple[int, ...]) -> Any:
    """One sample of arrays of the given shapes, small enough for low precision."""
    return lambda rng, t: (tuple(d.array(rng, s, t, -1, 1) for s in shapes), {})


def swapped(x: Tensor) -> Tensor:
    """x with its last two dims swapped."""
    return permute(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@primitive(
    "matmul",
    samples=d.samples(
        _matrices((3, 5), (5, 4)), _matrices((2, 3, 5), (2, 5, 4)), _matrices((33, 70), (70, 40))
    ),
    reference=d.numpy("matmul"),
    public=False,
)
def product(input: Tensor, other: Tensor) -> Any:
    """`[batch..., m, k] @ [batch..., k, n]`, batch dims and dtypes equal; the order over k is fixed
    (architecture.md 6).

    >>> kiln.ones(2, 3) @ kiln.ones(3, 2)
    tensor([[3., 3.],
            [3., 3.]])
    """


@product.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return product(g, swapped(other)), product(swapped(input), g)


@primitive(
    "matmul",
    rule="wide",
    samples=d.samples(
        _matrices((3, 5), (5, 4)), _matrices((2, 3, 5), (2, 5, 4)), _matrices((33, 70), (70, 40))
    ),
    reference=d.numpy("matmul"),
    public=False,
    tests=d.Tests(tile_order=True),
)
def product_wide(input: Tensor, other: Tensor) -> Any:
    """`product` whose sums stay as wide as they are: float32 of bfloat16, int32 of narrower integers; else
    `product`. Products of converted factors become this (kiln/passes/narrow.py).

    >>> kiln.ones(2, 3) @ kiln.ones(3, 2)
    tensor([[3., 3.],
            [3., 3.]])
    """


@product_wide.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    input, other = (convert(x, g.dtype) for x in (input, other))  # float16 is as wide as its sums here
    return product(g, swapped(other)), product(swapped(input), g)


_C_NAMES = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long int",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
}


def same_dtype(a: Tensor, b: Tensor, op: str) -> None:
    """PyTorch's error for a product of arrays of different dtypes, in the words of that product."""
    if a.dtype != b.dtype:
        first, second = (type_name(dtype_name(x.dtype)) for x in (a, b))
        if op == "dot":
            raise RuntimeError(
                f"dot : expected both vectors to have same dtype, but found {first} and {second}"
            )
        if op == "inner":
            raise RuntimeError(f"both inputs should have same dtype, but found {first} and {second}")
        if op == "bmm":
            raise RuntimeError(f"expected scalar type {first} but found {second}")
        names = [_C_NAMES.get(dtype_name(x.dtype), dtype_name(x.dtype)) for x in (a, b)]
        raise RuntimeError(f"expected m1 and m2 to have the same dtype, but got: {names[0]} != {names[1]}")


def _differ(a: Tensor, b: Tensor) -> bool:
    """Whether two sizes are known to differ."""
    return isinstance(a, int) and isinstance(b, int) and a != b


def check_expands(x: Tensor, shape: tuple[Any, ...]) -> None:
    """PyTorch's errors for an array that does not broadcast to a shape."""
    have = tuple(x.shape)
    if len(have) > len(shape):
        raise RuntimeError(
            f"expand({list(have)}, size={list(shape)}): the number of sizes provided ({len(shape)}) must be "
            f"greater or equal to the number of dimensions in the tensor ({len(have)})"
        )
    for k, (n, m) in enumerate(zip(have, shape[len(shape) - len(have) :]), len(shape) - len(have)):
        if _differ(n, m) and n != 1:
            raise RuntimeError(
                f"The expanded size of the tensor ({m}) must match the existing size ({n}) at non-singleton "
                f"dimension {k}.  Target sizes: {list(shape)}.  Tensor sizes: {list(have)}"
            )


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise RuntimeError(message)


def _explained(check: Any) -> Any:
    """An `explain` from a function that raises what is wrong with the arguments."""

    def explain(*args: Any) -> Exception | None:
        try:
            check(*args)
        except (RuntimeError, IndexError, ValueError) as error:
            return error
        return None

    return explain


def _check_matmul(a: Tensor, b: Tensor) -> None:
    """Raises what PyTorch raises for operands of `matmul` that do not fit; symbolic sizes pass."""
    _require(
        a.ndim > 0 and b.ndim > 0,
        f"both arguments to matmul need to be at least 1D, but they are {a.ndim}D and {b.ndim}D",
    )
    same_dtype(a, b, "matmul")
    rows, columns = a.shape, b.shape
    inner = columns[-2] if b.ndim > 1 else columns[0]
    if _differ(rows[-1], inner):
        if a.ndim == b.ndim == 1:
            n, m = rows[0], columns[0]
            raise RuntimeError(
                f"inconsistent tensor size, expected tensor [{n}] and src [{m}] to have the same number of "
                f"elements, but got {n} and {m} elements respectively"
            )
        if b.ndim == 1:
            raise RuntimeError(
                f"size mismatch, got input ({rows[-2]}), mat ({rows[-2]}x{rows[-1]}), vec ({columns[0]})"
            )
        left = f"{product_of(tuple(rows[:-1]))}x{rows[-1]}"
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({left} and {inner}x{columns[-1]})")
    batches = (tuple(rows[:-2]), tuple(columns[:-2]))
    for k, (x, y) in enumerate(zip(reversed(batches[0]), reversed(batches[1]))):
        if _differ(x, y) and 1 not in (x, y):
            place = max(len(batches[0]), len(batches[1])) - 1 - k
            raise RuntimeError(
                f"The size of tensor a ({x}) must match the size of tensor b ({y}) at non-singleton "
                f"dimension {place}"
            )
    if dtype_name(a.dtype) == "bool":
        raise NotImplementedError("\"addmm_impl_cpu_\" not implemented for 'Bool'")


_MISMATCH = d.failures(
    ((d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "cannot be multiplied"),
    ((d.Zeros(2, 3), d.Zeros(3, 2, dtype="int64")), {}, RuntimeError, "same dtype"),
    ((d.Zeros(), d.Zeros(3)), {}, RuntimeError, "at least 1D"),
)


@composite(
    samples=d.samples(
        _matrices((3, 5), (5, 4)),
        _matrices((5,), (5,)),
        _matrices((3, 5), (5,)),
        _matrices((5,), (5, 4)),
        _matrices((2, 3, 5), (5, 4)),
        _matrices((2, 3, 5), (5,)),
        _matrices((2, 1, 3, 5), (4, 5, 2)),
        _matrices((0, 3), (3, 4)),
    ),
    reference=d.numpy("matmul"),
    failures=_MISMATCH,
    explain=_explained(_check_matmul),
)
def matmul(input: Tensor, other: Tensor) -> Any:
    """The matrix product: of vectors a number, of a matrix and a vector a vector; batch dims broadcast.

    RuntimeError for operands of no dims, of different dtypes, or whose sizes do not fit.

    >>> kiln.matmul(kiln.tensor([[1.0, 2.0]]), kiln.tensor([3.0, 4.0]))
    tensor([11.])
    """
    _check_matmul(input, other)
    a = reshape(input, (1, *input.shape)) if input.ndim == 1 else input
    b = reshape(other, (*other.shape, 1)) if other.ndim == 1 else other
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    whole = input.ndim > 1 and other.ndim > 1
    if b.ndim == 2:
        batch = a.shape[:-2]
        rows = reshape(a, (product_of(a.shape[:-1]), k)) if batch else a
        result = product(rows, b)
        whole = whole and not batch
    else:
        batch = kinds.broadcast(a.graph, [a.shape[:-2], b.shape[:-2]], "matmul")
        a, b = (expand(x, (*batch, *x.shape[-2:])) for x in (a, b))
        result = product(a, b)
    tail = (*((m,) if input.ndim > 1 else ()), *((n,) if other.ndim > 1 else ()))
    return result if whole else reshape(result, (*batch, *tail))


def _check_mm(a: Tensor, b: Tensor) -> None:
    _require(a.ndim == 2, "self must be a matrix")
    _require(b.ndim == 2, "mat2 must be a matrix")
    _check_matmul(a, b)


@composite(
    samples=d.samples(_matrices((3, 5), (5, 4)), _matrices((1, 5), (5, 1))),
    reference=d.numpy("matmul"),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(3)), {}, RuntimeError, "mat2 must be a matrix"),
        ((d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "cannot be multiplied"),
    ),
    explain=_explained(_check_mm),
)
def mm(input: Tensor, mat2: Tensor) -> Any:
    """[m, k] @ [k, n]. RuntimeError unless both are matrices that fit, of one dtype.

    >>> kiln.mm(kiln.ones(1, 2), kiln.ones(2, 1))
    tensor([[2.]])
    """
    _check_mm(input, mat2)
    return product(input, mat2)


def _check_int_mm(a: Tensor, b: Tensor) -> None:
    """PyTorch's errors of the product that keeps its sums."""
    for x, name in ((a, "self"), (b, "mat2")):
        _require(x.ndim == 2, f"_int_mm: Expected {name} to be of dimension 2 but got {x.ndim}")
    m, n = dtype_name(a.dtype), dtype_name(b.dtype)
    _require(m in ("int8", "uint8"), f"_int_mm: Expected self dtype to be int8 or uint8 but got {m}")
    _require(n == "int8", f"_int_mm: Expected mat2 dtype to be of type int8 but got {n}")
    k, rows = a.shape[1], b.shape[0]
    _require(
        not _differ(k, rows), f"_int_mm: self.size(1) needs to match mat2.size(0) but got {k} and {rows}"
    )


def _bytes(*shapes: tuple[int, ...]) -> Any:
    """One sample of matrices of 8-bit integers, the first of the dtype drawn for."""

    def draw(rng: Any, dtype: str) -> Any:
        dtypes = (dtype, "int8")
        limits = [(0, 256) if x == "uint8" else (-128, 128) for x in dtypes]
        return tuple(rng.integers(*at, s).astype(x) for at, s, x in zip(limits, shapes, dtypes)), {}

    return draw


@composite(
    samples=d.samples(_bytes((3, 5), (5, 4)), _bytes((33, 70), (70, 40)), _bytes((0, 9), (9, 8))),
    dtypes="int8 uint8",
    differentiable=False,
    reference=d.reference(lambda np, a, b: a.astype("int32") @ b.astype("int32")),
    failures=d.failures(
        ((d.Zeros(2, 3, dtype="int8"),) * 2, {}, RuntimeError, "needs to match mat2.size"),
        ((d.Zeros(3, dtype="int8"), d.Zeros(3, 2, dtype="int8")), {}, RuntimeError, "to be of dimension 2"),
        ((d.Zeros(2, 3), d.Zeros(3, 2)), {}, RuntimeError, "dtype to be int8 or uint8"),
        ((d.Zeros(2, 3, dtype="int8"), d.Zeros(3, 2, dtype="uint8")), {}, RuntimeError, "of type int8"),
    ),
    explain=_explained(_check_int_mm),
    method=False,
)
def _int_mm(input: Tensor, mat2: Tensor) -> Any:
    """[m, k] @ [k, n] of 8-bit integers, as int32 (sums wrap): `input` int8 or uint8, `mat2` int8.

    RuntimeError unless both are matrices of these dtypes that fit.

    >>> kiln._int_mm(kiln.full((1, 2), 100, dtype=kiln.int8), kiln.full((2, 1), 100, dtype=kiln.int8))
    tensor([[20000]], dtype=kiln.int32)
    """
    _check_int_mm(input, mat2)
    if input.dtype == "int8":
        return product_wide(input, mat2)
    low = convert(convert(input, "int32") - 128, "int8")  # so that both factors are of one dtype
    return product_wide(low, mat2) + 128 * reduce_sum(convert(mat2, "int32"), (0,), True)


def _check_bmm(a: Tensor, b: Tensor) -> None:
    _require(a.ndim == 3, "batch1 must be a 3D tensor")
    _require(b.ndim == 3, "batch2 must be a 3D tensor")
    same_dtype(a, b, "bmm")
    if _differ(a.shape[0], b.shape[0]) or _differ(a.shape[2], b.shape[1]):
        raise RuntimeError(
            f"Expected size for first two dimensions of batch2 tensor to be: [{a.shape[0]}, {a.shape[2]}] "
            f"but got: [{b.shape[0]}, {b.shape[1]}]."
        )


@composite(
    samples=d.samples(_matrices((2, 3, 5), (2, 5, 4))),
    reference=d.numpy("matmul"),
    failures=d.failures(
        ((d.Zeros(2, 3, 4), d.Zeros(3, 4, 5)), {}, RuntimeError, "first two dimensions of batch2"),
        ((d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "batch1 must be a 3D tensor"),
    ),
    explain=_explained(_check_bmm),
)
def bmm(input: Tensor, mat2: Tensor) -> Any:
    """[b, m, k] @ [b, k, n], batch by batch. RuntimeError unless both have 3 dims that fit.

    >>> kiln.bmm(kiln.ones(2, 1, 3), kiln.ones(2, 3, 1)).shape
    kiln.Size([2, 1, 1])
    """
    _check_bmm(input, mat2)
    return product(input, mat2)


def _check_mv(a: Tensor, b: Tensor) -> None:
    bad = a.ndim != 2 or b.ndim != 1
    _require(not bad, f"vector + matrix @ vector expected, got 1, {a.ndim}, {b.ndim}")
    _check_matmul(a, b)


@composite(
    samples=d.samples(_matrices((3, 5), (5,))),
    reference=d.numpy("matmul"),
    explain=_explained(_check_mv),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "vector . matrix @ vector expected")
    ),
)
def mv(input: Tensor, vec: Tensor) -> Tensor:
    """[m, k] @ [k]. RuntimeError unless a matrix and a vector that fit.

    >>> kiln.mv(kiln.ones(2, 3), kiln.ones(3))
    tensor([3., 3.])
    """
    _check_mv(input, vec)
    return reshape(product(input, reshape(vec, (*vec.shape, 1))), (input.shape[0],))


def _check_dot(a: Tensor, b: Tensor) -> None:
    _require(a.ndim == b.ndim == 1, f"1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors")
    same_dtype(a, b, "dot")
    _check_matmul(a, b)


@composite(
    samples=d.samples(_matrices((5,), (5,)), _matrices((300,), (300,))),
    reference=d.numpy("dot"),
    explain=_explained(_check_dot),
    failures=d.failures(((d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "1D tensors expected")),
)
def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """The sum of products of two vectors. RuntimeError unless both have one dim of one size.

    >>> kiln.dot(kiln.tensor([1.0, 2.0]), kiln.tensor([3.0, 4.0]))
    tensor(11.)
    """
    _check_dot(input, tensor)
    input.graph.require_equal(input.shape[0], tensor.shape[0], "dot")
    return narrow(reduce_sum(wide(input) * wide(tensor), (0,), False), input.dtype)


def _check_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    same_dtype(x, weight, "linear")
    _require(weight.ndim < 3, f"t() expects a tensor with <= 2 dimensions, but self is {weight.ndim}D")
    if bias is not None:
        _require(weight.ndim == 2, f"mat2 must be a matrix, got {weight.ndim}-D tensor")
        same_dtype(bias, weight, "linear")
        check_expands(bias, (*x.shape[:-1], weight.shape[0]) if x.ndim > 1 else (1, weight.shape[0]))
    if weight.ndim == 2 and x.ndim and _differ(x.shape[-1], weight.shape[1]):
        rows = product_of(tuple(x.shape[:-1]))
        raise RuntimeError(
            f"mat1 and mat2 shapes cannot be multiplied ({rows}x{x.shape[-1]} and "
            f"{weight.shape[1]}x{weight.shape[0]})"
        )


@composite(
    samples=d.samples(
        _matrices((3, 5), (4, 5), (4,)),
        _matrices((3, 5), (4, 5)),
        _matrices((2, 3, 5), (4, 5), (4,)),
        _matrices((5,), (4, 5), (4,)),
    ),
    reference=d.reference(lambda np, x, w, b=None: x @ w.T if b is None else x @ w.T + b),
    explain=_explained(_check_linear),
    failures=d.failures(((d.Zeros(2, 3), d.Zeros(2, 4)), {}, RuntimeError, "cannot be multiplied")),
    method=False,
)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """`input @ weight.T + bias`: [.., k], [n, k], [n] or what broadcasts -> [.., n]; one dtype.

    RuntimeError if sizes or dtypes do not fit.

    >>> kiln.nn.functional.linear(kiln.ones(1, 2), kiln.ones(3, 2), kiln.ones(3))
    tensor([[3., 3., 3.]])
    """
    _check_linear(input, weight, bias)
    if weight.ndim == 1:
        return matmul(input, weight)
    rows = input if input.ndim == 2 else reshape(input, (product_of(input.shape[:-1]), input.shape[-1]))
    result, shape = product(rows, swapped(weight)), (*input.shape[:-1], weight.shape[0])
    if bias is not None:
        flat = tuple(result.shape)
        bias = reshape(expand(bias, shape if min(bias.ndim, input.ndim) > 1 else flat), flat)
        result = narrow(wide(result) + wide(bias), input.dtype)
    return result if input.ndim == 2 else reshape(result, shape)
