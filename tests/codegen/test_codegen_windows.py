"""Products over windows: the bits of the product with the window written out, by every way of packing."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from codegen_peer import numpy_dtype
from matmul_peer import TARGETS, Array, Guarded, draw, launch, multiply, scratch_after

from kiln.codegen.gemm.arguments import DIMS
from kiln.codegen.gemm.element import element_of
from kiln.codegen.gemm.spec import product
from kiln.codegen.target import Target
from kiln.passes.factors import Windows, evenly

Dims = tuple[tuple[int, int], ...]  # (size, stride in elements)


class Look(NamedTuple):
    """Where a window looks in an array of `size` elements, from `first`."""

    size: int
    k: Dims
    n: Dims
    first: int = 0


# name: how the columns of most vectors lie
LOOKS = {
    "beside": Look(40 * 70, ((3, 70), (4, 1)), ((36, 70), (66, 1))),
    "two runs": Look(3 * 24 * 24, ((3, 576), (3, 24), (3, 1)), ((22, 24), (22, 1))),
    "four runs": Look(5 * 81, ((5, 81), (3, 9), (3, 1)), ((7, 9), (7, 1))),
    "many runs": Look(9 * 25, ((9, 25), (3, 5), (3, 1)), ((3, 5), (3, 1))),
    "apart": Look(2 * 9 * 70, ((2, 630), (3, 70), (3, 2)), ((4, 140), (32, 2))),
    "far apart": Look(2 * 40 * 40, ((2, 1600), (3, 40), (2, 1)), ((12, 120), (13, 3))),
    "turned": Look(3 * 2 * 12 * 12, ((3, 288), (10, 12), (10, 1)), ((2, 144), (3, 12), (3, 1))),
    "turned in short runs": Look(6 * 2 * 9 * 9, ((6, 162), (7, 9), (7, 1)), ((2, 81), (3, 9), (3, 1))),
    "almost a run": Look(60, ((4, 3), (2, 2), (2, 1)), ((5, 7), (2, 3))),
    "backwards": Look(4 * 12 * 12, ((4, 144), (3, -12), (3, -1)), ((10, 12), (10, 1)), 26),
    "one column": Look(100, ((5, 9), (3, 1)), ()),
    "deep": Look(700 * 20, ((700, 20), (2, 1)), ((18, 1),)),
    "evenly": Look(18 * 12 * 40, ((18, 480), (3, 40), (3, 1)), ((10, 40), (38, 1))),
    "evenly apart": Look(70 * 9 * 60, ((70, 540), (3, 60), (3, 1)), ((4, 120), (28, 2))),
    "an edge in each row": Look(70 * 9 * 60, ((70, 540), (3, 60), (3, 1)), ((4, 120), (29, 2))),
    "long rows with an edge": Look(30 * 5 * 110, ((30, 550), (3, 110), (3, 1)), ((3, 110), (101, 1))),
    "one of several": Look(20 * 12 * 30, ((10, 30), (28, 1)), ((20, 360), (3, 30), (3, 1))),
    "four dims": Look(
        2 * 3 * 4 * 5 * 6, ((2, 360), (2, 30), (2, 6), (2, 1)), ((2, 120), (3, 30), (4, 6), (5, 1))
    ),
}


def seen(x: Array, look: Look, images: int, image: int) -> Array:
    """The window written out: [images, k, n]."""
    sizes = (images, *(n for n, _ in look.k), *(n for n, _ in look.n))
    strides = (image, *(s for _, s in look.k), *(s for _, s in look.n))
    view = np.lib.stride_tricks.as_strided(x[look.first :], sizes, [s * x.itemsize for s in strides])
    return view.reshape(images, math.prod(n for n, _ in look.k), math.prod(n for n, _ in look.n)).copy()


def words(dims: Dims) -> list[int]:
    """A kernel's arguments for k or n."""
    padded = ((1, 0),) * (DIMS - len(dims)) + dims
    return [n for n, _ in padded[1:]] + [s for _, s in padded]


