"""What a product reads: matrices, or a window.

Matrices have up to three dims of a batch, each with strides of its own. Of more, neighbours that both
factors have beside each other are one.

    x.view(b, s, h, d).transpose(1, 2) @ y [b, h, d, t]        batch [1, b, h]
    q [b, g, r, s, d] @ k.view(b, t, g, 1, d).permute(..)            [b, g, r]

The rows of the first factor may be two dims; what is before those (by one column: before the last) is a batch
by the same matrix.

    x [b, c, s].transpose(1, 2) @ w [c, n]                     rows [b, s]
    x.view(b, s, h, d).transpose(1, 2) @ w [d, n]              batch [1, 1, b], rows [h, s]

A window is `as_strided`, then reshaped to a matrix that strides cannot express:

    x [N, G, C, H, W]  as_strided ->  [N, G, C, KH, KW, OH, OW]  reshape ->  [N, G, C*KH*KW, OH*OW]

Such a matrix is larger than the array it looks at, so nobody writes it out: the kernel reads the array by
up to four dims of k and of n (kiln.codegen.gemm.window), and the first factor by as many of its k; by
one where elements are packed as others, or as words, and of inputs with strides of their own (the taps of
channels-last weights share few cache sets: three times as long). Where the first factor is the same for all
images (N) their columns stand side by side, as one product.
"""

from __future__ import annotations

from typing import NamedTuple, Union

from kiln.codegen.gemm.arguments import BATCH, DIMS
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.grid import EVEN_COLUMNS
from kiln.graph.graph import Node, Shape, Value
from kiln.graph.size import Dim
from kiln.passes.explore import Explorer, Read
from kiln.passes.inline import Inline, inline_factor
from kiln.passes.layout import Layout, numel, refined, regions, squeeze
from kiln.table.kinds import VIEWS

Dims = list[tuple[Dim, Dim]]  # (size, stride) of each


class Windows(NamedTuple):
    """A product over a window: its factors, and where they are read along batch, m, k and n."""

    frame: Shape  # (1, images, groups, m, n)
    a: Read
    b: Read
    groups: Dim  # batch indices with a first factor of their own
    images: Dim  # how many share one
    a_strides: Shape  # along groups, m, k
    b_group: Dim
    k: Dims
    n: Dims  # images first, if there are any
    image: Dim  # columns of an image
    a_k: Dims

    def window(self) -> dict[str, Shape]:
        """Where the window looks: the kernel's arguments of that name."""
        words: dict[str, Shape] = {}
        for name, dims in (("k", self.k), ("n", self.n), ("a", self.a_k)):
            padded: Dims = [(1, 0)] * (DIMS - len(dims)) + dims
            words[name] = (*(n for n, _ in padded[1:]), *(s for _, s in padded))
        return words

    def columns(self) -> Shape:
        """How its columns follow each other: the kernel's arguments of that name."""
        return (self.image, *evenly(self.n if self.images == 1 else self.n[1:]))

    @property
    def factors(self) -> list[Factor]:
        """Both factors, in memory."""
        return [self.a, self.b]


def evenly(columns: Dims) -> Shape:
    """Columns that lie evenly, if they are many: how many, and from one to the next columns and elements.

    Not one place of many images: as rows of a tile, each would have lines of memory of its own.
    """
    inner = 1  # columns of the dims inside
    for count, step in reversed(columns):
        if not isinstance(count, int) or count >= EVEN_COLUMNS:
            return count, inner, step
        inner *= count
    return 1, 1, 0


Factor = Union[Read, Inline, Value]  # in memory, computed by the product, or what must become an array next


class Matrices(NamedTuple):
    """A product of matrices: (*batch, m, n), and the factors over the batch's dims and their own two.

    `stretch`: how many rows of the first lie evenly, and the step to the next as many; () if all do.
    """

    frame: Shape
    factors: list[Factor]
    stretch: Shape = ()


