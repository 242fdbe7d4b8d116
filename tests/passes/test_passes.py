"""The passes: the same bits after each, few kernels, and plans that read as expected.

A plan is run twice, with NumPy and with its compiled kernels, and compared with the interpreter on the graph
as captured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from plan_checks import check, check_plan, check_updates, launches, normal, temporaries, whole
from plan_runner import describe, run_plan, same_bits, trace

from kiln import ops
from kiln.capture.function import rounded_once
from kiln.graph.graph import Graph
from kiln.graph.interpret import interpret
from kiln.graph.text import text
from kiln.graph.verify import verify
from kiln.ops.indexing.gathering import embedding
from kiln.ops.rearranging.padding import surround
from kiln.passes.gradient import Asked, Backward, backward, unbroadcast
from kiln.passes.narrow import narrow
from kiln.passes.pipeline import lower
from kiln.passes.simplify import simplify
from kiln.table.record import find

# -- forward graphs: (function, arguments, launches, temporaries) -----------------------------------

M, V = normal(3, 37), normal(37, seed=1)


FORWARD: dict[str, tuple[Any, tuple[Any, ...], int, int]] = {
    "pointwise": (lambda a, b: (a * b + 1.5).tanh(), (M, V), 1, 0),
    "number": (lambda a, n, k: a * n - k, (M, 0.1, 3), 1, 0),
    "scalar": (lambda a: a * 2 + 1, (np.array(3.0, np.float32),), 1, 0),
    "two outputs": (lambda a, b: (a + b, (a + b).exp()), (M, M), 1, 0),
    "softmax": (lambda a: ops.softmax(a, 1), (M,), 1, 0),
    "softmax of columns": (lambda a: ops.softmax(a, 0), (normal(30, 5),), 1, 0),
    "softmax in the middle": (lambda a: ops.softmax(a, 1), (normal(3, 20, 5),), 1, 0),
    "log_softmax": (lambda a: ops.log_softmax(a, 1), (M,), 1, 0),
    "softmax of a transpose": (lambda a: ops.softmax(a.t(), 1), (normal(7, 5),), 1, 0),
    "layer_norm": (lambda a, w, b: ops.layer_norm(a, (37,), w, b, 1e-5), (M, V, V), 1, 0),
    "mean and deviation": (
        lambda a: (a.mean(1), a.var(1), (a - a.mean(1, True)) / a.std(1, keepdim=True)),
        (M,),
        1,
        0,
    ),
    "cross_entropy": (lambda a, t: ops.cross_entropy(a, t), (normal(6, 10), whole(10, 6)), 4, 3),
    "sum": (lambda a: a.sum(), (normal(300, 170),), 3, 1),
    "sums": (lambda a, b: ((a * b).sum(), a.sum() * 2), (normal(300, 70), normal(300, 70, seed=1)), 3, 2),
    "mse": (lambda a, b: ops.mse_loss(a, b), (M, M + 1), 3, 1),
    "sum of a broadcast": (lambda a, b: (a - b).sum(), (M, V), 4, 2),
    "greatest": (lambda a: (a.amax(), a.amin(), a.argmax(1), (a > 2).any(), (a > -9).all()), (M,), 4, 4),
    "columns": (lambda a, b: (a.sum(0), (a * b).sum(0)), (normal(300, 17), normal(300, 17, seed=1)), 1, 0),
    "product": (lambda a, b: a @ b, (normal(3, 17), normal(17, 5)), 1, 0),
    "long product": (lambda a, b: a @ b, (normal(2, 1030), normal(1030, 3)), 1, 0),
    "linear gelu": (
        lambda a, w, b: ops.gelu(ops.linear(a, w, b)),
        (normal(3, 17), normal(4, 17), normal(4)),
        1,
        0,
    ),
    "linear of rows of rows": (
        lambda a, w, b: ops.relu(ops.linear(a, w, b)),
        (normal(2, 3, 5), normal(4, 5), normal(4)),
        1,
        0,
    ),
    "two products": (
        lambda a, w, b, u: (a @ w + b @ u).tanh(),
        (normal(3, 4), normal(4, 5), normal(3, 6), normal(6, 5)),
        2,
        1,
    ),
    "product of a product": (lambda a, b: (a @ b) @ b, (normal(3, 5), normal(5, 5)), 2, 1),
    "transposed product": (lambda a, b: (a @ b).t(), (normal(3, 5), normal(5, 4)), 1, 0),
    "gather": (lambda a, i: a.gather(1, i) * 2, (normal(3, 5), whole(5, 3, 4)), 1, 0),
    "embedding": (lambda i, w: ops.embedding(i, w) + 1, (whole(7, 3, 4), normal(7, 5)), 1, 0),
    "scatter_add": (
        lambda a, i, b: a.scatter_add(0, i, b),
        (normal(3, 5), whole(3, 6, 5), normal(6, 5)),
        2,
        0,
    ),
    "concat": (lambda a, b: ops.cat([a, b * 2], 1), (normal(3, 5), normal(3, 4)), 2, 0),
    "slice": (lambda a: find("slice")(a, 1, (1, 3, 2)) + 1, (normal(4, 7),), 1, 0),
    "embed": (lambda a: find("embed")(a, 1, (9, 1, 2)), (normal(2, 4),), 2, 0),
    "write": (lambda a, b: find("write")(a, b, (7, 1), (2,)), (normal(4, 7), normal(3, 2)), 2, 0),
    "as_strided": (lambda a: find("as_strided")(a, (3, 2), (1, 4), (1,)) * 2, (normal(4, 7),), 1, 0),
    "as_strided of a result": (
        lambda a: find("as_strided")(a + 1, (3, 2), (1, 4), (1,)),
        (normal(4, 7),),
        2,
        1,
    ),
    "transpose": (lambda a: a.t() * 2, (normal(4, 7),), 1, 0),
    "reshape after permute": (lambda a: a.permute(1, 0, 2).reshape(3, -1).exp(), (normal(2, 3, 5),), 2, 1),
    "product after reshape": (
        lambda a: a.permute(1, 0, 2).reshape(3, -1) @ a.reshape(10, 3),
        (normal(2, 3, 5),),
        2,
        1,
    ),
    "input returned": (lambda a: (a, a, a.t(), a + 1), (normal(2, 3),), 2, 0),
    "literals only": (lambda a: (ops.zeros(2, 3), ops.arange(4)), (normal(2),), 2, 0),
    "iota": (lambda a: a * ops.arange(7), (normal(4, 7),), 1, 0),
    "ones": (lambda a, b: a * b, (normal(4, 1, 7), normal(1, 3, 1)), 1, 0),
    "row of one": (lambda a: ops.softmax(a, 1) + a.sum(1, True), (normal(4, 1),), 1, 0),
    "strided input": (lambda a: a + 1, (normal(7, 8)[::2, ::-2],), 1, 0),
    "strided rows": (lambda a: ops.softmax(a, 1), (normal(4, 14)[:, ::2],), 1, 0),
    "strided factors": (lambda a, b: a @ b, (normal(4, 14)[:, ::2], normal(6, 7).T[:, ::2]), 1, 0),
    "strided reshaped": (lambda a: a.reshape(-1) + 1, (normal(4, 14)[:, ::2],), 2, 1),
    "softmax of a row": (lambda a: ops.softmax(a.amax(0), 0), (normal(5, 70),), 9, 6),
    "attention": (
        lambda q, k, v: ops.bmm(ops.softmax(ops.bmm(q, k.permute(0, 2, 1)) * 0.3, 2), v),
        (normal(2, 3, 5), normal(2, 4, 5), normal(2, 4, 6)),
        3,
        2,
    ),
}


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str) -> None:
    """The interpreter's bits in the expected number of launches and temporaries."""
    function, arguments, expected, temps = FORWARD[name]
    plan = check(function, *arguments)
    assert (launches(plan), temporaries(plan)) == (expected, temps), plan.text()


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "name",
    [
        "pointwise",
        "number",
        "softmax",
        "layer_norm",
        "sum",
        "mse",
        "columns",
        "product",
        "linear gelu",
        "gather",
        "scatter_add",
        "concat",
        "embed",
        "strided rows",
    ],
)
def test_dtypes(name: str, dtype: str) -> None:
    """The same programs in the other float dtypes: 16-bit floats round after every node."""
    function, arguments, *_ = FORWARD[name]

    def converted(a: Any) -> Any:
        if not isinstance(a, np.ndarray) or a.dtype != np.float32:
            return a
        if dtype == "bfloat16":
            base = (np.ascontiguousarray(a).view(np.uint32) >> 16).astype(np.uint16).reshape(a.shape)
        else:
            base = a.astype(dtype)
        if a.flags.c_contiguous:
            return base
        wide = np.zeros((a.shape[0], 2 * a.shape[1]), base.dtype)
        wide[:, ::2] = base
        return wide[:, ::2]

    check(function, *map(converted, arguments))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_integers(dtype: Any) -> None:
    """Wrapping arithmetic, sums, comparisons and products of integers."""
    a, b = (np.random.default_rng(k).integers(0, 100, (5, 6)).astype(dtype) for k in range(2))
    check(lambda x, y: (x * y + x, x.sum(1), x > y, find("convert")(x, "float32") * 0.5), a, b)
    if dtype != np.bool_:
        check(lambda x, y: (x.amax(0), x.argmin(1), x.sum()), a, b)
    if dtype in (np.int64, np.int32):
        check(lambda x, y: x @ y.t(), a, b)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_products_of_narrow_integers(dtype: str) -> None:
    """Converted to int32, multiplied, scaled, biased: one kernel that reads the factors as they are."""
    info = np.iinfo(dtype)
    draw = np.random.default_rng(3).integers
    x, w = (draw(info.min, info.max, s, dtype=dtype, endpoint=True) for s in ((2, 9, 70), (40, 70)))
    convert = find("convert")

    def layer(x: Any, w: Any, scale: Any, bias: Any) -> Any:
        return convert(convert(x, "int32") @ convert(w, "int32").t(), "float32") * scale + bias

    plan = check(layer, x, w, normal(40), normal(40, seed=1))
    assert (launches(plan), temporaries(plan)) == (1, 0)
    assert f"matmul {dtype}" in plan.text()
    other = check(lambda x, w: convert(x, "int64") @ convert(w, "int64").t(), x, w)
    assert "matmul int64" in other.text(), "int64 sums do not wrap"


