"""Branches and loops: code that is followed as a block of steps, which become a graph that a node calls.

    block     the steps that a function of no arguments makes, taken out of the recorder's, and what it left:
              the values of names, of lists and attributes that it changed, of tensors that it wrote
    branch    two blocks; what differs between them afterwards is the node's results
    loop      (loops.py) a condition and a body

Names that differ in a way that no graph can hold (of other types or shapes, or set on one side alone) lose
their value, and say why when they are read.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from typing import Any, NamedTuple

from kiln import _core
from kiln.capture.called import CALLED, remembered
from kiln.func.subgraph import attributes, numbered
from kiln.graph import control
from kiln.graph.control import Attrs
from kiln.graph.graph import Graph, Value, building
from kiln.graph.size import Dim, Size
from kiln.scripting.context import Context, Leaving
from kiln.scripting.numbers import KINDS, TYPES, Number, Tensor, dtype_of, kind_of, own, shape_of
from kiln.table.record import CONTROL, constant, find
from kiln.tracing.expand import expand
from kiln.tracing.graphs import add_step
from kiln.tracing.recorder import TracingError
from kiln.tracing.restore import alone
from kiln.tracing.symbolic import plain

BRANCHES = 1000  # of one program, each time that they are followed
Build = Callable[[list[Any]], Any]


class Unset:
    """Stands for the value of a name that has none."""

    def __repr__(self) -> str:
        return "nothing"


UNSET = Unset()
ANY = Unset()  # stands for a value that nobody reads


class Mismatch(Exception):
    """Two values that cannot be one: what each is."""


class Slot:
    """A place whose content a branch may change; `internal`: where it is not set, nobody reads it."""

    def __init__(
        self, name: str, read: Callable[[], Any], write: Callable[[Any], None], internal: bool = False
    ) -> None:
        self.name, self.read, self.write, self.internal = name, read, write, internal


class Result(NamedTuple):
    """What a graph gives: ("value", number of it), ("number", a Python number) or ("zeros", shape)."""

    kind: str
    held: Any
    dtype: str


class Mark:
    """A recorder's state, to go back to."""

    def __init__(self, recorder: Any) -> None:
        self.steps, self.operands = len(recorder.steps), len(recorder.operands)
        self.value = dict(recorder._value)
        self.on = {k: list(v) for k, v in recorder._on.items()}
        self.stale = set(recorder._stale)
        self.kept = len(recorder.kept)
        self.drawn = _core.random_state(), len(recorder.numbers)

    def back(self, recorder: Any) -> None:
        """Goes back; tensors that were met since stay operands, those that were made since are of no use."""
        del recorder.steps[self.steps :], recorder.lines[self.steps :]
        since = recorder.kept[self.kept :]
        recorder._value, recorder._on = dict(self.value), {k: list(v) for k, v in self.on.items()}
        recorder._stale = set(self.stale)
        for k in range(self.operands, len(recorder.operands)):
            recorder._hold(recorder.operands[k], k)
        recorder.ended.update(id(x) for x in since if id(x) not in recorder._value)


class Block:
    """What a function did: its steps, whether an exception ended it, and what it left."""

    def __init__(self) -> None:
        self.steps: list[Any] = []
        self.left: list[Any] = []  # of each slot
        self.extra: dict[Any, tuple[Slot, Any, Any]] = {}  # objects it changed: before, after
        self.written: dict[
            int, tuple[Any, int]
        ] = {}  # tensors that were there and that it wrote: their value
        self.values: dict[int, int] = {}  # id of a tensor -> the value that it has at the end
        self.dead = False


def follow(context: Context, slots: list[Slot], run: Callable[[], Any]) -> Block:
    """A block: runs a function, takes its steps and puts everything back as it was."""
    recorder = context.recorder
    context.branches += 1
    if context.branches > BRANCHES:
        context.refuse(f"has more than {BRANCHES} branches that depend on values, in functions it calls too")
    mark, made = Mark(recorder), Block()
    before = [s.read() for s in slots]
    trying, context.trying = context.trying, 0
    around, context.trying_outside = context.trying_outside, context.trying_outside + trying
    log: dict[Any, tuple[Slot, Any]] = {}
    context.logs.append(log)

    def undo() -> None:
        mark.back(recorder)
        for slot, old in log.values():
            slot.write(old)
        for slot, value in zip(slots, before):
            slot.write(value)

    try:
        run()
    except Leaving:
        made.dead = True
    except TracingError:
        undo()
        raise
    finally:
        context.logs.pop()
        context.trying, context.trying_outside = trying, around
    if (_core.random_state(), len(recorder.numbers)) != mark.drawn:
        context.refuse("draws random numbers in a branch or loop that depends on values: draw them before")
    made.left = [s.read() for s in slots]
    made.extra = {key: (slot, old, slot.read()) for key, (slot, old) in log.items()}
    for x in tensors_in([made.left, [after for _, _, after in made.extra.values()]]):
        made.values[id(own(x))] = recorder.value(own(x))
    for over in mark.on.values():
        whole = over[0]
        if recorder._value[id(whole)] != mark.value.get(id(whole)):
            made.written[id(whole)] = whole, recorder.value(whole)
    for k in range(mark.operands, len(recorder.operands)):
        x = recorder.operands[k]
        if recorder._value[id(x)] != k:
            made.written[id(x)] = x, recorder.value(x)
    made.steps = list(recorder.steps[mark.steps :])
    undo()
    return made


