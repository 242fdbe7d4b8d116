"""Windows over the last dims of an array: what PyTorch's arguments of pools mean, and how taps are read.

A tap is a place in a window. What each window's tap k is, for all windows at once, is a slice of the array:
so a pool is a chain over its taps, one pass over its input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as combinations
from typing import Any

from kiln.graph.size import product
from kiln.ops.creation.constants import filled
from kiln.ops.views.core_views import slice_, write
from kiln.ops.views.strided import contiguous_strides
from kiln.table.arguments import numbers_of
from kiln.table.record import Tensor

Ints = tuple[int, ...]
WORDS = ("zero", "one", "two", "three")


def require(holds: bool, message: str, error: type[Exception] = RuntimeError) -> None:
    """Raises unless `holds`."""
    if not holds:
        raise error(message)


def listed(sizes: Any) -> str:
    """Sizes as PyTorch's messages show them."""
    return f"[{', '.join(map(str, sizes))}]"


def per_dim(value: Any, dims: int, name: str, what: str, or_else: str = "") -> Ints:
    """One number for each dim, from one for all or a sequence; RuntimeError for another count."""
    numbers = numbers_of(value, what)
    if len(numbers) not in (1, dims):
        ints = "int" if dims == 1 else f"tuple of {WORDS[dims]} ints"
        must = "must be either" if what == "dilation" else f"must either be {or_else}".rstrip()
        raise RuntimeError(f"{name}: {what} {must} a single int, or a {ints}")
    return numbers * dims if len(numbers) == 1 else numbers


class Windows:
    """The windows of a pool over the last dims of arrays.

    `settings` is what a program is made for: kernel, stride, padding, dilation, whether anything is padded;
    `out` is how many there are, `after` how much is missing behind the array where they reach furthest.
    """

    def __init__(
        self,
        name: str,
        input: Tensor,
        kernel: Any,
        stride: Any,
        padding: Any,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> None:
        dims = int(name[-2])
        self.kernel = per_dim(kernel, dims, name, "kernel_size")
        given = kernel if stride is None or (isinstance(stride, Sequence) and not stride) else stride
        self.stride = per_dim(given, dims, name, "stride", "omitted, ")
        self.padding = per_dim(padding, dims, name, "padding")
        self.dilation = per_dim(dilation, dims, name, "dilation")
        self._check(name, input)
        self.sizes = tuple(input.shape)[-dims:]
        found = tuple(self._count(k, ceil_mode) for k in range(dims))
        self.out = found
        self._check_room(input)
        self.after = tuple(self._beyond(k, ceil_mode) for k in range(dims))
        self.padded = any(self.padding) or any(self.after)
        self.settings = (self.kernel, self.stride, self.padding, self.dilation, self.padded)

    def _count(self, dim: int, ceil_mode: bool) -> Any:
        n, k, s = self.sizes[dim], self.kernel[dim], self.stride[dim]
        p, r = self.padding[dim], self.dilation[dim]
        room = 2 * p - r * (k - 1) - 1
        # the last window may reach over the end, but begins before it
        return (n + (min(room + s - 1, p - 1) if ceil_mode else room)) // s + 1

    def _beyond(self, dim: int, ceil_mode: bool) -> int:
        """How much is missing behind the array; of sizes that vary, at most."""
        n, k, s = self.sizes[dim], self.kernel[dim], self.stride[dim]
        p, r = self.padding[dim], self.dilation[dim]
        if isinstance(n, int):
            last: int = (self.out[dim] - 1) * s + r * (k - 1) + 1 - n - p
            return max(last, 0)
        return min(p + s - 1, r * (k - 1)) if ceil_mode else p

    def _check(self, name: str, input: Tensor) -> None:
        require(
            min(self.kernel) > 0,
            f"{name}() kernel_size must be greater than zero, but got {min(self.kernel)}",
        )
        require(
            min(self.stride) > 0,
            f"{name}() stride must be greater than zero, but got {min(self.stride)} (stride "
            "should not be zero)",
        )
        require(
            min(self.padding) >= 0,
            f"{name}() padding must be non-negative, but got {min(self.padding)} (pad must be non-negative, "
            f"but got pad: {min(self.padding)})",
        )
        require(
            min(self.dilation) > 0,
            f"dilation should be greater than zero, but got {listed(self.dilation)} (dilation must be "
            f"greater than zero, but got {min(self.dilation)})",
        )
        for k, p, r in zip(self.kernel, self.padding, self.dilation):
            require(
                p <= k // 2,
                f"{name}() padding should be at most half of kernel size, but got padding={p} and "
                f"kernel_size={k} (pad should be at most half of effective kernel size, but got pad={p}, "
                f"kernel_size={k} and dilation={r})",
            )
        dims, shape = len(self.kernel), tuple(input.shape)
        require(
            len(shape) in (dims + 1, dims + 2) and 0 not in [n for n in shape[1:] if isinstance(n, int)]
            and (len(shape) == dims + 2 or shape[0] != 0),
            f"{name}: Expected {dims + 1}D or {dims + 2}D (batch mode) tensor with optional 0 dim batch size "
            f"for input, but got:{listed(shape)} (non-empty {dims + 1}D or {dims + 2}D (batch mode) tensor "
            "expected for input: Expected input's non-batch dimensions to have positive length)",
        )  # fmt: skip

    def _check_room(self, input: Tensor) -> None:
        if all(not isinstance(n, int) or n > 0 for n in self.out):
            return
        lead = tuple(input.shape)[-len(self.out) - 1 : -len(self.out)]
        given, found = ("x".join(map(str, (*lead, *sizes))) for sizes in (self.sizes, self.out))
        raise RuntimeError(
            f"Given input size: ({given}). Calculated output size: ({found}). Output size is too small "
            f"(Invalid computed output size: {min(self.out)})"
        )


def bordered(x: Tensor, value: Any, before: Any, after: Any) -> Any:
    """x with `value` around its last dims; its memory in rows."""
    dims = len(before)
    shape = (*x.shape[:-dims], *(n + a + b for n, a, b in zip(x.shape[-dims:], before, after)))
    strides = contiguous_strides(shape)
    offset: Any = 0
    for a, s in zip(before, strides[-dims:]):
        offset = offset + a * s
    return write(filled(x.graph, value, shape, x.dtype), x, strides, (offset,))


def tap(x: Tensor, place: Ints, first: int, stride: Ints, dilation: Ints, out: Any) -> Any:
    """What windows over x's dims from `first` on see at `place`, for all windows: a slice."""
    for k, (t, s, r, n) in enumerate(zip(place, stride, dilation, out)):
        x = slice_(x, first + k, (t * r, n, s))
    return x


def taps(kernel: Ints) -> Iterator[tuple[int, Ints]]:
    """The taps of a window in order, numbered."""
    return enumerate(combinations(*map(range, kernel)))


def stages(kernel: Ints, most: int) -> list[range]:
    """The dims of a window to be taken at once: all of them, or one by one from the last if taps are many."""
    dims = len(kernel)
    return [range(dims)] if product(kernel) <= most else [range(k, k + 1) for k in reversed(range(dims))]
