"""A function of tensors as a graph with names: what traces, programs and exports are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

from kiln import _core
from kiln.capture.called import CALLED, differentiated, is_replaced
from kiln.capture.function import Forward
from kiln.capture.pure.steps import Step
from kiln.capture.pure.values import names_of
from kiln.capture.recipes import CLASS_DIM, FLAT, position_check, positions_along
from kiln.device import device
from kiln.errors import is_own, place
from kiln.graph.graph import Shape
from kiln.graph.size import Size, product
from kiln.nn import Module
from kiln.table.arguments import without_values
from kiln.table.kinds import FLOATS
from kiln.tracing.answers import Condition
from kiln.tracing.captured import (
    RECORDED,
    UNRECORDED,
    Captured,
    Check,
    Input,
    Modes,
    Raises,
    State,
    flat,
    like,
)
from kiln.tracing.compare import random_states, refuse_drawn
from kiln.tracing.dims import declared
from kiln.tracing.floats import TracedFloat, roots_followed
from kiln.tracing.noted import Notes
from kiln.tracing.parameters import by_input, parameter_names, specs_for, takes_any_keyword
from kiln.tracing.questions import Unknown
from kiln.tracing.recorder import Recorder, TracingError
from kiln.tracing.sizes import Guard
from kiln.tracing.symbolic import Traced, plain
from kiln.tracing.trees import Tree, build, constants, flatten
from kiln.tracing.variation import NONE, Variation, deeper, merged, other_type


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def capture(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    dims: Any = None,
    root: Any = None,
    on_data: str = "refuse",
    has_values: bool = True,
    varied: Variation | None = None,
    written: frozenset[int] = frozenset(),
    preserved: Sequence[str] | None = None,
    told: Sequence[bool] | None = None,
    begins: Modes = RECORDED,
) -> Captured:
    """What `fn(*args, **kwargs)` does, as a graph. `dims`: which sizes vary, as `dynamic_shapes` of
    `kiln.jit.trace`; `root`: the module whose parameters and buffers it uses (fn itself, if it is one);
    `has_values`: whether the arguments have values, or only say what such look like; `varied`: what is
    otherwise than in the example, where arguments that are `written` stay several; such a run is there to be
    compared, and has no graph; `preserved`: that calls of modules are noted, with the signatures of these;
    `told`: what it is told when it asks for grad or inference mode; `begins`: those it is followed with.
    TracingError for what a graph would not do again, with the line.
    """
    kwargs = kwargs or {}
    root = fn if root is None and isinstance(fn, Module) else root
    name = getattr(fn, "__qualname__", None) or type(fn).__name__
    found = Captured(name)
    leaves: list[Any] = []
    names: list[str] = []
    found.parameters = parameter_names(fn, len(args))
    found.in_tree = flat(args, kwargs, leaves, names, found.parameters)
    place: dict[int, int] = {}
    found.aliases = tuple(place.setdefault(id(x), k) for k, x in enumerate(leaves))
    found.distinct = sorted(set(found.aliases))
    distinct = list({id(x): x for x in leaves}.values())
    recorder = Recorder(name, on_data, has_values)
    recorder.begins, recorder.modes_shown = begins, None if told is None else list(told)
    dims = by_input(fn, args, len(kwargs), dims) if dims else None
    shapes = _declare(found, recorder, leaves, names, dims) if dims else {}
    found.casts = _core.modes()[2] is not None
    found.types = [type(x).__name__ for x in distinct]
    rest = len(kwargs) > 1 and takes_any_keyword(fn)  # then their order can matter
    how = varied or NONE
    recorder.gives_others, recorder.without = how.copies, how.without
    found.attributes = [dict(vars(x)) if _core.has_attributes(x) else {} for x in distinct]
    found.alike = merged(distinct, shapes, written)
    found.one = found.alike if how.same else {}
    places = _places(root) if root is not None else _places_around(fn)
    found.unsaved = _unsaved(root) if root is not None else set()
    notes = Notes(root, recorder, preserved) if root is not None and preserved is not None else None
    returned: list[Any] = []
    stand_ins: dict[int, Any] = {}
    seen: dict[int, Any] = {}  # arguments as the function is to see them
    state_of: dict[int, tuple[str, str, Any]] = {}
    outputs: list[Any] = []
    rebound: dict[int, Any] = {}  # what a buffer is after the run, where it was assigned

    def again(begins: Modes, told: Sequence[bool] | None = None, how: Variation | None = NONE) -> Captured:
        """The same once more."""
        return capture(
            fn, args, kwargs, dims, root, on_data, has_values, how, written, preserved, told, begins
        )  # fmt: skip

    def stand_in() -> None:
        for x in leaves:
            if id(x) not in stand_ins:
                varies = any(isinstance(d, Size) for d in shapes.get(id(x), ()))
                other = None if varies else other_type(type(x), how)
                made = recorder.stand_in(x, True, shapes.get(id(x)), other)
                stand_ins[id(x)] = made
                seen[id(x)] = Traced(made, recorder) if varies else made
        for qualified, kind, _, _, tensor in places:
            if id(tensor) not in stand_ins:
                made = stand_ins[id(tensor)] = recorder.stand_in(tensor, False)
                state_of[id(made)] = qualified, kind, tensor
                recorder.value(made)  # in the model's order, those too that nothing reads
        for k, first in found.one.items():
            seen[id(distinct[k])] = seen[id(distinct[first])]

    def run() -> Any:
        with _core.ModeSwitch(None, False):  # no tensors of inference mode, which are saved for no backward
            stand_in()
        given, named = _replaced(args, seen), _replaced(kwargs, seen)
        if how.order and rest:
            named = dict(reversed(named.items()))
        more = [list(seen.values()) for _ in range(3)] if how.around else []
        with (
            _exchanged(places, stand_ins),
            notes.noting() if notes else nullcontext(),
            roots_followed() if found.dims else nullcontext(),
        ):
            result = deeper(lambda: fn(*given, **named)) if how.around else fn(*given, **named)
            result = recorder.finish_result(result)
            del more
            for qualified, kind, held, key, tensor in places:
                made, now = stand_ins[id(tensor)], held.get(key)
                if now is not made:
                    rebound[id(made)] = _rebound(recorder, qualified, kind, made, now)
        found.out_tree = flatten(result, outputs, found.outputs, "output")
        outputs[:] = [getattr(y, "whole", y) for y in outputs]
        found.out_tree = constants(found.out_tree, partial(_size_given, found))
        _refuse_others(found.out_tree, recorder)
        returned.append(result)

    state = _core.random_state()
    outside = random_states()
    before, enabled = _core.modes(), _core.times_enabled()
    unknown, refused = False, None
    try:
        _core.set_modes(*begins, before[2])
        with without_values(recorder):
            _core.trace(recorder, True, run, (), {}, ())
        recorder.expect_modes((*begins, before[2]))
        if recorder.failure is not None:
            raise recorder.failure
    except Unknown:
        unknown = True
    except BaseException as error:
        if recorder.failure is not None:
            raise recorder.failure from None
        if not found.dims or not isinstance(error, Exception):
            raise
        refused = error
    finally:
        _core.set_modes(*before)
        found.drawn = _core.random_state()[1] - state[1]
        if recorder.known.value_of(recorder.drawn) == found.drawn:
            found.drawn = recorder.drawn
        _core.set_random_state(*state)
    if refused is not None:
        _refuse_sizes(found, refused, partial(capture, fn, args, kwargs, None, root, on_data, has_values))
    if unknown:
        return again(begins, again(before[:2]).kept.modes_told, varied)
    if recorder.modes_asked and begins == RECORDED:
        recorder.state_modes(again((False, before[1]), recorder.modes_told).kept.modes_asked)
    refuse_drawn(name, outside)
    recorder.expect_unwritten()
    recorder.expect_attributes(outputs)
    found.kept, found.given_back = recorder, recorder.given_back
    _finish(
        found,
        recorder,
        leaves,
        names,
        distinct,
        stand_ins,
        state_of,
        outputs,
        rebound,
        notes.kept() if notes is not None else [],
    )
    recorder.expect_no_leaf(outputs)
    if notes is not None:
        found.hierarchy = notes.settled(found, {id(tensor): name for name, *_, tensor in reversed(places)})
    if varied is None:
        _make(found, recorder)
    if varied is None and begins == RECORDED and _core.times_enabled() != enabled:
        for modes in UNRECORDED:
            _follow_otherwise(found, modes, partial(again, modes, how=None))
    return found


def _follow_otherwise(found: Captured, modes: Modes, follow: Callable[[], Captured]) -> None:
    """Finds what the function is where it is called in other modes, if it records gradients in these: a
    refusal, where it is no program of the same tensors then.
    """
    before = _core.modes()
    other = None
    try:
        _core.set_modes(*modes, before[2])
        other = follow()
    except TracingError:
        pass
    finally:
        _core.set_modes(*before)
    if other is not None and not any((*other.history, *other.written)):
        return
    if other is not None and _same_tensors(found.state, other.state):
        found.otherwise[modes] = other
        return
    lines = () if other is None else zip(other.steps.steps, other.step_lines)
    line = next((line for step, line in lines if step.history), found.name)
    found.otherwise[modes] = Condition(-1, "is_grad_enabled", True, line, found.name)


def _same_tensors(states: list[State], others: list[State]) -> bool:
    """Whether two runs met the same tensors: constants that they made hold the same."""
    return len(states) == len(others) and all(
        (a.name, a.kind) == (b.name, b.kind)
        and (a.tensor is b.tensor or (a.kind == "constant" and _core.same_bytes(a.tensor, b.tensor)))
        for a, b in zip(states, others)
    )


def _refuse_sizes(found: Captured, error: Exception, alone: Callable[[], Captured]) -> NoReturn:
    """The refusal of a function that raises where sizes vary; what it raises by itself, if `alone`, which
    follows it with the example's sizes, does.
    """
    alone()
    ones = [r for r in found.dims.values() if r.hint != r.example]
    names = " and ".join(repr(r.name) for r in ones or found.dims.values())
    few = "".join(f"; {r.name} is {r.example} in the example, and was followed as {r.hint}" for r in ones)
    raise TracingError(
        f"{found.name}: {_line_of(error)} does not do for all sizes that {names} may have: {error}{few}; "
        "declare it with its one size, or leave it out of dynamic_shapes"
    ) from error


def _line_of(error: BaseException) -> str:
    """The user's line that an error came from."""
    line, at = "an unknown line", error.__traceback__
    while at is not None:
        if not is_own(at.tb_frame):
            line = place(at.tb_frame.f_code.co_filename, at.tb_lineno)
        at = at.tb_next
    return line


