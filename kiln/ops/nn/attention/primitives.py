"""Attention as nodes: the output, and the gradients of query, key and value.

Nobody sees a matrix of scores: it is computed block by block, in the forward pass and again in the gradients,
which read what the output was made of and nothing else (`kiln.codegen.attention.kernel`). The three gradients
of one output come from one kernel. Their bodies say what they mean (written.py); second derivatives, and the
gradient of a mask that is added, are written out too.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kiln.graph.graph import Graph, Shape, Value
from kiln.ops.elementwise.precision import narrow
from kiln.ops.nn.attention import written as w
from kiln.ops.products.matrix_products import product, swapped
from kiln.ops.random.dropouts import reference_mask
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import permute
from kiln.table import drawn as d
from kiln.table.kinds import require_one_dtype
from kiln.table.record import Number, Op, Sample, Structure, Tensor, composite, layer


def _shares(np: ModuleType, query: Any, key: Any, scale: float, mask: Any, causal: bool) -> Any:
    """The weights, in NumPy."""
    return reference_shares(np, np.einsum("nlhre,nshe->nhrls", query, key) * scale, mask, causal)


def reference_shares(np: ModuleType, x: Any, mask: Any, causal: bool) -> Any:
    """The weights of scaled scores, in NumPy; rows of which every score is hidden have none."""
    if mask is not None:
        x = np.where(mask, x, -np.inf) if mask.dtype == bool else x + mask
    if causal:
        x = np.where(np.tri(*x.shape[-2:], dtype=bool), x, -np.inf)
    top = x.max(-1, keepdims=True, initial=-np.inf)
    e = np.exp(x - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def _factors(np: ModuleType, shares: Any, drop: tuple[Any, ...]) -> Any:
    """What dropout multiplies the weights by, in NumPy; `drop`: p, position, seed, whether there is any."""
    p, position, seed, drops = drop
    return np.where(reference_mask(np, shares, p, position, seed, False), 1 / (1 - p), 0) if drops else 1


def _reference(
    np: ModuleType, query: Any, key: Any, value: Any, scale: Any, p: Any, position: Any, seed: Any, mask: Any,
    causal: Any, drops: Any,
) -> Any:  # fmt: skip
    shares = _shares(np, query, key, scale, mask, causal)
    shares = shares * _factors(np, shares, (p, position, seed, drops))
    return np.einsum("nhrls,nshv->nlhrv", shares, value).astype(query.dtype)


def _samples(rng: Any, t: str) -> list[Sample]:
    """Grouped heads and a mask that is added; one of bool, and causal."""

    def operands(n: int, l: int, h: int, r: int, s: int, e: int, v: int) -> list[Any]:  # noqa: E741
        shapes = (n, l, h, r, e), (n, s, h, e), (n, s, h, v)
        return [d.array(rng, shape, t, -1, 1) for shape in shapes]

    added, looked = d.array(rng, (2, 1, 2, 3, 5), t, -1, 1), d.array(rng, (1, 2, 1, 4, 6), "bool")
    return [
        Sample((*operands(2, 3, 1, 2, 5, 4, 3), 0.5, 0.25, 3, 5, added, False, True)),
        Sample((*operands(1, 4, 2, 1, 6, 3, 2), 1.0, 0.0, 0, 0, looked, True, False)),
    ]


def _shapes(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> tuple[str, Shape]:
    """Of the output, or of the gradient of the operand that the rule names."""
    arrays = [v for v in inputs if v.ndim > 0 or not v.weak]
    given = 1 if op.rule != "output" else 0
    query, key, value, *mask = arrays[given:]
    (n, queries, h, r, e), (_, s, _, width) = query.shape, value.shape
    out = (n, queries, h, r, width)
    wanted = [(key, (n, s, h, e)), (value, (n, s, h, width)), *((x, out) for x in arrays[:given])]
    for x, shape in [*wanted, *((x, (n, h, r, queries, s)) for x in mask)]:
        for have, want in zip(x.shape, shape):
            graph.require_equal(have, want, op.name)
    dtype = require_one_dtype(op, *arrays[: given + 3])
    named = {"output": out, "query": query.shape, "key": key.shape, "value": value.shape}
    return dtype, named[op.rule]


@layer(
    "attention",
    _shapes,
    rule="output",
    public=False,
    samples=_samples,
    reference=d.reference(_reference),
)
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Number,
    p: Number,
    position: Number,
    seed: Number,
    mask: Tensor | None,
    causal: Structure,
    drops: Structure,
) -> Any:
    """[n, l, h, r, e], [n, s, h, e], [n, s, h, v], mask [n, h, r, l, s] -> [n, l, h, r, v]: means of the
    values by the softmax of query * key * scale + mask; r queries share a head's keys. A bool mask says which
    keys are looked at; with `causal`, those up to the query's own position. If it `drops`, each weight is
    zero with probability p, the others over 1 - p: `dropout_values` of [n, h, r, l, s].
    """
    drop = (p, position, seed) if drops else None
    return w.attended(query, key, value, scale, drop, mask, causal)


def _gradient(which: str) -> Any:
    def compute(
        np: ModuleType, g: Any, query: Any, key: Any, value: Any, scale: Any, p: Any, position: Any,
        seed: Any, mask: Any, causal: bool, drops: bool,
    ) -> Any:  # fmt: skip
        shares = _shares(np, query, key, scale, mask, causal)
        factors = _factors(np, shares, (p, position, seed, drops))
        slopes = np.einsum("nlhrv,nshv->nhrls", g, value) * factors
        slopes = shares * (slopes - (shares * slopes).sum(-1, keepdims=True))
        if which == "query":
            found = np.einsum("nhrls,nshe->nlhre", slopes, key) * scale
        elif which == "key":
            found = np.einsum("nhrls,nlhre->nshe", slopes, query) * scale
        else:
            found = np.einsum("nhrls,nlhrv->nshv", shares * factors, g)
        return found.astype(query.dtype)

    return d.reference(compute)


def _gradient_samples(rng: Any, t: str) -> list[Sample]:
    found = []
    for sample in _samples(rng, t):
        query, _, value = sample.args[:3]
        found.append(Sample((d.array(rng, (*query.shape[:4], value.shape[3]), t, -1, 1), *sample.args)))
    return found


def _gradient_of(which: str) -> Op:
    """The op that gives the gradient of one operand."""

    def body(
        grad: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: Number,
        p: Number,
        position: Number,
        seed: Number,
        mask: Tensor | None,
        causal: Structure,
        drops: Structure,
    ) -> Any:
        drop = (p, position, seed) if drops else None
        return w.gradient(which, grad, query, key, value, scale, drop, mask, causal)

    body.__name__ = f"attend_{which}"
    body.__doc__ = f"The gradient of `{which}` where `grad` is that of what `attend` gives."
    return layer(
        "attention",
        _shapes,
        rule=which,
        public=False,
        samples=_gradient_samples,
        dtypes="float64",
        reference=_gradient(which),
    )(body)


attend_query, attend_key, attend_value = map(_gradient_of, ("query", "key", "value"))


@attend.derivative
def _(g: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: Any, p: Any, position: Any, seed: Any,
      mask: Tensor, causal: bool, drops: bool) -> Any:  # fmt: skip
    operands = (g, query, key, value, scale, p, position, seed, mask, causal, drops)
    found = (*(op(*operands) for op in (attend_query, attend_key, attend_value)), None, None, None, None)
    if mask is None:
        return found
    if mask.dtype == "bool":
        return (*found, None)
    drop = (p, position, seed) if drops else None
    return (*found, w.score_slopes(g, query, key, value, scale, drop, mask, causal)[1])


def _second(which: str, cotangent: Any, g: Tensor, query: Tensor, key: Tensor, value: Any, scale: Any,
            drop: w.Drop, mask: Tensor, causal: Any) -> tuple[Any, ...]:  # fmt: skip
    """The derivatives of a gradient, written out: of g, query, key, value, and the mask.

    D = kept g v^T;  dS = p (D - sum p D);  dq = scale dS k,  dk = scale dS^T q,  dv = (kept p)^T g
    """
    e, share = w.weights(query, key, scale, mask, causal)
    p = e * share
    q, k, v, out = w.by_head(query), w.shared(key, query), w.shared(value, query), w.by_head(g)
    slopes = w.kept(product(out, swapped(v)), drop)
    grads: dict[str, Any] = {}

    def add(name: str, x: Tensor) -> None:
        grads[name] = x if name not in grads else grads[name] + x

    def mean(x: Tensor) -> Tensor:
        return reduce_sum(x, (4,), True)

    if which == "value":
        c = w.shared(cotangent, query)
        of_p = w.kept(product(out, swapped(c)), drop)
        add("g", product(w.kept(p, drop), c))
    else:
        ds = p * (slopes - mean(p * slopes))
        if which == "query":
            c = w.by_head(cotangent)
            of_ds = product(c, swapped(k)) * scale
            add("key", product(swapped(ds), c) * scale)
        else:
            c = w.shared(cotangent, query)
            of_ds = product(q, swapped(c)) * scale
            add("query", product(ds, c) * scale)
        level = mean(p * of_ds)
        of_p = of_ds * (slopes - mean(p * slopes)) - slopes * level
        of_slopes = w.kept(p * (of_ds - level), drop)
        add("g", product(of_slopes, v))
        add("value", product(swapped(of_slopes), out))
    of_x = p * (of_p - mean(p * of_p))
    add("query", product(of_x, k) * scale)
    add("key", product(swapped(of_x), q) * scale)
    of_mask = None if mask is None or mask.dtype == "bool" else of_x
    return (*_as_operands(grads, g.dtype), None, None, None, None, of_mask)


def _as_operands(grads: dict[str, Any], dtype: str) -> list[Any]:
    """Gradients by head as those of g, query, key, value."""
    found = []
    for name in ("g", "query", "key", "value"):
        x = grads.get(name)
        if x is not None and name in ("g", "query"):
            x = narrow(permute(x, (0, 3, 1, 2, 4)), dtype)
        elif x is not None:
            x = narrow(permute(reduce_sum(x, (2,), False), (0, 2, 1, 3)), dtype)
        found.append(x)
    return found


def _state_second(op: Op, which: str) -> None:
    @op.derivative
    def _(g: Tensor, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, scale: Any, p: Any,
          position: Any, seed: Any, mask: Tensor, causal: bool, drops: bool) -> Any:  # fmt: skip
        drop = (p, position, seed) if drops else None
        return _second(which, g, grad, query, key, value, scale, drop, mask, causal)


for _op, _which in ((attend_query, "query"), (attend_key, "key"), (attend_value, "value")):
    _state_second(_op, _which)


@composite(
    public=False,
    samples=lambda rng, t: [Sample((*_samples(rng, t)[0].args, False))],
    dtypes="float64",
    reference=d.reference(lambda np, *operands: _reference(np, *operands[:-1])),
)
def attend_written(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: Number,
    p: Number,
    position: Number,
    seed: Number,
    mask: Tensor | None,
    causal: Structure,
    drops: Structure,
    rounds: Structure,
) -> Any:
    """`attend` by products and a softmax of all scores at once: the same bits; it `rounds` if it is of
    bfloat16.
    """
    drop = (p, position, seed) if drops else None
    return w.attended(query, key, value, scale, drop, mask, causal, rounds)
