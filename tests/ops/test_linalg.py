"""kiln.linalg beside PyTorch: what the op harness cannot compare because signs of vectors are free, because
only a triangle is read, or because something goes wrong.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from backend import kiln, torch

from kiln.testing.compare import to_array

pytest.importorskip("scipy")


def matrices(shape: tuple[int, ...], seed: int = 0, positive: bool = False) -> Any:
    """A batch of matrices with well separated singular values, symmetric positive definite if asked for."""
    x = np.random.default_rng(seed).normal(size=shape)
    if positive:
        x = x @ np.swapaxes(x, -1, -2) / shape[-1] + np.eye(shape[-1])
    return x


def symmetric(f: Any, x: Any) -> Any:
    return (x + x.transpose(-1, -2)) / 2


# name -> (a function of a framework and a matrix whose value does not depend on what is free, shapes)
FREE: dict[str, tuple[Callable[[Any, Any], Any], list[tuple[int, ...]], bool]] = {
    "svd": (lambda f, x: rebuilt_svd(f, f.linalg.svd(x, full_matrices=False)), [(3, 2), (2, 2, 3)], False),
    "svd in full": (lambda f, x: rebuilt_svd(f, f.linalg.svd(x)), [(3, 3), (2, 3)], False),
    "torch.svd": (lambda f, x: f.svd(x).U.abs() + f.svd(x).S, [(3, 2)], False),
    "qr": (lambda f, x: rebuilt_qr(f, f.linalg.qr(x)), [(3, 2), (2, 2, 3), (3, 3)], False),
    "qr complete": (lambda f, x: f.linalg.qr(x, "complete").R.abs(), [(2, 3)], False),
    "torch.qr": (lambda f, x: f.qr(x).Q.abs(), [(3, 2)], False),
    "eigh": (lambda f, x: rebuilt_eigh(f, f.linalg.eigh(symmetric(f, x))), [(3, 3), (2, 2, 2)], False),
    "eigh of U": (lambda f, x: f.linalg.eigh(symmetric(f, x), "U").eigenvectors.abs(), [(3, 3)], False),
    "eigvalsh": (lambda f, x: f.linalg.eigvalsh(symmetric(f, x)), [(3, 3), (2, 2, 2)], False),
    "cholesky": (lambda f, x: f.linalg.cholesky(symmetric(f, x)), [(3, 3), (2, 2, 2)], True),
    "cholesky upper": (lambda f, x: f.linalg.cholesky(symmetric(f, x), upper=True), [(3, 3)], True),
    "torch.cholesky": (lambda f, x: f.cholesky(symmetric(f, x)), [(3, 3)], True),
    "torch.lu": (lambda f, x: f.lu(x)[0], [(3, 2)], False),
    "torch.lu_solve": (lambda f, x: f.lu_solve(x[:, :2], *f.linalg.lu_factor(x)), [(3, 3)], False),
    "inv_ex": (lambda f, x: f.linalg.inv_ex(x).inverse, [(3, 3)], False),
    "cholesky_ex": (lambda f, x: f.linalg.cholesky_ex(symmetric(f, x)).L, [(3, 3)], True),
    "cholesky_inverse": (lambda f, x: f.cholesky_inverse(f.linalg.cholesky(symmetric(f, x))), [(3, 3)], True),
    "cholesky_solve": (lambda f, x: f.cholesky_solve(x[..., :1], f.linalg.cholesky(symmetric(f, x))),
                       [(2, 3, 3)], True),
    "lu_solve": (lambda f, x: f.linalg.lu_solve(*f.linalg.lu_factor(x), x[..., :2]), [(2, 3, 3)], False),
    "lu_solve right": (lambda f, x: f.linalg.lu_solve(*f.linalg.lu_factor(x), x[..., :2, :], left=False),
                       [(3, 3)], False),
    "lu_solve of the transpose": (
        lambda f, x: f.linalg.lu_solve(*f.linalg.lu_factor(x), x[..., :2], adjoint=True), [(3, 3)], False),
    "lu_solve, b alone": (
        lambda f, x: f.linalg.lu_solve(*f.linalg.lu_factor(f.tensor(matrices((3, 3), 5))), x[..., :2]) ** 2,
        [(3, 3)], False),
    "lu_unpack": (lambda f, x: f.lu_unpack(*f.linalg.lu_factor(x)).L, [(3, 2), (2, 3)], False),
    "triangular_solve": (lambda f, x: f.triangular_solve(x[..., :1], x, transpose=True)[0], [(3, 3)], True),
    "lstsq": (lambda f, x: f.linalg.lstsq(x, x[..., :1] ** 2).solution, [(4, 2), (2, 4, 3), (2, 4)], False),
    "pinv hermitian": (lambda f, x: f.linalg.pinv(symmetric(f, x), hermitian=True), [(3, 3)], False),
    "pinv of low rank": (lambda f, x: f.linalg.pinv(x[..., :1] @ x[..., :1, :]), [(3, 3)], False),
    "pinverse": (lambda f, x: f.pinverse(x), [(3, 2)], False),
    "slogdet": (lambda f, x: f.slogdet(x).logabsdet, [(3, 3), (2, 2, 2)], False),
    "inverse": (lambda f, x: f.inverse(x) @ f.linalg.inv_ex(x).inverse, [(3, 3)], False),
    "solve right": (lambda f, x: f.linalg.solve(x, x[..., :2, :] ** 2, left=False), [(2, 3, 3)], False),
    "matrix_power": (lambda f, x: x.matrix_power(-3) + f.linalg.matrix_power(x, 0), [(2, 3, 3)], False),
    "householder_product": (lambda f, x: f.linalg.householder_product(x, x[0, :2]), [(3, 2)], False),
    "nuclear norm": (lambda f, x: f.linalg.matrix_norm(x, "nuc") + f.linalg.norm(x, -2), [(3, 2)], False),
    "cond": (lambda f, x: f.linalg.cond(x) + f.linalg.cond(x, -2), [(3, 3)], False),
}  # fmt: skip


def rebuilt_svd(f: Any, parts: Any) -> Any:
    u, s, vh = parts
    k = s.shape[-1]
    return u[..., :k].abs() @ (s[..., None] ** 2 * vh[..., :k, :].abs())


def rebuilt_qr(f: Any, parts: Any) -> Any:
    return parts.Q.abs() @ (parts.R.abs() ** 2)


def rebuilt_eigh(f: Any, parts: Any) -> Any:
    values, vectors = parts
    return (vectors * values[..., None, :] ** 2) @ vectors.transpose(-1, -2) + vectors.abs()


@pytest.mark.parametrize("name", FREE)
def test_as_pytorch(name: str, answers: Any) -> None:
    """Values, first and second derivatives, in float64; recorded regions give the same."""
    function, shapes, positive = FREE[name]
    for shape in shapes:
        x = matrices(shape, positive=positive)
        seed = np.random.default_rng(1).normal(size=shape)

        def run(f: Any, x: Any = x, seed: Any = seed) -> list[Any]:
            a = f.tensor(x).requires_grad_()
            y = function(f, a)
            weights = f.arange(y.numel()).reshape(y.shape) + 1.0
            (g,) = f.autograd.grad((y * weights).sum(), a, create_graph=True)
            (h,) = f.autograd.grad((g * f.tensor(seed)).sum(), a)
            return [v.detach().numpy() for v in (y, g, h)]

        recorded = kiln.compile(lambda: run(kiln), wait=True)
        expected, found = answers([x, seed, run, function], partial(run, torch)), run(kiln)
        for got in (found, recorded(), recorded()):
            for u, v, w in zip(got, expected, found, strict=True):
                np.testing.assert_allclose(u, v, rtol=1e-6, atol=1e-7, err_msg=f"{name} {shape}")
                assert u.tobytes() == w.tobytes()


@pytest.mark.parametrize("shape", [(3, 3), (2, 2, 3), (3, 2)])
def test_factors_multiply_to_the_matrix(shape: tuple[int, ...]) -> None:
    """P L U, Q R and U S Vh, in float32 as well."""
    for dtype in (kiln.float32, kiln.float64):
        a = kiln.tensor(matrices(shape)).to(dtype)
        tolerance = 1e-5 if dtype is kiln.float32 else 1e-12
        order, low, up = kiln.linalg.lu(a)
        q, r = kiln.linalg.qr(a, "complete")
        u, s, vh = kiln.linalg.svd(a, full_matrices=False)
        for product in (order @ low @ up, q @ r, (u * s[..., None, :]) @ vh):
            assert product.dtype is dtype
            assert float((product - a).abs().amax()) < tolerance


@pytest.mark.parametrize("name", FREE)
def test_derivatives_by_differences(name: str) -> None:
    """First and second derivatives of factors, and of what is made of them, against central differences."""
    function, shapes, positive = FREE[name]
    for shape in shapes:
        x = kiln.tensor(matrices(shape, 3, positive)).requires_grad_()
        kiln.autograd.gradcheck(lambda x: function(kiln, x), x)
        kiln.autograd.gradgradcheck(lambda x: function(kiln, x), x)


ONE_AT_A_TIME = ("householder_product", "lu_solve, b alone", "nuclear norm", "torch.svd", "torch.lu_solve")


@pytest.mark.parametrize("name", [n for n in FREE if n not in ONE_AT_A_TIME])
def test_gradients_of_batches_of_batches(name: str) -> None:
    """Of two dims of matrices: those of each matrix alone."""
    function, shapes, positive = FREE[name]
    for shape in dict.fromkeys(shape[-2:] for shape in shapes):
        x = matrices((2, 3, *shape), 3, positive)
        got, *alone = (kiln.tensor(a).requires_grad_() for a in (x, *x.reshape(6, *shape)))
        for a in (got, *alone):
            (function(kiln, a) ** 2).sum().backward()
        want = np.stack([a.grad.numpy() for a in alone]).reshape(x.shape)
        np.testing.assert_allclose(got.grad.numpy(), want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "rows, cofactors",
    [
        ([[1.0, 2.0], [2.0, 4.0]], [[4.0, -2.0], [-2.0, 1.0]]),
        ([[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]),
        ([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]], [[0, 0, 0], [0, 0, 0], [0, 0, 2.0]]),
    ],
)
def test_determinant_of_a_singular_matrix(rows: Any, cofactors: Any) -> None:
    """Its derivative are the cofactors; PyTorch gives zeros for the first."""
    a = kiln.tensor(rows, dtype=kiln.float64, requires_grad=True)
    kiln.linalg.det(a).backward()
    np.testing.assert_allclose(a.grad.numpy(), cofactors, atol=1e-12)


WRONG: dict[str, Callable[[Any], Any]] = {
    "singular in a batch": lambda f: f.linalg.inv(f.stack([f.eye(2), f.zeros(2, 2)])),
    "singular": lambda f: f.inverse(f.tensor([[1.0, 2.0], [2.0, 4.0]])),
    "checked": lambda f: f.linalg.inv_ex(f.zeros(2, 2), check_errors=True),
    "no solution": lambda f: f.linalg.solve(f.zeros(2, 2), f.ones(2)),
    "not positive": lambda f: f.linalg.cholesky(f.tensor([[1.0, 2.0], [2.0, 1.0]])),
    "not positive, checked": lambda f: f.linalg.cholesky_ex(-f.eye(2), check_errors=True),
    "svd of NaN": lambda f: f.linalg.svd(f.full((2, 2), float("nan"))),
    "half": lambda f: f.linalg.inv(f.eye(2).half()),
    "integers": lambda f: f.det(f.ones(2, 2).long()),
    "mode": lambda f: f.linalg.qr(f.eye(2), "other"),
    "UPLO": lambda f: f.linalg.eigh(f.eye(2), "x"),
    "driver": lambda f: f.linalg.lstsq(f.ones(3, 2), f.ones(3, 1), driver="x"),
    "zero pivot": lambda f: f.linalg.lu_factor(f.zeros(2, 2)),
    "gradient of R": lambda f: f.linalg.qr(f.ones(2, 2, requires_grad=True), "r").R.sum().backward(),
    "negative power": lambda f: f.linalg.matrix_power(f.zeros(2, 2), -1),
    "wide reflections": lambda f: f.linalg.householder_product(f.ones(2, 3), f.ones(2)),
    "multi_dot": lambda f: f.linalg.multi_dot([f.ones(2)]),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str, answers: Any) -> None:
    """PyTorch's exception, and a LinAlgError where it is one; the same recorded."""
    if name == "singular in a batch" and not hasattr(kiln, "stack"):
        pytest.skip("no stack yet")

    def raised() -> tuple[str, bool]:
        with pytest.raises(RuntimeError) as error:
            WRONG[name](torch)
        return str(error.value), isinstance(error.value, torch.linalg.LinAlgError)

    expected, is_algebra = answers(WRONG[name], raised)
    assert repr(kiln.linalg.LinAlgError("a")) == "_LinAlgError('a')"  # the name of the class in PyTorch
    for way in (WRONG[name], kiln.compile(WRONG[name])):
        with pytest.raises(kiln.linalg.LinAlgError if is_algebra else RuntimeError) as found:
            way(kiln)
        assert isinstance(found.value, kiln.linalg.LinAlgError) == is_algebra
        assert " ".join(expected.split()[:3]) in str(found.value)


