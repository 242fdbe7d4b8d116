"""Distributions of every family, as (name, parameters, values): NumPy arrays, drawn from one seed.

Most batches are of shape (2, 3), so that kernels repeat; some parameters are of (3,), and broadcast.
"""

from __future__ import annotations

from typing import Any

import numpy as np

RNG = np.random.default_rng(20)


def draw_again(seed: int) -> None:
    """What a file draws next does not depend on those before it."""
    RNG.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def between(low: float, high: float, *shape: int) -> Any:
    return RNG.uniform(low, high, shape)


def positive(*shape: int) -> Any:
    return between(0.3, 3.0, *shape)


def share(*shape: int) -> Any:
    return between(0.1, 0.9, *shape)


def real(*shape: int) -> Any:
    return between(-2.0, 2.0, *shape)


def simplex(*shape: int) -> Any:
    x = positive(*shape)
    return x / x.sum(-1, keepdims=True)


def count(*shape: int) -> Any:
    return RNG.integers(0, 4, shape).astype("float64")


def positive_definite(*batch: int) -> Any:
    x = real(*batch, 3, 3)
    return x @ np.swapaxes(x, -1, -2) + 2 * np.eye(3)


def lower(*batch: int) -> Any:
    return np.linalg.cholesky(positive_definite(*batch))


def correlation(*batch: int) -> Any:
    x = lower(*batch)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def one_hot(*shape: int) -> Any:
    return np.eye(shape[-1])[RNG.integers(0, shape[-1], shape[:-1])]


Case = tuple[str, dict[str, Any], Any]

THREE = np.array([[-2.0, 0.0, 1.0], [1.0, -1.0, 0.0]])

