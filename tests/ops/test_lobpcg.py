"""`lobpcg` beside all eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest

import kiln


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("general", [True, False])
def test_the_outermost_eigenvalues(largest: bool, general: bool) -> None:
    """Of one matrix and of a batch, in order, with vectors that are orthonormal in B."""
    rng = np.random.default_rng(0)
    a, b = (x @ x.swapaxes(-1, -2) / 9 + np.eye(9) for x in rng.standard_normal((2, 2, 9, 9)))
    metric = b if general else np.broadcast_to(np.eye(9), (2, 9, 9))
    E, V = kiln.lobpcg(kiln.tensor(a), 2, kiln.tensor(b) if general else None, largest=largest)
    one = kiln.lobpcg(kiln.tensor(a[1]), 2, kiln.tensor(b[1]) if general else None, largest=largest)[0]
    wanted = np.sort(np.linalg.eigvals(np.linalg.solve(metric, a)).real)
    wanted = wanted[:, ::-1][:, :2] if largest else wanted[:, :2]
    e, v = E.numpy(), V.numpy()
    assert np.abs(e - wanted).max() < 1e-10 and np.abs(one.numpy() - wanted[1]).max() < 1e-10
    assert np.abs(a @ v - metric @ v * e[:, None]).max() < 1e-6
    assert np.abs(v.swapaxes(-1, -2) @ metric @ v - np.eye(2)).max() < 1e-10


def test_its_arguments() -> None:
    """`X` says how many, `niter` how long, `iK` near the inverse: fewer steps; gradients are eigh's."""
    A = kiln.diag(kiln.arange(1.0, 41.0, dtype=kiln.float64) ** 2)
    kiln.manual_seed(0)
    start = kiln.randn(40, 2, dtype=kiln.float64)
    far = kiln.lobpcg(A, X=start, largest=False, niter=3)[0]
    near = kiln.lobpcg(A, X=start, largest=False, niter=3, iK=kiln.linalg.inv(A))[0]
    exact = kiln.tensor([1.0, 4.0], dtype=kiln.float64)
    assert (near - exact).abs().max() < 1e-2 < (far - exact).abs().max()
    small = A[:6, :6].clone().requires_grad_()
    assert kiln.autograd.gradcheck(lambda x: kiln.lobpcg((x + x.mT) / 2, 2)[0], (small,))
    with pytest.raises(ValueError, match="smaller than 3 x the number"):
        kiln.lobpcg(A, 14)
    with pytest.raises(NotImplementedError, match="calls no tracker"):
        kiln.lobpcg(A, 1, tracker=print)
    with pytest.raises(ValueError, match="'basic' or 'ortho'"):
        kiln.lobpcg(A, 1, method="power")
