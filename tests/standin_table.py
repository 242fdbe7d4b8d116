"""A few op records over PyTorch, in the table's form: they prove that the op harness itself works."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Sample(NamedTuple):
    """One call, as kiln.table.record.Sample."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = {}


class Record(NamedTuple):
    """The attributes of an op record that the harness reads."""

    name: str
    kind: str
    function: Any
    reference: Any
    samples: Any
    failures: Any = None
    dtypes: str = "float"
    differentiable: bool = True
    public: bool = True


def softmax(x: Any, dim: int) -> Any:
    """exp(x) over its sum along dim."""
    e = np.exp(x - x.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


def table(torch: Any) -> list[Record]:
    """Records of several kinds, with samples and an error each where there is one."""

    def draw(rng: Any, dtype: str, *shape: int) -> Any:
        return rng.normal(scale=3, size=shape).astype(dtype)

    def two(rng: Any, dtype: str) -> list[Sample]:
        return [Sample((draw(rng, dtype, 3, 4), draw(rng, dtype, 3, 4))), Sample((draw(rng, dtype, 2, 3), 2))]

    def one(rng: Any, dtype: str) -> list[Sample]:
        return [Sample((draw(rng, dtype, 3, 4),)), Sample((draw(rng, dtype, 2, 3, 5),))]

    def along(rng: Any, dtype: str) -> list[Sample]:
        return [Sample((draw(rng, dtype, 3, 4), 1)), Sample((draw(rng, dtype, 3, 4),), {"dim": 0})]

    def picked(rng: Any, dtype: str) -> list[Sample]:
        return [Sample((draw(rng, dtype, 3, 4), 1, rng.integers(0, 4, (3, 2))))]

    bad_shapes = [((torch.ones(3), torch.ones(4)), {}, RuntimeError, r"must match|broadcast")]
    bad_dim = [((torch.ones(3), 5), {}, IndexError, "out of range")]
    return [
        Record("add", "pointwise", torch.add, lambda x, y: x + y, two, lambda: bad_shapes, "float int"),
        Record("tanh", "pointwise", torch.tanh, np.tanh, one),
        Record("sum", "reduce", torch.sum, lambda x, dim: x.sum(dim), along, lambda: bad_dim),
        Record("softmax", "composite", torch.softmax, softmax, along),
        Record("gather", "gather", torch.gather, lambda x, d, i: np.take_along_axis(x, i, d), picked),
        Record(
            "cat",
            "concat",
            torch.cat,
            np.concatenate,
            lambda r, t: [Sample(([draw(r, t, 2, 3), draw(r, t, 1, 3)],))],
        ),
        Record("argmax", "reduce", torch.argmax, lambda x, dim: x.argmax(dim), along, None, "float", False),
    ]
