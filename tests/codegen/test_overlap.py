"""Long bodies written side by side: how many, and the same bits as one at a time, at every size and level."""

from __future__ import annotations

import random
from typing import Any

import codegen_peer
import numpy as np
import pytest
from codegen_peer import reads, run, same, writes
from test_codegen_nest import LEVEL_NAMES, check, draw, load, output, reduce

import kiln
from kiln.codegen.nests import frame
from kiln.codegen.nests.generate import nest_text
from kiln.codegen.nests.nest import Nest
from kiln.codegen.nests.overlap import MOST, side_by_side
from kiln.codegen.target import LEVELS
from kiln.scalars.scalar import Scalar, absolute, convert, fma, select, sqrt, topological
from kiln.table.order import LANES

SIZES = (0, 1, 16, 31, 63, 64, 65, 95, 96, 97, 127, 128, 129, 192, 200, 1000)


def chain(x: Scalar, links: int) -> Scalar:
    """Instructions each of which waits for the one before."""
    for k in range(links):
        x = fma(x, x, 0.25) * 0.5 if k % 2 else x * 1.25 - 0.5
    return x


def rarely(condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """What is computed only where some lane takes it."""
    return Scalar("select", (condition, x, y), x.type, "rare")


def body(seed: int, type: str = "f32") -> Scalar:
    """A long expression of two operands, with branches and other types on the way."""
    rng = random.Random(seed)
    x, y = load(0, type), load(1, type)
    for _ in range(rng.randrange(6, 14)):
        how = rng.randrange(7)
        if how == 0:
            x = chain(x, rng.randrange(1, 6))
        elif how == 1:
            x = x + select(y > x, sqrt(absolute(y)), x * 0.5)
        elif how == 2:
            x = rarely(x > 1.5, chain(x - y, 3), x)
        elif how == 3:
            x, y = rarely(y < -1.0, x * y, x), rarely(y < -1.0, y * 0.25, y)
        elif how == 4:
            other = "f64" if type == "f32" else "f32"
            x = convert(convert(x, other) * 0.75, type)
        elif how == 5:
            x = fma(x, y, x / (absolute(y) + 1.0))
        else:
            y = y - x * 0.125
    return chain(x + y, 12)


def copies(value: Scalar, level: str) -> int:
    """How many bodies of an expression are written side by side."""
    return side_by_side([n for n in topological([value]) if n.args], LEVELS[level])


def test_how_many() -> None:
    """Long bodies that wait are several; those that do not are one."""
    x = load(0)
    assert copies(x * 2.0 + 1.0, "x86-64-v4") <= MOST
    assert copies(chain(x, 60), "x86-64-v4") == MOST
    assert copies(chain(x, 60), "x86-64-v3") in (2, 4)  # where each takes two instructions
    apart = [chain(load(k), 8) for k in range(14)]  # long, but of many that do not wait for each other
    while len(apart) > 1:
        apart = [a + b for a, b in zip(apart[::2], apart[1::2])] + apart[len(apart) & ~1 :]
    assert copies(apart[0], "x86-64-v4") == 1


@pytest.mark.parametrize("level", LEVEL_NAMES)
def test_a_long_body_is_written_several_times(level: str) -> None:
    nest = Nest(("p",), (reads("float32", "1"), writes("float32", "1")), (), ((1, chain(load(0), 60)),))
    fused = nest_text(nest, LEVELS[level]).count("call <16 x float> @llvm.fma")
    alone = 1 if LEVELS[level].masks else 2  # the last of a row, and those that are whole
    assert fused == 30 * (alone + copies(nest.stores[0][1], level)) > 30 * alone + 30


@pytest.fixture(params=[2, 4, 6])
def several(request: Any, monkeypatch: Any) -> int:
    """So many bodies side by side, whatever would be best."""
    monkeypatch.setattr(frame, "side_by_side", lambda nodes, target: request.param)
    monkeypatch.setattr(codegen_peer, "_built", {})
    return int(request.param)


@pytest.mark.parametrize("seed", range(8))
def test_maps(several: int, seed: int, rng: np.random.Generator) -> None:
    type, dtype = [("f32", "float32"), ("f64", "float64")][seed % 2]
    value = body(seed, type)
    stores = ((2, value), (3, value > 0.5))
    flat = Nest(
        ("p",), (reads(dtype, "1"), reads(dtype, "1"), writes(dtype, "1"), writes("bool", "1")), (), stores
    )
    rows = Nest(
        ("p", "p"),
        (reads(dtype, "s1"), reads(dtype, "0s"), writes(dtype, "s1"), writes("bool", "s1")),
        (),
        stores,
    )
    for n in SIZES:
        arrays = [draw(rng, (n,), dtype), draw(rng, (n,), dtype), output((n,), dtype), output((n,), "bool")]
        check(flat, [n], arrays, cuts=[n // 3])
        shape = (3, n)
        arrays = [
            draw(rng, shape, dtype),
            draw(rng, (1, n), dtype),
            output(shape, dtype),
            output(shape, "bool"),
        ]
        check(rows, [3, n], arrays, cuts=[1])
    del several


@pytest.mark.parametrize("seed", range(4))
def test_rows(several: int, seed: int, rng: np.random.Generator) -> None:
    """A pass that reduces, one that reads what was reduced, and positions."""
    value = body(seed)
    mean = reduce("sum", value)
    operands = (
        reads("float32", "s1"),
        reads("float32", "s1"),
        writes("float32", "s1"),
        writes("int64", "10"),
    )
    nest = Nest(("p", "r"), operands, (), ((2, chain(value - mean * 0.01, 8)), (3, reduce("argmax", value))))
    for n in (*SIZES[1:], 16384 + 65):
        shape = (3, n)
        inputs = [draw(rng, shape, "float32", special=n < 100) for _ in range(2)]
        check(nest, [3, n], [*inputs, output(shape, "float32"), output(shape, "int64", (0,))], cuts=[1])
    del several


@pytest.mark.parametrize("seed", range(4))
def test_columns(several: int, seed: int, rng: np.random.Generator) -> None:
    """Down the columns, then a pass that reads what was reduced."""
    value = body(seed)
    mean = reduce("sum", value)
    operands = (
        reads("float32", "s1"),
        reads("float32", "0s"),
        writes("float32", "s1"),
        writes("float32", "01"),
    )
    nest = Nest(("r", "p"), operands, (), ((2, chain(value - mean * 0.01, 8)), (3, mean)))
    assert nest.schedule() == "columns"
    for n, c in zip((1, 5, 16, 17, 130, 33), (3, 64, 65, 127, 200, 300)):
        x, y = draw(rng, (n, c), "float32", special=n < 100), draw(rng, (1, c), "float32", special=False)
        check(nest, [n, c], [x, y, output((n, c), "float32"), output((n, c), "float32", (1,))], cuts=[1])
    del several


def test_in_place(several: int, rng: np.random.Generator) -> None:
    """Vectors side by side are read before any of them is written."""
    nest = Nest(
        ("p",), (reads("float32", "1"), reads("float32", "1"), writes("float32", "1")), (), ((2, body(3)),)
    )
    for n in SIZES:
        x, y, z = (draw(rng, (n,), "float32") for _ in range(3))
        for level in LEVEL_NAMES:
            run(nest, [n], [x, y, z], level=level)
            place = x.copy()
            run(nest, [n], [place, y, place], level=level)
            assert same(place, z)
    assert several * LANES < max(SIZES)


@pytest.mark.parametrize("columns", [1, 15, 63, 64, 65, 130, 257])
def test_epilogues(columns: int) -> None:
    """What is computed of a product's sums, long enough for several vectors, as by a kernel of its own."""
    functional = kiln.nn.functional
    x, w, b = kiln.randn(9, 33), kiln.randn(columns, 33), kiln.randn(columns)

    def program(x: kiln.Tensor, w: kiln.Tensor, b: kiln.Tensor) -> kiln.Tensor:
        y = functional.linear(x, w, b)
        return functional.mish(y) * functional.gelu(y * 0.5)

    compiled = kiln.compile(program)
    wanted = program(x, w, b)
    for _ in range(3):
        assert same(compiled(x, w, b).numpy(), wanted.numpy())
        compiled.wait()
    assert kiln.compiler.stats(compiled)["runs"]
