"""A function of tensors as a graph with names: what traces, programs and exports are made from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from kiln import _core
from kiln.capture.pure.steps import DETACH, Steps
from kiln.capture.pure.trace import names_of
from kiln.graph.graph import Graph, Shape
from kiln.graph.size import Size, evaluate, symbol
from kiln.graph.text import dim_text
from kiln.nn import Module
from kiln.table.arguments import without_values
from kiln.table.kinds import FLOATS
from kiln.tracing.compare import random_states, refuse_drawn
from kiln.tracing.dims import Range, declared, specs_of
from kiln.tracing.graphs import Look, graph_of
from kiln.tracing.ops import ProgramOp, called, program_op, resolved
from kiln.tracing.recorder import Recorder, TracingError
from kiln.tracing.sizes import Guard
from kiln.tracing.symbolic import Traced, plain
from kiln.tracing.trees import Tree, build, constants, difference, flatten


class Input(NamedTuple):
    """A tensor that a program is given: its name, dtype and sizes (an int, or a Size that varies)."""

    name: str
    dtype: str
    shape: tuple[Any, ...]


class State(NamedTuple):
    """A tensor that a program has: "parameter", "buffer" (each with its qualified name) or "constant"."""

    name: str
    kind: str
    tensor: Any


class Captured:
    """A function as a graph.

    The graph's inputs are those of `inputs`, then those of `state`, then the numbers of `random` ("seed", or
    a position counted from that of the call); its outputs are the tensors of `out_tree`, then what the states
    named in `mutated` hold afterwards.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs: list[Input] = []
        self.in_tree: Tree
        self.state: list[State] = []
        self.out_tree: Tree
        self.outputs: list[str] = []
        self.mutated: list[tuple[str, int]] = []  # ("input" or "state", which), of the outputs after those
        self.random: list[tuple[str, Any]] = []
        self.drawn: Any = 0  # how far a call moves the generator's position; a size, if that varies
        self.history: list[
            tuple[int, ...]
        ] = []  # of each output, and of what is written: the operands whose gradients it gives
        self.same: dict[int, tuple[str, int]] = {}  # outputs that are an input or a state as it came
        self.dims: dict[str, Range] = {}  # by name: the sizes that vary, their bounds, where they are read
        self.gives_sizes = False  # whether sizes are among the results
        self.guards: list[Guard] = []  # answers about sizes that the function asked for
        self.firsts: list[int] = []  # of each input and state: the slot of its first size
        self.steps: Steps
        self.op: ProgramOp | None = None
        self.step_lines: list[str] = []
        self.checks: list[Check] = []
        self.distinct: list[int] = []  # of the tensors among the arguments: the first of each
        self.parameters: list[str] = []  # what the function calls its positional arguments
        self.aliases: tuple[int, ...] = ()  # of the tensors among the arguments: which is the same as which
        self.kept: Any = None  # so that the next run's objects are others
        self._shapes: dict[int, Any] = {}
        self._graph: Graph | None = None

    @property
    def graph(self) -> Graph:
        """The graph, composites as nodes."""
        if self._graph is None:
            looks = [Look(x.dtype, x.shape) for x in self.inputs]
            looks += [Look(_dtype(s.tensor), tuple(s.tensor.shape)) for s in self.state]
            self._graph = graph_of(self.steps, looks, self._shapes, self.step_lines)
        return self._graph

    def number_sizes(self) -> int:
        """Finds `firsts`; how many sizes inputs and state have together."""
        slot = 0
        for shape in (*(x.shape for x in self.inputs), *(s.tensor.shape for s in self.state)):
            self.firsts.append(slot)
            slot += len(shape)
        return slot

    def make_op(self) -> None:
        """Makes the op of the steps, which runs them; none where there is nothing to compute."""
        if not self.steps.results:
            return
        same: list[tuple[Any, Any]] = []
        for first, own in zip(self.firsts, self.inputs):
            same += [(symbol(first + d), n) for d, n in enumerate(own.shape) if isinstance(n, Size)]
        same = [(a, b) for a, b in same if a is not b]
        firsts = [*self.firsts, *(self.firsts[k] for k in self.steps.again)]
        self.op = program_op(self.name, self.graph, self.steps, firsts, same)

    def draw(self, operands: list[Any]) -> list[int]:
        """The numbers that a call draws: the generator moves on."""
        if type(self.drawn) is int:
            if not self.drawn:
                return []
            seed, start = _core.next_random(self.drawn)
            return [seed if kind == "seed" else start + delta for kind, delta in self.random]
        sizes = [n for x in operands for n in x.shape]
        seed, start = _core.next_random(evaluate(self.drawn, sizes.__getitem__))
        return [
            seed if kind == "seed" else start + evaluate(delta, sizes.__getitem__)
            for kind, delta in self.random
        ]

    def line_of(self, which: int) -> str:
        """The line of the program that did a step."""
        return self.step_lines[which] if which < len(self.step_lines) else ""

    def replay(self, tensors: list[Any], numbers: list[int]) -> tuple[Any, ...]:
        """The results, the ops called one by one."""
        sizes = {f + d: n for f, x in zip(self.firsts, tensors) for d, n in enumerate(x.shape)}
        values: dict[int, Any] = dict(enumerate([*tensors, *numbers]))
        for step in resolved(self.steps, sizes.__getitem__).steps:
            given = tuple([x if kind == "number" else values[x] for kind, x in step.args])
            before = _core.set_grad_enabled(step.history)
            try:
                values.update(zip(step.outs, called(step, given)))
            finally:
                _core.set_grad_enabled(before)
        return tuple([values[k] for k in self.steps.results])

    def size_text(self, size: Any) -> str:
        """A size in the names that were declared."""
        told = dim_text(size)
        for dim in sorted(self.dims.values(), key=lambda d: -d.slot):
            told = told.replace(dim_text(dim.symbol), dim.name)
        return told

    def place_of(self, dim: Range) -> str:
        """Where a size that varies is read: "x: dim 0"."""
        k = max(k for k, first in enumerate(self.firsts[: len(self.inputs)]) if first <= dim.slot)
        return f"{self.inputs[k].name}: dim {dim.slot - self.firsts[k]}"

    def tree_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: list[Any]) -> Tree:
        """The arguments of a call as `in_tree` has them, given by position or by name."""
        if kwargs and len(args) < len(self.in_tree.items[0].items):
            rest = dict(kwargs)
            named = self.parameters[len(args) :]
            while named and named[0] in rest:
                args = (*args, rest.pop(named[0]))
                named = named[1:]
            kwargs = rest
        order = self.in_tree.items[1].keys
        if kwargs.keys() == set(order):
            kwargs = {k: kwargs[k] for k in order}
        return _flat(args, kwargs, leaves, None, self.parameters)

    def check_aliases(self, given: list[Any]) -> None:
        """RuntimeError where the example had one tensor as two arguments and a call has two."""
        for k, first in enumerate(self.aliases):
            if given[k] is not given[first]:
                raise RuntimeError(
                    f"{self.name}: inputs {first} and {k} were one tensor in the example, here are two; "
                    f""
                    f""
                    f""
                    f""
                    f""
                    f""
                    "trace with two tensors"
                )

    def difference(self, args: tuple[Any, ...], kwargs: dict[str, Any], tree: Tree) -> str:
        """How the arguments of a call differ from those of the example, in words."""
        told = difference(self.in_tree.items[0], tree.items[0], self.parameters, "args")
        return told or difference(self.in_tree.items[1], tree.items[1], list(tree.items[1].keys), "kwargs")


