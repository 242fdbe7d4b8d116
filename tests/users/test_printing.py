"""Printed tensors, character by character against PyTorch's."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from backend import kiln, torch

inf, nan = math.inf, math.nan
OPTIONS: list[dict[str, Any]] = [
    {},
    {"precision": 2},
    {"precision": 0},
    {"precision": 8, "linewidth": 120},
    {"sci_mode": True},
    {"sci_mode": False},
    {"threshold": 10},
    {"threshold": 5, "edgeitems": 1},
    {"threshold": 1, "edgeitems": 0},
    {"linewidth": 40},
    {"linewidth": 20, "threshold": 10, "edgeitems": 2},
    {"profile": "short"},
    {"profile": "full"},
]
FLOATS: list[Any] = [
    3.5, 7.0, 0.0, -0.0, nan, inf, -inf, 1e10, 1e-10, 123456.789, [], [nan], [nan, 1.0], [nan, 1.5],
    [inf, -inf, 0.0], [-0.0], [0.0, -0.0, 1.5], [1e-5, 1.0], [1e9], [1.0, 1000.0], [1.0, 1001.0],
    [1e8, 2e8], [100000008.0], [1e-40, 1.0], [0.9999999, 1.0], [[1.5, -2.25], [nan, 1e3]], [[[0.125]]],
    [3.0, nan, -inf, 1e4], [-1.0] * 30, [[], []],
]  # fmt: skip
INTS: list[Any] = [3, -3, [], [0], [1, -100, 10], [2**62, -(2**63)], [[1, 2], [30, 4]], list(range(40))]
SHAPES = [
    (1000,), (1001,), (2, 500), (2, 501), (1, 1001), (1001, 1), (7, 150), (20, 20, 20), (4, 300),
    (7, 7, 7, 7), (2, 2, 2, 2, 2, 2, 2, 2, 2, 2), (3, 400), (6, 6, 30), (1, 2, 0, 3), (0, 5), (1, 1, 1),
]  # fmt: skip


@pytest.fixture(params=OPTIONS, ids=str)
def options(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The same print options in both libraries, reset afterwards."""
    libraries = [lib for lib in (kiln, torch) if lib is not None]
    for lib in libraries:
        lib.set_printoptions(profile="default")
        lib.set_printoptions(**request.param)
    yield request.param
    for lib in libraries:
        lib.set_printoptions(profile="default")


def text(x: Any) -> str:
    return repr(x).replace("kiln.", "torch.")


def same(ours: Any, theirs: Any) -> bool:
    """Whether both print alike. "kiln" is a letter shorter than "torch": where that letter decides, a dtype
    stays on the line it fits.
    """
    shown, wanted = text(ours), theirs if isinstance(theirs, str) else repr(theirs)
    if shown == wanted:
        return True
    width = kiln.get_printoptions()["linewidth"]
    decides = [line for line in shown.split("\n") if "dtype=" in line and width - 1 <= len(line) <= width]
    return bool(decides) and shown == re.sub(r",\n *(dtype=)", r", \1", wanted)


