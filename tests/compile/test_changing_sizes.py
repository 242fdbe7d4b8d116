"""One compiled function, sizes and strides that change between its calls: in every bit what the ops give."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kiln
from kiln.testing.compare import first_difference, freeze

pytestmark = pytest.mark.usefixtures("programs_alone")
SIZES = [0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 130, 4096, 4099, 17000]
LARGEST = 80_000  # elements

# of x, y (n, m), v (m,), i (n, m): positions below m
CALLS = """
x + y
x * v
(x - y).abs()
x / (y.abs() + 1)
x.tanh()
x.exp().clamp(max=3)
x.sum(0)
x.sum(1, keepdim=True)
x.sum()
x.mean(1)
x.var(1)
x.std(0, keepdim=True)
x.amax(1) if x.shape[1] else x.sum(1)
x.argmax(1) if x.shape[1] else x.sum(1)
x.amin(0) if x.shape[0] else x.sum(0)
x.prod(1)
x.cumsum(0)
x.cumsum(1)
x.cumprod(1)
x.logcumsumexp(1)
x.cummax(1)[0]
x.sort(1)[0]
x.sort(0, descending=True)[1]
x.argsort(1)
x.topk(min(2, x.shape[1]), 1)[0]
x.median(1)[0] if x.shape[1] else x
x.gather(1, i)
x.scatter_add(1, i, y)
x.scatter(1, i, y)
x.index_select(0, i[:, 0] * 0) if x.shape[0] and x.shape[1] else x
x[i[:, 0] % x.shape[0]] if x.shape[0] and x.shape[1] else x
x[:, 1:]
x[1:, ::2]
x[-1:]
x.t()
x.t().contiguous()
x.flip(0)
x.roll(1, 1)
x.unsqueeze(1).expand(-1, 3, -1)
x.repeat(2, 1)
x.reshape(-1)
x.reshape(-1, 1)
kiln.cat([x, y], 0)
kiln.cat([x, y, x], 1)
kiln.stack([x, y], 1)
F.pad(x, (1, 2))
F.pad(x, (0, 0, 1, 1), value=2.0)
F.softmax(x, 1)
F.log_softmax(x, 0)
x.logsumexp(1)
F.layer_norm(x, x.shape[1:], v, v)
F.rms_norm(x, x.shape[1:])
F.gelu(x)
F.silu(x) * y
kiln.where(x > y, x, v)
kiln.where(x > 0, x, y).sum(0)
x.masked_fill(x > 0.5, 0.0)
x.tril()
x.triu(1)
x.diagonal()
kiln.maximum(x, y)
x @ y.t()
x.t() @ y
x @ v
kiln.outer(v, v)[:3]
kiln.einsum("ij,ij->i", x, y)
kiln.einsum("ij,kj->ik", x, y)
F.mse_loss(x, y)
F.l1_loss(x, y)
F.smooth_l1_loss(x, y, reduction="sum")
F.binary_cross_entropy_with_logits(x, kiln.sigmoid(y))
F.cross_entropy(x, i[:, 0]) if x.shape[1] and x.shape[0] else x
F.kl_div(F.log_softmax(x, 1), F.softmax(y, 1), reduction="batchmean")
F.cosine_similarity(x, y, 1)
F.normalize(x, dim=1)
F.one_hot(i[:, 0], 20000).sum(0)[:5] if x.shape[1] and x.shape[0] else x
x.norm(dim=1)
kiln.linalg.vector_norm(x, 1, 0)
x.bfloat16() * 2
x.bfloat16().sum(1)
(x.half() + y.half()).float()
F.softmax(x.bfloat16(), 1)
x.double().sum(0)
(x > 0).sum(1)
(x > 0).any(1)
(x > 0).all(0)
x.long() % 3
x.cumsum(0).flip(0)
x.diff(dim=1)
x.aminmax(dim=0)[0] if x.shape[0] else x
x.unfold(1, 2, 1) if x.shape[1] > 1 else x
x.clone().add_(y)
x.clone().mul_(v)
x.unbind(0)[0] if x.shape[0] else x
x.chunk(2, 1)[0]
x.split(5, 0)[0]
x.nan_to_num()
x.lerp(y, 0.3)
kiln.addmm(x, x, y.t() @ y) if x.shape[1] < 200 else x
x.square().mean().sqrt()
F.dropout(x, 0.0)
x.new_zeros(x.shape) + x
kiln.arange(x.shape[1]) + x
x * x.shape[0]
x.renorm(2, 0, 1.0)
kiln.cdist(x[:40], y[:40])
kiln.trapezoid(x, y, dim=1) if x.shape[1] else x
x.movedim(0, 1)
kiln.meshgrid(v, v[:3], indexing="ij")[0]
F.glu(x, 1) if x.shape[1] % 2 == 0 else x
x.count_nonzero(1)
kiln.bucketize(x, kiln.tensor([-1.0, 0.0, 1.0]))
x.fmod(1.5)
kiln.atan2(x, y)
x.floor_divide(0.7)
x.take_along_dim(i, 1)
x.index_add(0, i[:, 0] * 0, y) if x.shape[0] and x.shape[1] else x
""".strip().split("\n")


@pytest.fixture
def programs_alone() -> Any:
    """No check mode: what is compared here is what it would compare, and more."""
    before = kiln._core.set_check(False)
    yield
    kiln._core.set_check(before)


def laid_out(a: Any, kind: str) -> Any:
    """The array as a tensor of other strides."""
    n, m = a.shape
    if kind == "turned":
        return kiln.tensor(np.ascontiguousarray(a.T)).t()
    if kind == "sparse":
        wide = np.zeros((n + 1, 2 * m + 1), a.dtype)
        wide[1:, 1::2] = a
        return kiln.tensor(wide)[1:, 1::2]
    if kind == "padded":
        return kiln.tensor(np.pad(a, ((0, 0), (0, 3))))[:, :m]
    if kind == "expanded" and n:
        return kiln.tensor(a[:1].copy()).expand(n, m)
    return kiln.tensor(a)


def drawn(rng: random.Random) -> Callable[[], list[Any]]:
    """What makes the same arguments again and again."""
    while True:
        n, m = rng.choice(SIZES), rng.choice(SIZES)
        if n * m <= LARGEST:
            break
    g = np.random.default_rng(rng.randrange(2**31))
    x, y, v = (g.normal(size=size).astype(np.float32) for size in ((n, m), (n, m), (m,)))
    i = g.integers(0, max(m, 1), (n, m))
    if x.size and rng.random() < 0.2:
        x.reshape(-1)[g.integers(0, x.size, 3)] = [np.nan, np.inf, -0.0]
    kinds = rng.choices(["plain", "plain", "plain", "turned", "sparse", "padded", "expanded"], k=3)
    return lambda: [
        laid_out(x, kinds[0]), laid_out(y, kinds[1]), kiln.tensor(v), laid_out(i, kinds[2])
    ]  # fmt: skip


def written(rng: random.Random) -> tuple[Callable[..., Any], str]:
    """A function of one to three calls, and its text."""
    lines = [f"r{k} = {call}" for k, call in enumerate(rng.choices(CALLS, k=rng.choice([1, 1, 2, 3])))]
    results = ", ".join(f"r{k}" for k in range(len(lines)))
    if rng.random() < 0.5:
        lines.insert(1, "x = r0 if r0.shape == x.shape and r0.dtype == x.dtype else x")
    text = "\n    ".join(["def f(x, y, v, i):", *lines, f"return [{results}]"])
    space: dict[str, Any] = {"kiln": kiln, "F": kiln.nn.functional}
    exec(text, space)
    return space["f"], text


def step_of(f: Callable[..., Any], grad: bool) -> Callable[..., Any]:
    """The function's results, and backward from all of them."""

    def step(*arguments: Any) -> Any:
        results = f(*arguments)
        sums = [y.float().sum() for y in results if grad and y.requires_grad]
        if sums:
            sum(sums[1:], sums[0]).backward()
        return [y.detach() for y in results]

    return step