def _finish(
    found: Captured,
    recorder: Recorder,
    leaves: list[Any],
    names: list[str],
    distinct: list[Any],
    stand_ins: dict[int, Any],
    state_of: dict[int, tuple[str, str, Any]],
    outputs: list[Any],
    rebound: dict[int, Any],
    kept_values: list[int],
) -> None:
    """`kept_values`: what the steps make besides, though nothing of the program uses it."""
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
        value = recorder.value(rebound[id(made)]) if id(made) in rebound else value
        if id(made) in rebound:
            found.assigned.add(k)
        if value is not None:
            found.mutated.append(("state", k))
            changed.append(value)
    count = len(distinct)
    for k, y in enumerate(outputs):
        at = recorder.operand_of(y)
        if at is not None and values[k] == at:
            found.same[k] = ("input", at) if at < count else ("state", at - count)
    found.random = recorder.numbers
    raised = []
    if recorder.failed is not None:
        tensor, errors = recorder.failed
        found.checks.append(Raises(len(values) + len(changed), tuple(errors)))
        raised = [recorder.value(tensor)]
    extra = raised + add_checks(found, recorder, len(values) + len(changed) + len(raised))
    kept, more = recorder.check_reads(len(values) + len(changed) + len(extra))
    found.checks += kept
    found.checks += recorder.stated([*(x.name for x in found.inputs), *(s.name for s in found.state)])
    extra += more + kept_values
    found.steps = recorder.steps_of([*values, *changed, *extra])
    set_histories(found)
    asks = [recorder.asks(y, history) for y, history in zip(outputs, found.history)]
    found.asks = {k: own for k, own in enumerate(asks) if own is not None and k not in found.same}
    found.step_lines = _lines_of(recorder, [*values, *changed, *extra])
    again = len(found.steps.again)
    found.shapes = {**dict(recorder.numbered(again)), **recorder.numbered_shapes(again)}
    found.guards = list(recorder.known.guards.values())
    found.met = [s.tensor.detach().clone() for s in found.state if s.kind == "constant"]


