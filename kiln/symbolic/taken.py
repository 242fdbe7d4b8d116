"""The part of a definition that some outputs need, as `capture` gives the graph of a function."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from kiln.errors import describe, message
from kiln.graph.size import Dim, Size, slots_named, substitute
from kiln.symbolic.definition import Definition
from kiln.symbolic.sizes import respelled
from kiln.tracing.capture import add_checks, set_histories
from kiln.tracing.captured import Captured, Expected, Input, State
from kiln.tracing.restore import _FIRST, Restored
from kiln.tracing.sizes import Guard
from kiln.tracing.symbolic import Traced, plain
from kiln.tracing.trees import LEAF, Tree, constants, flatten


class _Number(NamedTuple):
    """A number that is drawn at each run."""

    dtype: str = "int64"


class Taken(Restored):
    """Steps of a definition, numbered by the operands of one graph."""

    def __init__(self, definition: Definition, inputs: list[int], results: list[int]) -> None:
        self.definition = definition
        self.operands: list[Any] = []
        self.numbers: list[Any] = []
        self.steps = []
        self.lines: list[str] = []
        self.sizes, self.dtypes, self.values = {}, {}, {}
        self.varying: dict[int, tuple[Any, ...]] = {}  # sizes in general, as the graph has them
        self.drawn: list[int] = []  # which of the definition's numbers
        self._of: dict[int, int] = {}  # the definition's value -> the graph's
        for k in inputs:
            self._operand(k)
        makers = {k: at for at, step in enumerate(definition.steps) for k in step.outs}
        self.calls: set[int] = set()  # those that results need: what they write is written
        needed, constants = self._needs(results, makers)
        definition.number_steps(0)
        while not self.calls.issuperset(calls := {definition.calls[at] for at in needed}):
            self.calls |= calls
            needed, constants = self._needs([*results, *self._last().values()], makers)
        # what ops ask of values on the lines of these steps, where the inputs say it
        lines = {definition.lines[at] for at in needed}
        self.expected: list[tuple[int, type[Exception], str]] = []
        for (k, kind, text), line in zip(definition.expected, definition.expected_at):
            steps, more = self._needs([k], makers)
            if line in lines and definition.names.keys().isdisjoint(more):
                needed, constants = needed | steps, constants | more
                self.expected.append((k, kind, text))
        self.constants = sorted(constants)  # of the definition's operands
        for k in self.constants:
            self._operand(k)
        for at in sorted(needed):
            self._step(at)
        self.results = [self._of[self._now(k)] for k in results]
        # what is in tensors of the program afterwards, by operand: a value of the graph
        self.written = {own: self._of[k] for own, k in self._last().items()}

    def _last(self) -> dict[int, int]:
        """The last value that each tensor of the program is given, by operand."""
        writes = self.definition.overwritten.items()
        return {write.operand: k for k, write in writes if write.call in self.calls}

    def _now(self, k: int) -> int:
        """A value, but of a tensor of the program what was in it before calls that this graph has not."""
        overwritten = self.definition.overwritten
        while k in overwritten and overwritten[k].call not in self.calls:
            k = overwritten[k].value
        return k

    def _needs(self, values: list[int], makers: dict[int, int]) -> tuple[set[int], set[int]]:
        """The steps that make these values, and the operands, beside those that are given."""
        needed: set[int] = set()
        constants: set[int] = set()
        wanted = list(values)
        while wanted:
            k = self._now(wanted.pop())
            if k in self._of or k in constants or makers.get(k) in needed:
                continue
            if k not in makers:
                constants.add(k)
                continue
            needed.add(makers[k])
            wanted += [x for kind, x in self.definition.steps[makers[k]].args if kind == "value"]
        return needed, constants

    def _operand(self, k: int) -> None:
        own = len(self.operands)
        self._of[k] = own
        tensor = self.definition.operands[k] if k < len(self.definition.operands) else None
        self.operands.append(tensor)
        self.sizes[own] = self.definition.sizes[k]
        self.dtypes[own] = self.definition._dtype_of(k)

    def _step(self, at: int) -> None:
        step = self.definition.steps[at]
        args = tuple([self._argument_of(*arg) for arg in step.args])
        outs = []
        for k, dtype in zip(step.outs, step.dtypes):
            own = self._of.get(k)
            if own is None or own < _FIRST:  # (what a graph is given is not computed)
                own = _FIRST + len(self.dtypes) - len(self.operands)
                self.dtypes[own] = dtype
                if k in self.definition.sizes:  # (of what is written into something else, the op knows)
                    self.sizes[own] = self.definition.sizes[k]
                self._of.setdefault(k, own)
            outs.append(own)
        self.steps.append(step._replace(args=args, outs=tuple(outs)))
        self.lines.append(self.definition.lines[at])

    def _argument_of(self, kind: str, x: Any) -> tuple[str, Any]:
        if kind == "value":
            return kind, self._of[self._now(x)]
        if kind == "operand":
            if x not in self.drawn:
                self.drawn.append(x)
                self.numbers.append(_Number())
            return kind, self.drawn.index(x)
        return kind, x

    def expectations(self, first: int) -> tuple[list[Expected], list[int]]:
        """What ops ask of values as checks of results, from number `first` on, and these results."""
        checks = [Expected(first + j, kind, text) for j, (_, kind, text) in enumerate(self.expected)]
        return checks, [self._of[k] for k, _, _ in self.expected]

    def sizes_of(self, k: int) -> tuple[Any, ...]:
        return self.varying.get(k) or self.sizes[k]

    def general(self) -> dict[int, tuple[Any, ...]]:
        """The sizes of values, in general, by the graph's numbers."""
        found: dict[int, tuple[Any, ...]] = dict(self.sizes)
        found.update(
            (own, self.definition.shapes[k]) for k, own in self._of.items() if k in self.definition.shapes
        )
        return found


