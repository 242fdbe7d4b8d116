"""A layer and the batch normalisation behind it as one layer, for evaluation.

y = (w x + b - mean) / sqrt(var + eps) * gain + shift     is a layer of weight w s and bias (b - mean) s +
shift,
                                                          with s = gain / sqrt(var + eps)
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from kiln import ops
from kiln._core import Tensor
from kiln.nn.convolutions import _ConvNd
from kiln.nn.layers import Linear
from kiln.nn.normalisations import _BatchNorm
from kiln.nn.parameter import Parameter
from kiln.table.callables import name_all as _name_all

Conv = TypeVar("Conv", bound=_ConvNd)
Lin = TypeVar("Lin", bound=Linear)


def fuse_conv_bn_eval(conv: Conv, bn: _BatchNorm, transpose: bool = False) -> Conv:
    """A copy of a convolution that computes `bn(conv(x))` as in evaluation; `transpose` for a transposed one.

    AssertionError for a module in training.

    >>> import kiln
    >>> conv, norm = kiln.nn.Conv2d(2, 3, 1).eval(), kiln.nn.BatchNorm2d(3).eval()
    >>> x = kiln.rand(1, 2, 4, 4)
    >>> kiln.allclose(kiln.nn.utils.fusion.fuse_conv_bn_eval(conv, norm)(x), norm(conv(x)), atol=1e-5)
    True
    """
    _in_evaluation(conv, bn)
    made: Any = copy.deepcopy(conv)
    made.weight, made.bias = fuse_conv_bn_weights(made.weight, made.bias, *_statistics(bn), transpose)
    fused: Conv = made
    return fused


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of the convolution that does both: of `conv_w` (out, in, taps...), `conv_b` (out), and
    the normalisation's running mean, running variance, eps, weight and bias, each (out).

    `transpose`: `conv_w` is (in, out, taps...), as a transposed convolution's.
    """
    shape = [1] * conv_w.ndim
    shape[1 if transpose else 0] = -1
    return _fused(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, shape)


def fuse_linear_bn_eval(linear: Lin, bn: _BatchNorm) -> Lin:
    """A copy of a linear layer that computes `bn(linear(x))` as in evaluation.

    AssertionError for a module in training, or where the normalisation has neither as many features as the
    layer has outputs nor one.

    >>> import kiln
    >>> linear, norm = kiln.nn.Linear(2, 3).eval(), kiln.nn.BatchNorm1d(3).eval()
    >>> x = kiln.rand(4, 2)
    >>> kiln.allclose(kiln.nn.utils.fusion.fuse_linear_bn_eval(linear, norm)(x), norm(linear(x)), atol=1e-5)
    True
    """
    _in_evaluation(linear, bn)
    if bn.num_features not in (linear.out_features, 1):
        raise AssertionError("To fuse, linear.out_features == bn.num_features or bn.num_features == 1")
    made: Any = copy.deepcopy(linear)
    made.weight, made.bias = fuse_linear_bn_weights(made.weight, made.bias, *_statistics(bn))
    fused: Lin = made
    return fused


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """Weight and bias of the linear layer that does both: of `linear_w` (out, in), `linear_b` (out), and the
    normalisation's running mean, running variance, eps, weight and bias, each (out).
    """
    return _fused(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, [-1, 1])


def _fused(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    eps: float,
    gain: Tensor | None,
    shift: Tensor | None,
    shape: list[int],
) -> tuple[Parameter, Parameter]:
    trained = weight.requires_grad, weight.requires_grad if bias is None else bias.requires_grad
    dtypes = weight.dtype, weight.dtype if bias is None else bias.dtype
    scale = ops.rsqrt(variance + eps)
    if gain is not None:
        scale = scale * gain
    moved = -mean * scale if bias is None else (bias - mean) * scale
    moved = moved if shift is None else moved + shift
    made = weight * scale.reshape(shape), moved
    first, second = (
        Parameter(x.detach().to(dtype), requires)
        for x, dtype, requires in zip(made, dtypes, trained, strict=True)
    )
    return first, second


def _statistics(bn: _BatchNorm) -> tuple[Tensor, Tensor, float, Tensor | None, Tensor | None]:
    if bn.running_mean is None or bn.running_var is None:
        raise AssertionError("Only support fusing with bn with running mean and variance")
    return bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias


def _in_evaluation(*modules: Any) -> None:
    if any(module.training for module in modules):
        raise AssertionError("Fusion only for eval!")


_name_all(globals(), __name__)
