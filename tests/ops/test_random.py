"""Random numbers: what they are distributed as, what bounds them, and who decides which come next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, torch

COUNT = 20_000
FLOATS = ["float32", "float64", "float16", "bfloat16"]


def normal_cdf(x: Any) -> Any:
    return np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x])


# method, arguments, cumulative distribution
CONTINUOUS: dict[str, tuple[tuple[float, ...], Callable[[Any], Any]]] = {
    "uniform_": ((-1.0, 3.0), lambda x: (x + 1) / 4),
    "normal_": ((2.0, 0.5), lambda x: normal_cdf((x - 2) / 0.5)),
    "exponential_": ((2.0,), lambda x: 1 - np.exp(-2 * x)),
    "log_normal_": ((0.5, 0.25), lambda x: normal_cdf((np.log(x) - 0.5) / 0.25)),
    "cauchy_": ((1.0, 2.0), lambda x: 0.5 + np.arctan((x - 1) / 2) / math.pi),
}


def drawn(name: str, dtype: str, *args: Any, count: int = COUNT, **kwargs: Any) -> Any:
    x = kiln.empty(count, dtype=getattr(kiln, dtype))
    assert getattr(x, name)(*args, **kwargs) is x
    return x.double().numpy()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name: str, dtype: str) -> None:
    """The largest distance of the sample's distribution from the true one, and no order in the sample.

    sqrt(n) D above 1.95 has probability 0.001; a narrow dtype adds the width of its steps.
    """
    args, cdf = CONTINUOUS[name]
    kiln.manual_seed(7)
    x = drawn(name, dtype, *args)
    steps = {"float16": 2**-10, "bfloat16": 2**-7}.get(dtype, 0.0)
    found = np.sort(x)
    ends = np.arange(COUNT + 1) / COUNT
    p = cdf(found)
    distance = max(np.abs(p - ends[1:]).max(), np.abs(p - ends[:-1]).max())
    assert distance < 1.95 / math.sqrt(COUNT) + steps
    u = cdf(x) - 0.5
    assert abs((u[1:] * u[:-1]).mean()) * 12 < 4 / math.sqrt(COUNT)


@pytest.mark.parametrize("dtype", FLOATS)
def test_bounds(dtype: str) -> None:
    """rand and uniform_ never give their end; exponential_ is finite and not 0."""
    count = 300_000
    low, high = drawn("uniform_", dtype, count=count).min(), drawn("uniform_", dtype, count=count).max()
    assert low >= 0 and high < 1
    x = drawn("uniform_", dtype, 1.0, 1.001, count=count)
    top = kiln.tensor(1.001, dtype=getattr(kiln, dtype)).item()
    assert x.min() >= 1 and (x.max() < top or x.max() == x.min() == top == 1.0)
    x = drawn("exponential_", dtype, count=count)
    assert x.min() > 0 and np.isfinite(x).all()
    assert set(drawn("uniform_", dtype, 2.0, 2.0, count=9)) == {2.0}
    x = drawn("geometric_", dtype, 0.999, count=count)
    assert x.min() == 1


def test_discrete_distributions() -> None:
    """Counts of every value within five deviations of what is expected."""
    kiln.manual_seed(11)

    def check(x: Any, chances: dict[int, float]) -> None:
        assert set(np.unique(x)) <= set(chances) | {v for v in np.unique(x) if v > max(chances)}
        for value, p in chances.items():
            deviation = math.sqrt(COUNT * p * (1 - p)) + 1e-9
            assert abs((x == value).sum() - COUNT * p) < 5 * deviation + 1e-6, value

    check(drawn("geometric_", "int64", 0.3), {k: 0.3 * 0.7 ** (k - 1) for k in range(1, 12)})
    check(drawn("random_", "int32", -3, 4), dict.fromkeys(range(-3, 4), 1 / 7))
    check(drawn("random_", "bool"), {0: 0.5, 1: 0.5})
    check(drawn("random_", "uint8") // 32, dict.fromkeys(range(8), 1 / 8))
    check(drawn("bernoulli_", "float16", 0.2), {0: 0.8, 1: 0.2})
    check(kiln.randint(5, (COUNT,)).numpy(), dict.fromkeys(range(5), 0.2))
    check(kiln.bernoulli(kiln.full((COUNT,), 1e-3)).numpy(), {0: 0.999, 1: 1e-3})


def poisson_chance(rate: float, k: int) -> float:
    return math.exp(k * math.log(rate) - rate - math.lgamma(k + 1))


def binomial_chance(n: int, p: float, k: int) -> float:
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


@pytest.mark.parametrize("rate", [0.3, 3.0, 9.9, 10.0, 25.0, 300.0])
def test_poisson(rate: float) -> None:
    kiln.manual_seed(3)
    x = kiln.poisson(kiln.full((COUNT,), rate, dtype=kiln.float64)).numpy()
    assert chi_square_fits(x, lambda k: poisson_chance(rate, k), int(rate * 3 + 30))


@pytest.mark.parametrize("n, p", [(1, 0.5), (9, 0.3), (15, 0.95), (40, 0.5), (200, 0.1), (900, 0.4)])
def test_binomial(n: int, p: float) -> None:
    kiln.manual_seed(4)
    x = kiln.binomial(kiln.full((COUNT,), float(n)), kiln.tensor(p)).numpy()
    assert x.min() >= 0 and x.max() <= n
    assert chi_square_fits(x, lambda k: binomial_chance(n, p, k), n + 1)


def chi_square_fits(x: Any, chance: Callable[[int], float], end: int) -> bool:
    """Pearson's statistic over the values expected ten times or more, the rest as one: below its mean plus
    five deviations.
    """
    assert np.array_equal(x, np.floor(x))
    seen = np.bincount(x.astype(int), minlength=end)
    expected = [COUNT * chance(k) for k in range(end)]
    cells = [(seen[k], e) for k, e in enumerate(expected) if e >= 10]
    rest = (COUNT - sum(s for s, _ in cells), COUNT - sum(e for _, e in cells))
    cells += [rest] if rest[1] >= 1 else []
    freedom = max(len(cells) - 1, 1)
    return bool(sum((s - e) ** 2 / e for s, e in cells) < freedom + 5 * math.sqrt(2 * freedom))


def test_counts_at_the_ends() -> None:
    """No mean and no chance makes a draw endless."""
    inf, nan = math.inf, math.nan
    assert kiln.poisson(kiln.tensor([0.0, inf])).tolist() == [0.0, inf]
    large = kiln.poisson(kiln.tensor([1e10, 1e15, 1e18, 1e30, 1e300], dtype=kiln.float64))
    assert np.allclose(large.numpy()[:2], [1e10, 1e15], rtol=1e-3)
    got = kiln.binomial(
        kiln.tensor([10.0, 10.0, 10.0, -3.0, nan, 2.5, inf, 5.0]),
        kiln.tensor([0.0, 1.0, 1.5, 0.5, 0.5, 1.0, 0.5, nan]),
    )
    assert np.array_equal(got.numpy(), [0, 10, 10, 0, nan, 2, inf, nan], equal_nan=True)


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial(replacement: bool) -> None:
    """First draws by weight; a weight of 0 is never drawn, without replacement nothing twice."""
    kiln.manual_seed(5)
    weights = np.array([0.0, 1.0, 2.0, 0.0, 5.0, 0.0])
    x = kiln.multinomial(kiln.tensor(weights).expand(COUNT, 6), 3, replacement).numpy()
    assert chi_square_fits(x[:, 0], lambda k: weights[k] / 8, 6)
    assert weights[x].min() > 0
    if replacement:
        assert chi_square_fits(x[:, 2], lambda k: weights[k] / 8, 6)
    else:
        assert (np.sort(x, 1) == [1, 2, 4]).all()
        second = sum(weights[k] / 8 * 2 / (8 - weights[k]) for k in (1, 4))
        assert abs((x[:, 1] == 2).mean() - second) < 5 * math.sqrt(second * (1 - second) / COUNT)
    many = kiln.multinomial(kiln.rand(100_000), 50_000, replacement)
    assert replacement or len(set(many.tolist())) == 50_000


def test_randperm() -> None:
    kiln.manual_seed(6)
    assert kiln.randperm(50_000).sort().values.tolist() == list(range(50_000))
    firsts = np.stack([kiln.randperm(5).numpy() for _ in range(2000)])
    for place in range(5):
        counts = np.bincount(firsts[:, place], minlength=5)
        assert (abs(counts - 400) < 5 * math.sqrt(2000 * 0.16)).all()


def test_tiny_probabilities() -> None:
    """A probability below the steps of a float32 uniform number is not rounded up to one."""
    assert kiln.zeros(1_000_000).bernoulli_(1e-12).sum().item() == 0


GENERATED: dict[str, Callable[[Any], Any]] = {
    "rand": lambda g: kiln.rand(5, generator=g),
    "rand_like": lambda g: kiln.rand_like(kiln.ones(5), generator=g),
    "randn": lambda g: kiln.randn(5, generator=g),
    "randn_like": lambda g: kiln.randn_like(kiln.ones(5), generator=g),
    "randint": lambda g: kiln.randint(1000, (5,), generator=g),
    "randint_like": lambda g: kiln.randint_like(kiln.ones(5), 1000, generator=g),
    "normal": lambda g: kiln.normal(0.0, 1.0, (5,), generator=g),
    "normal of means": lambda g: kiln.normal(kiln.zeros(5), 1.0, generator=g),
    "normal of deviations": lambda g: kiln.normal(0.0, kiln.ones(5), generator=g),
    "bernoulli": lambda g: kiln.bernoulli(kiln.full((40,), 0.5), generator=g),
    "bernoulli of p": lambda g: kiln.bernoulli(kiln.ones(40), 0.5, generator=g),
    **{name: lambda g, n=name: getattr(kiln.zeros(5), n)(generator=g) for name in CONTINUOUS},
    "poisson": lambda g: kiln.poisson(kiln.tensor([2.0, 5.0, 30.0, 1e4, 1e9]), g),
    "binomial": lambda g: kiln.binomial(kiln.tensor([20.0, 1e3, 1e6]), kiln.tensor(0.7), generator=g),
    "multinomial": lambda g: kiln.multinomial(kiln.ones(40), 7, generator=g),
    "multinomial with replacement": lambda g: kiln.multinomial(kiln.ones(40), 7, True, generator=g),
    "randperm": lambda g: kiln.randperm(20, generator=g),
    "geometric_": lambda g: kiln.zeros(40).geometric_(0.1, generator=g),
    "random_": lambda g: kiln.zeros(5).random_(generator=g),
    "bernoulli_": lambda g: kiln.zeros(40).bernoulli_(generator=g),
}


@pytest.mark.parametrize("name", GENERATED)
def test_a_generator_decides(name: str) -> None:
    """The same numbers from the same state, others from the next; the default generator stays where it is."""
    draw = GENERATED[name]
    before = kiln.get_rng_state()
    g = kiln.Generator().manual_seed(3)
    first, second = draw(g), draw(g)
    assert not kiln.equal(first, second)
    assert kiln.equal(draw(g.manual_seed(3)), first)
    state = g.get_state()
    third, again = draw(g), g.clone_state()
    assert kiln.equal(draw(g.set_state(state)), third) and kiln.equal(draw(again), draw(g))
    assert kiln.equal(kiln.get_rng_state(), before)
    with pytest.raises(TypeError, match="generator"):
        draw(3)
    # as eager, recorded; the default generator gives what one of its seed gives
    for _ in range(3):
        assert kiln.equal(kiln.compile(draw)(g.manual_seed(3)), first)
    kiln.manual_seed(3)
    assert kiln.equal(draw(None), first)


APART: dict[str, Callable[[Any], Any]] = {
    "rand": lambda g: kiln.rand(40, generator=g),
    "randn": lambda g: kiln.randn(40, generator=g),
    "exponential_": lambda g: kiln.zeros(40).exponential_(generator=g),
    "random_": lambda g: kiln.zeros(40).random_(generator=g),
    "poisson": lambda g: kiln.poisson(kiln.full((40,), 1e9, dtype=kiln.float64), g),
    "poisson of small rates": lambda g: kiln.poisson(kiln.full((40,), 9.0), g),
    "binomial": lambda g: kiln.binomial(kiln.full((40,), 1e6), kiln.tensor(0.5), g),
    "multinomial": lambda g: kiln.multinomial(kiln.ones(10000), 40, True, generator=g),
    "multinomial without replacement": lambda g: kiln.multinomial(kiln.ones(10000), 40, generator=g),
}


@pytest.mark.parametrize("name", APART)
def test_what_is_drawn_is_not_drawn_again(name: str) -> None:
    """The numbers of a seed, of its next draw, and of the next seed: none are the others, moved."""
    draw, g = APART[name], kiln.Generator().manual_seed(3)
    first, second, other = draw(g), draw(g), draw(g.manual_seed(4))
    for a, b in itertools.permutations((first, second, other), 2):
        for moved in range(1, 5):
            assert float((a[moved:] == b[:-moved]).float().mean()) < 0.5


def test_seeds(answers: Any) -> None:
    assert kiln.manual_seed(5) is kiln.default_generator and kiln.initial_seed() == 5
    kiln.rand(3)
    assert kiln.initial_seed() == 5

    def first_seeds(lib: Any, right: Any, wrong: Any) -> list[str]:
        for seed in wrong:
            with pytest.raises(ValueError):
                lib.manual_seed(seed)
        return [str(lib.manual_seed(seed).initial_seed()) for seed in right]

    seeds = (-1, 2**64 - 1, -(2**63), 0, 2**63)
    ours, theirs = answers.both(first_seeds, seeds, (2**64, -(2**63) - 1))
    assert ours == theirs
    for seed, expected in zip(seeds, theirs, strict=True):
        assert str(kiln.Generator().manual_seed(seed).initial_seed()) == expected
        kiln.manual_seed(seed)
        assert kiln.equal(
            kiln.set_rng_state(kiln.get_rng_state()) or kiln.rand(1), kiln.manual_seed(seed) and kiln.rand(1)
        )
    assert kiln.seed() == kiln.initial_seed() != kiln.seed()
    g = kiln.Generator(device="cpu")
    assert g.device == kiln.device("cpu") and g.seed() == g.initial_seed()
    with pytest.raises(RuntimeError, match="cpu"):
        kiln.Generator("cuda")
    for wrong, error in (
        (kiln.zeros(3), TypeError),
        (kiln.zeros(3, dtype=kiln.uint8), RuntimeError),
        ([1], TypeError),
    ):
        with pytest.raises(error, match="RNG state"):
            kiln.set_rng_state(wrong)


def test_forking_the_state() -> None:
    kiln.manual_seed(1)
    with kiln.random.fork_rng():
        inside = kiln.rand(4)
        kiln.manual_seed(9)
    assert kiln.equal(kiln.rand(4), inside)
    with pytest.raises(KeyError), kiln.random.fork_rng():
        kiln.rand(4)
        raise KeyError
    with kiln.random.fork_rng(enabled=False):
        more = kiln.rand(4)
    assert not kiln.equal(kiln.rand(4), more)


def test_threads_give_the_same_numbers() -> None:
    before = kiln.get_num_threads()
    try:
        seen = []
        for count in (1, 2, 4):
            kiln.set_num_threads(count)
            g = kiln.Generator().manual_seed(2)
            seen.append([kiln.empty(200_003).normal_(generator=g), kiln.randint(10, (200_003,), generator=g)])
        for others in seen[1:]:
            assert all(kiln.equal(a, b) for a, b in zip(seen[0], others))
    finally:
        kiln.set_num_threads(before)


WRONG = """
poisson(L.tensor([-1.0]))
poisson(L.tensor([float("nan")]))
poisson(L.ones(2, dtype=L.int64))
binomial(L.tensor([10]), L.tensor([0.5]))
binomial(L.tensor([10.0], dtype=L.float64), L.tensor([0.5]))
multinomial(L.tensor([1.0, 0.0]), 3)
multinomial(L.tensor([0.0, 0.0]), 1, True)
multinomial(L.tensor([float("inf"), 0.0]), 1)
multinomial(L.tensor([1, 0]), 1)
multinomial(L.tensor(1.0), 1)
multinomial(L.ones(2, 0), 1)
multinomial(L.ones(2), 0)
randperm(-1)
randperm(3.5)
randperm(300, dtype=L.uint8)
randperm(3, dtype=L.bool)
randperm(3000, dtype=L.float16)
rand(2, dtype=L.int64)
rand_like(L.ones(2, dtype=L.int64))
randn(2, dtype=L.bool)
rand(-1)
rand(2.5)
rand(2, out=L.zeros(2, dtype=L.int64))
rand(2, out=L.zeros(2, dtype=L.float64), dtype=L.float32)
rand(2, generator=3)
rand(2, size=3)
randint(3, 3, (2,))
randint(0, 300, (2,), dtype=L.uint8)
randint(-3, 3, (2,), dtype=L.uint8)
randint(3, (2,), dtype=L.bool)
randint(0, 3)
randint(2.5, (2,))
randint(3, 2)
normal(0.0, 1.0)
normal(0.0, -1.0, (2,))
normal(0.0, 1.0, (2,), dtype=L.int64)
normal(L.ones(2), L.ones(3))
normal(L.ones(2), -1.0)
normal(L.ones(2), L.tensor([1.0, -1.0]))
normal(L.ones(2), L.tensor([1.0, float("nan")]))
normal(L.ones(2, dtype=L.int64), L.ones(2))
bernoulli(L.tensor([1.5]))
bernoulli(L.tensor([float("nan")]))
bernoulli(L.ones(2), 1.5)
bernoulli(L.ones(2, dtype=L.int64))
ones(2).bernoulli_(1.5)
ones(2).bernoulli_(L.tensor([0.0, 2.0]))
ones(2).bernoulli_(L.tensor([0, 1]))
ones(2).bernoulli_(L.tensor([0.0, 1.0, 1.0]))
ones(2).exponential_(0.0)
ones(2, dtype=L.int64).exponential_()
ones(2).cauchy_(0.0, 0.0)
ones(2, dtype=L.int64).cauchy_()
ones(2).log_normal_(0.0, 0.0)
ones(2, dtype=L.int64).log_normal_()
ones(2).geometric_(0.0)
ones(2).geometric_(1.0)
ones(2).geometric_()
ones(2, dtype=L.bool).geometric_(0.5)
ones(2, dtype=L.uint8).random_(300)
ones(2, dtype=L.uint8).random_(-1, 3)
ones(2).random_(3, 3)
ones(2).random_(2.5)
ones(2, dtype=L.float16).random_(70000)
ones(2).uniform_(2, 1)
ones(2).uniform_(-3e38, 3e38)
ones(2).uniform_(1, 2, 3)
ones(2).uniform_(low=1)
ones(2, dtype=L.int64).uniform_()
ones(2, dtype=L.float16).uniform_(0, 1e6)
ones(2).normal_(0, -1)
feature_dropout(L.ones(3), 0.5, True)
nn.functional.dropout1d(L.ones(4))
nn.functional.dropout(L.ones(4), 1.5)
nn.functional.feature_alpha_dropout(L.ones(4), 0.5, True)
nn.AlphaDropout(1.5)
""".strip().split("\n")


def raised(call: str) -> type:
    """The type of what PyTorch raises."""
    with pytest.raises(Exception) as theirs:
        eval(f"L.{call}", {"L": torch})
    return theirs.type


@pytest.mark.parametrize("call", WRONG)
def test_wrong_calls(call: str, answers: Any) -> None:
    """The exception PyTorch raises, and nothing is drawn."""
    error, before = answers(call, lambda: raised(call)), kiln.get_rng_state()
    with pytest.raises(error):
        eval(f"L.{call}", {"L": kiln})
    assert kiln.equal(before, kiln.get_rng_state())


RIGHT = """
poisson(L.ones(2, 3, dtype=L.float16))
binomial(L.tensor([10.0, 2.0]), L.tensor([[0.5], [1.0]]))
multinomial(L.ones(2, 3), 2, replacement=True)
multinomial(L.ones(2, 3), 2)
multinomial(L.ones(0, 2), 1)
ones(3).multinomial(1)
randperm(5)
randperm(0)
randperm(5, dtype=L.float32)
randperm(5, out=L.zeros(5, dtype=L.int32))
rand(2, 3)
rand([2, 3])
rand(size=(2,))
rand(())
rand(0, 3)
rand(2, dtype=L.float16)
rand(2, out=L.zeros(2, dtype=L.float64))
rand_like(L.ones(2, 3, dtype=L.int64), dtype=L.float64)
randn(2, requires_grad=True)
randint(3, (2,))
randint(1, 3, (2, 2))
randint(low=1, high=3, size=(2,))
randint(high=3, size=(2,))
randint(3, size=(2,), dtype=L.float32)
randint_like(L.ones(2), 3)
randint_like(L.ones(2), 1, 3)
randint_like(L.ones(2), low=1, high=3, dtype=L.uint8)
normal(L.ones(2), L.ones(3, 1))
normal(L.ones(2, dtype=L.float64), L.ones(2))
normal(L.ones(2), L.ones(2, dtype=L.float64))
normal(L.ones(2))
normal(2.0, L.ones(2))
normal(mean=L.ones(2), std=2.0)
normal(0, 1, (2,))
bernoulli(L.ones(2, dtype=L.int64), 0.5)
bernoulli(L.ones(2, dtype=L.bool), 0.5)
ones(2, 2).bernoulli_(L.tensor([0.0, 1.0]))
ones(2, dtype=L.int32).bernoulli_(L.tensor([0.0, 1.0]))
ones(2, dtype=L.int64).geometric_(0.5)
ones(2, dtype=L.float16).random_()
ones(2, dtype=L.int64).random_(0, None)
ones(2).uniform_(**{"from": 1, "to": 1})
ones(2).normal_(mean=1.0, std=0.0)
ones(2).exponential_(lambd=float("inf"))
ones(2, requires_grad=True).mul(2).uniform_()
ones(0).normal_()
nn.functional.alpha_dropout(L.ones(6), 1.0, True)
nn.functional.dropout1d(L.ones(2, 3))
nn.functional.dropout2d(L.ones(2, 3, 4))
nn.functional.dropout3d(L.ones(2, 3, 4, 1))
nn.functional.dropout2d(L.ones(2, 3, 4, 1), inplace=True)
nn.AlphaDropout(0.3)(L.ones(2))
""".strip().split("\n")


@pytest.mark.parametrize("call", RIGHT)
def test_right_calls(call: str, answers: Any) -> None:
    """Every form of a call gives a result of PyTorch's shape and dtype."""

    def form(lib: Any) -> Any:
        x = eval(f"L.{call}", {"L": lib})
        return tuple(x.shape), str(x.dtype).partition(".")[2], x.requires_grad

    assert form(kiln) == answers([call, form], lambda: form(torch))