class Check(NamedTuple):
    """What an op refuses of values: positions out of range, division of integers by 0.

    `parts`: what the op is called with, each ("number", x), ("operand", k), ("result", k), ("like", tensor)
    or ("varies", (dtype, sizes)).
    """

    op: Any
    structure: tuple[Any, ...]
    parts: tuple[tuple[str, Any], ...]
    late: bool  # it looks at a result

    def before(self, operands: list[Any]) -> None:
        """Raises what the op would of operands."""
        if not self.late:
            self._check(operands, ())

    def after(self, operands: list[Any], results: tuple[Any, ...]) -> None:
        """The same of what was computed on the way."""
        if self.late:
            self._check(operands, results)

    def _check(self, operands: list[Any], results: tuple[Any, ...]) -> None:
        held = {"operand": operands, "result": results}
        given = tuple([
            held[kind][x] if kind in held else self._sized(operands, *x) if kind == "varies" else x
            for kind, x in self.parts
        ])  # fmt: skip
        _core.check_op(self.op, self.structure, given)

    def _sized(self, operands: list[Any], dtype: str, shape: Shape) -> Any:
        sizes = [n for x in operands for n in x.shape]
        return _like(
            dtype, tuple([n if isinstance(n, int) else evaluate(n, sizes.__getitem__) for n in shape])
        )


