"""Products of vectors and matrices that are added to something, and products of vectors.

`beta * input + alpha * product`: what beta = 0 leaves out is not looked at, so that a NaN in `input` does not
matter there.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.graph.size import product as product_of
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise.comparison import ne
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.products.matrix_products import (
    _check_bmm,
    _check_dot,
    _check_mm,
    _check_mv,
    _differ,
    _explained,
    _matrices,
    _require,
    check_expands,
    dot,
    product,
    same_dtype,
    swapped,
)
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import expand, reshape
from kiln.table import drawn as d
from kiln.table.arguments import INTEGERS, dtype_name, into, type_name
from kiln.table.public import alias, public
from kiln.table.record import Number, Tensor, composite


def given(result: Any, out: Any) -> Any:
    """The result, or `out` with it."""
    return result if out is None else p.clone(result, out=out)


def _numbers(*shapes: tuple[int, ...], **numbers: float) -> Any:
    """One sample of arrays of the given shapes with beta and alpha."""
    return lambda rng, t: (_matrices(*shapes)(rng, t)[0], numbers)


def _check_factor(dtype: Any, factor: Any, name: str) -> None:
    if factor.dtype == "float64" and dtype_name(dtype) in INTEGERS:
        raise RuntimeError(
            f"For integral input tensors, argument {name} must not be a floating point number."
        )


def plus(input: Tensor, result: Any, beta: Any, alpha: Any, dtype: str) -> Tensor:
    """`beta * input + alpha * result`, rounded once; `result` is wide."""
    for factor, name in ((beta, "beta"), (alpha, "alpha")):
        _check_factor(dtype, factor, name)
    added = p.where(ne(beta, 0), p.mul(wide(input), beta), 0)
    return narrow(added + p.mul(result, alpha), dtype)


_WHOLE = "integers refuse a fractional factor, as `addmm`; PyTorch takes its whole part"


def _sizes_of_mm(a: Tensor, b: Tensor) -> tuple[Any, ...]:
    return a.shape[0], b.shape[1]


def _of_one_dtype(input: Tensor, a: Tensor, b: Tensor) -> None:
    """PyTorch's error for an addend or a factor of another dtype than the last factor."""
    for name, x in (("self", input), ("mat1", a)):
        if x.dtype != b.dtype:
            have, want = (type_name(dtype_name(y.dtype)) for y in (x, b))
            raise RuntimeError(f"{name} and mat2 must have the same dtype, but got {have} and {want}")


def _check_addmm(input: Tensor, a: Tensor, b: Tensor, *rest: Any) -> None:
    _of_one_dtype(input, a, b)
    _check_mm(a, b)
    check_expands(input, _sizes_of_mm(a, b))


def _floats(np: ModuleType, x: Any, *factors: Any) -> Any:
    """Factors in the array's dtype."""
    return [x.dtype.type(f) for f in factors]


def _reference(multiply: Any) -> Any:
    """`beta * x + alpha * multiply(np, a, b)` in NumPy."""

    def call(np: ModuleType, x: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1) -> Any:
        beta, alpha = _floats(np, x, beta, alpha)
        return (beta * x if beta else 0) + alpha * multiply(np, a, b)

    return d.reference(call)


@composite(
    samples=d.samples(
        _numbers((3, 4), (3, 5), (5, 4)),
        _numbers((4,), (3, 5), (5, 4), beta=2, alpha=3),
        _numbers((1, 4), (0, 5), (5, 4)),
        _numbers((3, 4), (3, 5), (5, 4), beta=0),
    ),
    reference=_reference(lambda np, a, b: a @ b),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "cannot be multiplied"),
        ((d.Zeros(5), d.Zeros(2, 3), d.Zeros(3, 3)), {}, RuntimeError, "expanded size of the tensor"),
        ((d.Zeros(2, 2, 3), d.Zeros(2, 3), d.Zeros(3, 3)), {}, RuntimeError, "number of sizes provided"),
    ),
    explain=_explained(_check_addmm),
    inplace=True,
)
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, beta: Number = 1, alpha: Number = 1) -> Any:
    """`beta * input + alpha * (mat1 @ mat2)`, `input` broadcast to [m, n]. RuntimeError unless the matrices
    fit.

    >>> kiln.addmm(kiln.ones(1), kiln.ones(1, 2), kiln.ones(2, 1))
    tensor([[3.]])
    """
    _check_addmm(input, mat1, mat2)
    added = expand(input, _sizes_of_mm(mat1, mat2))
    return plus(added, wide(product(mat1, mat2)), beta, alpha, mat1.dtype)


def _check_addmv(input: Tensor, mat: Any, vec: Any, *rest: Any) -> None:
    if not input.dtype == mat.dtype == vec.dtype:
        names = [type_name(dtype_name(x.dtype)) for x in (input, mat, vec)]
        raise RuntimeError(
            f"addmv input tensors must have the same dtype, but got {names[0]}, {names[1]}, and {names[2]}"
        )
    _check_mv(mat, vec)
    check_expands(input, (mat.shape[0],))