def run(
    a: Array,
    x: Array,
    look: Look,
    images: int,
    image: int,
    out: Array,
    dtype: str,
    target: Target,
    cuts: Any = (),
    at_once: int = 0,
    a_k: Dims | None = None,
) -> None:
    """out[image] = a @ window of x, for images beside each other; `a_k`: how the k of a lie."""
    spec = product(dtype)._replace(window=True)
    m, k = len(a), math.prod(n for n, _ in look.k)
    columns = out.shape[2]
    own = [s // x.itemsize for y in (a, out) for s in y.strides]  # of a: m, k; of out: images, m, n
    n = ((images, image), *look.n) if images > 1 else look.n
    along_k = ((k, own[1]),) if a_k is None else a_k
    look_at = [*words(look.k), *words(n), *words(along_k), columns, *evenly(list(look.n))]
    strides = [0, 0, 0, own[0], along_k[-1][1], *[0] * 5, 0, own[2], 0, *own[3:]]
    arg = [1, images, 1, m, images * columns, k, m, 0, *strides, *look_at]
    arg_array = np.array(arg, np.int64)
    start = x.ctypes.data + look.first * x.itemsize
    places, sizes = [a.ctypes.data, start, out.ctypes.data], (1, m, images * columns, k)
    launch(spec, target, places, arg_array, sizes, cuts, at_once)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int64", "int32", "int8"])
def test_bits_of_the_product_written_out(dtype: str, target: Target, rng: np.random.Generator) -> None:
    for name, look in LOOKS.items():
        for m, images in ((1, 1), (13, 1), (5, 3), (31, 2), (64, 1)):
            if images > 1 and len(look.n) == DIMS:
                continue
            x = draw(rng, dtype, images * look.size)
            b = seen(x, look, images, look.size)
            a = draw(rng, dtype, m, b.shape[1])
            out = np.zeros((images, m, b.shape[2]), numpy_dtype(dtype))
            run(a, x, look, images, look.size, out, dtype, target)
            expected = multiply(np.broadcast_to(a, (images, *a.shape)), b, dtype, target)
            assert np.array_equal(out.view(np.uint8), expected.view(np.uint8)), (name, m, images)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "int32"])
