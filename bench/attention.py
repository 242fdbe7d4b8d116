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
    """Attention of arrays of one shape; of bfloat16 the same if it is near float32's of the same arrays."""

    def make(framework: Any) -> Work:
        *inputs, g = (normal(framework, *shape, seed=k).to(getattr(framework, dtype)) for k in range(4))

        def runs(query: Any, key: Any, value: Any, slopes: Any) -> Any:
            inputs = [x.detach().requires_grad_(grad) for x in (query, key, value)]
            f = framework.nn.functional.scaled_dot_product_attention

            def run() -> Any:
                if not grad:
                    return f(*inputs, is_causal=causal)
                for x in inputs:
                    x.grad = None
                f(*inputs, is_causal=causal).backward(slopes)
                return inputs[1].grad

            return run

        run = runs(*inputs, g)
        if dtype == "float32":
            return Work("run()", {"run": run}, "run()")
        exact = runs(*(x.float() for x in inputs), g.float())()
        near = f"(run().float() - exact).abs() < {float(exact.abs().max()) / 50}"
        return Work("run()", {"run": run, "exact": exact}, near)

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
