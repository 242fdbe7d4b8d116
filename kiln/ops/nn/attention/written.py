"""What attention means, written out in products and reductions: the kernels' definition, bit by bit.

    x = q k^T * scale + mask;   e = exp(x - max x);   out = (dropout(e) v) / sum e
    p = e / sum e;  d = dropout(g v^T);   dS = p (d - sum p d)
    dq = dS k * scale,   dk = dS^T q * scale,   dv = dropout(p)^T g

What products of bfloat16 read is bfloat16: there dropout(e), dropout(p) and dS are rounded.

Arrays of scores are [n, h, r, l, s]: batch, head, member of the head's group, query, key. The functions take
query [n, l, h, r, e], key [n, s, h, e], value [n, s, h, v], and a mask that is bool (True: looked at) or
added. `drop` is None, the numbers of `dropout_values` (a weight's place in such an array is its position), or
what it makes of an array of ones.
"""

from __future__ import annotations

from typing import Any, Union

from kiln.graph.size import quotient
from kiln.ops.elementwise import comparison
from kiln.ops.elementwise.arithmetic import convert, detach, where
from kiln.ops.elementwise.elementary import exp
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.products.matrix_products import product, swapped
from kiln.ops.random.dropouts import dropout_values
from kiln.ops.reductions.core_reductions import reduce_max, reduce_sum
from kiln.ops.views.core_views import expand, permute, reshape, slice_
from kiln.table.order import ATTENTION_ROWS
from kiln.table.record import Tensor, constant, find

NOTHING = float("-inf")
Drop = Union[tuple[Any, Any, Any], Any, None]  # numbers: the probability, the first position, the seed


def by_head(x: Tensor) -> Tensor:
    """Queries [n, l, h, r, e], wide, as [n, h, r, l, e]."""
    return permute(wide(x), (0, 2, 3, 1, 4))


def shared(x: Tensor, like: Any) -> Tensor:
    """Keys or values [n, s, h, e], wide, as [n, h, r, s, e]: all members of a group have the same."""
    n, s, h, e = x.shape
    r = like.shape[3]
    return expand(reshape(permute(wide(x), (0, 2, 1, 3)), (n, h, 1, s, e)), (n, h, r, s, e))


def weights(query: Tensor, key: Tensor, scale: Any, mask: Tensor, causal: bool) -> tuple[Any, Any]:
    """exp(x - max x), and one over its sum along the keys; 0 where no key is looked at."""
    x = product(by_head(query), swapped(shared(key, query))) * scale
    if mask is not None:
        x = where(mask, x, NOTHING) if mask.dtype == "bool" else x + convert(mask, x.dtype)
    if causal:
        row, column = (x.graph.add(find("iota"), (), (tuple(x.shape), d)) for d in (3, 4))
        x = where(comparison.le(column, row), x, NOTHING)
    top = detach(reduce_max(x, (4,), True))
    e = exp(x - where(comparison.eq(top, NOTHING), 0.0, top))
    total = reduce_sum(e, (4,), True)
    empty = comparison.eq(total, 0.0)
    return e, where(empty, 0.0, 1.0 / where(empty, 1.0, total))


def kept(x: Tensor, drop: Drop) -> Any:
    """What dropout leaves of an array of scores."""
    if drop is None or isinstance(drop, tuple):
        return x if drop is None else dropout_values(x, *drop, False)
    return where(comparison.eq(drop, 0.0), 0.0, x * convert(drop, x.dtype))


def low(x: Tensor, rounds: bool) -> Any:
    """What a product reads of x: rounded to bfloat16, if its other factor is of that."""
    return wide(narrow(x, "bfloat16")) if rounds else x


def attended(
    query: Tensor,
    key: Tensor,
    value: Any,
    scale: Any,
    drop: Drop,
    mask: Tensor,
    causal: bool,
    rounds: bool = False,
) -> Tensor:
    """[n, l, h, r, v]: the output; it `rounds` in an op of bfloat16, which sees float32."""
    e, share = weights(query, key, scale, mask, causal)
    v = shared(value, query)
    out = product(low(kept(e, drop), rounds or query.dtype == "bfloat16"), v) * share
    return narrow(permute(out, (0, 3, 1, 2, 4)), query.dtype)


def score_slopes(
    g: Tensor, query: Tensor, key: Tensor, value: Any, scale: Any, drop: Drop, mask: Tensor, causal: bool
) -> Any:
    """The weights p and the gradient of the scores x, for g [n, l, h, r, v]."""
    e, share = weights(query, key, scale, mask, causal)
    p, d = e * share, kept(product(by_head(g), swapped(shared(value, query))), drop)
    return p, p * (d - reduce_sum(e * d, (4,), True) * share)


def gradient(
    which: str,
    g: Tensor,
    query: Tensor,
    key: Tensor,
    value: Any,
    scale: Any,
    drop: Drop,
    mask: Tensor,
    causal: bool,
) -> Tensor:
    """The gradient of query, key or value, in the order the kernels have; of arrays whose sizes are known."""
    rounds = query.dtype == "bfloat16"
    p, slopes = score_slopes(g, query, key, value, scale, drop, mask, causal)
    if which == "query":
        found = product(low(slopes, rounds), shared(key, query)) * scale
        return narrow(permute(found, (0, 3, 1, 2, 4)), query.dtype)
    left, right = (slopes, query) if which == "key" else (kept(p, drop), g)
    found = over_queries(low(left, rounds), by_head(right))
    if which == "key":
        found = found * scale
    return narrow(permute(found, (0, 2, 1, 3)), query.dtype)


def over_queries(left: Any, right: Any) -> Any:
    """[n, h, s, e]: the sum over a group's queries of left [n, h, r, l, s] times right [n, h, r, l, e]; in
    the order of one product where sizes are not known.
    """
    n, h, members, queries, keys = left.shape
    if not isinstance(members, int) or not isinstance(queries, int):
        left, right = (reshape(x, (n, h, members * queries, x.shape[4])) for x in (left, right))
        return product(swapped(left), right)
    shape, zero = (n, h, keys, right.shape[4]), constant(right.graph, 0)
    total = right.graph.add(find("full"), (zero,), (shape, right.dtype))
    for r in range(members):
        for start in range(0, queries, ATTENTION_ROWS):
            rows = (start, min(ATTENTION_ROWS, queries - start), 1)
            a, b = (slice_(slice_(x, 2, (r, 1, 1)), 3, rows) for x in (left, right))
            a, b = (reshape(x, (n, h, rows[1], x.shape[4])) for x in (a, b))
            total = total + product(swapped(a), b)
    return total


def of_samples(rule: str, operands: list[Any], causal: bool, samples: Any) -> Any:
    """Attention with dropout, or the gradient a rule names, where n is samples times a batch that they share:
    what is dropped is the same for each.
    """
    grads = [] if rule == "output" else operands[:1]
    query, key, value, scale, p, position, seed, *mask = operands[len(grads) :]
    (n, length, h, r, _), s = query.shape, key.shape[1]
    shape, one = (quotient(n, samples), h, r, length, s), constant(query.graph, 1.0)
    ones = query.graph.add(find("full"), (one,), (shape, "float32"))
    factors = reshape(dropout_values(ones, p, position, seed, False), (1, *shape))
    drop = reshape(expand(factors, (samples, *shape)), (n, *shape[1:]))
    given = (*grads, query, key, value, scale, drop, mask[0] if mask else None, causal)
    return attended(*given) if rule == "output" else gradient(rule, *given)
