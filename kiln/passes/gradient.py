"""Reverse mode on graphs: from a graph, the graph of its gradients.

    forward       x ---> [nodes] ---> y           backward    gy, saved ---> [nodes] ---> gx

The rules are the ops' own derivatives, run once on values; nothing is simplified before. Where a value is
used several times its contributions are added by descending order of the nodes that use it, then by argument
(the order the eager engine adds in); an output's own gradient comes first. A gradient nobody defined
never becomes zeros. A sum with gradients of slices among its parts begins as +0.0 everywhere: then it does
not matter for its bits whether such a part is added as an array with zeros around it or at its place alone.

Of values picked by positions the gradients are added one after the other at their places (`onto`: in an array
that the engine has of the parts before), in the order of the positions.

The gradient of a matrix W that rows were multiplied with is a product of two matrices with these rows,
a.T @ b. The engine may ask for such factors instead (`factored`), to stack those of several calls
(architecture.md 6).

What backward needs of forward is saved as follows. Inputs and outputs are free. A reduction's result is
small: it is returned as a hidden output. A pointwise value or view is computed again from those. Where that
would repeat a product or a gather, either what is needed becomes a hidden output, or that product where it is
fewer values (parts of one product that lie side by side are no more than it).

    gy0 gy1 | inputs  outputs  hidden  numbers | shapes          the inputs of the new graph, in this order
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kiln.graph.control import siblings
from kiln.graph.graph import Graph, Node, Value
from kiln.graph.size import Dim, single_slot, substitute, symbol
from kiln.graph.slots import array_input, first_slots
from kiln.passes import control
from kiln.passes.rewrite import clone, reachable, slots_in, substitute_attr
from kiln.table.kinds import FLOATS, VIEWS
from kiln.table.record import Op, constant, find

Source = tuple[str, int]
Begun = dict[int, tuple[Source, Value]]

FREE = frozenset({"constant", "full", "iota"})


class Backward(NamedTuple):
    """The graph of the gradients.

    `sources`: where each input of `graph` comes from: ("grad", k) the gradient of output k, ("input", i),
    ("output", j), ("hidden", h), or ("shape", i): only the sizes of input i are read. `hidden`: the values of
    the forward graph to be returned as extra outputs. `results`: for each wanted input the output of `graph`
    that is its gradient, or -1 if there is none. `factors`: the same for each product that is a part of it
    but was asked for as two factors, by descending order of the products. `products`: how many rows each part
    has that is a product. `scattered`: whether it is nothing but an array scattered into zeros. `values`: the
    outputs of `graph`.
    """

    graph: Graph
    sources: tuple[Source, ...]
    hidden: tuple[Value, ...]
    results: tuple[int, ...]
    factors: tuple[tuple[tuple[int, int], ...], ...]
    products: tuple[tuple[Dim, ...], ...]
    scattered: tuple[bool, ...]
    values: tuple[Value, ...]


class Asked(NamedTuple):
    """Which derivative of a graph: the core's `Asked` (native/call/compiler.h).

    Of the inputs `wrt`, given the gradients of those outputs for which `defined` holds. With `redo` nothing
    is hidden: what is not an input or an output is computed again. Of the inputs in `factored`, products of
    matrices are not computed: their factors are given. The gradient of the input `onto`, unless -1, begins
    with a sum, the first input of the graph. `shared`, of a launch on rows: the operands that its calls
    share, a bit each; -1: it is none.
    """

    wrt: tuple[int, ...]
    defined: tuple[bool, ...]
    redo: bool = False
    factored: tuple[int, ...] = ()
    onto: int = -1
    shared: int = -1

    @classmethod
    def everything(cls, forward: Graph) -> Asked:
        """All inputs that may have a gradient, given that of each output that may."""
        wrt = tuple(i for i, v in enumerate(forward.inputs) if v.dtype in FLOATS and not v.weak)
        return cls(wrt, tuple(v.dtype in FLOATS for v in forward.outputs))


def backward(forward: Graph, asked: Asked, calls: bool = False) -> Backward:
    """The gradients asked for. With `calls`, composites that state their derivative are nodes.

    Raises NotImplementedError if an op on the way has no derivative.
    """
    everything = Asked.everything(forward)
    return finish(_Run(forward, asked, calls), asked.redo, lambda: _Run(forward, everything))


class Sweep(Protocol):
    """Gradients found on a copy of a forward graph: `sums` of values by id, among them `targets`, from
    `seeds` of outputs by number and from `begun` sums of targets by id, both with where they come from;
    `copies`: of every value of `forward` by id, in their graph.
    """

    forward: Graph
    copies: dict[int, Value]
    seeds: dict[int, Value]
    begun: Begun
    targets: list[Value]
    sums: dict[int, Sum]


def finish(run: Sweep, redo: bool, everything: Callable[[], Sweep]) -> Backward:
    """The graph of the gradients a sweep found; `everything`: the sweep for all gradients of all outputs."""
    sums = [run.sums.get(id(x)) or Sum() for x in run.targets]
    wanted: list[Value] = []

    def place(value: Value | None) -> int:
        if value is not None:
            wanted.append(value)
        return -1 if value is None else len(wanted) - 1

    results, factors = [], []
    for found in sums:
        results.append(place(found.total))
        factors.append(tuple((place(a), place(b)) for a, b in found.factors))
    saved = _Saved(run, wanted, redo, frozenset() if redo else _worth_saving(everything()))
    forward = run.forward
    graph, sources = _extract(forward, run.seeds, saved, wanted)
    products = tuple(tuple(found.products) for found in sums)
    hidden, values = tuple(saved.hidden), tuple(graph.outputs)
    scattered = tuple(g is not None and _is_scattered(g) for g in (found.total for found in sums))
    return Backward(graph, sources, hidden, tuple(results), tuple(factors), products, scattered, values)


class _Run:
    """A copy of a forward graph with the nodes of its gradients appended."""

    def __init__(self, forward: Graph, asked: Asked, calls: bool = False) -> None:
        self.forward = forward
        work, self.copies = clone(forward)
        work.calls = calls
        self.targets = [work.inputs[i] for i in asked.wrt]
        self.seeds, self.begun = given(asked, forward, work)
        copied = [self.copies[id(y)] for y in forward.outputs]
        kept = {id(work.inputs[i]) for i in asked.factored}
        self.sums = _accumulate(work, len(forward.nodes), self.targets, copied, self.seeds, kept, self.begun)


def given(asked: Asked, forward: Graph, work: Graph) -> tuple[dict[int, Value], Begun]:
    """What a sweep on a copy of a graph begins with: the seeds of outputs by number, and sums of parts before
    by the ids of their targets.
    """
    outputs = enumerate(forward.outputs)
    seeds = {k: Value(work, None, y.dtype, y.shape) for k, y in outputs if asked.defined[k]}
    begun: Begun = {}
    if asked.onto >= 0:
        target = work.inputs[asked.onto]
        begun[id(target)] = (("sum", asked.onto), Value(work, None, target.dtype, target.shape))
    return seeds, begun


# -- accumulation -----------------------------------------------------------------------------------


class Sum:
    """The gradient of one value as far as the sweep came. `total`: of its parts that are arrays; `factors`:
    of its parts that stay products, a.T @ b each.
    """

    def __init__(self, before: Value | None = None) -> None:
        self.total = before
        self.factors: list[tuple[Value, Value]] = []
        self.products: list[Dim] = []  # rows of each part that is one
        self._from_zero = before is not None

    def add(self, part: Value, of_slice: bool = False, stays_product: bool = False) -> None:
        """A part that comes after those before. `of_slice`: an array with zeros around what was sliced."""
        if is_product(part):
            self.add_product(part, stays_product)
            if stays_product:
                return
        scattered = _is_scattered(part)
        if (of_slice or scattered) and not self._from_zero:
            self._from_zero = True
            if self.total is not None:
                self.total = _from_zero(self.total)
            elif not scattered:
                part = _from_zero(part)
        if scattered and self.total is not None and part.node is not None:
            scatter = part.node
            self.total = part.graph.add(scatter.op, (self.total, *scatter.inputs[1:]), scatter.attrs)
            return
        self.total = part if self.total is None else part.graph.add(find("add"), (self.total, part))

    def add_product(self, part: Value, stays_product: bool) -> None:
        """A part that is a product, which is an array for those who add it unless it stays one."""
        product = _product(part)
        assert product is not None
        self.products.append(product.inputs[0].shape[1])
        if stays_product:
            self.factors.append(_rows(product, product.out is not part))


def _from_zero(x: Value) -> Value:
    """0.0 + x: x with -0.0 made 0.0. Of an array inside zeros, only the array is summed."""
    zero = constant(x.graph, 0.0)
    if x.node is not None and x.node.op is find("embed"):
        return x.graph.add(x.node.op, (x.graph.add(find("add"), (x.node.inputs[0], zero)),), x.node.attrs)
    return x.graph.add(find("add"), (x, zero))


def _is_scattered(part: Value) -> bool:
    """Whether a value is an array whose elements are added at positions among zeros."""
    node = part.node
    if node is None or node.op is not find("scatter_add"):
        return False
    base = node.inputs[0].node
    zero = base.inputs[0].node if base is not None and base.op.kind == "full" else None
    return zero is not None and zero.op.kind == "constant" and zero.attrs[0] == 0


def is_product(part: Value) -> bool:
    """Whether a value is a product of two matrices, or the transposition of one."""
    return _product(part) is not None


def transposition(x: Value) -> Value:
    """A matrix with rows and columns in each other's place: of a transposition, what was transposed."""
    if x.node is not None and _is_transposition(x.node):
        return x.node.inputs[0]
    return x.graph.add(find("permute"), (x,), ((1, 0),))


