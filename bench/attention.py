"""The lines of attention: heads of 64 elements, causal and whole, forward and with all gradients; of float32
and of bfloat16.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from bench.measure import Work
from bench.workloads import Line, Make, normal

SHAPES = ((4, 6, 256, 64), (1, 12, 1024, 64))  # batches, heads, positions, elements
PRODUCTS = 7  # forward and backward, each 2 * L * L * E for every head


def attention(shape: tuple[int, ...], causal: bool, grad: bool, dtype: str) -> Make:
    """Attention of arrays of one shape."""

    def make(framework: Any) -> Work:
        *inputs, g = (normal(framework, *shape, seed=k).to(getattr(framework, dtype)) for k in range(4))
        for x in inputs:
            x.requires_grad_(grad)
        f = framework.nn.functional.scaled_dot_product_attention

        def run() -> Any:
            if not grad:
                return f(*inputs, is_causal=causal)
            for x in inputs:
                x.grad = None
            f(*inputs, is_causal=causal).backward(g)
            return inputs[1].grad

        return Work("run()", {"run": run}, "run()")

    return make


def lines() -> list[Line]:
    """Forward, and forward and backward."""
    found = []
    for dtype, shape, causal in product(("float32", "bfloat16"), SHAPES, (True, False)):
        n, h, length, e = shape
        one = 2.0 * n * h * length * length * e / (2 if causal else 1)
        name = f"{'bf16 ' if dtype == 'bfloat16' else ''}attention {'x'.join(map(str, shape))}"
        name += " causal" if causal else ""
        found += [
            Line(name, attention(shape, causal, False, dtype), 2 * one, 1.0, peak=dtype),
            Line(f"{name}, f+b", attention(shape, causal, True, dtype), PRODUCTS * one, 1.0, peak=dtype),
        ]
    return found
