"""Attention: what its kernels are, and their LLVM text.

    out = softmax(q k^T * scale + mask) v          for every batch index n, head h, member r of its group

    query [n, l, h, r, e]     key [n, s, h, e]     value [n, s, h, v]     mask [n, h, r, l, s]

A block of queries meets its keys one head after the other (units.py). On vectors it meets all keys
at once, and whole rows of scores lie in memory of the thread's own (vectors.py); bfloat16 on AMX goes
by some keys at a time (amx.py). Either way a softmax is one of whole rows, and a kernel computes
what the products and reductions written out do (ops/nn/attention/written.py), bit by bit. What products of
bfloat16 read is bfloat16: weights exp(x - max x) are rounded where they meet the values, and in the gradients
p and dS.

With dropout a block draws, in both directions, one bit per weight: a position's number is a function of seed
and position alone (scalars/philox.py).

The sums over queries are of a documented order of their own: one FMA chain over the 48 rows of a block,
blocks added ascending, then members of the group; on AMX its order, steps of 32 queries ascending, then
members.
Nothing depends on how many threads run. Of a causal block keys beyond its last query are left out: their
weights are 0, and so they add nothing to a sum of finite numbers. (To one of infinities or NaN they would add
NaN; here they do not.)
"""

from __future__ import annotations

from kiln.codegen.attention.amx import tile_routines
from kiln.codegen.attention.spec import AttentionSpec
from kiln.codegen.attention.vectors import vector_routines
from kiln.codegen.compile import Part
from kiln.codegen.gemm import amx, fma
from kiln.codegen.gemm.amx_tile import config
from kiln.codegen.gemm.driver_spec import driver_spec_of
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.fma_tile import nothing
from kiln.codegen.gemm.spec import product
from kiln.codegen.ir.routine import own_parts
from kiln.codegen.target import Target
from kiln.scalars.scalar import LEAVES, topological


def attention_parts(spec: AttentionSpec, target: Target) -> list[Part]:
    """The parts of the kernel: its own, and those that products of such factors share."""
    _verify(spec)
    element, factors = element_of(spec.dtype), driver_spec_of(product(spec.dtype), target)
    if product(spec.dtype).tiled(target):
        own = own_parts(target, tile_routines(spec, target, element), [config()])
        return own + amx.shared_parts(factors, target)
    routines = vector_routines(spec, target, element)
    return own_parts(target, routines, [nothing(target, element)]) + fma.shared_parts(factors, target)


def _verify(spec: AttentionSpec) -> None:
    wrong = [n.op for n in topological(spec.scalars) if n.op in LEAVES and n.op not in ("number", "const")]
    if wrong or not set(spec.gives) <= set("qkv" if spec.backward else "o"):
        raise ValueError(f"attention: gives {spec.gives!r}, scale of {wrong}")
