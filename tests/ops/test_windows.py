"""Convolutions beside PyTorch: geometry, gradients, layers; that no window is written out."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from backend import filled, torch

import kiln
from kiln.graph.graph import Graph
from kiln.ops.windows import products
from kiln.passes.pipeline import lower
from kiln.passes.simplify import simplify
from kiln.testing.compare import same_bits

SETTINGS = ((2, 2), (1, 1), (1, 0))


def plan_of(make: Any) -> Any:
    """The plan of a function of two 4-d arrays."""
    graph = Graph()
    a, b = (graph.add_input("float32", tuple(graph.new_symbol() for _ in range(4))) for _ in range(2))
    return lower(simplify(graph.finish([make(a, b)])))


@pytest.mark.parametrize("stride", [(1, 1), (2, 2)])
@pytest.mark.parametrize("groups", [(1, 0), (4, 3)])
def test_no_window_is_written_out(groups: tuple[int, int], stride: tuple[int, int]) -> None:
    """What memory a plan takes is the padded input's, the weight's or the result's: taps multiply none."""
    rest = ((3, 3), stride, (1, 1), (1, 1), groups)
    made = {
        "convolve": lambda x, w: products.convolve(x, w, None, *rest),
        "convolve_input": lambda g, w: products.convolve_input(g, w, None, (28, 28), *rest),
        "convolve_weight": lambda g, x: products.convolve_weight(g, x, (5,), *rest),
    }
    sizes = {"n": 8, "c": 20 if groups[0] > 1 else 5, "o": 12}
    for name, make in made.items():
        plan = plan_of(make)
        assert any(k.text().startswith("window matmul") for k in plan.kernels), name
        first, second = (sizes["o"] if name != "convolve" else sizes["c"]), sizes["c"]
        values = [sizes["n"], first, 14, 14]
        values += [sizes["n"], second, 28, 28] if name == "convolve_weight" else [sizes["o"], 5, 3, 3]
        largest = 8 * 20 * 32 * 32
        for buffer in plan.buffers:
            if buffer.kind == "temp":
                assert kiln.graph.size.evaluate(buffer.elements, values.__getitem__) <= largest, name


