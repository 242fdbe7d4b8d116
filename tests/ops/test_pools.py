"""Pools beside PyTorch's: settings at random, ties, NaN and infinities, integers, layouts, recorded."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

from kiln.testing.compare import to_array

pytestmark = needs_kiln


def drawn(rng: Any, shape: tuple[int, ...], dtype: str = "float64") -> Any:
    """Few different values: ties everywhere."""
    return rng.integers(-3, 4, shape).astype(dtype)


def settings_of(rng: Any, dims: int) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Sizes, and settings of a pool that PyTorch takes for them."""
    kernel = rng.integers(1, 5, dims)
    dilation = rng.integers(1, 3, dims)
    reach = dilation * (kernel - 1) + 1
    padding = [int(rng.integers(0, k // 2 + 1)) for k in kernel]
    sizes = tuple(int(n) for n in reach + rng.integers(0, 7, dims))
    options = {
        "kernel_size": kernel.tolist(), "stride": rng.integers(1, 4, dims).tolist(), "padding": padding,
        "ceil_mode": bool(rng.integers(2)), "dilation": dilation.tolist(),
    }  # fmt: skip
    return sizes, options


def found(f: Any, name: str, x: Any, options: dict[str, Any]) -> list[Any]:
    """Results of a function of nn.functional, and its gradient."""
    t = f.from_numpy(x.copy()).requires_grad_(x.dtype.kind == "f")
    y = getattr(f.nn.functional, name)(t, **options)
    results = list(y) if isinstance(y, tuple) else [y]
    if t.requires_grad:
        weight = f.arange(1.0, results[0].numel() + 1, dtype=results[0].dtype)
        (results[0].reshape(-1) * weight).sum().backward()
        results.append(t.grad)
    return [to_array(r.detach()) for r in results]


def agree(answers: Any, name: str, x: Any, **options: Any) -> None:
    for ours, theirs in zip(*answers.both(found, name, x, options), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, (name, x.shape, options)
        np.testing.assert_allclose(
            ours, theirs, rtol=1e-12, atol=1e-12, err_msg=f"{name} {x.shape} {options}"
        )


@pytest.mark.parametrize(("dims", "seed"), [*itertools.product((1, 2, 3), range(6))])
def test_max_pools_of_any_setting(dims: int, seed: int, answers: Any) -> None:
    rng = np.random.default_rng(seed)
    sizes, options = settings_of(rng, dims)
    lead = (2, 3) if seed % 2 else (2,)
    agree(answers, f"max_pool{dims}d", drawn(rng, (*lead, *sizes)), return_indices=True, **options)


@pytest.mark.parametrize(("dims", "seed"), [*itertools.product((1, 2, 3), range(6))])
def test_average_pools_of_any_setting(dims: int, seed: int, answers: Any) -> None:
    rng = np.random.default_rng(seed)
    sizes, options = settings_of(rng, dims)
    del options["dilation"]
    options["count_include_pad"] = bool(rng.integers(2))
    if dims > 1 and seed == 3:
        options["divisor_override"] = 7
    lead = (2, 3) if seed % 2 else (2,)
    agree(answers, f"avg_pool{dims}d", drawn(rng, (*lead, *sizes)), **options)


@pytest.mark.parametrize(("dims", "seed"), [*itertools.product((1, 2, 3), range(5))])
def test_adaptive_pools_of_any_size(dims: int, seed: int, answers: Any) -> None:
    rng = np.random.default_rng(seed)
    sizes, out = (tuple(int(n) for n in rng.integers(1, 8, dims)) for _ in range(2))
    x = drawn(rng, (2, 2, *sizes))
    agree(answers, f"adaptive_avg_pool{dims}d", x, output_size=out)
    agree(answers, f"adaptive_max_pool{dims}d", x, output_size=out, return_indices=True)
    agree(answers, f"adaptive_max_pool{dims}d", x, output_size=1, return_indices=True)


@pytest.mark.parametrize("kernel", [(6, 7), (1, 60), (40, 2)])
def test_large_windows(kernel: tuple[int, int], answers: Any) -> None:
    """Windows of more taps than are read at once, and of more than a byte numbers."""
    x = drawn(np.random.default_rng(1), (2, 43, 61))
    x[0, 5, 7] = np.nan
    for name, options in (("max_pool2d", {"return_indices": True}), ("avg_pool2d", {})):
        agree(
            answers,
            name,
            x,
            kernel_size=kernel,
            stride=(2, 3),
            padding=tuple(k // 2 for k in kernel),
            **options,
        )


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"padding": 1, "dilation": 2}, {"ceil_mode": True}])
def test_nan_and_infinities(options: Any, answers: Any) -> None:
    """The last NaN of a window is found; of nothing but -inf the first element, never a padded place."""
    rng = np.random.default_rng(0)
    special = np.array([np.nan, -np.inf, np.inf, 0.0, -0.0])
    for x in (rng.choice(special, (2, 7, 8), p=[0.2, 0.4, 0.1, 0.2, 0.1]), np.full((1, 7, 7), -np.inf)):
        for kernel, stride in ((3, 2), (2, 2), (3, 3)):
            agree(answers, "max_pool2d", x, kernel_size=kernel, stride=stride, return_indices=True, **options)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64"])
def test_integers(dtype: str, answers: Any) -> None:
    """Of the lowest integer everywhere too; means of int64 toward zero."""
    rng = np.random.default_rng(0)
    x = (drawn(rng, (2, 7, 8)) + 4 * (dtype == "uint8")).astype(dtype)
    lowest = np.full((1, 5, 5), np.iinfo(dtype).min, dtype)
    for values in (x, lowest):
        agree(answers, "max_pool2d", values, kernel_size=3, stride=2, padding=1, return_indices=True)
    if dtype == "int64":
        agree(answers, "avg_pool2d", x, kernel_size=3, stride=2, padding=1)


def test_layouts_and_empty_batches() -> None:
    """Channels last, a slice and no items at all give what contiguous arrays give."""
    x = drawn(np.random.default_rng(0), (2, 7, 8, 3))
    for t in (kiln.from_numpy(x).permute(0, 3, 1, 2), kiln.from_numpy(x)[..., ::2].permute(0, 3, 1, 2)):
        for name in ("max_pool2d", "avg_pool2d"):
            pool = getattr(kiln.nn.functional, name)
            assert pool(t, 3, 2, 1).tolist() == pool(t.contiguous(), 3, 2, 1).tolist()
    for name in ("max_pool2d", "avg_pool2d"):
        assert getattr(kiln.nn.functional, name)(kiln.zeros(0, 3, 6, 6), 2).shape == (0, 3, 3, 3)


def test_recorded_is_eager() -> None:
    """A recorded step through every kind of pool, three calls, gives the gradients of running it."""
    f = kiln.nn.functional

    def step(x: Any) -> Any:
        x.grad = None
        y = f.max_pool2d(x, 3, 2, 1) + f.avg_pool2d(x, 2)
        y, at = f.adaptive_max_pool2d(y, 3, True)
        y = f.adaptive_avg_pool2d(f.max_unpool2d(y, at, 2, output_size=(5, 5)), (3, 1))
        y.sum().backward()
        return y, x.grad

    values = kiln.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 8, 8)))
    want = [t.tolist() for t in step(values.clone().requires_grad_())]
    recorded = kiln.compile(step)
    x = values.clone().requires_grad_()
    for _ in range(3):
        assert [t.tolist() for t in recorded(x)] == want


