"""What a script cannot keep is refused, with the line and the reason, and never computed wrong; what
one program cannot hold is a program for each way.
"""

from __future__ import annotations

import io
from typing import Any

import pytest

import kiln
from kiln.tracing.trees import flatten

X = [1.0, 2.0]
CASES: list[tuple[Any, str]] = []
WAYS: list[tuple[Any, str]] = []  # what one program cannot hold, and one for each way can
EFFECTS: list[Any] = []  # functions that change what is there before the call


def case(pattern: str) -> Any:
    """Adds a function that is refused so."""

    def add(f: Any) -> Any:
        CASES.append((f, pattern))
        return f

    return add


def way(pattern: str) -> Any:
    """Adds a function whose ways are programs of their own, for this reason."""

    def add(f: Any) -> Any:
        WAYS.append((f, pattern))
        return f

    return add


def effect(f: Any) -> Any:
    """Adds a function that changes SEEN, STATE or BOX."""
    EFFECTS.append(f)
    return f


@way("has no value: y is set in one branch alone")
def one_branch_alone(x):
    if x.sum() > 0:
        y = x * 2
    return y


@way(r"y is a float32 tensor of shape \(2,\) and a float32 tensor of shape \(4,\)")
def other_shapes(x):
    if x.sum() > 0:
        y = x
    else:
        y = x.repeat(2)
    return y + 1


@way("y is a float32 tensor .* and a float64 tensor")
def other_dtypes(x):
    if x.sum() > 0:
        y = x
    else:
        y = x.double()
    return y + 1


@way("y is a float32 tensor .* and 3")
def tensor_or_number(x):
    if x.sum() > 0:
        y = x
    else:
        y = 3
    return y + 1


@way("y is 3.5 and 2")
def int_or_float(x):
    y = 2
    if x.sum() > 0:
        y = 3.5
    return x * y


@way("None")
def none_or_tensor(x):
    y = None
    if x.sum() > 0:
        y = x
    return y


@way("what the function returns .* and a tuple of 2|what the function returns is")
def returns_differ(x):
    if x.sum() > 0:
        return x
    return x, x


@way("nothing on another")
def returns_nothing_on_one_path(x):
    if x.sum() > 0:
        return x


@way("a list of 2 and a list of 1|a list of 1 and a list of 2")
def appends_in_one_branch(x):
    items = [x]
    if x.sum() > 0:
        items.append(x)
    return kiln.stack(items)


@way("a list")
def grows_in_loop(x):
    items = [x]
    while x.sum() < 100:
        x = x * 2
        items.append(x)
    return kiln.stack(items)


@way("x is a float32 tensor of shape")
def shape_grows_in_loop(x):
    while x.sum() < 100:
        x = kiln.cat([x, x])
    return x


@way("s is 0 and a float32 tensor")
def number_becomes_tensor(x):
    s = 0
    while x.sum() < 100:
        x = x * 2
        s = s + x
    return s


@way("i is set in the loop alone")
def loop_variable_afterwards(x):
    for i in range(int(x[0])):
        x = x + i
    return x * i


@way("random numbers")
def random_in_branch(x):
    if x.sum() > 0:
        x = x + kiln.rand(2)
    return x


@way("slice whose length depends")
def slice_by_value(x):
    return x[: int(x[0])]


@way("number that depends on")
def size_by_value(x):
    return kiln.zeros(int(x[0]))


@way("number that depends on|reads (a|the) value")
def view_by_value(x):
    return x.view(int(x[0]), -1)


@way("key")
def key_by_value(x):
    return {1: x}[int(x[0])]


@way("makes a text|reads (a|the) value")
def text_of_a_value(x):
    name = f"{x.sum()}"
    return x * len(name)


@way("makes a text")
def text_of_a_number(x):
    return str(int(x[0]))


@way("inside a try")
def raise_inside_try(x):
    try:
        if x.sum() > 0:
            raise ValueError("positive")
    except ValueError:
        x = x * 2
    return x


@way("inside a try")
def assert_inside_try(x):
    try:
        assert x.sum() > 0
    except AssertionError:
        x = x * 2
    return x


@way("comprehension")
def filtered_comprehension(x):
    return [v for v in x if v > 0]


@way("range whose length depends")
def list_of_range(x):
    return [i * 2 for i in range(int(x[0]))]


