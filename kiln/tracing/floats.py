"""Floats made of sizes that vary, as the function sees them: `q.shape[-1] ** -0.5`.

    TracedFloat(tensor)     tensor: a float64 tensor without dims that steps of the trace compute of sizes

Beside a tensor it is that tensor, in the dtype that a number would be computed in. Python's `/`, `*`, `+`,
`-` and `math.sqrt` round as the ops of float64 do, so results have the bits of the eager function. `**` is
a unit in the last place of float64 away for some sizes, so beside a float64 tensor such a float is read, as
any float is that something else than arithmetic asks for: what reads it is refused, as with a size.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from kiln import _core, ops
from kiln.graph.size import Dim, Size
from kiln.ops.creation import constants
from kiln.table.kinds import FLOATS
from kiln.table.record import Op

_MOST = 8  # of exponents, so that no power is beyond float64
AT_ONCE = ("float32", "float64")  # dtypes that a float is rounded to at once
_SMALL = 2**53  # whole numbers below are float64 numbers


class TracedFloat:
    """A float made of sizes that vary: arithmetic gives such floats, what reads it is told."""

    __slots__ = ("exact", "least", "number", "recorder", "sizes", "tensor")

    def __init__(
        self,
        recorder: Any,
        sizes: tuple[Dim, ...],
        tensor: Any,
        number: float,
        least: int | None,
        exact: bool,
    ) -> None:
        self.recorder, self.sizes, self.tensor = recorder, sizes, tensor
        self.number = number  # for the sizes the trace is made with
        self.least = least  # 1: always positive; 0: positive where all sizes are, never negative; None: any
        self.exact = exact  # has Python's bits for all of them

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return float

    def read(self, what: str = "read as a float") -> float:
        """Its number in the example, which its sizes keep."""
        for size in self.sizes:
            self.recorder.fix(size, what)
        return self.number

    def is_positive(self) -> bool:
        """Whether it is, as its sizes are; the program then asks that of them."""
        if self.least == 0 and all(self.recorder.decide(d, ">", 0, None, True) for d in self.sizes):
            self.least = 1
        return self.least == 1

    def as_tensor(self, dtype: str) -> Any:
        """It as a tensor without dims."""
        if dtype not in FLOATS or (dtype == "float64" and not self.exact):
            return constants.full_((), self.read(), dtype=dtype)
        return self.tensor.to(getattr(_core, dtype))

    def beside(self, tensors: list[Any]) -> Any:
        """What an op gets in its place, beside these tensors."""
        floats = [x for x in tensors if x.dtype.is_floating_point]
        dtypes = {x.dtype for x in floats} or {_core.get_default_dtype()}
        if not tensors or len(dtypes) > 1 or (_core.float64 in dtypes and not self.exact):
            return self.read()
        if any(x.ndim for x in floats) or _core.float64 in dtypes:
            return self.tensor
        if dtypes & {_core.float16, _core.bfloat16}:
            return self.read()  # such numbers are computed with as float32
        return self.tensor.to(dtypes.pop())

    def _with(self, name: str, other: Any, swapped: bool) -> Any:
        left, right = (other, self) if swapped else (self, other)
        if isinstance(other, _core.Tensor):
            return ops.OPERATORS[name](left, right)
        if _is_varying(other):
            other = float_of(other)
        if not _is_number(other):
            return NotImplemented
        ours = type(other) is TracedFloat or (math.isfinite(other) and abs(other) < _SMALL)
        divisor = self if swapped else other
        if not ours or (name == "truediv" and not _is_divisor(divisor)):
            return getattr(self.read(), f"__{'r' if swapped else ''}{name}__")(
                other.read() if type(other) is TracedFloat else other
            )
        numbers = [x.number if type(x) is TracedFloat else float(x) for x in (self, other)]
        tensors = [x.tensor if type(x) is TracedFloat else float(x) for x in (self, other)]
        if swapped:
            numbers.reverse()
            tensors.reverse()
        sizes, exact = self.sizes, self.exact
        if type(other) is TracedFloat:
            sizes, exact = tuple(dict.fromkeys((*sizes, *other.sizes))), exact and other.exact
        made = ops.OPERATORS[name](*tensors)
        least = _least(name, self.least, _least_of(other))
        return TracedFloat(self.recorder, sizes, made, _NUMBERS[name](*numbers), least, exact)

    def __pow__(self, power: Any) -> Any:
        if isinstance(power, _core.Tensor):
            return ops.OPERATORS["pow"](self, power)
        known = type(power) in (int, float) and abs(power) <= _MOST and self.exact
        if not known or self.least is None or (power <= 0 and not self.is_positive()):
            return self.read() ** (power.read() if type(power) is TracedFloat else power)
        made = ops.OPERATORS["pow"](self.tensor, float(power))
        return TracedFloat(self.recorder, self.sizes, made, self.number**power, self.least, False)

    def __rpow__(self, other: Any) -> Any:
        return ops.OPERATORS["pow"](other, self) if isinstance(other, _core.Tensor) else other ** self.read()

    def __neg__(self) -> Any:
        return self._with("mul", -1.0, False)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return abs(self.read()) if self.least is None else self

    def sqrt(self) -> Any:
        """The square root."""
        if self.least is None:
            return math.sqrt(self.read())
        made = ops.sqrt(self.tensor)
        return TracedFloat(self.recorder, self.sizes, made, math.sqrt(self.number), self.least, self.exact)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """What NumPy computes with it."""
        return beside_numpy(ufunc, method, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or not hasattr(float, name):
            raise AttributeError(f"'float' object has no attribute {name!r}")
        return getattr(self.read(), name)


_NUMBERS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "truediv": lambda a, b: a / b,
}


def _is_number(x: Any) -> bool:
    """Whether it is a number, or says so as a TracedFloat does: asked here, so that type checkers do not
    conclude that it is none of those.
    """
    return isinstance(x, (int, float))


def _is_divisor(x: Any) -> bool:
    """Whether it is not 0: of a float made of sizes it is known where all of them are positive."""
    return x.is_positive() if type(x) is TracedFloat else x != 0


def _is_varying(x: Any) -> bool:
    """Whether it is a size that varies, as the function sees it."""
    return isinstance(x, Size) and hasattr(x, "recorder")


def _least_of(x: Any) -> int | None:
    return x.least if type(x) is TracedFloat else 1 if x > 0 else 0 if x == 0 else None


def _least(name: str, a: int | None, b: int | None) -> int | None:
    """What is known of a result's sign, by that of two floats."""
    if name == "sub" or a is None or b is None:
        return None
    return max(a, b) if name == "add" else min(a, b)