def tensors_in(value: Any) -> list[Any]:
    """The tensors that a value holds, those of Numbers among them."""
    leaves, _, _ = unpack(value)
    return [x.tensor if isinstance(x, Number) else x for x in leaves if isinstance(x, (Tensor, Number))]


# -- values -----------------------------------------------------------------------------------------


def unpack(value: Any) -> tuple[list[Any], Any, Build]:
    """(tensors and numbers in a value, what it is without them, what makes it again)."""
    if isinstance(value, (Tensor, Number, bool, int, float, Size)):
        return [value], None, lambda r: r[0]
    if (
        type(value) is dict
        or (isinstance(value, (tuple, list)) and type(value).__init__ is object.__init__)
        or (type(value) in (list, tuple))
    ):
        parts = [unpack(v) for v in (value.values() if isinstance(value, dict) else value)]
        leaves = [x for p in parts for x in p[0]]
        keys = tuple(value) if isinstance(value, dict) else None

        def build(r: list[Any]) -> Any:
            items, at = [], 0
            for own, _, made in parts:
                items.append(made(r[at : at + len(own)]))
                at += len(own)
            if keys is not None:
                return dict(zip(keys, items))
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)

        return leaves, (type(value), keys, tuple([p[1] for p in parts])), build
    return [], Other(value), lambda _: value


class Other:
    """What is neither a container nor a leaf: equal if it is the same."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Other):
            return False
        plain = (str, bytes, range, slice, complex, _core.dtype)
        a, b = self.thing, other.thing
        return a is b or (isinstance(a, plain) and type(a) is type(b) and bool(a == b))

    __hash__ = None  # type: ignore[assignment]


def same(a: Any, b: Any) -> bool:
    """Whether a leaf is what it was, without a look at tensors' values."""
    if isinstance(a, Number) and isinstance(b, Number):
        return a.kind is b.kind and a.tensor is b.tensor
    if isinstance(a, Tensor) or isinstance(a, Size):
        return own(a) is own(b) or (isinstance(a, Size) and isinstance(b, Size) and plain(a) is plain(b))
    return a is b or (type(a) is type(b) and isinstance(a, (bool, int, float)) and repr(a) == repr(b))


def unchanged(a: Any, b: Any) -> bool:
    """Whether a value is what it was."""
    one, other = unpack(a), unpack(b)
    return bool(one[1] == other[1]) and len(one[0]) == len(other[0]) and all(map(same, one[0], other[0]))


def told(value: Any) -> str:
    """What a value is, in a few words."""
    if isinstance(value, Tensor):
        return f"a {dtype_of(value)} tensor of shape {tuple(value.shape)!r}"
    if isinstance(value, Number):
        return f"a number ({value.kind.__name__})"
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    if value is UNSET:
        return "nothing (it is not set)"
    plain = isinstance(value, (int, float, str, bool, type(None)))
    return repr(value) if plain else f"a {type(value).__name__}"


def look_of(x: Any, other: Any) -> tuple[type | None, str, tuple[int, ...]]:
    """(its kind, if it is a number; dtype; shape) of two leaves; Mismatch if they have not the same."""
    if isinstance(x, Tensor) and isinstance(other, Tensor):
        looks = [(None, dtype_of(v), shape_of(v)) for v in (x, other)]
    else:
        looks = [_look(v) for v in (x, other)]
    if looks[0] != looks[1]:
        raise Mismatch(f"{told(x)} and {told(other)}")
    return looks[0]


def _look(x: Any) -> tuple[Any, str, tuple[int, ...]]:
    if isinstance(x, Tensor):
        return None, dtype_of(x), shape_of(x)
    kind = kind_of(x)
    return kind, KINDS[kind], ()


