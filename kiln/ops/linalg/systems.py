"""Linear algebra on batches of matrices: inverses and systems of equations.

NumPy's and SciPy's LAPACK compute; derivatives are written in ops. float32 and float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln.ops.creation import constants
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.elementwise import comparison
from kiln.ops.linalg import lapack
from kiln.ops.linalg.called import Look, in_programs, matrix, square
from kiln.ops.linalg.outside import LinAlgError, outside
from kiln.ops.named_results import named
from kiln.ops.products.addends import given
from kiln.ops.products.matrix_products import matmul as _matmul
from kiln.ops.products.matrix_products import swapped
from kiln.ops.views.core_views import broadcast_to, reshape, slice_, squeeze, unsqueeze
from kiln.table import drawn as d
from kiln.table import registry
from kiln.table.arguments import dtype_name, is_float, type_name
from kiln.table.public import alias, public
from kiln.table.record import Tensor
from kiln.table.registry import forms

registry.FUNCTIONS["linalg.LinAlgError"] = LinAlgError
matmul = _matmul.handle


def linear(name: str, method: bool = False, **settings: Any) -> Callable[..., Any]:
    """Makes a function of matrices public in kiln.linalg; its results go into `out=` if that is given."""

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if out is None:
                return result
            return type(result)(*p.written(result, out)) if isinstance(result, tuple) else given(result, out)

        call.__doc__, call.__wrapped__ = function.__doc__, function  # type: ignore[attr-defined]
        public(f"linalg.{name}", method, **{"dtypes": "float32 float64", **settings})(call)
        return call

    return make


def check(a: Tensor, name: str, square: bool = True, letter: str = "A", short: bool = False) -> None:
    """PyTorch's errors for what is not a batch of (square) matrices of float32 or float64, or (`short`) of
    any floats.
    """
    if a.ndim < 2:
        raise RuntimeError(f"{name}: The input tensor {letter} must have at least 2 dimensions.")
    m, n = a.shape[-2:]
    if square and m != n:
        raise RuntimeError(f"{name}: A must be batches of square matrices, but they are {m} by {n} matrices")
    _check_floats(a, name)
    dtype = dtype_name(a.dtype)
    if dtype in ("float16", "bfloat16") and not short:
        raise RuntimeError(f"{name}: Low precision dtypes not supported. Got {type_name(dtype)}")


def _check_floats(a: Tensor, name: str) -> None:
    if not is_float(a):
        own = type_name(dtype_name(a.dtype))
        raise RuntimeError(f"{name}: Expected a floating point or complex tensor as input. Got {own}")


def same(a: Tensor, b: Tensor, name: str) -> None:
    """PyTorch's error for matrices of two dtypes."""
    if a.dtype != b.dtype:
        x, y = (type_name(dtype_name(v.dtype)) for v in (a, b))
        raise RuntimeError(
            f"{name}: Expected A and B to have the same dtype, but found A of type {x} and B of type {y} "
            "instead"
        )


def kept(x: Tensor, diagonal: int, upper: bool) -> Tensor:
    """The part of matrices on and above (or below) a diagonal, zeros elsewhere."""
    m, n = x.shape[-2:]
    distance = constants.arange(n) - reshape(constants.arange(m), (m, 1))
    inside = (comparison.ge if upper else comparison.le)(distance, diagonal)
    return p.where(inside, x, 0)


def lower(x: Tensor, diagonal: int = 0) -> Any:
    return kept(x, diagonal, False)


def upper_(x: Tensor, diagonal: int = 0) -> Any:
    return kept(x, diagonal, True)


def eye_like(x: Tensor, n: int) -> Tensor:
    """The unit matrix of n rows in x's dtype."""
    row = constants.arange(n)
    return p.convert(comparison.eq(row, reshape(row, (n, 1))), dtype_name(x.dtype))


def on_diagonal(x: Tensor) -> Tensor:
    """Vectors as diagonal matrices."""
    return unsqueeze(x, -1) * eye_like(x, x.shape[-1])


def diagonal_of(x: Tensor) -> Any:
    """The diagonals of square matrices."""
    n = x.shape[-1]
    flat = reshape(x, (*x.shape[:-2], n * n))
    return slice_(flat, flat.ndim - 1, (0, n, n + 1))


