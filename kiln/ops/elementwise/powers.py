"""Fixed powers of one number: 3, -2, 1/2, -1/2 and -1, which are what `pow` calls for those exponents."""

from __future__ import annotations

from typing import Any

from kiln.ops.elementwise.elementary import rsqrt, sqrt
from kiln.scalars import scalar
from kiln.table import drawn as d
from kiln.table.record import Operand, Tensor, pointwise


@pointwise(
    samples=d.unary(),
    reference=d.reference(lambda np, x: x * x * x),
    dtypes="numeric",
    public=False,
)
def cube(input: Operand) -> Any:
    """`input * input * input`: the third power.

    >>> kiln.pow(kiln.tensor([2.0]), 3)
    tensor([8.])
    """
    return input * input * input


@cube.derivative
def _(g: Tensor, input: Tensor) -> Tensor:
    return g * (3 * (input * input))


@pointwise(
    samples=d.unary(0.5, 3),
    reference=d.reference(lambda np, x: 1 / (x * x)),
    public=False,
)
def inverse_square(input: Operand) -> Any:
    """`1 / (input * input)`: the power -2 of floats.

    >>> kiln.pow(kiln.tensor([2.0]), -2)
    tensor([0.2500])
    """
    return 1 / (input * input)


@inverse_square.derivative
def _(g: Tensor, input: Tensor) -> Tensor:
    return g * (-2 * (1 / (input * input) / input))


def _power(name: str, exponent: float, body: Any, gradient: Any) -> Any:
    """A power of floats that is no product. Backward reads the input, not the result: programs write to that
    (`(x ** 0.5).add_(eps)`).
    """

    def function(input: Operand) -> Any:
        return body(input)

    function.__name__ = name
    function.__doc__ = f"""The power {exponent:g} of floats.

    >>> kiln.pow(kiln.tensor([4.0]), {exponent:g}).shape
    kiln.Size([1])
    """
    op = pointwise(
        samples=d.unary(0.5, 3),
        reference=d.reference(lambda np, x: x**exponent),
        dtypes="float",
        public=False,
    )(function)
    op.derivative(gradient)
    return op


def _inverse_half_gradient(g: Any, input: Any) -> Any:
    y = rsqrt(input)
    return -0.5 * g * (y * y * y)


def _inverse_gradient(g: Any, input: Any) -> Any:
    y = 1 / input
    return -g * (y * y)


half_power = _power("half_power", 0.5, scalar.sqrt, lambda g, input: g / (2 * sqrt(input)))


inverse_half_power = _power("inverse_half_power", -0.5, lambda x: 1 / scalar.sqrt(x), _inverse_half_gradient)


inverse_power = _power("inverse_power", -1, lambda x: 1 / x, _inverse_gradient)