def outcome(step: Callable[..., Any], arguments: list[Any], grad: bool) -> Any:
    """Results and gradients, or the exception's name."""
    leaves = [a.detach().requires_grad_() if grad and a.dtype.is_floating_point else a for a in arguments]
    try:
        return freeze([step(*leaves), [a.grad for a in leaves]])
    except (RuntimeError, IndexError, ValueError) as error:
        return {"raised": type(error).__name__}


def check(seed: int, calls: int = 7) -> None:
    """One function, called with several sizes."""
    rng = random.Random(seed)
    f, text = written(rng)
    grad, whole = rng.random() < 0.6, rng.random() < 0.6
    plain = step_of(f, grad)
    fast = kiln.compile(plain, wait=True) if whole else step_of(kiln.compile(f, wait=True), grad)
    for call in range(calls):
        make = drawn(rng)
        shape = tuple(make()[0].shape)
        found = first_difference(outcome(plain, make(), grad), outcome(fast, make(), grad), exact=True)
        assert found is None, f"seed {seed}, call {call}, shape {shape}, backward {grad}: {found}\n{text}"


@pytest.mark.parametrize("seed", range(14))
def test_changing_sizes(seed: int) -> None:
    """A program for all sizes, 0 and 1 included, for strides of any kind, backward inside and outside."""
    check(seed)


def test_it_can_fail() -> None:
    """What is one bit off is seen."""
    x = [kiln.tensor([1.0])]
    one, other = (
        outcome(step_of(f, False), x, False) for f in (lambda x: [x / 3], lambda x: [x * (1 / 3 + 1e-7)])
    )
    assert first_difference(one, other, exact=True) is not None
