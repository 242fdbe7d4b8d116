"""What a script cannot keep is refused, with the line and the reason, and never computed wrong."""

from __future__ import annotations

from typing import Any

import pytest

import kiln

X = [1.0, 2.0]
CASES: list[tuple[Any, str]] = []


def case(pattern: str) -> Any:
    """Adds a function that is refused so."""

    def add(f: Any) -> Any:
        CASES.append((f, pattern))
        return f

    return add


@case("has no value: y is set in one branch alone")
def one_branch_alone(x):
    if x.sum() > 0:
        y = x * 2
    return y


@case(r"y is a float32 tensor of shape \(2,\) and a float32 tensor of shape \(4,\)")
def other_shapes(x):
    if x.sum() > 0:
        y = x
    else:
        y = x.repeat(2)
    return y + 1


@case("y is a float32 tensor .* and a float64 tensor")
def other_dtypes(x):
    if x.sum() > 0:
        y = x
    else:
        y = x.double()
    return y + 1


@case("y is a float32 tensor .* and 3")
def tensor_or_number(x):
    if x.sum() > 0:
        y = x
    else:
        y = 3
    return y + 1


@case("y is 3.5 and 2")
def int_or_float(x):
    y = 2
    if x.sum() > 0:
        y = 3.5
    return x * y


@case("None")
def none_or_tensor(x):
    y = None
    if x.sum() > 0:
        y = x
    return y


@case("what the function returns .* and a tuple of 2|what the function returns is")
def returns_differ(x):
    if x.sum() > 0:
        return x
    return x, x


@case("nothing on another")
def returns_nothing_on_one_path(x):
    if x.sum() > 0:
        return x


@case("a list of 2 and a list of 1|a list of 1 and a list of 2")
def appends_in_one_branch(x):
    items = [x]
    if x.sum() > 0:
        items.append(x)
    return kiln.stack(items)


@case("a list")
def grows_in_loop(x):
    items = [x]
    while x.sum() < 100:
        x = x * 2
        items.append(x)
    return kiln.stack(items)


@case("x is a float32 tensor of shape")
def shape_grows_in_loop(x):
    while x.sum() < 100:
        x = kiln.cat([x, x])
    return x


@case("s is 0 and a float32 tensor")
def number_becomes_tensor(x):
    s = 0
    while x.sum() < 100:
        x = x * 2
        s = s + x
    return s


@case("i is set in the loop alone")
def loop_variable_afterwards(x):
    for i in range(int(x[0])):
        x = x + i
    return x * i


@case("random numbers")
def random_in_branch(x):
    if x.sum() > 0:
        x = x + kiln.rand(2)
    return x


@case("slice whose length depends")
def slice_by_value(x):
    return x[: int(x[0])]


@case("number that depends on")
def size_by_value(x):
    return kiln.zeros(int(x[0]))


@case("number that depends on|reads (a|the) value")
def view_by_value(x):
    return x.view(int(x[0]), -1)


@case("key")
def key_by_value(x):
    return {1: x}[int(x[0])]


@case("makes a text|reads (a|the) value")
def text_of_a_value(x):
    name = f"{x.sum()}"
    return x * len(name)


@case("makes a text")
def text_of_a_number(x):
    return str(int(x[0]))


@case("inside a try")
def raise_inside_try(x):
    try:
        if x.sum() > 0:
            raise ValueError("positive")
    except ValueError:
        x = x * 2
    return x


@case("inside a try")
def assert_inside_try(x):
    try:
        assert x.sum() > 0
    except AssertionError:
        x = x * 2
    return x


@case("comprehension")
def filtered_comprehension(x):
    return [v for v in x if v > 0]


@case("range whose length depends")
def list_of_range(x):
    return [i * 2 for i in range(int(x[0]))]


SEEN: list[Any] = []
STATE = {"n": 0}
BOX: Any = type("Box", (), {"n": 1})()


@case("there before the call")
def changes_a_global_list(x):
    SEEN.append(1)
    return x


@case("there before the call")
def changes_a_global_in_branch(x):
    if x.sum() > 0:
        STATE["n"] = 1
    return x


@case("there before the call")
def sets_an_attribute(x):
    BOX.n = 3
    return x


@case("there before the call")
def sets_an_attribute_in_branch(x):
    if x.sum() > 0:
        BOX.n = 3
    return x


@case("prints")
def prints_in_branch(x):
    if x.sum() > 0:
        print(x)
    return x


@case("written by another name|may be an argument")
def alias_of_argument_written(x):
    if x.sum() > 0:
        y = x
    else:
        y = x * 2
    y += 1
    return y


@case("written by another name")
def alias_of_local_written(x):
    z = x * 3
    if x.sum() > 0:
        y = z
    else:
        y = x * 2
    y += 1
    return y, z


@case("in place")
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


@case("calls _tree in itself without a bound")
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


@case("numpy|reads (a|the) value")
def numpy_inside(x):
    return x * float(x.numpy()[0])


@case("type int a float")
def wrong_annotation(x):
    n: int = x.sum().item()
    return n


@case("sets an item of a list")
def list_store_by_value(x):
    items = [x, x]
    items[int(x[0])] = x * 2
    return items


@case("power")
def float_power_of_number(x):
    return x[0].item() ** 0.5


@pytest.mark.parametrize(("function", "pattern"), CASES, ids=lambda x: getattr(x, "__name__", ""))
def test_refused_with_its_line(function: Any, pattern: str) -> None:
    with pytest.raises(RuntimeError, match=pattern) as caught:
        kiln.jit.script(function)(kiln.tensor(X, requires_grad=function.__name__ == "backward_inside"))
    assert "test_refusals.py:" in str(caught.value)