def rows_of(shape: tuple[int, ...], a: Tensor) -> Any:
    """A function of samples: a well-conditioned batch of matrices, and what `a` gives beside it."""

    def make(rng: Any, t: str) -> Any:
        matrix = d.array(rng, shape, t, -1, 1)
        n = min(shape[-2:])
        matrix[..., range(n), range(n)] += 2
        return (matrix, *a(rng, t)), {}

    return make


def nothing(rng: Any, t: str) -> tuple[Any, ...]:
    return ()


def right(*shape: int) -> Any:
    """The second argument of a sample."""
    return lambda rng, t: (d.array(rng, shape, t, -1, 1),)


SQUARE = d.samples(rows_of((3, 3), nothing), rows_of((2, 2, 2), nothing), rows_of((0, 0), nothing))
LAPACK: dict[str, Any] = {"dtypes": "float32 float64", "reads": True, "needs": "scipy"}
BAD: Any = (
    ((d.Zeros(2, 3),), {}, RuntimeError, "must be batches of square matrices"),
    ((d.Zeros(2),), {}, RuntimeError, "at least 2 dimensions"),
    ((d.Zeros(2, 2, dtype="int64"),), {}, RuntimeError, "Expected a floating point or complex tensor"),
)
_SINGULAR: Any = ((d.Zeros(2, 2),), {}, RuntimeError, "input matrix is singular")


# Inverses and systems


def _inv_back(grads: Any, _a: Any, y: Tensor, *rest: Any) -> Any:
    t = swapped(y)
    return (-matmul(matmul(t, grads[0]), t),)


def inverse_of(a: Tensor, name: str) -> tuple[Any, Any]:
    """The inverses and, if there is a singular matrix, the zero pivots as an array."""
    check(a, name)
    found: list[Any] = []

    def compute(x: Tensor) -> Any:
        y, info = lapack.inv(x)
        found.append(info)
        return (y,)

    return outside(name, compute, _inv_back, a)[0], found[0]


def infos(a: Tensor, info: Any) -> Any:
    """An array of infos (None: zeros) as a tensor."""
    shape = tuple(a.shape[:-2])
    if info is None:
        return constants.zeros(shape, dtype="int32")
    return outside("info", lambda: (info.astype("int32"),), None)[0]


@in_programs("linalg_inv", lambda a, name: [square(a)], check)
def inverse(A: Any, name: str) -> Any:
    """The inverses of square matrices. LinAlgError, of the function `name`, if one is singular."""
    y, info = inverse_of(A, name)
    if info is not None:
        raise lapack.singular(name, info)
    return y


@linear("inv", samples=SQUARE, failures=d.failures(*BAD, _SINGULAR), **LAPACK, tests=d.Tests(regular=True))
def inv(A: Tensor) -> Any:
    """The inverses of square matrices, [.., n, n]. LinAlgError if one is singular.

    >>> kiln.linalg.inv(kiln.tensor([[2.0, 0.0], [0.0, 4.0]]))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.2500]])
    """
    return inverse(A, "linalg.inv")


alias("inverse", "linalg.inv")


forms("linalg.inv_ex", "-> inverse, info")


@linear("inv_ex")
def inv_ex(A: Tensor, *, check_errors: bool = False) -> Any:
    """(inverse, info): `inv` that says in `info` (int32, one per matrix) where a zero pivot is, 0 for none.

    >>> kiln.linalg.inv_ex(kiln.eye(2)).info
    tensor(0, dtype=kiln.int32)
    """
    y, info = inverse_of(A, "linalg.inv_ex")
    if check_errors and info is not None:
        raise lapack.singular("linalg.inv_ex", info)
    return named("linalg_inv_ex", y, infos(A, info))


def _is_vector(a: Tensor, b: Tensor) -> bool:
    """Whether the right side is a vector per matrix, as NumPy and PyTorch tell."""
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and tuple(b.shape) == tuple(a.shape[:-1]))


def _solve_back(grads: Any, a: Tensor, _b: Any, y: Tensor) -> Any:
    gb = solve_matrices(swapped(a), grads[0])
    return -matmul(gb, swapped(y)), gb


