"""Comparisons, logic and bits, element by element: no derivatives.

Operands broadcast and are converted to their common dtype, or to bool (see kinds.RULES).
"""

from __future__ import annotations

from typing import Any

from kiln.scalars import scalar
from kiln.scalars.scalar import Scalar
from kiln.table import drawn as d
from kiln.table.record import Op, Operand, pointwise


def refuse(x: Scalar, types: frozenset[str] | set[str], sentence: str) -> None:
    """Raises RuntimeError(sentence) if x is of one of the scalar types."""
    if x.type in types:
        raise RuntimeError(sentence)


def unsupported(op: str, x: Scalar, types: frozenset[str] | set[str]) -> None:
    """Raises PyTorch's NotImplementedError if x is of one of the scalar types."""
    if x.type in types:
        kind = {"i1": "Bool", "f32": "Float", "f64": "Double"}.get(x.type, "Long")
        raise NotImplementedError(f"\"{op}\" not implemented for '{kind}'")


# Comparisons: bool results, no derivative


def _comparison(name: str, function: str, doc: str, onnx: str) -> Op:
    """The comparison `name`, NumPy's `function`."""

    def body(input: Operand, other: Operand) -> Any:
        return scalar.binary(name, input, other)

    body.__name__, body.__doc__ = name, doc
    return pointwise(
        "compare",
        samples=d.binary(-2, 2),
        reference=d.numpy(function),
        onnx=onnx,
        dtypes="all",
        failures=d.not_broadcastable,
        differentiable=False,
        inplace=True,
    )(body)


_COMPARED = """Whether input {0} other, element by element, broadcast: a bool array. NaN is {1} everything.

    >>> kiln.{2}(kiln.tensor([1, 2]), 2)
    tensor([{3}])
    """
eq = _comparison("eq", "equal", _COMPARED.format("==", "unequal to", "eq", "False,  True"), "Equal")
ne = _comparison("ne", "not_equal", _COMPARED.format("!=", "unequal to", "ne", " True, False"), "")
lt = _comparison("lt", "less", _COMPARED.format("<", "not below", "lt", " True, False"), "Less")
le = _comparison("le", "less_equal", _COMPARED.format("<=", "not below", "le", "True, True"), "LessOrEqual")
gt = _comparison("gt", "greater", _COMPARED.format(">", "not above", "gt", "False, False"), "Greater")
ge = _comparison(
    "ge", "greater_equal", _COMPARED.format(">=", "not above", "ge", "False,  True"), "GreaterOrEqual"
)


# Logic and bits


def _logic(name: str, symbol: str, doc: str, onnx: str) -> Op:
    """The logical op `name` of two operands, which become bool first."""

    def body(input: Operand, other: Operand) -> Any:
        return scalar.binary(symbol, input, other)

    body.__name__, body.__doc__ = name, doc
    return pointwise(
        "logical",
        samples=d.binary(-2, 2),
        reference=d.numpy(name),
        onnx=onnx,
        dtypes="all",
        failures=d.not_broadcastable,
        differentiable=False,
        inplace=True,
    )(body)


_LOGICAL = """{0} of input and other as bools, broadcast; what is not zero is True.

    >>> kiln.{1}(kiln.tensor([0, 2]), kiln.tensor([1, 1]))
    tensor([{2}])
    """
logical_and = _logic("logical_and", "and", _LOGICAL.format("And", "logical_and", "False,  True"), "And")
logical_or = _logic("logical_or", "or", _LOGICAL.format("Or", "logical_or", "True, True"), "Or")
logical_xor = _logic(
    "logical_xor", "xor", _LOGICAL.format("Exclusive or", "logical_xor", " True, False"), "Xor"
)


@pointwise(
    "logical",
    samples=d.unary(-2, 2),
    reference=d.numpy("logical_not"),
    dtypes="all",
    onnx="Not",
    differentiable=False,
    inplace=True,
)
def logical_not(input: Operand) -> Any:
    """Whether `input` is zero: a bool array of its shape.

    >>> kiln.logical_not(kiln.tensor([0.0, 2.0]))
    tensor([ True, False])
    """
    return ~input


def _bitwise(name: str, symbol: str, doc: str) -> Op:
    """The bitwise op `name` of two operands of integers or bool."""

    def body(input: Operand, other: Operand) -> Any:
        unsupported(f"{name}_cpu", input, set(scalar.FLOATS))
        return scalar.binary(symbol, input, other)

    body.__name__, body.__doc__ = name, doc
    return pointwise(
        samples=d.binary(-4, 4),
        reference=d.numpy(name),
        dtypes="integral",
        differentiable=False,
        inplace=True,
        failures=d.failures(
            ((d.Zeros(2), d.Zeros(2)), {}, NotImplementedError, "not implemented for 'Float'")
        ),
    )(body)


_BITS = """{0} of the bits of input and other, broadcast; integers and bool only.

    >>> kiln.{1}(kiln.tensor([6]), 3)
    tensor([{2}])
    """
bitwise_and = _bitwise("bitwise_and", "and", _BITS.format("And", "bitwise_and", 2))
bitwise_or = _bitwise("bitwise_or", "or", _BITS.format("Or", "bitwise_or", 7))
bitwise_xor = _bitwise("bitwise_xor", "xor", _BITS.format("Exclusive or", "bitwise_xor", 5))


@pointwise(
    samples=d.unary(-4, 4),
    reference=d.numpy("invert"),
    dtypes="integral",
    differentiable=False,
    inplace=True,
    failures=d.failures(((d.Zeros(2),), {}, NotImplementedError, "not implemented for 'Float'")),
)
def bitwise_not(input: Operand) -> Any:
    """Every bit of `input` inverted; for bool, not. Integers and bool only.

    >>> kiln.bitwise_not(kiln.tensor([5]))
    tensor([-6])
    """
    unsupported("bitwise_not_cpu", input, set(scalar.FLOATS))
    return ~input