def test_dropout_of_channels() -> None:
    """A channel is lost or kept whole, with the chance stated; gradients see the same mask."""
    functional = kiln.nn.functional
    kiln.manual_seed(0)
    for function, shape in (
        (functional.dropout1d, (50, 40, 3)),
        (functional.dropout2d, (50, 40, 2, 2)),
        (functional.dropout3d, (50, 40, 1, 2, 2)),
    ):
        x = kiln.ones(*shape, requires_grad=True)
        y = function(x, 0.25)
        y.sum().backward()
        assert kiln.equal(x.grad, y.detach())
        flat = y.detach().reshape(2000, -1).numpy()
        assert np.array_equal(flat, np.broadcast_to(flat[:, :1], flat.shape))
        assert set(np.unique(flat)) == {0, np.float32(1 / 0.75)}
        assert abs((flat[:, 0] == 0).mean() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / 2000)
    one = functional.dropout3d(kiln.ones(40, 2, 2, 2), 0.5)
    assert np.array_equal(one.numpy(), np.broadcast_to(one.numpy()[:, :1, :1, :1], one.shape))


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    kiln.manual_seed(0)
    x = kiln.randn(200_000)
    for function in (kiln.nn.functional.alpha_dropout, kiln.nn.functional.feature_alpha_dropout):
        y = function(x.reshape(-1, 1), 0.3, True)
        assert abs(y.mean().item()) < 0.02 and abs(y.var().item() - 1) < 0.03
        assert function(x.reshape(-1, 1), 0.3).data_ptr() == x.data_ptr()