def take(name: str, given: Any, outputs: Any) -> tuple[Captured, Origin]:
    """The graph from nodes to nodes: `given` a list of (name or None, node). ValueError for nodes that are
    none, of two threads, or that depend on a placeholder that is not given.
    """
    leaves: list[Any] = []
    found = Captured(name)
    found.out_tree = flatten(outputs, leaves, found.outputs, "output")
    nodes = [*[x for _, x in given], *leaves]
    for x in nodes:
        if type(x) is not Traced or not isinstance(x.recorder, Definition):
            raise TypeError(message("Graph", "nodes, which placeholders and ops on them give", describe(x)))
    if not nodes:
        raise ValueError(message("Graph", "at least one node among inputs and outputs", "none"))
    definition: Definition = nodes[0].recorder
    if any(x.recorder is not definition for x in nodes):
        raise ValueError("Graph: nodes of placeholders that were made by different threads")
    inputs = [value_of(x) for _, x in given]
    names = _names(definition, [n for n, _ in given], inputs)
    _take(found, definition, inputs, names, [definition.value(x.whole) for x in leaves])
    return found, Origin(weakref.ref(definition), inputs, names)


class Origin(NamedTuple):
    """The nodes that a graph's inputs are."""

    definition: Any  # refers to it weakly
    inputs: list[int]
    names: list[str]

    def take(self, nodes: list[Any]) -> Captured:
        """The graph from the same inputs to other nodes."""
        definition = self.definition()
        if definition is None or any(x.recorder is not definition for x in nodes):
            raise ValueError("Graph.run: fetches a node that was not made of the graph's inputs")
        found = Captured("part")
        found.outputs = [f"output[{k}]" for k in range(len(nodes))]
        found.out_tree = Tree("tuple", (LEAF,) * len(nodes))
        _take(found, definition, self.inputs, self.names, [definition.value(x.whole) for x in nodes])
        return found


def value_of(x: Any) -> int:
    """The value that a node is: a placeholder that was written is still what is given."""
    definition: Definition = x.recorder
    placed = definition.placed.get(id(x.whole))
    return definition.value(x.whole) if placed is None else placed


def _take(
    found: Captured, definition: Definition, inputs: list[int], names: list[str], results: list[int]
) -> None:
    taken = Taken(definition, inputs, results)
    lost = [definition.names[k] for k in taken.constants if k in definition.names]
    if lost:
        raise ValueError(
            f"Graph: the outputs depend on the placeholder {lost[0]!r}, which is not among the inputs "
            f"({', '.join(names) or 'there are none'})"
        )
    _finish(found, definition, taken, inputs, names)


def _names(definition: Definition, own: list[str | None], inputs: list[int]) -> list[str]:
    names: list[str] = []
    for k, (given, value) in enumerate(zip(own, inputs)):
        name = given or definition.names.get(value) or f"input{k}"
        if name in names:
            which = "is given twice" if value in inputs[:k] else "is the name of two inputs"
            raise ValueError(f"Graph: {name!r} {which}")
        names.append(name)
    return names


