"""vmap: every op of the table on a batch, against its samples one by one; random numbers, errors, writes."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln, torch

from kiln.table.public import records
from kiln.table.record import table
from kiln.testing.op_cases import Entry, map_arrays

pytestmark = needs_kiln
BATCH = 2
PARTS = 8  # the table is tested in so many pieces
RANDOM = {"dropout", "feature_dropout"}
# what looks at values: the size of its result, a branch, or another library
UNMAPPED = {
    "bincount", "embedding_bag", "gaussian_nll_loss", "histogram", "histogramdd", "linalg.lu_factor",
    "linalg.pinv", "masked_scatter", "masked_select", "multinomial", "nonzero", "nonzero_static",
    "special.hermite_polynomial_h", "special.hermite_polynomial_he", "special.laguerre_polynomial_l",
    "special.legendre_polynomial_p", "unique", "unique_consecutive",
}  # fmt: skip


def entries() -> list[Entry]:
    """Every public op and function with samples."""
    return [Entry(r) for r in [*(op for op in table() if op.public), *records()]]


def flat(result: Any) -> list[Any]:
    """The tensors of a result."""
    return [y for x in result for y in flat(x)] if isinstance(result, (tuple, list)) else [result]


class Stacked:
    """The first sample of an op, drawn several times: the call of one, and all arrays as batches."""

    def __init__(self, entry: Entry, dtype: str) -> None:
        self.entry = entry
        cases = [entry.cases(dtype, seed)[0] for seed in range(BATCH)]
        self.case = cases[0]
        self.arrays: list[list[Any]] = []
        for case in cases:
            self.arrays.append([])
            map_arrays(case, lambda a: self.arrays[-1].append(a) or a)

    def one_shape(self) -> bool:
        """Whether there are arrays, and all draws are of the same shapes."""
        shapes = [[a.shape for a in arrays] for arrays in self.arrays]
        return bool(shapes[0]) and all(s == shapes[0] for s in shapes)

    def call(self, *tensors: Any) -> list[Any]:
        """The op on the tensors of one sample."""
        given = iter(tensors)
        case = map_arrays(self.case, lambda a: next(given))
        return flat(self.entry.function(*case.args, **case.kwargs))

    def samples(self) -> list[list[Any]]:
        """The tensors of each sample."""
        return [[kiln.tensor(a) for a in arrays] for arrays in self.arrays]

    def batches(self, dim: int = 0) -> list[Any]:
        """The samples' tensors stacked along a dim, or the last if it has fewer."""
        found = []
        for k in range(len(self.arrays[0])):
            stacked = np.stack([arrays[k] for arrays in self.arrays])
            found.append(kiln.tensor(np.moveaxis(stacked, 0, min(dim, stacked.ndim - 1))))
        return found


def stacked(entry: Entry, dtypes: tuple[str, ...]) -> Stacked | None:
    """The op's first sample in the first of the dtypes it takes, if it has one to be mapped."""
    own = [d for d in dtypes if d in entry.dtypes]
    if not own or not entry.cases(own[0]):
        return None
    found = Stacked(entry, own[0])
    return found if found.one_shape() else None


def assert_rows(got: Any, want: list[Any], what: str) -> None:
    """A batch against its samples' results."""
    expected = np.stack([w.detach().numpy() for w in want])
    assert got.dtype == want[0].dtype, what
    assert tuple(got.shape) == expected.shape, what
    np.testing.assert_allclose(got.detach().numpy(), expected, rtol=1e-5, atol=1e-5, err_msg=what)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_op_is_mapped(part: int) -> None:
    """A batch in front or behind, and the first array alone: what the samples give one by one."""
    count = 0
    for number, entry in enumerate(entries()[part::PARTS]):
        sample = stacked(entry, ("float32", "int64", "bool"))
        if sample is None or entry.name in UNMAPPED | RANDOM:
            continue
        each = sample.samples()
        dim = 0 if "strided" in entry.name else number % 2  # which speaks of a sample's memory
        given = sample.batches(dim)
        dims = tuple(min(dim, x.ndim - 1) for x in given)
        got = kiln.vmap(lambda *xs, s=sample: tuple(s.call(*xs)), in_dims=dims)(*given)
        for k, y in enumerate(got):
            assert_rows(y, [sample.call(*xs)[k] for xs in each], f"{entry.name}, batch at {dims}")
        count += 1
        first, rest = sample.batches()[0], each[0][1:]
        if rest and number % 2:
            alone = (0, *[None] * len(rest))
            got = kiln.vmap(lambda *xs, s=sample: tuple(s.call(*xs)), in_dims=alone)(first, *rest)
            for k, y in enumerate(got):
                want = [sample.call(xs[0], *rest)[k] for xs in each]
                assert_rows(y, want, f"{entry.name}, the first array")
    assert count > 25


