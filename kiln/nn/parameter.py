"""`Parameter`: the tensors a module trains; `Buffer`: those it only owns.

Either is the core's tensor under another Python type, so `isinstance(p, Parameter)` tells what a
module should train; every op on it gives a plain tensor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard

from kiln import ops
from kiln._core import Tensor
from kiln.errors import describe, message
from kiln.late import by_name, call

if TYPE_CHECKING:
    from kiln._typed.words import Device, DType


class Parameter(Tensor):
    """A leaf tensor to be trained: shares memory with `data`, has no history, requires a gradient.

    `data` is a tensor of any shape (None: an empty one); a dtype that is not floating needs
    `requires_grad=False` (RuntimeError otherwise).

    >>> import kiln
    >>> kiln.nn.Parameter(kiln.ones(2))
    Parameter containing:
    tensor([1., 1.], requires_grad=True)
    """

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Parameter:
        if data is None:
            data = ops.empty(0)
        if not isinstance(data, Tensor):
            raise TypeError(message("Parameter", "a tensor", describe(data), "make it one with kiln.tensor"))
        made: Parameter = Tensor._make_subclass(cls, data.detach(), requires_grad)
        return made

    def __copy__(self) -> Parameter:
        return type(self)(self.detach(), self.requires_grad)

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        if id(self) not in memo:
            memo[id(self)] = type(self)(self.detach().clone(), self.requires_grad)
        copied: Parameter = memo[id(self)]
        return copied

    def __repr__(self) -> str:  # type: ignore[override,unused-ignore]
        return "Parameter containing:\n" + super().__repr__()


class Buffer(Tensor):
    """A tensor that a module it is assigned to owns without training it, as register_buffer does.

    Shares memory with `data`; `persistent=False` keeps it out of state_dict.

    >>> import kiln
    >>> layer = kiln.nn.Identity()
    >>> layer.mean = kiln.nn.Buffer(kiln.zeros(2))
    >>> list(layer.state_dict())
    ['mean']
    """

    persistent: bool

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Buffer:
        if data is None:
            data = ops.empty(0)
        if not isinstance(data, Tensor):
            raise TypeError(message("Buffer", "a tensor", describe(data), "make it one with kiln.tensor"))
        made: Buffer = Tensor._make_subclass(cls, data.detach(), data.requires_grad)
        made.persistent = persistent
        return made

    def __copy__(self) -> Buffer:
        return type(self)(self, persistent=self.persistent)


_SHAPE = (
    "Can't access the shape of an uninitialized parameter or buffer. This error usually happens in "
    "`load_state_dict` when trying to load an uninitialized parameter into an initialized one. Call "
    "`forward` to initialize the parameters before accessing their attributes."
)
_USE = (
    "Attempted to use an uninitialized parameter in {}. This error happens when you are using a `LazyModule` "
    "or explicitly manipulating `kiln.nn.parameter.UninitializedParameter` objects. When using LazyModules "
    "call `forward` with a dummy batch to initialize the parameters before calling functions of them"
)
_WAITING = frozenset(
    "data grad requires_grad requires_grad_ dtype device is_leaf detach materialize to half float double "
    "bfloat16 cpu is_floating_point is_complex grad_fn layout".split()
)


class _Uninitialized:
    """A tensor that has a dtype and no shape yet: what needs one raises."""

    becomes: type[Tensor]

    def __getattribute__(self, name: str) -> Any:
        if name == "shape":
            raise RuntimeError(_SHAPE)
        if hasattr(Tensor, name) and not name.startswith("_") and name not in _WAITING:
            raise ValueError(_USE.format(name))
        return super().__getattribute__(name)

    def materialize(self, shape: Any, device: Device | None = None, dtype: DType | None = None) -> None:
        """Becomes a tensor of `shape` (its values are not set), of the same identity."""
        own: Any = self
        own.data = ops.empty(*shape, device=device, dtype=own.dtype if dtype is None else dtype)
        own.__class__ = self.becomes

    def detach(self) -> Any:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        own: Any = self
        return memo.setdefault(id(self), type(own)(own.requires_grad, dtype=own.dtype))

    def __reduce_ex__(self, protocol: Any) -> Any:
        own: Any = self
        return call, (by_name(type(own)), own.requires_grad, None, own.dtype)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"


def _refuse(name: str) -> None:
    def use(*args: Any) -> Any:
        raise ValueError(_USE.format(name))

    setattr(_Uninitialized, name, use)


for _name in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split():
    for _side in ("", "r", "i"):
        _refuse(f"__{_side}{_name}__")
for _name in "neg pos abs invert lt le gt ge len iter getitem setitem bool int float".split():
    _refuse(f"__{_name}__")


class UninitializedParameter(_Uninitialized, Parameter):
    """A parameter whose shape is not known yet; `materialize(shape)` makes a Parameter of it.

    RuntimeError where its shape is asked for, ValueError where it is used.

    >>> import kiln
    >>> p = kiln.nn.UninitializedParameter()
    >>> p.materialize((2, 3))
    >>> p.shape, type(p).__name__
    (kiln.Size([2, 3]), 'Parameter')
    """

    becomes = cls_to_become = Parameter

    def __new__(
        cls, requires_grad: bool = True, device: Device | None = None, dtype: DType | None = None
    ) -> Any:
        made: Any = Tensor._make_subclass(cls, ops.empty(0, device=device, dtype=dtype), requires_grad)
        return made


class UninitializedBuffer(_Uninitialized, Tensor):
    """A buffer whose shape is not known yet.

    >>> import kiln
    >>> kiln.nn.UninitializedBuffer()
    <UninitializedBuffer>
    """

    becomes = cls_to_become = Tensor

    def __new__(
        cls, requires_grad: bool = False, device: Device | None = None, dtype: DType | None = None
    ) -> Any:
        made: Any = Tensor._make_subclass(cls, ops.empty(0, device=device, dtype=dtype), requires_grad)
        return made


def is_lazy(param: Any) -> TypeGuard[UninitializedParameter | UninitializedBuffer]:
    """Whether a parameter or buffer has no shape yet."""
    return isinstance(param, _Uninitialized)