def _like(dtype: str, shape: tuple[Any, ...]) -> Any:
    """An array that looks so."""
    return _core.from_nested(0, dtype).expand(shape)


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def capture(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    dims: Any = None,
    root: Any = None,
    on_data: str = "refuse",
) -> Captured:
    """What `fn(*args, **kwargs)` does, as a graph. `dims`: which sizes vary, as `dynamic_shapes` of
    `kiln.jit.trace`; `root`: the module whose parameters and buffers it uses (fn itself, if it is one).
    TracingError for what a graph would not do again, with the line.
    """
    kwargs = kwargs or {}
    root = fn if root is None and isinstance(fn, Module) else root
    name = getattr(fn, "__qualname__", None) or type(fn).__name__
    found = Captured(name)
    leaves: list[Any] = []
    names: list[str] = []
    found.parameters = parameter_names(fn, len(args))
    found.in_tree = _flat(args, kwargs, leaves, names, found.parameters)
    place: dict[int, int] = {}
    found.aliases = tuple(place.setdefault(id(x), k) for k, x in enumerate(leaves))
    found.distinct = sorted(set(found.aliases))
    distinct = list({id(x): x for x in leaves}.values())
    recorder = Recorder(name, on_data)
    shapes = _declare(found, recorder, leaves, names, dims) if dims else {}
    places = _places(root) if root is not None else []
    returned: list[Any] = []
    stand_ins: dict[int, Any] = {}
    seen: dict[int, Any] = {}  # arguments as the function is to see them
    state_of: dict[int, tuple[str, str, Any]] = {}
    outputs: list[Any] = []

    def run() -> Any:
        for x in leaves:
            if id(x) not in stand_ins:
                made = recorder.stand_in(x, True, shapes.get(id(x)))
                varies = any(isinstance(d, Size) for d in shapes.get(id(x), ()))
                stand_ins[id(x)] = made
                seen[id(x)] = Traced(made, recorder) if varies else made
        for qualified, kind, _, _, tensor in places:
            if id(tensor) not in stand_ins:
                made = stand_ins[id(tensor)] = recorder.stand_in(tensor, False)
                state_of[id(made)] = qualified, kind, tensor
        given, named = _replaced(args, seen), _replaced(kwargs, seen)
        with _exchanged(places, stand_ins):
            result = fn(*given, **named)
        found.out_tree = flatten(result, outputs, found.outputs, "output")
        outputs[:] = [getattr(y, "whole", y) for y in outputs]
        found.out_tree = constants(found.out_tree, partial(_size_given, found))
        _refuse_others(found.out_tree, recorder)
        returned.append(result)

    state = _core.random_state()
    outside = random_states()
    grad = _core.set_grad_enabled(True)  # what a call records is decided by the call
    try:
        with without_values():
            _core.trace(recorder, True, run, (), {}, ())
        if recorder.failure is not None:
            raise recorder.failure
    except BaseException:
        if recorder.failure is not None:
            raise recorder.failure from None
        raise
    finally:
        _core.set_grad_enabled(grad)
        found.drawn = _core.random_state()[1] - state[1]
        _core.set_random_state(*state)
    refuse_drawn(name, outside)
    found.kept = recorder
    _finish(found, recorder, leaves, names, distinct, stand_ins, state_of, outputs)
    return found


