"""interpolate, unfold and fold beside PyTorch's: modes, sizes and factors at random, gradients, recorded."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln

from kiln.testing.compare import to_array

pytestmark = needs_kiln

MODES = {
    1: ["nearest", "nearest-exact", "linear", "area"],
    2: ["nearest", "nearest-exact", "bilinear", "bicubic", "area"],
    3: ["nearest", "nearest-exact", "trilinear", "area"],
}


def found(f: Any, run: Any, values: Any, double: bool) -> list[Any]:
    """Results, gradients and (of cubes) second derivatives of a function of (framework, tensor)."""
    x = f.from_numpy(values.copy()).requires_grad_()
    y = run(f, x)
    weight = f.arange(1.0, y.numel() + 1, dtype=y.dtype).reshape(y.shape) / y.numel()
    (first,) = f.autograd.grad((y**3 * weight).sum(), x, create_graph=double)
    more = f.autograd.grad((first**2).sum(), x) if double else ()
    return [to_array(t.detach()) for t in (y, first, *more)]


def agree(answers: Any, run: Any, values: Any, tolerance: float = 1e-10, double: bool = False) -> None:
    for ours, theirs in zip(*answers.both(found, run, values, double), strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


def resized(**options: Any) -> Any:
    return lambda f, x: f.nn.functional.interpolate(x, **options)


@pytest.mark.parametrize(("dims", "seed"), [*itertools.product((1, 2, 3), range(4))])
def test_sizes_and_factors(dims: int, seed: int, answers: Any) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((2, 2, *rng.integers(1, 7, dims)))
    for mode in MODES[dims]:
        options: dict[str, Any] = {"mode": mode}
        if mode.endswith(("linear", "cubic")):
            options["align_corners"] = bool(rng.integers(2))
        if rng.integers(2):
            options["size"] = rng.integers(1, 30 if dims == 1 else 9, dims).tolist()
        else:
            options["scale_factor"] = rng.uniform(1, 3, dims).tolist()
            options["recompute_scale_factor"] = [None, True, False][rng.integers(3)]
        agree(answers, resized(**options), values, double=seed == 0)


@pytest.mark.parametrize(("n", "out"), [(5, 5), (5, 10), (7, 3), (1, 6), (6, 1), (3, 40), (40, 3), (64, 21)])
def test_nearest_is_the_same_element(n: int, out: int, answers: Any) -> None:
    """Every element comes from the very place PyTorch takes it from, in float32 as well."""
    for dtype in ("float32", "float64"):
        values = np.arange(1.0, n + 1, dtype=dtype).reshape(1, 1, n)
        for mode in ("nearest", "nearest-exact"):
            agree(answers, resized(size=out, mode=mode), values, 1e-5)


@pytest.mark.parametrize("mode", ["nearest", "bilinear", "bicubic"])
def test_narrow_dtypes(mode: str, answers: Any) -> None:
    """float16 and bfloat16 are rounded once, after both dims."""
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 5)).astype("float32")

    def doubled(f: Any, x: Any, mode: str, dtype: str) -> Any:
        return f.nn.functional.interpolate(f.from_numpy(x).to(getattr(f, dtype)), scale_factor=2, mode=mode)

    for dtype in ("float16", "bfloat16"):
        ours, theirs = answers.both(doubled, x, mode, dtype)
        assert ours.dtype == theirs.dtype == dtype
        np.testing.assert_allclose(
            ours.float().numpy(), theirs.float().numpy(), atol=0.03 if dtype == "bfloat16" else 0.004
        )


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_bytes(mode: str, answers: Any) -> None:
    """uint8 is rounded as PyTorch rounds it: whole weights, after the columns and after the rows."""

    def resized(f: Any, x: Any, mode: str) -> Any:
        x = f.from_numpy(x)
        sizes = ((4, 4), (3, 7), (11, 2))
        flags = itertools.product(sizes, (None, True), (False, True))
        resize = f.nn.functional.interpolate
        return [resize(x, s, mode=mode, align_corners=c, antialias=a).tolist() for s, c, a in flags]

    x = np.random.default_rng(0).integers(0, 256, (1, 3, 4, 5)).astype(np.uint8)
    ours, theirs = answers.both(resized, x, mode)
    assert ours == theirs


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64"])
def test_nearest_of_any_dtype(dtype: str) -> None:
    x = kiln.tensor([[[0, 1]]]).to(getattr(kiln, dtype))
    assert kiln.nn.functional.interpolate(x, 4).tolist() == x[..., [0, 0, 1, 1]].tolist()


@pytest.mark.parametrize("seed", range(6))
def test_columns_of_any_setting(seed: int, answers: Any) -> None:
    """unfold and fold of one setting, with their derivatives."""
    rng = np.random.default_rng(seed)
    kernel, dilation, stride = rng.integers(1, 4, 2), rng.integers(1, 3, 2), rng.integers(1, 4, 2)
    padding = rng.integers(0, 3, 2)
    size = (dilation * (kernel - 1) + 1 + rng.integers(0, 4, 2)).tolist()
    settings = [v.tolist() for v in (kernel, dilation, padding, stride)]
    x = rng.standard_normal((*([2] if seed % 2 else []), 3, *size))
    agree(answers, lambda f, t: f.nn.functional.unfold(t, *settings), x, double=True)
    columns = kiln.nn.functional.unfold(kiln.from_numpy(x), *settings).numpy()
    agree(answers, lambda f, t: f.nn.functional.fold(t, size, *settings), columns, double=True)


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (((1, 1, 2), 2), "components must be at least one"),
        (((1, 2, 2), 0), "kernel size should be greater than zero"),
        (((2, 2), 1), "Expected 3D or 4D"),
        (((1, 2, 2), (1, 2, 3)), "It is expected kernel_size equals to 2"),
        (((1, 2, 2), 1, 1, -1), "padding should be non-negative"),
    ],
)
def test_unfold_refuses(args: Any, match: str) -> None:
    shape, *settings = args
    with pytest.raises(RuntimeError, match=match):
        kiln.nn.functional.unfold(kiln.zeros(*shape), *settings)


def test_recorded_is_eager() -> None:
    f = kiln.nn.functional

    def step(x: Any) -> Any:
        x.grad = None
        y = f.interpolate(x, scale_factor=2, mode="bilinear") + f.interpolate(x, (8, 8))
        y = f.fold(f.unfold(y, 3, padding=1), (8, 8), 3, padding=1)
        y.square().sum().backward()
        return y, x.grad

    values = kiln.from_numpy(np.random.default_rng(0).standard_normal((2, 3, 4, 4)))
    want = [t.tolist() for t in step(values.clone().requires_grad_())]
    recorded = kiln.compile(step)
    x = values.clone().requires_grad_()
    for _ in range(3):
        for got, wanted in zip(recorded(x), want, strict=True):
            assert got.tolist() == wanted


@pytest.mark.parametrize(
    ("mode", "dims"), [("bilinear", 2), ("nearest", 2), ("bicubic", 2), ("bilinear", 3), ("nearest", 3)]
)
def test_images_at_the_places_of_a_grid(mode: str, dims: int, answers: Any) -> None:
    """Results and both gradients, on elements, between them, on the border and beyond; of one element too."""
    rng = np.random.default_rng(dims)
    few = [("reflection", False, [5, 4, 3]), ("reflection", True, [1, 3, 1])]
    more = (
        [("border", True, [5, 4, 3]), ("zeros", False, [5, 4, 3])] if (mode, dims) == ("bilinear", 2) else []
    )

    def sampled(f: Any, x: Any, grid: Any, mode: str, padding: str, corners: bool) -> list[Any]:
        leaves = [f.from_numpy(v.copy()).requires_grad_() for v in (x, grid)]
        y = f.nn.functional.grid_sample(*leaves, mode, padding, align_corners=corners)
        return [to_array(t.detach()) for t in (y, *f.autograd.grad((y**2).sum(), leaves))]

    for padding, corners, sizes in few + more:
        x = rng.standard_normal((2, 2, *sizes[:dims]))
        grid = rng.uniform(-2.5, 2.5, (2, *[3, 2, 2][:dims], dims))
        grid.reshape(-1)[:6] = [-1, 1, 0, 1, -1, 0.5]
        for ours, theirs in zip(*answers.both(sampled, x, grid, mode, padding, corners), strict=True):
            np.testing.assert_allclose(
                ours, theirs, rtol=1e-9, atol=1e-9, err_msg=f"{padding} {corners} {sizes}"
            )


def test_spatial_transformer_is_one_program() -> None:
    """An affine map of images that is learned: recorded, a step is one program with the bits of its ops."""
    x = kiln.tensor(np.random.default_rng(0).standard_normal((2, 3, 5, 4)).astype("float32"))

    def train(recorded: bool) -> tuple[list[bytes], Any]:
        theta = kiln.tensor([[[1.0, 0.25, 0.0], [-0.25, 1.0, 0.125]]] * 2, requires_grad=True)

        def step() -> Any:
            functional = kiln.nn.functional
            theta.grad = None
            places = functional.affine_grid(theta, (2, 3, 3, 6), align_corners=False)
            loss = functional.grid_sample(x, places, align_corners=False).square().mean()
            loss.backward()
            with kiln.no_grad():
                theta.sub_(theta.grad)
            return loss

        run = kiln.compile(step, wait=True) if recorded else step
        found = [run().detach().numpy().tobytes() for _ in range(3)]
        return [*found, theta.detach().numpy().tobytes()], run

    got, run = train(True)
    assert got == train(False)[0]
    assert (run.stats()["programs"], run.stats()["runs"]) == (1, 3)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_antialiasing(mode: str, answers: Any) -> None:
    values = np.random.default_rng(0).standard_normal((2, 1, 5, 6))
    for sizes, corners in itertools.product(((3, 3), (7, 9), (2, 6), (1, 1)), (False, True)):
        options = {"size": sizes, "mode": mode, "antialias": True, "align_corners": corners}
        agree(answers, resized(**options), values)
    agree(answers, resized(scale_factor=0.6, mode=mode, antialias=True), values, double=True)


def test_fractional_pools_are_one_program() -> None:
    """Windows at drawn places end no recording, and whatever is drawn, they stay in the input."""
    x = kiln.arange(50.0).reshape(1, 2, 5, 5)
    pool = kiln.nn.functional.fractional_max_pool2d

    @kiln.compile(wait=True)
    def step(x: Any, u: Any) -> Any:
        return pool(x * 2, 2, output_size=3, return_indices=True, _random_samples=u)

    u = kiln.tensor([[[0.25, 0.5], [0.75, 0.0]]])
    plain = pool(x * 2, 2, output_size=3, return_indices=True, _random_samples=u)
    for _ in range(2):
        assert [y.tolist() for y in step(x, u)] == [y.tolist() for y in plain]
    assert step.stats()["programs"] == 1
    for wrong in (float("nan"), 1e9, -1e9):
        places = pool(x, 2, output_size=3, return_indices=True, _random_samples=kiln.full((1, 2, 2), wrong))[
            1
        ]
        assert 0 <= int(places.min()) <= int(places.max()) < 25


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("factor", [2, 8])
def test_whole_factors_have_the_gradient_of_any_other(
    dtype: str, factor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours that see one element are added in the order, and with the zeros, of the general rule."""
    from kiln.ops.nn import interpolation

    kind, rng = getattr(kiln, dtype), np.random.default_rng(factor)
    x = kiln.from_numpy(rng.standard_normal((2, 3, 4, 5))).to(kind).requires_grad_()
    weight = kiln.from_numpy(rng.standard_normal((2, 3, 4 * factor, 5 * factor))).to(kind)
    weight = kiln.where(weight < -1, -0.0, weight)

    def gradient(mode: str) -> Any:
        y = kiln.nn.functional.interpolate(x, scale_factor=factor, mode=mode)
        (g,) = kiln.autograd.grad((y * weight).sum(), x)
        return to_array(g.to(kiln.float32)).view(np.int32)

    whole = gradient("nearest")
    assert np.array_equal(gradient("nearest-exact"), whole)
    monkeypatch.setattr(interpolation, "_whole", lambda *_: 0)
    assert np.array_equal(gradient("nearest"), whole)
