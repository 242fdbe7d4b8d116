"""KL(p || q) of every pair that PyTorch registers, beside it; which formula is taken."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from answers import comparable
from backend import kiln
from distribution_cases import CASES, between, draw_again, made, simplex, slopes

from kiln.testing.compare import first_difference

draw_again(1)
CASE = {name: kwargs for name, kwargs, _ in reversed(CASES)}
# parameters that fit each other: one count of trials, uniform numbers inside the others' supports
CASE |= {
    "Uniform": {"low": between(0.1, 0.3, 3), "high": between(0.5, 0.9, 2, 3)},
    "Pareto": {"scale": between(0.02, 0.09, 3), "alpha": between(2.5, 4, 2, 3)},
    "OneHotCategorical": {"probs": simplex(2, 3)},
}


def pairs(names: str) -> list[tuple[str, str]]:
    return [(p, q) for p, _, many in (line.partition(":") for line in names.split(";")) for q in many.split()]


def pair_list() -> list[tuple[str, str]]:
    same = (
        "Bernoulli Beta Binomial Categorical Cauchy ContinuousBernoulli Dirichlet Exponential Gamma "
        "Geometric Gumbel HalfNormal Laplace LowRankMultivariateNormal MultivariateNormal Normal "
        "OneHotCategorical Pareto Poisson Uniform LogNormal"
    )
    others = pairs(
        "Bernoulli:Poisson;Beta:ContinuousBernoulli Pareto Exponential Gamma Normal Uniform;"
        "ContinuousBernoulli:Pareto Exponential Normal Uniform;"
        "Exponential:Beta ContinuousBernoulli Pareto Uniform Gamma Gumbel Normal;"
        "Gamma:Beta ContinuousBernoulli Pareto Uniform Exponential Gumbel Normal;"
        "Gumbel:Beta ContinuousBernoulli Exponential Gamma Pareto Uniform Normal;"
        "Laplace:Beta ContinuousBernoulli Exponential Gamma Pareto Uniform Normal;"
        "LowRankMultivariateNormal:MultivariateNormal;MultivariateNormal:LowRankMultivariateNormal;"
        "Normal:Beta ContinuousBernoulli Exponential Gamma Pareto Uniform Gumbel Laplace;"
        "Pareto:Beta ContinuousBernoulli Uniform Exponential Gamma Normal;Poisson:Bernoulli Binomial;"
        "Uniform:Beta ContinuousBernoulli Exponential Gamma Gumbel Normal Pareto"
    )
    return [(name, name) for name in same.split()] + others


def assert_same(ours: Any, theirs: Any, factor: float) -> None:
    found = first_difference(comparable(ours), comparable(theirs), False, "result", factor)
    assert found is None, found


@pytest.mark.parametrize(("p", "q"), pair_list())
def test_divergences_and_their_gradients(p: str, q: str, answers: Any) -> None:
    def run(lib: Any, p: str, q: str, of_p: Any, of_q: Any) -> list[Any]:
        first, leaves = made(lib, p, of_p)
        second, more = made(lib, q, of_q)
        first, second = (d.expand((2, 3)) if d.batch_shape == (3,) else d for d in (first, second))
        y = lib.distributions.kl_divergence(first, second)
        return [y.detach(), *(slopes(lib, y, leaves + more) if bool(y.isfinite().all()) else [])]

    of_q = {k: v * 0.9 if isinstance(v, np.ndarray) and p == q else v for k, v in CASE[q].items()}
    assert_same(*answers.both(run, p, q, CASE[p], of_q), 1e5)


def test_what_q_cannot_draw_is_infinite() -> None:
    d = kiln.distributions
    for p, q in (
        (d.Uniform(-1.0, 0.5), d.Beta(1.0, 2.0)),
        (d.Uniform(-1.0, 0.5), d.Gamma(1.0, 2.0)),
        (d.Uniform(-1.0, 0.5), d.Exponential(1.0)),
        (d.Uniform(0.5, 2.0), d.Pareto(1.0, 2.0)),
        (d.Uniform(0.5, 2.0), d.ContinuousBernoulli(0.2)),
        (d.Beta(1.0, 1.0), d.Uniform(0.1, 2.0)),
        (d.Pareto(1.0, 1.0), d.Exponential(1.0)),
        (d.Pareto(1.0, 2.0), d.Normal(0.0, 1.0)),
        (d.Bernoulli(0.5), d.Bernoulli(0.0)),
        (d.Categorical(kiln.tensor([0.5, 0.5])), d.Categorical(kiln.tensor([1.0, 0.0]))),
        (d.Binomial(4, 0.5), d.Binomial(3, 0.5)),
    ):
        assert d.kl_divergence(p, q).item() == math.inf
    # PyTorch says infinity here too, although the supports are equal
    p = d.ContinuousBernoulli(0.2)
    assert d.kl_divergence(p, d.Uniform(0.0, 1.0)).item() == -p.entropy().item() > 0


def test_divergences_of_families_follow_from_their_normalizers() -> None:
    families = kiln.distributions.kl._families
    entropy = kiln.distributions.ExponentialFamily.entropy
    for name in ("Normal", "Bernoulli", "Gamma", "Exponential", "Poisson", "Wishart"):
        p, _ = made(kiln, name, CASE[name])
        q, _ = made(kiln, name, {k: v * 0.9 if k != "df" else v for k, v in CASE[name].items()})
        found = families(p, q)
        if name == "Wishart":  # no formula of its own: by its log densities' mean
            assert kiln.distributions.kl_divergence(p, q).tolist() == found.tolist()
            continue
        assert np.allclose(found.detach(), kiln.distributions.kl_divergence(p, q).detach())
        if name != "Poisson":
            assert np.allclose(entropy(p).detach(), p.entropy().detach())
    with pytest.raises(NotImplementedError, match="Bregman"):
        kiln.distributions.kl_divergence(kiln.distributions.Poisson(1.0), kiln.distributions.Normal(0.0, 1.0))


def test_independent_and_transformed_distributions(answers: Any) -> None:
    def run(lib: Any, of_p: Any) -> list[Any]:
        d = lib.distributions
        p, _ = made(lib, "Normal", of_p)
        q = d.Normal(p.loc * 0.5, p.scale * 2)
        found = [d.kl_divergence(d.Independent(p, k), d.Independent(q, k)) for k in (1, 2)]
        found.append(d.kl_divergence(*(d.TransformedDistribution(x, [d.ExpTransform()]) for x in (p, q))))
        for bad in (
            (d.Independent(p, 1), d.Independent(q, 2)),
            (d.LogNormal(0.0, 1.0), d.HalfNormal(1.0)),
            (d.Cauchy(0.0, 1.0), d.Normal(0.0, 1.0)),
        ):
            try:
                d.kl_divergence(*bad)
            except NotImplementedError:
                found.append("refused")
        return found

    assert_same(*answers.both(run, CASE["Normal"]), 8.0)


def test_the_nearest_classes_decide() -> None:
    d = kiln.distributions

    class A(d.Distribution):  # type: ignore[name-defined, misc]
        arg_constraints: dict[str, Any] = {}

    class B(A):
        pass

    @d.register_kl(A, A)
    def _far(p: Any, q: Any) -> Any:
        return "far"

    assert d.kl_divergence(B(), B()) == "far"

    @d.register_kl(B, A)
    def _near(p: Any, q: Any) -> Any:
        return "near"

    assert d.kl_divergence(B(), B()) == "near" and d.kl_divergence(A(), B()) == "far"

    @d.register_kl(A, B)
    def _other(p: Any, q: Any) -> Any:
        return "other"

    with pytest.warns(RuntimeWarning, match=r"Ambiguous kl_divergence\(B, B\). Please register_kl\(B, B\)"):
        assert d.kl_divergence(B(), B()) == "near"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is told once
        assert d.kl_divergence(B(), B()) == "near"
    with pytest.raises(TypeError, match="Expected type_p to be a Distribution subclass"):
        d.register_kl(3, A)
    with pytest.raises(NotImplementedError, match="No KL"):
        d.kl_divergence(A(), d.VonMises(0.0, 1.0))


def test_divergences_are_the_means_of_log_densities() -> None:
    """By 20 000 draws, of pairs that share a formula: an oracle of its own."""
    d, one = kiln.distributions, kiln.tensor(1.0, dtype=kiln.float64)
    normal = d.Normal(one * 0.3, one * 0.8)
    for p, q in (
        (d.Gamma(one * 2, one * 3), d.Gumbel(one * 0.2, one)),
        (d.Uniform(one * 0.2, one * 0.9), d.Beta(one * 2, one * 3)),
        (normal, d.Laplace(one * 0.1, one)),
    ):
        x = p.sample((20000,))
        differences = p.log_prob(x) - q.log_prob(x)
        error = 4 * differences.std() / math.sqrt(20000)
        assert abs(differences.mean() - d.kl_divergence(p, q)) < error, (p, q)


def test_values_of_a_pair_in_float32(answers: Any) -> None:
    def run(lib: Any, of_p: Any) -> Any:
        p, _ = made(lib, "Gamma", of_p, "float32", grad=False)
        q, _ = made(lib, "Exponential", {"rate": of_p["rate"]}, "float32", grad=False)
        return [lib.distributions.kl_divergence(*pair) for pair in ((p, p), (p, q), (q, p))]

    assert_same(*answers.both(run, CASE["Gamma"]), 32.0)