MOVES = {
    "gathered": lambda x, i: embedding(i, x),
    "padded": lambda x, i: surround(x, 0, (1,), (1,), (2,)),
    "transposed": lambda x, i: x.graph.add(find("concat"), (x, x), (0,)).t(),
    "joined": lambda x, i: x.graph.add(find("concat"), (x, x), (0,)),
    "scattered": lambda x, i: x.graph.add(find("scatter_set"), (x, i, x), (0,)),
    "chosen": lambda x, i: find("where")(i > 2, x, x.t().t()),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", MOVES)
def test_what_only_moves_stays_narrow(name: str, dtype: str) -> None:
    """Elements of 16 bits that a composite moves become float32 in no kernel and in no memory."""
    graph = Graph()
    x, i = (graph.add_input(t, (graph.new_symbol(), graph.new_symbol())) for t in (dtype, "int64"))
    plan = lower(simplify(graph.finish(rounded_once(graph, [x, i], lambda v: [MOVES[name](*v)]))))
    operands = [line.split() for line in plan.text().splitlines() if line.strip().startswith("operand")]
    assert operands or name == "scattered"
    assert not [words for words in operands if "float" in words[3]], plan.text()
    assert "float32" not in plan.text()


def test_what_is_cut_to_integers_is_not_only_moved() -> None:
    graph, convert = Graph(), find("convert")
    x = graph.add_input("bfloat16", (graph.new_symbol(), graph.new_symbol()))
    graph.finish([graph.add(convert, (graph.add(convert, (x,), ("int32",)).t(),), ("bfloat16",))])
    assert "int32" in text(simplify(narrow(graph)))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 5), (5, 1), (1, 1), (17, 129)])
