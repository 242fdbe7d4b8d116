"""A program with parameters and buffers of other dtypes: `half()`, `double()`, `to(dtype)` of a module."""

from __future__ import annotations

from copy import copy
from typing import Any

from kiln.export.reading import follow
from kiln.export.signature import asked_last
from kiln.passes.rewrite import begun
from kiln.table.record import find
from kiln.tracing.captured import Captured, Kept, like


def converted(found: Captured, looks: list[tuple[str, Any, Any]], tensors: list[Any]) -> Captured:
    """The program that computes the same with these tensors as its state, of the shapes they had; `looks`:
    the name, dtype and shape of each when the program was made.

    Where every parameter and buffer of one dtype has become another dtype, inputs of that dtype do too;
    constants, and dtypes that the function asked for by name, stay. Ops give what they give of such operands.
    TypeError or ValueError, also of an op, where there is no such program.
    """
    became: dict[str, set[str]] = {}
    for own, (name, dtype, shape), x in zip(found.state, looks, tensors):
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has another shape")
        if own.kind != "constant":
            became.setdefault(dtype.name, set()).add(x.dtype.name)
    if all(x.dtype is dtype for x, (_, dtype, _) in zip(tensors, looks)):
        return found
    if any(isinstance(check, Kept) for check in found.checks):
        raise ValueError("it goes by values that were read in the old dtype")
    one = {old: min(new) for old, new in became.items() if len(new) == 1}
    made = copy(found)
    made.otherwise = {}
    made.inputs = [x._replace(dtype=one.get(x.dtype, x.dtype)) for x in found.inputs]
    made.state = [s._replace(tensor=x) for s, x in zip(found.state, tensors)]
    made.step_lines, made.whole = [], None
    old = copy(found)  # its graph may be made now, when the tensors look otherwise
    old.state = [s._replace(tensor=like(dtype.name, n)) for s, (_, dtype, n) in zip(found.state, looks)]
    graph, values = begun(old.graph)
    dtypes = [*(x.dtype for x in made.inputs), *(x.dtype.name for x in tensors)]
    for value, dtype in zip([v for v in graph.inputs if not v.weak], dtypes):
        value.dtype = dtype
    for node in old.graph.nodes:
        values[id(node.out)] = graph.add(node.op, tuple([values[id(v)] for v in node.inputs]), node.attrs)
    numbers, made.checks = asked_last(old)
    results = [values[id(old.graph.outputs[k])] for k in numbers]
    for k, (kind, which) in enumerate(found.mutated, len(found.outputs)):  # what is written is cast
        target = dtypes[which if kind == "input" else len(found.inputs) + which]
        if results[k].dtype != target:
            results[k] = graph.add(find("convert"), (results[k],), (target,))
    follow(made, graph.finish(results))
    return made
