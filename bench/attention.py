"""The lines of attention: heads of 64 elements, causal and whole, forward and with all gradients."""

from __future__ import annotations

from typing import Any

from bench.measure import Work
from bench.workloads import Line, Make, normal

SHAPES = ((4, 6, 256, 64), (1, 12, 1024, 64))  # batches, heads, positions, elements
PRODUCTS = 7  # forward and backward, each 2 * L * L * E for every head


def attention(shape: tuple[int, ...], causal: bool, grad: bool) -> Make:
    """Attention of arrays of one shape."""

    def make(framework: Any) -> Work:
        *inputs, g = (normal(framework, *shape, seed=k, grad=grad and k < 3) for k in range(4))
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
    for shape in SHAPES:
        for causal in (True, False):
            n, h, length, e = shape
            one = 2.0 * n * h * length * length * e / (2 if causal else 1)
            name = f"attention {'x'.join(map(str, shape))}{' causal' if causal else ''}"
            found += [
                Line(name, attention(shape, causal, False), 2 * one, 1.0),
                Line(f"{name}, f+b", attention(shape, causal, True), PRODUCTS * one, 1.0),
            ]
    return found
