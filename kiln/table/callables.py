"""Functions in Python as callables of the core: errors name what was called, and show no lines of kiln's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any, TypeVar

from kiln import _core

_F = TypeVar("_F", bound=Callable[..., Any])


def flags(function: Any) -> tuple[Any, ...]:
    """What the core needs to know of a function's flags (True or False by default, or annotated so): how
    many parameters are given by place; of each of these its name if it is a flag, else None; the other flags.
    """
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code, defaults = function.__code__, function.__defaults__ or ()
    places, by_name = code.co_argcount, function.__kwdefaults__ or {}
    values = [None] * (places - len(defaults)) + list(defaults)
    said = {n for n, text in function.__annotations__.items() if text in ("bool", "bool | None")}
    parameters = zip(code.co_varnames, values)
    names = [n if isinstance(v, bool) or n in said else None for n, v in parameters]
    named = code.co_varnames[places : places + code.co_kwonlyargcount]
    others = [n for n in named if isinstance(by_name.get(n), bool) or n in said]
    return (places, (*names, *others)) if others or any(names) else ()


def named(name: str, function: Any, raw: bool = True) -> Any:
    """A function in Python as a callable of the core, whose errors name `name`."""
    if not hasattr(function, "__kiln_name__"):
        function.__kiln_name__ = name
    return _core.Function(function, raw, *(() if name[0] == "_" else flags(function)))


def name_all(namespace: dict[str, Any], module: str, space: str = "") -> None:
    """Makes what a module defines callables of the core: public functions, constructors of public classes.

    `space` is what stands before their names where others have the same: `"masked."`.
    """
    for name, value in tuple(namespace.items()):
        if name[0] == "_" or getattr(value, "__module__", None) is None:
            continue
        if not value.__module__.startswith(module):
            continue
        if isinstance(value, FunctionType):
            namespace[name] = named(space + name, value, raw=False)
        elif isinstance(value, type):
            name_constructor(value)


def draws(function: _F) -> _F:
    """A function that takes numbers from a generator, so that no two calls are one, if not told `training` or
    `train` False or a `dropout_p` of 0; a decorator.
    """
    function._kiln_draws = True  # type: ignore[attr-defined]
    return function


def helper(name: str, function: Any) -> Any:
    """The same of a function that is no operation: a program that is traced goes through it."""
    function._kiln_helper = True
    return named(name, function, raw=False)


def name_helpers(namespace: dict[str, Any], module: str, space: str = "") -> None:
    """As `name_all`, of functions that are no operations."""
    for name, value in tuple(namespace.items()):
        if name[0] != "_" and isinstance(value, FunctionType) and value.__module__.startswith(module):
            namespace[name] = helper(space + name, value)
    name_all(namespace, module, space)


def hide_frames(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Makes functions callables of the core whose errors keep their words, but show no lines of kiln's."""
    for name in names:
        namespace[name] = _core.Function(namespace[name], True)


def hide_frames_of_calls(made: type) -> None:
    """The same of what a call of a class's objects runs; of a metaclass, of its classes."""
    made.__call__ = _core.Function(made.__call__, True)  # type: ignore[method-assign]


def name_constructor(made: type) -> None:
    """Makes the constructor of a class a callable of the core, whose errors name the class."""
    for own in made.__mro__:
        if not own.__module__.startswith(("kiln.", "torch.")) or own.__name__ == "Module":
            continue
        begin, make = vars(own).get("__init__"), vars(own).get("__new__")
        if isinstance(begin, FunctionType):
            own.__init__ = named("__init__", begin)  # type: ignore[misc]
        if isinstance(make, staticmethod):
            own.__new__ = staticmethod(named("__new__", make.__func__))  # type: ignore[method-assign]


def name_methods(made: type, names: Iterable[str], title: str = "") -> None:
    """Makes methods that a class defines callables of the core, whose errors name class (or `title`) and
    method.
    """
    for name in names:
        method = vars(made).get(name)
        if isinstance(method, FunctionType):
            method.__kiln_name__ = f"{title or made.__name__}.{name}"  # type: ignore[attr-defined]
            setattr(made, name, _core.Function(method, True))