RANGES = (
    ("float32", {}, (-9, 9)), ("uint8", {}, (0, 9)), ("int8", {}, (-9, 9)), ("bool", {}, (0, 1)),
    ("float16", {"low": 1, "high": 2}, (1, 2)), ("int64", {"low": 1.5, "high": 4.5}, (2, 4)),
    ("int8", {"low": -300, "high": 300}, (-128, 127)), ("float64", {"high": float("inf")}, (-9, 1.8e308)),
    ("int64", {"low": 0, "high": 2, "exclude_zero": True}, (1, 1)),
)  # fmt: skip
WRONG = (
    ("float32", {"low": 3, "high": 2}, "`low` must be less than `high`"),
    ("float32", {"low": float("nan")}, "cannot be NaN"),
    ("int8", {"low": 300, "high": 301}, "only supports"),
    ("int64", {"requires_grad": True}, "not supported for boolean and integral"),
    ("float32", {"noncontiguous": True, "memory_format": "x"}, "mutually exclusive"),
)


@pytest.mark.parametrize(("dtype", "options", "ends"), RANGES)
def test_make_tensor(dtype: str, options: dict[str, Any], ends: tuple[float, float]) -> None:
    """Values within the bounds, or within what the dtype holds of them; integers take every one."""
    kiln.manual_seed(0)
    x = kiln.testing.make_tensor(20, 30, dtype=getattr(kiln, dtype), device="cpu", **options)
    assert (tuple(x.shape), x.dtype) == ((20, 30), getattr(kiln, dtype))
    found = x.min().item(), x.max().item()
    assert ends[0] <= found[0] <= found[1] <= ends[1]
    if not x.dtype.is_floating_point and ends[1] < 100:
        assert found == ends


def test_forms_of_make_tensor() -> None:
    make, options = kiln.testing.make_tensor, {"dtype": kiln.float32, "device": "cpu"}
    assert [tuple(make(*s, **options).shape) for s in ((), ((2, 3),), ([2],), (0, 3))] == [
        (),
        (2, 3),
        (2,),
        (0, 3),
    ]
    assert make(3, 4, noncontiguous=True, **options).stride() == (8, 2)
    assert make(2, 3, 4, 5, memory_format=kiln.channels_last, **options).stride() == (60, 1, 15, 3)
    assert make(2, requires_grad=True, **options).requires_grad
    with pytest.warns(FutureWarning, match="low==high"):
        assert make(2, low=2, high=2, **options).tolist() == [2.0, 2.0]
    for dtype, wrong, match in WRONG:
        with pytest.raises(ValueError, match=match):
            make(2, dtype=getattr(kiln, dtype), device="cpu", **wrong)