def solve_matrices(a: Any, b: Any) -> Any:
    """X with A X = B, both batches of matrices that broadcast."""

    def compute(x: Any, y: Any) -> Any:
        import numpy as np

        return (np.linalg.solve(x, y),)

    return outside("linalg.solve", compute, _solve_back, a, b)[0]


def _check_sides(a: Tensor, b: Tensor, left: bool, name: str) -> None:
    k = -2 if left else -1
    if a.shape[-1] != b.shape[k]:
        (m, n), (r, c) = a.shape[-2:], b.shape[-2:]
        raise RuntimeError(
            f"{name}: Incompatible shapes of A and B for the equation {'AX = B' if left else 'XA = B'} "
            f"({m}x{n} and {r}x{c})"
        )


def _right_side(A: Tensor, B: Tensor, left: bool, name: str) -> Any:
    """The right side as matrices, checked."""
    _check_floats(A, name)
    check(A, name)
    same(A, B, name)
    vector = _is_vector(A, B)
    b = unsqueeze(B, -1) if vector else B
    check(b, name, False, "B")
    _check_sides(A, b, left, name)
    if vector and not left:
        raise RuntimeError(f"{name}: Incompatible shapes of A and B for the equation XA = B")
    return b


def _look_of_solve(a: Look, b: Look, left: bool, name: str) -> list[Look]:
    (dtype, shape), (other, sizes) = square(a), b
    if other != dtype or not sizes:
        raise ValueError(f"{name}: {other} of {len(sizes)} dims beside {dtype}")
    if len(sizes) == 1 or sizes == shape[:-1]:
        return [(dtype, shape[:-1])]
    return [(dtype, (*together_batch(shape[:-2], sizes[:-2]), *sizes[-2:]))]


