"""Tensor's operators and methods, attached from the op table in one place.

x.name(...)    name(x, ...): every public op and function that is a method
x.name_(...)   the same with its result written into x, for those that have an in-place form
x + y, x[k]    slots of the core, told here which function they call
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from kiln import _core, absent, autograd, ops
from kiln.device import CPU, NO_ACCELERATOR, check, not_compiled
from kiln.device import device as Device
from kiln.errors import describe, message, warn
from kiln.late import later
from kiln.layout import memory_format as FormOfMemory
from kiln.layout import strided
from kiln.ops.creation import data, interop
from kiln.ops.elementwise import arithmetic
from kiln.ops.products import matrix_products
from kiln.ops.reductions import core_reductions
from kiln.ops.views import core_views, memory_formats, splits
from kiln.table import kinds, registry
from kiln.table.callables import named
from kiln.table.record import find

Tensor: Any = _core.Tensor

# The core's names of operator slots that differ from Python's.
_SLOTS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"}


# Ops that the core calls by itself; those that join arrays it asks for when there is something to join.
_CORE_OPS = (
    "as_strided", "write", "slice", "reshape", "permute", "expand", "select", "unbind", "split",
    "split_with_sizes",
)  # fmt: skip


def type_as(self: Any, other: Any) -> Any:
    """The tensor as other's dtype."""
    return interop.to(self, dtype=other.dtype)


def cpu(self: Any, memory_format: Any = None) -> Any:
    """The tensor itself, in another `memory_format` if one is given: its memory is the CPU's."""
    return self if memory_format is None else self.to(memory_format=memory_format)


def cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    """AssertionError, as of a PyTorch without CUDA; RuntimeError for what is no CUDA device."""
    _moved("cuda", device, non_blocking, memory_format)