@pytest.mark.parametrize(
    "name", ["pointwise", "softmax", "log_softmax", "sum", "mse", "concat", "transpose", "columns"]
)
def test_sizes(name: str, shape: tuple[int, int]) -> None:
    """Programs for any size: nothing, one, and odd."""
    function, arguments, *_ = FORWARD[name]
    check(
        function, *(normal(*(shape if a.ndim == 2 else shape[1:]), seed=k) for k, a in enumerate(arguments))
    )


def test_one_plan_serves_all_sizes() -> None:
    """A plan lowered once runs on other sizes, 0 among them."""
    graph = simplify(
        trace(lambda a, w: ops.softmax(a @ w, 1).sum(), *map(describe, (normal(3, 4), normal(4, 5))))
    )
    plan = lower(graph)
    for m, k, n in ((3, 4, 5), (1, 1, 1), (0, 4, 5), (3, 0, 5), (200, 7, 90)):
        arguments = [normal(m, k), normal(k, n)]
        for real in (False, True):
            got = run_plan(plan, graph, arguments, real)
            assert all(map(same_bits, interpret(graph, arguments), got))


def test_sum_of_blocks_is_the_long_sum() -> None:
    """Above 16384 elements partial results are added in ascending order: the bits of one kernel's sum."""
    x = normal(70001)
    both = trace(lambda a: (a.sum(), a.reshape(1, -1).sum(1)), describe(x))
    split, one = interpret(both, [x])
    assert same_bits(split, one.reshape(()))
    check_plan(both, [x])
    check(lambda a: a.sum(), np.full(40000, -0.0, np.float32))