@composite(
    samples=d.samples(_numbers((3,), (3, 5), (5,)), _numbers((1,), (3, 5), (5,), beta=2, alpha=3)),
    reference=_reference(lambda np, a, b: a @ b),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "vector . matrix @ vector expected"),
        ((d.Zeros(2), d.Zeros(2, 3), d.Zeros(2)), {}, RuntimeError, "size mismatch"),
        ((d.Zeros(5), d.Zeros(2, 3), d.Zeros(3)), {}, RuntimeError, "size"),
    ),
    explain=_explained(_check_addmv),
    differs=_WHOLE,
    inplace=True,
    inplace_function=True,
)
def addmv(input: Tensor, mat: Tensor, vec: Tensor, beta: Number = 1, alpha: Number = 1) -> Any:
    """`beta * input + alpha * (mat @ vec)`, `input` broadcast to [m]. RuntimeError unless they fit.

    >>> kiln.addmv(kiln.ones(1), kiln.ones(1, 2), kiln.ones(2))
    tensor([3.])
    """
    _check_addmv(input, mat, vec)
    result = reshape(product(mat, reshape(vec, (*vec.shape, 1))), (mat.shape[0],))
    return plus(expand(input, (mat.shape[0],)), wide(result), beta, alpha, mat.dtype)


def _check_addr(input: Tensor, vec1: Any, vec2: Tensor, *rest: Any) -> None:
    for name, x in (("vec1", vec1), ("vec2", vec2)):
        _require(x.ndim == 1, f"addr: Expected 1-D argument {name}, but got {x.ndim}-D")
    check_expands(input, (vec1.shape[0], vec2.shape[0]))


@composite(
    samples=d.samples(_numbers((3, 4), (3,), (4,)), _numbers((4,), (3,), (4,), beta=2, alpha=3)),
    reference=_reference(lambda np, a, b: np.outer(a, b)),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2, 3), d.Zeros(2)), {}, RuntimeError, "addr: Expected 1-D argument vec1"),
        ((d.Zeros(5), d.Zeros(2), d.Zeros(2)), {}, RuntimeError, "expanded size of the tensor"),
    ),
    explain=_explained(_check_addr),
    dtypes="numeric",
    inplace=True,
)
def addr(input: Tensor, vec1: Tensor, vec2: Tensor, beta: Number = 1, alpha: Number = 1) -> Any:
    """`beta * input + alpha * outer(vec1, vec2)`, `input` broadcast to [m, n]; dtypes promote.

    RuntimeError unless they fit.

    >>> kiln.addr(kiln.ones(1), kiln.ones(1), kiln.ones(2))
    tensor([[2., 2.]])
    """
    _check_addr(input, vec1, vec2)
    m, n = vec1.shape[0], vec2.shape[0]
    dtype = p.add.infer(input.graph, (p.mul(reshape(vec1, (m, 1)), vec2), input), ())[0]
    result = p.mul(wide(reshape(vec1, (m, 1))), wide(vec2))
    return plus(expand(input, (m, n)), result, beta, alpha, dtype)


def _check_addbmm(input: Tensor, a: Tensor, b: Tensor, *rest: Any) -> None:
    _of_one_dtype(input, a, b)
    _check_bmm(a, b)
    check_expands(input, (a.shape[1], b.shape[2]))


@composite(
    samples=d.samples(
        _numbers((3, 4), (2, 3, 5), (2, 5, 4)), _numbers((4,), (2, 3, 5), (2, 5, 4), beta=2, alpha=3)
    ),
    reference=_reference(lambda np, a, b: (a @ b).sum(0).astype(a.dtype)),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2, 2, 3), d.Zeros(2, 2, 3)), {}, RuntimeError, "Expected size for first two"),
        ((d.Zeros(5), d.Zeros(2, 2, 3), d.Zeros(2, 3, 2)), {}, RuntimeError, "expanded size of the tensor"),
    ),
    explain=_explained(_check_addbmm),
    differs=_WHOLE,
    inplace=True,
)
def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, beta: Number = 1, alpha: Number = 1) -> Any:
    """`beta * input + alpha * (batch1 @ batch2).sum(0)`, `input` broadcast to [m, n]. RuntimeError unless the
    batches fit.

    >>> kiln.addbmm(kiln.ones(1), kiln.ones(2, 1, 2), kiln.ones(2, 2, 1))
    tensor([[5.]])
    """
    _check_addbmm(input, batch1, batch2)
    result = reduce_sum(wide(product(batch1, batch2)), (0,), False)
    return plus(expand(input, tuple(result.shape)), result, beta, alpha, batch1.dtype)


