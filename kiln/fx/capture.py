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
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from kiln import _core
from kiln.absent import asking
from kiln.capture.capturing import STATE
from kiln.device import device
from kiln.errors import is_own, place
from kiln.fx import names
from kiln.fx.proxy import StandIn, TracerBase, in_assert
from kiln.nn import Module as _Module
from kiln.ops.random.generator import Generator
from kiln.switches import _assert

if TYPE_CHECKING:
    from kiln.fx.backends import Backed

__all__ = ["Break", "Capture", "Place", "Segment", "Step", "Value", "look", "mapped"]

# what is asked of a tensor and depends on no value: answered without a step
_METADATA = frozenset(
    "size dim ndimension numel nelement stride storage_offset element_size is_contiguous is_floating_point "
    "is_complex is_signed get_device shape ndim dtype device layout requires_grad is_leaf itemsize nbytes "
    "names is_cuda is_cpu is_mps is_sparse is_quantized is_meta is_nested result_type promote_types can_cast "
    "broadcast_shapes is_tensor output_nr is_grad_enabled get_default_dtype __len__ is_same_size "
    "is_inference is_conj is_neg finfo iinfo has_names is_shared is_pinned is_sparse_csr is_xpu is_mkldnn "
    "are_deterministic_algorithms_enabled is_inference_mode_enabled is_autocast_enabled "
    "get_autocast_dtype get_num_threads is_storage typename is_anomaly_enabled".split()
)
# sizes of the result depend on values
_OF_VALUES = frozenset(
    "nonzero argwhere masked_select unique unique_consecutive bincount combinations unique_dim histogramdd "
    "pack_padded_sequence pad_packed_sequence".split()
)
# ... unless this argument, by position and name, is a number
_BY_NUMBERS = {"repeat_interleave": (1, "repeats"), "tensor_split": (1, "indices_or_sections")}
# what is done at once: it reads values
_READS = frozenset(
    "backward grad item tolist equal allclose is_nonzero data_ptr to_dlpack untyped_storage storage "
    "save".split()
)
# ... or changes what no step can, and reads none
_AT_ONCE = frozenset(
    "register_hook register_post_accumulate_grad_hook retain_grad requires_grad_ numpy from_numpy manual_seed "
    "seed initial_seed get_rng_state set_rng_state load share_memory_ apply_ map_ resize_ resize_as_ set_ t_ "
    "transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ detach_ set_default_dtype set_num_threads "
    "use_deterministic_algorithms set_printoptions compile pin_memory from_dlpack".split()
)
_ASKED_OF_REAL = frozenset(("grad", "grad_fn", "_version", "_backward_hooks", "_grad", "_base", "names"))
_VIEWS = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))
_PLAIN = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis), _core.dtype, device)


_GIVE_NOTHING = ("setitem", "set_grad_enabled", "set_modes", "_assert", "_check")


class Break(Exception):
    """What cannot be kept in one graph, and the line."""


def _line() -> str:
    frame = asking()
    return "an unknown line" if frame is None else place(frame.f_code.co_filename, frame.f_lineno)


def look(x: Any) -> Any:
    """What must be the same of an input, or of an argument that is no tensor, for steps to be the same."""
    if isinstance(x, _core.Tensor):
        shown = (tuple(x.shape), tuple(x.stride()), x.storage_offset(), x.dtype)
        return (type(x), shown, x.requires_grad, x.is_leaf)
    if isinstance(x, _PLAIN):
        return (type(x), repr(x) if isinstance(x, (float, complex)) else x)
    return _Same(x)


class _Same:
    """An object as a key, by its identity."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __hash__(self) -> int:
        return id(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.held is self.held


class Place:
    """What stands for a tensor in a step's arguments: the number of a step, or of an input."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number


