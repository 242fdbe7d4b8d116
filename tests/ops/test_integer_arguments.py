"""Integers as programs have them: NumPy's, members of enums, objects that say which int they are.

Every sample of the table is called with each int of its arguments as such an object, alone and in lists, and
must give what the plain ints give, eagerly and recorded.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln
from test_ops import SAMPLED

from kiln.testing.compare import same_bits, to_array
from kiln.testing.op_cases import Case, results_of, tensors

pytestmark = needs_kiln


class Says:
    """An object that stands for an int."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


def member(value: int) -> Any:
    """A member of an enum of ints."""
    return enum.IntEnum("Int", {"member": value}).member  # type: ignore[attr-defined]


KINDS: dict[str, Any] = {"int64": np.int64, "int32": np.int32, "enum": member}


def changed(value: Any, kind: Any) -> tuple[Any, bool]:
    """The argument with its ints as objects of a kind, and whether there were any."""
    if type(value) is int:
        return kind(value), True
    if type(value) in (list, tuple):
        items = [changed(item, kind) for item in value]
        return type(value)(item for item, _ in items), any(found for _, found in items)
    return value, False


def case_of(case: Case, kind: Any) -> Case | None:
    """The case with objects for its ints; None if it has none."""
    args = [changed(a, kind) for a in case.args]
    kwargs = {k: changed(v, kind) for k, v in case.kwargs.items()}
    if not any(found for _, found in [*args, *kwargs.values()]):
        return None
    return Case(tuple(a for a, _ in args), {k: v for k, (v, _) in kwargs.items()}, case.label)


def results(function: Any, case: Case, dtype: str) -> list[Any]:
    """What a call gives, from a fixed state of the generator."""
    kiln.manual_seed(0)
    given = tensors(kiln, case, dtype)
    return [to_array(x) for x in results_of(function(*given.args, **given.kwargs))]


@pytest.mark.parametrize("name", SAMPLED)
def test_integers_of_any_kind(name: str) -> None:
    entry = SAMPLED[name]
    dtype = "float32" if "float32" in entry.dtypes else entry.dtypes[0]
    for case in entry.cases(dtype):
        want = None
        for label, kind in KINDS.items():
            other = case_of(case, kind)
            if other is None:
                break
            want = want or results(entry.function, case, dtype)
            for way in (entry.function, kiln.compile(entry.function)):
                got = results(way, other, dtype)
                assert len(got) == len(want) and all(map(same_bits, got, want)), (case.label, label)


@pytest.mark.parametrize("call", [
    lambda x, n: x.sum(n(1)),
    lambda x, n: x.sum((n(0), n(1))),
    lambda x, n: x.sum([n(1)], keepdim=True),
    lambda x, n: kiln.softmax(x, n(1)),
    lambda x, n: x.softmax(dim=n(-1)),
    lambda x, n: x.sort(n(0)).values,
    lambda x, n: x.cumsum(n(1)),
    lambda x, n: x.transpose(n(0), n(1)),
    lambda x, n: x.permute(n(1), n(0)),
    lambda x, n: x.unsqueeze(n(0)),
    lambda x, n: x.reshape(n(3), n(2)),
    lambda x, n: x.view(n(-1)),
    lambda x, n: x[n(1)],
    lambda x, n: x[n(0) : n(1)],
    lambda x, n: x[:, n(1)],
    lambda x, n: x.expand(n(2), n(3)),
    lambda x, n: x.narrow(n(1), n(0), n(2)),
    lambda x, n: kiln.cat([x, x], n(1)),
    lambda x, n: x.chunk(n(2), n(1))[0],
    lambda x, n: kiln.zeros(n(2), n(3)),
    lambda x, n: kiln.zeros((n(2), n(3))),
    lambda x, n: kiln.arange(n(5)),
    lambda x, n: x.repeat(n(2), n(1)),
    lambda x, n: x.topk(n(2), n(1)).values,
    lambda x, n: x.roll(n(1), n(0)),
    lambda x, n: kiln.nn.Linear(n(3), n(4))(x).shape[1],
    lambda x, n: x.flatten(n(0), n(1)),
    lambda x, n: x ** n(2),
    lambda x, n: x * n(2),
    lambda x, n: n(2) * x,
    lambda x, n: x.size(n(1)),
    lambda x, n: x.split(n(2), n(1))[0],
    lambda x, n: x.unfold(n(1), n(2), n(1)),
    lambda x, n: x.gather(n(1), kiln.tensor([[n(0)], [n(1)]])),
    lambda x, n: kiln.nn.functional.one_hot(kiln.tensor([0, 1]), n(3)),
    lambda x, n: x.movedim(n(0), n(1)),
    lambda x, n: kiln.nn.functional.pad(x, (n(1), n(0))),
    lambda x, n: x.select(n(0), n(1)),
], ids=range(38))  # fmt: skip
@pytest.mark.parametrize("kind", [np.int64, np.uint8, Says, member], ids=lambda k: k.__name__)
def test_common_calls(call: Any, kind: Any) -> None:
    """What programs write, with ints that came out of an array."""
    if kind is np.uint8:
        call = _of_positive(call)
    x = kiln.arange(6.0).reshape(2, 3)
    want = call(x, int)
    for way in (call, kiln.compile(call)):
        try:
            got = way(x, kind)
        except TypeError as error:  # an object that says its int is no operand of arithmetic
            assert kind is Says and "Says" in str(error)
            continue
        assert kiln.equal(kiln.as_tensor(got), kiln.as_tensor(want))


def _of_positive(call: Any) -> Any:
    """The call with plain ints where they are negative, which the kind cannot say."""
    return lambda x, n: call(x, lambda value: n(value) if value >= 0 else value)


def test_a_tensor_of_an_int_is_a_dim() -> None:
    x = kiln.arange(6.0).reshape(2, 3)
    for call in (x.sum, x.softmax, x.cumsum, x.unsqueeze):
        assert kiln.equal(call(kiln.tensor(1)), call(1))


@pytest.mark.parametrize(
    "bad", [1.0, "1", np.float64(1), kiln.tensor(1.0), object()], ids=lambda b: type(b).__name__
)
@pytest.mark.parametrize("name", ["sum", "softmax", "sort", "cumsum", "topk", "unsqueeze", "chunk", "narrow"])
def test_what_is_no_integer(name: str, bad: Any) -> None:
    x = kiln.ones(2, 3)
    more = (0, 1) if name == "narrow" else ()
    for call in (getattr(x, name), kiln.compile(getattr(x, name))):
        call(1, *more)  # 1.0 is equal to 1, and not the same
        with pytest.raises(TypeError, match=name):
            call(bad, *more)


def test_a_numpy_bool_is_a_bool() -> None:
    x = kiln.ones(2, 3)
    for flag in (True, False):
        assert x.sum(1, keepdim=np.bool_(flag)).shape == x.sum(1, keepdim=flag).shape
        assert kiln.equal(x.sort(1, descending=np.bool_(flag)).values, x)
