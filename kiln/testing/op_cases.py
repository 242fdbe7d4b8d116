"""Test cases from the table: one `Entry` per op, its samples as tensors of a dtype and a layout.

A sample's NumPy arrays stand for tensors, alone or in a list; everything else is passed as it is. A dtype
that NumPy does not have (bfloat16) is drawn as float32 and rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kiln.table.record import NOTHING_MORE, Tests
from kiln.testing.compare import dtype_name, is_tensor, to_array
from kiln.testing.layouts import LAYOUTS, laid_out, repeat_last

Array = npt.NDArray[Any]

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
GROUPS = {
    "float": FLOATS,
    "int": INTS,
    "whole": INTS,
    "bool": ("bool",),
    "integral": (*INTS, "bool"),
    "number": FLOATS + INTS,
    "numeric": FLOATS + INTS,
    "all": (*FLOATS, *INTS, "bool"),
}


class Case(NamedTuple):
    """One call: arguments with NumPy arrays for tensors, keywords, and what to call it in a message."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    label: str


class Entry:
    """What the harness needs of an op record."""

    def __init__(self, record: Any) -> None:
        self.record = record
        self.name: str = record.name
        self.kind: str = record.kind
        self.function: Callable[..., Any] = record.function
        self.reference: Callable[..., Any] | None = record.reference
        self.differentiable: bool = record.differentiable
        self.reads: bool = getattr(record, "reads", False)
        self.tests: Tests = getattr(record, "tests", NOTHING_MORE)
        # whether its result depends on how its argument lies in memory
        self.sees_layout: bool = self.kind == "as_strided" or self.tests.sees_layout

    @property
    def has_peer(self) -> bool:
        """Whether a call of it is one of PyTorch's function: views of the core name places in memory."""
        return self.tests.peer is not None and self.kind != "as_strided"

    @property
    def layouts(self) -> tuple[str, ...]:
        """The layouts of its arguments that must not matter."""
        if self.sees_layout:
            return LAYOUTS[:1]
        return LAYOUTS[: -1 if self.tests.regular else None]

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes the record names, its groups spelled out."""
        given = self.record.dtypes
        words = given.replace(",", " ").split() if isinstance(given, str) else [dtype_name(d) for d in given]
        return tuple(dict.fromkeys(d for word in words for d in GROUPS.get(word, (word,))))

    def cases(self, dtype: str, seed: int = 0) -> list[Case]:
        """The record's samples in `dtype`; the same seed gives the same samples."""
        if self.record.samples is None:
            return []
        drawn = "float32" if dtype == "bfloat16" else dtype
        samples = self.record.samples(np.random.default_rng(seed), drawn)
        return [
            Case(
                tuple(getattr(s, "args", None) or s.inputs), dict(s.kwargs), f"{self.name} sample {n} {dtype}"
            )
            for n, s in enumerate(samples)
        ]

    def stated_failures(self) -> list[Any]:
        """Calls that must raise, as the record has them: (args, kwargs, exception type, message pattern)."""
        return list(self.record.failures()) if self.record.failures is not None else []

    def failures(self) -> list[Any]:
        """Those, and the first sample with a text in the place of its first array."""
        return self.stated_failures() + self._not_an_array()

    def _not_an_array(self) -> list[Any]:
        cases = self.cases(self.dtypes[0])[:1]
        if not cases or not cases[0].args:
            return []
        first, *others = cases[0].args
        params = getattr(self.record, "params", None)  # of an op: arrays, numbers, sizes, structure
        if not (params[0].kind in "TVLN" if params else any(isinstance(x, np.ndarray) for x in _flat(first))):
            return []
        return [
            (
                ("text", *others),
                cases[0].kwargs,
                TypeError,
                rf"^{re.escape(self.name)}(\(\))?(:| received) .*\bstr\b",
            )
        ]


def arrays_of(case: Case) -> list[Array]:
    """The tensors of a case, those in lists too, as arrays."""
    return [x for arg in (*case.args, *case.kwargs.values()) for x in _flat(arg) if isinstance(x, np.ndarray)]


def _flat(arg: Any) -> list[Any]:
    return list(arg) if isinstance(arg, (list, tuple)) else [arg]


def map_arrays(case: Case, change: Callable[[Array], Any]) -> Case:
    """The case with every array replaced by `change(array)`."""

    def one(arg: Any) -> Any:
        if isinstance(arg, np.ndarray):
            return change(arg)
        if isinstance(arg, (list, tuple)) and any(isinstance(x, np.ndarray) for x in arg):
            return type(arg)(one(x) for x in arg)
        return arg

    return Case(tuple(map(one, case.args)), {k: one(v) for k, v in case.kwargs.items()}, case.label)


def tensors(framework: Any, case: Case, dtype: str, layout: str = "contiguous", grad: bool = False) -> Case:
    """The case on tensors of `framework`: floats in `dtype` (where it is one NumPy lacks) and all in
    `layout`.
    """
    target = framework.bfloat16 if dtype == "bfloat16" else None

    def make(array: Array) -> Any:
        is_float = array.dtype.kind == "f"
        tensor = laid_out(framework, array, layout, target if is_float else None)
        return tensor.requires_grad_() if grad and is_float else tensor

    return map_arrays(case, make)


def expanded(case: Case) -> Case:
    """The case whose arrays hold what layout "expanded" will show."""
    return map_arrays(case, repeat_last)


def rounded(framework: Any, case: Case, dtype: str) -> Case:
    """The case whose float arrays hold exactly what tensors of `dtype` hold, in float64 (integers as they
    are).
    """

    def change(array: Array) -> Any:
        if array.dtype.kind != "f":
            return array
        tensor = laid_out(framework, array, "contiguous", framework.bfloat16 if dtype == "bfloat16" else None)
        return to_array(tensor).astype(np.float64)

    return map_arrays(case, change)


def resized(case: Case) -> Iterator[Case]:
    """A pointwise case in the shapes every pointwise op must take: 0-d, empty, large, broadcast against
    each other.
    """
    shapes: tuple[tuple[int, ...], ...] = ((), (0,), (3, 0), (1,), (100_003,), (7, 1, 5))
    for shape in shapes:
        yield map_arrays(case, partial(np.resize, new_shape=shape))._replace(label=f"{case.label} {shape}")
    if len(arrays_of(case)) >= 2:
        sides = iter(((3, 1), (1, 4), (4,)))
        broadcast = map_arrays(case, lambda x: np.resize(x, next(sides, ())))
        yield broadcast._replace(label=f"{case.label} broadcast")


def results_of(result: Any) -> list[Any]:
    """The tensors of a result, one or several."""
    return [y for y in _flat(result) if is_tensor(y)]