def test_what_is_not_mapped_says_so() -> None:
    """The ops listed as unmapped raise, and name what they look at."""
    known = {entry.name: entry for entry in entries()}
    for name in sorted(UNMAPPED):
        sample = stacked(known[name], ("float32", "int64"))
        assert sample is not None, name
        with pytest.raises(RuntimeError, match="vmap|Cannot access data pointer"):
            kiln.vmap(lambda *xs, s=sample: tuple(s.call(*xs)))(*sample.batches())


def weighed(ys: list[Any]) -> Any:
    """One number of the float results, each element with a weight of its own."""
    floats = [y for y in ys if y.dtype.is_floating_point and y.requires_grad]
    weights = [kiln.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in floats]
    return sum((y * w).sum() for y, w in zip(floats, weights))


@pytest.mark.parametrize("part", range(PARTS))
def test_gradients_of_every_op(part: int) -> None:
    """Batches of gradients of one graph for every op; grad inside and outside vmap for a part of them."""
    count = 0
    for number, entry in enumerate(entries()[part::PARTS]):
        sample = stacked(entry, ("float64", "float32")) if entry.differentiable else None
        if sample is None or entry.name in UNMAPPED | RANDOM:
            continue
        floats = [k for k, a in enumerate(sample.arrays[0]) if a.dtype.kind == "f"]
        xs = [x.requires_grad_() if k in floats else x for k, x in enumerate(sample.samples()[0])]
        ys = [y for y in sample.call(*xs) if y.dtype.is_floating_point and y.requires_grad and y.numel()]
        if not ys or number % 2:
            continue
        count += 1
        wanted = [xs[k] for k in floats]
        seeds = kiln.tensor(np.random.default_rng(0).normal(size=(2, *ys[0].shape))).to(ys[0].dtype)
        options: dict[str, Any] = {"materialize_grads": True, "retain_graph": True}
        try:
            rows = [kiln.autograd.grad(ys[0], wanted, seed, **options) for seed in seeds]
        except NotImplementedError:  # no derivative by one of its arguments
            continue
        found = kiln.autograd.grad(ys[0], wanted, seeds, is_grads_batched=True, **options)
        for k, y in enumerate(found):
            assert_rows(y, [row[k] for row in rows], f"{entry.name}, a batch of gradients")
        if number % 8 == 0:
            check_mapped_gradient(entry.name, sample, floats)
    assert count > 8


def check_mapped_gradient(name: str, sample: Stacked, floats: list[int]) -> None:
    """vmap(grad) and grad(vmap) against the gradients of each sample."""
    want = []
    for xs in sample.samples():
        for k in floats:
            xs[k].requires_grad_()
        wanted = [xs[k] for k in floats]
        want.append(kiln.autograd.grad(weighed(sample.call(*xs)), wanted, materialize_grads=True))

    def loss(*xs: Any) -> Any:
        return weighed(sample.call(*xs))

    inside = kiln.vmap(kiln.func.grad(loss, argnums=tuple(floats)))(*sample.batches())
    outside = kiln.func.grad(lambda *xs: kiln.vmap(loss)(*xs).sum(), argnums=tuple(floats))(*sample.batches())
    for k in range(len(floats)):
        assert_rows(inside[k], [row[k] for row in want], f"{name}, vmap(grad)")
        assert_rows(outside[k], [row[k] for row in want], f"{name}, grad(vmap)")


# -- beside PyTorch ----------------------------------------------------------------------------------------


def in_place(m: Any, x: Any) -> Any:
    y = x.clone()
    y[0] = 1.0
    y.mul_(x)
    y += x[1]
    y[1:].add_(2)
    return y


def own_place(m: Any, x: Any, y: Any) -> Any:
    z, place = x.clone(), y.argmax()
    z[place] = 7.0
    return x[place], x[1:, y.argmin()], x[place - 4, place], z


def gradient_of_writes(m: Any, x: Any) -> Any:
    """A derivative reads what was written over."""

    def written(x: Any) -> Any:
        y = x * 1.0
        y[1:].mul_(x[0])
        y.mul_(x)
        y *= y.sum()
        y.sin_()
        return (m.ones_like(x).mul_(y) * y).sum()

    return m.func.grad(written)(x)


