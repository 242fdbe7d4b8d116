"""autocast: calls of some functions with their arguments in a narrower dtype, or in float32.

    with kiln.autocast("cpu"):          a mode of the thread, kept by the core beside grad mode
        y = model(x)                    calls of the functions in `lists.py`: arguments are cast, and what
                                        they call themselves is not cast again

The casts are ops like others: derivatives go back through them, and a compiled region records them. A float32
parameter is cast once (`cache_enabled`); the core drops the casts where the mode ends.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from kiln import _core
from kiln.amp.lists import FLOAT32, LOW, WIDEST, dtype_of_call
from kiln.autograd.grad_mode import Mode
from kiln.device import device
from kiln.errors import warn
from kiln.table.arguments import answered
from kiln.table.callables import name_all

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
Tensor = _core.Tensor

_DTYPES = (_core.bfloat16, _core.float16)


class _Said(threading.local):
    """What a thread has said of autocast, apart from whether it is on."""

    def __init__(self) -> None:
        self.dtypes: dict[str, Any] = {}
        self.cache = True


_said = _Said()


class autocast(Mode):
    """Inside, products, convolutions and attention compute in `dtype` (bfloat16 or float16; by default what
    `get_autocast_dtype` says, bfloat16), losses and factorizations in float32, all else in what it is given.

    A context manager, and a decorator of functions. Only forward passes and losses belong inside: backward
    computes each derivative in the dtype of its forward. float16 gradients may underflow (see GradScaler).
    Tensors of float64, in-place forms and calls with `out=` are not cast. `device_type` is "cpu"; for another
    device, which this machine has not, and for another dtype it warns and changes nothing.

    `enabled=False` ends it inside. `cache_enabled`: a float32 parameter that requires gradients is cast once
    until the outermost context is left. ValueError for a device_type that is no text, RuntimeError for an
    unknown one.

    >>> import kiln
    >>> x = kiln.ones(2, 2)
    >>> with kiln.autocast("cpu", dtype=kiln.bfloat16):
    ...     y = x @ x
    >>> y.dtype, (x @ x).dtype
    (kiln.bfloat16, kiln.float32)
    """

    __slots__ = ("_cache_enabled", "_enabled", "device", "fast_dtype")

    def __init__(
        self,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        _expect_text(device_type)
        self.device = device(device_type).type
        self.fast_dtype = get_autocast_dtype(self.device) if dtype is None else dtype
        self._enabled = bool(enabled) and _is_possible(self.device, self.fast_dtype)
        self._cache_enabled = is_autocast_cache_enabled() if cache_enabled is None else cache_enabled
        if self.device != "cpu":
            super().__init__(None)
        else:
            mode: Any = (self.fast_dtype, self._cache_enabled) if self._enabled else False
            super().__init__(None, None, mode)

    def _given(self) -> tuple[Any, ...]:
        return self.device, self.fast_dtype, self._enabled, self._cache_enabled


def _is_possible(kind: str, dtype: Any) -> bool:
    """Whether a device can do it; a UserWarning where it can not."""
    if kind == "cpu":
        if dtype not in _DTYPES:
            warn(
                "In CPU autocast, but the target dtype is not supported. Disabling autocast.\n"
                f"CPU Autocast only supports dtypes of {', '.join(map(str, _DTYPES))} currently."
            )
        return dtype in _DTYPES
    warn(f"{kind.upper()} is not available. Disabling autocast.")
    return False


# ---- what is cast ----


def _name(function: Any) -> str:
    return str(getattr(function, "__kiln_name__", None) or getattr(function, "__name__", ""))


def _knows(function: Any) -> bool:
    name = _name(function)
    return name in LOW or name in FLOAT32 or name in WIDEST


def _arguments(function: Any, args: Any, kwargs: Any) -> Any:
    """The arguments of a call, its floating-point tensors cast; float64 and integers stay."""
    return _cast_of_call(_name(function), args, kwargs)


def _cast_of_call(name: str, args: Any, kwargs: Any) -> Any:
    low, keep = _core.modes()[2]  # type: ignore[misc]
    dtype = dtype_of_call(name, low, _core.float32, args, kwargs)
    if dtype is None or kwargs.get("out") is not None:
        return args, kwargs
    casts = _core.cast_cache() if keep else None

    def cast(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(cast, value)) if type(value) in (list, tuple) else value
        if not isinstance(value, Tensor):
            return value
        return _cast(value, dtype, casts)

    return tuple(map(cast, args)), {name: cast(value) for name, value in kwargs.items()}


def _cast(x: Any, dtype: Any, casts: Any) -> Any:
    """A tensor in a dtype; of a parameter the cast that is kept, if its values are still those."""
    if x.dtype is dtype or not x.is_floating_point() or x.dtype is _core.float64:
        return x
    if casts is None or not (x.requires_grad and x.is_leaf) or x._base is not None:
        return x.to(dtype)
    key = id(x), dtype, _core.grad_enabled()
    kept = casts.get(key)
    if kept is None or kept[0]() is not x or kept[1] != x._version:
        kept = casts[key] = weakref.ref(x), x._version, x.to(dtype)
    return kept[2]


# ops that functions of the lists are made of -> the function
_BEHIND = {
    "convolve": "conv2d",
    "convolve_input": "conv_transpose2d",
    "attend": "scaled_dot_product_attention",
    "cross_entropy_classes": "cross_entropy",
}
_RECURRENT = {"called", "lstm_step", "gru_gates", "rnn_step"}


def cast_arguments(op: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an op of a program as autocast, which is on, would have the function be called that it
    stands for. RuntimeError for parts of a recurrence, which autocast casts as a whole.
    """
    if op in _RECURRENT:
        raise RuntimeError(
            "a program with a loop or a recurrent layer cannot be called under autocast: trace it under "
            "autocast, or call it with kiln.autocast('cpu', enabled=False)"
        )
    name = _BEHIND.get(op, op)
    known = name in LOW or name in FLOAT32 or name in WIDEST
    return tuple(_cast_of_call(name, args, {})[0]) if known else args


