"""Every function's samples exported with `Dim.AUTO` for every size: the bits of the function at the example's
sizes, and at others where they vary; what cannot be a program is a TracingError. All of them with
KILN_TEST_FULL=1, else some.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from sample_calls import assert_same, given, tensors

import kiln
from kiln.export import Dim
from kiln.testing import mode_cases
from kiln.tracing.recorder import TracingError

FULL = bool(os.environ.get("KILN_TEST_FULL"))
RECORDS = sorted(
    (entry.record for entry in mode_cases.table().values() if entry.record.samples is not None),
    key=lambda record: str(record.name),
)


def _cases(record: Any) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """A function of tensors alone, and those, for each sample that has tensors among its arguments."""
    dtype = "int64" if record.dtypes == "integral" else "float32"
    function = getattr(record, "handle", None) or record.function
    for sample in record.samples(np.random.default_rng(3), dtype)[: None if FULL else 2]:
        args, kwargs = tuple(map(given, sample.args)), {k: given(v) for k, v in sample.kwargs.items()}
        places = [k for k, x in enumerate(args) if isinstance(x, kiln.Tensor)]

        def called(*own: Any, args: Any = args, kwargs: Any = kwargs, places: Any = places) -> Any:
            instead = dict(zip(places, own))
            return function(*[instead.get(k, x) for k, x in enumerate(args)], **kwargs)

        if places:
            yield called, tuple([args[k] for k in places])


def _outcome(called: Callable[..., Any], own: tuple[Any, ...]) -> list[Any] | None:
    kiln.manual_seed(1)
    try:
        return tensors(called(*[x.clone() for x in own]))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return None


def _larger(x: Any, shape: tuple[Any, ...]) -> Any:
    """A tensor of x's values, one larger along dims whose sizes vary."""
    for d, n in enumerate(shape):
        x = x if isinstance(n, int) else kiln.cat([x, x.narrow(d, 0, 1)], d)
    return x


@pytest.mark.parametrize("record", RECORDS if FULL else RECORDS[::12], ids=lambda record: str(record.name))
def test_sizes_that_can_vary_vary(record: Any) -> None:
    """No error but a TracingError, and that only where there is no program of the example's sizes either."""
    for called, own in _cases(record):
        expected = _outcome(called, own)
        if expected is None:
            continue
        example = tuple([x.clone() for x in own])
        vary = tuple([dict.fromkeys(range(x.ndim), Dim.AUTO) for x in own])
        try:
            program = kiln.export.export(called, example, dynamic_shapes=vary)
        except TracingError:
            with pytest.raises(TracingError):
                kiln.export.export(called, example)
            continue
        kiln.manual_seed(1)
        assert_same(record.name, expected, tensors(program(*[x.clone() for x in own])))
        shapes = [x.shape for x in program.graph.inputs[: len(own)]]
        for x, shape in zip(own, shapes):
            assert all(n > 1 or m == n for n, m in zip(x.shape, shape)), "what is 0 or 1 stays"
        if not getattr(record, "public", True):
            continue  # its callers answer for its sizes
        other = tuple(map(_larger, own, shapes))
        expected, came = _outcome(called, other), _outcome(program, other)
        if expected is not None and came is not None:
            assert_same(record.name, expected, came)


@pytest.mark.parametrize("record", RECORDS if FULL else RECORDS[::6], ids=lambda record: str(record.name))
def test_what_a_function_refuses_of_sizes_its_program_refuses(record: Any) -> None:
    """With one size of one input larger by 1, which often does not fit the others."""
    for called, own in _cases(record) if getattr(record, "public", True) else ():
        if _outcome(called, own) is None:
            continue
        vary = tuple([dict.fromkeys(range(x.ndim), Dim.AUTO) for x in own])
        try:
            program = kiln.export.export(called, tuple([x.clone() for x in own]), dynamic_shapes=vary)
        except TracingError:
            continue
        for k, d in [(k, d) for k, x in enumerate(own) for d, n in enumerate(x.shape) if n > 1]:
            other = [*own[:k], kiln.cat([own[k], own[k].narrow(d, 0, 1)], d), *own[k + 1 :]]
            if _outcome(called, tuple(other)) is None:
                sizes = [tuple(x.shape) for x in other]
                assert _outcome(program, tuple(other)) is None, f"{sizes} are taken"
