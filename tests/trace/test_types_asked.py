"""Captured functions that ask of which type a tensor is, in every way Python has: each way of capture gives
what eager gives, or refuses with the line, also where a call brings another type than the example.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest

import kiln
from kiln import Tensor
from kiln.nn import Parameter


@functools.singledispatch
def _dispatched(x: Any) -> Any:
    return x * 3


_dispatched.register(Tensor, lambda x: x * 2)
_dispatched.register(Parameter, lambda x: x * 4)


def _helper(x: Any) -> bool:
    return type(x) is Tensor


def _stored(x: Any) -> Any:
    kind = type
    return kind(x) is Tensor


def _matched(x: Any) -> Any:
    match x:
        case Parameter():
            return False
    return True


def _kept(x: Any) -> Any:
    kind = type(x)
    return kind is Tensor


def _given_back(x: Any) -> Any:
    return _kind_of(x) is Tensor


def _kind_of(x: Any) -> Any:
    return type(x)


def _of_two_kept(x: Any) -> Any:
    first, second = type(x), type(x + 1)
    same = first is second
    return same


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "is": lambda x: type(x) is Tensor,
    "is not": lambda x: type(x) is not Tensor,
    "is Parameter": lambda x: type(x) is Parameter,
    "is, swapped": lambda x: Tensor is type(x),
    "is, of a module": lambda x: type(x) is kiln.nn.Parameter,
    "==": lambda x: type(x) == Tensor,  # noqa: E721
    "== Parameter": lambda x: type(x) == Parameter,  # noqa: E721
    "!=": lambda x: type(x) != Parameter,  # noqa: E721
    "in a tuple": lambda x: type(x) in (Tensor,),
    "in a set": lambda x: type(x) in {Parameter},
    "key of a dict": lambda x: {Tensor: True}.get(type(x), False),
    "__class__ is": lambda x: x.__class__ is Tensor,
    "__class__ ==": lambda x: x.__class__ == Parameter,
    "isinstance": lambda x: isinstance(x, Parameter),
    "isinstance of Tensor": lambda x: isinstance(x, Tensor),
    "is_tensor": lambda x: kiln.is_tensor(x),
    "issubclass": lambda x: issubclass(type(x), Parameter),
    "name": lambda x: type(x).__name__ == "Tensor",
    "qualified name": lambda x: type(x).__qualname__ == "Parameter",
    "text": lambda x: str(type(x)) == str(Parameter),
    "mro": lambda x: Parameter in type(x).__mro__,
    "two": lambda x: type(x * 1) is type(x),
    "of a result": lambda x: type(x + 1) is Tensor,
    "identity": lambda x: id(type(x)) == id(Tensor),
    "map": lambda x: next(iter(map(type, [x]))) is Tensor,
    "in a helper": _helper,
    "stored": _stored,
    "kept": _kept,
    "given back": _given_back,
    "of two that are kept": _of_two_kept,
    "match": _matched,
}


def _function(question: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def asks(x: Any) -> Any:
        return x * 2 if question(x) else x * 3

    return asks


def _dispatches(x: Any) -> Any:
    return _dispatched(x)


class Model(kiln.nn.Module):
    def __init__(self, asks: Any) -> None:
        super().__init__()
        self.w, self.asks = Parameter(kiln.tensor([2.0, 3.0])), asks
        self.register_buffer("b", kiln.tensor([1.0, 4.0]))

    def forward(self, x: Any) -> Any:
        return kiln.stack([self.asks(self.w), self.asks(self.b), self.asks(x)])


def _backend(**more: Any) -> Callable[[Any, Any], Any]:
    return lambda f, x: kiln.compile(f, backend=lambda made, examples: made, **more)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "trace": lambda f, x: kiln.jit.trace(f, (x,)),
    "script": lambda f, x: kiln.jit.script(f),
    "export": lambda f, x: kiln.export.export(f, (x,)).module(),
    "backend": _backend(),
    "fullgraph": _backend(fullgraph=True),
    "dynamic": _backend(dynamic=True),
    "region": lambda f, x: kiln.compile(f),
    "pure": lambda f, x: kiln.compile(f, pure=True),
}


def _expect_eager(way: str, function: Any, given: Any, others: Any) -> int:
    """How many of the calls gave what eager gives; the others were refused, with a line."""
    right = 0
    try:
        made = WAYS[way](function, given)
        for x in (given, given, given):
            assert made(x).tolist() == function(x).tolist()
            right += 1
    except RuntimeError as error:
        assert __file__.rpartition("/")[2] in str(error)
        return right
    for x in others:
        try:
            found = made(x)
        except RuntimeError as error:
            assert "as in the example" in str(error)
            continue
        assert found.tolist() == function(x).tolist()
        right += 1
    return right


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("asked", [*QUESTIONS, "dispatch"])
def test_the_types_of_tensors(asked: str, way: str) -> None:
    function = _dispatches if asked == "dispatch" else _function(QUESTIONS[asked])
    tensor, parameter = kiln.tensor([1.0, 2.0]), Parameter(kiln.tensor([1.0, 2.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it runs without the backend
        counts = [
            _expect_eager(way, function, tensor, (parameter,)),
            _expect_eager(way, function, parameter, (tensor,)),
            _expect_eager(way, Model(function), tensor, (parameter,)),
        ]
    if way != "fullgraph":  # (where a function that asks with `is` is refused)
        assert min(counts) >= 3


def test_what_a_backend_still_gets() -> None:
    """Functions that compare other types with `is`, or ask in a way that is answered, are captured."""

    class Kind:
        def __eq__(self, other: object) -> bool:
            return type(self) is type(other)

    def plain(x: Any, how: Any) -> Any:
        kind = type(how)
        if type(how) is list or kind is dict or how is None or type(how) is type(None):
            return x * 4
        return x * 2 if type(x) == Tensor and Kind() == Kind() else x * 3  # noqa: E721

    graphs: list[Any] = []

    def backend(made: Any, examples: Any) -> Any:
        graphs.append(made)
        return made

    made = kiln.compile(plain, backend=backend, fullgraph=True)
    x = kiln.ones(2)
    assert made(x, 1).tolist() == [2.0, 2.0] and made(x, []).tolist() == [4.0, 4.0] and len(graphs) == 2


def test_a_question_that_shows_only_while_it_runs_is_refused() -> None:
    def asks(x: Any) -> Any:
        y = x * 2
        return y * 2 if type(y) is Tensor else y * 3

    def hidden(x: Any, table: Any) -> Any:
        return table["f"](x)

    made = kiln.compile(hidden, backend=lambda made, examples: made)
    with pytest.raises(RuntimeError, match="test_types_asked"):
        made(kiln.ones(2), {"f": asks})


class _Marked(kiln.Tensor):
    """A tensor of a class of the user's."""