def _finish(
    found: Captured,
    recorder: Recorder,
    leaves: list[Any],
    names: list[str],
    distinct: list[Any],
    stand_ins: dict[int, Any],
    state_of: dict[int, tuple[str, str, Any]],
    outputs: list[Any],
) -> None:
    first_name: dict[int, str] = {}
    for x, name in zip(leaves, names):
        first_name.setdefault(id(x), name)
    shapes = recorder.shapes
    found.inputs = [
        Input(first_name[id(x)], _dtype(x), shapes.get(k) or tuple(x.shape)) for k, x in enumerate(distinct)
    ]
    values = [recorder.value(y) for y in outputs]  # may meet constants
    changed: list[int] = []
    for k, x in enumerate(distinct):
        value = recorder.written(stand_ins[id(x)])
        if value is not None:
            found.mutated.append(("input", k))
            changed.append(value)
    operands = recorder.operands
    for k, made in enumerate(operands[len(distinct) :]):
        qualified, kind, tensor = state_of.get(id(made), (f"constant{k}", "constant", made))
        found.state.append(State(qualified, kind, tensor))
        value = recorder.written(made) if id(made) in state_of else None
        if value is not None:
            found.mutated.append(("state", k))
            changed.append(value)
    count = len(distinct)
    for k, y in enumerate(outputs):
        at = recorder.operand_of(y)
        if at is not None and values[k] == at:
            found.same[k] = ("input", at) if at < count else ("state", at - count)
    found.random = recorder.numbers
    extra = add_checks(found, recorder, len(values) + len(changed))
    found.steps = recorder.steps_of([*values, *changed, *extra])
    found.history = histories(found, len(values) + len(changed))
    found.step_lines = recorder.lines_of([*values, *changed, *extra])
    again = len(found.steps.again)
    found._shapes = {**dict(recorder.numbered(again)), **recorder.numbered_shapes(again)}
    found.guards = list(recorder.known.guards.values())
    found.number_sizes()
    if found.graph.checks and found.dims:
        a, b = found.graph.checks[0]
        raise TracingError(
            f"{found.name}: needs {found.size_text(a)} to equal {found.size_text(b)}, which not all declared "
            "sizes do: leave it out of dynamic_shapes"
        )
    found.make_op()


def _declare(
    found: Captured, recorder: Recorder, leaves: list[Any], names: list[str], dims: Any
) -> dict[int, Shape]:
    """The shapes of arguments with the sizes that vary as symbols; ValueError for what does not fit."""
    items = found.in_tree.items
    keys = list(items[1].keys)
    if isinstance(dims, (tuple, list)) and len(dims) == len(items[0].items) and not keys:
        specs = [s for item, d in zip(items[0].items, dims) for s in specs_of(item, d, [])]
    else:
        whole = Tree("dict", (*items[0].items, *items[1].items), (*found.parameters, *keys))
        if isinstance(dims, dict) and len(whole.items) == 1 and whole.items[0].kind == "leaf":
            if all(isinstance(k, int) for k in dims):
                dims = {whole.keys[0]: dims}
        specs = specs_of(whole, dims, [])
    spec_of: dict[int, dict[int, Any]] = {}
    for x, spec in zip(leaves, specs):
        spec_of.setdefault(id(x), {}).update({d: n for d, n in spec.items() if n is not None})
    distinct = {id(x): (x, name) for x, name in reversed(list(zip(leaves, names)))}
    ordered = [distinct[k] for k in dict.fromkeys(map(id, leaves))]
    return declared(found.dims, recorder.known, ordered, spec_of)


def add_checks(found: Captured, recorder: Recorder, first: int) -> list[int]:
    """What ops refuse of values, as checks; the values on the way that these look at, as results more."""
    extra: list[int] = []
    for step in recorder.steps:
        if isinstance(step.op, str) or (step.op.checks is None and not step.op.divides):
            continue
        if step.op.checks is None and step.dtypes[0] in FLOATS:
            continue
        looks = list(names_of(step.op, step.structure))
        looked_at = step.op.checks.positions if step.op.checks is not None else looks[1]
        parts: list[tuple[str, Any]] = []
        late = needed = False
        for name, (kind, k) in zip(looks, step.args):
            if kind == "number":
                parts.append(("number", k))
                needed = needed or name == looked_at
            elif kind == "operand":
                break
            elif k < len(recorder.operands):
                parts.append(("operand", k))
                needed = needed or name == looked_at
            elif name == looked_at:
                maker = next(s for s in recorder.steps if k in s.outs)
                if not isinstance(maker.op, str) and maker.op.gives_positions:
                    continue
                late = needed = True
                parts.append(("result", first + len(extra)))
                extra.append(k)
            else:  # of which only the sizes matter
                look = recorder.dtypes[k], tuple(recorder.shapes.get(k) or recorder.sizes[k])
                varies = any(isinstance(n, Size) for n in look[1])
                parts.append(("varies", look) if varies else ("like", _like(*look)))
        else:
            if needed:
                found.checks.append(Check(step.op.handle, step.structure, tuple(parts), late))
    return extra