@pytest.mark.parametrize("m", [5, 32, 60, 300])
def test_k_of_the_first_factor_in_several_dims(
    dtype: str, target: Target, m: int, rng: np.random.Generator
) -> None:
    for name in ("beside", "turned", "deep", "evenly", "one of several"):
        look = LOOKS[name]
        x, (count, *_), k = draw(rng, dtype, look.size), look.k[0], math.prod(n for n, _ in look.k)
        b, steps = seen(x, look, 1, 0), (m * (k // count + 3), 1)
        room = draw(rng, dtype, count, m, k // count + 3)
        a = np.ascontiguousarray(room[:, :, : k // count].transpose(1, 0, 2)).reshape(m, k)
        out = np.zeros((1, m, b.shape[2]), numpy_dtype(dtype))
        run(room[0], x, look, 1, 0, out, dtype, target, a_k=tuple(zip((count, k // count), steps)))
        expected = multiply(a[None], b, dtype, target)
        assert np.array_equal(out.view(np.uint8), expected.view(np.uint8)), name


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("name", "m", "images", "few"),
    [
        ("evenly", 2, 1, True),
        ("two runs", 4, 1, False),  # k is less than twice as much
        ("evenly apart", 1, 1, True),
        ("an edge in each row", 1, 1, False),
        ("long rows with an edge", 2, 1, True),
        ("evenly apart", 4, 1, True),
        ("evenly apart", 4.25, 1, False),
        ("evenly apart", 1.5, 1, False),  # a panel half empty
        ("one of several", 1, 1, True),
        ("many runs", 1, 9, False),  # no more than 5 places of an image
    ],
)
def test_which_rows_are_few(name: str, m: float, images: int, few: bool, target: Target) -> None:
    """Of few, A is packed, else the window: what the thread's memory begins with. `m` is in panels."""
    look, panel, dtype = LOOKS[name], element_of("float64").panel(target), "float64"
    k, columns = (math.prod(n for n, _ in dims) for dims in (look.k, look.n))
    rows = int(m * panel)
    a, x = np.ones((rows, k)), np.zeros(images * look.size)
    run(a, x, look, images, look.size, np.zeros((images, rows, columns)), dtype, target)
    assert scratch_after(product(dtype)).view(np.float64)[0] == few


def test_rows_of_tiles_are_of_one_image() -> None:
    """Places of an image's row, or channels at one tap; never one place of many images."""
    somewhere: Any = None

    def found(images: int, n: list[tuple[int, int]]) -> Any:
        image = math.prod(count for count, _ in n) // images
        look = Windows((), somewhere, somewhere, 1, images, (0, 18, 1), 0, [(18, 1)], n, image, [(18, 1)])
        return look.columns()[1:]

    assert found(1, [(64, 81), (3, 9), (3, 1)]) == (64, 9, 81)
    assert found(16, [(16, 900), (28, 30), (28, 1)]) == (28, 1, 1)
    assert found(16, [(16, 729), (20, 27), (3, 9), (3, 1)]) == (20, 9, 27)
    assert found(16, [(16, 81), (7, 9), (7, 1)]) == (1, 1, 0)
    assert found(16, [(16, 81)]) == (1, 1, 0)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("name", ["two runs", "evenly", "one of several"])
def test_any_cut_of_the_units(name: str, target: Target, rng: np.random.Generator) -> None:
    look = LOOKS[name]
    k, columns = (math.prod(n for n, _ in dims) for dims in (look.k, look.n))
    x, a = draw(rng, "float32", 4 * look.size), draw(rng, "float32", 60, k)
    whole = np.zeros((4, 60, columns), np.float32)
    run(a, x, look, 4, look.size, whole, "float32", target)
    units = product("float32").units(1, 60, 4 * columns)
    for cuts in [range(1, units), [7], sorted(set(rng.choice(units - 1, 5) + 1))]:
        cut = np.zeros_like(whole)
        run(a, x, look, 4, look.size, cut, "float32", target, cuts)
        assert np.array_equal(cut, whole)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int8"])
def test_nothing_outside_the_arrays(dtype: str, target: Target, rng: np.random.Generator) -> None:
    guarded = Guarded()
    for look in LOOKS.values():
        reach = look.first + sum((n - 1) * s for n, s in (*look.k, *look.n) if s > 0)
        size = reach + 1  # the last element it reads is the last there is
        b = seen(draw(rng, dtype, size), look, 1, 0)
        for at_end in (False, True):
            x = guarded.place(draw(rng, dtype, size), at_end)
            for m in (5, 32):
                a = guarded.place(draw(rng, dtype, m, b.shape[1]), at_end)
                out = guarded.place(np.zeros((1, m, b.shape[2]), numpy_dtype(dtype)), at_end)
                run(a, x, look, 1, 0, out, dtype, target)
                expected = multiply(a[None], seen(x, look, 1, 0), dtype, target)
                assert np.array_equal(out.view(np.uint8), expected.view(np.uint8))


def test_without_k_or_images(rng: np.random.Generator) -> None:
    target = TARGETS[0]
    x = draw(rng, "float32", 100)
    out = np.full((2, 3, 4), 7, np.float32)
    run(draw(rng, "float32", 3, 0), x, Look(9, ((0, 9), (3, 1)), ((4, 1),)), 2, 9, out, "float32", target)
    assert not out.any()
    run(
        draw(rng, "float32", 3, 6),
        x,
        Look(9, ((2, 9), (3, 1)), ((0, 1),)),
        2,
        9,
        out[:, :, :0],
        "float32",
        target,
    )
