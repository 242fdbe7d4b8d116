"""Starting values: each function fills a tensor in place, without a gradient, and gives it back.

fan_in, fan_out    of a weight (out, in, d...): in * prod(d), out * prod(d)
xavier (Glorot)    std = gain sqrt(2 / (fan_in + fan_out))
kaiming (He)       std = gain / sqrt(fan)
uniform of std     bound = sqrt(3) std

`_calculate_fan_in_and_fan_out` and `_calculate_correct_fan` have PyTorch's names: layers that programs define
themselves start their bias by them.
"""

from __future__ import annotations

import math
from functools import wraps
from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln._core import Tensor
from kiln.absent import hint_missing as _hint_missing
from kiln.autograd import no_grad
from kiln.errors import describe, warn
from kiln.table import registry
from kiln.table.callables import name_all

if TYPE_CHECKING:
    from kiln.ops.random.generator import Generator

__all__ = [
    "calculate_gain", "constant", "constant_", "dirac", "dirac_", "eye", "eye_", "kaiming_normal",
    "kaiming_normal_", "kaiming_uniform", "kaiming_uniform_", "normal", "normal_", "ones_", "orthogonal",
    "orthogonal_", "sparse", "sparse_", "trunc_normal_", "uniform", "uniform_", "xavier_normal",
    "xavier_normal_", "xavier_uniform", "xavier_uniform_", "zeros_",
]  # fmt: skip
_LINEAR = ("linear", "conv1d", "conv2d", "conv3d", "sigmoid")


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor a layer's standard deviation is multiplied by to keep its scale through `nonlinearity`.

    `param` is leaky_relu's negative slope (0.01 if None).

    >>> calculate_gain("tanh")
    1.6666666666666667
    """
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        if isinstance(slope, bool) or not isinstance(slope, (int, float)):
            raise ValueError(f"calculate_gain: negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + slope**2))
    gains = {**dict.fromkeys(_LINEAR, 1.0), "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    if nonlinearity not in gains:
        raise ValueError(
            f"calculate_gain: Unsupported nonlinearity {nonlinearity}: expected one of "
            f"{sorted([*gains, 'leaky_relu'])}"
        )
    return gains[nonlinearity]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Values drawn uniformly from [a, b). RuntimeError for a > b."""
    if a > b:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={a:g} > to={b:g}")
    return _fill(tensor, _drawn(ops.rand, tensor, generator) * (b - a) + a)


def normal_(
    tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None
) -> Tensor:
    """Values drawn from the normal distribution N(mean, std**2). RuntimeError for a negative std."""
    if std < 0:
        raise RuntimeError(f"normal_: normal expects std >= 0.0, but found std {std:g}")
    return _fill(tensor, _drawn(ops.randn, tensor, generator) * std + mean)


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Values drawn from N(mean, std**2), what lies outside [a, b] left out.

    Drawn evenly between the shares of the normal distribution below a and below b, of which the inverse is
    taken. A warning where [a, b] is more than two `std` away from `mean`: few numbers stand for much then.
    RuntimeError for a above b.
    """
    if not a - 2 * std <= mean <= b + 2 * std:
        warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. "
            "The distribution of values may be incorrect."
        )
    if a > b:
        raise RuntimeError(f"uniform_ expects to return a [from, to) range, but found from={a} > to={b}")
    low, high = (math.erf((end - mean) / std / math.sqrt(2.0)) for end in (a, b))
    drawn = ops.erfinv(_drawn(ops.rand, tensor, generator) * (high - low) + low)
    return _fill(tensor, ops.clamp(drawn * (std * math.sqrt(2.0)) + mean, a, b))


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Every value `val`."""
    with no_grad():
        filled: Tensor = tensor.fill_(val)
    return filled


def zeros_(tensor: Tensor) -> Tensor:
    """Zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Ones."""
    return constant_(tensor, 1.0)


