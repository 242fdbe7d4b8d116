"""Scripts that are called while something else is captured, or with nodes of a graph: a part of that."""

from __future__ import annotations

import functools
from typing import Any

from kiln.scripting.calls import call
from kiln.scripting.context import Context, entered
from kiln.scripting.numbers import Number
from kiln.scripting.sizes import has_rows
from kiln.table.arguments import recorder_here
from kiln.tracing.symbolic import Traced
from kiln.tracing.trees import build, constants, flatten


def definition_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the nodes of graphs among arguments are defined in; None if there are none."""
    leaves: list[Any] = []
    flatten((args, kwargs), leaves)
    return recorder_here(*leaves)


def defined(recorder: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A script that is called with nodes of a graph: nodes."""
    made = inside(recorder, function, args, kwargs)
    leaves: list[Any] = []
    tree = flatten(recorder.finish_result(made), leaves)
    return build(tree, iter([x if type(x) is Traced else recorder.wrapped(x) for x in leaves]))


def inside(recorder: Any, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A script that is called while something is captured: a part of that."""
    context = recorder.script
    if context is not None:
        with entered(context):
            return call(function, *args, **kwargs)
    context = recorder.script = Context(recorder)
    recorder.finish_result = functools.partial(_finished, context)
    context.roots = [function, args, kwargs]
    try:
        with entered(context):
            made = call(function, *args, **kwargs)
            context.finish()
            return made
    finally:
        recorder.script = None


def _finished(context: Context, result: Any) -> Any:
    """What a capture gives of what a script in it gave."""
    if has_rows(result):
        context.refuse("returns a list whose length is a size that varies: stack or concatenate it")
    return numbers_as_tensors(result, [])


def numbers_as_tensors(value: Any, found: list[Any]) -> Any:
    """A value in which Numbers are tensors of no dims, each a new one, which `found` gets."""
    tensors: list[Any] = []
    tree = flatten(value, tensors)

    def tensor_of(x: Any) -> Any:
        if not isinstance(x, Number):
            return x
        found.append(x.tensor.clone())
        return found[-1]

    return build(constants(tree, tensor_of), iter(tensors))