_core.set_autocast(_knows, _arguments)


# ---- what programs ask and say ----


def _kind(device_type: Any) -> str:
    """The kind of device a text names. TypeError for anything else, RuntimeError for an unknown kind."""
    if not isinstance(device_type, str):
        name = type(device_type).__name__
        raise TypeError(f"argument 'device_type' must be str, not {name}")
    return device(device_type).type


def is_autocast_available(device_type: str) -> bool:
    """Whether autocast can be on for a kind of device: "cpu". RuntimeError for an unknown kind.

    >>> import kiln
    >>> kiln.amp.is_autocast_available("cpu")
    True
    """
    return _kind(device_type) == "cpu"


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Whether autocast is on in this thread for a kind of device; PyTorch's default kind is "cuda"."""
    on = _kind(device_type) == "cpu"
    return on and bool(answered("is_autocast_enabled", _core.modes()[2] is not None))


def set_autocast_enabled(device_type: Any, enabled: bool | None = None) -> None:
    """Turns autocast on or off in this thread, to no end; `set_autocast_enabled(flag)` speaks of "cuda"."""
    kind, on = ("cuda", device_type) if enabled is None else (_kind(device_type), enabled)
    if not isinstance(on, bool):
        raise TypeError(f"argument 'enabled' must be bool, not {type(on).__name__}")
    grad, inference, _ = _core.modes()
    if kind == "cpu":
        mode = (get_autocast_dtype(kind), is_autocast_cache_enabled()) if on else None
        _core.set_modes(grad, inference, mode)


def get_autocast_dtype(device_type: str) -> Any:
    """The dtype autocast takes where none is given: bfloat16 on the CPU.

    >>> import kiln
    >>> kiln.get_autocast_dtype("cpu")
    kiln.bfloat16
    """
    kind = _kind(device_type)
    mode = _core.modes()[2]
    if kind == "cpu":
        return answered("get_autocast_dtype", mode[0] if mode else _said.dtypes.get(kind, _core.bfloat16))
    return _said.dtypes.get(kind, _core.float16)


