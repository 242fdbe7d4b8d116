"""Layers that learn the sizes of their input from the first one: until then their parameters have no shape.

A lazy layer is the layer it becomes with parameters that wait. Before its first call `initialize_parameters`
gives them their shapes; then it is that layer, its class included, and its parameters are the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.nn.convolutions import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Numbers,
    _ConvNd,
)
from kiln.nn.layers import Linear
from kiln.nn.module import Module
from kiln.nn.normalisations import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    _NormBase,
)
from kiln.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType

__all__ = [
    "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d", "LazyConv1d", "LazyConv2d", "LazyConv3d",
    "LazyConvTranspose1d", "LazyConvTranspose2d", "LazyConvTranspose3d", "LazyInstanceNorm1d",
    "LazyInstanceNorm2d", "LazyInstanceNorm3d", "LazyLinear",
]  # fmt: skip


class LazyModuleMixin(Module):
    """What waits for its first input, before a class of layers; then it is of the class `cls_to_become`."""

    cls_to_become: type[Module] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting = self.register_forward_pre_hook(self._infer_parameters, with_kwargs=True)

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Gives every parameter its shape, from what forward is called with; every lazy class defines it."""
        raise NotImplementedError(
            f"initialize_parameters is not implemented for {type(self).__name__}: a lazy module defines it"
        )

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer of the module's own has no shape yet."""
        return any(map(is_lazy, (*self._parameters.values(), *self._buffers.values())))

    def _infer_parameters(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.initialize_parameters(*args, **kwargs)
        if self.has_uninitialized_params():
            raise RuntimeError(f"module {self._get_name()} has not been fully initialized")
        self._waiting.remove()
        del self._waiting
        if self.cls_to_become is not None:
            self.__class__ = self.cls_to_become  # type: ignore[assignment]

    def reset_parameters(self) -> None:
        """Draws the parameters anew, once they are there."""
        if not self.has_uninitialized_params():
            super().reset_parameters()  # type: ignore[misc]

    def materialize(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Gives waiting parameters and buffers their shapes, and all of them their first values."""
        waiting = [(getattr(self, name), shape) for name, shape in shapes.items()]
        for tensor, shape in waiting:
            if is_lazy(tensor):
                tensor.materialize(shape)
        with no_grad():
            self.reset_parameters()


class LazyLinear(LazyModuleMixin, Linear):
    """`Linear` whose in_features is the last size of its first input.

    >>> import kiln
    >>> layer = kiln.nn.LazyLinear(2)
    >>> layer(kiln.zeros(5, 3)).shape, layer
    (kiln.Size([5, 2]), Linear(in_features=3, out_features=2, bias=True))
    """

    cls_to_become = Linear

    def __init__(
        self, out_features: int, bias: bool = True, device: Device | None = None, dtype: DType | None = None
    ) -> None:
        super().__init__(0, 0, False, device, dtype)
        self.out_features = out_features
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        """Draws weight and bias, once in_features is known."""
        if self.in_features:
            super().reset_parameters()

    def initialize_parameters(self, input: Tensor) -> None:
        self.in_features = int(input.shape[-1])
        if self.has_uninitialized_params():
            self.materialize({"weight": (self.out_features, self.in_features), "bias": (self.out_features,)})


class _LazyConvNd(LazyModuleMixin, _ConvNd):
    """A convolution whose in_channels is that of its first input."""

    def __init__(
        self, out_channels: int, bias: bool, device: Device | None, dtype: DType | None, **settings: Any
    ) -> None:
        groups = settings["groups"]
        super().__init__(groups, groups, bias=False, device=device, dtype=dtype, **settings)
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        self.in_channels, self.out_channels = 0, out_channels
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        alone, batch, shape = self.dims + 1, self.dims + 2, tuple(input.shape)
        if len(shape) not in (alone, batch):
            raise RuntimeError(
                f"Expected {alone}D (unbatched) or {batch}D (batched) input to {type(self).__name__}, but "
                f"got input of size: {list(shape)}"
            )
        channels = int(shape[-self.dims - 1])
        if channels % self.groups:
            raise ValueError("in_channels must be divisible by groups")
        self.in_channels, outputs = channels, self.out_channels
        rows, columns = (channels, outputs) if self.transposed else (outputs, channels)
        weight = (rows, columns // self.groups, *self.kernel_size)
        if self.has_uninitialized_params():
            self.materialize({"weight": weight, "bias": (outputs,)})


class _LazyConv(_LazyConvNd):
    def __init__(
        self,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            out_channels, bias, device, dtype, kernel_size=kernel_size, stride=stride, padding=padding,
            dilation=dilation, groups=groups, padding_mode=padding_mode,
        )  # fmt: skip


class _LazyConvTranspose(_LazyConvNd):
    def __init__(
        self,
        out_channels: int,
        kernel_size: Numbers,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Numbers = 1,
        padding_mode: str = "zeros",
        device: Device | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__(
            out_channels, bias, device, dtype, kernel_size=kernel_size, stride=stride, padding=padding,
            output_padding=output_padding, dilation=dilation, groups=groups, padding_mode=padding_mode,
        )  # fmt: skip


class _LazyNorm(LazyModuleMixin, _NormBase):
    """A normalisation whose num_features is the number of channels of its first input."""

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device | None = None,
        dtype: DType | None = None,
        *,
        bias: bool = True,
    ) -> None:
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(1, eps, momentum, False, track_running_stats, bias=False, **options)
        self.num_features, self.affine = 0, affine
        self.weight = UninitializedParameter(**options) if affine else None
        self.bias = UninitializedParameter(**options) if affine and bias else None
        if track_running_stats:
            self.running_mean, self.running_var = (UninitializedBuffer(**options) for _ in range(2))

    def initialize_parameters(self, input: Tensor) -> None:
        self.num_features = int(input.shape[1]) if input.ndim > 1 else 0
        self._check_dims(input)
        if self.has_uninitialized_params():
            names = ("weight", "bias", "running_mean", "running_var")
            self.materialize(dict.fromkeys(names, (self.num_features,)))


_DOC = """`{0}` whose {1} is that of its first input.

    >>> import kiln
    >>> layer = kiln.nn.Lazy{0}({2})
    >>> layer(kiln.zeros({3})).shape == (2, 3, {4}), type(layer).__name__
    (True, '{0}')
    """


def _lazy(becomes: type[Module], base: type[Module]) -> Any:
    """The lazy class of a layer."""
    name, dims = becomes.__name__, int(becomes.__name__[-2])
    sizes = ", ".join("4" * dims)
    called = ("in_channels", "3, 1") if issubclass(becomes, _ConvNd) else ("num_features", "")
    doc = _DOC.format(name, *called, f"2, 3, {sizes}", sizes)
    own = {"cls_to_become": becomes, "__doc__": doc, "__module__": __name__}
    return type(f"Lazy{name}", (base, becomes), own)


LazyConv1d, LazyConv2d, LazyConv3d = (_lazy(c, _LazyConv) for c in (Conv1d, Conv2d, Conv3d))
LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d = (
    _lazy(c, _LazyConvTranspose) for c in (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
)
LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d = (
    _lazy(c, _LazyNorm) for c in (BatchNorm1d, BatchNorm2d, BatchNorm3d)
)
LazyInstanceNorm1d, LazyInstanceNorm2d, LazyInstanceNorm3d = (
    _lazy(c, _LazyNorm) for c in (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)
)
