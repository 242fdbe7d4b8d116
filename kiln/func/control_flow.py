"""Control flow as calls of whole graphs: `cond`, `while_loop`, `scan` and `map`.

On values of a graph under construction a call becomes nodes of it. On tensors the functions become graphs
once, and the call is one op of the core, with the derivatives those graphs have. What is met on the way
(tensors that a function closes over) is operands of that op, so its gradients go there too.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

from kiln import _core
from kiln.capture.called import CALLED, called
from kiln.capture.pure.guards import Place, entries_of
from kiln.func.subgraph import (
    DrawsError,
    Root,
    Tensor,
    Traced,
    as_value,
    attributes,
    close,
    innermost,
    outside,
    trace,
    where_of,
)
from kiln.func.tree import flatten
from kiln.graph import control
from kiln.graph.graph import Graph, Value, building
from kiln.graph.size import Dim, substitute
from kiln.graph.text import text
from kiln.table.arguments import recorder_here
from kiln.table.callables import hide_frames
from kiln.table.record import CONTROL, find

Build = Callable[[list[Any]], Any]
Emit = Callable[[Graph, list[Value]], "tuple[list[Value], Build]"]
KEPT = 256  # calls whose graphs are kept
MOST_PLACES = 500  # that are looked at again at every call


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """`true_fn(*operands)` where `pred` holds, else `false_fn(*operands)`: one of them runs.

    `pred`: a tensor of one element, or a bool, which chooses at once. Both functions take the operands (a
    tuple of tensors, or of lists, tuples and dicts of them) and give results of the same structure, shapes
    and dtypes. Gradients go through the branch that ran; what only the other one reads gets zeros. Where one
    draws random numbers, `pred` is read, and the branch runs as it is, which no trace can.
    RuntimeError for anything else, which names the result that differs.

    >>> import kiln
    >>> x = kiln.tensor([1.0, -2.0])
    >>> kiln.graph.cond(x.sum() > 0, lambda x: x.sin(), lambda x: -x, (x,))
    tensor([-1.,  2.])
    """
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("cond: Expect both branches to be callable.")
    if not isinstance(pred, (bool, int, float, Tensor, Value)):
        raise RuntimeError(f"Expected pred to be bool or tensor, but got {pred}.")
    leaves, build = _operands("operands", operands)
    if isinstance(pred, (bool, int, float)):
        warnings.warn(
            "Pred is a Python constant. When used with cond, it specializes on one of the branches. "
            "If you want cond to preserve two branches, please make the predicate a boolean tensor.",
            UserWarning,
            stacklevel=2,
        )
        return (true_fn if pred else false_fn)(*operands)
    if any(n != 1 for n in pred.shape):
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred}.")

    def emit(graph: Graph, given: list[Value]) -> tuple[list[Value], Build]:
        flag = _flag(given[0])
        looks = [(v.dtype, v.shape) for v in given[1:]]
        branches = [trace(graph, f, looks, build, "cond") for f in (true_fn, false_fn)]
        yes, no = branches
        if len(yes.results) != len(no.results):
            raise RuntimeError(
                f"cond: {yes.where} gives {len(yes.results)} results, {no.where} {len(no.results)}"
            )
        outputs: list[list[Value]] = [[], []]
        for k, (a, b) in enumerate(zip(yes.results, no.results)):
            own = [x.dtype if isinstance(x, Value) and not x.weak else "" for x in (a, b)]
            pair = [as_value(t.graph, x, other) for t, x, other in zip(branches, (a, b), reversed(own))]
            what = f"cond: result {k} of {yes.where} and of {no.where}"
            _same(graph, what, pair[0], pair[1])
            for side, value in zip(outputs, pair):
                side.append(value)
        captured, sizes, graphs = close(graph, branches, outputs)
        attrs = attributes((0, 0, 0), (0, False), sizes, graphs)
        inputs = [flag, *given[1:], *captured]
        return _add(graph, "cond", inputs, attrs), yes.build

    try:
        return _run(("cond", outline(operands)), (true_fn, false_fn), [pred, *leaves], emit)
    except DrawsError:
        if not _is_read([pred, *leaves]):
            raise
    return (true_fn if bool(pred) else false_fn)(*build(leaves))


def _is_read(given: list[Any]) -> bool:
    """Whether values of tensors can be read here: in no graph, nor in a trace that refuses that."""
    recorder = recorder_here(*given)
    if innermost() is not None or (recorder is not None and recorder.on_data != "check"):
        return False
    return all(issubclass(type(x), Tensor) for x in given)


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any) -> Any:
    """`carried = body_fn(*carried)` while `cond_fn(*carried)`: the last of them.

    `carried_inputs`: a tuple of tensors and numbers, or of lists, tuples and dicts of them, or one tensor.
    `cond_fn` gives one element, `body_fn` the structure, shapes and dtypes it is given. Numbers become
    tensors of no dims. The loop runs without Python, and Ctrl-C stops it. Its gradient runs it again to know
    its number of steps and keeps the state of every step.
    RuntimeError where the body changes a shape or dtype.

    >>> import kiln
    >>> two = kiln.tensor(2.0)
    >>> def newton(x):
    ...     return (x + two / x) / 2
    >>> kiln.graph.while_loop(lambda x: (x * x - two).abs() > 1e-6, newton, kiln.tensor(1.0))
    tensor(1.4142)
    """
    key, results, together = _again("while_loop", (cond_fn, body_fn), carried_inputs)
    if results is not None and together is not None:
        return together(results)
    if not callable(cond_fn) or not callable(body_fn):
        raise RuntimeError("while_loop: Expect cond_fn and body_fn to be callable.")
    leaves, build, many = _state("carried_inputs", carried_inputs)

    def emit(graph: Graph, given: list[Value]) -> tuple[list[Value], Build]:
        looks = [(v.dtype, v.shape) for v in given]
        condition = trace(graph, cond_fn, looks, build, "while_loop")
        body = trace(graph, body_fn, looks, build, "while_loop")
        if len(condition.results) != 1:
            raise RuntimeError(
                f"while_loop: {condition.where} gives {len(condition.results)} results, not one"
            )
        flag = _flag(as_value(condition.graph, condition.results[0]))
        outputs = _kept_state(graph, "while_loop", body, body.results, given)
        captured, sizes, graphs = close(graph, [condition, body], [[flag], outputs])
        attrs = attributes((len(given), 0, len(captured)), (0, False), sizes, graphs)
        return _add(graph, "while_loop", [*given, *captured], attrs), many

    return _run(("while_loop", outline(carried_inputs)), (cond_fn, body_fn), leaves, emit, key)


def scan(
    combine_fn: Callable[[Any, Any], Any],
    init: Any,
    xs: Any,
    *,
    dim: int = 0,
    reverse: bool = False,
    length: int | None = None,
) -> tuple[Any, Any]:
    """`carry, y = combine_fn(carry, x)` for every part x of `xs` along `dim`: the last carry, and all y
    stacked along a new first dim.

    `init`, `xs`: tensors (and, of `init`, numbers), or lists, tuples and dicts of them; `xs` of one length
    along `dim`, or nothing: then there are `length` steps. `reverse`: from the last part to the first; y
    number k is that of part k all the same. Of no parts, `init` itself and nothing stacked.
    RuntimeError where the carry changes its structure, a shape or dtype, or where lengths differ.

    >>> import kiln
    >>> kiln.graph.scan(lambda c, x: (c + x, c * x), kiln.tensor(0.0), kiln.arange(4.0))
    (tensor(6.), tensor([0., 0., 2., 9.]))
    """
    if not callable(combine_fn):
        raise RuntimeError(f"scan: Combine_fn must be a callable, but got {combine_fn}")
    leaves, build, _ = _state("init", init)
    parts, build_parts = _parts("scan", "xs", xs, dim)
    count = len(leaves)
    if not parts and length is None:
        raise RuntimeError("scan: with nothing to go along, say how many steps there are: length=")

    def call(x: list[Any]) -> tuple[Any, Any]:
        carry = build(x[:count])
        return (carry if _is_many(init) else carry[0]), build_parts(x[count:])

    def emit(graph: Graph, given: list[Value]) -> tuple[list[Value], Build]:
        state, each = given[:count], given[count:]
        steps: Dim = each[0].shape[0] if each else length or 0
        for k, value in enumerate(each):
            graph.require_equal(value.shape[0], steps, f"scan: the lengths of xs[0] and xs[{k}]")
        looks = [(v.dtype, v.shape) for v in state] + [(v.dtype, v.shape[1:]) for v in each]
        split: list[Any] = []

        def body(carry: Any, x: Any) -> Any:
            made = combine_fn(carry, x)
            if not isinstance(made, tuple) or len(made) != 2:
                raise RuntimeError(
                    f"scan: {where_of(combine_fn)} gives the next carry and what to stack, a tuple of two"
                )
            split[:] = [flatten(made[0]), flatten(made[1]) if made[1] is not None else ([], lambda _: None)]
            return [*split[0][0], *split[1][0]]

        traced = trace(graph, body, looks, call, "scan")
        traced.where = where_of(combine_fn)
        (own, again), (ys, rebuild) = split
        if len(own) != count:
            raise RuntimeError(f"scan: {traced.where} gives a carry of {len(own)} tensors for {count}")
        outputs = _kept_state(graph, "scan", traced, traced.results[:count], state)
        outputs += [as_value(traced.graph, y) for y in traced.results[count:]]
        captured, sizes, graphs = close(graph, [traced], [outputs])
        attrs = attributes((count, len(each), len(captured)), (steps, reverse), sizes, graphs)
        made = _add(graph, "scan", [*given, *captured], attrs)
        return made, lambda r: (again(r[:count]), rebuild(r[count:]))

    name = "scan", reverse, length, outline(init), outline(xs)
    found: tuple[Any, Any] = _run(name, (combine_fn,), [*leaves, *parts], emit)
    return found


def map(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """`f(x, *args)` for every part x of `xs` along its first dim, one after the other: the results stacked.

    `xs`: a tensor, or lists, tuples and dicts of tensors of one length. What `f` computes for one part has
    the bits it has alone; `kiln.vmap` computes all at once.

    >>> import kiln
    >>> kiln.graph.map(lambda x, y: x.sum() * y, kiln.ones(2, 3), kiln.tensor(2.0))
    tensor([6., 6.])
    """
    _parts("map", "xs", xs, 0)  # whose errors name it
    return scan(lambda none, x: ((), f(x, *args)), (), xs)[1]


# -- arguments --------------------------------------------------------------------------------------


def outline(tree: Any) -> Any:
    """The structure of a tree without its leaves: equal for trees that are built alike."""
    if isinstance(tree, dict):
        return type(tree), tuple((k, outline(v)) for k, v in tree.items())
    return (type(tree), *[outline(v) for v in tree]) if isinstance(tree, (tuple, list)) else None


def _is_many(tree: Any) -> bool:
    return isinstance(tree, (tuple, list, dict))


def _operands(name: str, operands: Any) -> tuple[list[Any], Build]:
    leaves, build = flatten(operands) if isinstance(operands, (tuple, list)) else ([None], list)
    if not all(isinstance(x, (Tensor, Value)) for x in leaves):
        raise RuntimeError(
            f"Expect {name} to be a tuple of possibly nested dict/list/tuple that only consists of tensor "
            f"leaves, but got {operands}."
        )
    return leaves, build


def _state(name: str, tree: Any) -> tuple[list[Any], Build, Build]:
    """The leaves of a state as tensors, its function's arguments from values, and its results' structure."""
    leaves, build = flatten(tree)
    for k, x in enumerate(leaves):
        if not isinstance(x, (Tensor, Value, bool, int, float)):
            raise RuntimeError(f"{name}: expected tensors and numbers, got {type(x).__name__} at {k}")
    if isinstance(tree, (tuple, list)):
        return leaves, build, build
    return leaves, lambda x: (build(x),), build


def _as_tensor(x: Any) -> Any:
    """A number as a tensor of no dims."""
    dtype = {bool: "bool", int: "int64"}.get(type(x), _core.default_dtype_name())
    return find("full").handle(x, (), dtype)


def _parts(asked: str, name: str, tree: Any, dim: int) -> tuple[list[Any], Build]:
    leaves, build = flatten(tree) if tree is not None else ([], lambda _: None)
    for k, x in enumerate(leaves):
        if not isinstance(x, (Tensor, Value)):
            raise RuntimeError(f"{asked}: All {name} leaves must be a Tensor, got {type(x).__name__} at {k}")
        if x.ndim == 0 or not -x.ndim <= dim < x.ndim:
            raise RuntimeError(f"{asked}: leaf {k} of {name}, of {x.ndim} dims has no dim {dim} to go along")
    if dim:
        leaves = [
            find("permute").handle(x, _first(dim % x.ndim, x.ndim)) if x.ndim > 1 else x for x in leaves
        ]
    lengths = {x.shape[0] for x in leaves if isinstance(x, Tensor)}
    if len(lengths) > 1:
        raise RuntimeError(
            f"{asked}: leaves of one length expected in {name} along dim {dim}, got {sorted(lengths)}"
        )
    return leaves, build


def _first(dim: int, ndim: int) -> tuple[int, ...]:
    return (dim, *(d for d in range(ndim) if d != dim))


# -- nodes ------------------------------------------------------------------------------------------


def _flag(value: Value) -> Value:
    """One element as a bool of no dims."""
    graph = value.graph
    if value.weak or value.dtype != "bool":
        value = graph.add(find("convert"), (value,), ("bool",))
    for n in value.shape:
        graph.require_equal(n, 1, "a condition is one element")
    return value if not value.shape else graph.add(find("reshape"), (value,), ((),))


def _same(graph: Graph, what: str, a: Value, b: Value) -> None:
    """Two values look alike, or an error says that they do not."""
    if a.dtype == b.dtype and a.ndim == b.ndim:
        try:
            for m, n in zip(a.shape, b.shape):
                graph.require_equal(m, n, what)
            return
        except ValueError:
            pass
    raise RuntimeError(f"{what} must look the same, got {a!r} and {b!r}")


def _kept_state(graph: Graph, name: str, body: Traced, results: list[Any], state: list[Value]) -> list[Value]:
    """What a body gives for its state, which may not change its shapes and dtypes."""
    if len(results) != len(state):
        raise RuntimeError(f"{name}: {body.where} gives {len(results)} values for a state of {len(state)}")
    outputs = []
    for k, (x, before) in enumerate(zip(results, state)):
        value = as_value(body.graph, x, before.dtype)
        what = f"{name}: value {k} of the state before and after {body.where}"
        _same(graph, what, before, value)
        outputs.append(value)
    return outputs


def _add(graph: Graph, name: str, inputs: list[Value], attrs: control.Attrs) -> list[Value]:
    return control.add(graph, CONTROL[name], inputs, attrs)


# -- calls ------------------------------------------------------------------------------------------


class _Made(NamedTuple):
    """A call on tensors that was built: the text of its graph, the tensors it met, how results are put
    together; as long as `places` hold what they held.
    """

    text: str
    met: list[Any]
    build: Build
    places: list[Place]
    alive: tuple[Any, ...]  # what the key names by its id


_made: OrderedDict[Any, _Made] = OrderedDict()


# the same by what is at hand of a call of tensors; what the core is called with, how places are asked
_calls: dict[Any, tuple[_Made, tuple[int, str, int], list[tuple[Callable[[Any], Any], Any, Any]]]] = {}


def _again(name: str, functions: tuple[Any, ...], state: Any) -> tuple[Any, list[Any] | None, Build | None]:
    """What a call of tensors is looked for by, None where it is of others; and, of one whose sizes, functions
    and what they close over are those of an earlier one, its results and what puts them together.
    """
    many = type(state) is tuple
    given = state if many else (state,)
    key: list[Any] = [name, many, _core.default_dtype_name()]
    for x in given:
        if type(x) is not Tensor:
            return None, None, None
        key += (x.dtype, x.shape)
    for f in functions:
        if type(f) is not FunctionType or f.__defaults__:
            return None, None, None
        key.append(id(f.__code__))
        for cell in f.__closure__ or ():
            key.append(id(cell.cell_contents))
    whole = tuple(key)
    found = _calls.get(whole)
    if found is None or innermost() is not None:
        return whole, None, None
    made, structure, places = found
    for get, at, held in places:
        if get(at) is not held:
            return whole, None, None
    results = _core.call_op(CALLED.handle, structure, (*given, *made.met))
    return whole, list(results), made.build


def _remember(key: Any, functions: tuple[Any, ...], made: _Made, count: int) -> None:
    """Has calls found by what is at hand of them: what the functions themselves close over is in the key."""
    if len(_calls) >= KEPT:
        _calls.clear()
    known = {(id(cell), None) for f in functions for cell in f.__closure__ or ()}
    places = [p for at, p in {(id(p.container), p.key): p for p in made.places}.items() if at not in known]
    asked: list[tuple[Callable[[Any], Any], Any, Any]] = [
        (p.container.get if type(p.container) is dict else partial(_held, p), p.key, p.held) for p in places
    ]
    _calls[key] = made, (count, made.text, 0), asked


def _held(place: Place, key: Any) -> Any:
    """What is there; the place itself, which nothing holds, where nothing is."""
    return place.held if place.holds() else place


def _run(name: Any, functions: tuple[Any, ...], given: list[Any], emit: Emit, quick: Any = None) -> Any:
    """Adds nodes where values are given or a function that meets tensors is being built; else calls an op."""
    value = next((x for x in given if isinstance(x, Value)), None)
    around = innermost() or (None if value is None else value.graph)
    if around is not None:
        inside = [
            as_value(around, outside(around, x) if isinstance(x, (Tensor, Value)) else x) for x in given
        ]
        results, rebuild = emit(around, inside)
        return rebuild(results)
    given = [x if isinstance(x, Tensor) else _as_tensor(x) for x in given]
    key, alive = _key(name, functions, given)
    found = _made.get(key)
    if found is None or not all(p.holds() for p in found.places):
        found = _build(functions, given, emit, alive)
        if found.places is not None:
            _made[key] = found
            while len(_made) > KEPT:
                _made.popitem(last=False)
    if not found.text:
        return found.build([])  # nothing is computed
    try:
        results = called(found.text, [*given, *found.met])
        if quick is not None and found.places is not None:
            _remember(quick, functions, found, len(given) + len(found.met))
    except ValueError:
        found = _build(functions, given, emit, alive, fixed=True)
        results = called(found.text, [*given, *found.met])
    return found.build(results)


def _build(
    functions: tuple[Any, ...], given: list[Any], emit: Emit, alive: tuple[Any, ...], fixed: bool = False
) -> _Made:
    """Builds a call; of sizes that are not known, or, where that fails, of those that are given."""
    root = Root(fixed)
    try:
        with building(root):
            inputs = [root.operand(x) for x in given]
            results, rebuild = emit(root, inputs)
        _agreed(root, [*given, *root.met])
    except Exception:
        if fixed:
            raise
        return _build(functions, given, emit, alive, fixed=True)
    root.finish(results)
    made = text(root) if results else ""
    return _Made(made, root.met, rebuild, _places(functions), alive)


def _agreed(root: Root, tensors: list[Any]) -> None:
    """Raises where sizes must be equal that are not those of the tensors."""
    env = [n for x in tensors for n in x.shape]
    for a, b in root.checks:
        if substitute(a, env.__getitem__) != substitute(b, env.__getitem__):
            raise ValueError(f"{a} and {b} differ")


def _places(functions: tuple[Any, ...]) -> list[Place]:
    """Where functions find what they meet."""
    found: list[Place] = []
    seen: set[int] = set()
    queue = list(functions)
    while queue and len(found) < MOST_PLACES:
        thing = queue.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        for entry in entries_of(thing):
            if entry.container is not None:
                found.append(entry)
            queue.append(entry.held)
    return found


def _key(name: Any, functions: tuple[Any, ...], given: list[Any]) -> tuple[Any, tuple[Any, ...]]:
    """What tells calls apart, and what must live for that."""
    alive: list[Any] = []
    names: list[Any] = []
    for f in functions:
        code = getattr(f, "__code__", None)
        if code is None or getattr(f, "__self__", None) is not None:
            alive.append(f)
            names.append(id(f))
            continue
        held = [c.cell_contents for c in f.__closure__ or ()] + list(f.__defaults__ or ())
        alive += [code, *held]
        names.append((id(code), *[id(x) for x in held]))
    looks = tuple((x.dtype.name, tuple(isinstance(n, int) and n == 1 for n in x.shape)) for x in given)
    return (name, tuple(names), looks, _core.default_dtype_name()), tuple(alive)


hide_frames(globals(), ("cond", "while_loop", "scan", "map"))