CASES: list[Case] = [
    ("Bernoulli", {"probs": share(2, 3)}, one_hot(2, 3)),
    ("Bernoulli", {"logits": THREE}, one_hot(2, 3)),
    ("Beta", {"concentration1": positive(2, 3), "concentration0": positive(2, 3)}, share(2, 3)),
    ("Binomial", {"total_count": 4, "probs": share(2, 3)}, count(2, 3)),
    ("Binomial", {"total_count": THREE + 5, "logits": THREE}, count(2, 3)),
    ("Categorical", {"probs": simplex(2, 3)}, np.array([2, 1])),
    ("Categorical", {"logits": real(2, 3)}, np.array([2, 0])),
    ("Cauchy", {"loc": real(2, 3), "scale": positive(2, 3)}, real(2, 3)),
    ("Chi2", {"df": positive(2, 3)}, positive(2, 3)),
    ("ContinuousBernoulli", {"probs": np.array([[0.2, 0.4995, 0.5], [0.5005, 0.51, 0.9]])}, share(2, 3)),
    ("ContinuousBernoulli", {"logits": THREE}, share(2, 3)),
    ("Dirichlet", {"concentration": positive(2, 3)}, simplex(2, 3)),
    ("Dirichlet", {"concentration": share(2, 3)}, simplex(2, 3)),
    ("Exponential", {"rate": positive(2, 3)}, positive(2, 3)),
    ("FisherSnedecor", {"df1": between(2.5, 5, 2, 3), "df2": between(4.5, 8, 2, 3)}, positive(2, 3)),
    ("Gamma", {"concentration": positive(2, 3), "rate": positive(3)}, positive(2, 3)),
    ("Geometric", {"probs": share(2, 3)}, count(2, 3)),
    ("Geometric", {"logits": real(2, 3)}, count(2, 3)),
    ("Gumbel", {"loc": real(2, 3), "scale": positive(2, 3)}, real(2, 3)),
    ("HalfCauchy", {"scale": positive(2, 3)}, positive(2, 3)),
    ("HalfNormal", {"scale": positive(2, 3)}, positive(2, 3)),
    ("InverseGamma", {"concentration": positive(2, 3), "rate": positive(2, 3)}, positive(2, 3)),
    ("Kumaraswamy", {"concentration1": positive(2, 3), "concentration0": positive(2, 3)}, share(2, 3)),
    ("LKJCholesky", {"dim": 3, "concentration": positive(2)}, correlation(2)),
    ("Laplace", {"loc": real(2, 3), "scale": positive(2, 3)}, real(2, 3)),
    ("LogNormal", {"loc": real(2, 3), "scale": positive(2, 3)}, positive(2, 3)),
    ("LogisticNormal", {"loc": real(2, 3), "scale": positive(3)}, simplex(2, 4)),
    (
        "LowRankMultivariateNormal",
        {"loc": real(2, 3), "cov_factor": real(3, 2), "cov_diag": positive(3)},
        real(2, 3),
    ),
    ("Multinomial", {"total_count": 5, "probs": simplex(2, 3)}, np.array([[3.0, 2.0, 0.0], [1.0, 1.0, 3.0]])),
    ("MultivariateNormal", {"loc": real(2, 3), "covariance_matrix": positive_definite()}, real(2, 3)),
    ("MultivariateNormal", {"loc": real(3), "precision_matrix": positive_definite(2)}, real(2, 3)),
    ("MultivariateNormal", {"loc": real(3), "scale_tril": lower(2)}, real(3, 2, 3)),
    ("NegativeBinomial", {"total_count": 4, "probs": share(2, 3)}, count(2, 3)),
    ("NegativeBinomial", {"total_count": positive(2, 3), "logits": real(2, 3)}, count(2, 3)),
    ("Normal", {"loc": real(3), "scale": positive(2, 3)}, real(2, 3)),
    ("OneHotCategorical", {"probs": simplex(2, 3)}, one_hot(2, 3)),
    ("OneHotCategoricalStraightThrough", {"logits": real(2, 3)}, one_hot(2, 3)),
    ("Pareto", {"scale": share(2, 3), "alpha": between(2.5, 4, 2, 3)}, between(1, 3, 2, 3)),
    ("Poisson", {"rate": positive(3)}, count(2, 3)),
    ("RelaxedBernoulli", {"temperature": np.array(0.7), "probs": share(2, 3)}, share(2, 3)),
    ("RelaxedBernoulli", {"temperature": np.array(0.7), "logits": real(2, 3)}, share(2, 3)),
    ("RelaxedOneHotCategorical", {"temperature": np.array(0.7), "probs": simplex(2, 3)}, simplex(2, 3)),
    ("StudentT", {"df": between(2.5, 5, 2, 3), "loc": real(2, 3), "scale": positive(2, 3)}, real(2, 3)),
    ("Uniform", {"low": between(-3, -2, 2, 3), "high": between(2, 3, 2, 3)}, real(2, 3)),
    ("VonMises", {"loc": real(2, 3), "concentration": positive(2, 3)}, real(2, 3)),
    ("Weibull", {"scale": positive(2, 3), "concentration": positive(2, 3)}, positive(2, 3)),
    ("Wishart", {"df": np.array(5.0), "covariance_matrix": positive_definite()}, positive_definite(2)),
    ("Wishart", {"df": between(4, 6, 2), "scale_tril": lower()}, positive_definite(2)),
    ("Wishart", {"df": np.array(5.0), "precision_matrix": positive_definite()}, positive_definite(2)),
]
IDS = [f"{name}-{'-'.join(kwargs)}" for name, kwargs, _ in CASES]

# without the gradient that PyTorch's cholesky_solve has for the triangle that it does not read
UNREAD = {"Wishart": ("scale_tril",)}


def made(lib: Any, name: str, kwargs: dict[str, Any], dtype: str = "float64", grad: bool = True) -> Any:
    """The distribution, and its parameters that are tensors."""
    tensors = {
        key: lib.tensor(value.tolist(), dtype=getattr(lib, dtype)).requires_grad_(grad)
        for key, value in kwargs.items()
        if isinstance(value, np.ndarray)
    }
    return getattr(lib.distributions, name)(**{**kwargs, **tensors}), list(tensors.values())


def given(lib: Any, value: Any, dtype: str = "float64") -> Any:
    """A value as a tensor; whole numbers of an index stay so."""
    return lib.tensor(value.tolist(), dtype=getattr(lib, dtype if value.dtype.kind == "f" else "int64"))


def slopes(lib: Any, y: Any, leaves: list[Any]) -> list[Any]:
    """The gradients of a result, added up with weights that differ."""
    if not y.requires_grad:
        return []
    weights = lib.arange(y.numel(), dtype=y.dtype).reshape(tuple(y.shape)) + 1
    finite = lib.where(y.isfinite(), y, lib.zeros_like(y))
    return list(lib.autograd.grad((finite * weights).sum(), leaves, allow_unused=True))


def told(lib: Any, x: Any) -> str:
    """A text without the name of the library."""
    return str(x).replace(f"{lib.__name__}.", "")