class Merge:
    """Values of two branches as values that a node gives."""

    def __init__(self, a: Block, b: Block, context: Context) -> None:
        self.sides, self.context = (a, b), context
        self.pairs: list[tuple[Result, Result]] = []
        self.aliases: list[tuple[int, Any]] = []  # (result, a tensor that was there and that it may be)

    def value(self, x: Any, y: Any) -> Build:
        """What makes the value of the node's results; Mismatch where there is none."""
        if x is ANY or y is ANY:
            have = y if x is ANY else x
            leaves, _, build = unpack(have)
            made = [self._leaf(*((ANY, v) if x is ANY else (v, ANY))) for v in leaves]
        else:
            (leaves, outline, build), (others, outline2, _) = unpack(x), unpack(y)
            if outline != outline2 or len(leaves) != len(others):
                raise Mismatch(f"{told(x)} and {told(y)}")
            made = [self._leaf(a, b) for a, b in zip(leaves, others)]
        return lambda r: build([f(r) for f in made])

    def _leaf(self, x: Any, y: Any) -> Build:
        have = y if x is ANY else x
        known = self.context.recorder._value
        if x is ANY or y is ANY:
            tensor = have.tensor if isinstance(have, Number) else own(have)
            if not isinstance(have, (Tensor, Number)) or id(tensor) in known:
                return lambda _: have
            look = _look(have)
        elif same(x, y):
            return lambda _: have
        else:
            look = look_of(x, y)
        kind, dtype, shape = look
        zeros = Result("zeros", shape, dtype)
        k = len(self.pairs)
        one, other = [
            zeros if v is ANY else result_of(v, side, self.context, dtype)
            for v, side in zip((x, y), self.sides)
        ]
        self.pairs.append((one, other))
        for v in (x, y):
            if isinstance(v, Tensor) and id(own(v)) in known:
                self.aliases.append((k, own(v)))
        if kind is None:
            return lambda r: r[k]
        return lambda r: Number(kind, r[k])

    def written(self, whole: Any) -> int:
        """Which result is what a tensor holds afterwards."""
        before, dtype = self.context.recorder._value[id(whole)], dtype_of(whole)
        one, other = [Result("value", s.written.get(id(whole), (None, before))[1], dtype) for s in self.sides]
        self.pairs.append((one, other))
        return len(self.pairs) - 1


def result_of(x: Any, block: Block, context: Context, dtype: str) -> Result:
    """A leaf that a block left as a result of its graph."""
    if not isinstance(x, (Tensor, Number)):
        return Result("number", plain(x), dtype)
    key = id(x.tensor if isinstance(x, Number) else own(x))
    return Result("value", block.values[key] if key in block.values else context.recorder._value[key], dtype)


def branch(
    context: Context, flag: Number, slots: list[Slot], yes: Any, no: Any, may_fail: bool = False
) -> dict[int, str] | None:
    """Follows both sides and puts what they left where they left it: of slots that have no value now, why.
    `may_fail`: None, with all as it was, where not all names have a value then.
    """
    recorder = context.recorder
    try:
        a = follow(context, slots, yes)
        b = follow(context, slots, no)
    except TracingError:
        if not may_fail:
            raise
        recorder.failure = None
        return None
    merge = Merge(a, b, context)
    writes: list[tuple[Slot, Build]] = []
    lost: dict[int, str] = {}
    for k, (slot, x, y) in enumerate(zip(slots, a.left, b.left)):
        if slot.name != FAILURE:
            x, y = ANY if a.dead else x, ANY if b.dead else y
        if x is UNSET and y is UNSET or x is ANY and y is ANY:
            continue
        if slot.internal:
            x, y = ANY if x is UNSET else x, ANY if y is UNSET else y
        if x is UNSET or y is UNSET:
            lost[k] = (
                "is not set in the branch that goes on"
                if x is ANY or y is ANY
                else "is set in one branch alone"
            )
            continue
        pairs, aliases = len(merge.pairs), len(merge.aliases)
        try:
            writes.append((slot, merge.value(x, y)))
        except Mismatch as error:
            del merge.pairs[pairs:], merge.aliases[aliases:]
            lost[k] = f"is {error} after the two branches"
    if lost and may_fail:
        return None
    for key in {**a.extra, **b.extra}:
        slot, old, _ = a.extra.get(key) or b.extra[key]
        x = ANY if a.dead else a.extra[key][2] if key in a.extra else old
        y = ANY if b.dead else b.extra[key][2] if key in b.extra else old
        if x is ANY and y is ANY:
            continue
        try:
            made = merge.value(x, y)
        except Mismatch as error:
            context.refuse(f"changes {slot.name} in a branch on values, which would be {error}")
        writes.append((slot, made))
        context.changed(key, slot, old)
    wholes = {key: w for s in (a, b) if not s.dead for key, (w, _) in s.written.items()}
    spots = {key: merge.written(w) for key, w in wholes.items()}
    results = _called(context, flag, a, b, merge)
    for slot, build in writes:
        slot.write(build(results))
    for k, x in merge.aliases:
        recorder.may_be(own(results[k]), x)
    for key, k in spots.items():
        wholes[key].copy_(own(results[k]))
    if a.dead and b.dead:
        raise Leaving
    return lost


