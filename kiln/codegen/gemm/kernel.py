"""A GEMM kernel: its parts, some its own and some shared with other products.

kernel(begin .. end)     product, with what it calls
finish                   the epilogue; compute_a, compute_b: factors that are computed (epilogue.py)
product                  the driver, over units of work (grid.py), shared as driver_spec.py says
packing, tiles           shared by all kernels of the same elements
"""

from __future__ import annotations

from functools import cache

from kiln.codegen.compile import Part
from kiln.codegen.gemm import gemv
from kiln.codegen.gemm.amx import Amx
from kiln.codegen.gemm.driver import Blocks, GemmDriver
from kiln.codegen.gemm.driver_spec import PRODUCT, Launches, driver_spec_of, entry
from kiln.codegen.gemm.epilogue import compute, finish
from kiln.codegen.gemm.fma import Fma
from kiln.codegen.gemm.problem import Problem
from kiln.codegen.gemm.spec import GemmSpec, verify
from kiln.codegen.gemm.window import nowhere
from kiln.codegen.ir.routine import module, own_parts
from kiln.codegen.target import Target


def blocks_of(spec: GemmSpec, target: Target, launches: Launches | None = None) -> Blocks:
    """What multiplies."""
    problem = Problem(target, driver_spec_of(spec, target, launches))
    return Amx(problem) if spec.tiled(target) else Fma(problem)


def gemm_parts(spec: GemmSpec, target: Target, launches: Launches | None = None) -> list[Part]:
    """The parts of the kernel: what is fused, and those it shares, the driver first, which may be for some
    launches alone.

    Raises ValueError for a pattern that breaks the grammar, and AssertionError for bool factors.
    """
    verify(spec, target)
    key = driver_spec_of(spec, target, launches)
    driver: gemv.RowDriver | GemmDriver
    routines, constants = [entry(target, key), finish(target, spec, launches)], []
    if spec.row and not spec.tiled(target):
        driver, shared = gemv.RowDriver(target, key), gemv.shared_parts(key, target)
    else:
        blocks = blocks_of(spec, target, launches)
        driver, shared = GemmDriver(blocks), blocks.parts()
        routines += [compute(target, spec, name, blocks.block_of(name), launches) for name in spec.prologues]
        constants = [*([nowhere()] if spec.window else []), *blocks.constants()]

    written = cache(driver.write)
    if launches is not None:  # of what is shared, only what it calls
        called = written().declared.keys()
        shared = [part for part in shared if not called.isdisjoint(part.functions)]

    def product() -> str:
        return module(target, [written()], constants)

    return [*own_parts(target, routines), Part((PRODUCT,), product, launches is None, str(key)), *shared]
