"""Whole derivatives: jacrev, jacfwd, hessian. The rows (or columns) are computed together, by one pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kiln import ops
from kiln.func.levels import callable_like
from kiln.func.transforms import _chosen, _linearized, _replaced, vjp
from kiln.func.tree import flatten
from kiln.func.vmap import vmap


def jacrev(
    func: Callable[..., Any], argnums: Any = 0, *, has_aux: bool = False, chunk_size: int | None = None
) -> Callable[..., Any]:
    """The function that gives the Jacobian of `func`, by reverse mode: for each output (a tree) and each of
    the arguments `argnums` (a tree), the tensor of shape output.shape + argument.shape.

    The function runs once; all rows are one pass over its graph (`chunk_size` rows at a time). With
    `has_aux`, for a func that gives (output, aux), the result is (Jacobian, aux).

    >>> import kiln
    >>> kiln.func.jacrev(lambda x: x**2)(kiln.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        chosen = _chosen(args, argnums)
        found = vjp(lambda value: func(*_replaced(args, argnums, value), **kwargs), chosen, has_aux=has_aux)
        ys, whole_output = flatten(found[0])
        xs, whole_input = flatten(chosen)
        rows: Callable[..., Any] = vmap(
            lambda *seeds: flatten(found[1](whole_output(list(seeds))))[0], chunk_size=chunk_size
        )
        parts = rows(*_basis(ys))
        result, first = [], 0
        for y in ys:
            own = [ops.narrow(part, 0, first, y.numel()) for part in parts]
            first += y.numel()
            result.append(whole_input([ops.reshape(p, (*y.shape, *x.shape)) for p, x in zip(own, xs)]))
        jacobian = whole_output(result)
        return (jacobian, found[2]) if has_aux else jacobian

    return callable_like(func, made)


def _basis(xs: list[Any]) -> list[Any]:
    """For each tensor a batch of its basis vectors, zeros where another tensor's turn is."""
    total = sum(x.numel() for x in xs)
    made, first = [], 0
    for x in xs:
        count = x.numel()
        eye = ops.eye(total, count, dtype=x.dtype) if first == 0 else None
        if eye is None:
            ahead = ops.zeros((first, count), dtype=x.dtype)
            eye = ops.cat([ahead, ops.eye(total - first, count, dtype=x.dtype)])
        made.append(ops.reshape(eye, (total, *x.shape)))
        first += count
    return made


def jacfwd(
    func: Callable[..., Any], argnums: Any = 0, has_aux: bool = False, *, randomness: str = "error"
) -> Callable[..., Any]:
    """The function that gives the Jacobian of `func` column by column: what `jacrev` gives, for functions of
    fewer inputs than outputs. The columns are one pass over the graph of the function's vjp.

    >>> import kiln
    >>> kiln.func.jacfwd(lambda x: kiln.stack([x, x**2, x**3]))(kiln.tensor(2.0))
    tensor([ 1.,  4., 12.])
    """

    def made(*args: Any, **kwargs: Any) -> Any:
        chosen = _chosen(args, argnums)
        output, linear, aux = _linearized(
            "jacfwd", lambda value: func(*_replaced(args, argnums, value), **kwargs), (chosen,), has_aux
        )
        ys, whole_output = flatten(output)
        xs, whole_input = flatten(chosen)
        columns = vmap(lambda *tangents: linear.linear(list(tangents)), randomness=randomness)(*_basis(xs))
        result = []
        for y, column in zip(ys, columns):
            parts, first = [], 0
            for x in xs:
                own = ops.movedim(ops.narrow(column, 0, first, x.numel()), 0, -1)
                parts.append(ops.reshape(own, (*y.shape, *x.shape)))
                first += x.numel()
            result.append(whole_input(parts))
        jacobian = whole_output(result)
        return (jacobian, aux) if has_aux else jacobian

    return callable_like(func, made)


def hessian(func: Callable[..., Any], argnums: Any = 0) -> Callable[..., Any]:
    """The function that gives the second derivatives of `func`: of shape output.shape + argument.shape +
    argument.shape, a tree of trees where `argnums` is a tuple.

    >>> import kiln
    >>> kiln.func.hessian(lambda x: (x**3).sum())(kiln.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacrev(jacrev(func, argnums), argnums)