def _make(found: Captured, recorder: Recorder) -> None:
    """Makes the graph and what runs it."""
    found.number_sizes()
    for a, b in recorder.known.ties:
        found.graph.require_equal(a, b, found.name)
    for a, b in found.graph.checks if found.dims else ():
        told = f"needs {found.size_text(a)} to equal {found.size_text(b)}"
        if recorder.may_equal(a, b, told):
            if (a, "==", b) not in recorder.known.guards:
                found.guards.append(Guard(a, "==", b, True, found.name))
            continue
        raise TracingError(
            f"{found.name}: needs {found.size_text(a)} to equal {found.size_text(b)}, which not all declared "
            "sizes do: leave it out of dynamic_shapes"
        )
    found.make_op()


def _declare(
    found: Captured, recorder: Recorder, leaves: list[Any], names: list[str], dims: Any
) -> dict[int, Shape]:
    """The shapes of arguments with the sizes that vary as symbols; ValueError for what does not fit."""
    spec_of: dict[int, dict[int, Any]] = {}
    for x, spec in zip(leaves, specs_for(found.in_tree, found.parameters, dims)):
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
            if kind in ("number", "size"):
                parts.append((kind, k))
                needed = needed or name == looked_at
            elif kind == "operand":
                break
            elif k < len(recorder.operands):
                parts.append(("operand", k))
                needed = needed or name == looked_at
            elif name == looked_at:
                maker = next(s for s in recorder.steps if k in s.outs)
                if step.op.checks is not None and _in_range(maker, step, recorder.sizes_of):
                    continue
                late = needed = True
                parts.append(("result", first + len(extra)))
                extra.append(k)
            else:  # of which only the sizes matter
                look = recorder.dtypes[k], recorder.sizes_of(k)
                varies = any(isinstance(n, Size) for n in look[1])
                parts.append(("varies", look) if varies else ("like", like(*look)))
        else:
            if needed:
                found.checks.append(Check(step.op.handle, step.structure, tuple(parts), late))
    return extra


