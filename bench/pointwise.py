"""Every pointwise function of the table on 16 elements, and views and joins with gradients, kiln and PyTorch
in turn: what a call costs.

    python -m bench.pointwise [word ...]     # only those whose line holds one of the words

Forms: the function as its first sample calls it, the same with a number as second operand, the in-place
method, and the operators. A line gives nanoseconds (medians), the ratio of medians and that of minima; at the
end their geometric means.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import kiln
from bench.measure import Times, Work, interleaved
from kiln import ops
from kiln.table.public import records

ELEMENTS = 16
SECONDS = 0.05  # of sampling, for each pair
OPERATORS = (
    "x + y", "x - y", "x * y", "x / y", "x // y", "x % y", "x ** y", "x + 2.0", "2.0 - x", "x * 2", "x / 2.0",
    "x ** 2", "x ** 2.5", "x ** -1", "-x", "abs(x)", "x > y", "x > 0.5", "x == 1", "i & i", "i | 3", "i ^ i",
    "~i", "i << 1", "i >> 1", "x.float()", "x.double()", "x.long()", "x.to(m.float64)", "x.clone()",
    "x.zero_()", "x.fill_(1.0)", "m.where(b, x, y)", "m.where(b, x, 0.0)", "x.clamp(min=0.0)",
    "m.add(x, y, alpha=2)",
)  # fmt: skip
AUGMENTED = ("x += y", "x -= y", "x *= 1.0", "x /= 1.0", "i &= i", "i |= i", "b ^= b", "i <<= 0")


# Of leaves: p of shape (1, 20), r of (4, 3, 5), a and c of (1, 4); each leaves a node for backward.
VIEWS = (
    "p.chunk(5, 1)", "p.split(4, 1)", "p.split([5, 15], 1)", "r.unbind()", "[*r]",
    "p.narrow(1, 3, 5)", "r.select(1, 2)", "r[0]", "r[:, 1:2]", "r[1, :, None]", "r[..., 0]", "r[[2, 0]]",
    "r.view(12, 5)", "r.view(-1, 5)", "r.reshape(-1)", "p.unsqueeze(0)", "p.squeeze(0)", "r.transpose(0, 1)",
    "p.t()", "p.T", "r.mT", "p.expand(3, -1)", "r.permute(2, 0, 1)", "r.flatten(1)", "p.view_as(p)",
    "m.cat([a, c])", "m.cat([a, c], dim=1)", "m.stack([a, c])", "m.cat(many)",
)  # fmt: skip


def tensor_of(framework: Any, value: Any) -> Any:
    """16 elements of an array's dtype, the same in both frameworks; other values as they are."""
    if not isinstance(value, np.ndarray):
        return value
    rng = np.random.default_rng(0)
    data = rng.uniform(0.5, 0.9, ELEMENTS) if value.dtype.kind == "f" else rng.integers(1, 5, ELEMENTS)
    return framework.from_numpy(data.astype(value.dtype))


def pointwise_records() -> Iterator[Any]:
    """The records of public pointwise functions."""
    found = {op.name: op for op in ops.table() if op.public} | {f.name: f for f in records()}
    for record in found.values():
        body = getattr(record, "body", None) or getattr(record.function, "__wrapped__", record.function)
        module = getattr(body, "__module__", "")
        composed = "elementwise" in module or module.endswith("activations")
        if record.samples is not None and (record.kind == "pointwise" or composed):
            yield record


def homes(name: str) -> tuple[Any, Any] | None:
    """The two frameworks' functions of a name."""
    for ours, theirs in ((kiln, torch), (kiln.nn.functional, torch.nn.functional)):
        if hasattr(theirs, name) and hasattr(ours, name):
            return getattr(ours, name), getattr(theirs, name)
    return None


