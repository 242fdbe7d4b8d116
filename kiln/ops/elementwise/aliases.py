"""PyTorch's other names of functions of the table, and functions that give a tensor of real numbers back as
it is.
"""

from __future__ import annotations

from typing import Any

from kiln.ops.elementwise import comparison, elementary, parts_of_numbers, public_arithmetic  # noqa: F401
from kiln.ops.elementwise.arithmetic import written_to
from kiln.table import drawn as d
from kiln.table.public import alias, public

# name -> what it is another name of; each has the methods and in-place forms of that
for _name, _of in {
    "absolute": "abs", "negative": "neg", "sgn": "sign", "fix": "trunc", "clip": "clamp",
    "subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div",
    "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge", "not_equal": "ne",
}.items():  # fmt: skip
    alias(_name, _of, inplace=True)


def _tensor(name: str, input: Any) -> Any:
    """What was given; TypeError for what is no tensor."""
    if not hasattr(input, "ndim"):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {type(input).__name__}")
    return input


def _itself(name: str, doc: str, method: bool = True) -> Any:
    """A function that would undo what only complex numbers have."""

    def function(input: Any) -> Any:
        return _tensor(name, input)

    function.__doc__ = f"""{doc}

    >>> kiln.{name}(kiln.tensor([1.0, -2.0]))
    tensor([ 1., -2.])
    """
    return public(
        name,
        method,
        samples=d.samples(lambda rng, t: ((d.array(rng, (3,), t),), {})),
        dtypes="float",
    )(function)


conj = _itself("conj", "`input` itself: a real number is its own conjugate.")
resolve_conj = _itself("resolve_conj", "`input` itself: there is no conjugation to carry out.")
resolve_neg = _itself("resolve_neg", "`input` itself: there is no negation to carry out.")
real = _itself("real", "`input` itself: a real number is its own real part.", method=False)


@public(
    "conj_physical",
    inplace=True,
    samples=d.samples(lambda rng, t: ((d.array(rng, (3,), t),), {})),
    dtypes="all",
)
def conj_physical(input: Any, *, out: Any = None) -> Any:
    """`input` itself: a real number is its own conjugate.

    >>> kiln.conj_physical(kiln.tensor([1.0, -2.0]))
    tensor([ 1., -2.])
    """
    return written_to(_tensor("conj_physical", input), out, input)


@public("detach", method=False, dtypes="all", differentiable=False)
def detach(input: Any) -> Any:
    """`input` without its history, sharing its memory: no gradient flows through it.

    >>> kiln.detach(kiln.ones(1, requires_grad=True)).requires_grad
    False
    """
    return input.detach()


@public("detach_", method=False, dtypes="all", differentiable=False)
def detach_(input: Any) -> Any:
    """`input`, which forgets its history in place. RuntimeError for a view.

    >>> kiln.detach_(kiln.ones(1, requires_grad=True)).requires_grad
    False
    """
    return input.detach_()


@public("is_conj", dtypes="all", differentiable=False)
def is_conj(input: Any) -> bool:
    """False: no tensor waits to be conjugated.

    >>> kiln.is_conj(kiln.ones(1))
    False
    """
    return False


@public("is_neg", dtypes="all", differentiable=False)
def is_neg(input: Any) -> bool:
    """False: no tensor waits to be negated.

    >>> kiln.is_neg(kiln.ones(1))
    False
    """
    return False
