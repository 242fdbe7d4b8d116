"""A graph that is called inside another: on nodes, while a function is traced or a graph is defined; on
values of a graph that control flow calls; on samples of a batch.
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.capture.pure.function import inline
from kiln.func.batched import Batched
from kiln.func.subgraph import outside
from kiln.graph.graph import Value, current
from kiln.graph.size import Dim, Size, substitute
from kiln.tracing.capture import Captured
from kiln.tracing.ops import called, resolved
from kiln.tracing.symbolic import Traced, plain
from kiln.tracing.trees import alike, build, constants, flatten

_SYMBOLIC = (Traced, Batched, Value)
_MANY = (tuple, list, dict)


def is_symbolic(given: Any) -> bool:
    """Whether arguments hold something that stands for a tensor."""
    for x in given.values() if isinstance(given, dict) else given:
        if type(x) in _SYMBOLIC or (type(x) in _MANY and is_symbolic(x)):
            return True
    return False


def inside(found: Captured, state: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a graph for arguments that hold something symbolic."""
    given: list[Any] = []
    flatten((args, kwargs), given)
    if any(type(x) is Traced for x in given):
        return on_nodes(found, state, args, kwargs)
    how = on_samples if any(type(x) is Batched for x in given) else on_values
    return how(found, state, args, kwargs)


