"""The lines of products: matrices of every shape class in float32, bfloat16 and int8, a layer with gelu."""

from __future__ import annotations

from typing import Any

from bench.measure import Work
from bench.workloads import Line, Make, matmul, normal, settle

# (m, n, k) and the bar
FLOAT32 = (
    (48, 48, 48, 1.2),
    (64, 64, 64, 1.2),
    (25, 600, 150, 1.2),
    (1, 600, 150, 1.2),
    (128, 128, 128, 1.05),
    (256, 256, 256, 0.95),
    (1024, 1024, 1024, 0.95),
    (2048, 2048, 2048, 0.95),
    (1, 4096, 4096, 1.0),
    (1024, 50257, 768, 0.95),
)
# (rows, outputs, inputs) of linear layers on single items and small batches
FEW_ROWS = ((1, 750, 300), (2, 750, 300), (4, 750, 300), (8, 750, 300), (1, 1024, 1024), (4, 1024, 1024))
BFLOAT16 = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (1, 4096, 4096))


def linear(m: int, n: int, k: int) -> Make:
    """linear of m rows: k inputs, n outputs, with a bias."""

    def make(framework: Any) -> Work:
        x, w, b = normal(framework, m, k), normal(framework, n, k, seed=1), normal(framework, n, seed=2)
        call = framework.nn.functional.linear
        return Work("linear(x, w, b)", {"linear": call, "x": x, "w": w, "b": b}, "linear(x, w, b)")

    return make


def matmul_bfloat16(m: int, n: int, k: int) -> Make:
    """(m, k) @ (k, n) in bfloat16; the same if sums of float32, rounded once, are near it."""

    def make(framework: Any) -> Work:
        a, b = normal(framework, m, k), normal(framework, k, n, seed=1)
        a, b = (x.to(framework.bfloat16) for x in (a, b))
        near = f"((a @ b).float() - a.float() @ b.float()).abs() < {0.04 * k**0.5}"
        return Work("a @ b", {"a": a, "b": b}, near)

    return make


def matmul_int8(m: int, n: int, k: int) -> Make:
    """(m, k) @ (k, n) in int8, sums in int32."""

    def make(framework: Any) -> Work:
        a, b = normal(framework, m, k) * 40, normal(framework, k, n, seed=1) * 40
        a, b = (x.clamp(-128, 127).to(framework.int8) for x in (a, b))
        return Work("int_mm(a, b)", {"int_mm": framework._int_mm, "a": a, "b": b}, "int_mm(a, b)")

    return make


def layer(compiled: bool) -> Make:
    """gelu(x @ w.T + b), 768 -> 3072 on 1024 rows."""

    def make(framework: Any) -> Work:
        f = framework.nn.functional
        x, w = normal(framework, 1024, 768), normal(framework, 3072, 768, seed=1) * 0.05
        b = normal(framework, 3072, seed=2)

        def run() -> Any:
            return f.gelu(f.linear(x, w, b))

        call = framework.compile(run) if compiled and framework.is_kiln else run
        settle(call, call)
        return Work("run()", {"run": call}, "run()")

    return make


def lines() -> list[Line]:
    """float32, bfloat16, int8, the layer."""
    found = [Line(f"matmul {m}x{n}x{k}", matmul(m, n, k), 2.0 * m * n * k, bar) for m, n, k, bar in FLOAT32]
    found += [Line(f"linear {m}x{n}x{k}", linear(m, n, k), 2.0 * m * n * k, 1.0) for m, n, k in FEW_ROWS]
    found += [
        Line(f"bf16 matmul {m}x{n}x{k}", matmul_bfloat16(m, n, k), 2.0 * m * n * k, 1.0, peak="bfloat16")
        for m, n, k in BFLOAT16
    ]
    m = n = k = 1024
    found.append(Line(f"int8 matmul {m}x{n}x{k}", matmul_int8(m, n, k), 2.0 * m * n * k, 1.0, peak="int8"))
    flops = 2.0 * 1024 * 768 * 3072
    found.append(Line("linear, bias, gelu", layer(False), flops, 1.0))
    return [*found, Line("linear, bias, gelu compiled", layer(True), flops, 1.2)]