@pytest.mark.parametrize(("kernel", "launched"), [(1, 1), (2, 4), (3, 4)])
def test_gradients_of_strided_convolutions_go_where_they_belong(kernel: int, launched: int) -> None:
    """A product for each phase that a tap reaches; they are written into one array, which nothing copies."""
    rest = ((kernel, kernel), (2, 2), (kernel // 2,) * 2, (1, 1), (1, 0))
    plan = plan_of(lambda g, w: products.convolve_input(g, w, None, (28, 28), *rest))
    steps = [step for step in plan.steps if hasattr(step, "kernel")]
    texts = [plan.kernels[step.kernel].text() for step in steps]
    assert sum("matmul" in text for text in texts) == launched, plan.text()
    (whole,) = [k for k, buffer in enumerate(plan.buffers) if buffer.kind == "output"]
    touching = [step for step in steps if any(p[0] == whole for p in step.pointers)]
    assert len(touching) == 1 + launched, plan.text()


@pytest.mark.parametrize("groups", [(1, 0), (4, 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_transposed_weights_are_read_where_they_lie(stride: int, groups: tuple[int, int]) -> None:
    """By the products alone: k is output channels and taps, of the phases every other tap."""
    rest = ((3, 3), (stride,) * 2, (1, 1), (1, 1), groups)
    plan = plan_of(lambda g, w: products.convolve_input(g, w, None, (28, 28), *rest))
    (weight,) = [k for k, b in enumerate(plan.buffers) if b.kind == "input" and b.index == 1]
    steps = [step for step in plan.steps if any(p[0] == weight for p in getattr(step, "pointers", ()))]
    assert [plan.kernels[step.kernel].text().split()[:2] for step in steps] == [
        ["window", "matmul"]
    ] * stride**2


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d"])
def test_channels_last_arrays_have_the_same_bits(name: str) -> None:
    """Input, weight and gradient in any format: results and gradients as of arrays in order."""

    def run(memory_format: Any) -> list[Any]:
        kiln.manual_seed(3)
        leaves = [kiln.randn(2, 6, 7, 9), kiln.randn(6, 6, 3, 3)]
        x, w = (t.to(memory_format=memory_format).requires_grad_() for t in leaves)
        y = getattr(kiln.nn.functional, name)(x, w, stride=2, padding=1)
        g = kiln.randn(*y.shape).to(memory_format=memory_format)
        return [y, *kiln.autograd.grad(y, [x, w], g)]

    for a, b in zip(run(kiln.contiguous_format), run(kiln.channels_last), strict=True):
        assert same_bits(a.detach().numpy(), b.detach().numpy())


def geometries(count: int) -> list[dict[str, Any]]:
    """Drawn sizes and settings; every kernel fits."""
    rng = random.Random(5)
    found = []
    for _ in range(count):
        dims = rng.choice([1, 2, 2, 2, 3])
        groups = rng.choice([1, 1, 2, 3])
        per, channels = rng.choice([1, 2, 4]), rng.choice([1, 2, 3])
        kernel = [rng.choice([1, 2, 3, 4]) for _ in range(dims)]
        dilation = [rng.choice([1, 1, 2]) for _ in range(dims)]
        padding = [rng.choice([0, 1, 2]) for _ in range(dims)]
        stride = [rng.choice([1, 1, 2, 3]) for _ in range(dims)]
        sizes = [r * (k - 1) + 1 + rng.choice([0, 1, 4, 9]) for k, r in zip(kernel, dilation)]
        found.append({
            "x": (rng.choice([1, 3]), groups * channels, *sizes), "w": (groups * per, channels, *kernel),
            "stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
            "bias": rng.random() < 0.5,
        })  # fmt: skip
    return found


@pytest.mark.parametrize("case", geometries(28), ids=lambda c: f"{c['x']}-{c['w']}")
def test_convolutions_are_pytorch_s(case: dict[str, Any], answers: Any) -> None:
    """Values and first and second gradients in float64; of one image the recorded run has the eager bits."""
    dims = len(case["stride"])
    rng = np.random.default_rng(1)
    arrays = [rng.normal(size=case["x"]), rng.normal(size=case["w"])]
    arrays += [rng.normal(size=case["w"][0])] if case["bias"] else []
    settings = {k: case[k] for k in ("stride", "padding", "dilation", "groups")}

    def run(k: Any) -> list[Any]:
        leaves = [k.tensor(a, requires_grad=True) for a in arrays]
        y = getattr(k.nn.functional, f"conv{dims}d")(*leaves, **settings)
        first = k.autograd.grad((y * y).sum(), leaves, create_graph=True)
        again = k.autograd.grad(sum(((g * g).sum() for g in first), first[0].sum()), leaves)
        return [x.detach().numpy() for x in (y, *first, *again)]

    eager = run(kiln)
    for x, y in zip(eager, answers([arrays, settings, run], lambda: run(torch)), strict=True):
        assert x.shape == y.shape
        assert np.allclose(x, y, rtol=1e-10, atol=1e-10 * max(1.0, float(np.abs(y).max(initial=0))))

    if case["x"][0] > 1:  # compiling takes its time
        return

    def values(*leaves: Any) -> Any:
        y = getattr(kiln.nn.functional, f"conv{dims}d")(*leaves, **settings)
        return [y, *kiln.autograd.grad(y.sum(), leaves)]

    recorded, leaves = kiln.compile(values, wait=True), [kiln.tensor(a, requires_grad=True) for a in arrays]
    expected = [x.detach().numpy() for x in values(*leaves)]
    for _ in range(3):
        assert all(same_bits(x, y.detach().numpy()) for x, y in zip(expected, recorded(*leaves)))


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_layers_are_pytorch_s(dims: int, answers: Any) -> None:
    name = f"ConvTranspose{dims}d"
    x = np.random.default_rng(0).normal(size=(2, 4, *(3, 4, 2)[:dims]))

    def run(k: Any, name: str, settings: dict[str, Any], x: Any) -> Any:
        layer = filled(k, getattr(k.nn, name)(4, 6, 3, **settings).double())
        wanted = [n + 1 for n in layer(k.tensor(x)).shape[2:]] if settings.get("stride") == 2 else None
        if wanted and not settings.get("output_padding"):
            assert tuple(layer(k.tensor(x), wanted).shape[2:]) == tuple(wanted)
        return repr(layer), list(layer.state_dict()), layer(k.tensor(x)).detach().numpy()

    for settings in (
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"dilation": 2, "groups": 2, "bias": False},
    ):
        (*shown, mine), (*wanted, theirs) = answers.both(run, name, settings, x)
        assert shown == wanted
        assert mine.shape == theirs.shape and np.allclose(mine, theirs, atol=1e-12)
    with pytest.raises(ValueError, match="requested an output size"):
        getattr(kiln.nn, name)(4, 6, 3)(kiln.zeros(1, 4, *(5,) * dims), [99] * dims)


def test_output_padding_beyond_the_stride(answers: Any) -> None:
    """Where the dilation allows as much, the output has places that no input has; gradients have its size."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2, 4, 5, 6)), rng.normal(size=(4, 3, 2, 3))]
    settings = {"stride": (1, 2), "padding": (0, 1), "dilation": (3, 4), "output_padding": (2, 3)}

    def run(k: Any, arrays: list[Any], settings: dict[str, Any]) -> list[Any]:
        leaves = [k.tensor(a, requires_grad=True) for a in arrays]
        y = k.nn.functional.conv_transpose2d(*leaves, **settings)
        first = k.autograd.grad((y * y).sum(), leaves, create_graph=True)
        return [y, *first, *k.autograd.grad(sum((g * g).sum() for g in first), leaves)]

    for mine, true in zip(*answers.both(run, arrays, settings), strict=True):
        assert mine.shape == true.shape
        assert np.allclose(mine.numpy(), true.numpy(), rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
def test_padding_modes(mode: str, answers: Any) -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 7, 8))

    def run(k: Any, mode: str, settings: dict[str, Any], x: Any) -> Any:
        layer = filled(k, k.nn.Conv2d(3, 4, (2, 3), padding_mode=mode, **settings).double())
        return repr(layer), list(layer.state_dict()), layer(k.tensor(x)).detach().numpy()

    for settings in ({"padding": "same", "dilation": 2}, {"padding": (1, 2), "stride": 2}):
        (*shown, mine), (*wanted, theirs) = answers.both(run, mode, settings, x)
        assert shown == wanted
        assert mine.shape == theirs.shape and np.allclose(mine, theirs, atol=1e-12)


def test_starting_values_and_mistakes_of_layers() -> None:
    kiln.manual_seed(0)
    layer = kiln.nn.Conv2d(16, 32, 3)
    bound = 1 / math.sqrt(16 * 9)
    for parameter in (layer.weight, layer.bias):
        largest = float(parameter.abs().max())
        assert 0.9 * bound < largest <= bound
    for arguments, settings, words in [
        ((3, 4, 3), {"groups": 2}, "in_channels must be divisible by groups"),
        ((4, 3, 3), {"groups": 2}, "out_channels must be divisible by groups"),
        ((4, 4, 3), {"padding": "all"}, "Invalid padding string"),
        ((4, 4, 3), {"padding": "same", "stride": 2}, "not supported for strided"),
        ((4, 4, 3), {"padding_mode": "mirror"}, "padding_mode must be one of"),
    ]:
        with pytest.raises(ValueError, match=words):
            kiln.nn.Conv2d(*arguments, **settings)


def test_every_layout_gives_the_same_bits() -> None:
    kiln.manual_seed(0)
    x, w = kiln.randn(2, 6, 9, 10), kiln.randn(4, 6, 3, 3)
    expected = kiln.nn.functional.conv2d(x, w, padding=1).numpy()
    channels_last = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    wide = kiln.randn(2, 6, 18, 10)
    wide[:, :, ::2] = x
    for other in (channels_last, wide[:, :, ::2], x.expand(2, 6, 9, 10)):
        assert same_bits(expected, kiln.nn.functional.conv2d(other, w, padding=1).numpy())
    weight = w.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)
    assert same_bits(expected, kiln.nn.functional.conv2d(x, weight, padding=1).numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_convolutions_are_products_of_their_dtype(dtype: str) -> None:
    """The bits of a convolution and of its gradients are those of the products written out, in each dtype:
    on AMX that of bfloat16 has an order of its own.
    """
    f, kind = kiln.nn.functional, getattr(kiln, dtype)
    rng = np.random.default_rng(4)
    x, w, g = (
        kiln.tensor(rng.normal(size=shape)).to(kind)
        for shape in ((2, 40, 9, 7), (33, 40, 3, 3), (2, 33, 9, 7))
    )
    leaves = [v.clone().requires_grad_() for v in (x, w)]
    y = f.conv2d(*leaves, padding=1)
    dx, dw = kiln.autograd.grad(y, leaves, g)
    seen = f.unfold(x, 3, padding=1)
    rows, seen_by_tap = g.transpose(0, 1).reshape(33, -1), seen.transpose(1, 2).reshape(-1, 360)
    transposed = w.transpose(0, 1).reshape(40, -1)
    backwards = f.unfold(g, 3, padding=1).reshape(2, 33, 9, -1).flip(2).reshape(2, 297, -1)
    for mine, written_out in (
        (y, w.reshape(33, -1) @ seen),
        (dx, transposed @ backwards),
        (dw, rows @ seen_by_tap),
    ):
        assert same_bits(mine.detach().double().numpy().ravel(), written_out.double().numpy().ravel())


def test_integers_that_are_convolved_stay_narrow() -> None:
    """8-bit integers in a convolution written with int32 are what its product reads."""
    graph = Graph()
    x, w = (graph.add_input("int8", tuple(graph.new_symbol() for _ in range(4))) for _ in range(2))
    x, w = (graph.add(kiln.table.record.find("convert"), (v,), ("int32",)) for v in (x, w))
    y = products.convolve(x, w, None, (3, 3), *SETTINGS[:1], (1, 1), (1, 1), (1, 0))
    plan = lower(simplify(graph.finish([y])))
    assert any(k.text().startswith("window matmul int8") for k in plan.kernels), plan.text()