def together_batch(a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
    """The batch dims of two batches of matrices that broadcast. ValueError if they do not."""
    most = max(len(a), len(b))
    pairs = zip((*(1,) * (most - len(a)), *a), (*(1,) * (most - len(b)), *b))
    found = [y if x == 1 else x if y == 1 or x == y else None for x, y in pairs]
    if None in found:
        raise ValueError(f"the batches {a} and {b} do not fit")
    return tuple(found)


@in_programs("linalg_solve", _look_of_solve, _right_side, tensors=2)
def _solve(A: Tensor, B: Tensor, left: bool, name: str) -> Any:
    try:
        return _solved_by_left(A, B, left, name)
    except LinAlgError:  # in PyTorch's words
        said = f"torch.{name}: The solver failed because the input matrix is singular."
        raise LinAlgError(said) from None


def _solved_by_left(A: Tensor, B: Tensor, left: bool, name: str) -> Any:
    b = _right_side(A, B, left, name)
    vector = _is_vector(A, B)
    x = solve_matrices(A, b) if left else swapped(solve_matrices(swapped(A), swapped(b)))
    return squeeze(x, -1) if vector else x


@linear(
    "solve",
    samples=d.samples(
        rows_of((3, 3), right(3, 2)), rows_of((2, 2, 2), right(2)), rows_of((2, 3, 3), right(3, 1))
    ),
    failures=d.failures(
        ((d.Zeros(2, 2), d.Zeros(2)), {}, RuntimeError, "input matrix is singular"),
        ((d.Zeros(2, 2), d.Zeros(3)), {}, RuntimeError, "Incompatible shapes of A and B"),
        ((d.Zeros(2, 2), d.Zeros(2, dtype="float64")), {}, RuntimeError, "same dtype"),
    ),
    **LAPACK,
    tests=d.Tests(regular=True),
)
def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Any:
    """X with A X = B (or X A = B): [.., n, n] and [.., n, k], or a vector per matrix; batches broadcast.

    LinAlgError for a singular matrix, RuntimeError for sizes or dtypes that do not fit.

    >>> kiln.linalg.solve(kiln.tensor([[2.0, 0.0], [0.0, 4.0]]), kiln.tensor([1.0, 1.0]))
    tensor([0.5000, 0.2500])
    """
    return _solve(A, B, left, "linalg.solve")


forms("linalg.solve_ex", "-> result, info")


@linear("solve_ex")
def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """(result, info): `solve` that says in `info` where a zero pivot is, 0 for none; results are NaN there.

    >>> kiln.linalg.solve_ex(kiln.eye(2), kiln.ones(2)).info
    tensor(0, dtype=kiln.int32)
    """
    y, info = inverse_of(A, "linalg.solve_ex")
    if info is None:
        return named("linalg_solve_ex", _solve(A, B, left, "linalg.solve_ex"), infos(A, None))
    if check_errors:
        raise LinAlgError("torch.linalg.solve_ex: The solver failed because the input matrix is singular.")
    vector = _is_vector(A, B)
    b = unsqueeze(B, -1) if vector else B
    x = matmul(y, b) if left else matmul(b, y)
    return named("linalg_solve_ex", squeeze(x, -1) if vector else x, infos(A, info))


def _triangular_back(upper: bool, left: bool, unit: bool) -> Any:
    def back(grads: Any, a: Tensor, _b: Any, y: Tensor) -> Any:
        gb = triangular(swapped(a), grads[0], not upper, left, unit)
        ga = -(matmul(gb, swapped(y)) if left else matmul(swapped(y), gb))
        return kept(ga, (1 if upper else -1) if unit else 0, upper), gb

    return back


def _look_of_triangular(a: Look, b: Look, *settings: Any) -> list[Look]:
    square(a)
    return [matrix(b)]


@in_programs("linalg_solve_triangular", _look_of_triangular, lambda *args: None, tensors=2)
def _triangular(a: Any, b: Any, upper: bool, left: bool, unit: bool) -> Any:
    return outside(
        "linalg.solve_triangular",
        lambda x, y: lapack.triangular(x, y, upper, left, unit, "linalg.solve_triangular"),
        _triangular_back(upper, left, unit),
        a,
        b,
    )[0]


def triangular(a: Tensor, b: Tensor, upper: bool, left: bool = True, unit: bool = False) -> Any:
    """`solve_triangular` of matrices of one batch."""
    return _triangular(a, b, upper, left, unit)


def together(a: Tensor, b: Tensor, name: str) -> tuple[Any, Any]:
    """Two batches of matrices with equal batch dims."""
    if a.shape[:-2] == b.shape[:-2]:
        return a, b
    ones = max(a.ndim, b.ndim) - 2
    left, over = ((1,) * (ones + 2 - x.ndim) + tuple(x.shape[:-2]) for x in (a, b))
    for x, y in zip(left, over):
        if x != y and 1 not in (x, y):
            raise RuntimeError(
                f"{name}: the batches {list(a.shape[:-2])} and {list(b.shape[:-2])} do not fit"
            )
    batch = tuple(y if x == 1 else x for x, y in zip(left, over))
    return broadcast_to(a, (*batch, *a.shape[-2:])), broadcast_to(b, (*batch, *b.shape[-2:]))


@linear(
    "solve_triangular",
    samples=d.samples(
        lambda rng, t: (rows_of((3, 3), right(3, 2))(rng, t)[0], {"upper": True}),
        lambda rng, t: (rows_of((2, 2, 2), right(1, 3, 2))(rng, t)[0], {"upper": False, "left": False}),
        lambda rng, t: (rows_of((2, 2), right(2, 1))(rng, t)[0], {"upper": True, "unitriangular": True}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 2), d.Zeros(2)), {"upper": True}, RuntimeError, "at least 2 dimensions"),
        ((d.Zeros(2, 2), d.Zeros(3, 1)), {"upper": True}, RuntimeError, "Incompatible shapes of A and B"),
    ),
    **LAPACK,
)
def solve_triangular(
    A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    """X with A X = B (or X A = B), A's other triangle taken as zeros, its diagonal as ones where asked.

    A zero on the diagonal gives infinities. RuntimeError for sizes that do not fit; needs SciPy.

    >>> a, b = kiln.tensor([[2.0, 1.0], [0.0, 1.0]]), kiln.tensor([[3.0], [1.0]])
    >>> kiln.linalg.solve_triangular(a, b, upper=True)
    tensor([[1.],
            [1.]])
    """
    name = "linalg.solve_triangular"
    check(A, name)
    check(B, name, False, "B")
    same(A, B, name)
    _check_sides(A, B, left, name)
    return triangular(*together(A, B, name), upper, left, unitriangular)
