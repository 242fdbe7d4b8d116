"""What every lowering makes: kernels, and launches whose memory has no buffers yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kiln.codegen.compile import Part, object_for, whole
from kiln.codegen.nests.generate import nest_text
from kiln.codegen.nests.nest import Nest
from kiln.codegen.target import Target, host_target
from kiln.graph.control import Attrs
from kiln.graph.graph import Value
from kiln.graph.size import Dim, quotient
from kiln.passes.explore import Array, Read
from kiln.passes.group import Fusion

WORTH = 8000  # nanoseconds of work a thread should get at least


class Memory(NamedTuple):
    """A pointer of a launch: an array, or an input's own memory, from an offset in elements."""

    value: Value
    array: Array | None
    offset: Dim


class Kernel(NamedTuple):
    """A kernel of a plan; each pattern's is a class below this one, which knows how to write it."""

    spec: Any  # the pattern
    launches: Any = None  # what is known of all its launches, if it is written for them alone

    def text(self) -> str:
        """The canonical text: the key of every cache."""
        text: str = self.spec.text()
        return text

    def parts(self, target: Target) -> list[Part]:
        """The LLVM text."""
        raise NotImplementedError

    def among(self, launches: Sequence[Sequence[Dim]]) -> Kernel:
        """The kernel for a library, where these are the arguments of all its launches."""
        return self

    def object(self, target: Target | None = None) -> bytes:
        """The machine code for this host (or `target`), generated or from the cache."""
        target = target or host_target()
        return object_for(self.text(), lambda: self.parts(target), target)


class NestKernel(Kernel):
    """A loop nest as a kernel."""

    @property
    def nest(self) -> Nest:
        """The pattern."""
        nest: Nest = self.spec
        return nest

    def parts(self, target: Target) -> list[Part]:
        return [whole(nest_text(self.nest, target))]


class Split(NamedTuple):
    """How a product's launch may be cut where threads would be idle: its sums are those of `segments` of k,
    added; a segment's are `rows`, together of so many 64-bit words, and `grain` units of it a thread's worth.
    """

    segments: Dim
    rows: Dim
    words: Dim
    grain: Dim


class Lowered(NamedTuple):
    """A launch before its memory has buffers; `scratch`: 64-bit words each thread needs to itself."""

    kernel: Kernel
    pointers: tuple[Memory, ...]
    args: tuple[Dim, ...]
    grid: Dim
    grain: Dim
    scratch: Dim = 0
    split: Split | None = None


class Called(NamedTuple):
    """A call of graphs before its memory has buffers; None: a result that nobody reads. `strides`: elements
    of a part, of what a scan goes along and of its stacked results.
    """

    name: str
    attrs: Attrs
    inputs: tuple[Memory, ...]
    outputs: tuple[Memory | None, ...]
    strides: tuple[Dim, ...]


def stride_class(stride: Dim) -> str:
    """The class of a stride: unit, not read along, or any."""
    return {0: "0", 1: "1"}.get(stride, "s") if isinstance(stride, int) else "s"


def grain_of(cost: float, elements: Dim) -> Dim:
    """The units that make a thread's worth of work, from the nanoseconds of an element and their number."""
    wanted = int(WORTH / cost)
    if elements == 1:
        return max(wanted // 1024, 1) * 1024
    if isinstance(elements, int):
        return max(wanted // max(elements, 1), 1)
    return quotient(wanted, elements) + 1


def array_of(fusion: Fusion, read: Read) -> Array | None:
    """The array a read goes to; None for an input's own memory."""
    return None if read.raw else fusion.explorer.arrays[id(read.value)]
