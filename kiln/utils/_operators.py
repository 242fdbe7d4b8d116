"""PyTorch's operators by their names, `aten.mm.default`, as programs compare with them, and which of them a
call of kiln's is.
"""

from __future__ import annotations

import sys
from typing import Any

from kiln._core import Tensor

__all__ = ["Overload", "Packet", "called", "overload"]

# operators that are one here, whoever of them a program names
_FAMILIES = {
    "_scaled_dot_product_attention_math": "attention",
    "_scaled_dot_product_cudnn_attention": "attention",
    "_scaled_dot_product_efficient_attention": "attention",
    "_scaled_dot_product_flash_attention": "attention",
    "_scaled_dot_product_flash_attention_for_cpu": "attention",
    "cudnn_convolution": "convolution",
    "mkldnn_convolution": "convolution",
}
# PyTorch's names of kiln's functions that have others
_NAMES = {
    "attend": "_scaled_dot_product_flash_attention_for_cpu",
    "concat": "cat",
    "convolve": "convolution",
    "dropout_values": "native_dropout",
    "layer_norm": "native_layer_norm",
    "log_softmax": "_log_softmax",
    "normalize_batch": "native_batch_norm",
    "softmax": "_softmax",
    "transposed_convolve": "convolution",
}
_PAIRS = frozenset("add sub mul div eq ne lt le gt ge maximum minimum bitwise_and bitwise_or".split())
_DEFAULT = frozenset("maximum minimum".split())
_DIMS = {
    "sum": "dim_IntList",
    "mean": "dim",
    "prod": "dim_int",
    "max": "dim",
    "min": "dim",
    "any": "dim",
    "all": "dim",
}

INSIDE = frozenset({*_FAMILIES, *_NAMES.values()})  # names of PyTorch's inside


class Overload:
    """`torch.ops.aten.add.Tensor`: kiln's function by the name of PyTorch's operator, to call or compare."""

    namespace = "aten"

    def __init__(self, name: str, overload: str) -> None:
        self._name, self._overloadname = name, overload
        self._key = _FAMILIES.get(name, name), overload
        self.__name__ = f"{name}.{overload}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        homes = [home for home in (sys.modules["kiln"], Tensor) if self._name in dir(home)]
        function = getattr(homes[0], self._name) if homes else None
        if function is None:
            raise NotImplementedError(f"torch.ops.{self}: kiln has no function of this name")
        return function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"aten.{self.__name__}"

    def name(self) -> str:
        """`aten::add.Tensor`."""
        return f"aten::{self._name}" + f".{self._overloadname}" * (self._overloadname != "default")

    @property
    def overloadpacket(self) -> Packet:
        """All forms of the operator."""
        return Packet(self._name)


class Packet(Overload):
    """`torch.ops.aten.add`: all forms of an operator, each an attribute."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "default")
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        vars(self)[name] = found = overload(self._name, name)
        return found


_MADE: dict[tuple[str, str], Overload] = {}


def overload(name: str, form: str = "default") -> Overload:
    """One form of an operator, always the same object."""
    return _MADE.setdefault((name, form), Overload(name, form))


def called(
    name: str, operands: tuple[Any, ...], results: tuple[Any, ...]
) -> tuple[Overload, tuple[Any, ...]]:
    """The operator that PyTorch would have called for a call of kiln's, and its arguments: of matrix products
    those of `mm`, `addmm` and `bmm`, of other functions what kiln's own takes.
    """
    if name in ("linear", "matmul"):
        return _product(name, *operands)
    pytorchs, form = _NAMES.get(name, name), "default"
    if name in _PAIRS - _DEFAULT and len(operands) > 1:
        form = "Scalar" if name in ("eq", "ne", "lt", "le", "gt", "ge") and not _both(operands) else "Tensor"
    elif name == "pow":
        form = "Tensor_Tensor" if _both(operands) else "Tensor_Scalar"
    elif name in _DIMS and results and (results[0].dim() or len(results) > 1):
        form = _DIMS[name]
    return overload(pytorchs, form), operands


def _both(operands: tuple[Any, ...]) -> bool:
    return all(isinstance(x, Tensor) for x in operands[:2])


def _product(name: str, a: Any, b: Any, bias: Any = None) -> tuple[Overload, tuple[Any, ...]]:
    """A matrix product as PyTorch makes it: of many rows at once where the second is one matrix."""
    if name == "linear":
        b = b.t() if b.dim() == 2 else b
    if b.dim() == 2 and a.dim() >= 2:
        a = a.reshape(-1, a.shape[-1]) if a.dim() > 2 else a
        return (overload("mm"), (a, b)) if bias is None else (overload("addmm"), (bias, a, b))
    if a.dim() == 1 and b.dim() == 1:
        return overload("dot"), (a, b)
    return overload("mv" if a.dim() == 2 and b.dim() == 1 else "bmm"), (a, b)
