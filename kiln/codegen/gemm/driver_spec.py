"""What the loops of a product depend on: all but what is fused with it.

The loops are one function, `product`, which all products of one `DriverSpec` share. What is fused is called
by its address:

    kernel(ptr, arg, begin, end)  =  product(ptr, arg, begin, end, finish, compute_a, compute_b)

That costs nothing that can be measured, as a call of `finish` is for a block of sums. `kernel` stands beside
the functions that it names, so that their addresses are known where the object is made.

In a library all launches are known: there `product` is the kernel's own, and what is the same in every
launch (strides, sizes that do not vary, that nothing is cut along k) is written into it. Ways that no launch
goes are not there, nor the packing and the tiles that only they call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kiln.codegen.arguments import Arguments
from kiln.codegen.gemm.arguments import arguments
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.spec import GemmSpec
from kiln.codegen.ir.index import Index
from kiln.codegen.ir.routine import Routine
from kiln.codegen.target import Target

PRODUCT = "product"
KERNEL = "ptr %ptr, ptr %arg, i64 %begin, i64 %end"


class Launches(NamedTuple):
    """What is the same in all launches of a library's product, which is written for them."""

    words: tuple[tuple[int, int], ...]  # of the arguments, by places
    evenly: bool  # all rows of A lie evenly


def same(launches: Sequence[Sequence[Any]], names: Arguments) -> Launches:
    """What is, of launches that have these words, ints or sizes that vary."""
    words = tuple(
        (place, first)
        for place, (first, *others) in enumerate(zip(*launches))
        if isinstance(first, int) and all(word == first for word in others)
    )
    m, rows = names.word("size", "m"), names.word("stretch", "rows")
    return Launches(words, all(args[rows] == args[m] for args in launches))


class DriverSpec(NamedTuple):
    """The key of `product`, which is written from this, so that it can depend on nothing else."""

    dtype: str  # of both factors
    operands: int
    numbers: int
    row: bool  # one row of A
    window: bool  # B is a window
    transposed: tuple[tuple[str, bool], ...]  # each factor that is computed, and whether it is transposed
    folds: bool  # an operand takes a reduction of the rows
    plain: bool  # there is no epilogue: the sums are the result
    output: int | None  # the operand (from 1) that takes sums, if one does
    launches: Launches | None = None  # what is known of all launches

    @property
    def computed(self) -> dict[str, bool]:
        """The factors that are computed, and whether transposed."""
        return dict(self.transposed)

    @property
    def widened(self) -> bool:
        """Whether elements are narrower than what is summed."""
        return element_of(self.dtype).widened

    @property
    def indirect(self) -> bool:
        """Whether A is read by a table of where its k lie."""
        return self.window and not self.widened

    @property
    def arguments(self) -> Arguments:
        """The names of the kernel's arguments."""
        return arguments(self.operands, self.numbers, self.window)

    def word(self, code: Routine, *path: int | str) -> Index:
        """A word of the arguments, which the routine reads unless it is known."""
        place = self.arguments.word(*path)
        known = dict(self.launches.words) if self.launches else {}
        return code.index(known[place]) if place in known else code.argument(place)

    @property
    def called(self) -> tuple[str, ...]:
        """The functions that are given by their addresses."""
        return "finish", *(f"compute_{name}" for name in self.computed)

    @property
    def params(self) -> str:
        """What `product` is called with."""
        return ", ".join([KERNEL, *(f"ptr %{name}" for name in self.called)])


def driver_spec_of(spec: GemmSpec, target: Target, launches: Launches | None = None) -> DriverSpec:
    """What the driver of a pattern is written from. On AMX sums are finished before they go to an output."""
    plain = spec.plain_output
    output = None if spec.tiled(target) or spec.row else plain or spec.accumulator
    transposed = tuple((name, made.transposed) for name, made in spec.prologues.items())
    return DriverSpec(
        spec.dtype, len(spec.operands), len(spec.numbers), spec.row, spec.window, transposed, spec.folds,
        plain is not None, output, launches,
    )  # fmt: skip


def entry(target: Target, spec: DriverSpec) -> Routine:
    """The routine kernel: `product` with what it calls."""
    code = Routine(target, "kernel", KERNEL)
    addresses = [code.pointer(f"@{name}") for name in spec.called]
    code.run(PRODUCT, *code.pointers("ptr", "arg"), *code.indices("begin", "end"), *addresses)
    return code