def _lines_of(recorder: Recorder, results: Sequence[int]) -> list[str]:
    """The lines of the steps that these values need."""
    wanted, lines = set(results), []
    for step, line in zip(reversed(recorder.steps), reversed(recorder.lines)):
        if wanted.intersection(step.outs):
            lines.append(line)
            wanted.update(k for kind, k in step.args if kind == "value")
    return lines[::-1]


def _in_range(maker: Step, step: Step, sizes_of: Callable[[int], Shape]) -> bool:
    """Whether positions are along a dim of the size of that which they point into, by what made them."""
    if isinstance(maker.op, str) or not maker.op.gives_positions:
        return False
    along = positions_along(Forward(maker.op, maker.structure))
    check = position_check(Forward(step.op, step.structure))
    assert check is not None
    given, into = sizes_of(maker.args[0][1]), sizes_of(step.args[check[1]][1])
    dim = min(1, len(into) - 1) if check[2] == CLASS_DIM else check[2]
    count = product(given) if along == FLAT else given[along] if given else 1
    size = into[dim] if into else 1
    return count <= size if isinstance(count, int) and isinstance(size, int) else bool(count == size)


def set_histories(found: Captured) -> None:
    """Finds from which operands gradients come, to each result and to what is written."""
    count = len(found.outputs)
    every = histories(found, count + len(found.mutated))
    found.history = every[:count]
    owner = {out: step for step in found.steps.steps for out in step.outs}
    found.written = []
    for (kind, which), value, history in zip(found.mutated, found.steps.results[count:], every[count:]):
        while (step := owner.get(value)) is not None and step.op is CALLED and is_replaced(step.structure[1]):
            value = step.args[0][1]
        own = which if kind == "input" else len(found.inputs) + which
        found.written.append(() if value == own else history)  # it has its own history still