def _product(part: Value) -> Node | None:
    """The product of two matrices that a value, or its transposition, is; else None."""
    node = part.node
    if node is not None and _is_transposition(node):
        node = node.inputs[0].node
    return node if node is not None and node.op is find("product") and part.ndim == 2 else None


def _rows(product: Node, transposed: bool) -> tuple[Value, Value]:
    """(a, b) with a.T @ b the product, or its transposition: both have a row for each that was multiplied
    with the matrix whose gradient that is.
    """
    rows, right = transposition(product.inputs[0]), product.inputs[1]
    return (right, rows) if transposed else (rows, right)


def _is_transposition(node: Node) -> bool:
    return node.op.kind == "permute" and node.attrs[0] == (1, 0)


def _accumulate(
    work: Graph,
    count: int,
    targets: list[Value],
    outputs: list[Value],
    seeds: dict[int, Value],
    factored: set[int],
    begun: Begun,
) -> dict[int, Sum]:
    """The gradient of every value, by id: the reverse sweep over the first `count` nodes."""
    nodes = work.nodes[:count]
    needed = _depends_on(nodes, targets)
    sums = {key: Sum(before) for key, (_, before) in begun.items()}

    def gradient(value: Value) -> Value | None:
        return sums[id(value)].total if id(value) in sums else None

    for k, seed in seeds.items():
        if id(outputs[k]) in needed:
            sums.setdefault(id(outputs[k]), Sum()).add(seed)
    for node in reversed(nodes):
        called = node.op.kind == "control"
        several = nodes if _takes_several(node.op) else siblings(node, nodes) if called else [node]
        found = tuple([gradient(n.out) for n in several])
        if node is not several[0] or all(g is None for g in found):
            continue
        if not any(id(v) in needed for v in node.inputs):
            continue
        if called:
            wanted = [id(v) in needed for v in node.inputs]
            given = {n.attrs[0]: g for n, g in zip(several, found) if g is not None}
            parts: Sequence[Value | None] = control.rule(_totals, node, several, given, wanted)
        else:
            parts = _rule(node, found, nodes)
        for value, part in zip(node.inputs, parts):
            if part is not None and id(value) in needed:
                own = sums.setdefault(id(value), Sum())
                own.add(unbroadcast(part, value), node.op.kind == "slice", id(value) in factored)
    return sums


