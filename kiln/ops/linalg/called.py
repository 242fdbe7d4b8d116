"""Functions that libraries compute as ops of programs: what a trace keeps of a call, and a file of a trace.

A node of such an op says which function is called and how its results look. No plan has one: a program with
one runs its steps one by one, each function as it runs eagerly, derivative and errors with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from kiln import _core
from kiln.errors import describe
from kiln.graph.graph import Graph, Shape, Value
from kiln.table.arguments import is_value, recorder_here
from kiln.table.record import REQUIRED, Op, Param

Look = tuple[str, Shape]


class CalledOp(Op):
    """See the module's text. `which`: of several results one, as nodes have it."""

    __slots__ = ("caller", "count", "looks", "which")

    def __init__(
        self,
        name: str,
        params: tuple[Param, ...],
        looks: Callable[..., list[Look]],
        count: int,
        which: int | None = None,
    ) -> None:
        self.caller: Any = None  # the function
        self.looks, self.count, self.which = looks, count, which
        super().__init__(name, "called", params, None, listed=which is None, native="composite")
        self.identity, self.public, self.shapes = name, False, _look

    def result(self, which: int) -> Op:
        found = self.results.get(which)
        if found is None:
            if which >= self.count:
                raise KeyError(f"{self.name}__{which}")
            made = CalledOp(f"{self.name}__{which}", self.params, self.looks, self.count, which)
            made.caller = self.caller
            found = self.results.setdefault(which, made)
        return found

    def run(self, structure: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, ...]:
        """The function's results, of a call as steps have it."""
        settings = [x for param, x in zip(self.params, structure) if param.kind == "S"]
        made = self.caller(*given, *settings)
        results = tuple(made) if self.count > 1 else (made,)
        looks = self.looks(*((x.dtype.name, tuple(x.shape)) for x in given), *settings)
        if [(y.dtype.name, tuple(y.shape)) for y in results] != looks:  # of a file that says something else
            told = ", ".join(map(describe, results))
            raise RuntimeError(f"{self.name}: gives {told}, where its program says {looks}")
        return results

    def of_arrays(self, arrays: Sequence[Any], settings: tuple[Any, ...]) -> Any:
        """The same of NumPy's arrays: the result of a node."""
        made = self.caller(*(_core.from_buffer(x.copy(order="C")) for x in arrays), *settings)
        return (made if self.which is None else made[self.which]).numpy()


def _look(op: Any, graph: Graph, inputs: tuple[Value, ...], attrs: tuple[Any, ...]) -> Look:
    found: list[Look] = op.looks(*((v.dtype, v.shape) for v in inputs), *attrs)
    return found[op.which or 0]


def in_programs(
    name: str, looks: Callable[..., list[Look]], check: Callable[..., Any], tensors: int = 1, count: int = 1
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function of so many tensors and of settings, given by place, an op of programs. `looks` of the
    tensors' dtypes and shapes, and of the settings: those of its `count` results, ValueError if it has none;
    `check` of its arguments: raises what the function does before it computes.
    """

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        code = function.__code__
        names = code.co_varnames[: code.co_argcount]
        params = tuple([Param(n, "T" if k < tensors else "S", REQUIRED) for k, n in enumerate(names)])
        op = CalledOp(name, params, looks, count)

        @functools.wraps(function)
        def call(*args: Any) -> Any:
            given, settings = args[:tensors], args[tensors:]
            recorder = recorder_here(*given)
            if recorder is None or any(is_value(x) or hasattr(type(x), "outside") for x in given):
                return function(*args)
            check(*args)
            made = recorder.call_outside(op, given, settings)
            return function(*args) if made is None else made if count > 1 else made[0]

        op.caller = call
        return call

    return make


def matrix(look: Look) -> tuple[str, Shape]:
    """The dtype and shape of matrices. ValueError for what is none."""
    dtype, shape = look
    if dtype not in ("float32", "float64") or len(shape) < 2:
        raise ValueError(f"no matrices: {dtype} of {len(shape)} dims")
    return dtype, shape


def square(look: Look) -> tuple[str, Shape]:
    """The same of square ones."""
    dtype, shape = matrix(look)
    m, n = shape[-2:]
    if isinstance(m, int) and isinstance(n, int) and m != n:
        raise ValueError(f"no square matrices: {m} by {n}")
    return dtype, shape