@pytest.mark.parametrize("kind", [kiln.Tensor, _Marked])
@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.scale,
        lambda x: vars(x)["scale"],
        lambda x: x.__dict__["scale"],
        lambda x: getattr(x, "scale", 1.0),
        lambda x: sum(v for v in vars(x).values() if isinstance(v, float)),
    ],
)
def test_attributes_are_conditions_however_they_are_read(kind: Any, read: Any) -> None:
    def marked(scale: float, **more: Any) -> Any:
        x = kiln.ones(3).as_subclass(kind)
        vars(x).update(scale=scale, **more)
        return x

    def f(x: Any) -> Any:
        return x * read(x)

    for program in (kiln.jit.trace(f, (marked(2.0),)), kiln.export.export(f, (marked(2.0),))):
        assert program(marked(2.0)).tolist() == [2.0] * 3
        with pytest.raises(RuntimeError, match=r"x must have scale 2\.0, as in the example"):
            program(marked(5.0))
    unread = kiln.jit.trace(lambda x: x * 2, (marked(2.0),))
    assert unread(marked(5.0)).tolist() == [2.0] * 3
    noted = kiln.jit.trace(f, (marked(2.0, note={}),))
    assert noted(marked(2.0, note={1: 2})).tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match="reads .*attribute.* of x.* neither number nor text"):
        kiln.jit.trace(lambda x: x * len(vars(x)["note"]), (marked(2.0, note={}),))