def xpu(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    """AssertionError, as of a PyTorch without Intel's GPUs; RuntimeError for what is no such device."""
    _moved("xpu", device, non_blocking, memory_format)


def mtia(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    """AssertionError, as of a PyTorch without Meta's accelerators; RuntimeError for what is none."""
    _moved("mtia", device, non_blocking, memory_format)


def ipu(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
    """RuntimeError, as of a PyTorch that is not linked with Graphcore's."""
    check("to", "ipu")


def _moved(kind: str, device: Any, non_blocking: Any, form: Any) -> NoReturn:
    if not isinstance(non_blocking, (bool, int, float)):
        raise TypeError(message(kind, "argument 'non_blocking' to be a bool", describe(non_blocking)))
    if form is not None and not isinstance(form, FormOfMemory):
        raise TypeError(message(kind, "argument 'memory_format' to be a memory_format", describe(form)))
    if device is not None and not isinstance(device, int) and Device(device).type != kind:
        raise RuntimeError(f"Invalid device, must be {kind} device")
    not_compiled(kind)


def pin_memory(self: Any, device: Any = None) -> Any:
    """RuntimeError: memory is pinned for an accelerator, and there is none."""
    raise RuntimeError(f"{NO_ACCELERATOR} kiln runs on the CPU: leave pin_memory() out")


def is_pinned(self: Any, device: Any = None) -> bool:
    """False: memory is pinned for an accelerator, and there is none."""
    if device is not None:
        warn("The argument 'device' of Tensor.is_pinned() is deprecated.", DeprecationWarning)
    return False


def to_device(self: Any, device: Any, /, *, stream: Any = None) -> Any:
    """The tensor on a device, as the Array API standard names it: itself on the CPU."""
    if stream is not None:
        raise ValueError(message("to_device", "stream None on the CPU", describe(stream)))
    return interop.to(self, device=device)


def where(self: Any, condition: Any, other: Any) -> Any:
    """The tensor where the bool `condition` holds, else `other`; broadcast."""
    return arithmetic.where(condition, self, other)


def _transposed(self: Any) -> Any:
    """The dims in reverse order; of a matrix, its transpose. A warning for other numbers of dims."""
    if self.ndim == 0:
        warn("Tensor.T is deprecated on 0-D tensors. This function is the identity in these cases.")
    elif self.ndim != 2:
        warn(
            "The use of `x.T` on tensors of dimension other than 2 to reverse their shape is deprecated. "
            "Consider `x.mT` to transpose batches of matrices or `x.permute(*range(x.ndim - 1, -1, -1))`."
        )
    return core_views.permute(self, tuple(reversed(range(self.ndim))))


def _last_two(self: Any) -> Any:
    """The last two dims swapped. RuntimeError for one dim, a warning for none."""
    if self.ndim == 0:
        warn("Tensor.mT is deprecated on 0-D tensors. This function is the identity in these cases.")
        return self
    if self.ndim < 2:
        raise RuntimeError(
            f"tensor.mT is only supported on matrices or batches of matrices. Got {self.ndim}-D tensor."
        )
    return core_views.transpose(self, -1, -2)


def _matrix_transposed(self: Any) -> Any:
    """The transpose of a matrix. RuntimeError for another number of dims (but 0)."""
    if self.ndim not in (0, 2):
        raise RuntimeError(f"tensor.H is only supported on matrices (2-D tensors). Got {self.ndim}-D tensor.")
    if self.ndim == 0:
        warn("Tensor.H is deprecated on 0-D tensors. Consider using x.conj().")
        return self
    return _transposed(self)


def _contains(self: Any, element: Any) -> bool:
    """Whether an element equals the number or broadcast tensor. RuntimeError for anything else."""
    if not isinstance(element, (Tensor, int, float)):
        raise RuntimeError(
            "Tensor.__contains__ only supports Tensor or scalar, but you passed in a "
            f"{type(element).__name__}."
        )
    return bool((self == element).any())


def _iterate(self: Any) -> Any:
    """The views along dim 0. TypeError for a tensor of no dims."""
    if self.ndim == 0:
        raise TypeError("iteration over a 0-d tensor")
    return iter(splits.unbind(self, 0))


def _getitem(self: Any, index: Any) -> Any:
    """The first time that an index is none of those that the core knows."""
    _learn_items()
    return self[index]


def _setitem(self: Any, index: Any, value: Any) -> None:
    _learn_items()
    self[index] = value


def _learn_items() -> None:
    from kiln.ops.indexing import getitem

    _core.set_operator("getitem", _core.Function(getitem.getitem, True))
    _core.set_operator("setitem", _core.Function(getitem.setitem, True))


def _learning(slot: str, found: Callable[[str], Any], name: str) -> Any:
    """What `found` gives of a name, whose family is imported at the first call; it is the operator then."""

    def first(*args: Any, **kwargs: Any) -> Any:
        function = found(name)
        _core.set_operator(slot, function)
        return function(*args, **kwargs)

    return first


def backward(
    self: Any,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Adds the tensor's gradients to the `.grad` of the leaves it depends on (see kiln.autograd.backward)."""
    if gradient is None and inputs is None and not create_graph:
        self._backward(bool(retain_graph))
    else:
        autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)


# beside the table's, or in its place
METHODS: dict[str, Any] = {
    "cpu": cpu,
    "cuda": cuda,
    "xpu": xpu,
    "ipu": ipu,
    "mtia": mtia,
    "pin_memory": pin_memory,
    "is_pinned": is_pinned,
    "to_device": to_device,
    "type_as": type_as,
    "where": where,
    "is_contiguous": memory_formats.is_contiguous,
    "backward": backward,
    "__iter__": _iterate,
    "__contains__": _contains,
    "__repr__": later("kiln.printing", "tensor_repr"),
    "__format__": later("kiln.printing", "tensor_format"),
}


def _short(dtype: Any) -> str:
    """A dtype in a few letters: "f32", "b8"."""
    name: str = dtype.name
    return name.replace("bfloat", "bf").replace("float", "f").replace("int", "i").replace("bool", "b8")


# what PyTorch's tensors may be, and kiln's are not
_NEVER = (
    "cuda ipu maia meta mkldnn mps mtia nested quantized sparse sparse_csr vulkan xla xpu"
).split()  # fmt: skip


def attach() -> None:
    """Gives the core's Tensor its methods, properties and operators; once, at import."""
    own = {*vars(Tensor), *METHODS}
    registry.attach(Tensor, lambda function: function, lambda name: name not in own)
    for name, function in METHODS.items():
        nameless = name[0] == "_" or name == "backward"  # what fails in a backward is an op's, or the user's
        setattr(Tensor, name, _core.Function(function, True) if nameless else named(name, function))
    _core.quicken(Tensor.__iter__, "iter")
    _core.quicken(Tensor.backward, "backward")
    for name, getter in (
        ("T", _core.quicken(_core.Function(_transposed, True), "T")),
        ("mT", _core.quicken(_core.Function(_last_two, True), "mT")),
        ("H", _matrix_transposed),
        ("mH", lambda self: _last_two(self) if self.ndim else self),
        ("real", lambda self: self),
        *((f"is_{kind}", lambda self: False) for kind in _NEVER),
        ("is_cpu", lambda self: True),
        ("device", lambda self: CPU),
        ("itemsize", Tensor.element_size),
        ("layout", lambda self: strided),
    ):
        setattr(Tensor, name, property(getter))
    Tensor._grad = vars(Tensor)["grad"]  # programs of many workers assign to it: shared._grad = own.grad
    first = {name: _learning(name, registry.function, asked) for name, asked in ops.ASKED.items()}
    first.update(getitem=_getitem, setitem=_setitem)
    for name, function in {**ops.OPERATORS, **first}.items():
        made = _core.Function(function, True) if name in first else function
        _core.set_operator(_SLOTS.get(name, name), made)
    _core.set_operator("array", data.beside)
    _core.set_operator("take_at", find("take_at").handle)
    absent.leave_out(Tensor, absent.TENSOR)
    absent.leave_out(_core.dtype, "to_complex", "kiln has no complex numbers")
    setattr(_core.dtype, "to_real", lambda self: self)  # noqa: B010  # which the core has not
    setattr(_core.dtype, "abbr", property(_short))  # noqa: B010
    Tensor.__name__ = "Tensor"  # as Python's messages name it, without the module
    Tensor.__array_priority__ = 1000  # NumPy's `array + x` and `number * x` leave it to x
    _core.set_operator("to", _core.Function(interop.to, True))
    _core.set_operator("new", later("kiln.ops.creation.legacy", "tensor_new"))
    _core.set_operator("fill", _learning("fill", registry.method, "fill_"))
    for name in kinds.COMPUTE:
        _core.set_core_function(name, arithmetic.convert.handle, (name,))
    _core.set_core_function("add", arithmetic.add.handle, ())
    _core.set_core_function("copy", arithmetic.clone.handle, ())
    _core.set_core_ops(*(find(name).handle for name in _CORE_OPS))
    _core.set_core_function("sum_to", core_reductions.sum_to.handle, ("t", "t"))
    _core.set_core_function("product", matrix_products.product.handle, ("t", "t"))
    _core.set_core_function("transpose", core_views.permute.handle, ("t", (1, 0)))


attach()