def factors_of(explorer: Explorer, node: Node, passed: dict[int, Value] | None = None) -> Windows | Matrices:
    """A product's factors: a window, if the second is one and no matrix. `passed` takes the views down to
    memory.
    """
    left, right = node.inputs
    dims = _batch_of(explorer, node, passed)
    batch, m, k, n = numel(dims), left.shape[-2], left.shape[-1], right.shape[-1]
    matrices: list[Factor] = [_matrix(explorer, value, dims, passed) for value in node.inputs]
    frame = (*dims, m, n)
    if all(isinstance(x, Read) for x in matrices):
        return Matrices(frame, matrices)
    if not _sees_more(right):
        in_stretches = _rows_in_stretches(explorer, node, dims, passed)
        if in_stretches is not None:
            return in_stretches
        found = [x if isinstance(x, Read) else inline_factor(explorer, node, value, dims) or x
                 for x, value in zip(matrices, node.inputs)]  # fmt: skip
        return Matrices(frame, found)
    a = explorer.spread(left, None, passed)
    own = None if a is None else regions(a.layout, (batch, m, k))
    most = 1 if element_of(left.dtype).widened or (a and a.value.layout) else DIMS  # dims of k
    if own is None or len(own[1]) > 1 or len(own[2]) > most or len(own[0]) - _shared(own[0]) > 1:
        flat = _matrix(explorer, left, (batch,), passed)
        return Matrices(frame, [flat])  # an array of its own, which the window then goes with
    b = explorer.spread(right, None, passed)
    if a is None or b is None:
        return Matrices(frame, matrices[1:])
    images, groups = _images(own[0], batch)
    seen = regions(b.layout, (images, groups, k, n))
    if seen is None or max(map(len, seen[:2])) > 1:
        return Matrices(frame, matrices)
    image, group, along_k, along_n = seen
    columns = along_n if images == 1 else [(images, _stride(image)), *along_n]
    if max(len(along_k), len(columns)) > DIMS:
        return Matrices(frame, matrices)
    strides, frame = tuple(map(_stride, own)), (1, images, groups, m, n)
    return Windows(frame, a, b, groups, images, strides, _stride(group), along_k, columns, n, own[2])


def _rows_in_stretches(
    explorer: Explorer, node: Node, batch: Shape, passed: dict[int, Value] | None
) -> Matrices | None:
    """A first factor whose rows are several dims in memory: the last two are rows, those before of the batch,
    for all of which the second is the same. None if it has none.
    """
    left, right = node.inputs
    m, k, n = left.shape[-2], left.shape[-1], right.shape[-1]
    a = explorer.spread(left, None, passed)
    seen = None if a is None else regions(a.layout, (*batch, m, k))
    if a is None or seen is None or len(seen[BATCH]) < 2 or max(map(len, (*seen[:BATCH], seen[-1]))) > 1:
        return None
    *outer, (rows, step) = seen[BATCH]
    stretch: Shape = ()
    if n != 1:  # a column is a row of the transposed product
        many, stride = outer.pop()
        stretch, rows = (rows, stride), many * rows
    own = [dims[0] for dims in seen[:BATCH] if dims]
    lead = [(1, 0)] * (BATCH - len(own) - len(outer)) + own + outer
    if len(lead) > BATCH:
        return None
    dims = tuple(size for size, _ in lead)
    once = (*dims[: BATCH - len(outer)], *(1 for _ in outer), k, n)
    links = explorer.links
    b = explorer.strided(
        right, links.make("reshape", once, right, links.make("expand", (*dims, k, n), None, None)), passed
    )
    if not isinstance(b, Read) and inline_factor(explorer, node, right, batch) is not None:
        return None
    strides = (*(along for _, along in lead), step, _stride(seen[-1]))
    layout = Layout((*dims, rows, k), strides, a.layout.offset)
    return Matrices((*dims, rows, n), [a._replace(layout=layout), b], stretch)


def _batch_of(explorer: Explorer, node: Node, passed: dict[int, Value] | None) -> Shape:
    """The dims of a product's batch: those that it has; if they are too many, those that both factors have
    in memory, if these are not.
    """
    lead = squeeze(node.out.shape[:-2])
    if len(lead) > BATCH:
        whole = numel(lead)
        own: Shape = (whole,)
        for value in node.inputs:
            read = explorer.strided(value, None, passed)
            seen = regions(read.layout, (whole, *value.shape[-2:])) if isinstance(read, Read) else None
            own = (refined(own, tuple(n for n, _ in seen[0])) if seen is not None else None) or own
        lead = own if len(own) <= BATCH else (numel(lead[:-2]), *lead[-2:])
    return (1,) * (BATCH - len(lead)) + lead


def _matrix(explorer: Explorer, value: Value, batch: Shape, passed: dict[int, Value] | None) -> Read | Value:
    """A factor as strided memory over (*batch, rows, columns), or what must become an array for that."""
    shape = (*batch, *value.shape[-2:])
    return explorer.strided(value, explorer.links.make("reshape", shape, value, None), passed)


def _sees_more(value: Value) -> bool:
    """Whether a value is a reshape of places in memory."""
    while value.node is not None and value.node.op.kind in VIEWS:
        if value.node.op.kind == "as_strided":
            return True
        value = value.node.inputs[0]
    return False


def _shared(dims: Dims) -> bool:
    """Whether a first factor is the same along the first dim of a batch."""
    return bool(dims) and dims[0][1] == 0


def _images(dims: Dims, batch: Dim) -> tuple[Dim, Dim]:
    """How many images share a first factor, and how many first factors there are."""
    if _shared(dims):
        return dims[0][0], numel(tuple(n for n, _ in dims[1:]))
    return 1, batch


def _stride(dims: Dims) -> Dim:
    return dims[-1][1] if dims else 0