def histories(found: Captured, count: int) -> list[tuple[int, ...]]:
    """Of each result, the operands that gradients flow to from it."""
    steps = found.steps
    own = [x.dtype for x in found.inputs] + [_dtype(s.tensor) for s in found.state]
    reach: dict[int, frozenset[int]] = {k: frozenset((k,)) for k, dtype in enumerate(own) if dtype in FLOATS}
    none: frozenset[int] = frozenset()
    for step in steps.steps:
        flows = step.history and step.op != DETACH and (isinstance(step.op, str) or step.op.differentiable)
        if flows:
            joined = none.union(*(reach.get(k, none) for kind, k in step.args if kind == "value"))
            reach.update((k, joined) for k, dtype in zip(step.outs, step.dtypes) if dtype in FLOATS)
    return [tuple(sorted(reach.get(k, none))) for k in steps.results[:count]]


def _size_given(found: Captured, value: Any) -> Any:
    """A result that is no tensor; a size as graphs have it."""
    found.gives_sizes = found.gives_sizes or isinstance(value, Size)
    return plain(value)


def _refuse_others(tree: Tree, recorder: Recorder) -> None:
    """Refuses results that a trace cannot give again."""
    if tree.kind == "constant" and not isinstance(
        tree.value, (int, float, bool, complex, str, bytes, type(None), _core.dtype, Size)
    ):
        recorder.refuse(
            f"returns a {type(tree.value).__name__}, which is made of neither tensors nor numbers"
        )
    for item in tree.items:
        _refuse_others(item, recorder)


def _flat(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    leaves: list[Any],
    names: list[str] | None,
    parameters: list[str],
) -> Tree:
    """The tree of a call's arguments: ((args), {kwargs}); names are those of the parameters."""
    known = [*parameters, *(f"args[{k}]" for k in range(len(parameters), len(args)))]
    positional = [flatten(x, leaves, names, n) for x, n in zip(args, known)]
    keywords = [flatten(x, leaves, names, n) for n, x in kwargs.items()]
    return Tree("tuple", (Tree("tuple", tuple(positional)), Tree("dict", tuple(keywords), tuple(kwargs))))


def parameter_names(fn: Any, count: int) -> list[str]:
    """What a function calls its first `count` arguments: `x`, or `args[2]` of `*args`."""
    try:
        parameters = list(inspect.signature(fn.forward if isinstance(fn, Module) else fn).parameters.values())
    except (TypeError, ValueError):
        return [f"args[{k}]" for k in range(count)]
    names: list[str] = []
    for k in range(count):
        if k < len(parameters) and parameters[k].kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            names.append(parameters[k].name)
            continue
        star = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), "args")
        plain = sum(
            p.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            for p in parameters
        )
        names.append(f"{star}[{k - plain}]")
    return names


def _replaced(value: Any, instead: dict[int, Any]) -> Any:
    """A value with other tensors in it."""
    leaves: list[Any] = []
    tree = flatten(value, leaves)
    return build(tree, iter([instead[id(x)] for x in leaves]))


Place = tuple[str, str, dict[str, Any], str, Any]  # qualified name, kind, where it is, its key, the tensor


def _places(root: Any) -> list[Place]:
    """Where a module and those in it hold parameters and buffers."""
    found: list[Place] = []
    for prefix, module in root.named_modules():
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers)):
            for key, tensor in held.items():
                if tensor is not None:
                    found.append((f"{prefix}.{key}" if prefix else key, kind, held, key, tensor))
    return found


@contextmanager
def _exchanged(places: list[Place], instead: dict[int, Any]) -> Iterator[None]:
    """Stand-ins where a module's tensors are, as long as this lasts."""
    try:
        for _, _, held, key, tensor in places:
            held[key] = instead[id(tensor)]
        yield
    finally:
        for _, _, held, key, tensor in places:
            held[key] = tensor
