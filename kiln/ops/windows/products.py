"""Convolutions: products of the weight with windows of the input, and their three-way derivatives.

    convolve          y[n, o, p] = sum over c, k of w[o, c, k] * x[n, c, p * stride - padding + k * dilation]
    convolve_input    what y's gradient gives x: a convolution transposed
    convolve_weight   what it gives w

Each is one product whose second factor is a window, `as_strided` into the padded array, which the generator
reads where it lies. The order of a sum is (channel, taps) in rows, so no layout changes a bit. The derivative
of each of the three is made of the other two.

Spatial dims are one, two or three; stride, padding, dilation (a number each) and groups (how many, and the
weight's rows in each) are fixed per program.
"""

from __future__ import annotations

from itertools import product as positions
from types import ModuleType
from typing import Any

from kiln.graph.size import product as product_of
from kiln.graph.size import quotient
from kiln.ops.creation.constants import filled
from kiln.ops.elementwise.precision import narrow, wide
from kiln.ops.products.matrix_products import product
from kiln.ops.reductions.core_reductions import reduce_sum
from kiln.ops.views.core_views import as_strided, expand, permute, reshape, slice_, write
from kiln.ops.views.strided import contiguous_strides
from kiln.ops.windows.geometry import Ints, bordered
from kiln.scalars import scalar
from kiln.scalars.scalar import FLOATS
from kiln.table import drawn as d
from kiln.table.record import Operand, Sample, Sizes, Structure, Tensor, composite, pointwise

UNROLLED = 9  # taps of a channel of its own, at most, that are added up one by one


# References


def _reference(
    np: ModuleType,
    x: Any,
    w: Any,
    b: Any,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: Ints,
) -> Any:
    """convolve in NumPy: one tap at a time."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    out = out_sizes(x.shape[2:], kernel, stride, (0,) * len(kernel), dilation)
    n, o, per = x.shape[0], w.shape[0], w.shape[0] // groups[0]
    y = np.zeros((n, o, *out), x.dtype)
    for tap in np.ndindex(*kernel):
        seen = x[
            (
                slice(None),
                slice(None),
                *(slice(t * k, t * k + (m - 1) * s + 1, s) for t, k, m, s in zip(tap, dilation, out, stride)),
            )
        ]
        for g in range(groups[0]):
            rows = slice(g * per, (g + 1) * per)
            channels = slice(g * w.shape[1], (g + 1) * w.shape[1])
            y[:, rows] += np.einsum("oc,nc...->no...", w[(rows, slice(None), *tap)], seen[:, channels])
    return y if b is None else y + b.reshape(-1, *(1 for _ in kernel))


# Geometry


def out_sizes(sizes: Any, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints) -> tuple[Any, ...]:
    """How many places a kernel has along each dim."""
    return tuple(
        quotient(n + 2 * p - r * (k - 1) - 1, s) + 1
        for n, k, s, p, r in zip(sizes, kernel, stride, padding, dilation)
    )


def _padded(x: Tensor, padding: Ints) -> Any:
    """x with zeros around its spatial dims; memory in rows either way, as windows need it."""
    return bordered(x, 0, padding, padding) if any(padding) else x


def _spread(x: Tensor, stride: Ints, lead: Ints, sizes: tuple[Any, ...]) -> Any:
    """Zeros of spatial `sizes` with x's elements from `lead` on, `stride` apart."""
    shape = (*x.shape[:2], *sizes)
    strides = contiguous_strides(shape)
    own = (*strides[:2], *(s * step for s, step in zip(strides[2:], stride)))
    return write(filled(x.graph, 0, shape, x.dtype), x, own, (_offset(lead, strides[2:]),))


def _offset(place: Ints, steps: Any) -> Any:
    """Elements before a place."""
    return sum(at * step for at, step in zip(place, steps))


def _shared(weight: Tensor, images: Any) -> Tensor:
    """A matrix of each group, for every image: [G, m, k] -> [N, G, m, k]."""
    return expand(reshape(weight, (1, *weight.shape)), (images, *weight.shape))


# The three products


_SETTINGS = ((3,), (1,), (1,), (1,), 1)