def test_infos(answers: Any) -> None:
    """Where a factorization fails, by matrix."""
    x = np.stack([np.eye(3), np.diag([1.0, -1.0, 2.0]), np.zeros((3, 3)), np.ones((3, 3))])

    def info(f: Any, name: str, x: Any, fields: tuple[str, ...]) -> Any:
        result = getattr(f.linalg, name)(f.tensor(x))
        return [hasattr(result, field) for field in fields], result.info.tolist(), type(result).__name__

    for name in ("inv_ex", "cholesky_ex", "lu_factor_ex"):
        fields = getattr(kiln.linalg, name)(kiln.tensor(x))._fields
        ours, theirs = answers.both(info, name, x, fields)
        assert ours == theirs and all(theirs[0])


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("row, order", [(0, 1), (1, 2), (2, 3)])
def test_a_nan_is_no_pivot_of_a_factor(row: int, order: int, upper: bool) -> None:
    """The order that LAPACK's own check of a pivot says, in batches too."""
    bad = kiln.eye(3)
    bad[(0, row) if upper else (row, 0)] = float("nan")
    batch = kiln.stack([kiln.eye(3), bad, -kiln.eye(3)])
    assert kiln.linalg.cholesky_ex(batch, upper=upper).info.tolist() == [0, order, 1]
    with pytest.raises(kiln.linalg.LinAlgError, match=f"leading minor of order {order}"):
        kiln.linalg.cholesky(bad, upper=upper)