def on_nodes(found: Captured, state: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a graph as nodes: its ops, one by one."""
    given: list[Any] = []
    tree = found.tree_of(args, kwargs, given)
    if not alike(tree, found.in_tree):
        raise TypeError(f"{found.name}: {found.difference(args, kwargs, tree)}")
    found.check_aliases(given)
    if any(kind == "state" for kind, _ in found.mutated):
        raise RuntimeError(
            f"{found.name}: writes its buffers at each run, which it cannot do inside another graph"
        )
    leaves = [given[k] for k in found.distinct]
    recorder = next(x.recorder for x in leaves if type(x) is Traced)
    operands = [*leaves, *state]
    sizes: dict[int, Dim] = {}
    for first, x in zip(found.firsts, operands):
        sizes.update((first + d, plain(n)) for d, n in enumerate(x.shape))
    for own, x, first in zip(found.inputs, leaves, found.firsts):
        if x.dtype.name != own.dtype or x.ndim != len(own.shape):
            raise RuntimeError(f"{own.name}: expected {own.dtype} of {len(own.shape)} dims, got {x!r}")
        for d, n in enumerate(own.shape):
            told = f"{own.name}: dim {d} must be {found.size_text(n)}"
            _hold(recorder, sizes[first + d], "==", substitute(n, sizes.__getitem__), True, told)
    for guard in found.guards:
        asked = f"{found.size_text(guard.left)} {guard.sign} {found.size_text(guard.right)}"
        told = f"{asked} must be {guard.answer}"
        left, right = (substitute(n, sizes.__getitem__) for n in (guard.left, guard.right))
        _hold(recorder, left, guard.sign, right, guard.answer, f"{found.name}: {told}")
    results = recorder.during(lambda: _replayed(found, recorder, operands, sizes))
    count = len(found.outputs)
    for (_, k), value in zip(found.mutated, results[count:]):
        leaves[k].copy_(value)
    tree = found.out_tree
    if found.gives_sizes:
        tree = constants(
            tree, lambda x: recorder.size(substitute(x, sizes.__getitem__)) if isinstance(x, Size) else x
        )
    return build(tree, iter(results[:count]))


def _hold(recorder: Any, left: Dim, sign: str, right: Dim, answer: bool, told: str) -> None:
    """What must hold of sizes: known, or checked when the graph around runs."""
    if recorder.known.known(left, sign, right) == answer:
        return
    both = f"{recorder.known.text(left)} {sign} {recorder.known.text(right)}"
    if recorder.decide(left, sign, right, None, True) != answer:
        raise RuntimeError(f"{told}; here {both} is {not answer}")


def _replayed(found: Captured, recorder: Any, operands: list[Any], sizes: dict[int, Dim]) -> list[Any]:
    if type(found.drawn) is not int:
        raise RuntimeError(
            f"{found.name}: draws as many random numbers as a size that varies, which it cannot do inside "
            f"another "
            "graph: make that of a function of both"
        )
    numbers = found.draw(operands)
    again = [operands[k] for k in found.steps.again]
    values: dict[int, Any] = dict(enumerate([*operands, *again, *numbers]))
    for step in resolved(found.steps, sizes.__getitem__).steps:
        given = [x if kind in ("number", "size") else values[x] for kind, x in step.args]
        before = _core.set_grad_enabled(step.history and _core.grad_enabled())
        try:
            if isinstance(step.op, str):
                structure = tuple(
                    [
                        tuple([recorder.size(n) for n in x]) if isinstance(x, tuple) else x
                        for x in step.structure
                    ]
                )
                made: Any = called(step._replace(structure=structure), tuple(given))
            else:
                made = _call(recorder, step, given)
        finally:
            _core.set_grad_enabled(before)
        values.update(zip(step.outs, made))
    return [values[k] for k in found.steps.results]


def _call(recorder: Any, step: Any, given: list[Any]) -> Any:
    """One op, sizes in general beside it."""
    concrete = [
        x.whole if type(x) is Traced else recorder.value_of(x) if isinstance(x, Size) else x for x in given
    ]
    recorder.pending = step.op, given
    try:
        made = _core.call_op(step.op.handle, step.structure, tuple(concrete))
    finally:
        recorder.pending = None
    return recorder.wrapped(made)


def on_samples(found: Captured, state: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a graph for samples of a batch (kiln.vmap): one op, batched as any."""
    if found.random or found.mutated or found.op is None:
        raise RuntimeError(
            f"{found.name}: draws random numbers, or writes its state, which vmap does not follow"
        )
    given: list[Any] = []
    tree = found.tree_of(args, kwargs, given)
    if not alike(tree, found.in_tree):
        raise TypeError(f"{found.name}: {found.difference(args, kwargs, tree)}")
    operands = [*(given[k] for k in found.distinct), *state]
    for own, x in zip(found.inputs, operands):
        fits = x.dtype.name == own.dtype and x.ndim == len(own.shape)
        if not fits or any(isinstance(n, int) and n != m for n, m in zip(own.shape, x.shape)):
            raise RuntimeError(
                f"{own.name}: must be {own.dtype}{list(map(found.size_text, own.shape))}, got {x!r}"
            )
    made = found.op.handle([*operands, *(operands[k] for k in found.steps.again)])
    results = list(made) if isinstance(made, (list, tuple)) else [made]
    return build(found.out_tree, iter(results[: len(found.outputs)]))


def on_values(found: Captured, state: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of a graph as values of the graph under construction, whose nodes its nodes become."""
    if found.random or found.mutated:
        what = "draws random numbers" if found.random else "writes its state"
        raise RuntimeError(f"{found.name}: {what}, which what runs under control flow cannot")
    given: list[Any] = []
    for x in [*args, *(kwargs[x.name] for x in found.inputs[len(args) :] if x.name in kwargs)]:
        if not isinstance(x, Value):
            flatten(x, given)
        else:
            given.append(x)
    if len(given) != len(found.inputs):
        raise TypeError(f"{found.name}: expected {len(found.inputs)} inputs, got {len(given)}")
    graph = current()
    values = [outside(graph, x) for x in [*given, *state]]
    for own, x in zip(found.inputs, values):
        if x.dtype != own.dtype or x.ndim != len(own.shape):
            raise RuntimeError(f"{own.name}: expected {own.dtype} of {len(own.shape)} dims, got {x!r}")
    made = inline(graph, found.graph, values)[: len(found.outputs)]
    slots = [n for x in values for n in x.shape]
    tree = constants(found.out_tree, lambda x: substitute(x, slots.__getitem__) if isinstance(x, Size) else x)
    return build(tree, iter(made))
