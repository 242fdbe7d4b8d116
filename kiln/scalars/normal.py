"""What gelu is made of: the standard normal distribution, to an absolute error of a few units of 1's last
place (its tails are ndtr's, in gaussian.py), and cheap.

    density           e = e^(-x^2 / 2) = 2^(-x^2 / (2 ln 2))
    share below -|x|  e M(|x|), M Mills' ratio over sqrt(2 pi)

In f32 both come from one power of two, M is a polynomial; f64 has erf and exp.
"""

from __future__ import annotations

from kiln.scalars import mathematics as m
from kiln.scalars.floats import FORMAT, poly
from kiln.scalars.scalar import Scalar, absolute, bits, fma, select

MILLS = (
    0.5, -0.39894136786460876, 0.2499818354845047, -0.13285525143146515, 0.06206674873828888,
    -0.025719352066516876, 0.009276781231164932, -0.0027873378712683916, 0.0006578760803677142,
    -0.00011413329775677994, 1.3427134945231955e-05, -9.450280344935891e-07, 2.9797135425724264e-08,
)  # fmt: skip
MILLS_END = 5.6  # where e M is 1e-8
NOTHING = 13.0  # from here on e is 0: 2^-122, in the normal range
HALF_LOG2E = 0.7213475204444817
SQRT_HALF = 0.7071067811865476
DENSITY = 0.3989422804014327  # 1 / sqrt(2 pi)


def share_and_density(x: Scalar) -> tuple[Scalar, Scalar]:
    """The share of the standard normal distribution below x, and e^(-x^2 / 2)."""
    if x.type == "f64":
        t = x * SQRT_HALF
        return fma(m.erf(t), 0.5, 0.5), m.exp(-(t * t))
    a, magic = absolute(x), FORMAT["f32"].magic
    square = a * a
    t = fma(square, -HALF_LOG2E, magic)
    r = fma(square, -HALF_LOG2E, magic - t)
    power = m.power_of_two(bits(t), "f32")
    e = select(a > NOTHING, 0.0, fma(r, poly(r, m.EXP2["f32"]), 1.0) * power)
    tail = e * poly(select(a > MILLS_END, MILLS_END, a), MILLS)
    return select(x < 0.0, tail, 1.0 - tail), e


def gelu(x: Scalar) -> Scalar:
    """x times the share below x."""
    return x * share_and_density(x)[0]


def gelu_slope(x: Scalar) -> Scalar:
    """The derivative of gelu."""
    share, e = share_and_density(x)
    return fma(x * DENSITY, e, share)
