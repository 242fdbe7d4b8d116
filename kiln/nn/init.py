"""Starting values: each function fills a tensor in place, without a gradient, and gives it back.

fan_in, fan_out    of a weight (out, in, d...): in * prod(d), out * prod(d)
xavier (Glorot)    std = gain sqrt(2 / (fan_in + fan_out))
kaiming (He)       std = gain / sqrt(fan)
uniform of std     bound = sqrt(3) std
"""

from __future__ import annotations

import math
from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.errors import describe, message

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
            raise ValueError(message("calculate_gain", "a negative slope", describe(param)))
        return math.sqrt(2.0 / (1 + slope**2))
    gains = {**dict.fromkeys(_LINEAR, 1.0), "tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    if nonlinearity not in gains:
        raise ValueError(
            message("calculate_gain", f"one of {sorted([*gains, 'leaky_relu'])}", repr(nonlinearity))
        )
    return gains[nonlinearity]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Tensor:
    """Values drawn uniformly from [a, b)."""
    return _fill(tensor, _drawn(ops.rand, tensor, generator) * (b - a) + a)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Tensor:
    """Values drawn from the normal distribution N(mean, std**2)."""
    return _fill(tensor, _drawn(ops.randn, tensor, generator) * std + mean)


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
        raise ValueError(message("eye_", "a tensor of 2 dims", describe(tensor)))
    rows: Tensor = ops.arange(tensor.shape[0])
    columns: Tensor = ops.arange(tensor.shape[1])
    return _fill(tensor, (rows.unsqueeze(1) == columns).to(tensor.dtype))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Uniform in +-gain sqrt(6 / (fan_in + fan_out))."""
    bound = math.sqrt(3.0) * _xavier_std(tensor, gain)
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Any = None) -> Tensor:
    """Normal with std gain sqrt(2 / (fan_in + fan_out))."""
    return normal_(tensor, 0.0, _xavier_std(tensor, gain), generator)


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    """Uniform in +-gain sqrt(3 / fan); `a` is leaky_relu's negative slope, `mode` "fan_in" or "fan_out"."""
    if tensor.numel() == 0:
        return tensor
    bound = math.sqrt(3.0) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Tensor:
    """Normal with std gain / sqrt(fan)."""
    if tensor.numel() == 0:
        return tensor
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity), generator)


def _drawn(draw: Any, tensor: Tensor, generator: Any) -> Tensor:
    """Random values of a tensor's shape and dtype."""
    chosen = {} if generator is None else {"generator": generator}
    values: Tensor = draw(*tensor.shape, dtype=tensor.dtype, **chosen)
    return values


def _fill(tensor: Tensor, values: Tensor) -> Tensor:
    """Copy `values` over `tensor` without history."""
    with no_grad():
        tensor.copy_(values)
    return tensor


def _fans(tensor: Tensor) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight of two or more dims."""
    if tensor.ndim < 2:
        hint = "initialise a bias with zeros_ or uniform_"
        raise ValueError(message("init", "a tensor of 2 or more dims to have a fan", describe(tensor), hint))
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _xavier_std(tensor: Tensor, gain: float) -> float:
    """gain sqrt(2 / (fan_in + fan_out))."""
    return gain * math.sqrt(2.0 / float(sum(_fans(tensor))))


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    """gain / sqrt(fan)."""
    modes = ("fan_in", "fan_out")
    if mode.lower() not in modes:
        raise ValueError(message("kaiming init", f"mode in {modes}", repr(mode)))
    fan = _fans(tensor)[modes.index(mode.lower())]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)
