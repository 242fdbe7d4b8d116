"""What tracing cannot see: a function whose two runs on one example differ depends on more than its
arguments.

Python's and NumPy's random numbers are told by their generators' states; time, files, counters, identities of
objects and the like by what they change.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from kiln import _core
from kiln.tracing.recorder import TracingError
from kiln.tracing.trees import Tree
from kiln.tracing.variation import canonical

_WAYS = "make it an argument, or compute it with kiln (kiln.rand draws anew at each call)"


def random_states() -> tuple[Any, Any]:
    """Where the generators of Python and NumPy are."""
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return random.getstate(), None
    name, keys, *rest = numpy.get_state()
    return random.getstate(), (name, keys.tobytes(), *rest)


def refuse_drawn(name: str, before: tuple[Any, Any]) -> None:
    """TracingError if random numbers were drawn that no trace can draw again."""
    python, numpy = random_states()
    for who, a, b in (("Python", before[0], python), ("NumPy", before[1], numpy)):
        if a != b and a is not None:
            raise TracingError(
                f"{name}: draws random numbers from {who}, which would be the same ones at every call; "
                f"{_WAYS}"
            )


def compare(first: Any, second: Any) -> None:
    """TracingError where two captures of one example differ, with the line."""
    if second.one:
        if canonical(first.steps, second.one) != canonical(second.steps, second.one):
            raise _differs(first, "does something else where two arguments are one tensor", "")
        second.steps = first.steps
    for k, (a, b) in enumerate(zip(first.steps.steps, second.steps.steps)):
        if a.what() != b.what():
            line = first.line_of(k)
            raise _differs(first, f"does {a.told()} and then {b.told()}", line)
    if len(first.steps.steps) != len(second.steps.steps):
        counts = f"{len(first.steps.steps)} ops and then {len(second.steps.steps)}"
        raise _differs(first, f"does {counts}", "")
    if first.steps != second.steps._replace(steps=first.steps.steps) or first.mutated != second.mutated:
        raise _differs(first, "gives other results the second time", "")
    if [(s.name, s.kind) for s in first.state] != [(s.name, s.kind) for s in second.state]:
        raise _differs(first, "meets other tensors the second time", "")
    for a, b in zip(first.state, second.state):
        if a.tensor is not b.tensor and not _same_bits(a.tensor, b.tensor):
            raise _differs(first, f"makes a tensor of other values the second time ({a.name})", "")
    for a, b in zip(first.met, second.met):  # (memory that NumPy knows is the same in both)
        if not _same_bits(a, b):
            raise _differs(first, "finds other values in a tensor the second time", "")
    for a, b in zip(first.kept.read_values, second.kept.read_values):
        if not _same_bits(a.example, b.example):
            raise _differs(first, "reads another value the second time", a.line)
    _compare_trees(first, first.out_tree, second.out_tree, "the result")


def _compare_trees(found: Any, a: Tree, b: Tree, name: str) -> None:
    if (a.kind, a.keys, len(a.items)) != (b.kind, b.keys, len(b.items)):
        raise _differs(found, f"gives {name} of another structure the second time", "")
    if a.kind == "constant" and a.value is not b.value and repr(a.value) != repr(b.value):
        raise _differs(found, f"gives {a.value!r} and then {b.value!r} as {name}", "")
    for k, (x, y) in enumerate(zip(a.items, b.items)):
        _compare_trees(found, x, y, f"{name}[{a.keys[k] if a.keys else k!r}]")


def _differs(found: Any, what: str, line: str) -> TracingError:
    at = f"{line} " if line else ""
    return TracingError(
        f"{found.name}: {at}{what}, run twice on one example: it depends on something besides its "
        f"arguments that "
        f"changes, and the trace would keep what it was; {_WAYS}"
    )


def _same_bits(a: Any, b: Any) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    return bool(_core.same_bytes(a, b)) or bool(((a == b) | ((a != a) & (b != b))).all())