@pytest.mark.parametrize("columns", [1, 15, 16, 40, 130])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_scatter_of_rows(columns: int, dtype: Any) -> None:
    """One index per row of any width; an index out of range adds nothing, whatever lies beyond."""
    base, source = (normal(4, columns) * 9).astype(dtype), (normal(30, columns, seed=1) * 9).astype(dtype)
    index = whole(4, 30)

    def add_rows(b: Any, i: Any, s: Any) -> Any:
        return b.scatter_add(0, i.reshape(-1, 1).expand(i.shape[0], b.shape[1]), s)

    check(add_rows, base, index, source)
    graph = simplify(trace(add_rows, *map(describe, (base, index, source))))
    wrong = index.copy()
    wrong[::3] = [-1, 4, 1 << 40, -(1 << 40), 99] * 2
    (got,) = run_plan(lower(graph), graph, [base, wrong, source], True)
    expected = interpret(graph, [base, np.delete(index, np.s_[::3]), np.delete(source, np.s_[::3], 0)])[0]
    assert same_bits(got, expected)


# -- updates ----------------------------------------------------------------------------------------


def _written_twice(a: Any, b: Any, after: bool) -> Any:
    """b written into a, and its first places then where others were, from before or after that."""
    first = find("write")(a, b, (1,), (2,))
    return find("write")(first, find("slice")(first if after else a, 0, (0, 4, 1)), (1,), (4,))