def mapped(a: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Arguments with what `function` gives in the place of objects of a class."""
    if issubclass(type(a), kind):
        return function(a)
    if isinstance(a, tuple):
        items = [mapped(x, kind, function) for x in a]
        return (
            type(a)(*items) if hasattr(a, "_fields") else tuple(items) if type(a) is tuple else type(a)(items)
        )
    if isinstance(a, list):
        return [mapped(x, kind, function) for x in a]
    if isinstance(a, dict):
        return {k: mapped(x, kind, function) for k, x in a.items()}
    if isinstance(a, slice):
        return slice(*(mapped(x, kind, function) for x in (a.start, a.stop, a.step)))
    return a


class Step:
    """An op of a segment, the steps that came behind it, and what backends made of graphs that end here."""

    def __init__(self, kind: str, target: Any, args: Any, kwargs: Any) -> None:
        self.kind, self.target, self.args, self.kwargs = kind, target, args, kwargs
        self.next: dict[Any, Step | None] = {}  # None: what is done at once
        self.runs: dict[tuple[int, ...], Any] = {}
        self.result: Any = None  # what it looks like: a tensor whose values mean nothing
        self.same: Place | None = None  # the argument that it wrote and gave
        self.line: Any = None

    def call(self, shadows: list[Any], inputs: list[Any]) -> Any:
        """What it gives for tensors in the place of steps and inputs."""
        sources = {"step": shadows, "input": inputs}
        args, kwargs = mapped((self.args, self.kwargs), Place, lambda p: sources[p.kind][p.number])
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
        self.kept: dict[int, Any] = {}  # copies of tensors that lay about, and their versions
        self.copies: list[Any] = []
        self.shadows: list[Any] | None = []
        self.values: list[weakref.ref[Value]] = []

    def forget(self, count: int) -> None:
        """Inputs behind a number of them."""
        for tensor in self.inputs[count:]:
            del self.places[id(tensor)]
        del self.inputs[count:], self.names[count:], self.copies[count:]
        self.kept = {number: kept for number, kept in self.kept.items() if number < count}


class Value(StandIn):
    """A tensor of the call: the step or input that it is, and something that looks like it."""

    tracer: Capture

    def __init__(self, tracer: Capture, value: Any, index: int | None, path: str = "") -> None:
        set_ = object.__setattr__
        set_(self, "tracer", tracer)
        set_(self, "value", value)  # the tensor itself where index is None
        set_(self, "index", index)  # its step in the segment that has not run
        set_(self, "path", path)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.value)

    def __getattr__(self, name: str) -> Any:
        if name in ("tracer", "value", "index", "path", "node"):
            raise AttributeError(name)
        if name in _ASKED_OF_REAL or self.tracer.passing:
            return self.tracer.shown(getattr(self.tracer.real(self, f"the attribute {name}"), name))
        found = getattr(self.value, name)
        if name in _VIEWS:
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        if isinstance(found, _core.Tensor) or name in _METADATA or not callable(found):
            return found
        if self.index is None and name in getattr(self.value, "__dict__", ()):  # the program's own
            return found
        return partial(_method, self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        real = self.tracer.real(self, f"the attribute {name} of a tensor was set")
        setattr(real, name, mapped(value, Value, lambda v: self.tracer.real(v, name)))

    def __delattr__(self, name: str) -> None:
        delattr(self.tracer.real(self, f"the attribute {name} of a tensor was deleted"), name)

    def __dir__(self) -> Any:
        return dir(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __iter__(self) -> Any:
        if self.value.dim() == 0:
            return iter(self.value)
        return iter(self.tracer.create_proxy("call_method", "unbind", (self,), {}))

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _method(value: Value, name: str, /, *args: Any, **kwargs: Any) -> Any:
    if name == "type" and not args and not kwargs:
        before = _core.take_all(False)
        try:
            return value.value.type()
        finally:
            _core.take_all(before)
    return value.tracer.create_proxy("call_method", name, (value, *args), kwargs)


def _reader(name: str) -> Any:
    why = "it is copied" if name in ("__deepcopy__", "__reduce_ex__", "__array__") else "a value was read"

    def read(self: Value, *args: Any) -> Any:
        if name == "__bool__" and self.tracer.asserts(self):
            return True
        real = self.tracer.real(self, why)
        return getattr(real, name)(*mapped(args, Value, lambda v: self.tracer.real(v, why)))

    return read


for _name in (
    "bool int float index complex contains array repr str format dlpack dlpack_device deepcopy reduce_ex"
).split():
    setattr(Value, f"__{_name}__", _reader(f"__{_name}__"))


def _in_place(function: Any) -> Any:
    def write(self: Value, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return write


for _name in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split():
    setattr(Value, f"__i{_name}__", _in_place(getattr(operator, f"i{_name}")))


class Capture(TracerBase):
    """The segments of one call."""

    def __init__(self, owner: Backed, paths: dict[int, str]) -> None:
        self.owner, self.paths = owner, paths
        self.graph: Any = self  # one program: values of two do not meet
        self.passing = False  # what is asked is done at once
        self.broken: Break | None = None
        self.known: dict[int, Value] = {}  # of tensors, by identity
        self.made: list[weakref.ref[Value]] = []
        self.number = 0  # segments that ran
        self.segment = self._begin()

    def _begin(self) -> Segment:
        key = (self.number, _core.modes(), _core.get_default_dtype())
        first = self.owner.first_of(key)
        return Segment(first, key[1])

    # -- tensors and what stands for them --

    def lift(self, tensor: Any, path: str = "") -> Value:
        """What stands for a tensor that is there."""
        known = self.known.get(id(tensor))
        if known is None or known.index is not None or known.value is not tensor:
            known = self.known[id(tensor)] = Value(self, tensor, None, path)
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
            found = self.broken = Break(f"{why} at {_line()}")
            raise found

    def _input(self, tensor: Any, path: str) -> tuple[Any, Place]:
        segment = self.segment
        number = segment.places.get(id(tensor))
        if number is not None:
            return ("input", number), Place("input", number)
        number = segment.places[id(tensor)] = len(segment.inputs)
        segment.inputs.append(tensor)
        known = path or self.paths.get(id(tensor), "")
        if not known and not tensor.requires_grad and number not in segment.kept:
            segment.kept[number] = (tensor._version, tensor.detach().clone())
        name = f"L_{known or f'tensor_{number}'}_"
        segment.names.append(name if name not in segment.names else f"{name}{number}_")
        segment.copies.append(_copy(tensor) if segment.shadows is not None else None)
        return ("input", number, look(tensor), known), Place("input", number)

    def _arguments(self, a: Any) -> tuple[Any, Any]:
        """A key of arguments, and the arguments with places instead of tensors."""
        kind = type(a)
        if kind is _At:
            return ("step", a.index), Place("step", a.index)
        if issubclass(kind, Value):
            if a.index is not None:
                return ("step", a.index), Place("step", a.index)
            return self._input(a.value, a.path)
        if isinstance(a, _core.Tensor):
            return self._input(a, "")
        if isinstance(a, (tuple, list)):
            pairs = [self._arguments(x) for x in a]
            items = [p for _, p in pairs]
            key = (kind, *(k for k, _ in pairs))
            if kind is tuple or isinstance(a, list):
                return key, items if isinstance(a, list) else tuple(items)
            return key, kind(*items) if hasattr(a, "_fields") else kind(items)
        if isinstance(a, dict):
            pairs = [self._arguments(x) for x in a.values()]
            return (kind, *a, *(k for k, _ in pairs)), dict(zip(a, (p for _, p in pairs)))
        if isinstance(a, slice):
            key, items = self._arguments((a.start, a.stop, a.step))
            return (slice, key), slice(*items)
        return look(a), a

    # -- ops --

    def plain(self, function: Any, args: Any, kwargs: Any, frame: FrameType | None) -> Any:
        """A call without values among its arguments; NotImplemented: it is made as ever."""
        name = getattr(function, "__name__", "")
        if self.passing or name in _METADATA:
            return NotImplemented
        if frame is not None and is_own(frame):
            if self.segment.path and (
                name in _AT_ONCE or name in _READS or _writes(name) or "normal" in name or "uni" in name
            ):
                self._now(lambda: None, (), {}, "")
            return NotImplemented
        return self.create_proxy("call_function", function, args, kwargs)

    def create_proxy(
        self, kind: str, target: Any, args: Any, kwargs: Any, name: Any = None, type_expr: Any = None,
        proxy_factory_fn: Any = None,
    ) -> Any:  # fmt: skip
        called = target if isinstance(target, str) else getattr(target, "__name__", "")
        before = _core.take_all(False)
        try:
            if self.passing:
                return self._call(kind, target, args, kwargs)
            if called in _METADATA and kind == "call_function":
                return self._call(kind, target, *mapped((args, kwargs), Value, lambda v: v.value))
            if _calls_back(target, (args, kwargs)):
                return self._now(partial(self._call, kind, target), args, kwargs, "")
            call = partial(self._call, kind, target)
            if called in _AT_ONCE:
                return self._now(call, args, kwargs, "")
            if called in _READS:
                return self._now(call, args, kwargs, f"a value was read: {called}()")
            if _sized_by_values(called, args, kwargs):
                return self._now(call, args, kwargs, f"the sizes of what {called} gives depend on values,")
            return self._step(kind, target, args, kwargs, called)
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
            _find((args, kwargs), found)
            if not found:  # what it gives is no tensor's
                return self._call(kind, target, args, kwargs)
            return self._now(partial(self._call, kind, target), args, kwargs, f"a value was read: {called}()")
        return self._values(step, args, kwargs, called)

    def _append(self, kind: str, target: Any, args: Any, kwargs: Any) -> Step | None:
        """The segment's next step; None for what is done at once instead."""
        segment = self.segment
        before = len(segment.inputs)
        try:
            given, placed = self._arguments((tuple(args), dict(kwargs)))
            key = (kind, target if isinstance(target, str) else _Same(target), given)
            found = segment.at.next.get(key, segment)
        except TypeError:  # no key
            found = None
        if found is segment:
            found = Step(kind, target, *placed)
            found = found if self._try(found) else None
            if len(segment.at.next) < 1000:
                segment.at.next[key] = found
        elif found is not None:
            segment.shadows = None
        if found is None:
            segment.forget(before)
            return None
        segment.at = found
        segment.path.append(found)
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
                segment.copies = [_copy(t) for t in segment.inputs]
                segment.shadows = []
                _core.set_modes(*segment.start_modes)
                for known in segment.path:
                    segment.shadows.append(known.call(segment.shadows, segment.copies))
                _core.set_modes(*modes)
            result = step.call(segment.shadows, segment.copies)
        finally:
            _core.set_modes(*modes)
            _core.set_random_state(*state)
            for generator, kept in zip(generators, states):
                generator.set_state(kept)
            STATE.capturing, self.passing = capturing, False
        given = mapped((step.args, step.kwargs), Place, lambda p: p)
        sources = {"step": segment.shadows, "input": segment.copies}
        for place_ in _places(given):
            if result is not None and sources[place_.kind][place_.number] is result:
                step.same = place_
        if not _is_kept(step, result):
            return False
        segment.shadows.append(result)
        step.result = mapped(result, _core.Tensor, _hollow)
        frame = asking()
        if frame is not None:
            file, number = frame.f_code.co_filename, frame.f_lineno
            step.line = f'File "{file}", line {number}, in {frame.f_code.co_name}'
        return True

    def _values(self, step: Step, args: Any, kwargs: Any, called: str) -> Any:
        """What the program sees of a step's result."""
        index, result = len(self.segment.path) - 1, step.result
        if result is None:
            return None
        if step.same is not None:  # the tensor that was written
            found: list[Any] = []
            _find((args, kwargs), found)
            for x in found:
                place_ = self._arguments(x)[1]
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
        made = Value(self, shown, index)
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
        for number, (version, _) in self.segment.kept.items():
            if self.segment.inputs[number]._version != version:
                self.flush()
                return

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
                run = self.owner.made(self.number, segment, live)
                segment.at.runs[live] = run
            made = run(*given)
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


class _At:
    """A step among arguments."""

    def __init__(self, index: int) -> None:
        self.index = index


def _find(a: Any, found: list[Any]) -> None:
    """The tensors and values among arguments."""
    if issubclass(type(a), Value) or isinstance(a, _core.Tensor):
        found.append(a)
    elif isinstance(a, (tuple, list)):
        for x in a:
            _find(x, found)
    elif isinstance(a, dict):
        _find(tuple(a.values()), found)


def _places(a: Any) -> list[Place]:
    found: list[Place] = []
    mapped(a, Place, found.append)
    return found


def _copy(tensor: Any) -> Any:
    """A tensor that looks the same and is none of the program's."""
    modes = _core.modes()
    _core.set_modes(True, False, None)
    try:
        plain = tensor.detach()
        made = plain.clone()
        if made.stride() != plain.stride():
            made = _laid(
                plain, lambda length: plain.as_strided((length,), (1,), plain.storage_offset()).clone()
            )
        if tensor.requires_grad:
            made.requires_grad_()
            made = made if tensor.is_leaf else made.clone()
        return made
    finally:
        _core.set_modes(*modes)


def _laid(tensor: Any, storage: Callable[[int], Any]) -> Any:
    length = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    return storage(max(length, 0)).as_strided(tuple(tensor.shape), tensor.stride(), 0)


def _hollow(tensor: Any) -> Any:
    """A tensor that looks the same, whose memory nobody has touched."""
    if type(tensor) is not _core.Tensor or tensor.numel() < 1024:
        return tensor
    kiln, modes = names.root_module(), _core.modes()
    _core.set_modes(True, False, None)
    try:
        made = _laid(tensor, lambda length: kiln.empty(length, dtype=tensor.dtype))
        if tensor.requires_grad:
            made.requires_grad_()
            made = made if tensor.is_leaf else made.view(made.shape)
        return made if look(made)[2:] == look(tensor)[2:] else tensor
    finally:
        _core.set_modes(*modes)


def _is_kept(step: Step, result: Any) -> bool:
    """Whether a step's result can be stood for."""
    if result is None:
        return step.target == "__setitem__" or getattr(step.target, "__name__", "") in _GIVE_NOTHING
    if getattr(step.target, "__name__", "") in _GIVE_NOTHING:
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


def _calls_back(target: Any, a: Any) -> bool:
    """Whether a call is of the program's own code, or of what is given some to call."""
    if not isinstance(target, (str, type, BuiltinFunctionType)):
        inner = getattr(target, "__func__", target)
        if "<locals>" in getattr(inner, "__qualname__", "") or not _is_own(inner):
            return True
    return _has_code(a)


def _is_own(function: Any) -> bool:
    module = getattr(function, "__module__", None) or "kiln"
    return module.partition(".")[0] in ("kiln", "builtins", "_operator", "operator")


def _has_code(a: Any) -> bool:
    """Whether something of the program's that can be called is among arguments."""
    if issubclass(type(a), (Value, _core.Tensor)):
        return False
    if isinstance(a, (tuple, list)):
        return any(map(_has_code, a))
    if isinstance(a, dict):
        return any(map(_has_code, a.values()))
    if isinstance(a, (FunctionType, MethodType, partial)):
        return not _is_own(getattr(a, "__func__", a))
    return isinstance(a, (_Module, _core.Recorder))


def _writes(called: str) -> bool:
    """Whether a function's name says that it writes into its first argument: `add_`, `iadd`."""
    return (
        (called.endswith("_") and not called.endswith("__"))
        or called in ("setitem", "overwrite")
        or getattr(operator, called, None) in names.IN_PLACE
    )


def _sized_by_values(called: str, args: Any, kwargs: Any) -> bool:
    """Whether the sizes of a result depend on values: as with a mask, or with a slice to a tensor."""
    if called == "one_hot":
        return kwargs.get("num_classes", args[1] if len(args) > 1 else -1) == -1
    if called in _BY_NUMBERS:
        at, name = _BY_NUMBERS[called]
        return isinstance(kwargs.get(name, args[at] if len(args) > at else args[0]), _core.Tensor)
    if called in _OF_VALUES or (called == "where" and len(args) == 1):
        return True
    if (
        called not in ("getitem", "__getitem__", "index_select", "take", "setitem", "__setitem__")
        or len(args) < 2
    ):
        return False
    keys = args[1] if isinstance(args[1], tuple) else (args[1],)
    for k in keys:
        if isinstance(k, slice) and any(
            issubclass(type(x), (Value, _core.Tensor)) for x in (k.start, k.stop, k.step)
        ):
            return True
        if "set" not in called and isinstance(k, _core.Tensor) and k.dtype in (_core.bool, _core.uint8):
            return True
    return False