def eye_(tensor: Tensor) -> Tensor:
    """The identity in a matrix (rows, columns): 1 on the diagonal, 0 elsewhere."""
    if tensor.ndim != 2:
        raise ValueError(f"eye_: Only tensors with 2 dimensions are supported, got {describe(tensor)}")
    rows: Tensor = ops.arange(tensor.shape[0])
    columns: Tensor = ops.arange(tensor.shape[1])
    return _fill(tensor, (rows.unsqueeze(1) == columns).to(tensor.dtype))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """A convolution's weight (out, in, taps...) that hands its input's channels on, those of each group anew.

    1 at the middle tap of channel k's filter k, 0 elsewhere. ValueError for other than 3, 4 or 5 dims, or a
    number of filters that is no multiple of `groups`.
    """
    if tensor.ndim not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    if groups < 0 or tensor.shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    filters, channels, *taps = tensor.shape
    one: Tensor = ops.zeros(filters // groups, channels, *taps, dtype=tensor.dtype)
    middle: tuple[int | slice, ...] = (slice(None), slice(None), *[n // 2 for n in taps])
    one[middle] = ops.eye(filters // groups, channels)
    return _fill(tensor, one.repeat(groups, *[1] * (tensor.ndim - 1)))


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """`gain` times a matrix (shape[0], the rest) of orthonormal rows, or columns where it has more rows.

    The Q of the QR of normal values, its signs those of a positive R. ValueError for fewer than 2 dims.
    """
    if tensor.ndim < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0:
        return tensor
    drawn = _drawn(ops.randn, tensor, generator).reshape(tensor.shape[0], -1)
    rows, columns = drawn.shape
    q, r = registry.function("linalg.qr")(drawn.t() if rows < columns else drawn)
    q = q * ops.sign(ops.diagonal(r))
    return _fill(tensor, (q.t() if rows < columns else q).reshape(tensor.shape) * gain)


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """N(0, std**2) in a matrix (rows, columns) where `sparsity` of every column, drawn anew, is 0."""
    if tensor.ndim != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    normal_(tensor, 0.0, std, generator)
    order: Tensor = _drawn(ops.rand, tensor, generator).argsort(0).argsort(0)
    with no_grad():
        tensor.masked_fill_(order < math.ceil(sparsity * tensor.shape[0]), 0.0)
    return tensor


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Uniform in +-gain sqrt(6 / (fan_in + fan_out))."""
    bound = math.sqrt(3.0) * _xavier_std(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Normal with std gain sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, _xavier_std(tensor, gain), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Uniform in +-gain sqrt(3 / fan); `a` is leaky_relu's negative slope, `mode` "fan_in" or "fan_out"."""
    if tensor.numel() == 0:
        warn("Initializing zero-element tensors is a no-op")
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Normal with std gain / sqrt(fan)."""
    if tensor.numel() == 0:
        warn("Initializing zero-element tensors is a no-op")
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def _drawn(draw: Any, tensor: Tensor, generator: Generator | None) -> Tensor:
    """Random values of a tensor's shape and dtype."""
    chosen = {} if generator is None else {"generator": generator}
    values: Tensor = draw(*tensor.shape, dtype=tensor.dtype, **chosen)
    return values


def _fill(tensor: Tensor, values: Tensor) -> Tensor:
    """Copy `values` over `tensor` without history."""
    with no_grad():
        tensor.copy_(values)
    return tensor


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight of two or more dims."""
    if tensor.ndim < 2:
        hint = "initialise a bias with zeros_ or uniform_"
        raise ValueError(
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions: got "
            f"{describe(tensor)}; {hint}"
        )
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _xavier_std(tensor: Tensor, gain: float) -> float:
    """gain sqrt(2 / (fan_in + fan_out))."""
    return gain * math.sqrt(2.0 / float(sum(_calculate_fan_in_and_fan_out(tensor))))


def _calculate_correct_fan(tensor: Tensor, mode: str) -> int:
    """The one of a weight's fans that `mode` names, "fan_in" or "fan_out"."""
    modes = ["fan_in", "fan_out"]
    if mode.lower() not in modes:
        raise ValueError(f"Mode {mode} not supported, please use one of {modes}")
    return _calculate_fan_in_and_fan_out(tensor)[modes.index(mode.lower())]


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    """gain / sqrt(fan)."""
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


def _old(name: str) -> Any:
    """A function under the name it had before it ended in "_"."""
    new = globals()[f"{name}_"]

    @wraps(new)
    def call(*args: Any, **kwargs: Any) -> Any:
        warn(f"`nn.init.{name}` is now deprecated in favor of `nn.init.{name}_`.", FutureWarning)
        return new(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`{name}_` under its old name, which a FutureWarning says."
    return call


uniform, normal, constant, eye, dirac = map(_old, ("uniform", "normal", "constant", "eye", "dirac"))
xavier_uniform, xavier_normal = map(_old, ("xavier_uniform", "xavier_normal"))
kaiming_uniform, kaiming_normal = map(_old, ("kaiming_uniform", "kaiming_normal"))
orthogonal, sparse = map(_old, ("orthogonal", "sparse"))

name_all(globals(), "kiln.nn")
_hint_missing(__name__)
