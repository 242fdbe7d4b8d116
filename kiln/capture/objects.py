"""Compiled objects: modules, and whatever else of a Python class can be called.

    object ----- __dict__ ----- compiled object
    class Net                   a class made from Net, which records calls

Both have one `__dict__`, so neither can have state the other lacks, and the compiled object has every
method and protocol of the class. A call runs the object's own: hooks and `forward` get it, not the compiled
one.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from copy import copy, deepcopy
from types import MemberDescriptorType
from typing import Any
from weakref import WeakValueDictionary

from kiln.capture.suspend import suspended_forward

_ASKED = ("explain", "stats", "wait")  # of a compiled function; an object's attributes are its own
_classes: WeakValueDictionary[type, type] = WeakValueDictionary()  # class -> that of its compiled objects


class Recorded:
    """What the class of a compiled object has before its object's: `_orig_mod` is that object."""

    __slots__ = ()
    _orig_mod: Any
    _kiln_compiled: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Called again by hand: what refers back to the object must not refer to this one."""
        self._orig_mod.__init__(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._kiln_compiled(*args, **kwargs)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The object's, so that what asks for it or makes another one sees no difference."""
        return type(self._orig_mod)

    @property
    def __wrapped__(self) -> Any:
        """Whose signature `inspect` shows."""
        return self._orig_mod

    def __getattr__(self, name: str) -> Any:
        """What neither the class nor the state has, the object may still make up."""
        try:
            return getattr(self._orig_mod, name)
        except AttributeError as error:
            if name not in _ASKED:
                raise
            raise AttributeError(f"{error}: of a compiled object it is kiln.compiler.{name}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._orig_mod, name)

    def __eq__(self, other: Any) -> Any:
        """A set or dict of modules takes the compiled one for the module itself."""
        return self._orig_mod == (other._orig_mod if isinstance(other, Recorded) else other)

    def __hash__(self) -> int:
        return hash(self._orig_mod)

    def __repr__(self) -> str:
        return f"<compiled {self._orig_mod!r}>"

    def __copy__(self) -> Any:
        return _again(self, copy(self._orig_mod))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _again(self, deepcopy(self._orig_mod, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return recorded, (self._orig_mod, type(self._kiln_compiled), self._kiln_compiled._wait)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Not passed on: a program that keeps account of its subclasses has not written this one."""


class _Forward:
    """`forward` of a compiled object: the object's, recorded; no hooks."""

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return owner.__mro__[2].forward  # type: ignore[attr-defined]
        return instance._kiln_compiled._beside(instance._orig_mod.forward)

    def __set__(self, instance: Any, value: Any) -> None:
        instance._orig_mod.forward = value


def _again(compiled: Recorded, thing: Any) -> Any:
    """A copy, compiled as the object it is a copy of."""
    calls = compiled._kiln_compiled
    return recorded(thing, type(calls), calls._wait)


def _slot(name: str) -> property:
    """An entry of the class's `__slots__`, which is in the object alone."""
    return property(lambda self: getattr(self._orig_mod, name))


def _size(kind: type) -> int:
    """The bytes of an object of a class if all its state is Python's: what slots and dict hold."""
    slots = sum(
        isinstance(held, MemberDescriptorType) for base in kind.__mro__ for held in vars(base).values()
    )
    return object.__basicsize__ + 8 * (slots + (kind.__dictoffset__ > 0) + (kind.__weakrefoffset__ > 0))


def _class_over(kind: type) -> type:
    """The class of compiled objects of a class. TypeError if none can be made of it."""
    if (known := _classes.get(kind)) is not None:
        return known
    if _size(kind) != kind.__basicsize__:
        raise TypeError
    entries: dict[str, Any] = {
        "__doc__": kind.__doc__,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__slots__": ("_kiln_compiled", "_orig_mod"),
        # a plain object, if somebody makes another one of this class
        "__new__": lambda cls, *args, **kwargs: kind(*args, **kwargs),
    }
    for base in kind.__mro__:
        members = (name for name, held in vars(base).items() if isinstance(held, MemberDescriptorType))
        entries.update((name, _slot(name)) for name in members)
    if callable(getattr(kind, "forward", None)):
        entries["forward"] = _Forward()
    if hasattr(kind, "__setstate__"):
        entries["__setstate__"] = lambda self, state: self._orig_mod.__setstate__(state)
    if hasattr(kind, "__del__"):
        entries["__del__"] = lambda self: None  # the object's end is not this one's
    # not through the class's own metaclass, which may keep account of classes too
    make: Any = ABCMeta if issubclass(type(kind), ABCMeta) else type
    made: type = make.__new__(type(kind), kind.__name__, (Recorded, kind), entries)
    _classes[kind] = made
    return made


def recorded(thing: Any, compiled: Callable[..., Any], wait: bool) -> Any:
    """The compiled object over `thing`; None for a function, a class, or what holds state of C's own.

    `compiled(thing, wait)` records its calls.
    """
    try:
        over: Any = object.__new__(_class_over(type(thing)))
    except TypeError:  # no subclass is possible, or state in C is not shared
        return None
    if hasattr(thing, "__dict__"):
        object.__setattr__(over, "__dict__", thing.__dict__)
    calls = compiled(thing, wait)
    if calls._suspended is None and hasattr(thing, "forward"):
        calls._suspended = suspended_forward(thing.forward)
    object.__setattr__(over, "_orig_mod", thing)
    object.__setattr__(over, "_kiln_compiled", calls)
    return over