def _totals(
    work: Graph,
    count: int,
    targets: list[Value],
    outputs: list[Value],
    seeds: dict[int, Value],
    begun: dict[int, Value],
) -> list[Value | None]:
    """The gradient of each target, in a graph that is called."""
    before: dict[int, tuple[Source, Value]] = {key: (("sum", 0), v) for key, v in begun.items()}
    sums = _accumulate(work, count, targets, outputs, seeds, set(), before)
    return [sums[id(x)].total if id(x) in sums else None for x in targets]


def _depends_on(nodes: list[Node], targets: list[Value]) -> set[int]:
    """The ids of the floating-point values that are computed from the targets, targets included."""
    needed = {id(x) for x in targets if x.dtype in FLOATS}
    for node in nodes:
        if node.out.dtype in FLOATS and any(id(v) in needed for v in node.inputs):
            needed.add(id(node.out))
    return needed


def _takes_several(op: object) -> bool:
    """Whether the op is a composite of several results whose rule takes the gradients of all: `gs`."""
    assert isinstance(op, Op)
    if op.kind != "composite" or op.gradient is None:
        return False
    code = op.gradient.__code__
    return "gs" in code.co_varnames[: code.co_argcount]


def _rule(node: Node, gradients: tuple[Value | None, ...], nodes: list[Node]) -> tuple[Value | None, ...]:
    """The op's derivative at a node: one gradient or None per input.

    A composite that states its derivative stands alone, a node for each of its results; the rule may read all
    of them. Of a rule that takes one gradient only the first result is differentiated.
    """
    op = node.op
    assert isinstance(op, Op)
    if not op.differentiable:
        return (None,) * len(node.inputs)
    if op.gradient is None:
        raise NotImplementedError(f"{op.name}: the derivative is not implemented")
    results = tuple(n.out for n in nodes) if op.kind == "composite" else (node.out,)
    if node.out is not results[0]:
        raise NotImplementedError(f"{op.name}: the derivative of its further results is not implemented")
    return op.gradients(gradients, node.inputs, results, node.attrs)


