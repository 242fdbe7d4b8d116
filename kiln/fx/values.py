"""What stands for a tensor while a function is captured."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

from kiln import _core
from kiln.fx.asked import METADATA, OF_REAL, VIEWS
from kiln.fx.proxy import StandIn

__all__ = ["Place", "Value", "mapped", "places_in", "tensors_in", "value_of"]


class Place:
    """What stands for a tensor in a step's arguments: the number of a step, or of an input."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number

    def of(self, sources: dict[str, Any]) -> Any:
        """What stands there."""
        return sources[self.kind][self.number]

    def frozen(self) -> Any:
        """A key."""
        return (Place, self.kind, self.number)


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


class _AsType(type):
    """The class of values that stand for tensors of one type: it says that it is that type, as far as Python
    asks it. `is` does not ask (kiln/fx/types.py).
    """

    stands_for: type

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.stands_for

    def __hash__(cls) -> int:
        return hash(cls.stands_for)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.stands_for(*args, **kwargs)


_KINDS: dict[type, Any] = {}


def value_of(tracer: Any, value: Any, index: int | None, path: str = "", fixed: bool = False) -> Value:
    """What stands for a tensor, see `Value`."""
    kind = type(value)
    if kind not in _KINDS:
        entries = {"stands_for": kind, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        _KINDS[kind] = _AsType(kind.__name__, (Value,), entries)
    made: Value = object.__new__(_KINDS[kind])
    made._set(tracer, value, index, path, fixed)
    return made


class Value(StandIn, metaclass=_AsType):
    """A tensor of the call: the step or input that it is, and something that looks like it."""

    tracer: Any
    stands_for = _core.Tensor

    def _set(self, tracer: Any, value: Any, index: int | None, path: str, fixed: bool) -> None:
        set_ = object.__setattr__
        set_(self, "tracer", tracer)
        set_(self, "value", value)  # the tensor itself where index is None
        set_(self, "index", index)  # its step in the segment that has not run
        set_(self, "path", path)
        set_(self, "fixed", fixed)  # a module's: of sizes that do not vary

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.value)

    def __getattr__(self, name: str) -> Any:
        if name in ("tracer", "value", "index", "path", "fixed", "node"):
            raise AttributeError(name)
        if name in OF_REAL or self.tracer.passing:
            return self.tracer.shown(getattr(self.tracer.real(self, f"the attribute {name}"), name))
        if name in _SIZES and self.tracer.owner.dynamic:
            return _SIZES[name](self)
        found = getattr(self.value, name)
        if name in VIEWS:
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        if isinstance(found, _core.Tensor) or name in METADATA or not callable(found):
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


def _size(value: Value, dim: int | None = None) -> Any:
    from kiln.fx.sizes import read_size, read_sizes

    return read_sizes(value) if dim is None else read_size(value, dim)


def _numel(value: Value) -> Any:
    return functools.reduce(operator.mul, _size(value)) if value.value.dim() else 1


_SIZES: Any = {
    "shape": _size, "size": lambda value: partial(_size, value),
    "numel": lambda value: partial(_numel, value), "nelement": lambda value: partial(_numel, value),
}  # fmt: skip


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


def tensors_in(a: Any, found: list[Any]) -> None:
    """The tensors and values among arguments."""
    if issubclass(type(a), Value) or isinstance(a, _core.Tensor):
        found.append(a)
    elif isinstance(a, (tuple, list)):
        for x in a:
            tensors_in(x, found)
    elif isinstance(a, dict):
        tensors_in(tuple(a.values()), found)


def places_in(a: Any) -> list[Place]:
    found: list[Place] = []
    mapped(a, Place, found.append)
    return found
