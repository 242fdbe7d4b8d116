"""x[key] and x[key] = value, keys of every kind, against PyTorch: values, gradients, places, errors."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
from answers import comparable
from backend import kiln

from kiln.testing.compare import first_difference


class Positions:
    """An integer array of a key."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __repr__(self) -> str:
        return f"positions {self.array.tolist()}"


class Mask(Positions):
    """A mask of a key."""


def keys(rng: random.Random) -> tuple[tuple[int, ...], list[Any]]:
    """A shape and a key that (mostly) fits it."""
    shape = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 4)))
    common = rng.choice([(3,), (2, 3), (1,), (3, 1)])
    key: list[Any] = []
    dim = 0
    kinds = ["int", "slice", "none", "dots", "array", "array", "mask", "mask2", "bool", "end"]
    while dim < len(shape):
        kind, size = rng.choice(kinds), shape[dim]
        if kind == "int":
            key.append(rng.randint(-size, size - 1))
        elif kind == "slice":
            start, stop = (rng.choice([None, *range(-2, size + 1)]) for _ in "ab")
            key.append(slice(start, stop, rng.choice([None, 1, 2])))
        elif kind == "array":
            sizes = rng.choice([common, common, (1,)])
            chosen = [rng.randint(-size, size - 1) for _ in range(int(np.prod(sizes)))]
            key.append(Positions(np.array(chosen, np.int64).reshape(sizes)))
        elif kind in ("mask", "mask2"):
            sizes = shape[dim : dim + (2 if kind == "mask2" else 1)]
            holds = [rng.random() < 0.5 for _ in range(int(np.prod(sizes)))]
            key.append(Mask(np.array(holds).reshape(sizes)))
            dim += len(sizes) - 1
        elif kind == "end":
            break
        elif kind == "dots" and Ellipsis in [k for k in key if not isinstance(k, Positions)]:
            continue
        else:
            key.append({"none": None, "dots": Ellipsis, "bool": rng.random() < 0.5}[kind])
            dim -= 1 if kind != "dots" else 1 - rng.randint(0, len(shape) - dim)
        dim += 1
    return shape, key


def of(library: Any, key: list[Any]) -> Any:
    """A key of a library's tensors."""
    entries = tuple(library.from_numpy(k.array) if isinstance(k, Positions) else k for k in key)
    return entries if len(entries) != 1 else entries[0]


def outcome(library: Any, shape: tuple[int, ...], key: list[Any], transposed: bool, how: str) -> Any:
    """Value, gradient and x after an assignment; or the exception's type."""
    data = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    x = library.tensor(data)
    if transposed:
        order = tuple(reversed(range(len(shape))))
        x = x.permute(order).contiguous().permute(order)
    x.requires_grad_()
    try:
        y = x[of(library, key)]
        weights = np.asarray(np.random.default_rng(0).integers(-99, 99, tuple(y.shape)) / 64, np.float32)
        (y * library.from_numpy(weights)).sum().backward()
        value: Any = 5.0
        if how != "number":
            value = library.from_numpy(
                weights if how == "whole" else weights.reshape(-1)[:1].reshape(()).copy()
            )
        z = x.detach()
        z[of(library, key)] = value
        return [t.numpy().copy() for t in (y.detach(), x.grad, z)]
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_as_peer(start: int, answers: Any) -> None:
    """What is read, its gradient, and what is written (of equal places the last) as PyTorch has it."""
    for seed in range(start, start + 50):
        rng = random.Random(seed)
        case = (*keys(rng), rng.random() < 0.5, rng.choice(["number", "whole"]))
        got, want = answers.both(outcome, *case)
        if isinstance(want, list) and got is IndexError:
            # PyTorch does not look at positions that meet no element of an empty mask
            assert want[0].size == 0, case
            continue
        if not isinstance(want, list) or not isinstance(got, list):
            assert want is got, case
            continue
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(got[2], want[2])


@pytest.mark.parametrize("seed", range(1000, 1060))
def test_recorded_is_eager(seed: int) -> None:
    """Inside a compiled region: the same bits, the same errors."""
    rng = random.Random(seed)
    shape, key = keys(rng)
    transposed = rng.random() < 0.5
    want = outcome(kiln, shape, key, transposed, "whole")
    inside = kiln.compile(lambda: outcome(kiln, shape, key, transposed, "whole"))
    for _ in range(2):
        got = inside()
        if isinstance(want, list):
            assert all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))
        else:
            assert want is got


def test_accumulate_adds_in_order() -> None:
    """Repeated places add up; without accumulate the last stays."""
    places, values = kiln.tensor([1, 1, 3, 1]), kiln.tensor([1.0, 2.0, 3.0, 4.0])
    x = kiln.zeros(4)
    assert x.index_put_((places,), values, accumulate=True) is x
    assert x.tolist() == [0, 7, 0, 3]
    x[places] = values
    assert x.tolist() == [0, 4, 0, 3]
    x[kiln.tensor([0, 0])] += 1  # read, added, written: once
    assert x.tolist() == [1, 4, 0, 3]


