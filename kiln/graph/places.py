"""What a node's attributes must be so that it stays within its operands' memory, as conditions on sizes.

Ops that are called check their arguments before a graph is made of them, so the rules of kinds do not; a
graph that was read from a file was made by nobody. `conditions` says what must hold of every primitive; what
holds of numbers is decided at once, what names a slot is for the reader to check when sizes are known.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

from kiln.graph.control import Attrs
from kiln.graph.graph import Graph, Node, Shape, Value
from kiln.graph.size import Dim, Size, product, quotient, slots_named, substitute, terms
from kiln.graph.text import DTYPES


class Condition(NamedTuple):
    """left <= right, for the node at a place in the graph."""

    left: Dim
    right: Dim
    node: str


class PlaceError(ValueError):
    """A node that reads or writes outside of its operands."""


class _Node:
    """A node whose conditions are asked; what is false of numbers is raised."""

    def __init__(self, node: Node, where: str, found: list[Condition]) -> None:
        self.node, self.where, self.found = node, where, found

    def refuse(self, what: str) -> NoReturn:
        raise PlaceError(f"{self.where}: {what}")

    def at_most(self, left: Dim, right: Dim, what: str) -> None:
        """left <= right"""
        difference = right - left
        if isinstance(difference, int):
            if difference < 0:
                self.refuse(what)
        else:
            self.found.append(Condition(left, right, f"{self.where}: {what}"))

    def numbers(self, sizes: Any, count: int = -1) -> None:
        """A tuple of sizes, or of places."""
        are = isinstance(sizes, tuple) and all(type(n) is int or isinstance(n, Size) for n in sizes)
        if not are or count not in (-1, len(sizes)):
            self.refuse(f"no sizes: {sizes!r}")

    def sizes(self, sizes: Any) -> None:
        """Sizes: not negative."""
        self.numbers(sizes)
        for n in sizes:
            self.at_most(0, n, "a negative size")

    def dim(self, dim: Any, value: Value) -> None:
        """A dim of a value, counted from the front."""
        if type(dim) is not int or not 0 <= dim < value.ndim:
            self.refuse(f"no dim {dim!r} of {value!r}")

    def strided(self, sizes: Any, strides: Any, offset: Any, memory: Value) -> None:
        """Places of a memory: from `offset` on, so far apart."""
        self.sizes(sizes)
        self.numbers(strides)
        if len(sizes) != len(strides):
            self.refuse(f"{len(sizes)} sizes and {len(strides)} strides")
        self.numbers(offset, 1)
        low: Dim = offset[0]
        high: Dim = offset[0]
        if not any(type(n) is int and n == 0 for n in sizes):
            for n, stride in zip(sizes, strides):
                if all(many < 0 for _, many in terms(stride)):  # as sizes are not negative, this one is
                    self.at_most(stride, 0, "a stride of both signs")
                    low = low + (n - 1) * stride
                else:
                    self.at_most(0, stride, "a negative stride")
                    high = high + (n - 1) * stride
            self.at_most(high + 1, product(memory.shape), "places outside of the memory")
        self.at_most(0, low, "a negative offset")

    def along(self, dim: int, size: Dim, start: Dim, length: Dim, step: Any) -> None:
        """Places start, start + step, ... of a dim."""
        if type(step) is not int or step == 0:
            self.refuse(f"a step of {step!r}")
        self.at_most(0, length, "a negative length")
        if type(length) is int and length == 0:
            return
        last = start + (length - 1) * step
        low, high = (start, last) if step > 0 else (last, start)
        self.at_most(0, low, "a place before the first")
        self.at_most(high + 1, size, "a place behind the last")


def conditions(graph: Graph, within: str = "") -> list[Condition]:
    """What must hold of sizes for every primitive of a graph to stay in bounds; PlaceError if it cannot.
    `within`: the node that calls the graph.
    """
    found: list[Condition] = []
    for k, node in enumerate(graph.nodes):
        op: Any = node.op
        kind = op.algorithm if op.kind in ("along", "layer") else op.kind
        rule = _RULES.get(kind)
        where = f"{within}node {k} ({op.name})"
        if op.kind == "control":
            found += _called(_Node(node, where, found), Attrs(*node.attrs))
        elif rule is not None:
            rule(_Node(node, where, found), node.inputs, node.attrs)
        elif kind not in ("composite", "constant", "called"):  # (what is called looks at arrays as they are)
            raise PlaceError(f"{where}: what it may read is not known")
    return found


def _called(n: _Node, call: Attrs) -> list[Condition]:
    """What graphs that a node calls ask of sizes, in those of the graph around them."""
    if n.node.op.name == "counted":
        n.refuse("a part of derivatives, not one that a program calls")
    n.at_most(0, call.steps[0], "a negative number of steps")
    found: list[Condition] = []
    for j, sub in enumerate(call.graphs):
        for left, right, where in conditions(sub.graph, f"{n.where}, graph {j}, "):
            if any(slot >= len(call.sizes) for dim in (left, right) for slot in slots_named(dim)):
                n.refuse("a size that depends on how many steps there are")
            a, b = (substitute(size, call.sizes.__getitem__) for size in (left, right))
            _Node(n.node, where, found).at_most(a, b, "sizes that do not fit")
    return found


def _pointwise(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    op: Any = n.node.op
    if op.rule in ("cast", "index") and (type(attrs[0]) is not str or attrs[0] not in DTYPES):
        n.refuse(f"no dtype {attrs[0]!r}")


def _full(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.sizes(attrs[0])
    if attrs[1] not in DTYPES:
        n.refuse(f"no dtype {attrs[1]!r}")


def _iota(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.sizes(attrs[0])
    n.dim(attrs[1], n.node.out)


def _reduce(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    dims = attrs[0]
    if type(dims) is not tuple or list(dims) != sorted(set(dims)) or type(attrs[1]) is not bool:
        n.refuse(f"no dims: {dims!r}")
    for d in dims:
        n.dim(d, inputs[0])


def _sized(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.sizes(attrs[0])


def _expand(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.sizes(attrs[0])
    if len(attrs[0]) < inputs[0].ndim:
        n.refuse(f"{inputs[0]!r} to fewer dims")


def _permute(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    dims = attrs[0]
    if type(dims) is not tuple or sorted(dims) != list(range(inputs[0].ndim)):
        n.refuse(f"no order of dims: {dims!r}")


def _as_strided(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.strided(attrs[0], attrs[1], attrs[2], inputs[0])


def _write(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.strided(inputs[1].shape, attrs[0], attrs[1], inputs[0])


def _three(n: _Node, attr: Any) -> tuple[Any, Any, Any]:
    n.numbers(attr, 3)
    return attr  # type: ignore[no-any-return]


def _slice(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.dim(attrs[0], inputs[0])
    start, length, step = _three(n, attrs[1])
    n.along(attrs[0], inputs[0].shape[attrs[0]], start, length, step)


def _embed(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.dim(attrs[0], inputs[0])
    size, start, step = _three(n, attrs[1])
    n.along(attrs[0], size, start, inputs[0].shape[attrs[0]], step)


def _gather(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    _indexed(n, inputs[0], inputs[1], attrs[0])


def _indexed(n: _Node, x: Value, index: Value, dim: Any) -> None:
    n.dim(dim, x)
    if index.dtype != "int64" or index.ndim != x.ndim:
        n.refuse(f"positions in {index!r}")
    for d in range(x.ndim):
        if d != dim:
            n.at_most(index.shape[d], x.shape[d], "more positions than rows")


def _scatter(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    base, index, source = inputs
    _indexed(n, base, index, attrs[0])
    if source.ndim != index.ndim:
        n.refuse(f"{source!r} at the positions of {index!r}")
    for a, b in zip(index.shape, source.shape):
        n.at_most(a, b, "more positions than values")


def _along(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.dim(attrs[0], inputs[0])


def _sort(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    n.dim(attrs[0], inputs[0])
    n.numbers(attrs[2], 2)
    first, count = attrs[2]
    n.along(attrs[0], inputs[0].shape[attrs[0]], first, count, 1)


def _compact(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    if inputs[0].ndim != 1 or inputs[0].dtype != "bool":
        n.refuse("a mask that is none")
    n.sizes(attrs[0])
    n.numbers(attrs[0], 1)
    n.at_most(attrs[0][0], inputs[0].shape[0], "more positions than there are")


def _search(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    values, rows = inputs
    if rows.ndim != values.ndim + 1:
        n.refuse(f"{values!r} in rows {rows!r}")
    for a, b in zip(values.shape, rows.shape[1:]):
        n.at_most(a, b, "more values than rows")
        n.at_most(b, a, "more rows than values")


def _matmul(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    a, b = inputs
    if a.ndim != b.ndim or a.ndim < 2:
        n.refuse(f"a product of {a!r} and {b!r}")


def _concat(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    for x in inputs:
        n.dim(attrs[0], x)
        if x.ndim != inputs[0].ndim:
            n.refuse(f"{inputs[0]!r} beside {x!r}")


def _attention(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    ranks = [v.ndim for v in inputs if not v.weak]
    if len(ranks) not in (3, 4) or ranks != [5, 4, 4, 5][: len(ranks)]:
        n.refuse("query, key, value and mask have 5, 4, 4 and 5 dims")
    if len(ranks) == 4 and inputs[-1].dtype not in ("bool", inputs[0].dtype):
        n.refuse(f"a mask of {inputs[-1].dtype}")


# of a recurrence's cells: gates, states, whether it keeps its gates; and of a packed weight the columns
# (kiln/ops/nn/recurrent_layers.py)
_CELLS = {"LSTM": (4, 2, True), "GRU": (3, 1, True), "RNN_TANH": (1, 1, False), "RNN_RELU": (1, 1, False)}
_COLUMNS = 32


def _recurrence(n: _Node, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> None:
    mode, reverse, whole = attrs
    if not isinstance(mode, str) or mode not in _CELLS or {type(reverse), type(whole)} != {bool}:
        n.refuse(f"no recurrence {attrs!r}")
    gates, states, keeps = _CELLS[mode]
    op: Any = n.node.op
    if (op.rule == "cell" and states < 2) or (op.rule == "kept" and not keeps):
        n.refuse(f"{mode} has no {op.rule}")
    if len(inputs) - 2 - states not in (0, 1) or any(v.weak for v in inputs):
        n.refuse(f"{len(inputs)} operands of {mode}")
    x, weight, hidden = inputs[:3]
    if (x.ndim, weight.ndim, hidden.ndim) != (3, 4, 2) or x.dtype not in ("float32", "float64"):
        n.refuse("input, weight and state have 3, 4 and 2 dims, of float32 or float64")
    rows, size = hidden.shape
    looks: list[tuple[Value, Shape]] = [
        (x, (x.shape[0], rows, size * gates)),
        (weight, (quotient(size + _COLUMNS - 1, _COLUMNS), gates, size, _COLUMNS)),
        *((v, (rows, size)) for v in inputs[2 : 2 + states]),
        *((v, (size * gates,)) for v in inputs[2 + states :]),
    ]
    for value, shape in looks:
        if value.dtype != x.dtype or value.ndim != len(shape):
            n.refuse(f"{value!r} is no operand of it")
        for own, wanted in zip(value.shape, shape):
            n.at_most(own, wanted, "operands of other sizes")
            n.at_most(wanted, own, "operands of other sizes")
    n.at_most(1, x.shape[0], "no step")
    n.at_most(1, size, "a state without elements")


_RULES = {
    "recurrence": _recurrence,
    "pointwise": _pointwise,
    "full": _full,
    "iota": _iota,
    "reduce": _reduce,
    "reshape": _sized,
    "expand": _expand,
    "permute": _permute,
    "as_strided": _as_strided,
    "write": _write,
    "slice": _slice,
    "embed": _embed,
    "gather": _gather,
    "scatter": _scatter,
    "scan": _along,
    "sort": _sort,
    "compact": _compact,
    "search": _search,
    "attention": _attention,
    "matmul": _matmul,
    "concat": _concat,
}