PROGRAMS: list[tuple[str, Callable[..., Any], dict[str, Any], list[tuple[int, ...]]]] = [
    ("broadcast", lambda m, x, y: x * y, {}, [(3, 4), (3, 2, 4)]),
    ("shared", lambda m, x, y: x @ y, {"in_dims": (0, None)}, [(3, 2, 4), (4, 5)]),
    ("shared first", lambda m, x, y: x @ y, {"in_dims": (None, 1)}, [(2, 4), (4, 3, 5)]),
    ("places", lambda m, x: (x, x.sum()), {"in_dims": -1, "out_dims": (1, 0)}, [(2, 3)]),
    ("trees", lambda m, t: {"a": t["x"] + t["y"][0], "b": [t["y"][1]]}, {"in_dims": ({"x": 0, "y": 0},)}, []),
    ("nothing mapped in one result", lambda m, x: m.ones(2), {}, [(3, 2)]),
    ("a result shared", lambda m, x: (x, 3), {"out_dims": (0, None)}, [(3, 2)]),
    ("in place", in_place, {}, [(3, 2, 2)]),
    ("a place of each sample", own_place, {}, [(3, 4, 4), (3, 4)]),
    ("gradients of writes", gradient_of_writes, {}, [(3, 4)]),
    ("new arrays", lambda m, x: x.new_zeros(2).add_(x) + m.zeros_like(x).copy_(x), {}, [(3, 2)]),
    ("chunks", lambda m, x: (x * 2).sum(), {"chunk_size": 2}, [(5, 2)]),
    ("index", lambda m, x: x[m.tensor([1, 0])] + x[..., None][:, 0], {}, [(3, 2)]),
    ("nested", lambda m, x: m.vmap(lambda r: (r * x.sum()).softmax(0))(x), {}, [(3, 2, 4)]),
    ("promotion", lambda m, x: x.sum().double() * m.ones(2, dtype=m.float32), {}, [(3, 2)]),
    ("shape", lambda m, x: x.reshape(-1)[: x.shape[0] * 2].view(x.size(0), 2).t(), {}, [(3, 4, 3)]),
    ("casts", lambda m, x: x.float().to(m.float64).int() + x.long(), {}, [(3, 4)]),
    ("inverse", lambda m, x: m.linalg.inv(x @ x.mT + 3 * m.eye(3)), {}, [(4, 3, 3)]),
    ("solve", lambda m, x, y: m.linalg.solve(x, y), {"in_dims": (0, None)}, [(4, 3, 3), (3,)]),
]


@pytest.mark.parametrize("name", [name for name, *_ in PROGRAMS])
def test_programs_beside_torch(name: str, answers: Any) -> None:
    """Results of both, to the shape and dtype."""
    _, function, options, shapes = next(p for p in PROGRAMS if p[0] == name)

    def results(m: Any) -> list[Any]:
        rng = np.random.default_rng(3)
        args = [m.tensor(rng.normal(size=s).astype("float32")) for s in shapes]
        if name == "trees":
            args = [{"x": m.arange(3.0), "y": (m.ones(3, 2), m.zeros(3))}]
        got = m.vmap(lambda *xs: function(m, *xs), **options)(*args)
        return list(got.values()) if isinstance(got, dict) else flat(got)

    wanted = answers([results, function, options], lambda: results(torch))
    for ours, theirs in zip(results(kiln), wanted, strict=True):
        ours, theirs = (x[0] if isinstance(x, list) else x for x in (ours, theirs))
        if isinstance(theirs, int):
            assert ours == theirs
            continue
        assert str(ours.dtype).rpartition(".")[2] == str(theirs.dtype).rpartition(".")[2]
        assert tuple(ours.shape) == tuple(theirs.shape)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