UPDATES: dict[str, tuple[Any, dict[int, int], tuple[Any, ...], int, int]] = {
    "in place": (lambda a, b: a + b, {0: 0}, (M, V), 1, 0),
    "strided in place": (lambda a, b: a * b, {0: 0}, (normal(5, 12)[:, ::2], normal(6)), 1, 0),
    "of the transpose": (lambda a: a + a.t(), {0: 0}, (normal(5, 5),), 2, 1),
    "swap": (lambda a, b: (b + 0, a + 0), {0: 0, 1: 1}, (M, M + 1), 3, 1),
    "copy": (lambda a, b: b, {0: 0}, (M, M + 1), 1, 0),
    "swapped copies": (lambda a, b: (b, a), {0: 0, 1: 1}, (M, M + 1), 3, 1),
    "nothing": (lambda a: a, {0: 0}, (M,), 0, 0),
    "rows": (lambda a: ops.softmax(a, 1), {0: 0}, (M,), 1, 0),
    "columns": (lambda a: ops.softmax(a, 0), {0: 0}, (normal(30, 5),), 1, 0),
    "product of itself": (lambda a, b: a @ b, {0: 0}, (normal(5, 5), normal(5, 5, seed=1)), 2, 1),
    "product added": (lambda a, b, c: c + a @ b, {0: 2}, (normal(3, 4), normal(4, 5), normal(3, 5)), 1, 0),
    "write": (lambda a, b: find("write")(a, b, (37, 1), (2,)), {0: 0}, (M, normal(3, 2)), 1, 0),
    "write of itself": (
        lambda a: find("write")(a, find("slice")(a, 0, (0, 5, 1)), (1,), (1,)),
        {0: 0},
        (normal(6),),
        3,
        1,
    ),
    "writes in a row": (
        lambda a, b, c: find("write")(find("write")(a, b, (37, 1), (2,)), c, (37, 1), (3,)),
        {0: 0},
        (M, normal(3, 2), normal(3, 2, seed=1)),
        2,
        0,
    ),
    "a write of what the last one wrote": (
        lambda a, b: _written_twice(a, b, after=True),
        {0: 0},
        (normal(9), normal(4)),
        4,
        1,
    ),
    "a write of what was there before the last one": (
        lambda a, b: _written_twice(a, b, after=False),
        {0: 0},
        (normal(9), normal(4)),
        4,
        1,
    ),
    "scatter_add": (
        lambda a, i, b: a.scatter_add(0, i, b),
        {0: 0},
        (normal(3, 5), whole(3, 6, 5), normal(6, 5)),
        1,
        0,
    ),
    "read later": (lambda a, b: (a + b, (a * 2) @ b), {0: 0}, (normal(5, 5), normal(5, 5, seed=1)), 2, 0),
    "optimizer": (
        lambda p, g, m, n: (p - (m * 0.9 + g) * n, m * 0.9 + g),
        {0: 0, 1: 2},
        (M, M * 2, M * 3, 0.01),
        1,
        0,
    ),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates(name: str) -> None:
    """In place where what reads the old value does so before or at the same point, else through a copy."""
    function, updates, arguments, expected, temps = UPDATES[name]
    plan = check_updates(function, updates, *arguments)
    assert (launches(plan), temporaries(plan)) == (expected, temps), plan.text()


# -- gradients --------------------------------------------------------------------------------------

GRADIENTS: dict[str, tuple[Any, tuple[Any, ...], tuple[int, ...], int]] = {
    "mul": (lambda a, b: a * b, (M, M + 1), (0, 1), 1),
    "mul of a row": (lambda a, b: a * b, (M, V), (0, 1), 2),
    "softmax": (lambda a: ops.softmax(a, 1), (M,), (0,), 1),
    "log_softmax": (lambda a: ops.log_softmax(a, 1), (M,), (0,), 1),
    "layer_norm": (lambda a, w, b: ops.layer_norm(a, (37,), w, b, 1e-5), (M, V, V), (0, 1, 2), 2),
    "cross_entropy": (lambda a, t: ops.cross_entropy(a, t), (normal(6, 10), whole(10, 6)), (0,), 1),
    "mse": (lambda a, b: ops.mse_loss(a, b), (M, M + 1), (0,), 1),
    "sum": (lambda a: a.sum(), (M,), (0,), 1),
    "greatest": (lambda a: a.amax(1), (M,), (0,), 1),
    "deviation": (lambda a: a.std(1), (M,), (0,), 1),
    "used often": (lambda a: a * a.tanh() + a.exp() * a, (M,), (0,), 1),
    "linear relu": (
        lambda a, w, b: ops.relu(ops.linear(a, w, b)),
        (normal(3, 17), normal(4, 17), normal(4)),
        (0, 1, 2),
        4,
    ),
    "linear gelu": (
        lambda a, w, b: ops.gelu(ops.linear(a, w, b)),
        (normal(3, 17), normal(4, 17), normal(4)),
        (0, 1, 2),
        4,
    ),
    "batches": (lambda a, b: ops.bmm(a, b.permute(0, 2, 1)), (normal(2, 3, 5), normal(2, 4, 5)), (0, 1), 2),
    "gather": (lambda a, i: a.gather(1, i), (normal(3, 5), whole(5, 3, 4)), (0,), 2),
    "embedding": (lambda w, i: ops.embedding(i, w), (normal(7, 5), whole(7, 3, 4)), (0,), 2),
    "concat": (lambda a, b: ops.cat([a, b * 2], 1), (normal(3, 5), normal(3, 4)), (0, 1), 2),
    "slice": (lambda a: find("slice")(a, 1, (1, 3, 2)), (normal(4, 7),), (0,), 2),
    "views": (lambda a: (a.t() * 2).reshape(-1), (normal(4, 7),), (0,), 1),
}


def saved_values(found: Backward, graph: Graph, arguments: list[Any]) -> tuple[list[Any], list[Any]]:
    """The inputs of a gradient graph and the output gradients among them."""
    count = len(graph.outputs)
    graph.finish([*graph.outputs, *found.hidden])
    results = interpret(graph, arguments)
    grads = [normal(*y.shape, seed=9) for y in results[:count]]
    where = {
        "grad": grads,
        "input": arguments,
        "output": results,
        "hidden": results[count:],
        "shape": arguments,
    }
    return [where[kind][k] for kind, k in found.sources], grads


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    """PyTorch's gradients; the plan's bits and number of launches; fewer gradients hide no other values."""
    torch = pytest.importorskip("torch")
    function, arguments, wrt, expected = GRADIENTS[name]
    graph = verify(trace(function, *map(describe, arguments)))
    found = backward(graph, Asked(wrt, (True,) * len(graph.outputs)))
    hidden = found.hidden
    for i in wrt:
        alone = backward(graph, Asked((i,), (True,) * len(graph.outputs)))
        assert {id(v) for v in alone.hidden} <= {id(v) for v in hidden}
        assert not backward(graph, Asked((i,), (True,) * len(graph.outputs), True)).hidden
    values, grads = saved_values(found, graph, list(arguments))
    plan = check_plan(verify(found.graph), values)
    assert launches(plan) == expected, plan.text()
    tensors = [torch.tensor(a) for a in arguments]
    for i in wrt:
        tensors[i].requires_grad_()
    peer = _PEERS[name](*tensors)
    torch.autograd.backward([peer], [torch.tensor(g) for g in grads])
    for i, got in zip(wrt, interpret(found.graph, values), strict=True):
        np.testing.assert_allclose(got, tensors[i].grad.numpy(), rtol=1e-4, atol=1e-5)


def _torch() -> Any:
    return pytest.importorskip("torch")


_PEERS: dict[str, Any] = {
    "mul": lambda a, b: a * b,
    "mul of a row": lambda a, b: a * b,
    "softmax": lambda a: a.softmax(1),
    "log_softmax": lambda a: a.log_softmax(1),
    "layer_norm": lambda a, w, b: _torch().nn.functional.layer_norm(a, (37,), w, b),
    "cross_entropy": lambda a, t: _torch().nn.functional.cross_entropy(a, t),
    "mse": lambda a, b: _torch().nn.functional.mse_loss(a, b),
    "sum": lambda a: a.sum(),
    "greatest": lambda a: a.amax(1),
    "deviation": lambda a: a.std(1),
    "used often": lambda a: a * a.tanh() + a.exp() * a,
    "linear relu": lambda a, w, b: _torch().relu(_torch().nn.functional.linear(a, w, b)),
    "linear gelu": lambda a, w, b: _torch().nn.functional.gelu(_torch().nn.functional.linear(a, w, b)),
    "batches": lambda a, b: _torch().bmm(a, b.permute(0, 2, 1)),
    "gather": lambda a, i: a.gather(1, i),
    "embedding": lambda w, i: _torch().nn.functional.embedding(i, w),
    "concat": lambda a, b: _torch().cat([a, b * 2], 1),
    "slice": lambda a: a[:, 1:7:2],
    "views": lambda a: (a.t() * 2).reshape(-1),
}


def test_contributions_are_added_in_order() -> None:
    """By descending order of the nodes that use a value, then by argument."""
    graph = trace(lambda a: (a.exp() + a * a) * a.tanh(), ("float32", (False,)))
    found = backward(graph, Asked((0,), (True,)))
    adds = [n for n in found.graph.nodes if n.op.name == "add"]
    last: list[str] = []
    value = found.graph.outputs[0]
    while value.node is not None and value.node.op.name == "add" and value.node in adds:
        last.insert(0, value.node.inputs[1].node.op.name)  # type: ignore[union-attr]
        value = value.node.inputs[0]
    assert len(last) == 3, "tanh's, then both of a * a, then exp's"


def test_undefined_gradients_are_not_zeros() -> None:
    """An output without a gradient adds no node; an input that nothing defined reaches has no gradient."""
    graph = trace(lambda a, b: (a * 2, b.exp()), ("float32", (False,)), ("float32", (False,)))
    found = backward(graph, Asked((0, 1), (True, False)))
    assert found.results == (0, -1)
    assert found.sources == (("grad", 0),)
    assert backward(graph, Asked((0, 1), (False, False))).results == (-1, -1)


def test_shape_only_inputs() -> None:
    """The gradient of a sum reads no value of its input, only its sizes."""
    graph = trace(lambda a: a.sum(), ("float32", (False, False)))
    assert backward(graph, Asked((0,), (True,))).sources == (("grad", 0), ("shape", 0))


def test_a_rule_that_gives_another_size_is_refused() -> None:
    """It would be written past its array."""
    graph = Graph()
    like, found = graph.add_input("float32", (4,)), graph.add_input("float32", (3, 5))
    with pytest.raises(RuntimeError, match=r"gives \[3, 5\] for a value of size \[4\]"):
        unbroadcast(found, like)