SEEN: list[Any] = []
STATE = {"n": 0}
BOX: Any = type("Box", (), {"n": 1})()


@effect
def changes_a_global_list(x):
    SEEN.append(1)
    return x


@effect
def changes_a_global_in_branch(x):
    if x.sum() > 0:
        STATE["n"] = 1
    return x


@effect
def sets_an_attribute(x):
    BOX.n = 3
    return x


@effect
def sets_an_attribute_in_branch(x):
    if x.sum() > 0:
        BOX.n = 3
    return x


@way("prints")
def prints_in_branch(x):
    if x.sum() > 0:
        print(x)
    return x


@way("written by another name|may be an argument")
def alias_of_argument_written(x):
    if x.sum() > 0:
        y = x
    else:
        y = x * 2
    y += 1
    return y


@way("written by another name")
def alias_of_local_written(x):
    z = x * 3
    if x.sum() > 0:
        y = z
    else:
        y = x * 2
    y += 1
    return y, z


@way("in place")
def loop_writes_what_it_rebinds(x):
    a = x * 1
    b = x * 1
    while a.sum() < 100:
        a += 1
        a, b = b, a
    return a


@case("returns a")
def returns_an_object(x):
    return object()


@way("calls _tree in itself without a bound")
def endless_recursion(x):
    return _tree(x)


def _tree(x):
    if x.sum() > 100:
        return x
    return _tree(x * 2) + _tree(x * 3)


@case("backward")
def backward_inside(x):
    if x.sum() > 0:
        (x * x).sum().backward()
    return x


@way("numpy|reads (a|the) value")
def numpy_inside(x):
    return x * float(x.numpy()[0])


@case("type int a float")
def wrong_annotation(x):
    n: int = x.sum().item()
    return n


@way("sets an item of a list")
def list_store_by_value(x):
    items = [x, x]
    items[int(x[0])] = x * 2
    return items


@way("power")
def float_power_of_number(x):
    return x[0].item() ** 0.5


@pytest.mark.parametrize(("function", "pattern"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_refused_with_its_line(function: Any, pattern: str) -> None:
    with pytest.raises(RuntimeError, match=pattern) as caught:
        kiln.jit.script(function)(kiln.tensor(X, requires_grad=function.__name__ == "backward_inside"))
    assert "test_refusals.py:" in str(caught.value)


_LOOPS = (  # which never end below 0
    "grows_in_loop", "shape_grows_in_loop", "number_becomes_tensor", "loop_writes_what_it_rebinds",
    "endless_recursion",
)  # fmt: skip


def _outcome(function: Any, x: Any) -> Any:
    """What a call gives or raises, and what it leaves."""
    given = kiln.tensor(x)
    kiln.manual_seed(5)
    try:
        result = function(given)
    except Exception as error:
        result = type(error)
    leaves: list[Any] = []
    tree = flatten(result, leaves)
    drawn = kiln.rand(1)
    left = [SEEN, STATE, BOX.n]
    return repr(tree), [(y.dtype, y.tolist()) for y in [*leaves, given, drawn]], repr(left)


@pytest.mark.parametrize(("function", "pattern"), WAYS, ids=lambda x: getattr(x, "__name__", ""))
def test_each_way_is_a_program(function: Any, pattern: str) -> None:
    script = kiln.jit.script(function)
    with pytest.warns(kiln.jit.TracerWarning, match=pattern) as told:
        assert _outcome(script, X) == _outcome(function, X)
    assert len(told) == 1 and "test_refusals.py:" in str(told[0].message)
    loops = function.__name__ in _LOOPS
    for x in ([20.0, 90.0] if loops else [-1.0, -2.0], X, [2.0, 1.0], [1.0, 3.0]):
        assert _outcome(script, x) == _outcome(function, x)
    with pytest.raises(RuntimeError, match=pattern):
        script.save(io.BytesIO())


@pytest.mark.parametrize("function", EFFECTS, ids=lambda x: x.__name__)
def test_every_call_changes_what_is_there(function: Any) -> None:
    results = []
    for f in (function, kiln.jit.script(function)):
        SEEN[:], BOX.n = [], 1
        STATE.update(n=0)
        results.append([_outcome(f, x) for x in (X, [-1.0, -2.0], X, X)])
    assert results[0] == results[1]