MISTAKES: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("calling .item", lambda m, x: m.vmap(lambda x: x.sum().item())(x)),
    ("calling .item", lambda m, x: m.vmap(lambda x: float(x.sum()))(x)),
    ("data-dependent control flow", lambda m, x: m.vmap(lambda x: x if x.sum() > 0 else -x)(x)),
    ("Cannot access data pointer", lambda m, x: m.vmap(lambda x: x.numpy())(x)),
    ("Cannot access data pointer", lambda m, x: m.vmap(lambda x: x.data_ptr())(x)),
    ("randomness error mode", lambda m, x: m.vmap(lambda x: x + m.rand(2))(x)),
    ("randomness error mode", lambda m, x: m.vmap(lambda x: m.nn.functional.dropout(x))(x)),
    ("randomness. Got|Got what", lambda m, x: m.vmap(lambda x: x, randomness="what")(x)),
    ("must only return Tensors", lambda m, x: m.vmap(lambda x: 3)(x)),
    ("same size in the mapped dimension", lambda m, x: m.vmap(lambda x, y: x)(x, m.ones(4))),
    ("cannot vmap over non-Tensor", lambda m, x: m.vmap(lambda x: x)(3)),
    ("dimensionality 2", lambda m, x: m.vmap(lambda x: x, in_dims=2)(x)),
    ("dimensionality 0", lambda m, x: m.vmap(lambda x: x)(m.tensor(1.0))),
    ("expected `in_dims`", lambda m, x: m.vmap(lambda x: x, in_dims=None)(x)),
    ("in_dims is not compatible", lambda m, x: m.vmap(lambda x: x, in_dims=(0, 0))(x)),
    ("out_dims is not compatible", lambda m, x: m.vmap(lambda x: x, out_dims=(0, 0))(x)),
    ("can not return a BatchedTensor", lambda m, x: m.vmap(lambda x: x, out_dims=None)(x)),
    ("Dimension out of range", lambda m, x: m.vmap(lambda x: x, out_dims=3)(x)),
    ("got no inputs", lambda m, x: m.vmap(lambda: x)()),
    ("chunk_size should be None or greater than 0", lambda m, x: m.vmap(lambda x: x, chunk_size=0)(x)),
    ("requires_grad_", lambda m, x: m.vmap(lambda x: x.requires_grad_())(x)),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_told_as_torch_tells_them(number: int, answers: Any) -> None:
    """The same exception, with its key phrase."""
    match, call = MISTAKES[number]
    with pytest.raises(Exception, match=match) as theirs:
        answers([call, match], lambda: str(call(torch, torch.ones(3, 2))))
    with pytest.raises(theirs.type, match=match):
        call(kiln, kiln.ones(3, 2))


def add_into(x: Any) -> Any:
    kiln.zeros(2).add_(x)


def plus_into(x: Any) -> Any:
    y = kiln.zeros(2)
    y += x


def put_into(x: Any) -> Any:
    y = kiln.zeros(2)
    y[0] = x[0]


@pytest.mark.parametrize("write", [add_into, plus_into, put_into])
def test_what_samples_share_is_not_written(write: Callable[[Any], Any]) -> None:
    """In place on a tensor of no batch, with samples."""
    with pytest.raises(RuntimeError, match=r"is not possible because there exists a Tensor `other`"):
        kiln.vmap(write)(kiln.ones(3, 2))


def test_a_sample_kept_too_long() -> None:
    """It stands for nothing once vmap returned."""
    kept = []
    kiln.vmap(lambda x: kept.append(x) or x)(kiln.ones(3))
    with pytest.raises(RuntimeError, match="kept after the vmap"):
        kept[0] * 2


