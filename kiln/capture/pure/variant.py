"""One way a function went: its steps as an op, what that is given, and what is made of its results.

results of the op, arguments, tensors met  --views-->  leaves  --structure-->  what was returned
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kiln import _core
from kiln.capture.called import CALLED
from kiln.capture.pure.call import Call
from kiln.capture.pure.function import CellFunction, CellOp, cell_op
from kiln.capture.pure.guards import Read, ways_to
from kiln.capture.pure.numbers import fits_number, same_number
from kiln.capture.pure.steps import Step
from kiln.capture.pure.surroundings import Watch
from kiln.capture.pure.trace import Tracer
from kiln.capture.pure.values import Viewed, names_of
from kiln.errors import describe
from kiln.graph.size import Size, slots_named
from kiln.late import later
from kiln.table.kinds import FLOATS

_NUMBERS = (int, float, bool, complex, str, bytes, type(None), _core.dtype)


_holds = later("kiln.tracing.answers", "holds")
_bound_of = later("kiln.tracing.graphs", "bound_of")


def _seen(view: Viewed, given: tuple[Any, ...]) -> Any:
    """The view of other operands: made by the core of tensors; in Python of what a mapped function is given,
    which says that it is a Tensor and is none.
    """
    assert view.op is not None, "a view by an op"
    if all(not isinstance(x, _core.Tensor) or issubclass(type(x), _core.Tensor) for x in given):
        return _core.call_op(view.op.handle, view.structure, given)[view.which]
    made = view.op.handle(*_bound_of(view.op, view.structure, list(given)))
    return made[view.which] if isinstance(made, (tuple, list)) else made


class Leaf(NamedTuple):
    """A tensor of a result: ("result", k), ("operand", k), or ("view", the views made so far, its own)."""

    kind: str
    which: int
    history: bool
    is_leaf: bool  # of a graph of gradients


class Tree(NamedTuple):
    """A container of results; of a plain class what makes it of its items."""

    make: Callable[[list[Any]], Any]
    items: list[Any]
    what: str


def flat(value: Any, found: list[Any]) -> Any:
    """The structure of what was returned, its tensors in `found`. TypeError for what no cell gives."""
    if isinstance(value, _core.Tensor):
        found.append(value)
        return None
    if isinstance(value, (tuple, list)):
        items = [flat(x, found) for x in value]
        kind = type(value)
        make: Any = kind if kind in (tuple, list) or not hasattr(kind, "_make") else kind._make
        return Tree(make, items, kind.__name__)
    if isinstance(value, dict):
        keys, mapping = list(value), type(value)
        items = [flat(value[k], found) for k in keys]
        return Tree(lambda xs: mapping(zip(keys, xs)), items, f"{mapping.__name__} {keys!r}")
    if isinstance(value, _NUMBERS):
        return Tree(lambda xs: value, [], repr(value))
    raise TypeError(describe(value))


def filled(tree: Any, leaves: Iterator[Any]) -> Any:
    """What was returned, of these tensors."""
    return next(leaves) if tree is None else tree.make([filled(x, leaves) for x in tree.items])


def shape_of(tree: Any) -> Any:
    """What two runs must return alike."""
    return "tensor" if tree is None else (tree.what, tuple(map(shape_of, tree.items)))


def unreached(y: Any, is_leaf: bool) -> Any:
    """The same values, which require a gradient that comes to nothing; samples of a batch ask for none."""
    if not issubclass(type(y), _core.Tensor):
        return y
    y = y.detach().requires_grad_()
    if is_leaf:
        return y
    with _core.ModeSwitch(True, False):
        return y.view(y.shape)


def look_of(x: Any) -> tuple[Any, ...]:
    """What matters of a tensor that was met, besides which it is."""
    return x.dtype, x.requires_grad, _core.place(x)[2]


def given_by(tracer: Tracer, outputs: list[Any]) -> list[int]:
    """The values that a run returns, and leaves in buffers."""
    return [*(tracer.value(y) for y in outputs), *(value for _, value in tracer.states())]


class Variant:
    """See the module's text."""

    def __init__(self, name: str, tracer: Tracer, leaves: list[Any], returned: Any) -> None:
        self.calls = 0
        self.checked_at = 0
        self.taught = 0
        self.refused = False  # by the core, which has no op for it: it runs as Python has it
        self.seen: Any = None  # the hash of a run that was found to be as written down
        self.lines = tracer.lines
        self.what = [(s.what(), s.told()) for s in tracer.steps]
        outputs: list[Any] = []
        try:
            self.tree = flat(returned, outputs)
        except TypeError as error:
            tracer.refuse(f"returns {error}, which is made of neither tensors nor numbers")
        if any(tracer.result(y) or tracer.source(y) for y in outputs if _core.has_attributes(y)):
            tracer.refuse("returns a tensor that it has given attributes, which one of an op has not", "it")
        self.shape = shape_of(self.tree)
        states = tracer.states()
        self.gives = given_by(tracer, outputs)
        self.flowing: tuple[int, ...] = ()  # which of the call's numbers only ops see
        self.fixed: list[tuple[int, Any]] = []  # and the others, with their values
        self.flows: dict[tuple[int, int], int] = {}  # (step, argument) -> which of `flowing`
        self.views: list[tuple[tuple[str, int], Viewed]] = []
        self.results: list[int] = []
        self._places: dict[int, tuple[str, int]] = {}
        self.leaves = [self._leaf(y, tracer) for y in outputs]
        self.checks: list[tuple[Any, tuple[Any, ...], list[tuple[str, Any]]]] = []
        place = {id(x): k for k, x in enumerate(leaves)}
        # per operand: the number of an argument, or a tensor that was met
        self.operands = [place.get(id(x), x) for x in tracer.operands]
        self.results += [value for _, value in states]
        # buffers it writes, which get the last of the op's results
        self.written = [tracer.operands[k] for k, _ in states]
        for step in tracer.steps:
            if not isinstance(step.op, str) and (step.op.checks is not None or step.op.divides):
                self._add_check(step, tracer)
        self.steps = tracer.finish(self.results)
        self.numbers = tracer.numbers
        # other threads may have drawn meanwhile
        self.random = _core.random_state()[1] - tracer.random[1] if self.numbers else 0
        self.met = [x for x in self.operands if not isinstance(x, int)]
        self.op = cell_op(name, self.steps) if self.steps.results else None
        # whether it records gradients though they are off around the call
        self.records = not tracer.modes[0] and any(step.history for step in self.steps.steps)
        # whether samples of a batch run as Python has them: what is written, or has a derivative of its own
        self.by_call = bool(self.written) or any(step.op is CALLED for step in self.steps.steps)
        self.looks = [look_of(x) for x in self.met]
        self.guards = self.outside = _core.Guards([])
        self.pins: dict[int, Any] = {}
        self.sizes = self._sizes_by_value(tracer, leaves)
        self.plain = self._plain()
        # (argument, tensor that was met, or None: modes; what; the answer)
        self.conditions: list[tuple[Any, str, Any]] = []
        for (_, asked), (x, answer) in tracer.assumed.items():
            self.conditions.append((None if x is None else place.get(id(x), x), asked, answer))

    # -- results ----------------------------------------------------------------------------------------

    def _leaf(self, y: Any, tracer: Tracer) -> Leaf:
        kind, which = self._place(y, tracer)
        return Leaf(kind, which, bool(y.requires_grad), kind == "result" and bool(y.is_leaf))

    def _place(self, y: Any, tracer: Tracer) -> tuple[str, int]:
        known = self._places.get(id(y))
        if known is None:
            known = self._places[id(y)] = self._new_place(y, tracer)
        return known

    def _new_place(self, y: Any, tracer: Tracer) -> tuple[str, int]:
        value = tracer.value(y)
        source = tracer.source(y)
        if source is None:
            if not tracer.result(y):
                return "operand", next(k for k, x in enumerate(tracer.operands) if x is y)
            self.results.append(value)
            return "result", len(self.results) - 1
        base = self._place(source.source, tracer)
        args = tuple([None if x is source.source else x for x in source.args])
        if any(isinstance(x, _core.Tensor) for x in args):
            tracer.refuse("returns a view that depends on another tensor")
        self.views.append((base, source._replace(source=None, args=args)))
        return "view", len(self.views) - 1

    def _plain(self) -> bool:
        """Whether the op's results are what is returned, in order: one, or a tuple of them."""
        wanted = [("result", k) for k in range(len(self.results) - len(self.written))]
        straight = [(leaf.kind, leaf.which) for leaf in self.leaves] == wanted
        one = self.tree is None
        several = one or (self.tree.make is tuple and all(x is None for x in self.tree.items))
        return straight and several and all(leaf.history and not leaf.is_leaf for leaf in self.leaves)

    def give(self, results: Any, leaves: list[Any]) -> Any:
        """What the function returns, of the op's results."""
        views: list[Any] = []

        def at(kind: str, which: int) -> Any:
            if kind == "view":
                return views[which]
            if kind == "result":
                return results[which]
            found = self.operands[which]
            return leaves[found] if isinstance(found, int) else found

        for base, view in self.views:
            x = at(*base)
            if view.op is None:
                views.append(x.detach())
                continue
            given = tuple([x if a is None else a for a in view.args])
            with _core.ModeSwitch(*view.modes):
                views.append(_seen(view, given))
        made = []
        for leaf in self.leaves:
            y = at(leaf.kind, leaf.which)
            if not leaf.history and leaf.kind != "operand" and y.requires_grad:
                y = y.detach()
            elif leaf.history and leaf.kind == "result" and not (y.requires_grad and not leaf.is_leaf):
                y = unreached(y, leaf.is_leaf)
            made.append(y)
        return filled(self.tree, iter(made))

    def _add_check(self, step: Step, tracer: Tracer) -> None:
        """What the core is to check of values that an op refuses: positions, and integers it divides by."""
        names = tuple(names_of(step.op, step.structure))
        looked_at = step.op.checks.positions if step.op.checks is not None else names[1]
        if step.op.checks is None and step.dtypes[0] in FLOATS:
            return
        parts: list[tuple[str, Any]] = []
        for name, (kind, k) in zip(names, step.args):
            if kind == "number":
                parts.append(("number", k))
            elif kind == "operand":
                return  # of the generator's
            elif k < len(self.operands):
                own = self.operands[k]
                parts.append(("leaf", own) if isinstance(own, int) else ("met", own))
            elif name == looked_at:
                maker = next(s for s in tracer.steps if k in s.outs)
                if isinstance(maker.op, str) or not maker.op.gives_positions:
                    tracer.refuse(f"computes what {step.name} takes as positions or divides by")
                return
            else:  # of which only the sizes matter
                tracer.by_value.add((k, -1))
                parts.append(("met", _core.from_nested(0, tracer.dtypes[k]).expand(tracer.sizes[k])))
        self.checks.append((step.op.handle, step.structure, parts))

    # -- what it depends on -----------------------------------------------------------------------------

    def _sizes_by_value(self, tracer: Tracer, leaves: list[Any]) -> list[tuple[int, int, int]]:
        """(argument, dim, size) of the sizes that became numbers on the way."""
        from_slot: dict[int, tuple[int, int]] = {}
        operands = self.described(leaves)
        first = 0
        for k, described in enumerate(operands):
            if isinstance(described, str):
                first += 1
                continue
            for d in range(len(described[1])):
                from_slot[first + d] = (k, d)
            first += len(described[1])
        if self.op is None:
            return [(k, d, n) for k, x in enumerate(leaves) for d, n in enumerate(_core.place(x)[2])]
        # all steps, those no result needs too: Python may have branched on their sizes
        found = _slots_by_value(tracer, operands)
        sizes = []
        for slot in found:
            k, d = from_slot[slot]
            which = self.operands[k]
            if isinstance(which, int):
                sizes.append((which, d, leaves[which].shape[d]))
        return sorted(sizes)

    def described(self, leaves: list[Any]) -> tuple[Any, ...]:
        """How the op's operands look."""
        tensors = [leaves[x] if isinstance(x, int) else x for x in self.operands]
        looks: list[Any] = []
        for x in tensors:
            sizes = _core.place(x)[2]
            looks.append((str(x.dtype).rpartition(".")[2], tuple(int(n == 1) for n in sizes), None))
        return (*looks, *self.steps.numbers)

    def all_operands(self) -> list[Any]:
        """The op's tensors: `operands`, then those that are used again."""
        return [*self.operands, *(self.operands[k] for k in self.steps.again)]

    def parts(self) -> list[tuple[str, Any]]:
        """The op's operands, as the core has them."""
        operands = self.all_operands()
        own = {id(x) for x in self.written}
        tensors = [
            ("leaf", x) if isinstance(x, int) else ("copied" if id(x) in own else "met", x) for x in operands
        ]
        return [*tensors, *self.numbers]

    def check(self, leaves: list[Any]) -> None:
        """Raises what the ops would raise of values they refuse."""
        for op, structure, parts in self.checks:
            _core.check_op(op, structure, tuple([leaves[x] if kind == "leaf" else x for kind, x in parts]))

    def watch(self, roots: list[Any], watch: Watch, leaves: list[Any]) -> None:
        """Learns by which places what it met is found, and what else the code that ran may have read."""
        self.conditions += [
            (k, "__dict__", dict(vars(x))) for k, x in enumerate(leaves) if _core.has_attributes(x)
        ]
        modules = [x for x in watch.objects_met() if "training" in getattr(x, "__dict__", ())]
        read = Read(watch.ran, self.met)
        for way in ways_to(roots, [*self.met, *modules]).values():
            for place in way:
                read.place(place)
        marks = [v for x in leaves if _core.has_attributes(x) for v in vars(x).values()]
        for thing in (*roots, *watch.objects_met(), *marks):
            read.follow(thing)
        given = set(map(id, leaves))
        for x in (*self.met, *watch.tensors_met()):
            if id(x) not in given:
                read.attributes(x)
        self.guards, self.outside = read.guards()
        # arguments that the function meets on another way too: those alone stand for both
        state = ways_to(roots, leaves)
        self.pins = {k: x for k, x in enumerate(leaves) if id(x) in state}

    def alike(self, call: Call) -> bool:
        """Whether what it met and read is as it was, and Python reads the same numbers."""
        leaves = call.leaves
        if not all(same_number(call.numbers[k], x) for k, x in self.fixed):
            return False
        if not all(fits_number(call.numbers[k]) for k in self.flowing):
            return False
        for x, what, answer in self.conditions:
            own = None if x is None else leaves[x] if isinstance(x, int) else x
            if not _holds(own, what, answer):
                return False
        looks = all(look == look_of(x) for look, x in zip(self.looks, self.met))
        pinned = all(leaves[k] is x for k, x in self.pins.items())
        other = any(x is own for own in self.met for x in leaves)
        return looks and pinned and not other and bool(self.guards.hold()) and not self._meets_written(leaves)

    def _meets_written(self, leaves: list[Any]) -> bool:
        """Whether an argument shares the memory of a buffer that is written."""
        own = {_core.place(x)[0] for x in self.written}
        return bool(own) and any(isinstance(x, _core.Tensor) and _core.place(x)[0] in own for x in leaves)


def _slots_by_value(tracer: Tracer, operands: tuple[Any, ...]) -> set[int]:
    """The slots of operands' sizes that values whose sizes were read, or that equal them, are made of."""
    function = CellFunction(CellOp("sizes", tracer.finish_all()), ())
    walk = function.walk(operands)
    found: set[int] = set()
    for k, size in tracer.numbered_sizes():
        if k not in walk.values:
            continue  # of a backward, whose graph has the sizes as numbers
        for d, dim in enumerate(walk.values[k].shape):
            if isinstance(dim, Size) and (tracer.reads(k, d) or size[d] in tracer.numbers_seen):
                found |= slots_named(dim)
    slot = 0
    for k, look in enumerate(operands):
        if isinstance(look, str):
            slot += 1
            continue
        for d, one in enumerate(look[1]):
            if not one and not isinstance(walk.values[k].shape[d], Size):  # an op given numbers has fixed it
                found.add(slot)
            slot += 1
    return found
