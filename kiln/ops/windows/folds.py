"""unfold and fold of images: windows as columns, and columns added back where they came from.

Each is the other's derivative. unfold reads windows where they lie; fold adds what the windows that see a
place have there, or lays down those that do not overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as positions
from types import ModuleType
from typing import Any

from kiln.graph.size import product, quotient
from kiln.ops.creation.constants import filled
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.indexing.gathering import scatter_add
from kiln.ops.views.core_views import as_strided, expand, reshape, slice_, write
from kiln.ops.views.strided import contiguous_strides
from kiln.ops.windows.geometry import Ints, bordered, listed, require
from kiln.table import drawn as d
from kiln.table.arguments import INTEGERS, dtype_name, number, type_name
from kiln.table.public import public
from kiln.table.record import Sizes, Structure, Tensor, composite, find

_reshape = reshape.handle
AT_ONCE = 25  # taps, and phases, of windows that are added in one pass


def _counts(sizes: Any, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> tuple[Any, ...]:
    """How many windows there are along each dim."""
    return tuple(
        quotient(n + 2 * a - r * (k - 1) - 1, s) + 1
        for n, k, r, a, s in zip(sizes, kernel, dilation, padding, stride)
    )


def _columns(np: ModuleType, x: Any, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Any:
    """window_taps in NumPy: one tap at a time."""
    out = _counts(x.shape[2:], kernel, dilation, padding, stride)
    x = np.pad(x, [(0, 0), (0, 0), *((a, a) for a in padding)])
    found = [
        x[
            (
                ...,
                *(slice(t * r, t * r + (n - 1) * s + 1, s) for t, r, n, s in zip(tap, dilation, out, stride)),
            )
        ]
        for tap in np.ndindex(*kernel)
    ]
    return np.stack(found, 2).reshape(*x.shape[:2], *kernel, *out)


_SETTINGS = (((2, 3), (1, 2), (0, 1), (2, 1)), ((2, 2), (1, 1), (0, 0), (2, 2)))


@composite(
    public=False,
    dtypes="all",
    samples=d.samples(*(
        lambda rng, t, settings=settings: ((d.array(rng, (2, 3, 5, 6), t), *settings), {})
        for settings in _SETTINGS
    )),
    reference=d.reference(_columns),
)  # fmt: skip
def window_taps(
    input: Tensor, kernel: Structure, dilation: Structure, padding: Structure, stride: Structure
) -> Any:
    """[N, C, H, W] -> [N, C, *taps, *windows]: the elements that each tap of each window sees, zeros around
    the image.

    >>> kiln.nn.functional.unfold(kiln.tensor([[[1.0, 2.0, 3.0]]]), (1, 2))
    tensor([[1., 2.],
            [2., 3.]])
    """
    out = _counts(input.shape[2:], kernel, dilation, padding, stride)
    x = bordered(input, 0, padding, padding)
    image, channel, *steps = contiguous_strides(tuple(x.shape))
    taken = (s * r for s, r in zip(steps, dilation))
    strides = (image, channel, *taken, *(n * s for n, s in zip(steps, stride)))
    return as_strided(x, (*x.shape[:2], *kernel, *out), strides, (0,))


@window_taps.derivative
def _(g: Tensor, input: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    return add_windows(g, tuple(input.shape[2:]), kernel, dilation, padding, stride)


def _added(
    np: ModuleType, x: Any, sizes: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints
) -> Any:
    """add_windows in NumPy: one tap at a time."""
    y = np.zeros((*x.shape[:2], *(n + 2 * a for n, a in zip(sizes, padding))), x.dtype)
    for tap in np.ndindex(*kernel):
        at = (
            slice(t * r, t * r + (n - 1) * s + 1, s) for t, r, n, s in zip(tap, dilation, x.shape[4:], stride)
        )
        y[(..., *at)] += x[(slice(None), slice(None), *tap)]
    return y[(..., *(slice(a, a + n) for a, n in zip(padding, sizes)))]


@composite(
    public=False,
    dtypes="float",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3, 2, 3, 2, 4), t), (5, 6), *_SETTINGS[0]), {}),
        lambda rng, t: ((d.array(rng, (1, 1, 2, 2, 2, 3), t), (5, 6), *_SETTINGS[1]), {}),
        lambda rng, t: (
            (d.array(rng, (1, 1, 1, 2, 8, 5), t), (2, 4), (1, 2), (1, 1), (3, 1), (1, 1)),
            {},
        ),
        lambda rng, t: (
            (d.array(rng, (1, 2, 1, 26, 2, 2), t), (1, 26), (1, 26), (1, 1), (1, 1), (2, 2)),
            {},
        ),
    ),
    reference=d.reference(_added),
)
def add_windows(
    input: Tensor,
    sizes: Sizes,
    kernel: Structure,
    dilation: Structure,
    padding: Structure,
    stride: Structure,
) -> Any:
    """[N, C, *taps, *windows] -> [N, C, *sizes]: what each tap of each window has, added where it sees.

    >>> kiln.nn.functional.fold(kiln.ones(2, 2), (1, 3), (1, 2))
    tensor([[[1., 2., 1.]]])
    """
    if all(s > r * (k - 1) for k, r, s in zip(kernel, dilation, stride)):
        return _laid(input, sizes, dilation, padding, stride)
    if max(product(kernel), product(stride)) <= AT_ONCE:
        return _gathered(input, sizes, kernel, dilation, padding, stride)
    return _scattered(input, sizes, dilation, padding, stride)


def _inside(y: Tensor, sizes: Any, padding: Ints) -> Any:
    """What is left of an image without its border."""
    for k, (a, n) in enumerate(zip(padding, sizes)):
        y = slice_(y, 2 + k, (a, n, 1)) if a else y
    return y


def _laid(x: Tensor, sizes: Any, dilation: Ints, padding: Ints, stride: Ints) -> Any:
    """add_windows of windows that do not overlap: every element has its place."""
    shape = (*x.shape[:2], *(n + 2 * a for n, a in zip(sizes, padding)))
    image, channel, *steps = contiguous_strides(shape)
    strides = (image, channel, *(s * r for s, r in zip(steps, dilation)))
    strides = (*strides, *(s * n for s, n in zip(steps, stride)))
    return _inside(write(filled(x.graph, 0, shape, x.dtype), x, strides, (0,)), sizes, padding)


def _gathered(x: Tensor, sizes: Any, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Any:
    """add_windows phase by phase: places q * stride + phase are seen at the same taps, tap t by the window

        q + (phase + padding - t * dilation) / stride        where that is a whole number

    so each adds those, in the taps' order; a border stands for windows that are not there.
    """
    lead, out = tuple(x.shape[:4]), tuple(x.shape[4:])
    seen = [_windows_of(*settings) for settings in zip(kernel, dilation, padding, stride)]
    shifts = [[at for phase in phases for _, at in phase] for phases in seen]
    before = tuple(max(0, -min(at)) for at in shifts)
    many = tuple(quotient(n + s - 1, s) for n, s in zip(sizes, stride))
    # windows that see nothing but padding have memory too: there are at most this many more than places
    more = (-((r * (k - 1) + 1 - 2 * a) // s) + 1 for k, r, a, s in zip(kernel, dilation, padding, stride))
    after = tuple(q + max(m, *at) - o for q, m, at, o in zip(many, more, shifts, out))
    wide_x, shape = bordered(wide(x), 0, before, after), (*lead[:2], *sizes)
    steps = contiguous_strides(shape)
    apart = (*steps[:2], *(step * s for step, s in zip(steps[2:], stride)))
    y = filled(x.graph, 0, shape, x.dtype)
    for phase in positions(*map(range, stride)):
        own = tuple(quotient(n - r + s - 1, s) for n, r, s in zip(sizes, phase, stride))
        total: Any = None
        for chosen in positions(*(phases[r] for phases, r in zip(seen, phase))):
            part = wide_x
            for k, ((t, at), a, n) in enumerate(zip(chosen, before, own)):
                part = slice_(slice_(part, 2 + k, (t, 1, 1)), 4 + k, (a + at, n, 1))
            part = reshape(part, (*lead[:2], *own))
            total = part if total is None else total + part
        if total is not None:
            place = sum(r * step for r, step in zip(phase, steps[2:]))
            y = write(y, narrow(total, x.dtype), apart, (place,))
    return y


def _windows_of(kernel: int, dilation: int, padding: int, stride: int) -> list[list[tuple[int, int]]]:
    """For each phase of a dim the taps that see it, with how far away their windows are."""
    far = [[(t, phase + padding - t * dilation) for t in range(kernel)] for phase in range(stride)]
    return [[(t, at // stride) for t, at in taps if at % stride == 0] for taps in far]


def _scattered(input: Tensor, sizes: Any, dilation: Ints, padding: Ints, stride: Ints) -> Any:
    """add_windows of many taps, as sums at places."""
    lead, inner = tuple(input.shape)[:2], tuple(input.shape)[2:]
    padded = tuple(n + 2 * a for n, a in zip(sizes, padding))
    place: Any = None
    for k, (step, r, s) in enumerate(zip(contiguous_strides(padded), dilation, stride)):
        for dim, times in ((k, r), (2 + k, s)):
            at = input.graph.add(find("iota"), (), (inner, dim)) * number(input, step * times)
            place = at if place is None else place + at
    flat = (product(lead), product(inner))
    index = expand(reshape(place, (1, product(inner))), flat)
    zeros = filled(input.graph, 0, (product(lead), product(padded)), input.dtype)
    y = reshape(scatter_add(zeros, 1, index, reshape(input, flat)), (*lead, *padded))
    return _inside(y, sizes, padding)


@add_windows.derivative
def _(g: Tensor, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    return window_taps(g, kernel, dilation, padding, stride)


def _pair(value: Any, name: str) -> Ints:
    numbers = tuple(value) if isinstance(value, Sequence) else (value, value)
    numbers = numbers * 2 if len(numbers) == 1 else numbers
    require(len(numbers) == 2, f"It is expected {name} equals to 2, but got size {len(numbers)}")
    return numbers


def _settings(kernel: Any, dilation: Any, padding: Any, stride: Any) -> tuple[Ints, Ints, Ints, Ints]:
    names = ("kernel_size", "dilation", "padding", "stride")
    found = [_pair(v, n) for v, n in zip((kernel, dilation, padding, stride), names)]
    for (high, across), name, short, least in zip(
        found, ("kernel size", *names[1:]), ("kernel", "dilation", "pad", "stride"), (1, 1, 0, 1)
    ):
        wanted = "greater than zero" if least else "non-negative"
        require(
            min(high, across) >= least,
            f"{name} should be {wanted}, but got {short}_height: {high} {short}_width: {across}",
        )
    return found[0], found[1], found[2], found[3]


@public(
    "im2col",
    method=False,
    dtypes="all",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 3, 5, 6), t), (2, 3), (1, 2), (0, 1), (2, 1)), {}),
        lambda rng, t: ((d.array(rng, (3, 4, 4), t), 2), {"stride": 2}),
    ),
    failures=d.failures(
        ((d.Zeros(2, 2), 1), {}, RuntimeError, "Expected 3D or 4D"),
        ((d.Zeros(1, 1, 2), 2), {}, RuntimeError, "components must be at least one"),
        ((d.Zeros(1, 2, 2), 0), {}, RuntimeError, "kernel size should be greater than zero"),
        ((d.Zeros(1, 2, 2), 1, 1, -1), {}, RuntimeError, "padding should be non-negative"),
        ((d.Zeros(1, 2, 2), (1, 2, 3)), {}, RuntimeError, "It is expected kernel_size equals to 2"),
    ),
    differs="PyTorch has it as nn.functional.unfold alone",
)
def im2col(input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """Windows of [N, C, H, W] as columns [N, C * taps, windows], or without N: `nn.functional.unfold`.

    Zeros around the image. RuntimeError for sizes or settings that do not fit.

    >>> kiln.im2col(kiln.tensor([[[1.0, 2.0, 3.0]]]), (1, 2))
    tensor([[1., 2.],
            [2., 3.]])
    """
    settings, shape = _settings(kernel_size, dilation, padding, stride), tuple(input.shape)
    require(
        len(shape) in (3, 4) and 0 not in shape[1:] and (len(shape) == 4 or shape[0] != 0),
        "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions for "
        f"input, but got: {listed(shape)}",
    )
    blocks = _counts(shape[-2:], *settings)
    shown = zip(("kernel_size", "dilation", "padding"), settings)
    require(
        all(not isinstance(n, int) or n > 0 for n in blocks),
        f"Given input with spatial size {shape[-2:]}, {', '.join(f'{n}={v}' for n, v in shown)}, calculated "
        f"shape of the array of sliding blocks as {blocks}, but its components must be at least one.",
    )
    y = window_taps.handle(input if len(shape) == 4 else _reshape(input, (1, *shape)), *settings)
    return _reshape(y, (*shape[:-3], shape[-3] * product(settings[0]), product(blocks)))


def _fold_failures() -> Any:
    x = d.Zeros(2, 4, 1)
    return d.failures(
        ((d.Zeros(3), 2, 2), {}, RuntimeError, "Expected 2D or 3D"),
        ((d.Zeros(2, 3, 1), 2, 2), {}, RuntimeError, "to be divisible by the product of kernel_size"),
        ((d.Zeros(2, 4, 2), 2, 2), {}, RuntimeError, "to match the calculated number of sliding blocks 1"),
        ((x, 2, 2, 0), {}, RuntimeError, "dilation should be greater than zero"),
        ((x, (2, 2, 2), 2), {}, RuntimeError, "It is expected output_size equals to 2"),
    )


@public(
    "fold",
    method=False,
    layer=True,
    dtypes="float32",
    samples=d.samples(
        lambda rng, t: ((d.array(rng, (2, 8, 9), t), (4, 4), 2), {}),
        lambda rng, t: (
            (d.array(rng, (8, 6), t), (5, 6), (2, 2)),
            {"padding": (0, 1), "stride": 2, "dilation": (1, 3)},
        ),
    ),
    failures=_fold_failures(),
)
def fold(
    input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """Columns [N, C * taps, windows] (or without N) added up where their windows are in [N, C, *output_size].

    What `unfold`'s gradient is. RuntimeError for sizes that do not fit.

    >>> kiln.nn.functional.fold(kiln.ones(2, 2), (1, 3), (1, 2))
    tensor([[[1., 2., 1.]]])
    """
    sizes, shape = _pair(output_size, "output_size"), tuple(input.shape)
    settings = _settings(kernel_size, dilation, padding, stride)
    require(
        len(shape) in (2, 3),
        "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero dimensions "
        f"for input, but got: {listed(shape)}",
    )
    require(
        not isinstance(shape[-2], int) or shape[-2] % (settings[0][0] * settings[0][1]) == 0,
        f"Expected size of input's dimension {len(shape) - 2} to be divisible by the product of kernel_size, "
        f"but got input.size({len(shape) - 2})={shape[-2]} and kernel_size={settings[0]}.",
    )
    blocks = _counts(sizes, *settings)
    shown = zip(("kernel_size", "dilation", "padding", "stride"), settings)
    require(
        not isinstance(shape[-1], int) or (min(blocks) > 0 and product(blocks) == shape[-1]),
        f"Given output_size={sizes}, {', '.join(f'{n}={v}' for n, v in shown)}, expected size of input's "
        f"dimension {len(shape) - 1} to match the calculated number of sliding blocks {blocks[0]} * "
        f"{blocks[1]} = {product(blocks)}, but got input.size({len(shape) - 1})={shape[-1]}.",
    )
    if dtype_name(input.dtype) in INTEGERS:
        raise NotImplementedError(
            f"\"col2im_out_cpu\" not implemented for '{type_name(dtype_name(input.dtype))}'"
        )
    lead = (shape[0] if len(shape) == 3 else 1, quotient(shape[-2], product(settings[0])))
    y = add_windows.handle(_reshape(input, (*lead, *settings[0], *blocks)), sizes, *settings)
    return y if len(shape) == 3 else _reshape(y, tuple(y.shape[1:]))