def histories(found: Captured, count: int) -> list[tuple[int, ...]]:
    """Of each result, the operands that gradients flow to from it."""
    steps = found.steps
    own = [x.dtype for x in found.inputs] + [_dtype(s.tensor) for s in found.state]
    reach: dict[int, frozenset[int]] = {k: frozenset((k,)) for k, dtype in enumerate(own) if dtype in FLOATS}
    none: frozenset[int] = frozenset()
    for step in steps.steps:
        if step.flows:
            args = step.args if step.op is not CALLED else step.args[: differentiated(step.structure[1])]
            joined = none.union(*(reach.get(k, none) for kind, k in args if kind == "value"))
            reach.update((k, joined) for k, dtype in zip(step.outs, step.dtypes) if dtype in FLOATS)
    return [tuple(sorted(reach.get(k, none))) for k in steps.results[:count]]


def _size_given(found: Captured, value: Any) -> Any:
    """A result that is no tensor; a size as graphs have it."""
    if type(value) is TracedFloat:
        return value.read("returned as a float")
    found.gives_sizes = found.gives_sizes or isinstance(value, Size)
    return plain(value)


def _refuse_others(tree: Tree, recorder: Recorder) -> None:
    """Refuses results that a trace cannot give again."""
    if tree.kind == "constant" and not isinstance(
        tree.value, (int, float, bool, complex, str, bytes, type(None), _core.dtype, Size, device)
    ):
        recorder.refuse(
            f"returns a {type(tree.value).__name__}, which is made of neither tensors nor numbers"
        )
    for item in tree.items:
        _refuse_others(item, recorder)


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


def _unsaved(root: Any) -> set[str]:
    """The buffers that a module's state_dict leaves out."""
    return {
        f"{prefix}.{key}" if prefix else key
        for prefix, module in root.named_modules()
        for key in module._non_persistent_buffers_set
    }


def _places_around(fn: Any) -> list[Place]:
    """The buffers of modules that a function closes over, or finds among its globals: it may write them."""
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    if code is None:
        return []
    held = dict(zip(code.co_freevars, (_content(c) for c in fn.__closure__ or ())))
    held |= {name: fn.__globals__.get(name) for name in code.co_names}
    found: list[Place] = []
    for name, module in held.items():
        if isinstance(module, Module):
            found += [(f"{name}.{own}", *rest) for own, *rest in _places(module) if rest[0] == "buffer"]
    return found


def _rebound(recorder: Recorder, name: str, kind: str, made: Any, now: Any) -> Any:
    """The tensor that a buffer was assigned, which the program writes into it; others are refused."""
    now = getattr(now, "whole", now)
    fits = isinstance(now, _core.Tensor) and now.dtype == made.dtype and now.shape == made.shape
    if kind != "buffer" or not fits:
        recorder.refuse(
            f"assigns {name}, which a trace can do to a buffer alone, of the same sizes and dtype"
        )
    recorder.value(made)
    return now


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not yet filled
        return None


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