def unbroadcast(gradient: Value, like: Value) -> Value:
    """A gradient summed over the dims along which `like` was broadcast to the gradient's shape.

    RuntimeError for one known to have another size: it would be written past its array.
    """
    shape, graph = gradient.shape, gradient.graph
    if graph.same_shape(shape, like.shape):
        return gradient
    lead = gradient.ndim - like.ndim
    pairs = list(zip(shape[max(lead, 0) :], like.shape))
    wrong = lead < 0 or any(n not in (1, m) for m, n in pairs if isinstance(m, int) and isinstance(n, int))
    if wrong:
        raise RuntimeError(f"a derivative gives {list(shape)} for a value of size {list(like.shape)}")
    repeated = [d for d in range(gradient.ndim) if d < lead or (like.shape[d - lead] == 1 and shape[d] != 1)]
    dims = tuple(d for d in repeated if shape[d] != 1)
    if dims:
        gradient = graph.add(find("reduce_sum"), (gradient,), (dims, True))
    if lead:
        gradient = graph.add(find("reshape"), (gradient,), (like.shape,))
    return gradient


# -- what is saved ----------------------------------------------------------------------------------


class _Saved:
    """Which values of the forward graph the gradients read, and where each comes from.

    `leaves`: id of a value of the work graph -> its source; `hidden`: forward values to be returned.
    """

    def __init__(self, run: Sweep, wanted: list[Value], redo: bool, worth: frozenset[int]) -> None:
        self.hidden: list[Value] = []
        self.leaves: dict[int, tuple[Source, Value]] = {}
        self._free: dict[int, Source] = {}
        forward, copies = run.forward, run.copies
        for j, y in reversed(list(enumerate(forward.outputs))):
            self._free[id(copies[id(y)])] = ("output", j)
        for i, x in enumerate(forward.inputs):
            self._free[id(copies[id(x)])] = ("input", i)
        for k, seed in run.seeds.items():
            self._free[id(seed)] = ("grad", k)
        for source, value in run.begun.values():
            self._free[id(value)] = source
        nodes = [copies[id(n.out)].node for n in forward.nodes]
        self.costly = {} if redo else _costly([n for n in nodes if n is not None], self._free)
        self.needed = self._walk(wanted, frozenset(id(copies[id(forward.nodes[k].out)]) for k in worth))
        for node in forward.nodes:  # hidden values are numbered in the order they are made
            copied = copies[id(node.out)]
            if id(copied) in self.leaves and id(copied) not in self._free:
                self.leaves[id(copied)] = (("hidden", len(self.hidden)), copied)
                self.hidden.append(node.out)

    def _walk(self, wanted: list[Value], saved: frozenset[int]) -> list[Value]:
        """Sets the leaves (free, saved, or not to be computed again); gives those that are not free."""
        self.leaves = {}
        found: list[Value] = []
        stack, seen = list(wanted), set[int]()
        while stack:
            value = stack.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            again = self.costly.get(id(value), frozenset())
            view = value.node is not None and value.node.op.kind in VIEWS
            if id(value) in self._free:
                self.leaves[id(value)] = (self._free[id(value)], value)
            elif again and not view and (id(value) in again or not again <= saved):
                self.leaves[id(value)] = (("hidden", -1), value)
                found.append(value)
            elif value.node is not None:
                stack.extend(reversed(value.node.inputs))
        return found


