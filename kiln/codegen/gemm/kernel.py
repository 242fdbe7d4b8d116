"""A GEMM kernel: its parts, some its own and some shared with other products.

kernel(begin .. end):    the driver, over units of work (grid.py)
finish                   the epilogue; compute_a, compute_b: factors that are computed (epilogue.py)
packing, tiles           shared by all kernels of the same elements
"""

from __future__ import annotations

from kiln.codegen.compile import Part
from kiln.codegen.gemm import gemv
from kiln.codegen.gemm.amx import Amx
from kiln.codegen.gemm.driver import Blocks, GemmDriver
from kiln.codegen.gemm.epilogue import compute, finish
from kiln.codegen.gemm.fma import Fma
from kiln.codegen.gemm.problem import Problem
from kiln.codegen.gemm.spec import GemmSpec, verify
from kiln.codegen.gemm.window import nowhere
from kiln.codegen.ir.routine import own_parts
from kiln.codegen.target import Target


def blocks_of(spec: GemmSpec, target: Target) -> Blocks:
    """What multiplies: on AMX no sums go to an output before they are finished."""
    if spec.tiled(target):
        return Amx(Problem(target, spec, None))
    return Fma(Problem(target, spec, spec.plain_output or spec.accumulator))


def gemm_parts(spec: GemmSpec, target: Target) -> list[Part]:
    """The parts of the kernel: its own, the driver and what is fused, and those it shares.

    Raises ValueError for a pattern that breaks the grammar, and AssertionError for bool factors.
    """
    verify(spec, target)
    if spec.row and not spec.tiled(target):
        routines = [finish(target, spec), gemv.RowDriver(target, spec).write()]
        return own_parts(target, routines) + gemv.shared_parts(spec, target)
    blocks = blocks_of(spec, target)
    driver = GemmDriver(blocks).write()
    computed = [compute(target, spec, name, blocks.block_of(name)) for name in spec.prologues]
    constants = [*([nowhere()] if spec.window else []), *blocks.constants()]
    return own_parts(target, [finish(target, spec), driver, *computed], constants) + blocks.parts()
