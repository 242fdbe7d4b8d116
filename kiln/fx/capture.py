"""One call of a function with its tensors stood for: what it does with them is kept as steps, and run later.

    an op -> a step of the segment, whose key finds the step of an earlier call, and with it what the result
             looks like; a new one is tried on copies of the tensors
    a value is read -> the segment's steps run on the tensors themselves, the next segment begins

Python runs at each call, so nothing that it reads or changes must be known beforehand; what was asked of a
backend is found again by the steps alone.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from kiln import _core
from kiln.absent import asking
from kiln.capture.capturing import STATE
from kiln.errors import is_own, place
from kiln.fx import names
from kiln.fx.asked import AT_ONCE, GIVE_NOTHING, METADATA, READS, calls_back, sized_by_values, writes
from kiln.fx.looks import Same, copy_of, hollow, look
from kiln.fx.proxy import TracerBase, in_assert
from kiln.fx.sizes import Argument, Number, SizePlace, Source, Term
from kiln.fx.types import asks_in_frames
from kiln.fx.values import Place, Value, mapped, places_in, tensors_in, value_of
from kiln.ops.random.generator import Generator
from kiln.switches import _assert

__all__ = ["Break", "Capture", "Segment", "Step"]


_UPDATES = ("batch_norm", "instance_norm", "__setitem__")  # of running averages


class Break(Exception):
    """What cannot be kept in one graph, and the line."""


def line() -> str:
    frame = asking()
    return "an unknown line" if frame is None else place(frame.f_code.co_filename, frame.f_lineno)


class Step:
    """An op of a segment, the steps that came behind it, and what backends made of graphs that end here."""

    def __init__(self, kind: str, target: Any, args: Any, kwargs: Any) -> None:
        self.kind, self.target, self.args, self.kwargs = kind, target, args, kwargs
        self.next: dict[Any, Step | None] = {}  # None: what is done at once
        self.runs: dict[tuple[int, ...], Any] = {}
        self.result: Any = None  # what it looks like: a tensor whose values mean nothing
        self.same: Place | None = None  # the argument that it wrote and gave
        self.writes = False  # into an argument
        self.line: Any = None

    def call(self, shadows: list[Any], inputs: list[Any], numbers: list[int]) -> Any:
        """What it gives for tensors in the place of steps and inputs, of sizes that were read before."""
        sources = {"step": shadows, "input": inputs, "number": numbers}
        args, kwargs = mapped((self.args, self.kwargs), Place, lambda p: p.of(sources))
        if self.kind == "call_method":
            return getattr(args[0], self.target)(*args[1:], **kwargs)
        return self.target(*args, **kwargs)


class Segment:
    """Steps that run as one graph."""

    def __init__(self, first: Step, modes: Any) -> None:
        self.at, self.modes, self.start_modes = first, modes, modes
        self.path: list[Step] = []
        self.inputs: list[Any] = []
        self.names: list[str] = []
        self.places: dict[int, int] = {}  # of tensors, by identity
        self.fixed: set[int] = set()  # inputs that are a module's
        self.numbers: list[int] = []  # sizes of tensors that are gone
        self.sources: dict[Source | Argument, int] = {}  # of those, and of arguments
        self.kept: dict[int, Any] = {}  # copies of tensors that lay about, and their versions
        self.copies: list[Any] = []
        self.shadows: list[Any] | None = None  # what its steps give for the copies
        self.values: list[weakref.ref[Value]] = []
        self.writes = False  # into an input

    def forget(self, count: int) -> None:
        """Inputs behind a number of them."""
        for tensor in self.inputs[count:]:
            self.fixed.discard(self.places.pop(id(tensor)))
        del self.inputs[count:], self.names[count:], self.copies[count:]
        self.kept = {number: kept for number, kept in self.kept.items() if number < count}


class Capture(TracerBase):
    """The segments of one call. `owner`, what was compiled, knows where steps begin and what runs."""

    def __init__(self, owner: Any, named: Callable[[], dict[int, str]]) -> None:
        self.owner, self.named = owner, named  # called for the names of tensors where a graph is made
        self.reference = weakref.ref(self)
        self.graph: Any = self  # one program: values of two do not meet
        self.passing = False  # what is asked is done at once
        self.broken: Break | None = None
        self.known: dict[int, Value] = {}  # of tensors, by identity
        self.made: list[weakref.ref[Value]] = []
        self.number = 0  # segments that ran
        self.segment = self._begin()

    def _begin(self) -> Segment:
        modes = _core.modes()
        return Segment(self.owner.first_of((modes, _core.get_default_dtype())), modes)

    # -- tensors and what stands for them --

    def lift(self, tensor: Any, path: str = "", fixed: bool = False) -> Value:
        """What stands for a tensor that is there; `fixed`: it is a module's."""
        known = self.known.get(id(tensor))
        if known is None or known.index is not None or known.value is not tensor:
            known = self.known[id(tensor)] = value_of(self, tensor, None, path, fixed)
            self.made.append(weakref.ref(known))
        return known

    def shown(self, result: Any) -> Any:
        """What the program sees of something that is there."""
        if self.passing:
            return result
        return mapped(result, _core.Tensor, self.lift) if isinstance(result, _core.Tensor) else result

    def real(self, value: Value, why: str) -> Any:
        """The tensor that a value is: what was kept runs before."""
        if why.startswith("a value"):
            self._refuse(why)
        if value.index is not None or self.segment.path:
            self.flush()
        return value.value

    def asserts(self, value: Value) -> bool:
        """Keeps `assert value` as a step, where one graph was asked for."""
        frame = asking() if self.owner.fullgraph and not self.passing else None
        if frame is None or not in_assert(frame):
            return False
        self.create_proxy("call_function", _assert, (value, "assertion failed"), {})
        return True

    def _refuse(self, why: str) -> None:
        """Raises where one graph was asked for."""
        if self.owner.fullgraph and not self.passing and STATE.capture is self:
            found = self.broken = Break(f"{why} at {line()}")
            raise found

    def _input(self, tensor: Any, path: str, fixed: bool = False) -> Any:
        """The key of a tensor that is an input, from now on if it was none."""
        segment = self.segment
        number = segment.places.get(id(tensor))
        if number is not None:
            return "input", number
        number = segment.places[id(tensor)] = len(segment.inputs)
        segment.inputs.append(tensor)
        if not path and not tensor.requires_grad:
            segment.kept[number] = (tensor._version, tensor.detach().clone())
        if fixed:
            segment.fixed.add(number)
        segment.names.append(path or f"tensor_{number}")
        segment.copies.append(copy_of(tensor) if segment.shadows is not None else None)
        return "input", number, look(tensor)

    def _key(self, a: Any) -> Any:
        """What must be the same of arguments for steps to be the same. TypeError: nothing tells."""
        kind = type(a)
        if issubclass(kind, (Value, _At)):
            index = a.index
            return ("step", index) if index is not None else self._input(a.value, a.path, a.fixed)
        if kind is Number:
            return self._number_key(a)
        if kind in _SIMPLE:
            return (kind, a)
        if kind is tuple or kind is list:
            return (kind, *[self._key(x) for x in a])
        if isinstance(a, _core.Tensor):
            return self._input(a, "")
        if isinstance(a, (tuple, list)):
            return (kind, *[self._key(x) for x in a])
        if isinstance(a, dict):
            return (kind, *a, *[self._key(x) for x in a.values()])
        if isinstance(a, slice):
            return (slice, self._key(a.start), self._key(a.stop), self._key(a.step))
        if kind.__module__ == "numpy" and getattr(a, "shape", ()) != ():  # an array may be another one
            raise TypeError("an array is no part of a key")
        return look(a)

    def _number_key(self, a: Number) -> Any:
        """What must be the same of a size: where it comes from. One of another call is a number."""
        if a.capture is not self.reference:
            return (int, int(a))
        if type(a.made) is tuple:
            return (a.made[0].__name__, *map(self._key, a.made[1:]))
        dim, value = a.made.dim, self._source(a)
        if value is None:
            number = self.segment.sources.setdefault(a.made, len(self.segment.sources))
            if number == len(self.segment.numbers):
                self.segment.numbers.append(int(a))
            return ("number", number, int(a))
        return ("size", ("step", value) if type(value) is int else self._key(value), dim)

    def _source(self, a: Number) -> Any:
        """Whose size it is: the number of a step, or a value; None: a tensor that is gone or has others."""
        source = a.made
        if source.index is not None and source.segment() is self.segment:
            return source.index
        value = source.value()
        if value is None or value.index is not None or value.value.dim() <= max(source.dim, ~source.dim):
            return None
        return value if value.value.shape[source.dim] == a else None

    def _number_placed(self, a: Number) -> Any:
        if a.capture is not self.reference:
            return int(a)
        if type(a.made) is tuple:
            return Term(a.made[0], tuple(map(self._placed, a.made[1:])))
        value = self._source(a)
        if value is None:
            return SizePlace("number", self.segment.sources[a.made], 0)
        at = Place("step", value) if type(value) is int else self._placed(value)
        return SizePlace(at.kind, at.number, a.made.dim)

    def _placed(self, a: Any) -> Any:
        """Arguments that have a key, with places instead of tensors."""
        kind = type(a)
        if kind is Number:
            return self._number_placed(a)
        if issubclass(kind, (Value, _At)):
            if a.index is not None:
                return Place("step", a.index)
            a = a.value
        if isinstance(a, _core.Tensor):
            return Place("input", self.segment.places[id(a)])
        if isinstance(a, tuple):
            items = [self._placed(x) for x in a]
            return tuple(items) if kind is tuple else kind(*items) if hasattr(a, "_fields") else kind(items)
        if isinstance(a, list):
            return [self._placed(x) for x in a]
        if isinstance(a, dict):
            return {k: self._placed(x) for k, x in a.items()}
        if isinstance(a, slice):
            return slice(*(self._placed(x) for x in (a.start, a.stop, a.step)))
        return a

    # -- ops --

    def plain(self, function: Any, args: Any, kwargs: Any, frame: FrameType | None) -> Any:
        """A call without values among its arguments; NotImplemented: it is made as ever."""
        name = getattr(function, "__name__", "")
        if self.passing or name in METADATA:
            return NotImplemented
        if frame is not None and is_own(frame):
            draws = "normal" in name or "uni" in name
            if self.segment.path and (self.segment.writes or draws or name in AT_ONCE or writes(name)):
                self._now(lambda: None, (), {}, "")  # it may look at what was kept, or change it
            return NotImplemented
        return self.create_proxy("call_function", function, args, kwargs)

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, type_expr: Any = None,
        proxy_factory_fn: Any = None,
    ) -> Any:  # fmt: skip
        called = _called(target)
        before = _core.take_all(False)
        try:
            if self.passing:
                return self._call(kind, target, args, kwargs)
            if called in METADATA and kind == "call_function":
                return self._call(kind, target, *mapped((args, kwargs), Value, lambda v: v.value))
            if called not in READS and called not in AT_ONCE:
                met = self._met(kind, target, args, kwargs)
                if met is not None:
                    return self._values(met, args, kwargs)
            if calls_back(target, (args, kwargs)):
                return self._now(partial(self._call, kind, target), args, kwargs, "")
            call = partial(self._call, kind, target)
            if called in AT_ONCE:
                return self._now(call, args, kwargs, "")
            if called in READS:
                return self._now(call, args, kwargs, f"a value was read: {called}()")
            if sized_by_values(called, args, kwargs):
                return self._now(call, args, kwargs, f"the sizes of what {called} gives depend on values,")
            return self._step(kind, target, args, kwargs, called)
        finally:
            _core.take_all(before)

    def end(self, why: str = "") -> None:
        """Ends the graph; without a reason it is none that one graph would forbid."""
        before = _core.take_all(False)
        try:
            if why:
                self._refuse(why)
            self.flush()
        finally:
            _core.take_all(before)

    def at_once(self, function: Any, args: Any, kwargs: Any) -> Any:
        """A call of what calls the program's own code, with the tensors themselves."""
        before = _core.take_all(False)
        try:
            return self._now(partial(self._call, "call_function", function), args, kwargs, "")
        finally:
            _core.take_all(before)

    def _call(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = mapped((args, kwargs), Value, lambda v: v.value)
        if kind == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _now(self, call: Any, args: Any, kwargs: Any, why: str) -> Any:
        """A call that is made at once, behind what was kept."""
        if why:
            self._refuse(why)
        self.flush()
        self.passing = True
        try:
            result = call(args, kwargs) if isinstance(call, partial) else call()
        finally:
            self.passing = False
        return mapped(result, _core.Tensor, self.lift)

    def _modes(self) -> None:
        """Keeps a change of modes: a step of its own."""
        segment, now = self.segment, _core.modes()
        if now == segment.modes:
            return
        if not segment.path:
            self.segment = self._begin()
            return
        if now[1:] == segment.modes[1:]:
            self._append("call_function", names.root_module().set_grad_enabled, (now[0],), {})
        else:
            self._append("call_function", _core.set_modes, now, {})
        segment.modes = now

    def _step(self, kind: str, target: Any, args: Any, kwargs: Any, called: str) -> Any:
        self._modes()
        self._check_kept()
        step = self._append(kind, target, args, kwargs)
        if step is None:
            found: list[Any] = []
            tensors_in((args, kwargs), found)
            if not found:  # what it gives is no tensor's
                return self._call(kind, target, args, kwargs)
            return self._now(partial(self._call, kind, target), args, kwargs, f"a value was read: {called}()")
        return self._values(step, args, kwargs)

    def _append(self, kind: str, target: Any, args: Any, kwargs: Any) -> Step | None:
        """The segment's next step; None for what is done at once instead."""
        segment = self.segment
        before = len(segment.inputs)
        try:
            key = self._step_key(kind, target, args, kwargs)
            known = key in segment.at.next
            found = segment.at.next.get(key)
        except TypeError:  # no key
            known, found = True, None
        if not known:
            found = Step(kind, target, self._placed(tuple(args)), self._placed(dict(kwargs)))
            found = found if self._try(found) else None
            if found is not None:
                called = _called(found.target)
                found.writes = (
                    found.same is not None or "out" in kwargs or writes(called) or called in _UPDATES
                )
            if len(segment.at.next) < 1000:
                segment.at.next[key] = found
        elif found is not None:
            segment.shadows = None
        if found is None:
            segment.forget(before)
            return None
        self._advance(found)
        return found

    def _step_key(self, kind: str, target: Any, args: Any, kwargs: Any) -> Any:
        key = self._key(args if type(args) is tuple else tuple(args))
        named = self._key(kwargs) if kwargs else None
        return kind, target if type(target) is str else Same(target), key, named

    def _advance(self, step: Step) -> None:
        segment = self.segment
        segment.at = step
        segment.path.append(step)
        if step.writes:
            segment.writes = True

    def _met(self, kind: str, target: Any, args: Any, kwargs: Any) -> Step | None:
        """The next step, if an earlier call came from here to the same: what it is was found out then."""
        segment = self.segment
        following = segment.at.next
        if not following or _core.modes() != segment.modes or self._kept_changed():
            return None
        before = len(segment.inputs)
        try:
            found = following.get(self._step_key(kind, target, args, kwargs))
        except TypeError:
            found = None
        if found is None:
            segment.forget(before)
            return None
        segment.shadows = None
        self._advance(found)
        return found

    def _try(self, step: Step) -> bool:
        """What a new step gives, tried on copies; whether that depends on no value."""
        segment = self.segment
        state, modes = _core.random_state(), _core.modes()
        generators: list[Any] = []
        mapped((step.args, step.kwargs), Generator, generators.append)
        states = [g.get_state() for g in generators]
        capturing, self.passing = STATE.capturing, True
        try:
            if segment.shadows is None:
                segment.copies = [copy_of(t) for t in segment.inputs]
                segment.shadows = []
                _core.set_modes(*segment.start_modes)
                for known in segment.path:
                    segment.shadows.append(known.call(segment.shadows, segment.copies, segment.numbers))
                _core.set_modes(*modes)
            result = step.call(segment.shadows, segment.copies, segment.numbers)
        finally:
            _core.set_modes(*modes)
            _core.set_random_state(*state)
            for generator, kept in zip(generators, states):
                generator.set_state(kept)
            STATE.capturing, self.passing = capturing, False
        given = mapped((step.args, step.kwargs), Place, lambda p: p)
        sources = {"step": segment.shadows, "input": segment.copies}
        for place_ in places_in(given):
            if result is not None and type(place_) is Place and sources[place_.kind][place_.number] is result:
                step.same = place_
        if not _is_kept(step, result):
            return False
        segment.shadows.append(result)
        step.result = mapped(result, _core.Tensor, hollow)
        frame = asking()
        if asked := asks_in_frames(frame, self.owner.dynamic):
            self.broken = Break(f"{asked} asks for a tensor's type with `is`: write isinstance(x, kind)")
            raise self.broken
        if frame is not None:
            file, number = frame.f_code.co_filename, frame.f_lineno
            step.line = f'File "{file}", line {number}, in {frame.f_code.co_name}'
        return True

    def _values(self, step: Step, args: Any, kwargs: Any) -> Any:
        """What the program sees of a step's result."""
        index, result = len(self.segment.path) - 1, step.result
        if result is None:
            return None
        if step.same is not None:  # the tensor that was written
            found: list[Any] = []
            tensors_in((args, kwargs), found)
            for x in found:
                place_ = self._placed(x)
                if (place_.kind, place_.number) == (step.same.kind, step.same.number):
                    return x if issubclass(type(x), Value) else self._behind(x)
        return self._shown(result, index)

    def _shown(self, result: Any, index: int) -> Any:
        """A step's result with values for its tensors; each part of a tuple is a step of its own."""
        if result is None:
            return None
        if isinstance(result, _core.Tensor):
            return self._value(result, index)
        items = []
        for k, item in enumerate(result):
            if item is not None:
                self._append("call_function", operator.getitem, (_At(index), k), {})
            items.append(self._shown(item, len(self.segment.path) - 1))
        if isinstance(result, list):
            return items
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)

    def _value(self, shown: Any, index: int) -> Value:
        made = value_of(self, shown, index)
        reference = weakref.ref(made)
        self.segment.values.append(reference)
        self.made.append(reference)
        return made

    def _behind(self, tensor: Any) -> Any:
        """A tensor that lay about and was written: what the program does with it besides must see that."""
        self.flush()
        return self.lift(tensor)

    def _check_kept(self) -> None:
        """Runs what was kept before a tensor that lay about changed, with what that was then."""
        if self._kept_changed():
            self.flush()

    def _kept_changed(self) -> bool:
        inputs = self.segment.inputs
        return any(inputs[k]._version != version for k, (version, _) in self.segment.kept.items())

    # -- segments --

    def flush(self) -> None:
        """Runs what was kept; its values are tensors from here on."""
        segment = self.segment
        if not segment.path:
            if segment.inputs:
                self.segment = self._begin()
            return
        values = [v for r in segment.values if (v := r()) is not None]
        live = tuple(sorted({v.index for v in values if v.index is not None}))
        self.number += 1
        before = _core.take_all(False), STATE.capturing, STATE.capture, _core.modes()
        STATE.capturing, STATE.capture, self.passing = False, None, True
        given = list(segment.inputs)
        for number, (version, copy) in segment.kept.items():
            if given[number]._version != version:
                given[number] = copy
        try:
            _core.set_modes(*segment.start_modes)
            run = segment.at.runs.get(live)
            if run is None:
                run = self.owner.made(self, segment, live)
                segment.at.runs[live] = run
            made = run(given, segment.numbers)
        finally:
            _core.set_modes(*before[3])
            _core.take_all(before[0])
            STATE.capturing, STATE.capture, self.passing = before[1], before[2], False
            self.segment = self._begin()
        made = (made,) if isinstance(made, _core.Tensor) else made
        found = dict(zip(live, made or ()))
        for value in values:
            if value.index is not None:
                tensor = found[value.index]
                object.__setattr__(value, "value", tensor)
                object.__setattr__(value, "index", None)
                self.known[id(tensor)] = value

    def finish(self) -> list[Value]:
        """The values that are held somewhere still; what is done with them from here on is done at once."""
        self.passing = True
        self.known.clear()
        return [v for r in self.made if (v := r()) is not None]


def _called(target: Any) -> str:
    """What is called."""
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


# by which arguments are told apart as they are
_SIMPLE: Any = frozenset((int, str, bool, type(None), _core.dtype))


class _At:
    """A step among arguments."""

    def __init__(self, index: int) -> None:
        self.index = index


def _is_kept(step: Step, result: Any) -> bool:
    """Whether a step's result can be stood for."""
    if result is None:
        return step.target == "__setitem__" or getattr(step.target, "__name__", "") in GIVE_NOTHING
    if getattr(step.target, "__name__", "") in GIVE_NOTHING:
        return True
    found: list[Any] = []
    return _holds_tensors(result, found) and bool(found)


def _holds_tensors(result: Any, found: list[Any]) -> bool:
    """Whether tensors, and None, are all that is in a result."""
    if isinstance(result, _core.Tensor):
        found.append(result)
        return True
    if isinstance(result, (tuple, list)):
        return all(_holds_tensors(x, found) for x in result)
    return result is None