@pytest.mark.parametrize("transposed", [False, True])
def test_in_place_is_at_places(transposed: bool) -> None:
    """Values go where they belong and nowhere else, with operands that share the memory written to."""
    data = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    x, index = kiln.tensor(data), kiln.tensor([[1, 0, 1, 2]])
    view, want = (x.t(), data.copy().T) if transposed else (x, data.copy())
    dim, index = (1, index.t()) if transposed else (0, index)
    for source in (kiln.ones(index.shape), view.narrow(dim, 0, 1)):
        given, places = np.array(source).copy(), list(np.indices(index.shape))
        places[dim] = np.array(index)
        np.add.at(want, tuple(places), given)
        assert view.scatter_add_(dim, index, source) is view
        assert np.array_equal(np.array(view), want)
    own = kiln.tensor([1, 2, 0])
    assert own.scatter_(0, own, 5).tolist() == [5, 5, 5]
    own = kiln.tensor([1, 2, 0])
    assert own.scatter_(0, own, own).tolist() == [0, 1, 2]


@pytest.mark.parametrize("at", [0, 63, 64, 130, 199])
@pytest.mark.parametrize("wrong", [200, -201, 2**63 - 1, -(2**63)])
def test_one_wrong_position(at: int, wrong: int) -> None:
    """A position out of range is found wherever it stands, and named."""
    places = kiln.zeros(200, dtype=kiln.int64)
    places[at] = wrong
    for index in (places, places.view(2, 100).t(), places.view(200, 1).expand(200, 3)):
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
            kiln.zeros(200)[index]


@pytest.mark.parametrize("how", ["write", "through a view", "from outside", "another size"])
def test_positions_are_checked_again(how: str) -> None:
    """What was seen to be in range is not taken to be so once it may have changed."""
    x, index = kiln.arange(100.0), kiln.full((70,), 99)
    array = index.numpy() if how == "from outside" else None
    assert x.index_select(0, index).tolist() == [99.0] * 70
    if array is not None:
        array[69] = 100
    elif how == "write":
        index.add_(1)
    elif how == "through a view":
        index.view(7, 10)[6, 9] = 100
    else:
        x = x[:99]
    with pytest.raises(IndexError, match="out of range"):
        x.index_select(0, index)


def test_assignment_has_gradients() -> None:
    """What was overwritten gets none, what was written gets its own; through a view too."""
    x, v = kiln.ones(3, 4, requires_grad=True), kiln.ones(2, requires_grad=True)
    y = x * 2
    y[:, 1:][kiln.tensor([0, 2]), kiln.tensor([1, -1])] = v * 3
    (y * kiln.arange(12.0).reshape(3, 4)).sum().backward()
    assert x.grad.tolist() == [[0, 2, 0, 6], [8, 10, 12, 14], [16, 18, 20, 0]]
    assert v.grad.tolist() == [6, 33]


@pytest.mark.parametrize(
    "key, error, match",
    [
        (lambda: kiln.tensor([3]), IndexError, "index 3 is out of bounds for dimension 0 with size 3"),
        (lambda: (slice(None), kiln.tensor([-5])), IndexError, "dimension 1 with size 4"),
        (lambda: kiln.tensor([True, False]), IndexError, "shape of the mask"),
        (lambda: (kiln.tensor([0, 1]), kiln.tensor([0, 1, 2])), IndexError, "broadcast together"),
        (lambda: kiln.tensor([0.5]), IndexError, "must be long"),
        (lambda: (0, 0, 0), IndexError, "too many indices"),
    ],
)
def test_errors_leave_x_alone(key: Any, error: type[Exception], match: str) -> None:
    """A wrong key raises on its line, reading and writing, and nothing is written."""
    x = kiln.zeros(3, 4)
    with pytest.raises(error, match=match):
        x[key()]
    with pytest.raises(error, match=match):
        x[key()] = 1.0
    with pytest.raises(RuntimeError, match="shape mismatch"):
        x[kiln.tensor([0, 1])] = kiln.ones(3, 4)
    assert x.sum().item() == 0


def test_large_masks() -> None:
    """A million elements, on the places NumPy gives."""
    data = np.random.default_rng(0).normal(size=1 << 20).astype(np.float32)
    x, mask = kiln.tensor(data), kiln.tensor(data > 0.5)
    assert np.array_equal(np.array(x[mask]), data[data > 0.5])
    assert np.array_equal(np.array(mask.nonzero())[:, 0], np.flatnonzero(data > 0.5))
    x[mask] = x[mask] * 2
    assert np.array_equal(np.array(x), np.where(data > 0.5, data * 2, data))


def test_a_mask_that_lost_elements_after_they_were_counted() -> None:
    """Someone else's memory may change between the count and the search for places, which ends with it."""
    mask = kiln.zeros(1000, dtype=kiln.bool)
    mask[5] = True
    places = kiln.ops.find("places_of").handle(mask, (4000,))
    assert places[0] == 5 and places[1] < 1000


