"""Annotations of parameters: those that are there are believed, and checked where a program is made."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

from kiln import _core

_SCALARS: dict[Any, tuple[type, ...]] = {
    int: (int,), float: (float, int), bool: (bool,), complex: (complex, float, int), str: (str,),
}  # fmt: skip
_SHOWN = 100  # items of a container that are looked at


def check_arguments(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """RuntimeError for an argument that is not what its parameter is annotated with."""
    plain = getattr(function, "__func__", function)
    if not getattr(plain, "__annotations__", None):
        return
    try:
        hints = typing.get_type_hints(plain)
        bound = inspect.signature(function).bind(*args, **kwargs)
    except Exception:  # a name that is not to be found; arguments that do not fit, which the call says
        return
    for name, value in bound.arguments.items():
        if name not in hints:
            continue
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            many = list(value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            many = list(value.values())
        else:
            many = [value]
        for x in many:
            if not fits(x, hints[name]):
                wanted = told(hints[name])
                raise RuntimeError(
                    f"{plain.__name__}() Expected a value of type '{wanted}' for argument '{name}' "
                    f"but instead found type '{type(x).__name__}'."
                )


def told(hint: Any) -> str:
    """A type as text."""
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type, as far as that can be told: a tensor of one element is a
    number too.
    """
    if hint is None or hint is type(None):
        return value is None
    kinds = _SCALARS.get(hint)
    if kinds is not None:
        return isinstance(value, kinds) or (
            isinstance(value, _core.Tensor) and hint is not str and value.numel() == 1
        )
    origin = typing.get_origin(hint)
    if origin is None:
        plain = isinstance(hint, type) and not getattr(hint, "_is_protocol", False)
        return isinstance(value, hint) if plain and hint.__module__ != "typing" else True
    inner = typing.get_args(hint)
    rule = _GENERIC.get(origin)
    return rule(value, inner) if rule is not None else True


def _union(value: Any, inner: tuple[Any, ...]) -> bool:
    return any(fits(value, h) for h in inner)


def _list(value: Any, inner: tuple[Any, ...]) -> bool:
    return isinstance(value, (list, tuple)) and all(fits(v, inner[0]) for v in value[:_SHOWN])


def _dict(value: Any, inner: tuple[Any, ...]) -> bool:
    return isinstance(value, dict) and all(
        fits(k, inner[0]) and fits(v, inner[1]) for k, v in list(value.items())[:_SHOWN]
    )


def _tuple(value: Any, inner: tuple[Any, ...]) -> bool:
    if not isinstance(value, (tuple, list)):
        return False
    if len(inner) == 2 and inner[1] is Ellipsis:
        return all(fits(v, inner[0]) for v in value[:_SHOWN])
    return len(value) == len(inner) and all(map(fits, value, inner))


_GENERIC: dict[Any, Callable[[Any, tuple[Any, ...]], bool]] = {
    typing.Union: _union, types.UnionType: _union, list: _list, dict: _dict, tuple: _tuple,
}  # fmt: skip