def _check_baddbmm(input: Tensor, a: Tensor, b: Tensor, *rest: Any) -> None:
    if not input.dtype == a.dtype == b.dtype:
        names = [dtype_name(x.dtype) for x in (input, a, b)]
        raise RuntimeError(
            f"Input dtypes must be the same, got: input {names[0]}, batch1: {names[1]}, batch2: {names[2]}"
        )
    _check_bmm(a, b)
    check_expands(input, (a.shape[0], a.shape[1], b.shape[2]))


@composite(
    samples=d.samples(
        _numbers((2, 3, 4), (2, 3, 5), (2, 5, 4)), _numbers((3, 1), (2, 3, 5), (2, 5, 4), beta=2, alpha=3)
    ),
    reference=_reference(lambda np, a, b: a @ b),
    failures=d.failures(
        ((d.Zeros(2), d.Zeros(2, 2, 3), d.Zeros(2, 2, 3)), {}, RuntimeError, "Expected size for first two"),
        ((d.Zeros(5), d.Zeros(2, 2, 3), d.Zeros(2, 3, 2)), {}, RuntimeError, "expanded size of the tensor"),
    ),
    explain=_explained(_check_baddbmm),
    differs=_WHOLE,
    inplace=True,
)
def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, beta: Number = 1, alpha: Number = 1) -> Any:
    """`beta * input + alpha * (batch1 @ batch2)`, `input` broadcast to [b, m, n]. RuntimeError unless the
    batches fit.

    >>> kiln.baddbmm(kiln.ones(1), kiln.ones(2, 1, 2), kiln.ones(2, 2, 1)).shape
    kiln.Size([2, 1, 1])
    """
    _check_baddbmm(input, batch1, batch2)
    result = product(batch1, batch2)
    return plus(expand(input, tuple(result.shape)), wide(result), beta, alpha, batch1.dtype)


@public(
    "inner",
    samples=d.samples(
        _matrices((5,), (5,)), _matrices((3, 5), (2, 4, 5)), _matrices((3, 5), (5,)), _matrices((), (2, 3))
    ),
    reference=d.numpy("inner"),
    failures=d.failures(((d.Zeros(2, 3), d.Zeros(2, 4)), {}, RuntimeError, "the last dimension must match")),
    dtypes="float",
)
def inner(input: Any, other: Any, *, out: Any = None) -> Any:
    """Sums of products over the last dims: [.., k], [.., k] -> [.., ..]; with an array of no dims a product.

    RuntimeError unless the last sizes are equal, and the dtypes.

    >>> kiln.inner(kiln.tensor([1.0, 2.0]), kiln.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([11.,  2.])
    """
    if not input.ndim or not other.ndim:
        return p.mul(input, other, **into(out))
    same_dtype(input, other, "inner")
    k, left, right = input.shape[-1], tuple(input.shape[:-1]), tuple(other.shape[:-1])
    _require(
        not _differ(k, other.shape[-1]),
        "inner() the last dimension must match on both input tensors but got shapes "
        f"{list(input.shape)} and {list(other.shape)}",
    )
    if not left and not right:
        return dot(input, other, **into(out))
    rows, columns = reshape(input, (product_of(left), k)), reshape(other, (product_of(right), k))
    return given(reshape(product(rows, swapped(columns)), (*left, *right)), out)


@public(
    "outer",
    samples=d.samples(_matrices((3,), (4,)), _matrices((0,), (4,))),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2)), {}, RuntimeError, "outer: Expected 1-D argument self"),
        ((d.Zeros(2), d.Zeros()), {}, RuntimeError, "outer: Expected 1-D argument vec2"),
    ),
)
def outer(input: Any, vec2: Any, *, out: Any = None) -> Any:
    """The products of each element of one vector with each of another: [n], [m] -> [n, m]; dtypes promote.

    RuntimeError unless both have one dim.

    >>> kiln.outer(kiln.tensor([1, 2]), kiln.tensor([3, 4]))
    tensor([[3, 4],
            [6, 8]])
    """
    for name, x in (("self", input), ("vec2", vec2)):
        _require(x.ndim == 1, f"outer: Expected 1-D argument {name}, but got {x.ndim}-D")
    return p.mul(reshape(input, (*input.shape, 1)), vec2, **into(out))


alias("ger", "outer")


@public(
    "vdot",
    samples=d.samples(_matrices((5,), (5,))),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "1D tensors expected"),
        ((d.Zeros(2), d.Zeros(3)), {}, RuntimeError, "inconsistent tensor size"),
    ),
    dtypes="float",
)
def vdot(input: Any, other: Any, *, out: Any = None) -> Any:
    """`dot`, as no dtype is complex: the sum of products of two vectors. RuntimeError unless they fit.

    >>> kiln.vdot(kiln.tensor([1.0, 2.0]), kiln.tensor([3.0, 4.0]))
    tensor(11.)
    """
    _check_dot(input, other)
    return dot(input, other, **into(out))