def _samples(rng: Any, t: str) -> Any:
    def sample(
        n: int,
        c: int,
        sizes: Ints,
        o: int,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        dilation: Ints,
        groups: int = 1,
        bias: bool = True,
    ) -> Any:
        x = d.array(rng, (n, c, *sizes), t, -1, 1)
        w = d.array(rng, (o, c // groups, *kernel), t, -1, 1)
        b = d.array(rng, (o,), t, -1, 1) if bias else None
        return Sample((x, w, b, kernel, stride, padding, dilation, rows_of(o, groups)))

    return [
        sample(2, 3, (7,), 4, (3,), (1,), (1,), (1,)),
        sample(1, 2, (5, 6), 3, (3, 2), (2, 1), (1, 0), (1, 2), bias=False),
        sample(2, 4, (4, 5), 6, (2, 3), (1, 2), (0, 2), (2, 1), groups=2),
        sample(2, 3, (6, 5), 3, (3, 3), (2, 2), (1, 1), (1, 1), groups=3),
        sample(1, 2, (3, 4, 3), 2, (2, 2, 2), (1, 1, 1), (1, 0, 1), (1, 1, 1)),
        sample(2, 3, (4, 4), 2, (1, 1), (1, 1), (0, 0), (1, 1)),
        # strides beyond the kernel; pads beyond what it reaches, with and without holes; one channel a group
        sample(1, 2, (7, 6), 2, (2, 1), (3, 2), (1, 0), (1, 1)),
        sample(1, 2, (5, 4), 3, (3, 2), (2, 3), (4, 2), (1, 1)),
        sample(1, 2, (5, 4), 2, (2, 3), (2, 3), (3, 5), (2, 1)),
        sample(1, 3, (5, 4), 3, (3, 2), (1, 1), (1, 1), (1, 1), groups=3),
    ]


@composite(
    public=False,
    samples=_samples,
    reference=d.reference(_reference),
)
def convolve(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kernel: Structure,
    stride: Structure,
    padding: Structure,
    dilation: Structure,
    groups: Structure,
) -> Any:
    """[N, C, *sizes], [O, C / groups, *kernel], [O] -> [N, O, *places of the kernel]; the sums over
    (channel, taps) in that order.

    >>> kiln.nn.functional.conv1d(kiln.ones(1, 1, 3), kiln.ones(1, 1, 2))
    tensor([[[2., 2.]]])
    """
    input.graph.require_equal(input.shape[1], weight.shape[1] * groups[0], "convolution")
    for n, k in zip(weight.shape[2:], kernel):
        input.graph.require_equal(n, k, "convolution")
    out = out_sizes(input.shape[2:], kernel, stride, padding, dilation)
    x = _padded(input, padding)
    y = _product(x, weight, out, kernel, stride, dilation, groups)
    return _biased(y, bias, input.dtype)


def _biased(y: Tensor, bias: Tensor, dtype: str) -> Any:
    """y with a number added to each of its channels."""
    if bias is None:
        return y
    return narrow(wide(y) + wide(reshape(bias, (bias.shape[0], *(1 for _ in y.shape[2:])))), dtype)


def _bias_gradient(g: Tensor) -> Tensor:
    return reduce_sum(g, (0, *range(2, g.ndim)), False)


def rows_of(outputs: int, groups: int) -> Ints:
    """The setting `groups` of a weight of so many rows: groups, and the rows of each if there are several."""
    return groups, outputs // groups if groups > 1 else 0


def _groups(graph: Any, outputs: Any, groups: Ints) -> tuple[int, Any]:
    """Groups, and the rows of each: a number where there are several, any size for one."""
    many, rows = groups
    if many == 1:
        return many, outputs
    graph.require_equal(outputs, many * rows, "convolution")
    return many, rows


def _product(
    x: Tensor, weight: Tensor, out: tuple[Any, ...], kernel: Ints, stride: Ints, dilation: Ints, groups: Ints
) -> Tensor:
    """The weight by windows of the padded input."""
    n, c, outputs = x.shape[0], weight.shape[1], weight.shape[0]
    _, channel, *steps = contiguous_strides(tuple(x.shape))
    image = channel * x.shape[1]
    many, per = _groups(weight.graph, outputs, groups)
    taps, places = (tuple(s * r for s, r in zip(steps, by)) for by in (dilation, stride))
    if c == 1 and many > 1 and product_of(kernel) <= UNROLLED:
        filters = reshape(weight, (many, per, product_of(kernel)))
        y = _tap_by_tap(x, filters, (n, many, per, *out), (image, channel, 0, *places), kernel, taps)
    else:
        seen = as_strided(x, (n, many, c, *kernel, *out), (image, channel * c, channel, *taps, *places), (0,))
        k = c * product_of(kernel)
        filters = reshape(weight, (many, per, k))
        y = product(_shared(filters, n), reshape(seen, (n, many, k, product_of(out))))
    return reshape(y, (n, outputs, *out))


@pointwise(
    samples=d.samples(lambda rng, t: (tuple(d.array(rng, (3, 4), t) for _ in range(3)), {})),
    reference=d.reference(lambda np, x, y, z: x * y + z),
    public=False,
    failures=d.failures(
        ((d.Zeros(2, 3), d.Zeros(2, 4), d.Zeros(1)), {}, RuntimeError, "must match the size"),
    ),
)
def multiply_add(input: Operand, other: Operand, total: Operand) -> Any:
    """`input * other + total`, rounded once: a step of a product's sum.

    >>> kiln.nn.functional.conv1d(kiln.ones(1, 2, 2), kiln.ones(2, 1, 2), groups=2)
    tensor([[[2.],
             [2.]]])
    """
    return scalar.multiply_add(input, other, total) if input.type in FLOATS else input * other + total


@multiply_add.derivative
def _(g: Tensor, input: Tensor, other: Tensor) -> Any:
    return g * other, g * input, g


def _tap_by_tap(
    x: Tensor, filters: Any, sizes: Any, strides: Any, kernel: Ints, taps: Any, first: Any = 0
) -> Any:
    """What `product` gives of filters [G, per, taps] with one channel each, bit by bit, as one pointwise
    kernel: rows of so few elements are no work for it.
    """
    total: Any = 0
    ones = (1,) * len(kernel)
    for k, tap in enumerate(positions(*map(range, kernel))):
        offset = first
        for place, step in zip(tap, taps):
            offset = offset + place * step
        weight = reshape(slice_(filters, 2, (k, 1, 1)), (*filters.shape[:2], *ones))
        total = multiply_add(as_strided(x, sizes, strides, (offset,)), weight, total)
    return total


@convolve.derivative
def _(
    g: Tensor,
    input: Tensor,
    weight: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> Any:
    settings = (kernel, stride, padding, dilation, groups)
    return (
        convolve_input(g, weight, None, tuple(input.shape[2:]), *settings),
        convolve_weight(g, input, (weight.shape[1],), *settings),
        _bias_gradient(g),
    )


def _transposed(
    np: ModuleType,
    g: Any,
    w: Any,
    b: Any,
    sizes: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Ints,
) -> Any:
    """convolve_input in NumPy: every element of g spreads its taps."""
    n, c = g.shape[0], w.shape[1]
    x = np.zeros((n, groups[0] * c, *(m + 2 * p for m, p in zip(sizes, padding))), g.dtype)
    per = w.shape[0] // groups[0]
    for tap in np.ndindex(*kernel):
        seen = tuple(
            slice(t * r, t * r + (m - 1) * s + 1, s) for t, r, m, s in zip(tap, dilation, g.shape[2:], stride)
        )
        for k in range(groups[0]):
            rows = slice(k * per, (k + 1) * per)
            x[(slice(None), slice(k * c, (k + 1) * c), *seen)] += np.einsum(
                "oc,no...->nc...", w[(rows, slice(None), *tap)], g[:, rows]
            )
    x = x[(slice(None), slice(None), *(slice(p, p + m) for p, m in zip(padding, sizes)))]
    return x if b is None else x + b.reshape(-1, *(1 for _ in kernel))


def _gradients(rng: Any, t: str) -> Any:
    """Samples of convolve_input: the gradient of the result in place of the input."""
    found = []
    for sample in _samples(rng, t):
        x, w, _, *settings = sample.args
        shape = (x.shape[0], w.shape[0], *out_sizes(x.shape[2:], *settings[:4]))
        found.append(Sample((d.array(rng, shape, t, -1, 1), w, None, x.shape[2:], *settings)))
    return found


@composite(
    public=False,
    samples=_gradients,
    reference=d.reference(_transposed),
)
def convolve_input(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sizes: Sizes,
    kernel: Structure,
    stride: Structure,
    padding: Structure,
    dilation: Structure,
    groups: Structure,
) -> Any:
    """[N, O, *places], [O, C / groups, *kernel] -> [N, C, *sizes]: every element spreads by the taps.

    >>> kiln.nn.functional.conv_transpose1d(kiln.ones(1, 1, 2), kiln.ones(1, 1, 2))
    tensor([[[1., 2., 1.]]])
    """
    input.graph.require_equal(input.shape[1], weight.shape[0], "convolution")
    if all(s == 1 for s in stride) or any(r != 1 for r in dilation):
        y = _whole(input, weight, sizes, kernel, stride, padding, dilation, groups)
    else:
        y = _by_phases(input, weight, sizes, kernel, stride, padding, groups)
    return _biased(y, bias, input.dtype)


def _whole(
    input: Tensor,
    weight: Tensor,
    sizes: Any,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: Ints,
) -> Any:
    """convolve_input as one product: by windows of the input, spread by the stride."""
    reach = tuple(r * (k - 1) for k, r in zip(kernel, dilation))
    lead = tuple(max(e - p, 0) for e, p in zip(reach, padding))
    room = tuple(n + max(e, 2 * p - e) for n, e, p in zip(sizes, reach, padding))
    x = _spread(input, stride, lead, room)
    first = tuple(max(e, p) for e, p in zip(reach, padding))
    return _backwards(x, weight, sizes, kernel, dilation, first, groups)


def _backwards(
    x: Tensor, weight: Tensor, sizes: Any, kernel: Ints, dilation: Ints, first: Ints, groups: Ints
) -> Tensor:
    """[N, C, *sizes]: the weight by windows of x that begin at `first` and whose taps go backwards."""
    n, outputs, c = x.shape[0], weight.shape[0], weight.shape[1]
    many, per = _groups(weight.graph, outputs, groups)
    _, channel, *steps = contiguous_strides(tuple(x.shape))
    offset = _offset(first, steps)
    taps = tuple(-s * r for s, r in zip(steps, dilation))
    if c == 1 and per == 1 and many > 1 and product_of(kernel) <= UNROLLED:
        filters = reshape(weight, (many, 1, product_of(kernel)))
        strides = (channel * outputs, channel, 0, *steps)
        y = _tap_by_tap(x, filters, (n, many, 1, *sizes), strides, kernel, taps, offset)
    else:
        strides = (channel * outputs, channel * per, channel, *taps, *steps)
        seen = as_strided(x, (n, many, per, *kernel, *sizes), strides, (offset,))
        swapped = permute(reshape(weight, (many, per, c, *kernel)), (0, 2, 1, *range(3, 3 + len(kernel))))
        k = per * product_of(kernel)
        filters = reshape(swapped, (many, c, k))
        y = product(_shared(filters, n), reshape(seen, (n, many, k, product_of(sizes))))
    return reshape(y, (n, many * c, *sizes))


def _by_phases(
    input: Tensor, weight: Tensor, sizes: Any, kernel: Ints, stride: Ints, padding: Ints, groups: Ints
) -> Any:
    """convolve_input of a strided convolution: places i = q * stride + phase see the taps k of one remainder,

        x[i] = sum over j of w[k0 + j * stride] * input[q + at - j]     k0 = (phase + padding) % stride

    so each phase is a product of its own, with nothing spread.
    """
    many = tuple(quotient(n + s - 1, s) for n, s in zip(sizes, stride))
    most = tuple((s - 1 + p) // s for s, p in zip(stride, padding))  # `at` is up to this
    lead = tuple(max((k - 1) // s, 0) for k, s in zip(kernel, stride))
    spare = tuple(max((p - k) // s + 2, 0) for p, k, s in zip(padding, kernel, stride))
    room = tuple(a + q + m + e for a, q, m, e in zip(lead, many, most, spare))
    x = _spread(input, (1,) * len(kernel), lead, room)
    shape = (input.shape[0], weight.shape[1] * groups[0], *sizes)
    strides = contiguous_strides(shape)
    apart = (*strides[:2], *(step * s for step, s in zip(strides[2:], stride)))
    y = filled(input.graph, 0, shape, input.dtype)
    # the phases that a tap comes to: of a stride beyond the kernel as few as there are taps
    reached = ([(k0 - p) % s for k0 in range(min(k, s))] for k, p, s in zip(kernel, padding, stride))
    for phase in positions(*map(sorted, reached)):
        k0 = tuple((r + p) % s for r, p, s in zip(phase, padding, stride))
        taps = tuple(-(-(k - a) // s) for k, a, s in zip(kernel, k0, stride))
        first = tuple(a + (r + p) // s for a, r, p, s in zip(lead, phase, padding, stride))
        part = weight
        for dim, (a, j, s) in enumerate(zip(k0, taps, stride), 2):
            part = slice_(part, dim, (a, j, s))
        own = tuple(quotient(n - r + s - 1, s) for n, r, s in zip(sizes, phase, stride))
        found = _backwards(x, part, own, taps, (1,) * len(taps), first, groups)
        y = write(y, found, apart, (_offset(phase, strides[2:]),))
    return y


@convolve_input.derivative
def _(
    g: Tensor,
    input: Tensor,
    weight: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> Any:
    settings = (kernel, stride, padding, dilation, groups)
    return (
        convolve(g, weight, None, *settings),
        convolve_weight(input, g, (weight.shape[1],), *settings),
        _bias_gradient(g),
    )


def _correlated(
    np: ModuleType,
    g: Any,
    x: Any,
    channels: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> Any:
    """convolve_weight in NumPy: one tap at a time."""
    x = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in padding)])
    per, c = g.shape[1] // groups[0], x.shape[1] // groups[0]
    w = np.zeros((g.shape[1], c, *kernel), x.dtype)
    both = (0, *range(2, g.ndim))
    for tap in np.ndindex(*kernel):
        seen = x[
            (
                slice(None),
                slice(None),
                *(
                    slice(t * r, t * r + (m - 1) * s + 1, s)
                    for t, r, m, s in zip(tap, dilation, g.shape[2:], stride)
                ),
            )
        ]
        for k in range(groups[0]):
            rows, channels = slice(k * per, (k + 1) * per), slice(k * c, (k + 1) * c)
            w[(rows, slice(None), *tap)] = np.tensordot(g[:, rows], seen[:, channels], (both, both))
    return w


def _pairs(rng: Any, t: str) -> Any:
    """Samples of convolve_weight."""
    inputs = [sample.args[0] for sample in _samples(rng, t)]
    return [
        Sample((s.args[0], x, s.args[1].shape[1:2], *s.args[4:])) for s, x in zip(_gradients(rng, t), inputs)
    ]


@composite(
    public=False,
    samples=_pairs,
    reference=d.reference(_correlated),
)
def convolve_weight(
    input: Tensor,
    other: Tensor,
    channels: Sizes,
    kernel: Structure,
    stride: Structure,
    padding: Structure,
    dilation: Structure,
    groups: Structure,
) -> Any:
    """[N, O, *places], [N, C, *sizes] -> [O, C / groups, *kernel]: what each tap saw, times what came of it;
    the sums over (image, places) in that order. `channels`: C / groups.

    >>> w = kiln.zeros(1, 1, 2, requires_grad=True)
    >>> kiln.nn.functional.conv1d(kiln.ones(1, 1, 3), w).sum().backward()
    >>> w.grad
    tensor([[[2., 2.]]])
    """
    out = tuple(input.shape[2:])
    x = _padded(other, padding)
    n, outputs = input.shape[0], input.shape[1]
    many, per = _groups(input.graph, outputs, groups)
    (c,) = channels
    input.graph.require_equal(x.shape[1], c * many, "convolution")
    _, channel, *steps = contiguous_strides(tuple(x.shape))
    strides = (
        channel * c, channel * x.shape[1], *(s * r for s, r in zip(steps, stride)),
        channel, *(s * r for s, r in zip(steps, dilation)),
    )  # fmt: skip
    seen = as_strided(x, (many, n, *out, c, *kernel), strides, (0,))
    k, taps = n * product_of(out), c * product_of(kernel)
    rows = permute(reshape(input, (n, many, per, product_of(out))), (1, 2, 0, 3))
    w = product(reshape(rows, (many, per, k)), reshape(seen, (many, k, taps)))
    return reshape(w, (outputs, c, *kernel))


@convolve_weight.derivative
def _(
    g: Tensor,
    input: Tensor,
    other: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Any,
) -> Any:
    settings = (kernel, stride, padding, dilation, groups)
    return convolve(other, g, None, *settings), convolve_input(
        input, g, None, tuple(other.shape[2:]), *settings
    )
