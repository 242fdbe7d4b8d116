"""A function followed twice, with what should not matter varied: what does is a condition of each call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from kiln import _core
from kiln.nn import Module
from kiln.tracing.answers import OTHER, Condition, attribute, is_plain
from kiln.tracing.capture import capture
from kiln.tracing.captured import Captured, Kept
from kiln.tracing.compare import compare
from kiln.tracing.recorder import TracingError
from kiln.tracing.variation import ALL_BUT_SAME, AROUND, COPIES, KINDS, NONE, ORDER, SAME, TYPES, Variation


def captured_twice(
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: Any,
    on_data: str,
    check: bool,
    root: Module | None = None,
    preserved: Sequence[str] | None = None,
    types: bool = True,
) -> Captured:
    """A function as a graph, followed twice where that is to be checked; `preserved` as of `capture`,
    `types` as of `_compare_varied`.
    """
    found = capture(func, args, kwargs, shapes, root, on_data, preserved=preserved)
    if check:
        written = frozenset(k for kind, k in found.mutated if kind == "input")
        held = [object() for _ in range(1000)]  # so that new objects lie elsewhere
        seed, position = _core.random_state()
        if not _reads_what_it_draws(found):
            _core.set_random_state(seed ^ 1, position + 1)  # (nor may it depend on where the generator is)
        try:
            _compare_varied(
                found,
                lambda how: capture(func, args, kwargs, shapes, root, on_data, True, how, written, preserved),
                types,
            )
        finally:
            _core.set_random_state(seed, position)
        del held
    return found


def _reads_what_it_draws(found: Captured) -> bool:
    """Whether values that may be made of random numbers decide what the program is, and are checked."""
    return bool(found.random) and any(isinstance(c, Kept) and c.kind == "result" for c in found.checks)


def _compare_varied(found: Captured, again: Callable[[Variation], Captured], types: bool) -> None:
    """Follows a function once more, with all varied that should not matter. What does is found by varying one
    thing at a time, and becomes a condition; TracingError where the function changes by itself. `types`:
    which of Tensor and Parameter arguments are is no part of how calls look.
    """
    line = "the function"
    of_types = False
    refusal = _difference(found, again, ALL_BUT_SAME)
    if refusal is not None:
        compare(found, again(NONE))
        ways = (TYPES, ORDER, COPIES)
        of_types, of_order, of_copies = (_difference(found, again, how) is not None for how in ways)
        around = _difference(found, again, AROUND)
        if around is not None or not (of_types or of_order or of_copies):
            raise around or refusal
        for k in sorted(found.given_back) if of_copies else ():
            count = len(found.inputs)
            name = found.inputs[k].name if k < count else found.state[k - count].name
            found.checks.append(Condition(k, "is_contiguous", True, line, name))
        found.ordered = of_order
    if of_types or (types and found.types and _difference(found, again, KINDS) is not None):
        for k, x in enumerate(found.inputs):
            found.checks.append(Condition(k, "type", found.types[k], line, x.name))
    _state_attributes(found, again, line)
    if found.alike and _difference(found, again, SAME) is not None:
        compare(found, again(NONE))
        for k, first in found.alike.items():
            found.checks.append(Condition(k, OTHER, first, line, found.inputs[k].name))


def _state_attributes(found: Captured, again: Callable[[Variation], Captured], line: str) -> None:
    """What the function reads of its arguments' attributes without asking a tensor that tells (by `vars`, of
    a subclass) are conditions too: it is followed without each of them.
    """
    asked = {(c.which, c.what) for c in found.checks if isinstance(c, Condition)}
    held: dict[str, list[tuple[int, Any]]] = {}
    for k, own in enumerate(found.attributes):
        for name, value in own.items():
            if (k, attribute(name)) not in asked:
                held.setdefault(name, []).append((k, value))
    for name, values in held.items():
        if _difference(found, again, Variation(without=name)) is None:
            continue
        for k, value in values:
            if not is_plain(value):
                raise TracingError(
                    f"{found.name}: reads the attribute {name} of {found.inputs[k].name}, which is neither "
                    "number nor text: make it an argument"
                )
            answer = [copy.deepcopy(value)]  # a list may change
            found.checks.append(Condition(k, attribute(name), answer, line, found.inputs[k].name))


def _difference(found: Captured, again: Callable[[Variation], Captured], how: Variation) -> Exception | None:
    """What is otherwise where the function is followed so; what it asks then of arguments are conditions."""
    try:
        second = again(how)
        compare(found, second)
    except Exception as error:
        return error
    for condition in second.checks:
        if isinstance(condition, Condition) and condition not in found.checks:
            if not is_plain(condition.answer):
                raise TracingError(
                    f"{found.name}: {condition.line} reads an attribute of {condition.name} that is neither "
                    "number nor text: make it an argument"
                )
            found.checks.append(condition)
    return None
