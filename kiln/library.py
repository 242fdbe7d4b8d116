"""Operators of a program's own under PyTorch's names: `custom_op`, `Library`; as `torch.ops.mine.twice`.

An operator here is a function that Python calls. What PyTorch's tracer is told of one (`register_fake`) is
kept, and nothing asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kiln import _core
from kiln.absent import hint_missing as _hint_missing
from kiln.absent import leave_out
from kiln.autograd.function import Function
from kiln.errors import message

__all__ = ["CustomOpDef", "Library", "custom_op", "define", "impl", "register_autograd", "register_fake"]

_OPS: dict[str, Any] = {}  # "space::name" -> what is called
_CALLED = ("", "CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")  # dispatch keys of the CPU


class CustomOpDef:
    """An operator: calls its function, or that of its derivative where one is registered."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._qualname, self._function = name, function
        self._recorded: type[Function] | None = None
        self.__doc__ = function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._recorded is None or kwargs:
            return self._function(*args, **kwargs)
        return self._recorded.apply(*args)

    def register_fake(self, function: Any) -> Any:
        """A function that tells shapes without values: kept aside."""
        return function

    def register_kernel(self, device_types: Any, function: Any = None) -> Any:
        """`@op.register_kernel("cpu")`: what is called; functions for other devices are kept aside."""
        types = [device_types] if isinstance(device_types, (str, type(None))) else list(device_types)

        def register(function: Any) -> Any:
            if None in types or "cpu" in types:
                self._function = function
            return function

        return register if function is None else register(function)

    def register_autograd(self, backward: Any, /, *, setup_context: Any = None) -> None:
        """The derivative: `backward(ctx, *grads)`, after `setup_context(ctx, inputs, output)`."""
        op = self

        class Recorded(Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                output = op._function(*inputs)
                if setup_context is not None:
                    setup_context(ctx, inputs, output)
                return output

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                return backward(ctx, *grads)

        self._recorded = Recorded


def _split(name: str, asked: str) -> str:
    if not isinstance(name, str) or name.count("::") != 1:
        raise ValueError(message(f"library.{asked}", "a name such as 'mine::twice'", repr(name)))
    return name.partition(".")[0]  # without an overload


@_core.Function
def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: Any = None,
    schema: str | None = None,
) -> Any:
    """`@custom_op("mine::twice", mutates_args=())`: the function as an operator of that name.

    >>> @kiln.library.custom_op("mine::twice", mutates_args=())
    ... def twice(x: kiln.Tensor) -> kiln.Tensor:
    ...     return 2 * x
    >>> twice(kiln.ones(1))
    tensor([2.])
    """
    found = _split(name, "custom_op")

    def define(function: Callable[..., Any]) -> CustomOpDef:
        op = CustomOpDef(found, function)
        _OPS[found] = op
        return op

    return define if fn is None else define(fn)


@_core.Function
def define(qualname: str, schema: str, *, lib: Any = None, tags: Any = ()) -> None:
    """Says that there is an operator: what it does, `impl` says."""
    _split(qualname, "define")


@_core.Function
def impl(qualname: str, types: Any = "", func: Any = None, *, lib: Any = None) -> Any:
    """`@impl("mine::twice", "cpu")`: what the operator does; functions for other devices are kept aside."""
    name = _split(qualname, "impl")
    wanted = [types] if isinstance(types, str) else list(types or ("default",))
    if not all(isinstance(key, str) for key in wanted):
        raise TypeError(message("library.impl", "names of devices", repr(types)))

    def register(function: Any) -> Any:
        if any(key in _CALLED or key.lower() in ("cpu", "default") for key in wanted):
            _OPS[name] = CustomOpDef(name, function)
        return function

    return register if func is None else register(func)


@_core.Function
def register_fake(op: Any, func: Any = None, /, *, lib: Any = None, allow_override: bool = False) -> Any:
    """`@register_fake("mine::twice")`: a function that tells shapes without values; kept aside."""
    if not isinstance(op, str) and not callable(op):
        raise ValueError(f"register_fake({op}): got unexpected type for op: {type(op)}")
    return (lambda function: function) if func is None else func


impl_abstract = register_fake


@_core.Function
def register_autograd(op: Any, backward: Any, /, *, setup_context: Any = None, lib: Any = None) -> None:
    """The derivative of an operator by name; of one that is not there, nothing."""
    found = op if isinstance(op, CustomOpDef) else _OPS.get(_split(op, "register_autograd"))
    if found is not None:
        found.register_autograd(backward, setup_context=setup_context)


@_core.Function
def register_kernel(op: Any, device_types: Any, func: Any = None, /, *, lib: Any = None) -> Any:
    """`@register_kernel("mine::twice", "cpu")`: as `impl`."""
    name = op._qualname if isinstance(op, CustomOpDef) else _split(op, "register_kernel")
    return impl(name, "cpu" if device_types is None else device_types, func)


class Library:
    """Operators below one name: `define` says that there is one, `impl` what it does on the CPU."""

    @_core.Function
    def __init__(self, ns: str, kind: str, dispatch_key: str = "") -> None:
        if kind not in ("IMPL", "DEF", "FRAGMENT"):
            raise ValueError(f"Library: Unsupported kind: {kind}")
        self.ns, self.kind, self.dispatch_key = ns, kind, dispatch_key

    def define(self, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
        """The operator's name, from a schema such as "twice(Tensor x) -> Tensor"."""
        return schema.partition("(")[0]

    def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
        """What an operator does; a function for another device's key is kept aside."""
        name = str(op_name).rpartition("::")[2]
        impl(f"{self.ns}::{name}", dispatch_key or self.dispatch_key, fn)


_hint_missing(__name__)


leave_out(
    CustomOpDef,
    "register_autocast register_effect register_torch_dispatch register_vmap set_kernel_enabled",
    "PyTorch has it, kiln has not; register_fake, register_kernel and register_autograd are here",
)
leave_out(Library, "fallback register_symm_mem_args", "kiln has no dispatcher; define and impl are here")