FAILURE = "what was raised"


# -- graphs -----------------------------------------------------------------------------------------


def needed(steps: list[Any], results: list[Result]) -> tuple[list[Any], list[int]]:
    """The steps that results need, and the values that they need of what is around."""
    wanted = {r.held for r in results if r.kind == "value"}
    kept = []
    for step in reversed(steps):
        if wanted.intersection(step.outs):
            kept.append(step)
            wanted.update(k for kind, k in step.args if kind == "value")
    made = {k for step in kept for k in step.outs}
    return kept[::-1], sorted(wanted - made)


def graph_of(context: Context, steps: list[Any], inputs: list[int], results: list[Result]) -> Graph:
    """Steps as a graph of so many values, in the sizes of the trace."""
    recorder = context.recorder
    graph = Graph()
    values: dict[int, Value] = {}
    sizes: Any = ChainMap(recorder.shapes, recorder.sizes) if recorder.shapes else recorder.sizes
    for k in inputs:
        values[k] = graph.add_input(recorder._dtype_of(k), tuple(recorder.sizes_of(k)))
    with building(graph):
        for step in steps:
            add_step(graph, step, values, sizes)
        outputs = []
        for r in results:
            if r.kind == "value":
                outputs.append(values[r.held])
                continue
            held = (
                r.held if r.kind == "number" else TYPES.get(r.dtype, float if "float" in r.dtype else int)(0)
            )
            made = graph.add(find("convert"), (constant(graph, held),), (r.dtype,))
            if r.kind == "zeros" and r.held:
                made = graph.add(find("expand"), (made,), (r.held,))
            outputs.append(made)
    return expand(graph.finish(outputs))


def holders(recorder: Any) -> dict[int, Any]:
    """By value: a tensor that has it now."""
    kept = {id(x): x for x in recorder.kept}
    return {k: kept[i] for i, k in recorder._value.items() if i not in recorder._stale}


def emit(
    context: Context,
    name: str,
    given: list[Any],
    counts: tuple[int, int, int],
    graphs: list[Graph],
    length: Dim = 0,
) -> list[Any]:
    """A call of graphs: its results as tensors, one more step of the recorder. `length`: of a scan, how many
    steps it has.
    """
    recorder = context.recorder
    around = Graph()  # in the sizes of the trace, as the graphs are
    inputs = [around.add_input(dtype_of(x), recorder.shape_of(own(x))) for x in given]
    sizes, called = numbered(graphs)
    made = control.add(around, CONTROL[name], inputs, attributes(counts, (length, False), sizes, called))
    if around.checks:
        a, b = around.checks[0]
        context.refuse(
            f"has a branch or loop on values that makes {recorder.known.text(a)} equal "
            f"{recorder.known.text(b)}, which not all declared sizes are"
        )
    node = made[0].node
    assert node is not None
    root, further = alone(node, Attrs(*node.attrs))
    return recorder.results_of(
        CALLED,
        (len(given), remembered(root), len(further)),
        list(map(own, given)),
        [(v.dtype, tuple(map(around.canonical, v.shape))) for v in made],
        further,
    )


def _called(context: Context, flag: Number, a: Block, b: Block, merge: Merge) -> list[Any]:
    """The results of the pairs of a merge."""
    if not merge.pairs:
        return []
    sides = [[p[k] for p in merge.pairs] for k in (0, 1)]
    kept, inputs = [], list[int]()
    for block, results in zip((a, b), sides):
        steps, outer = needed(block.steps, results)
        kept.append(steps)
        inputs += [k for k in outer if k not in inputs]
    held = holders(context.recorder)
    given = [held[k] for k in inputs]
    graphs = [graph_of(context, s, inputs, r) for s, r in zip(kept, sides)]
    return emit(context, "cond", [flag.tensor, *given], (0, 0, 0), graphs)