def set_autocast_dtype(device_type: str, dtype: Any) -> None:
    """Sets the dtype autocast takes where none is given, in this thread."""
    _said.dtypes[_kind(device_type)] = dtype


def is_autocast_cache_enabled() -> bool:
    """Whether autocast keeps casts of parameters where it is not told."""
    mode = _core.modes()[2]
    return bool(answered("is_autocast_cache_enabled", _said.cache if mode is None else mode[1]))


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Sets whether autocast keeps casts of parameters, in this thread."""
    _said.cache = bool(enabled)


def clear_autocast_cache() -> None:
    """Drops the casts of parameters that this thread keeps."""
    _core.cast_cache().clear()


def _deprecated(old: str, new: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """A name of PyTorch's for one kind of device, which warns."""

    def call(*args: Any) -> Any:
        warn(
            f"kiln.{old}() is deprecated. Please use kiln.{new.__name__}('{device_type}') instead.",
            DeprecationWarning,
        )
        return new(device_type, *args)

    call.__name__ = call.__qualname__ = old
    call.__doc__ = f"`{new.__name__}` for {device_type!r}; deprecated."
    return call


is_autocast_cpu_enabled = _deprecated("is_autocast_cpu_enabled", is_autocast_enabled, "cpu")
set_autocast_cpu_enabled = _deprecated("set_autocast_cpu_enabled", set_autocast_enabled, "cpu")
get_autocast_cpu_dtype = _deprecated("get_autocast_cpu_dtype", get_autocast_dtype, "cpu")
set_autocast_cpu_dtype = _deprecated("set_autocast_cpu_dtype", set_autocast_dtype, "cpu")
get_autocast_gpu_dtype = _deprecated("get_autocast_gpu_dtype", get_autocast_dtype, "cuda")
set_autocast_gpu_dtype = _deprecated("set_autocast_gpu_dtype", set_autocast_dtype, "cuda")


# ---- custom functions ----


def custom_fwd(fwd: Any = None, *, device_type: str, cast_inputs: Any = None) -> Any:
    """Decorates `forward` of an autograd.Function: its state of autocast is remembered for `custom_bwd`.

    With `cast_inputs`, a dtype, floating-point tensors come in that dtype and autocast is off inside; where
    autocast is off outside it changes nothing. ValueError for a device_type that is no text.
    """
    _expect_text(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def forward(*args: Any, **kwargs: Any) -> Any:
        context = args[0]
        context._dtype = get_autocast_dtype(device_type)
        context._fwd_used_autocast = is_autocast_enabled(device_type)
        if cast_inputs is None or not context._fwd_used_autocast:
            return fwd(*args, **kwargs)
        context._fwd_used_autocast = False
        with autocast(device_type, enabled=False):
            return fwd(*_all_in(args, cast_inputs), **_all_in(kwargs, cast_inputs))

    return forward


def custom_bwd(bwd: Any = None, *, device_type: str) -> Any:
    """Decorates `backward` of an autograd.Function whose forward is under `custom_fwd`: the same autocast."""
    _expect_text(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def backward(*args: Any, **kwargs: Any) -> Any:
        context = args[0]
        with autocast(device_type, dtype=context._dtype, enabled=context._fwd_used_autocast):
            return bwd(*args, **kwargs)

    return backward


def _expect_text(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


def _all_in(value: Any, dtype: Any) -> Any:
    """Floating-point tensors in tuples, lists and dicts as a dtype; float64 stays."""
    if isinstance(value, Tensor):
        return _cast(value, dtype, None)
    if isinstance(value, dict):
        return {key: _all_in(item, dtype) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_all_in(item, dtype) for item in value)
    return value


name_all(globals(), "kiln.amp")