def test_second_derivatives_of_products_with_zeros() -> None:
    """The product of x[1] = 2 and two sources, of which one or both are zero, by the rule of products."""
    x = kiln.tensor([0.0, 2.0, 3.0], dtype=kiln.float64, requires_grad=True)
    src = kiln.tensor([0.0, 5.0, 0.0, 2.0, 0.0, 0.0], dtype=kiln.float64, requires_grad=True)
    index = kiln.tensor([0, 0, 1, 1, 2, 2])
    total = x.scatter_reduce(0, index, src, "prod").sum()
    own, given = kiln.autograd.grad(total, (x, src), create_graph=True)
    assert own.tolist() == [0, 0, 0] and given.tolist() == [0, 0, 4, 0, 0, 0]
    a, b = kiln.tensor([1.0, 2.0, 4.0]).double(), kiln.tensor([1.0, -2.0, 3.0, -4.0, 5.0, 2.0]).double()
    seconds = kiln.autograd.grad((own * a).sum() + (given * b).sum(), (x, src))
    assert seconds[0].tolist() == [5, 6, 0]
    assert seconds[1].tolist() == [5, 0, 4 - 8, 6, 6, 15]


KEYS = """
    [slice(None), [0, 1]] | [0, slice(None)] | [slice(0, 1), slice(1, 2)] | [..., 0] | [[0, 1], [1, 2]]
    | [(0, 1), (1, 2)] | [[0, 1]] | [f.tensor(1), f.tensor(0)] | [f.tensor([0, 1]), f.tensor([0, 2])] | [[]]
    | [] | ([], []) | (slice(None), []) | (..., []) | [0, 1] | [True, False] | [np.int64(0), np.int64(1)]
    | np.array([0, 1]) | np.array([[0, 1], [1, 0]]) | [np.array([0, 1]), np.array([1, 0])] | [[0]] * 33
    | f.tensor([1, 0], dtype=f.uint8) | f.tensor(1, dtype=f.uint8) | (f.tensor([1, 0], dtype=f.uint8), 1)
    | [None, [1]]
"""


@pytest.mark.parametrize("key", [key.strip() for key in KEYS.split("|")])
def test_keys_that_are_lists(key: str, answers: Any) -> None:
    """A list of more than numbers is a tuple; an empty one selects nothing; uint8 is a mask."""

    def item(f: Any) -> Any:
        x = f.arange(24.0).reshape(2, 3, 4)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                found = x[eval(key, {"f": f, "np": np})]
            except Exception as error:
                return type(error).__name__
        return found, [
            str(w.message)[:40] for w in said if "torch" in str(w.message) or "tuple" in str(w.message)
        ]

    ours, theirs = answers.both(item)
    assert first_difference(comparable(ours), comparable(theirs), True) is None
    if not isinstance(theirs, str) and theirs[1]:
        with pytest.warns(UserWarning) as seen:
            kiln.zeros(2, 3, 4)[eval(key, {"f": kiln, "np": np})]
        assert seen[0].filename == __file__


def test_numbers_put_where_a_mask_holds(answers: Any) -> None:
    """A number, or a tensor of one, becomes the dtype that it is written to."""

    def put(f: Any) -> Any:
        found = []
        for dtype, value in (
            (f.int64, 2.7),
            (f.bool, 2.5),
            (f.int64, f.tensor(2.7)),
            (f.float32, f.tensor(2)),
        ):
            x = f.arange(3).to(dtype)
            x[x == 1] = value
            found.append(x)
        return found

    ours, theirs = answers.both(put)
    assert first_difference(comparable(ours), comparable(theirs), True) is None
    x = kiln.zeros(2, dtype=kiln.uint8)
    with pytest.raises(RuntimeError, match="overflow"):
        x[x == 0] = 300


@pytest.mark.parametrize("key", [[0, 2], kiln.tensor([0]), kiln.tensor([True, False, True]), (None, [0, 1])])
def test_what_is_put_by_arrays_has_the_tensors_dtype(key: Any) -> None:
    """Tensors of another dtype, and numbers that it does not hold, are refused; slices convert."""
    x = kiln.zeros(3, dtype=kiln.uint8)
    count = x[key].numel()
    if count > 1 or not isinstance(key, kiln.Tensor):
        with pytest.raises(RuntimeError, match="source and destination dtypes match, got .*uint8.*float64"):
            x[key] = kiln.ones(count, dtype=kiln.float64)
    for number in (300, -300, 256.5):
        with pytest.raises(RuntimeError, match="to type uint8 without overflow"):
            x[key] = number
    assert not x.any()
    x[key] = -1
    assert x[key].tolist() == kiln.full(x[key].shape, 255).tolist()


def test_what_is_put_elsewhere_is_converted() -> None:
    """By slices, positions and masks of one element's worth."""
    for key in (slice(0, 2), kiln.tensor(1), True, kiln.tensor([True, False, True])):
        x = kiln.zeros(3)
        x[key] = kiln.tensor(1.0, dtype=kiln.float64)
        assert x.sum() == x[key].numel() and x.dtype is kiln.float32
    x = kiln.zeros(3)
    x[kiln.tensor([True, False, True])] = kiln.tensor([2])
    assert x.tolist() == [2.0, 0.0, 2.0]