def test_levels_end_with_an_exception() -> None:
    """A mapped function that raises leaves nothing behind."""
    with pytest.raises(ZeroDivisionError):
        kiln.vmap(lambda x: x / (1 // 0))(kiln.ones(3))
    assert kiln.rand(2).shape == (2,)  # no vmap in randomness error mode


# -- random numbers ----------------------------------------------------------------------------------------


def test_random_numbers_of_samples() -> None:
    """ "different": what one draw of all gives; "same": what one draw of one gives."""
    x = kiln.ones(3, 4)
    for draw in (lambda x: kiln.rand(2), lambda x: kiln.randn_like(x), lambda x: kiln.randint(0, 99, (5,))):
        whole = (lambda: kiln.rand(3, 2), lambda: kiln.randn(3, 4), lambda: kiln.randint(0, 99, (3, 5)))
        for one in whole:
            kiln.manual_seed(5)
            got = kiln.vmap(draw, randomness="different")(x)
            kiln.manual_seed(5)
            want = one()
            if got.shape == want.shape:
                assert kiln.equal(got, want)
        kiln.manual_seed(5)
        rows = kiln.vmap(draw, randomness="same")(x)
        kiln.manual_seed(5)
        assert all(kiln.equal(row, draw(x[0])) for row in rows[:1])
        assert all(kiln.equal(row, rows[0]) for row in rows)


def test_random_numbers_of_nested_samples() -> None:
    """Each level says what its samples share."""
    x = kiln.ones(3, 4)
    kiln.manual_seed(5)
    inner = kiln.vmap(lambda x: kiln.rand(2), randomness="different")
    got = kiln.vmap(inner, randomness="different")(x)
    kiln.manual_seed(5)
    assert kiln.equal(got, kiln.rand(3, 4, 2))
    same = kiln.vmap(inner, randomness="same")(x)
    assert kiln.equal(same[0], same[2])
    assert not kiln.equal(same[0, 0], same[0, 1])


def test_dropout_of_samples() -> None:
    """Masks differ, or do not."""
    x = kiln.ones(4, 64)
    drop = kiln.nn.functional.dropout
    apart = kiln.vmap(drop, randomness="different")(x)
    assert len({tuple(row.tolist()) for row in apart}) == 4
    assert len({tuple(row.tolist()) for row in kiln.vmap(drop, randomness="same")(x)}) == 1


# -- one pass, other threads, recorded ---------------------------------------------------------------------


def test_ops_run_once_for_the_batch() -> None:
    """The function is called once, and so is each op: no loop over samples."""
    calls = []

    def function(x: Any) -> Any:
        calls.append(x.shape)
        return (x.softmax(0) * 2).sum()

    x = kiln.ones(50, 3)
    kiln.vmap(function)(x)
    with kiln.profile() as seen:
        kiln.vmap(function)(x)
    assert len(calls) == 2
    assert seen.launches < 10


def test_two_threads_map_their_own() -> None:
    """Levels belong to a thread."""
    found: dict[int, Any] = {}

    def work(k: int) -> None:
        for _ in range(20):
            found[k] = kiln.vmap(lambda x: kiln.vmap(lambda y: y * k)(x))(kiln.ones(2, 3))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(kiln.equal(found[k], kiln.full((2, 3), float(k))) for k in range(3))


def test_recorded() -> None:
    """A mapped function inside kiln.compile: the same bits."""

    def step(x: Any, w: Any) -> Any:
        return kiln.vmap(lambda r: ((r @ w).tanh() - r.mean()).softmax(0))(x).sum(0)

    compiled = kiln.compile(step, wait=True)
    for seed in range(4):
        kiln.manual_seed(seed)
        x, w = kiln.randn(5, 3), kiln.randn(3, 4)
        assert kiln.equal(compiled(x, w), step(x, w))


def test_one_hot_of_a_sample() -> None:
    one_hot, i = kiln.nn.functional.one_hot, kiln.tensor([1, 2])
    assert kiln.func.vmap(lambda i: one_hot(i, 3))(i).tolist() == one_hot(i, 3).tolist()
    with pytest.raises(RuntimeError, match="smaller than num_classes"):
        kiln.func.vmap(lambda i: one_hot(i, 2))(i)
    with pytest.raises(RuntimeError, match="vmap"):
        kiln.func.vmap(one_hot)(i)


def test_a_samples_own_number_is_an_index() -> None:
    x, i = kiln.arange(6.0).view(2, 3), kiln.tensor([2, -1])
    assert kiln.func.vmap(lambda x, i: x[i])(x, i).tolist() == [2.0, 5.0]
    assert kiln.func.vmap(lambda i: x[:, i])(i).tolist() == [[2.0, 5.0], [2.0, 5.0]]
    assert kiln.func.vmap(kiln.func.grad(lambda x, i: x[i] ** 2))(x, i).tolist() == [
        [0.0, 0.0, 4.0],
        [0.0, 0.0, 10.0],
    ]
    with pytest.raises(IndexError):
        kiln.func.vmap(lambda x, i: x[i])(x, i + 7)


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


def test_classes_that_the_program_says_are_containers_are_trees_of_transformations():
    tree = kiln.utils._pytree
    if Pair not in tree.SUPPORTED_NODES:
        tree.register_pytree_node(Pair, lambda p: ([p.first, p.second], None), lambda c, _: Pair(*c))
    x, y = kiln.ones(3), kiln.arange(3.0)
    mapped = kiln.func.vmap(lambda p: Pair(p.first * p.second, p.first))(Pair(x, y))
    assert (
        type(mapped) is Pair
        and mapped.first.tolist() == [0.0, 1.0, 2.0]
        and mapped.second.tolist() == [1.0] * 3
    )
    grads = kiln.func.grad(lambda p: (p.first * p.second).sum())(Pair(x, y))
    assert grads.first.tolist() == y.tolist() and grads.second.tolist() == x.tolist()
    columns = kiln.func.vmap(lambda p: p.first, in_dims=(Pair(1, None),))(Pair(kiln.ones(3, 2), y))
    assert columns.shape == (2, 3)
    rows = kiln.func.vmap(lambda d: collections.deque([d[0] + d[1]], 3))(collections.deque([x, y]))
    assert type(rows) is collections.deque and rows.maxlen == 3 and rows[0].tolist() == [1.0, 2.0, 3.0]