def test_least_squares_by_every_driver(answers: Any) -> None:
    """What each driver computes, shapes of what it does not, vectors and matrices on the right."""

    def solved(f: Any, a: Any, right: Any, driver: str) -> list[Any]:
        return list(f.linalg.lstsq(f.tensor(a), f.tensor(right), driver=driver))

    for shape in ((4, 2), (2, 4, 2), (2, 4)):
        a, b = matrices(shape), matrices((*shape[:-1], 3), 1)
        for driver in ("gels", "gelsy", "gelsd", "gelss"):
            for right in (b, b[..., 0]):
                for x, y in zip(*answers.both(solved, a, right, driver), strict=True):
                    assert (x.shape, x.dtype) == (y.shape, y.dtype)
                    np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=1e-8, atol=1e-10)


def test_without_scipy() -> None:
    """What NumPy has runs; the rest says what to install."""
    code = (
        "import sys; sys.modules['scipy'] = None; import kiln; "
        "print(kiln.linalg.inv(kiln.eye(1)).tolist())\n"
        "try: kiln.linalg.lu(kiln.eye(1))\n"
        "except ImportError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60)
    first, second = done.stdout.splitlines()
    assert first == "[[1.0]]"
    assert (
        second == "linalg.lu: needs SciPy, whose LAPACK it calls; install it with: pip install 'kiln[linalg]'"
    )


def test_out() -> None:
    """Results go into tensors that are given, one or several."""
    a, one = kiln.tensor(matrices((2, 2), positive=True)), kiln.empty(2, 2, dtype=kiln.float64)
    assert kiln.linalg.inv(a, out=one) is one
    assert one.tolist() == kiln.linalg.inv(a).tolist()
    values, vectors = kiln.empty(0, dtype=kiln.float64), kiln.empty(0, dtype=kiln.float64)
    kiln.linalg.eigh(a, out=(values, vectors))
    assert values.tolist() == kiln.linalg.eigh(a).eigenvalues.tolist()


# a function of a framework and tensors, and their shapes
WHOLE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "cholesky_inverse": (lambda f, x: f.cholesky_inverse(x), [(3, 3)]),
    "cholesky_inverse of U": (lambda f, x: f.cholesky_inverse(x, upper=True), [(2, 3, 3)]),
    "cholesky_solve": (lambda f, x, b: f.cholesky_solve(b, x), [(2, 3, 3), (2, 3, 2)]),
    "cholesky_solve of U": (lambda f, x, b: f.cholesky_solve(b, x, upper=True), [(3, 3), (3, 1)]),
    "cholesky_solve of batches": (lambda f, x, b: f.cholesky_solve(b, x), [(3, 3), (2, 3, 2)]),
    "matrix_power 0": (lambda f, x: f.linalg.matrix_power(x, 0) * x, [(2, 2, 2)]),
    "matrix_power 1": (lambda f, x: f.linalg.matrix_power(x, 1), [(2, 2)]),
    "householder_product": (lambda f, x, b: f.linalg.householder_product(x, b), [(3, 1), (1,)]),
    "as_strided of a part": (lambda f, x: f.as_strided(x[1:], (2, 2), (1, 3)), [(3, 3)]),
    "as_strided of columns": (lambda f, x: f.as_strided(x[:, :2], (2, 2), (1, 2), 1), [(3, 3)]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_gradients_of_what_is_not_read(name: str, answers: Any) -> None:
    """Of the triangle of a factor that nobody reads, a power of 0, memory between the elements."""
    function, shapes = WHOLE[name]
    given = [
        matrices(shape, k, positive=k == 0 and shape[-1] == shape[-2:][0]) for k, shape in enumerate(shapes)
    ]

    def run(f: Any, *arrays: Any) -> Any:
        leaves = [f.tensor(x.tolist(), dtype=f.float64).requires_grad_() for x in arrays]
        y = function(f, *leaves)
        return y.detach(), f.autograd.grad((y * f.arange(1.0, y.numel() + 1).reshape(y.shape)).sum(), leaves)

    ours, theirs = answers.both(run, *given)
    for mine, other in zip([ours[0], *ours[1]], [theirs[0], *theirs[1]], strict=True):
        np.testing.assert_allclose(to_array(mine), to_array(other), rtol=1e-10, atol=1e-12)


def test_constants_of_linalg_have_a_history() -> None:
    x = kiln.ones(2, 2, requires_grad=True)
    kiln.linalg.matrix_power(x, 0).sum().backward()
    assert x.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert kiln.linalg.householder_product(x, kiln.zeros(0)).requires_grad
    with pytest.raises(RuntimeError, match="greater than or equal to tau.shape"):
        kiln.linalg.householder_product(x, kiln.zeros(3))
    with pytest.raises(NotImplementedError, match="lie apart in memory"):
        x.expand(2, 2, 2).as_strided((2,), (1,))


def test_ldl_solve_of_batches(answers: Any) -> None:
    a, b = matrices((2, 3, 3), positive=True), matrices((3, 2), 1)

    def run(f: Any, a: Any, b: Any) -> Any:
        whole, right = f.tensor(a.tolist()), f.tensor(b.tolist())
        first = f.linalg.ldl_factor(whole[0])
        solve = f.linalg.ldl_solve
        return solve(*f.linalg.ldl_factor(whole), right), solve(*first, right.expand(2, 3, 2))

    for mine, other in zip(*answers.both(run, a, b), strict=True):
        np.testing.assert_allclose(to_array(mine), to_array(other), rtol=1e-4, atol=1e-5)
