"""Products over named dims: einsum, tensordot, kron, and chains of matrices.

An einsum contracts its operands from left to right, two at a time; each pair is one product of batches, whose
operands are views where their strides allow:

    labels of both that stay: batch, that go: k    of one that stay: m or n, that go: summed before
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kiln.errors import warn
from kiln.graph.size import product as product_of
from kiln.ops.elementwise import arithmetic as p
from kiln.ops.products.addends import given
from kiln.ops.products.matrix_products import _differ, _matrices, _require, matmul
from kiln.ops.reductions.core_reductions import sum as sum_
from kiln.ops.views.core_views import permute, reshape, slice_
from kiln.table import drawn as d
from kiln.table.arguments import into, is_value
from kiln.table.kinds import normalize_dim
from kiln.table.public import public
from kiln.table.record import Sample, Tensor
from kiln.table.registry import forms

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FIRST_OF_ELLIPSIS = 52  # labels from here on are dims of "...", the last dim first

Labels = tuple[int, ...]


def _name(label: int) -> str:
    return _LETTERS[label] if label < _FIRST_OF_ELLIPSIS else "..."


def _text(labels: Any) -> str:
    """A sublist in letters."""
    parts = []
    for label in labels:
        if label is not Ellipsis and not 0 <= label < 52:
            raise ValueError(f"einsum(): subscript {label} is not within the valid range [0, 52)")
        parts.append("..." if label is Ellipsis else _LETTERS[label])
    return "".join(parts)


def _arguments(equation: Any, operands: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """The equation as text and the operands, from any of the forms a call may have."""
    if not isinstance(equation, str):  # operands and sublists in turn
        items = (equation, *operands)
        arrays, lists = items[: len(items) - len(items) % 2 : 2], items[1::2]
        left = ",".join(map(_text, lists))
        return (f"{left}->{_text(items[-1])}" if len(items) % 2 else left), list(arrays)
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    return equation, list(operands)


def _parsed(equation: str, term: str, what: str, dims: int | None) -> list[int | None]:
    """The labels of one term of an equation, None for its ellipsis."""
    labels: list[int | None] = []
    rest = term.replace(" ", "")
    while rest:
        if rest[0] in _LETTERS:
            labels.append(_LETTERS.index(rest[0]))
            rest = rest[1:]
        elif rest[0] == ".":
            _require(
                None not in labels, f"einsum(): found '.' for {what} for which an ellipsis was already found"
            )
            _require(rest[:3] == "...", f"einsum(): found '.' for {what} that is not part of any ellipsis")
            labels.append(None)
            rest = rest[3:]
        else:
            raise RuntimeError(
                f"einsum(): invalid subscript given at index {equation.index(rest[0])} in the equation "
                f"string, subscripts must be in [a-zA-Z]: {rest[0]!r} in {what}"
            )
    if dims is None:
        return labels
    count = len([x for x in labels if x is not None])
    if None not in labels:
        _require(
            count == dims,
            f"einsum(): the number of subscripts in the equation ({count}) does not match the number of "
            f"dimensions ({dims}) for {what} and no ellipsis was given",
        )
    _require(
        count <= dims,
        f"einsum(): the number of subscripts in the equation ({count}) is more than the number of "
        f"dimensions ({dims}) for {what}",
    )
    return labels


def _filled(labels: list[int | None], hidden: int) -> Labels:
    """The labels with those of `hidden` dims in place of the ellipsis."""
    dims = range(_FIRST_OF_ELLIPSIS + hidden - 1, _FIRST_OF_ELLIPSIS - 1, -1)
    return tuple(y for x in labels for y in (dims if x is None else (x,)))


@lru_cache(1024)
def _terms(equation: str, dims: tuple[int, ...]) -> tuple[list[Labels], Labels]:
    """The labels of each operand and of the result. RuntimeError for an equation that is wrong."""
    _require(bool(dims), "einsum(): must provide at least one operand")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    _require(len(terms) >= len(dims), "einsum(): more operands were provided than specified in the equation")
    _require(len(terms) <= len(dims), "einsum(): fewer operands were provided than specified in the equation")
    given = [_parsed(equation, t, f"operand {k}", n) for k, (t, n) in enumerate(zip(terms, dims))]
    hidden = [n - len(labels) + 1 if None in labels else 0 for labels, n in zip(given, dims)]
    inputs = [_filled(labels, n) for labels, n in zip(given, hidden)]
    most = max(hidden)
    flat = [x for labels in inputs for x in labels]
    if not arrow:
        once = sorted({x for x in flat if x < _FIRST_OF_ELLIPSIS and flat.count(x) == 1})
        return inputs, _filled([None, *once], most)
    result = _parsed(equation, right, "the output", None)
    for label in result:
        if label is None:
            continue
        _require(
            result.count(label) == 1,
            f"einsum(): output subscript {_name(label)} appears more than once in the output",
        )
        _require(
            label in flat,
            f"einsum(): output subscript {_name(label)} does not appear in the equation for any input "
            "operand",
        )
    return inputs, _filled(result, most)


def _diagonals(x: Tensor, labels: Labels, k: int) -> tuple[Any, Labels]:
    """x without repeated labels: its diagonals along their dims."""
    for label in dict.fromkeys(labels):
        while labels.count(label) > 1:
            i = labels.index(label)
            j = labels.index(label, i + 1)
            n, m = x.shape[i], x.shape[j]
            _require(
                not _differ(n, m),
                f"einsum(): subscript {_name(label)} is repeated for operand {k} but the sizes don't match, "
                f"{m} != {n}",
            )
            rest = [a for a in range(len(labels)) if a not in (i, j)]
            x = permute(x, (*rest, i, j))
            shape = tuple(x.shape[:-2])
            x = slice_(reshape(x, (*shape, n * n)), len(rest), (0, n, n + 1))
            labels = (*(labels[a] for a in rest), label)
    return x, labels


def _check_sizes(operands: list[Any], inputs: list[Labels]) -> None:
    """RuntimeError if a label has two sizes, neither of them 1."""
    seen: dict[int, Any] = {}
    for k, (x, labels) in enumerate(zip(operands, inputs)):
        for label, size in zip(labels, x.shape):
            before = seen.get(label, 1)
            _require(
                not _differ(before, size) or 1 in (before, size),
                f"einsum(): subscript {_name(label)} has size {size} for operand {k} which does not "
                f"broadcast with previously seen size {before}",
            )
            seen[label] = before if before != 1 else size


def _summed(x: Tensor, labels: Labels, keep: set[int], dtype: str | None) -> tuple[Any, Labels]:
    """x summed over the labels that are not kept, in a dtype or that of its sums."""
    gone = tuple(k for k, label in enumerate(labels) if label not in keep)
    if not gone:
        return x, labels
    total = sum_(x, gone, False, dtype)
    return total, tuple(label for label in labels if label in keep)


def _arranged(x: Tensor, labels: Labels, order: Labels) -> Any:
    """x with its dims in an order, 1 where it lacks a label."""
    there = [label for label in order if label in labels]
    x = permute(x, tuple(labels.index(label) for label in there))
    sizes = dict(zip(there, x.shape))
    return x if len(there) == len(order) else reshape(x, tuple(sizes.get(label, 1) for label in order))


def _without_ones(x: Tensor, labels: Labels, other: Tensor, others: Labels) -> tuple[Any, Labels]:
    """x without the dims of size 1 that the other operand repeats."""
    sizes = dict(zip(others, other.shape))
    kept = [k for k, label in enumerate(labels) if x.shape[k] != 1 or sizes.get(label, 1) == 1]
    if len(kept) == len(labels):
        return x, labels
    return reshape(x, tuple(x.shape[k] for k in kept)), tuple(labels[k] for k in kept)


def _pair(a: Tensor, left: Labels, b: Tensor, right: Labels, keep: set[int]) -> tuple[Any, Labels]:
    """The product of two operands, summed over the labels that are not kept."""
    (a, left), (b, right) = _without_ones(a, left, b, right), _without_ones(b, right, a, left)
    a, left = _summed(a, left, keep | set(right), a.dtype)
    b, right = _summed(b, right, keep | set(left), b.dtype)
    batch = tuple(x for x in left if x in right and x in keep)
    inside = tuple(x for x in left if x in right and x not in keep)
    rows = tuple(x for x in left if x not in right)
    columns = tuple(x for x in right if x not in left)
    if not inside:
        order = (*batch, *rows, *columns)
        return p.mul(_arranged(a, left, order), _arranged(b, right, order)), order
    for label, n in zip(right, b.shape):
        if label in left and is_value(a):
            a.graph.require_equal(a.shape[left.index(label)], n, "einsum")
    sizes = dict(zip(right, b.shape)) | dict(zip(left, a.shape))
    a = _flattened(_arranged(a, left, (*batch, *rows, *inside)), (len(batch), len(rows), len(inside)))
    b = _flattened(_arranged(b, right, (*batch, *inside, *columns)), (len(batch), len(inside), len(columns)))
    order = (*batch, *rows, *columns)
    return reshape(matmul(a, b), tuple(sizes[x] for x in order)), order


def _flattened(x: Tensor, groups: tuple[int, int, int]) -> Any:
    """x with its dims, so many of each kind one after another, as (batch, rows, columns); a matrix if there
    is no batch. What has one dim of each kind is not reshaped: its sizes need not be known to be another
    factor's.
    """
    ends = (0, groups[0], groups[0] + groups[1], x.ndim)
    shape = [product_of(tuple(x.shape[i:j])) for i, j in zip(ends, ends[1:])][0 if groups[0] else 1 :]
    return x if all(n == 1 for n in groups[not groups[0] :]) else reshape(x, tuple(shape))


def _einsum_samples(rng: Any, t: str) -> Any:
    cases: list[Any] = [
        ("ij,jk->ik", (3, 5), (5, 4)),
        ("bij,bkj", (2, 3, 5), (2, 4, 5)),
        ("...ii->...", (2, 3, 3)),
        ("a...b,b->...", (2, 3, 4), (4,)),
        ("ij,jk,k->i", (3, 5), (5, 4), (4,)),
    ]
    return [Sample((equation, *_matrices(*shapes)(rng, t)[0])) for equation, *shapes in cases]


forms("einsum", "(equation: str, *operands: Tensor)", "(equation: str, operands: Sequence[Tensor], /)")


@public(
    "einsum",
    method=False,
    samples=_einsum_samples,
    reference=d.numpy("einsum"),
    failures=d.failures(
        (("ij,jk", d.Zeros(2, 3)), {}, RuntimeError, "fewer operands were provided"),
        (("ij", d.Zeros(2, 3), d.Zeros(2)), {}, RuntimeError, "more operands were provided"),
        (("ijk", d.Zeros(2, 3)), {}, RuntimeError, "does not match the number of dimensions"),
        (("...ijk", d.Zeros(2, 3)), {}, RuntimeError, "is more than the number of dimensions"),
        (("i$", d.Zeros(2, 3)), {}, RuntimeError, "invalid subscript"),
        (("i.j", d.Zeros(2, 3)), {}, RuntimeError, "not part of any ellipsis"),
        (("......", d.Zeros(2, 3)), {}, RuntimeError, "already found"),
        (("ij->k", d.Zeros(2, 3)), {}, RuntimeError, "does not appear in the equation"),
        (("ij->ii", d.Zeros(2, 3)), {}, RuntimeError, "appears more than once"),
        (("ii", d.Zeros(2, 3)), {}, RuntimeError, "the sizes don't match"),
        (("ij,jk", d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "does not broadcast"),
        ((d.Zeros(2), [52]), {}, ValueError, "not within the valid range"),
        ((d.Zeros(2), [-1]), {}, ValueError, "not within the valid range"),
    ),
    dtypes="float",
)
def einsum(equation: Any, *operands: Any) -> Any:
    """Products of the operands summed over the labels the result lacks, as in `"ij,jk->ik"`.

    One letter is a dim, "..." are dims that broadcast; without "->" the result has the labels that occur
    once, in their order.

    Also `einsum(x, [0, 1], y, [1, 2], [0, 2])`. RuntimeError for a malformed equation and for sizes that do
    not fit.

    >>> kiln.einsum("ij,j->i", kiln.tensor([[1.0, 2.0], [3.0, 4.0]]), kiln.tensor([1.0, 1.0]))
    tensor([3., 7.])
    """
    equation, arrays = _arguments(equation, operands)
    inputs, result = _terms(equation, tuple([x.ndim for x in arrays]))
    pairs = [_diagonals(x, labels, k) for k, (x, labels) in enumerate(zip(arrays, inputs))]
    _check_sizes([x for x, _ in pairs], [labels for _, labels in pairs])
    x, labels = pairs[0]
    for k, (y, others) in enumerate(pairs[1:], 2):
        later = {label for _, more in pairs[k:] for label in more}
        x, labels = _pair(x, labels, y, others, later | set(result))
    if len(pairs) == 1:  # a sum and no product: integers are summed in int64
        x, labels = _summed(x, labels, set(result), None)
    return _arranged(x, labels, result)


def _dims_of(a: Tensor, b: Tensor, dims: Any) -> tuple[list[int], list[int]]:
    """The dims of a and b to sum over, counted from the front."""
    if hasattr(dims, "tolist"):
        dims = dims.tolist()
    if isinstance(dims, int):
        _require(dims >= 0, f"tensordot expects dims >= 0, but got dims={dims}")
        _require(
            dims <= min(a.ndim, b.ndim),
            f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}",
        )
        return list(range(a.ndim - dims, a.ndim)), list(range(dims))
    first, second = ([k] if isinstance(k, int) else list(k) for k in dims)
    _require(len(first) == len(second), "both dimension lists should have same length")
    first = [normalize_dim(k, a.ndim, "tensordot") for k in first]
    return first, [normalize_dim(k, b.ndim, "tensordot") for k in second]


forms("tensordot", "(a, b, dims: int | Sequence[Sequence[int]] = 2, out=None)")


@public(
    "tensordot",
    method=False,
    samples=d.samples(
        lambda rng, t: (_matrices((3, 4, 5), (4, 5, 2))(rng, t)[0], {}),
        lambda rng, t: (_matrices((3, 4, 5), (5, 4, 2))(rng, t)[0], {"dims": ([1, 2], [1, 0])}),
        lambda rng, t: (_matrices((3,), (4,))(rng, t)[0], {"dims": 0}),
    ),
    reference=d.reference(lambda np, a, b, dims=2: np.tensordot(a, b, dims)),
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 3), -1), {}, RuntimeError, "expects dims >= 0"),
        ((d.Zeros(2, 3), d.Zeros(2, 3), ([0], [0, 1])), {}, RuntimeError, "same length"),
        ((d.Zeros(2, 3), d.Zeros(2, 3), 1), {}, RuntimeError, "contracted dimensions need to match"),
    ),
    dtypes="float",
)
def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Any:
    """The product of a and b summed over the last `dims` dims of a and the first of b, or over two lists of
    dims.

    RuntimeError for sizes that differ, unless one is 1.

    >>> kiln.tensordot(kiln.ones(2, 3), kiln.ones(3, 4), dims=1).shape
    kiln.Size([2, 4])
    """
    first, second = _dims_of(a, b, dims)
    for i, j in zip(first, second):
        n, m = a.shape[i], b.shape[j]
        _require(
            not _differ(n, m) or 1 in (n, m),
            f"contracted dimensions need to match, but first has size {n} in dim {i} and second has size {m} "
            f"in dim {j}",
        )
    left = list(range(a.ndim))
    right = [left[first[second.index(k)]] if k in second else a.ndim + k for k in range(b.ndim)]
    result = tuple(x for x in (*left, *right) if not (x in left and x in right))
    x, labels = _pair(a, tuple(left), b, tuple(right), set(result))
    return given(_arranged(x, labels, result), out)


@public(
    "kron",
    samples=d.samples(_matrices((2, 3), (3, 2)), _matrices((2,), (3, 1, 2)), _matrices((0, 2), (2, 2))),
    reference=d.numpy("kron"),
    failures=d.failures(((d.Zeros(2), "text"), {}, TypeError, "kron")),
    dtypes="float",
)
def kron(input: Any, other: Any, *, out: Any = None) -> Any:
    """The Kronecker product: `input` with each element times `other` in its place; dtypes promote.

    >>> kiln.kron(kiln.tensor([1, 2]), kiln.tensor([1, 1]))
    tensor([1, 1, 2, 2])
    """
    if not hasattr(other, "ndim"):
        raise TypeError(f"kron(): argument 'other' must be Tensor, not {type(other).__name__}")
    ndim = max(input.ndim, other.ndim)
    rows, columns = ((1,) * (ndim - x.ndim) + tuple(x.shape) for x in (input, other))
    a = reshape(input, tuple(s for n in rows for s in (n, 1)))
    b = reshape(other, tuple(s for n in columns for s in (1, n)))
    return given(reshape(p.mul(a, b), tuple(n * m for n, m in zip(rows, columns))), out)


def _cheapest(sizes: list[Any]) -> Any:
    """Where to cut each stretch of a chain of matrices of sizes[k] x sizes[k + 1], for the least work."""
    n = len(sizes) - 1
    cost: dict[tuple[int, int], Any] = {(k, k): (0, 0) for k in range(n)}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i, j] = min(
                (cost[i, k][0] + cost[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )
    return cost


def _chain(matrices: list[Any]) -> Any:
    """The product of matrices that fit, in the cheapest order."""
    cost = _cheapest([*(m.shape[0] for m in matrices), matrices[-1].shape[1]])

    def stretch(i: int, j: int) -> Any:
        if i == j:
            return matrices[i]
        k = cost[i, j][1]
        return matmul(stretch(i, k), stretch(k + 1, j))

    return stretch(0, len(matrices) - 1)


_CHAIN = d.samples(
    lambda rng, t: ((list(_matrices((3, 5), (5, 2), (2, 4))(rng, t)[0]),), {}),
    lambda rng, t: ((list(_matrices((5,), (5, 2), (2, 3), (3,))(rng, t)[0]),), {}),
)


@public(
    "linalg.multi_dot",
    samples=_CHAIN,
    failures=d.failures(
        (([d.Zeros(2, 3)],), {}, RuntimeError, "expected at least 2 tensors"),
        (([d.Zeros(2, 3), d.Zeros(2), d.Zeros(2, 3)],), {}, RuntimeError, "tensor 1 must be 2D"),
        (([d.Zeros(2, 3), d.Zeros(2, 3)],), {}, RuntimeError, "cannot be multiplied"),
    ),
    dtypes="float",
)
def multi_dot(tensors: Any, *, out: Any = None) -> Any:
    """The product of matrices in the order that takes the least work; the first and last may be vectors.

    RuntimeError for fewer than two, or for sizes that do not fit.

    >>> kiln.linalg.multi_dot([kiln.ones(2, 3), kiln.ones(3, 4), kiln.ones(4)])
    tensor([12., 12.])
    """
    chain = list(tensors)
    _require(len(chain) >= 2, f"multi_dot(): expected at least 2 tensors but got {len(chain)}")
    for k, x in enumerate(chain):
        end = {0: "the first tensor", len(chain) - 1: "the last tensor"}.get(k)
        _require(
            x.ndim == 2 or (end is not None and x.ndim == 1),
            f"multi_dot(): {end or f'tensor {k}'} must be {'1D or ' if end else ''}2D but got {x.ndim}D",
        )
    shape = (*chain[0].shape[:-1], *(chain[-1].shape[1:]))
    if chain[0].ndim == 1:
        chain[0] = reshape(chain[0], (1, *chain[0].shape))
    if chain[-1].ndim == 1:
        chain[-1] = reshape(chain[-1], (*chain[-1].shape, 1))
    for x, y in zip(chain, chain[1:]):
        _require(
            not _differ(x.shape[1], y.shape[0]),
            f"mat1 and mat2 shapes cannot be multiplied ({x.shape[0]}x{x.shape[1]} and "
            f"{y.shape[0]}x{y.shape[1]})",
        )
    return given(reshape(_chain(chain), shape), out)


@public(
    "chain_matmul",
    method=False,
    samples=d.samples(_matrices((3, 5), (5, 2), (2, 4)), _matrices((3, 5))),
    failures=d.failures(((d.Zeros(2, 3), d.Zeros(2, 3)), {}, RuntimeError, "cannot be multiplied")),
    dtypes="float",
)
def chain_matmul(*matrices: Any, out: Any = None) -> Any:
    """The product of matrices in the order that takes the least work. RuntimeError if their sizes do not fit.

    >>> kiln.chain_matmul(kiln.ones(1, 2), kiln.ones(2, 3), kiln.ones(3, 1))
    tensor([[6.]])
    """
    warn(
        "torch.chain_matmul is deprecated and will be removed in a future PyTorch release. Use "
        "torch.linalg.multi_dot, which takes a list of matrices."
    )
    for k, x in enumerate(matrices):
        _require(
            x.ndim == 2, f"chain_matmul(): Tensor dimension is {x.ndim}, expected 2 instead (tensor {k})"
        )
    return p.clone(matrices[0], **into(out)) if len(matrices) == 1 else multi_dot(matrices, out=out)
