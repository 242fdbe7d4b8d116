"""The arguments of a call: the lists, dicts, objects and memory in them."""

from __future__ import annotations

import sys
from typing import Any

from kiln import _core
from kiln.graph.graph import Value
from kiln.tracing.trees import flatten

PLAIN = (int, float, bool, complex, str, bytes, type(None), _core.dtype)


class Given:
    """A list or dict among the arguments, by the keys that lead to it."""

    def __init__(self, path: tuple[Any, ...]) -> None:
        self.path = path

    def of(self, given: Any) -> Any:
        """That of a call."""
        for key in self.path:
            given = given[key]
        return given


def objects_in(value: Any) -> list[Any]:
    """What of a value is neither a tensor, nor a number or text, nor a container."""
    if type(value) in (list, tuple) or hasattr(value, "_fields"):
        return [x for v in value for x in objects_in(v)]
    if type(value) is dict:
        return [x for v in value.values() for x in objects_in(v)]
    return [] if isinstance(value, (*PLAIN, _core.Tensor)) else [value]


def arrays(things: dict[int, Any]) -> list[tuple[Any, Any]]:
    """NumPy's arrays, each with a copy: what a script reads of one it keeps."""
    numpy = sys.modules.get("numpy")
    return [] if numpy is None else [(x, x.copy()) for x in things.values() if isinstance(x, numpy.ndarray)]


def count(value: Any) -> int:
    """How many lists and dicts a value holds, one that stands there twice counted twice."""
    if not (type(value) in (list, dict, tuple) or hasattr(value, "_fields")):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return isinstance(value, (list, dict)) + sum(map(count, inner))


def containers(value: Any, path: tuple[Any, ...], found: dict[int, Given]) -> dict[int, Given]:
    """The lists and dicts that a value holds, by their ids."""
    if type(value) in (list, dict, tuple) or hasattr(value, "_fields"):
        if isinstance(value, (list, dict)):
            found.setdefault(id(value), Given(path))
        for key, x in value.items() if isinstance(value, dict) else enumerate(value):
            containers(x, (*path, key), found)
    return found


def as_given(made: Any, given: dict[int, Given]) -> Any:
    """A result in which arguments that are given back are told as such."""
    if type(made) is tuple:
        return tuple([given[id(x)] if id(x) in given else x for x in made])
    return given[id(made)] if id(made) in given else made


def overlap(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether two tensors among arguments share memory without being one tensor."""
    leaves: list[Any] = []
    flatten((args, kwargs), leaves)
    distinct = {id(x): x for x in leaves}
    return len({_core.place(x)[0] for x in distinct.values()}) < len(distinct)


def all_contiguous(value: Any) -> bool:
    """Whether the tensors in a value are contiguous."""
    leaves: list[Any] = []
    flatten(value, leaves)
    return all(x.is_contiguous() for x in leaves)


def look_at(value: Any, parts: list[Any], seen: dict[int, int]) -> bool:
    """Adds how a value looks; whether a program can take it."""
    kind = type(value)
    if issubclass(kind, _core.Tensor):
        again = seen.setdefault(id(value), len(seen))
        strides = None if value.is_contiguous() else value.stride()
        parts.append((value.dtype, tuple(value.shape), value.requires_grad, again, strides))
        return True
    if kind is tuple or kind is list or hasattr(value, "_fields"):
        parts.append((kind, len(value), seen.setdefault(id(value), len(seen)) if kind is list else 0))
        return not [item for item in value if not look_at(item, parts, seen)]
    if kind is dict:
        parts.append((kind, tuple(value), seen.setdefault(id(value), len(seen))))
        return not [item for item in value.values() if not look_at(item, parts, seen)]
    parts.append((kind, repr(value) if kind is float else value) if kind in PLAIN else (kind, id(value)))
    return not isinstance(value, (_core.Tensor, Value))