def _arithmetic(name: str, swapped: bool) -> Callable[[TracedFloat, Any], Any]:
    return lambda self, other: self._with(name, other, swapped)


def _reading(name: str) -> Callable[..., Any]:
    own = getattr(float, name)

    def method(self: TracedFloat, *others: Any) -> Any:
        if any(isinstance(x, _core.Tensor) for x in others):
            return NotImplemented  # so the tensor is asked
        return own(self.read(), *(x.read() if type(x) is TracedFloat else x for x in others))

    return method


for _name in _NUMBERS:
    setattr(TracedFloat, f"__{_name}__", _arithmetic(_name, False))
    setattr(TracedFloat, f"__r{_name}__", _arithmetic(_name, True))
for _name in (
    "float int bool eq ne lt le gt ge hash repr str format floordiv rfloordiv mod rmod divmod rdivmod round "
    "trunc floor ceil"
).split():
    setattr(TracedFloat, f"__{_name}__", _reading(f"__{_name}__"))


def float_of(size: Any) -> TracedFloat:
    """A size that varies as a float."""
    recorder, plain = size.recorder, size.plain()
    tensor = constants.full_((), size, dtype=_core.float64)
    number = float(recorder.known.value_of(plain))
    return TracedFloat(recorder, (plain,), tensor, number, 0 if size >= 0 else None, True)


def beside_numpy(ufunc: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What NumPy computes with such floats and with sizes that vary: beside numbers that round as Python's
    do what Python computes, else of the numbers that they are, which is told.
    """
    import numpy as np

    arrays = [np.empty((), object) if _is_made_of_sizes(x) else np.asarray(x) for x in args]
    if all(a.dtype in ("int64", "float64", "object") for a in arrays):
        objects = [a.astype(object) for a in arrays]
        for made, x in zip(objects, args):
            if _is_made_of_sizes(x):
                made[()] = x
        with suppress(TypeError):  # of functions that only NumPy has
            return getattr(ufunc, method)(*objects, **kwargs)
    numbers = [x.read() if type(x) is TracedFloat else int(x) if _is_varying(x) else x for x in args]
    return getattr(ufunc, method)(*numbers, **kwargs)


def operands(op: Op, bound: list[Any]) -> list[Any]:
    """The arguments of a call of an op, with numbers or tensors in the place of such floats."""
    if not any(type(x) is TracedFloat for x in bound):
        return bound
    arrays = [
        getattr(x, "whole", x)
        for param, x in zip(op.params, bound)
        if isinstance(x, _core.Tensor) and param.kind != "S"
    ]
    pointwise = op.kind == "pointwise" and op.name != "pow"  # (an exponent is a part of the kernel)
    return [
        x if type(x) is not TracedFloat else x.beside(arrays) if pointwise and param.kind != "S" else x.read()
        for param, x in zip(op.params, bound)
    ]


def _is_made_of_sizes(x: Any) -> bool:
    return type(x) is TracedFloat or _is_varying(x)


def has_size(data: Any) -> bool:
    """Whether a size that varies, or such a float, is among numbers in sequences."""
    if isinstance(data, (tuple, list)):
        return any(map(has_size, data))
    return isinstance(data, Size) or type(data) is TracedFloat


_lock = threading.Lock()
_tracing = 0
_sqrt = math.sqrt


def _square_root(x: Any, /) -> Any:
    """Return the square root of x."""
    if type(x) is TracedFloat:
        return x.sqrt()
    return float_of(x).sqrt() if _is_varying(x) else _sqrt(x)


@contextmanager
def roots_followed() -> Iterator[None]:
    """`with` it, `math.sqrt` of what is made of sizes that vary is such a float."""
    global _tracing
    with _lock:
        _tracing += 1
        math.sqrt = _square_root
    try:
        yield
    finally:
        with _lock:
            _tracing -= 1
            if not _tracing:
                math.sqrt = _sqrt
