"""Functions for traces that meet state: Python's, a module's, NumPy's memory, their own derivative. Traps,
which no trace may get silently wrong, and clean ones, which it must get right.

Each is the body of `f(x, y, i)` for float32 arrays of shape [3, 4] and an int64 vector of 3 indices below 3,
with a fresh `scope()` of names. A line is a program; `|` parts its lines.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import kiln
import kiln.nn.functional as F
from kiln import nn
from kiln.utils.checkpoint import checkpoint

Point = namedtuple("Point", "x y")


@dataclass
class Pair:
    """A tensor and a number."""

    tensor: Any
    number: int


class Times(kiln.autograd.Function):
    """exp(x) * y, with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return x.exp() * y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * x.exp() * y * 2, g * x.exp() * 3


class Straight(kiln.autograd.Function):
    """The sign, with the gradient of a clipped identity."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.sign()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.clamp(-1, 1)


class Reversal(kiln.autograd.Function):
    """The identity, with a gradient that goes the other way."""

    @staticmethod
    def forward(ctx: Any, x: Any, scale: float) -> Any:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -ctx.scale * g, None


class Reads(kiln.autograd.Function):
    """A derivative that reads a value."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * g.sum().item()


class Module(nn.Module):
    """What is counted and kept in attributes and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last, self.total = 0, None, 1.0
        self.register_buffer("held", kiln.zeros(3, 4))
        self.register_buffer("steps", kiln.zeros(()))
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * self.calls

    def counted(self, x: Any) -> Any:
        """Counts in a buffer."""
        self.steps += 1
        return self.lin(x) * self.steps


class State:
    """An object that changes."""

    def __init__(self) -> None:
        self.count, self.first, self.held = 0, True, kiln.zeros(3, 4)
        self.memo: float | None = None

    def bump(self) -> int:
        """Counts."""
        self.count += 1
        return self.count

    def swap(self, x: Any) -> Any:
        """The tensor before."""
        before, self.held = self.held, x
        return before

    def mean(self, x: Any) -> Any:
        """A running mean."""
        self.held = self.held * 0.9 + x * 0.1
        return self.held

    def once(self) -> bool:
        """Whether it is the first time."""
        first, self.first = self.first, False
        return first

    @property
    def lazy(self) -> float:
        """Drawn at first."""
        if self.memo is None:
            self.memo = random.random()
        return self.memo


def _default(x: Any, held: list[float] = [1.0]) -> Any:  # noqa: B006
    held[0] *= 2
    return x * held[0]


def _counting(x: Any) -> Any:
    vars(_counting)["n"] = vars(_counting).get("n", 0) + 1
    return x * vars(_counting)["n"]


def _generator() -> Iterator[int]:
    yield from itertools.count(1)


def scope() -> dict[str, Any]:
    """The names that programs find, all new."""
    kiln.manual_seed(123)
    random.seed(5)
    vars(_counting).clear()
    _default.__defaults__ = ([1.0],)
    array = np.ones(4, dtype=np.float32)
    hooked, calls = nn.Linear(4, 4), [0]

    def hook(module: Any, args: Any, output: Any) -> Any:
        calls[0] += 1
        return output * calls[0]

    def grow() -> float:
        array[1] += 1
        return 0.0

    hooked.register_forward_hook(hook)
    generator = kiln.Generator()
    generator.manual_seed(3)
    return {
        "kiln": kiln, "F": F, "nn": nn, "np": np, "math": math, "random": random, "functools": functools,
        "OrderedDict": OrderedDict, "checkpoint": checkpoint, "Point": Point, "Pair": Pair, "Times": Times,
        "Straight": Straight, "Reversal": Reversal, "Reads": Reads, "M": Module(), "STATE": State(),
        "CACHE": {}, "LAST": [], "ACC": kiln.ones(4), "ARRAY": array, "GROW": grow, "GENERATOR": generator,
        "COUNTING": _counting, "DEFAULT": _default, "NEXT": _generator(), "HOOKED": hooked,
        "LRU": functools.lru_cache(lambda k: random.random()), "WEAK": lambda v: len(str(weakref.ref(v))),
        "CONSTANT": kiln.ones(4) * 1.5, "PARAMETER": nn.Parameter(kiln.ones(4)), "BN": nn.BatchNorm1d(4),
        "LSTM": nn.LSTM(4, 3), "GRU": nn.GRU(4, 3, bidirectional=True), "RNN": nn.RNN(4, 3),
    }  # fmt: skip


TRAPS = r"""
CACHE.setdefault("k", x.sum())|return x * CACHE["k"]
CACHE[len(CACHE)] = 1|return x * len(CACHE)
LAST.append(x)|return LAST[0] + x
LAST[:] = [*LAST, 1]|return x * len(LAST)
M.calls += 1|return x * M.calls
M.last = x if M.last is None else M.last + x|return M.last * 2
M.held = M.held + x|return M.held * 1
M.held.add_(x)|return M.held * 1
M.total += 1.0|return x * M.total
return M(x) * M.calls
return DEFAULT(x)
return COUNTING(x)
return NEXT.send(None) * x
return x * LRU(1)
return x * WEAK(x)
return HOOKED(x) * 1
return x * STATE.bump()
return STATE.swap(x) * 1
return STATE.mean(x) * 1
return x if STATE.once() else y
return x * STATE.lazy
return x + ACC.add_(1)
ACC.copy_(x[0])|return x + ACC
ACC[0] = 5.0|return x + ACC
ACC.data.add_(1)|return x * ACC
return x.mul(kiln.from_numpy(ARRAY)).add(GROW())
ARRAY[0] += 1|return x * kiln.from_numpy(ARRAY)
return x * kiln.tensor(ARRAY) + GROW()
return x * float(ARRAY.sum()) + GROW()
return x * kiln.initial_seed()
return x * kiln.get_rng_state().sum()
kiln.manual_seed(0)|return x * kiln.rand(3, 4)
return x * float(kiln.rand(1))
return x if kiln.rand(1) > 0.5 else -x
return x[kiln.randint(0, 3, (1,)).item()]
return kiln.rand(3, 4, generator=GENERATOR) * x
return F.dropout(x, float(kiln.rand(1)))
return x * (x is y)
return x.add_(y) * (2 if x.sum() > 0 else 3)
return x * [1, 2][x.sum() > 0]
return kiln.stack([v for v in x if v.sum() > 0] or [x[0]])
return kiln.stack(sorted(x, key=lambda v: v.sum()))
return max(x, key=lambda v: v.sum())
return dict(zip(i.tolist(), x))[1] * 1
return functools.reduce(lambda a, b: a if a.sum() > b.sum() else b, x)
return x[i.argmax()] * 1 if i.argmax() > 1 else x[0] * 1
return x.index_fill(0, i[i > 1], 0.0)
return kiln.full((2,), x.sum().item())
return kiln.linspace(0, x.sum(), 4)
return kiln.tensor([x.sum(), y.sum()]) * 2
return x.clamp(min=x.mean().item())
return F.pad(x, (int(i[0]), 1))
return x.roll(int(i[1]), 1)
return x.topk(int(i[1]) + 1).values
return x.repeat_interleave(i + 1, 0)
return x.masked_scatter(x > 0, y[x > 0])
z = x.clone()|z[: int(i[0])] = 0|return z
a = x.numpy()|return kiln.from_numpy(a) * 2
a = x.numpy()|a[0] = 7|return x * 2
z = x * 1|a = z.numpy()|z.add_(1)|return x * float(a.sum())
return x / (x.norm().item() + 1)
return {k: v for k, v in zip(("a", "b"), x) if v.sum() > 0}
z = Reads.apply(x)|return z
""".strip().split("\n")

CLEAN = r"""
return Times.apply(x, y) + x
return Straight.apply(x) * y
return Reversal.apply(x, 2.0) * y
return Times.apply(x * 2, Reversal.apply(y, 1.0)).sum(0)
return LSTM(x[:, None])[0]
return BN(x)
return M.counted(x), M.held * x
return checkpoint(lambda v: v.sin().exp(), x, use_reentrant=False) * y
return x.sigmoid().bernoulli(), kiln.rand_like(x)
return F.dropout(x, 0.3, training=True) * kiln.randn(4)
return kiln.multinomial(x.softmax(1), 2, replacement=True), kiln.normal(x, 1.0)
return F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), F.one_hot(i, 5)
return kiln.distributions.Normal(x, 1.0).log_prob(y)
z = x.clone()|z.relu_()|return z
z = x.clone()|z[0], z[1] = y[1], y[0]|return z
z = x.clone()|a = z[0]|a += 1|b = z.view(-1)|b[5] = 2|return z, a, b
z = kiln.zeros(4, 4)|z[i, i] = 1.0|return z + x.sum()
d = {}|d["a"] = x|d["b"] = y|return d["a"] * d["b"]
def g(v, n): return v if n == 0 else g(v * 2, n - 1)|return g(x, 3)
return functools.reduce(kiln.add, [x, y, x]), sum([x, y])
with kiln.no_grad(): z = x * 2|return z + x
try: z = x.reshape(7, 7)|except RuntimeError: z = x|return z * 1
assert x.ndim == 2, "rank"|return x
return Point(x, y), Point(y, x).x
return Pair(x, 3)
return OrderedDict(a=x, b=y)
return x.shape, x.dtype, x.device, x.ndim, len(x), x.numel()
return math.sqrt(x.shape[1]) * x, x / math.sqrt(x.size(-1)), x * x.size(0) ** -0.5
return CONSTANT * x, PARAMETER * x, PARAMETER.detach() + y
return kiln.vmap(lambda v: v.sin().sum())(x)
""".strip().split("\n")


def function(body: str) -> Any:
    """The function of a body, with names of its own."""
    held = scope()
    exec("def f(x, y, i):\n" + "\n".join(f"  {line}" for line in body.split("|")), held)  # of this module
    return held["f"]