def pairs() -> Iterator[tuple[str, Work, Work]]:
    """(what, kiln's work, PyTorch's) of every form of every function."""
    for record in pointwise_records():
        both = homes(record.name)
        if both is None:
            continue
        dtype = "int64" if record.dtypes in ("whole", "integral") else "float32"
        sample = record.samples(np.random.default_rng(0), dtype)[0]
        for form, args in forms(record.name, sample):
            works = []
            for framework, function in zip((kiln, torch), both):
                given = [tensor_of(framework, a) for a in args]
                names = {f"a{k}": a for k, a in enumerate(given)} | {"f": function}
                called = [f"a{k}" for k in range(len(args))] + [
                    f"{k}={v!r}" for k, v in sample.kwargs.items()
                ]
                call = f"f({', '.join(called)})"
                if form.endswith("_"):
                    call = f"a0.{form}({', '.join(called[1:])})"
                works.append(Work(call, names))
            yield form, works[0], works[1]
    for text in (*OPERATORS, *AUGMENTED, *VIEWS):
        yield text, *(Work(text, operands(framework)) for framework in (kiln, torch))


def operands(framework: Any) -> dict[str, Any]:
    """What the operators' lines call by name."""
    x, y = (framework.from_numpy(np.linspace(low, 1, ELEMENTS, dtype=np.float32)) for low in (0.2, 0.5))
    names = {"x": x, "y": y, "i": framework.arange(ELEMENTS), "b": x > 0.5, "m": framework}
    shapes = {"p": (1, 20), "r": (4, 3, 5), "a": (1, 4), "c": (1, 4)}
    leaves = {name: framework.ones(*shape, requires_grad=True) for name, shape in shapes.items()}
    many = [framework.ones(1, 4, requires_grad=True) for _ in range(100)]
    return {**names, **leaves, "many": many}


def forms(name: str, sample: Any) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The calls of one function: (what, arguments)."""
    yield name, sample.args
    arrays = [isinstance(a, np.ndarray) for a in sample.args]
    if arrays == [True, True]:
        yield f"{name} with a number", (sample.args[0], 2.0 if sample.args[0].dtype.kind == "f" else 2)
    if arrays[:1] == [True] and all(hasattr(f.Tensor, f"{name}_") for f in (kiln, torch)):
        yield f"{name}_", sample.args


def runs(work: Work) -> bool:
    """Whether a statement works at all: not every form exists in both."""
    try:
        exec(work.statement, dict(work.names))
    except (RuntimeError, TypeError, ValueError, NotImplementedError, IndexError):
        return False
    return True


def local(work: Work) -> Work:
    """Names that a statement writes belong to it."""
    if "=" not in work.statement.partition("(")[0].replace("==", ""):
        return work
    target = work.statement.split()[0]
    return Work(f"{target}_ = {target}; {work.statement.replace(target, target + '_', 1)}", work.names)


def line(what: str, ours: Times, theirs: Times) -> str:
    """One line of the table."""
    return (
        f"{what:32s} {ours.median * 1e9:8.0f} {theirs.median * 1e9:8.0f} {theirs.median / ours.median:7.2f} "
        f"{theirs.minimum / ours.minimum:7.2f}"
    )


def main() -> None:
    words = sys.argv[1:]
    torch.set_num_threads(1)
    kiln.set_num_threads(1)
    medians, minima = [], []
    print(f"{'on 16 elements':32s} {'kiln ns':>8s} {'torch ns':>8s} {'medians':>7s} {'minima':>7s}")
    for what, ours, theirs in pairs():
        if (words and not any(w in what for w in words)) or not (runs(ours) and runs(theirs)):
            continue
        a, b = interleaved([local(ours), local(theirs)], SECONDS)
        medians.append(math.log(b.median / a.median))
        minima.append(math.log(b.minimum / a.minimum))
        print(line(what, a, b), flush=True)
    if medians:
        shown = [math.exp(sum(r) / len(r)) for r in (medians, minima)]
        print(f"{len(medians)} forms, geometric mean {shown[0]:.2f} (medians) {shown[1]:.2f} (minima)")


if __name__ == "__main__":
    main()