def check(answers: Any, make: Callable[[Any], list[Any]], *inputs: Any) -> None:
    """The tensors that `make` gives of a library of these inputs print as PyTorch's."""
    wanted = answers([make, *inputs], lambda: [repr(x) for x in make(torch)])
    for ours, theirs in zip(make(kiln), wanted, strict=True):
        assert same(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_floats(dtype: str, options: dict[str, Any], answers: Any) -> None:
    check(answers, lambda f: [f.tensor(v, dtype=getattr(f, dtype)) for v in FLOATS], FLOATS, options)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8", "bool"])
def test_exact(dtype: str, options: dict[str, Any], answers: Any) -> None:
    values = [np.array(v, np.int64).astype(dtype).tolist() for v in INTS]
    check(answers, lambda f: [f.tensor(v, dtype=getattr(f, dtype)) for v in values], INTS, options)


def test_shapes(options: dict[str, Any], answers: Any) -> None:
    def make(f: Any) -> list[Any]:
        found = [f.arange(math.prod(shape)).reshape(shape) for shape in SHAPES]
        return [y for x in found for y in (x, x * 0.5, x.to(f.float64))]

    check(answers, make, SHAPES, options)


def test_random_values_and_scales(answers: Any) -> None:
    rng, cases = random.Random(0), []
    for _ in range(150):
        shape = [rng.choice([1, 2, 3, 5, 8, 30]) for _ in range(rng.randint(0, 4))]
        scale = 10 ** rng.uniform(-6, 10)
        values = [rng.gauss(0, 1) * scale for _ in range(math.prod(shape))]
        if rng.random() < 0.3:
            values = [float(round(v)) for v in values]
        if rng.random() < 0.2:
            values[0] = rng.choice([nan, inf, -inf])
        dtype = rng.choice(["float32", "float64"])
        cases.append((np.array(values).reshape(shape), dtype))

    def make(f: Any) -> list[Any]:
        return [f.tensor(x, dtype=getattr(f, dtype)) for x, dtype in cases]

    wanted = answers(cases, lambda: [repr(x) for x in make(torch)])
    for ours, theirs in zip(make(kiln), wanted, strict=True):
        assert same(ours, theirs)


def random_options(rng: random.Random) -> dict[str, Any]:
    return {
        "precision": rng.choice([None, 0, 1, 6, 10]),
        "threshold": rng.choice([None, 0, 5, 100]),
        "edgeitems": rng.choice([None, 0, 1, 2, 5]),
        "linewidth": rng.choice([None, 1, 20, 40, 120]),
        "sci_mode": rng.choice([None, True, False]),
        "profile": rng.choice([None, "short", "full", "default"]),
    }


def random_tensor(rng: random.Random) -> tuple[dict[str, Any], Any, str]:
    """Print options, the values of a tensor, its dtype."""
    options = random_options(rng) if rng.random() < 0.6 else {}
    shape = [rng.choice([0, 1, 1, 2, 3, 4, 7, 12]) for _ in range(rng.randint(0, 4))]
    name = rng.choice(["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool"])
    scale = 10 ** rng.uniform(-9, 12)
    flat = [rng.gauss(0, 1) * scale * 10 ** rng.uniform(0, 4) for _ in range(math.prod(shape))]
    values = np.array(flat, np.float32)
    if name in ("int64", "int8", "uint8", "bool"):
        values = values.astype(np.int64).astype(name)
    return options, values.reshape(shape), name


def shown_under(f: Any, options: dict[str, Any], values: Any, name: str) -> Any:
    """The tensor, its dims reversed, and its text under the options."""
    f.set_printoptions(profile="default")
    f.set_printoptions(**options)
    x = f.tensor(values).to(getattr(f, name))
    x = x.transpose(0, -1) if x.ndim > 1 else x
    return x, repr(x)


def test_random_tensors_under_random_options(answers: Any) -> None:
    """Every dtype, empty dims, transposes, values of mixed scale, ends of the integers' ranges."""
    rng = random.Random(1)
    try:
        for _ in range(200):
            case = random_tensor(rng)
            theirs = answers([shown_under, *case], lambda case=case: shown_under(torch, *case)[1])
            ours, _ = shown_under(kiln, *case)
            assert same(ours, theirs), case
    finally:
        for lib in (kiln, torch) if torch is not None else (kiln,):
            lib.set_printoptions(profile="default")


def test_views_print_what_they_show(answers: Any) -> None:
    def make(f: Any) -> list[Any]:
        x = f.arange(3000).reshape(50, 60)
        return [x.t(), x[::7, 5:40:3], x[:1].expand(40, 60)]

    check(answers, make)


@pytest.mark.parametrize("count", [1, 3, 11, 12, 13, 30])
def test_gradients_are_told(count: int, options: dict[str, Any], answers: Any) -> None:
    def make(f: Any) -> list[Any]:
        found = [f.full((count,), 0.5, dtype=d, requires_grad=True) for d in (f.float32, f.float64)]
        return [y for x in found for y in (x, x * 2, x.detach())]

    check(answers, make, options)


def test_a_view_that_may_not_follow_its_base_is_told_with_its_values(answers: Any) -> None:
    def make(f: Any) -> list[Any]:
        x = f.ones(4, requires_grad=True) * 1
        first, _ = x.chunk(2)
        x.mul_(2)
        return [first]

    check(answers, make)


def test_parameters(answers: Any) -> None:
    check(answers, lambda f: [f.nn.Parameter(f.ones(2))])
    assert str(kiln.ones(2)) == answers("str", lambda: str(torch.ones(2)))


def test_formatting_takes_the_number_of_a_tensor_of_no_dims(answers: Any) -> None:
    def texts(lib: Any) -> list[str]:
        loss = lib.tensor(1.23456, requires_grad=True)
        with pytest.raises(TypeError, match="unsupported format string"):
            f"{lib.ones(2):.3f}"
        number = f"{(loss * 2).detach():.3f} {lib.tensor(3):>4d} {lib.tensor(True)}"
        return [number, f"{lib.ones(2)}"]

    ours, theirs = answers.both(texts)
    assert ours == theirs == ["2.469    3 True", "tensor([1., 1.])"]


def test_options_are_refused_or_remembered() -> None:
    with pytest.raises(ValueError, match="profile"):
        kiln.set_printoptions(profile="wide")
    kiln.set_printoptions(precision=2)
    assert repr(kiln.tensor([1.23456])) == "tensor([1.23])"
    kiln.set_printoptions(profile="default")
    assert repr(kiln.tensor([1.23456])) == "tensor([1.2346])"


@pytest.mark.parametrize(
    "call",
    [
        "x.max(1)", "x.min(0)", "x.sort()", "x.topk(1)", "x.kthvalue(1)", "x.median(1)", "x.nanmedian(1)",
        "x.mode(0)", "x.cummax(0)", "x.cummin(1)", "k.aminmax(x)", "k.frexp(x)", "k.histogram(x, 2)",
        "k.linalg.slogdet(x)", "k.linalg.inv_ex(x)",
    ],
)  # fmt: skip
def test_results_with_names(call: str, answers: Any) -> None:
    def shown(k: Any) -> str:
        return repr(eval(call, {"k": k, "x": k.tensor([[1.0, 3.0], [4.0, 2.5]])}))

    assert shown(kiln) == answers([call, shown], lambda: shown(torch)).replace("torch.", "kiln.")


def test_slices_and_sums_of_shapes_are_shapes(answers: Any) -> None:
    def shown(library: Any) -> list[str]:
        size = library.ones(2, 3, 4).shape
        made = [
            size, size[:2], size[1:], size[::-2], size[:0], size + size, size + (1,), (1,) + size, size * 2,
            2 * size, library.Size([5]) + size, library.Size(),
        ]  # fmt: skip
        texts = [repr(x).rpartition(".")[2] for x in made] + [f"{size[1]} {size[-1]} {size == (2, 3, 4)}"]
        try:
            size + [1]
        except TypeError as error:
            texts.append(type(error).__name__)
        return [*texts, str(hash(size) == hash((2, 3, 4))), str({(2, 3, 4): "found"}[size])]

    ours, theirs = answers.both(shown)
    assert ours == theirs
