"""What layers of one, two or three dims take: one number for every dim, or one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any

from kiln.table.callables import name_helpers as _name_helpers


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives a tuple of what it is given, and of a number one of `n` times that number."""

    def parse(x: Any) -> tuple[Any, ...]:
        return tuple(x) if isinstance(x, Iterable) else tuple(repeat(x, n))

    parse.__name__ = name
    return parse


def _reverse_repeat_tuple(t: Sequence[Any], n: int) -> tuple[Any, ...]:
    """(1, 2) of n = 2: (2, 2, 1, 1); what `pad` takes of a convolution's padding."""
    return tuple(x for x in reversed(t) for _ in range(n))


def consume_prefix_in_state_dict_if_present(state_dict: dict[str, Any], prefix: str) -> None:
    """Take `prefix` from the names of a state dict that begin with it, in place; those of its metadata too.

    >>> state = {"module.weight": 1, "bias": 2}
    >>> consume_prefix_in_state_dict_if_present(state, "module.")
    >>> state
    {'weight': 1, 'bias': 2}
    """
    for held in (state_dict, getattr(state_dict, "_metadata", None) or {}):
        for key in list(held):
            name = key.removeprefix(prefix) if key != prefix.removesuffix(".") else ""
            if key or held is state_dict:
                held[name] = held.pop(key)


_single = _ntuple(1, "_single")
_pair = _ntuple(2, "_pair")
_triple = _ntuple(3, "_triple")
_quadruple = _ntuple(4, "_quadruple")


_name_helpers(globals(), __name__)
