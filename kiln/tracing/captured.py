"""What a captured function is: its names, state and checks, and, when asked for, its graph and steps.

A program that was loaded runs without those: nothing here imports what follows or plans a function.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from kiln import _core
from kiln.graph.graph import Graph
from kiln.graph.size import Dim, Size, evaluate, symbol
from kiln.graph.text import dim_text
from kiln.late import later
from kiln.tracing.answers import Condition
from kiln.tracing.dims import Range, open_name
from kiln.tracing.sizes import Guard
from kiln.tracing.trees import Tree, difference, flatten
from kiln.tuples import NamedTuple

if TYPE_CHECKING:
    from kiln.tracing.hierarchy import Hierarchy

_SHOWN = 4  # elements of a tensor that errors show
_look, _graph_of = later("kiln.tracing.graphs", "Look"), later("kiln.tracing.graphs", "graph_of")
_program_op, _replay = later("kiln.tracing.ops", "program_op"), later("kiln.tracing.ops", "replay")


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


class Asks(NamedTuple):
    """Operands: a result requires a gradient where one of these does, by whether gradients are on around the
    call; where they are off, and if it is a leaf, gradients end at it.
    """

    on: tuple[int, ...]
    off: tuple[int, ...]
    is_leaf: bool


Modes = tuple[bool, bool]  # grad mode, inference mode
RECORDED: Modes = (True, False)
UNRECORDED: tuple[Modes, ...] = ((False, False), (False, True))


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
        self.unsaved: set[str] = set()  # buffers that are no part of a state_dict
        self.out_tree: Tree
        self.outputs: list[str] = []
        self.assigned: set[int] = set()  # of the state what is another tensor afterwards, not a written one
        self.mutated: list[tuple[str, int]] = []  # ("input" or "state", which), of the outputs after those
        self.random: list[tuple[str, Any]] = []
        self.casts = False  # whether autocast was on, whose casts are steps
        self.ordered = False  # whether the order of keyword arguments matters
        self.drawn: Any = 0  # how far a call moves the generator's position, a size if that varies
        self.history: list[tuple[int, ...]] = []  # of each output: the operands whose gradients it gives
        self.written: list[tuple[int, ...]] = []  # the same of what is written
        self.same: dict[int, tuple[str, int]] = {}  # outputs that are an input or a state as it came
        # of outputs: why they require gradients, where that is not to give them to the operands of `history`
        self.asks: dict[int, Asks] = {}
        self.dims: dict[str, Range] = {}  # by name: the sizes that vary, their bounds, where they are read
        self.reasons: dict[str, str] = {}  # of sizes that were left to the program: why it says more of them
        self.gives_sizes = False  # whether sizes are among the results
        self.guards: list[Guard] = []  # answers about sizes that the function asked for
        self.firsts: list[int] = []  # of each input and state: the slot of its first size
        self.op: Any = None  # what runs it: an Op with the structure it is called at
        self.by_steps = False  # functions that libraries compute are among the steps, which run one by one
        self.again: tuple[int, ...] = ()  # operands that the op is given once more, see Steps
        self.whole: Callable[[], Captured] | None = (
            None  # of one that was loaded: it with its steps and graph
        )
        self.step_lines: list[str] = []
        self.checks: list[Check | Kept | Expected | Raises | Condition] = []
        self.distinct: list[int] = []  # of the tensors among the arguments: the first of each
        self.parameters: list[str] = []  # what the function calls its positional arguments
        self.aliases: tuple[int, ...] = ()  # of the tensors among the arguments: which is the same as which
        self.met: list[Any] = []  # copies of the constants, as the run left them
        self.attributes: list[dict[str, Any]] = []  # of inputs: what the user gave them
        self.types: list[str] = []  # of inputs: of what type they are
        self.given_back: set[int] = set()  # inputs that contiguous() gave as they are
        self.alike: dict[int, int] = {}  # inputs that look as an earlier one does, and are not written
        self.one: dict[int, int] = {}  # such that were one tensor with it, where that was varied
        self.kept: Any = None  # so that the next run's objects are others
        self.hierarchy: Hierarchy | None = (
            None  # which steps are calls of which module, of a model that has any
        )
        self.numbers: dict[int, int] = {}  # the value of steps that each input and node of the graph is
        self.shapes: dict[int, Any] = {}  # of what steps make, by its number
        # what it is where gradients are off around a call, as far as it records them there itself
        self.otherwise: dict[Modes, Captured | Condition] = {}
        self._steps: Any = None
        self._graph: Graph | None = None

    @property
    def steps(self) -> Any:
        """The calls it is made of (capture/pure/steps.py)."""
        if self._steps is None:
            assert self.whole is not None
            found = self.whole()
            self._steps, self._graph, self.numbers = found._steps, found._graph, found.numbers
        return self._steps

    @steps.setter
    def steps(self, steps: Any) -> None:
        self._steps, self.again = steps, steps.again

    @property
    def graph(self) -> Graph:
        """The graph, composites as nodes."""
        if self._graph is None:
            steps = self.steps
            if self._graph is not None:  # it came with them
                return self._graph
            looks = [_look(x.dtype, x.shape) for x in self.inputs]
            looks += [_look(s.tensor.dtype.name, tuple(s.tensor.shape)) for s in self.state]
            numbered: dict[int, Any] | None = None if self.hierarchy is None else {}
            begins: list[int] = []
            self._graph = _graph_of(steps, looks, self.shapes, self.step_lines, numbered, begins)
            if self.hierarchy is not None and numbered is not None:
                places = {id(v): k for k, v in enumerate(self._graph.values())}
                values = {k: places[id(v)] for k, v in numbered.items() if id(v) in places}
                self.hierarchy = self.hierarchy.in_graph(begins, values)
                self.numbers = {place: k for k, place in reversed(values.items())}
        return self._graph

    @graph.setter
    def graph(self, graph: Graph) -> None:
        self._graph = graph

    def keep_graph(self, other: Captured) -> None:
        """Has the graph of one that differs in what the tensors are called."""
        self._graph = other.graph

    @property
    def raises(self) -> tuple[BaseException, ...]:
        """The exceptions that it may raise, depending on values."""
        return next((c.errors for c in self.checks if isinstance(c, Raises)), ())

    def in_modes(self) -> Captured:
        """What it is in the modes that are on."""
        if not self.otherwise or _core.grad_enabled():
            return self
        found = self.otherwise.get(_core.modes()[:2], self)
        if isinstance(found, Condition):
            found.before([])
            return self
        return found

    def in_one_mode(self) -> Captured:
        """The same without what it is in other modes: it refuses those."""
        if not self.otherwise:
            return self
        made = copy.copy(self)
        line = f"{self.name} switches gradients on itself, and so"
        made.checks, made.otherwise = (
            [*self.checks, Condition(-1, "is_grad_enabled", True, line, self.name)],
            {},
        )
        return made

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
        firsts = [*self.firsts, *(self.firsts[k] for k in self.again)]
        self.by_steps = any(getattr(step.op, "kind", "") == "called" for step in self.steps.steps)
        self.op = _program_op(self.name, self.graph, self.steps, firsts, same)

    def expect_plan(self, what: str) -> None:
        """NotImplementedError, from `what` is to be made of it, where a library computes a part of it."""
        if not self.by_steps:
            return
        names = dict.fromkeys(s.op.name for s in self.steps.steps if getattr(s.op, "kind", "") == "called")
        raise NotImplementedError(
            f"{what}: {self.name} calls {', '.join(names)}, which NumPy and SciPy compute: kiln.export.save "
            "writes a program that kiln runs"
        )

    def draw(self, tensors: list[Any]) -> list[int]:
        """The numbers of a call: what `random` says, of the generator's next position."""
        if isinstance(self.drawn, int) and not self.drawn:
            return []
        sizes = [n for x in tensors for n in x.shape] if self.dims else []
        seed, start = _core.next_random(max(0, evaluate(self.drawn, sizes.__getitem__)))
        return [seed if kind == "seed" else start + evaluate(n, sizes.__getitem__) for kind, n in self.random]

    def line_of(self, which: int) -> str:
        """The line of the program that did a step."""
        return self.step_lines[which] if which < len(self.step_lines) else ""

    def replay(
        self,
        tensors: list[Any],
        numbers: list[int],
        shape_of: Callable[[Any], Any] = attrgetter("shape"),
        call: Any = None,
    ) -> tuple[Any, ...]:
        """The results, the ops called one by one (by `call`)."""
        found: tuple[Any, ...] = _replay(self.steps, self.firsts, tensors, numbers, shape_of, call)
        return found

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

    def why(self, name: str, dim: int) -> str:
        """Why a size that was left to the program is what it is, behind a message that says what."""
        told = self.reasons.get(open_name(name, dim))
        return f": {told}" if told else ""

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
        if kwargs.keys() == set(order) and not self.ordered:
            kwargs = {k: kwargs[k] for k in order}
        return flat(args, kwargs, leaves, None, self.parameters)

    def check_aliases(self, given: list[Any]) -> None:
        """RuntimeError where the example had one tensor as two arguments and a call has two."""
        for k, first in enumerate(self.aliases):
            if given[k] is not given[first]:
                raise RuntimeError(
                    f"{self.name}: inputs {first} and {k} were one tensor in the example, here are two; "
                    "trace with two tensors"
                )

    def check_apart(self, leaves: list[Any]) -> None:
        """RuntimeError where an argument that is written lies in the memory of another one."""
        spans = [_span(x) for x in leaves]
        for kind, written in self.mutated:
            for k, (first, last) in enumerate(spans):
                if (
                    kind != "state"
                    and k != written
                    and first < spans[written][1]
                    and spans[written][0] < last
                ):
                    raise RuntimeError(
                        f"{self.name}: inputs {self.inputs[written].name} and {self.inputs[k].name} share "
                        "memory, and the program writes into one; in the example they did not"
                    )

    def difference(self, args: tuple[Any, ...], kwargs: dict[str, Any], tree: Tree) -> str:
        """How the arguments of a call differ from those of the example, in words."""
        told = difference(self.in_tree.items[0], tree.items[0], self.parameters, "args")
        return told or difference(self.in_tree.items[1], tree.items[1], list(tree.items[1].keys), "kwargs")


