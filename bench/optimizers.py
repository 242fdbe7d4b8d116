"""The lines of optimizers: a step over 10M parameters in 200 tensors, beside PyTorch's quickest form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bench.measure import Work
from bench.workloads import Make

TENSORS, SHAPE = 200, (200, 250)
ARRAY = 4 * TENSORS * SHAPE[0] * SHAPE[1]  # bytes of one array of all parameters' size


class Line(NamedTuple):
    """A step: name, program, PyTorch's other forms, the bytes that must be read and written, arithmetic."""

    name: str
    make: Make
    others: tuple[Make, ...]
    nbytes: int
    flops: float = 0.0


def tensors(name: str) -> int:
    """How many tensors a line has: of Muon few, as 200 take PyTorch half a minute per step."""
    return 10 if name == "Muon" else TENSORS


def step(name: str, form: str = "", **options: Any) -> Make:
    """A step of one optimizer; `form`: PyTorch's way of running it, "foreach" or "fused"."""

    def make(framework: Any) -> Work:
        rng = np.random.default_rng(0)
        params = []
        for _ in range(tensors(name)):
            p, g = (framework.from_numpy(rng.normal(size=SHAPE).astype(np.float32)).clone() for _ in "pg")
            p.requires_grad_().grad = g * 1e-2
            params.append(p)
        given = {form: True} if form and not framework.is_kiln else {}
        optimizer = getattr(framework.optim, name)(params, **options, **given)
        if name != "LBFGS":
            return Work("step()", {"step": optimizer.step, "params": params}, "(step(), params[0])[1]")
        held = [p.detach() for p in params]

        def closure() -> float:  # half of the squares' sum, whose gradients are the parameters
            for p, value in zip(params, held):
                p.grad.copy_(value)
            return 1.0

        names = {"step": optimizer.step, "closure": closure, "params": params}
        return Work("step(closure)", names, "(step(closure), params[0])[1]")

    return make


# the arrays of the parameters' size that a step reads and writes at least
ARRAYS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("SGD", {"lr": 1e-3}, 3),
    ("SGD", {"lr": 1e-3, "momentum": 0.9}, 5),
    ("Adam", {}, 7),
    ("Adam", {"amsgrad": True}, 9),
    ("AdamW", {}, 7),
    ("RMSprop", {}, 5),
    ("RMSprop", {"momentum": 0.9, "centered": True}, 9),
    ("Adagrad", {}, 5),
    ("Adadelta", {}, 7),
    ("Adamax", {}, 7),
    ("NAdam", {}, 7),
    ("RAdam", {}, 7),
    ("Rprop", {}, 7),
    ("ASGD", {}, 5),
    ("Adafactor", {}, 3),
    ("Muon", {}, 5),
    # gradient and its copy 4, the change 3 and the step 2; per pair kept two dot products and two additions;
    # the direction 4, the parameters 3
    ("LBFGS", {"lr": 1e-3, "max_iter": 1, "history_size": 5, "tolerance_grad": 0, "tolerance_change": 0}, 66),
)
FUSED = ("SGD", "Adam", "AdamW", "Adagrad")
UNGROUPED = ("Muon", "LBFGS")


def lines() -> Iterator[Line]:
    """Every optimizer, with its options where they change what is read."""
    rows, columns = SHAPE
    for name, options, arrays in ARRAYS:
        shown = [
            key if value is True else f"{key} {value:g}" for key, value in options.items() if key != "lr"
        ]
        title = {"LBFGS": "LBFGS history 5", "Muon": "Muon, 10 tensors"}.get(name, " ".join([name, *shown]))
        forms = () if name in UNGROUPED else ("foreach",) + ("fused",) * (name in FUSED)
        others = tuple(step(name, form, **options) for form in forms)
        # Muon's five iterations on matrices of `rows` rows: two products with the matrix, one of squares
        flops = tensors(name) * 5 * 2.0 * (2 * rows * rows * columns + rows**3) if name == "Muon" else 0.0
        nbytes = arrays * ARRAY * tensors(name) // TENSORS
        yield Line(f"step of {title}", step(name, **options), others, nbytes, flops)