def _worth_saving(run: Sweep) -> frozenset[int]:
    """Positions of products and the like that are saved instead of what is needed, being fewer.

    Decided for all gradients of all outputs at once: what fewer gradients need is then hidden for all too.
    """
    forward = run.forward
    totals = [run.sums[id(x)].total for x in run.targets if id(x) in run.sums]
    wanted = [g for g in totals if g is not None]
    saved = _Saved(run, wanted, False, frozenset())
    groups: dict[frozenset[int], list[Value]] = {}
    for value in saved.needed:
        groups.setdefault(saved.costly[id(value)], []).append(value)
    chosen = frozenset().union(
        *(products for products, values in groups.items() if len(products) < _wholes(values, saved.costly))
    )
    return frozenset(k for k, n in enumerate(forward.nodes) if id(run.copies[id(n.out)]) in chosen)


def _wholes(values: list[Value], costly: dict[int, frozenset[int]]) -> int:
    """How many arrays of a product's size these values are: parts that lie side by side are one."""
    parts = [_part(value, costly) for value in values]
    count = parts.count(None)
    for way in {part[:2] for part in parts if part}:
        own = [part[2:] for part in parts if part and part[:2] == way]
        count += max(sum(first <= place < end for first, end in own) for place, _ in own)
    return count


def _part(value: Value, costly: dict[int, frozenset[int]]) -> tuple[int, int, int, int] | None:
    """The slice (number of dims, dim, first place, end) of a product's size that a value is computed from;
    None where it is another, or no slice.
    """
    found = set[tuple[int, int, int, int]]()
    stack, seen = [value], set[int]()
    while stack:
        read = stack.pop()
        if id(read) in seen or read.node is None or not costly.get(id(read)):
            continue
        seen.add(id(read))
        if id(read) in costly[id(read)]:
            return None
        if read.node.op.kind != "slice":
            stack.extend(read.node.inputs)
            continue
        dim, (start, length, step) = read.node.attrs
        known = isinstance(start, int) and isinstance(length, int) and step == 1
        if not known or read.shape != value.shape:
            return None
        found.add((len(read.shape), dim, start, start + length))
    return found.pop() if len(found) == 1 else None


def _costly(nodes: list[Node], free: dict[int, Source]) -> dict[int, frozenset[int]]:
    """For every forward value the products and gathers that computing it again would repeat.

    A reduction is saved wherever it is needed: it repeats itself, and nothing beyond it has to know.
    """
    found: dict[int, frozenset[int]] = {}
    for node in nodes:
        key, kind = id(node.out), node.op.kind
        if key in free or kind in FREE:
            continue
        if kind == "reduce":
            found[key] = frozenset({key})
        elif kind == "pointwise" or kind in VIEWS:
            below = [_beyond(v, found) for v in node.inputs]
            if any(below):
                found[key] = frozenset().union(*below)
        else:
            found[key] = frozenset({key})
    return found


def _beyond(value: Value, found: dict[int, frozenset[int]]) -> frozenset[int]:
    """The costly values that computing an operand again would repeat: none for a reduction's result, as it
    is saved.
    """
    return (
        frozenset()
        if value.node is not None and value.node.op.kind == "reduce"
        else found.get(id(value), frozenset())
    )