def _finish(
    found: Captured, definition: Definition, taken: Taken, inputs: list[int], names: list[str]
) -> None:
    shapes = taken.general()
    of, found.dims = respelled(definition.dims.values(), [shapes[k] for k in range(len(inputs))])
    moved = _Moved(found, definition, of)
    found.inputs = [
        Input(name, taken.dtypes[k], tuple(map(moved, shapes[k]))) for k, name in enumerate(names)
    ]
    named = {write.operand: write.name for write in definition.overwritten.values()}
    for at, k in enumerate(taken.constants):
        kind = "buffer" if k in taken.written else "constant"
        name = _free(named[k], {s.name for s in found.state}) if k in taken.written else f"constant{at}"
        found.state.append(State(name, kind, definition.operands[k]))
    changed = []
    for k, value in taken.written.items():
        found.mutated.append(("state", taken.constants.index(k)))
        changed.append(value)
    found.in_tree = Tree("tuple", (Tree("tuple", (LEAF,) * len(names)), Tree("dict")))
    found.parameters = names
    found.aliases = tuple(range(len(names)))
    found.distinct = list(range(len(names)))
    found.out_tree = constants(found.out_tree, lambda x: _constant(found, x, moved))
    for k, own in enumerate(taken.results):
        if own < len(inputs):
            found.same[k] = "input", own
        elif own < len(taken.operands):
            found.same[k] = "state", own - len(inputs)
    found.random, found.drawn = _draws(definition, taken, moved)
    count = len(taken.results) + len(changed)
    taken.steps = [
        s._replace(
            args=tuple([_moved_argument(moved, *arg) for arg in s.args]),
            structure=moved(s.structure) if isinstance(s.op, str) else s.structure,
        )
        for s in taken.steps
    ]
    taken.varying = {k: tuple(map(moved, shape)) for k, shape in shapes.items()}
    extra = add_checks(found, taken, count)  # type: ignore[arg-type]  # of a recorder it asks as much
    checks, asked = taken.expectations(count + len(extra))
    found.checks += checks
    results = [*taken.results, *changed, *extra, *asked]
    found.steps = taken.finish(results)
    set_histories(found)
    wanted, lines = set(results), []
    for step, line in zip(reversed(taken.steps), reversed(taken.lines)):
        if wanted.intersection(step.outs):
            lines.append(line)
            wanted.update(k for kind, k in step.args if kind == "value")
    found.step_lines = lines[::-1]
    first = found.steps.tensors + len(found.steps.numbers) - _FIRST
    found.shapes = {k if k < _FIRST else k + first: shape for k, shape in taken.varying.items()}
    found.number_sizes()
    _guard(found, definition, moved)
    found.make_op()


def _free(name: str, taken: set[str]) -> str:
    """The name, numbered if it is taken."""
    found, k = name, 1
    while found in taken:
        found, k = f"{name}_{k}", k + 1
    return found


def _moved_argument(moved: Callable[[Any], Any], kind: str, x: Any) -> tuple[str, Any]:
    return (kind, moved(x)) if kind == "size" else (kind, x)


def _constant(found: Captured, value: Any, moved: Callable[[Any], Any]) -> Any:
    """A result that is no tensor; a size as graphs have it."""
    value = plain(value)
    found.gives_sizes = found.gives_sizes or isinstance(value, Size)
    return moved(value)


class _Moved:
    """Sizes of a definition as those of a graph."""

    def __init__(self, found: Captured, definition: Definition, of: dict[int, Dim]) -> None:
        self.found, self.definition, self.of = found, definition, of

    def knows(self, size: Any) -> bool:
        """Whether the inputs say what it is."""
        return not isinstance(size, Size) or slots_named(size) <= self.of.keys()

    def __call__(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(self, x))
        if not isinstance(x, Size):
            return x
        if not self.knows(x):
            raise ValueError(
                f"Graph: the outputs depend on the size {self.definition.known.text(x)}, which no input has"
            )
        return substitute(x, self.of.__getitem__)


def _draws(definition: Definition, taken: Taken, moved: _Moved) -> tuple[list[tuple[str, Any]], Any]:
    """The numbers that a run draws, one op's after another's, and how many positions that are."""
    kinds = [definition.numbers[k][0] for k in taken.drawn]
    places = [definition.places[k] for k in taken.drawn]
    total: Any = 0
    begins: dict[int, Any] = {}
    for which in sorted({which for kind, (which, _) in zip(kinds, places) if kind == "position"}):
        begins[which] = total
        total = total + moved(definition.drawn_by[which])
    found = [
        (kind, begins[which] + offset if kind == "position" else 0)
        for kind, (which, offset) in zip(kinds, places)
    ]
    return found, total


def _guard(found: Captured, definition: Definition, moved: _Moved) -> None:
    """What was asked of sizes on the lines of these steps, or by the program itself."""
    lines = {"", *found.step_lines}
    for (left, sign, right), asked in definition.asked_of_sizes.items():
        if lines.isdisjoint(asked) or not (moved.knows(left) and moved.knows(right)):
            continue
        guard = definition.known.guards[left, sign, right]
        found.guards.append(Guard(moved(left), sign, moved(right), guard.answer, guard.line))


def is_node(x: Any) -> bool:
    """Whether it is a node that placeholders gave."""
    return type(x) is Traced and isinstance(x.recorder, Definition)
