"""One sample of PyTorch's tests called on both libraries: arguments made anew, functions found or rebound,
and how the outcomes differ.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import kiln
from kiln.testing.compare import close, dtype_name, to_array

torch: Any = importlib.import_module("torch")


class Skip(Exception):
    """A sample that needs what kiln leaves out on purpose."""


class Arguments:
    """Arguments of a sample made anew on one library: each storage copied once, each tensor a view of it."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.flat: dict[int, Any] = {}
        self.tensors: list[Any] = []

    def __call__(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(map(self, value))
        if isinstance(value, dict):
            return {k: self(v) for k, v in value.items()}
        if self.library is torch:
            return value
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return self.named(str(value).rpartition(".")[2])
        if isinstance(value, torch.device):
            return str(value)
        if isinstance(value, torch.Generator):
            return self.library.Generator().manual_seed(value.initial_seed())
        if isinstance(value, torch.Size):
            return self.library.Size(value)
        if isinstance(value, complex):
            raise Skip("complex")
        return rebound(value) if isinstance(value, types.FunctionType) else value

    def named(self, name: str) -> Any:
        """kiln's object of a name of PyTorch's."""
        if not hasattr(kiln, name):
            raise Skip(name)
        return getattr(kiln, name)

    def tensor(self, value: Any) -> Any:
        """A copy of a tensor with its layout in memory."""
        if value.is_complex() or value.layout != torch.strided or value.device.type != "cpu":
            raise Skip("complex, layout or device")
        place = value.untyped_storage().data_ptr()
        if place not in self.flat or not place:
            self.flat[place] = self.storage(value)
        made = self.flat[place].as_strided(tuple(value.shape), value.stride(), value.storage_offset())
        self.tensors.append(made.requires_grad_() if value.requires_grad else made)
        return made

    def storage(self, value: Any) -> Any:
        """The whole memory under a tensor as a flat tensor."""
        flat = torch.empty(0, dtype=value.dtype).set_(value.detach().untyped_storage()).clone()
        if self.library is torch:
            return flat
        self.named(dtype_name(value.dtype))
        if value.dtype is torch.bfloat16:
            return self.library.tensor(flat.view(torch.int16).numpy()).view(kiln.bfloat16)
        return self.library.tensor(flat.numpy())

    def place(self, result: Any) -> tuple[int, int, tuple[int, ...]] | None:
        """Which argument's memory a result lies in, and how; None if in its own."""
        if not result.numel() or (self.library is torch and result._is_zerotensor()):
            return None
        pointer = result.untyped_storage().data_ptr()
        for n, flat in enumerate(self.flat.values()):
            if flat.untyped_storage().data_ptr() == pointer:
                return n, result.storage_offset(), tuple(result.stride())
        return None


def path_of(library: Any, path: str) -> Any:
    """The attribute `a.b.c` of a library, or None."""
    with contextlib.suppress(AttributeError):
        return functools.reduce(getattr, path.split("."), library)
    return None


def rebound(function: Any) -> Any:
    """A function of PyTorch's tests that calls kiln instead."""
    if isinstance(function, functools.partial):
        return functools.partial(rebound(function.func), *function.args, **function.keywords)
    if not isinstance(function, types.FunctionType):
        return kiln_function(function, function.__name__)
    other = {"torch": kiln, "F": kiln.nn.functional, "wrapper_set_seed": lambda op, *a, **k: op(*a, **k)}
    inner = [c.cell_contents for c in function.__closure__ or ()]
    calls = (types.FunctionType, types.BuiltinFunctionType)
    cells = tuple(types.CellType(rebound(v) if isinstance(v, calls) else v) for v in inner)
    scope = {**function.__globals__, **other}
    made = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def kiln_function(function: Any, name: str) -> Any:
    """kiln's function for one of PyTorch's, or None."""
    written = isinstance(function, functools.partial)
    if written or str(getattr(function, "__module__", "")).startswith("torch.testing"):
        return rebound(function)
    short = getattr(function, "__name__", name)
    for candidate in (name, f"Tensor.{name}", short, f"Tensor.{short}"):
        if path_of(torch, candidate) is function:
            return path_of(kiln, candidate)
    return path_of(kiln, name) or path_of(kiln.Tensor, name)


class Outcome(NamedTuple):
    """What a call gave: a value, or an exception."""

    value: Any
    error: Exception | None
    arguments: Arguments


def call(library: Any, function: Any, sample: Any, out: Callable[[Any], Any] | None = None) -> Outcome:
    """The outcome of function(*arguments of a sample), or what it wrote into `out=`; of an attribute kiln has
    not, Skip.
    """
    convert = Arguments(library)
    args, kwargs = convert((sample.input, *sample.args)), convert(sample.kwargs)
    try:
        library.manual_seed(0)
        if out is None:
            return Outcome(function(*args, **kwargs), None, convert)
        written = out(library)
        function(*args, **kwargs, out=written)
        return Outcome(written, None, convert)
    except Exception as error:
        if isinstance(error, AttributeError) and re.search("(kiln|Tensor).* has no ", str(error)):
            raise Skip(str(error)) from None
        return Outcome(None, error, convert)


def described(value: Any) -> str:
    """A sample's argument in a word."""
    if isinstance(value, torch.Tensor):
        layout = "" if value.is_contiguous() else f"/{list(value.stride())}"
        small = f"={value.tolist()}" if value.numel() <= 6 and not value.is_complex() else ""
        return f"{dtype_name(value.dtype)}{list(value.shape)}{layout}{small}"
    if isinstance(value, dict):
        return ", ".join(f"{k}={described(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(described, value))}]"
    return repr(value)[:60]


def tensors_in(value: Any) -> list[Any]:
    """The tensors in nested containers."""
    value = list(value.values()) if isinstance(value, dict) else value
    if isinstance(value, (list, tuple)):
        return [x for v in value for x in tensors_in(v)]
    return [value] if isinstance(value, (torch.Tensor, kiln.Tensor)) else []


# ---- what differs ----


def error_difference(t: Outcome, k: Outcome) -> str | None:
    """How two outcomes differ by exceptions; None where a caller that catches one catches the other."""
    if k.error is None:
        return None if t.error is None else f"no error, PyTorch raises {shown(t.error)}"
    if t.error is None:
        return f"raises {shown(k.error)}"
    mine, others = classes(k.error), classes(t.error)
    same = mine[0] in others or others[0] in mine
    return None if same else f"raises {shown(k.error)}; PyTorch raises {shown(t.error)}"


def classes(error: Any) -> list[str]:
    """The names of an exception's classes below Exception."""
    names = [c.__name__.lstrip("_") for c in type(error).__mro__]
    return names[: names.index("Exception")]


def shown(error: Any) -> str:
    """An exception in a line."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"


def value_difference(t: Any, k: Any, loose: bool, where: str = "") -> str | None:
    """How a value differs from PyTorch's; `loose`: but for its elements."""
    if isinstance(t, torch.Tensor) and isinstance(k, kiln.Tensor):
        return tensor_difference(t, k, loose, where)
    if isinstance(t, (list, tuple)) and isinstance(k, list if isinstance(t, list) else tuple):
        if len(t) != len(k):
            return f"length {len(k)}{where}, PyTorch's {len(t)}"
        names = [] if type(t) in (list, tuple, torch.Size) else [n for n in dir(type(t)) if n[0] != "_"]
        fields = [n for n in names if isinstance(getattr(t, n), torch.Tensor)]
        if missing := [n for n in fields if not hasattr(k, n)]:
            return f"no field {missing}"
        pairs = [(a, b, f"{where} of item {n}") for n, (a, b) in enumerate(zip(t, k))]
        return next((d for a, b, at in pairs if (d := value_difference(a, b, loose, at))), None)
    if type(t).__name__ != type(k).__name__:
        return f"{type(k).__name__}{where}, PyTorch's is {type(t).__name__}"
    if isinstance(t, float):
        same = close(np.array(k), np.array(t), "float32")
    else:
        same = str(t).replace("torch.", "") == str(k).replace("kiln.", "")
    return None if same else f"value{where} {k}, PyTorch's {t}"


def tensor_difference(t: Any, k: Any, loose: bool, where: str) -> str | None:
    """How a tensor differs from PyTorch's."""
    dtype = dtype_name(t.dtype)
    if dtype != dtype_name(k.dtype):
        return f"dtype {dtype_name(k.dtype)}{where}, PyTorch's is {dtype}"
    if tuple(t.shape) != tuple(k.shape):
        return f"shape{where} {tuple(k.shape)}, PyTorch's is {tuple(t.shape)}"
    if t.requires_grad != k.requires_grad:
        return f"requires_grad={k.requires_grad}{where}"
    x, y = to_array(k), to_array(t.clone())
    if loose or close(x, y, dtype):
        return None
    return f"values{where}: {x.ravel()[:6].tolist()}, PyTorch's {y.ravel()[:6].tolist()}"


def sharing_difference(t: Any, k: Any, ta: Arguments, ka: Arguments) -> str | None:
    """How results differ in the memory they share with arguments."""
    if isinstance(t, torch.Tensor):
        a, b = ta.place(t), ka.place(k)
        return None if a == b else f"memory of argument, offset, strides: {b}, PyTorch's {a}"
    if isinstance(t, (list, tuple)):
        return next((d for a, b in zip(t, k) if (d := sharing_difference(a, b, ta, ka))), None)
    return None


def difference(t: Outcome, k: Outcome, loose: bool = False) -> str | None:
    """How two outcomes differ."""
    if t.error is not None or k.error is not None:
        return error_difference(t, k)
    found = value_difference(t.value, k.value, loose)
    return found or sharing_difference(t.value, k.value, t.arguments, k.arguments)
