"""One program for all sizes, once a script was called with a second set of them.

Sizes that were others in an earlier call of the same look vary, from 2 on; those that varied together are one
size. What a program of such sizes cannot hold has a program for each set of sizes, as before.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from kiln import _core
from kiln.tracing.dims import Dim

_MOST = 4  # programs that are made of one look, each with more sizes that vary


class Sizes:
    """The sizes that calls of one look had."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        self.calls = [shapes]
        self.kept: list[Any] = []  # the programs, the last first
        self.made = 0

    def dims(self, shapes: list[tuple[int, ...]]) -> list[dict[int, Dim]] | None:
        """What varies of each tensor, now that it has these sizes; None where nothing is to be made."""
        if self.made >= _MOST or shapes in self.calls:
            return None
        self.calls.append(shapes)
        self.made += 1
        named: dict[tuple[int, ...], Dim] = {}
        found: list[dict[int, Dim]] = []
        for k, shape in enumerate(shapes):
            found.append({})
            for d in range(len(shape)):
                sizes = tuple([call[k][d] for call in self.calls])
                if len(set(sizes)) > 1:
                    if min(sizes) < 2:  # which broadcast, and are like no other size
                        self.calls.pop()
                        return None
                    found[k][d] = named.setdefault(sizes, Dim(f"s{len(named)}", min=2))
        return found

    def give_up(self) -> None:
        """No program holds what the function does for all sizes."""
        self.made = _MOST


def declared(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], dims: list[dict[int, Dim]]
) -> Any:
    """The same as `dynamic_shapes` of a trace: by the place of arguments, or by name. ValueError where they
    have none.
    """
    rest = iter(dims)
    seen: dict[int, Any] = {}

    def spec(x: Any) -> Any:
        if isinstance(x, _core.Tensor):
            return seen.setdefault(id(x), next(rest) if id(x) not in seen else None)
        if isinstance(x, (tuple, list)):
            return [spec(item) for item in x]
        return {k: spec(item) for k, item in x.items()} if isinstance(x, dict) else None

    positional = [spec(x) for x in args]
    if not kwargs:
        return tuple(positional)
    names = list(inspect.signature(function).parameters)
    return {**dict(zip(names, positional, strict=False)), **{k: spec(x) for k, x in kwargs.items()}}


def without_sizes(look: list[Any]) -> tuple[Any, list[tuple[int, ...]]] | None:
    """How arguments look but for their sizes, and these; None where more than sizes would be others."""
    shapes: list[tuple[int, ...]] = []
    parts: list[Any] = []
    seen: set[int] = set()
    for part in look:
        if type(part) is tuple and part and isinstance(part[0], _core.dtype):
            dtype, shape, requires_grad, again, strides = part
            if strides is not None:
                return None
            if again not in seen:
                shapes.append(shape)
            seen.add(again)
            parts.append((dtype, len(shape), requires_grad, again))
        else:
            parts.append(part)
    return (tuple(parts), shapes) if any(shapes) else None