# -- the new graph ----------------------------------------------------------------------------------

_ORDER = {"sum": -1, "grad": 0, "input": 1, "output": 2, "hidden": 3, "number": 4, "shape": 5}


def _extract(
    forward: Graph, seeds: dict[int, Value], saved: _Saved, wanted: list[Value]
) -> tuple[Graph, tuple[Source, ...]]:
    """The graph from the leaves to the wanted gradients, with sizes named by its own inputs."""
    leaves = saved.leaves
    alive = reachable(wanted, lambda v: id(v) in leaves)
    nodes = (
        [n for n in wanted[0].graph.nodes if id(n.out) in alive and id(n.out) not in leaves] if wanted else []
    )
    kept = [(source, value) for key, (source, value) in leaves.items() if key in alive]
    grads, shapes = _shape_only(forward, seeds, [v for _, v in kept], nodes)
    kept += [(("grad", k), seeds[k]) for k in grads]
    kept.sort(key=lambda entry: (_ORDER["number" if entry[1].weak else entry[0][0]], entry[0][1]))
    kept += [(("shape", i), forward.inputs[i]) for i in shapes]
    graph = Graph()
    values, replace = _declare(graph, forward, kept)
    for node in nodes:
        attrs = tuple(substitute_attr(a, replace) for a in node.attrs)
        new = graph.add(node.op, tuple(values[id(v)] for v in node.inputs), attrs)
        new.weak = node.out.weak
        values[id(node.out)] = new
    graph.finish([values[id(g)] for g in wanted])
    return graph, tuple(source for source, _ in kept)


def _shape_only(
    forward: Graph, seeds: dict[int, Value], kept: list[Value], nodes: list[Node]
) -> tuple[list[int], list[int]]:
    """The output gradients and forward inputs that are inputs only because a size is read from them.

    Gradients are tried before forward inputs, as they have the shape that operands broadcast to.
    """
    needed: set[int] = set()
    for node in nodes:
        slots_in(node.attrs, needed)
    told: set[int] = set()

    def take(value: Value) -> None:
        slots_in(value.shape, needed)
        told.update(_told(value))

    for value in kept:
        take(value)
    found: tuple[list[int], list[int]] = ([], [])
    for chosen, candidates in zip(found, (seeds.items(), enumerate(forward.inputs))):
        left = dict(candidates)
        while more := [k for k, x in left.items() if (needed - told) & _told(x)]:  # may need sizes themselves
            take(left.pop(more[0]))
            chosen.append(more[0])
        chosen.sort()
    firsts, missing = first_slots(forward), sorted(needed - told)
    assert not missing, f"no input tells the sizes in slots {missing} (inputs begin at {firsts})"
    return found


def _told(x: Value) -> set[int]:
    """The slots that are known once this input (or this number) is there."""
    return {single_slot(d) for d in x.shape} | ({x.slot} if x.weak else set())


def _declare(
    graph: Graph, forward: Graph, kept: list[tuple[Source, Value]]
) -> tuple[dict[int, Value], _Renaming]:
    """The inputs of the new graph; equal sizes of the forward graph become one symbol."""
    replace = _Renaming()
    made: list[Value] = []
    for _, old in kept:
        if old.weak:
            new = graph.add_number(old.dtype)
            replace.names.setdefault(old.slot, symbol(new.slot))
        else:
            new = array_input(graph, old.dtype, tuple(d == 1 for d in old.shape), old.layout is not None)
            for d, size in zip(old.shape, new.shape):
                if single_slot(d) >= 0:
                    replace.names.setdefault(single_slot(d), size)
        made.append(new)
    for (_, old), new in zip(kept, made):
        new.shape = tuple(substitute(d, replace) for d in old.shape)
    return {id(old): new for (_, old), new in zip(kept, made)}, replace


class _Renaming:
    """slot of the forward graph -> size in the new graph."""

    def __init__(self) -> None:
        self.names: dict[int, Dim] = {}

    def __call__(self, slot: int) -> Dim:
        return self.names[slot]
