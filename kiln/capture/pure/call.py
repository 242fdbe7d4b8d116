"""How a call looks: its structure, its tensors, its numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

from kiln import _core, ops
from kiln.graph.graph import Value


class Unlike(Exception):
    """A call that no cell takes: it runs as Python has it."""


class Call(NamedTuple):
    """What a call is given: `leaves` are its tensors, each once, `numbers` its ints and floats."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    numbers: list[Any]

    def instead(self, leaves: list[Any], numbers: list[Any] | None = None) -> Call:
        """The same with other tensors, and other numbers."""
        made = {id(x): own for x, own in zip(self.leaves, leaves)}
        left = iter(self.numbers if numbers is None else numbers)

        def of(value: Any) -> Any:
            kind = type(value)
            if id(value) in made:
                return made[id(value)]
            if kind is int or kind is float:
                return next(left)
            if kind in (tuple, list):
                return kind(map(of, value))
            if hasattr(value, "_fields"):
                return kind._make(map(of, value))
            return {k: of(v) for k, v in value.items()} if kind is dict else value

        args, kwargs = of(self.args), of(self.kwargs)
        return Call(args, kwargs, leaves, self.numbers if numbers is None else numbers)

    def symbolic(self) -> bool:
        """Whether a tensor of it stands for one: of a batch, or in a graph."""
        return any(not issubclass(type(x), _core.Tensor) for x in self.leaves)

    def samples(self) -> Call:
        """The same with a tensor for each sample of a batch, which a gradient may be asked for of."""
        return self.instead([
            x if issubclass(type(x), _core.Tensor) else sample(x, x.dtype.is_floating_point)
            for x in self.leaves
        ])  # fmt: skip

    def objects(self) -> list[Any]:
        """What it is given besides tensors: what holds parameters of its own."""
        plain = (_core.Tensor, list, tuple, dict)
        return [x for x in (*self.args, *self.kwargs.values()) if not isinstance(x, plain)]


def look_at(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Call]:
    """(what calls that look alike have in common, the call). Numbers are part of the second alone."""
    call = Call(args, kwargs, [], [])
    grad, inference, autocast = _core.modes()
    parts: list[Any] = [grad, inference, autocast, _core.default_dtype_name()]
    _look(args, parts, call)
    for name in kwargs:
        parts.append(name)
        _look(kwargs[name], parts, call)
    return tuple(parts), call


def sample(x: Any, requires_grad: bool = False) -> Any:
    """A tensor of the same size and dtype."""
    return ops.empty(tuple(x.shape), dtype=x.dtype, requires_grad=requires_grad)


def _look(value: Any, parts: list[Any], call: Call) -> None:
    """Adds how a value looks to `parts`, and what is in it to the call."""
    kind, leaves = type(value), call.leaves
    if issubclass(kind, _core.Tensor):
        for k, other in enumerate(leaves):
            if other is value:
                parts.append(k)
                return
        _, _, sizes, strides = _core.place(value)
        whole = value.is_contiguous()
        ones = tuple([n == 1 for n in sizes])
        marked = _core.has_attributes(value)
        parts.append((kind, value.dtype, value.requires_grad, ones, None if whole else strides, marked))
        leaves.append(value)
    elif kind is tuple or kind is list or hasattr(value, "_fields"):
        parts.append((kind, len(value)))
        for item in value:
            _look(item, parts, call)
    elif kind is dict:
        parts.append((kind, tuple(value)))
        for item in value.values():
            _look(item, parts, call)
    elif kind is int or kind is float:
        parts.append(kind)
        call.numbers.append(value)
    elif kind in (bool, str, bytes, type(None), _core.dtype):
        parts.append((kind, value))
    elif _is_symbolic(value):
        if not hasattr(value, "whole") or hasattr(type(value), "recorder"):
            raise Unlike  # of a graph, or followed: so is what Python does
        parts.append((_core.Tensor, value.dtype, False, tuple([n == 1 for n in value.shape]), None))
        leaves.append(value)
    else:
        parts.append(_Same(value))


class _Same:
    """An object that a call is given, known by being the same."""

    __slots__ = ("thing",)

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def _is_symbolic(value: Any) -> bool:
    """Whether it stands for a tensor: one of a batch, or a value of a graph."""
    return not issubclass(type(value), _core.Tensor) and isinstance(value, (_core.Tensor, Value))