def test_second_derivatives(answers: Any) -> None:
    """Derivatives of the gradients of both kinds of windows, apart and overlapping."""
    values = np.random.default_rng(0).standard_normal((2, 6, 6))

    def second(f: Any, values: Any, name: str, options: dict[str, Any]) -> Any:
        x = f.from_numpy(values.copy()).requires_grad_()
        y = getattr(f.nn.functional, name)(x * x, **options)
        (first,) = f.autograd.grad((y**3).sum(), x, create_graph=True)
        return to_array(f.autograd.grad((first**2).sum(), x)[0])

    for name, options in (
        ("max_pool2d", {"kernel_size": 2}), ("max_pool2d", {"kernel_size": 3, "stride": 2, "padding": 1}),
        ("avg_pool2d", {"kernel_size": 3, "stride": 2, "padding": 1}),
        ("adaptive_max_pool2d", {"output_size": 4}), ("adaptive_avg_pool2d", {"output_size": 4}),
    ):  # fmt: skip
        ours, theirs = answers.both(second, values, name, options)
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12, err_msg=name)


SETTINGS = (
    ((2, 3, 17), (3, 2, 1)), ((2, 3, 17), (3, 1, 1, 3)), ((2, 3, 9, 10), (2, 2)), ((2, 3, 9, 10), (3, 2, 1)),
    ((2, 3, 9, 10), (3, 1, 1)), ((2, 3, 9, 10), ((2, 3), (3, 1), 1, (1, 2))), ((2, 5, 6, 7), (2, 2, 1, 2)),
    ((1, 2, 5, 6, 7), (3, 2, 1)),
)  # fmt: skip


@pytest.mark.parametrize("shape, settings", SETTINGS)
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_gradients_are_sums_in_order(shape: Any, settings: Any, ceil_mode: bool, rng: Any) -> None:
    """Windows after one another, each sum in float32, bit for bit; of planes of nothing but the lowest value
    too, with gradients in any layout, for samples of a batch one by one.
    """
    pool = getattr(kiln.nn.functional, f"max_pool{len(shape) - 2}d")
    values = rng.standard_normal(shape).round(1).astype(np.float32)
    values[rng.random(shape) < 0.3] = -np.inf
    values[0, 1] = -np.inf
    x = kiln.tensor(values).requires_grad_()
    y, at = pool(x, *settings, ceil_mode=ceil_mode, return_indices=True)
    g = rng.standard_normal(tuple(y.shape)).astype(np.float32)
    lead = shape[0] * shape[1]
    want = np.zeros((lead, values[0, 0].size), np.float32)
    np.add.at(want, (np.arange(lead)[:, None], at.reshape(lead, -1).numpy()), g.reshape(lead, -1))
    for given in (kiln.tensor(g), kiln.tensor(g.T.copy()).permute(*range(g.ndim)[::-1])):
        (found,) = kiln.autograd.grad(y, x, given, retain_graph=True)
        np.testing.assert_array_equal(found.numpy(), want.reshape(shape))

    def back(x: Any, g: Any) -> Any:
        return kiln.func.vjp(lambda x: pool(x, *settings, ceil_mode=ceil_mode), x)[1](g)[0]

    mapped = kiln.func.vmap(back)(x.detach(), kiln.tensor(g))
    np.testing.assert_array_equal(mapped.numpy(), want.reshape(shape))


def test_gradients_in_another_layout() -> None:
    """A recorded step puts a gradient into every other column of an array that is there."""
    f = kiln.nn.functional

    def step(x: Any, out: Any) -> Any:
        (g,) = kiln.autograd.grad(f.max_pool2d(x, 3, 2, 1).sum(), x)
        out[..., ::2].copy_(g)
        return out

    x = kiln.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 7, 6))).requires_grad_()
    want = step(x, kiln.zeros(2, 3, 7, 12, dtype=kiln.float64)).tolist()
    recorded = kiln.compile(step)
    for _ in range(3):
        assert recorded(x, kiln.zeros(2, 3, 7, 12, dtype=kiln.float64)).tolist() == want