def _span(x: Any) -> tuple[int, int]:
    """Where a tensor's elements lie: the addresses of its first byte and of that behind its last."""
    if not x.numel():
        return 0, 0
    elements = 1 + sum((n - 1) * step for n, step in zip(x.shape, x.stride()))
    return x.data_ptr(), x.data_ptr() + elements * x.element_size()


class Check(NamedTuple):
    """What an op refuses of values: positions out of range, division of integers by 0.

    `parts`: what the op is called with, each ("number", x), ("size", n), ("operand", k), ("result", k),
    ("like", tensor) or ("varies", (dtype, sizes)).
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
        given: dict[str, Callable[[Any], Any]] = {
            "operand": operands.__getitem__,
            "result": results.__getitem__,
            "size": lambda n: _size(operands, n),
            "varies": lambda look: like(look[0], tuple([_size(operands, n) for n in look[1]])),
        }
        parts = tuple([given[kind](x) if kind in given else x for kind, x in self.parts])
        _core.check_op(self.op, self.structure, parts)


def like(dtype: str, shape: tuple[Any, ...]) -> Any:
    """An array that looks so."""
    return _core.from_nested(0, dtype).expand(shape)


def _size(operands: list[Any], size: Dim) -> int:
    """What a size is where the operands have theirs."""
    sizes = [n for x in operands for n in x.shape]
    return size if isinstance(size, int) else evaluate(size, sizes.__getitem__)


class Kept(NamedTuple):
    """What a program assumes of a value: an "operand" or a "result" by its number."""

    kind: str
    which: int
    example: Any
    line: str

    def before(self, operands: list[Any]) -> None:
        """Raises where an operand is not what was assumed."""
        if self.kind == "operand":
            self._check(operands[self.which])

    def after(self, operands: list[Any], results: tuple[Any, ...]) -> None:
        """The same of what was computed."""
        if self.kind == "result":
            self._check(results[self.which])

    def _check(self, value: Any) -> None:
        value = value.detach().contiguous()
        if not _core.same_bytes(value, self.example):
            raise RuntimeError(
                f"{self.line} read {_shown(self.example)} when the program was made, which goes by that "
                f"value; here it is {_shown(value)}"
            )


class Expected(NamedTuple):
    """What an op asks of values: the result by its number is true, or the error is raised."""

    which: int
    error: type[Exception]
    text: str

    def before(self, operands: list[Any]) -> None:
        """Nothing of operands alone."""

    def after(self, operands: list[Any], results: tuple[Any, ...]) -> None:
        """Raises what the op would."""
        if not bool(results[self.which]):
            raise self.error(self.text)


class Raises(NamedTuple):
    """Which exception of the function's a program raises: a result is its number, from 1 on."""

    which: int
    errors: tuple[BaseException, ...]

    def before(self, operands: list[Any]) -> None:
        """Nothing is known before."""

    def after(self, operands: list[Any], results: tuple[Any, ...]) -> None:
        """Raises it."""
        number = int(results[self.which])
        if number:
            error = self.errors[min(max(number, 1), len(self.errors)) - 1]
            made = type(error)(*error.args)
            made._kiln_program = True  # type: ignore[attr-defined]  # whoever has the function can say more
            raise made


def _shown(value: Any) -> str:
    return repr(value.tolist()) if value.numel() <= _SHOWN else "a tensor"


def flat(
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
