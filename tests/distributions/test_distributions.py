"""Every distribution beside PyTorch's: densities, moments, quantiles, their gradients; shapes, texts,
errors.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import numpy as np
import pytest
from answers import comparable
from backend import kiln
from distribution_cases import CASES, IDS, UNREAD, given, made, slopes, told

from kiln.testing.compare import first_difference

PARAMETRIZED = pytest.mark.parametrize(("name", "kwargs", "value"), CASES, ids=IDS)


def assert_same(ours: Any, theirs: Any, factor: float = 4.0) -> None:
    found = first_difference(comparable(ours), comparable(theirs), False, "result", factor)
    assert found is None, found


def or_refusal(call: Any) -> Any:
    """What a call gives, or the name of the error that says that there is none."""
    try:
        return call()
    except NotImplementedError:
        return "NotImplementedError"


# PyTorch's log I0 and I1 are polynomials of 7 digits, its polygamma has 9
ROUGH = {"VonMises": 1e6}
ROUGH_ENTROPY = 1e5


@PARAMETRIZED
def test_densities_and_their_gradients(name: str, kwargs: Any, value: Any, answers: Any) -> None:
    def run(lib: Any, name: str, kwargs: Any, value: Any, unread: Any) -> list[Any]:
        distribution, leaves = made(lib, name, kwargs)
        x = given(lib, value)
        if x.dtype == lib.float64:
            leaves.append(x.requires_grad_())
        y = distribution.log_prob(x)
        found = [y.detach(), *slopes(lib, y, leaves)]
        if unread:
            found[2] = found[2].tril()
        return found

    assert_same(*answers.both(run, name, kwargs, value, UNREAD.get(name) if "scale_tril" in kwargs else None),
                ROUGH.get(name, 8.0))  # fmt: skip


ONE_EACH = list({case[0]: case for case in CASES}.values())


@pytest.mark.parametrize(("name", "kwargs", "value"), ONE_EACH, ids=lambda x: x if isinstance(x, str) else "")
def test_densities_in_float32(name: str, kwargs: Any, value: Any, answers: Any) -> None:
    def run(lib: Any, name: str, kwargs: Any, value: Any) -> Any:
        distribution, _ = made(lib, name, kwargs, "float32", grad=False)
        return distribution.log_prob(given(lib, value, "float32"))

    assert_same(*answers.both(run, name, kwargs, value), 16.0)


@PARAMETRIZED
def test_moments_and_entropies(name: str, kwargs: Any, value: Any, answers: Any) -> None:
    def moment(lib: Any, name: str, kwargs: Any, what: str) -> Any:
        distribution, leaves = made(lib, name, kwargs)
        y = or_refusal(lambda: getattr(distribution, what))
        y = or_refusal(y) if callable(y) else y
        more = slopes(lib, y, leaves) if what in ("variance", "entropy") and not isinstance(y, str) else []
        return y if isinstance(y, str) else [y.detach(), *more]

    for what in ("mean", "variance", "stddev", "mode", "entropy"):
        if what == "stddev" and name == "VonMises":
            continue
        rough = what == "entropy" or name in ("VonMises", "Kumaraswamy")
        assert_same(*answers.both(moment, name, kwargs, what), ROUGH_ENTROPY if rough else 8.0)


@PARAMETRIZED
def test_distribution_functions_and_quantiles(name: str, kwargs: Any, value: Any, answers: Any) -> None:
    def run(lib: Any, name: str, kwargs: Any, value: Any) -> list[Any]:
        def asked(what: str, x: Any) -> Any:
            distribution, leaves = made(lib, name, kwargs, grad=name != "Gamma")
            y = or_refusal(lambda: getattr(distribution, what)(x))
            return y if isinstance(y, str) else [y.detach(), *slopes(lib, y, leaves)]

        if name in ("Chi2", "InverseGamma"):  # Gamma's
            return []
        share = lib.tensor([[0.1, 0.4, 0.7], [0.2, 0.5, 0.95]], dtype=lib.float64)
        return [asked("cdf", given(lib, value)), asked("icdf", share)]

    assert_same(*answers.both(run, name, kwargs, value), 16.0)


@PARAMETRIZED
def test_shapes_texts_and_expansion(name: str, kwargs: Any, value: Any, answers: Any) -> None:
    def run(lib: Any, name: str, kwargs: Any, value: Any) -> list[Any]:
        distribution, _ = made(lib, name, kwargs, grad=False)
        wide = distribution.expand((4, *distribution.batch_shape))
        again = distribution.expand((1, *distribution.batch_shape))  # by the kernels there are
        fixed = name not in ("Uniform", "Wishart")  # whose constraints hold tensors
        return [
            told(lib, distribution),
            told(lib, distribution.support),
            told(lib, sorted(distribution.arg_constraints.items())) if fixed else "",
            bool(distribution.has_rsample),
            bool(distribution.has_enumerate_support),
            *(tuple(d.batch_shape) + tuple(d.event_shape) for d in (distribution, wide)),
            told(lib, wide),
            tuple(again.sample().shape),
            again.log_prob(given(lib, value)),
            or_refusal(lambda: distribution.enumerate_support()),
            or_refusal(lambda: distribution.enumerate_support(False)),
        ]

    assert_same(*answers.both(run, name, kwargs, value), ROUGH.get(name, 8.0))


def in_pytorchs_words(lib: Any, name: str, error: Exception) -> str:
    """What an error says behind the name of the class or method that kiln puts before it."""
    return re.sub(rf"^{name}(\.\w+)?: ", "", told(lib, error))


@PARAMETRIZED
def test_wrong_parameters_and_values_are_told(name: str, kwargs: Any, value: Any, answers: Any) -> None:
    """NaN for each parameter, and in place of a value; in PyTorch's words."""

    def run(lib: Any, name: str, kwargs: Any, value: Any) -> list[str]:
        texts = []
        for key in kwargs:
            if not isinstance(kwargs[key], np.ndarray) or key in ("temperature", "total_count"):
                continue
            try:
                made(lib, name, {**kwargs, key: np.full_like(kwargs[key], np.nan)}, grad=False)
                texts.append("nothing")
            except ValueError as error:
                texts.append(f"{type(error).__name__}: {in_pytorchs_words(lib, name, error)}")
        distribution, _ = made(lib, name, kwargs, grad=False)
        for wrong in (3.0, given(lib, np.full_like(value, -7 if value.dtype.kind == "i" else np.nan))):
            try:
                distribution.log_prob(wrong)
                texts.append("nothing")
            except (ValueError, TypeError, AttributeError) as error:
                texts.append(f"{type(error).__name__}: {in_pytorchs_words(lib, name, error)}")
        return texts

    # PyTorch finds these in a distribution that it makes of the parameters, or fails in LAPACK
    if name in ("FisherSnedecor", "StudentT", "LKJCholesky", "LowRankMultivariateNormal", "Wishart"):
        with pytest.raises(ValueError, match="Expected parameter|Value of df"):
            key = next(k for k, v in kwargs.items() if isinstance(v, np.ndarray))
            made(kiln, name, {**kwargs, key: np.full_like(kwargs[key], np.nan)})
        return
    ours, theirs = answers.both(run, name, kwargs, value)
    assert ours == theirs


@PARAMETRIZED
def test_draws_lie_in_the_support_and_have_gradients(name: str, kwargs: Any, value: Any) -> None:
    distribution, _ = made(kiln, name, kwargs, grad=False)
    draws = distribution.sample((5,))
    assert bool(distribution.support.check(draws).all())
    x = given(kiln, value)
    assert copy.deepcopy(distribution).log_prob(x).tolist() == distribution.log_prob(x).tolist()
    if distribution.has_rsample:
        distribution, leaves = made(kiln, name, kwargs)
        y = distribution.rsample((2,))
        found = kiln.autograd.grad(y.sum(), leaves, allow_unused=True)
        assert all(g is None or bool(g.isfinite().all()) for g in found) and any(g is not None for g in found)


def test_validation_is_asked_for_by_argument_and_by_default() -> None:
    Normal = kiln.distributions.Normal
    assert Normal(0.0, -1.0, validate_args=False).scale.item() == -1
    try:
        kiln.distributions.Distribution.set_default_validate_args(False)
        assert Normal(0.0, -1.0).log_prob(kiln.tensor(0.0)).isnan()
        with pytest.raises(ValueError, match="Expected parameter scale"):
            Normal(0.0, -1.0, validate_args=True)
    finally:
        kiln.distributions.Distribution.set_default_validate_args(True)
    with pytest.raises(ValueError):
        kiln.distributions.Distribution.set_default_validate_args(2)
    with pytest.raises(ValueError, match="Value is not broadcastable with batch_shape"):
        Normal(kiln.zeros(3), 1.0).log_prob(kiln.zeros(2))
    with pytest.raises(ValueError, match="The right-most size of value must match event_shape"):
        kiln.distributions.Dirichlet(kiln.ones(3)).log_prob(kiln.ones(2))


@pytest.mark.parametrize(
    ("name", "args", "error", "match"),
    [
        ("Bernoulli", (), ValueError, "Either `probs` or `logits` must be specified, but not both"),
        ("Categorical", (kiln.ones(2), kiln.ones(2)), ValueError, "but not both"),
        (
            "Categorical",
            (kiln.tensor(1.0),),
            ValueError,
            "`probs` parameter must be at least one-dimensional",
        ),
        ("Dirichlet", (kiln.tensor(1.0),), ValueError, "`concentration` parameter must be at least"),
        ("Normal", (kiln.zeros(2), "1"), ValueError, "Input arguments must all be instances of Number"),
        ("Multinomial", (kiln.tensor(3), kiln.ones(2)), NotImplementedError, "inhomogeneous total_count"),
        ("LKJCholesky", (1,), ValueError, "Expected dim to be an integer greater than or equal to 2"),
        ("MultivariateNormal", (kiln.zeros(2),), ValueError, "Exactly one of covariance_matrix or"),
        ("MultivariateNormal", (kiln.zeros(2), kiln.ones(2)), ValueError, "must be at least two-dimensional"),
        ("MultivariateNormal", (kiln.tensor(0.0), kiln.eye(2)), ValueError, "loc must be at least one-dim"),
        ("Geometric", (kiln.tensor([0.0, 0.5]),), ValueError, "to be positive but found invalid values"),
        ("Wishart", (1.0, kiln.eye(3)), ValueError, "Value of df=1.0 expected to be greater than"),
        ("Independent", (kiln.distributions.Normal(0.0, 1.0), 1), ValueError, "reinterpreted_batch_ndims"),
        ("TransformedDistribution", (kiln.distributions.Normal(0.0, 1.0), 1), ValueError, "transforms must"),
        ("LowRankMultivariateNormal", (kiln.ones(2), kiln.ones(3, 1), kiln.ones(2)), ValueError, "2 x m"),
    ],
)
def test_constructors_refuse(name: str, args: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        getattr(kiln.distributions, name)(*args)


def test_what_a_distribution_lacks_is_not_implemented() -> None:
    d = kiln.distributions
    for call in (
        lambda: d.Poisson(1.0).rsample(),
        lambda: d.Normal(0.0, 1.0).enumerate_support(),
        lambda: d.Gamma(1.0, 1.0).icdf(kiln.tensor(0.5)),
        lambda: d.Distribution().mean,
        lambda: d.Binomial(kiln.tensor([1, 2]), probs=0.5).enumerate_support(),
        lambda: d.Independent(d.Bernoulli(kiln.ones(2)), 1).enumerate_support(),
    ):
        with pytest.raises(NotImplementedError):
            call()


def test_distributions_of_a_users_own() -> None:
    class Mine(kiln.distributions.Normal):
        pass

    class Other(kiln.distributions.Normal):
        def __init__(self, loc: Any) -> None:
            super().__init__(loc, 1.0)

    class Doubled(kiln.distributions.TransformedDistribution):
        def __init__(self, loc: Any) -> None:
            self.loc = loc
            super().__init__(
                kiln.distributions.Normal(loc, 1.0), [kiln.distributions.AffineTransform(0.0, 2.0)]
            )

        def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
            new = self._get_checked_instance(Doubled, _instance)
            new.loc = self.loc.expand(batch_shape)
            return super().expand(batch_shape, _instance=new)

    doubled = Doubled(kiln.ones(2)).expand((3, 2))
    assert doubled.loc.shape == doubled.base_dist.loc.shape == (3, 2) and doubled.sample().shape == (3, 2)

    class Bare(kiln.distributions.Distribution):
        pass

    assert type(Mine(0.0, 1.0).expand((2,))) is Mine
    with pytest.raises(NotImplementedError, match="must also define a custom .expand"):
        Other(0.0).expand((2,))
    with pytest.warns(UserWarning, match="does not define `arg_constraints`"):
        bare = Bare()
    with pytest.warns(UserWarning, match="does not define `support`"):
        bare._validate_sample(kiln.tensor(0.0))
    with pytest.warns(FutureWarning, match="sample_n"):
        assert Mine(0.0, 1.0).sample_n(3).shape == (3,)


def test_mixtures(answers: Any) -> None:
    def run(lib: Any, component: str, kwargs: Any, value: Any) -> list[Any]:
        d = lib.distributions
        weights = lib.tensor([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]], dtype=lib.float64).requires_grad_()
        part, leaves = made(lib, component, kwargs)
        part = d.Independent(part, 1) if component == "Laplace" else part
        mixture = d.MixtureSameFamily(d.Categorical(weights), part)
        x = given(lib, value)
        y = mixture.log_prob(x)
        assert tuple(mixture.expand((4, 2)).sample((5,)).shape[:3]) == (5, 4, 2)
        return [
            y.detach(),
            *slopes(lib, y, [weights, *leaves]),
            mixture.mean.detach(),
            mixture.variance.detach(),
            tuple(mixture.sample((4,)).shape),
            told(lib, mixture),
            mixture.cdf(x).detach() if component == "Normal" else "",
            tuple(mixture.batch_shape),
        ]

    inputs = {name: (kwargs, value) for name, kwargs, value in CASES}
    assert_same(*answers.both(run, "Normal", inputs["Normal"][0], np.array([0.5, -1.0])))
    wide = {key: np.arange(12.0).reshape(2, 3, 2) / 6 + 0.5 for key in ("loc", "scale")}
    assert_same(*answers.both(run, "Laplace", wide, np.array([[0.5, -1.0], [1.0, 0.0]])))
    with pytest.raises(ValueError, match="does not equal"):
        d = kiln.distributions
        d.MixtureSameFamily(d.Categorical(kiln.ones(2)), d.Normal(kiln.zeros(3), 1.0))


def test_generalized_pareto(answers: Any) -> None:
    """In float32: PyTorch's has no other dtype."""

    def run(lib: Any, loc: Any, concentration: Any) -> list[Any]:
        place, shape = (lib.tensor(x, requires_grad=True) for x in (loc, concentration))
        distribution = lib.distributions.GeneralizedPareto(place, 2.0, shape)
        x = lib.tensor([[0.5, 1.5, 3.5], [0.75, 2.0, 5.0]])
        found = [distribution.mean.detach(), distribution.variance.detach(), distribution.mode.detach()]
        for y in (
            distribution.log_prob(x),
            distribution.cdf(x),
            distribution.icdf(x / 6),
            distribution.log_survival_function(x),
            distribution.entropy(),
        ):
            found += [y.detach(), *slopes(lib, y, [place, shape])]
        return [*found, told(lib, distribution), distribution.support.check(x - 0.5)]

    assert_same(*answers.both(run, [0.5, 1.0, 2.0], [-0.25, 0.0, 0.75]), 64.0)


def test_paths_of_torch_hold_the_same_classes() -> None:
    import kiln.distributions.multivariate_normal as vectors
    from kiln.distributions.categorical import Categorical
    from kiln.distributions.normal import Normal

    assert Normal is kiln.distributions.Normal and Categorical is kiln.distributions.Categorical
    assert vectors._batch_mahalanobis(kiln.eye(2), kiln.ones(2)).item() == 2
    for name in kiln.distributions.__all__:
        assert hasattr(kiln.distributions, name)


def test_recorded_programs_give_the_same_bits() -> None:
    d = kiln.distributions
    x, y = kiln.tensor([0.3, 1.2, 2.0]), kiln.tensor([0, 2])

    def densities(loc: Any, scale: Any, logits: Any) -> list[Any]:
        found = [
            d.Normal(loc, scale).log_prob(x),
            d.Gamma(scale, scale).log_prob(x),
            d.kl_divergence(d.Normal(loc, scale), d.Normal(0.0, 1.0)),
            d.Categorical(logits=logits).log_prob(y),
        ]
        sum(f.sum() for f in found).backward()
        return [*found, *(p.grad for p in (loc, scale, logits))]

    def inputs() -> list[Any]:
        values = ([0.5, -1.0, 2.0], [1.0, 0.5, 2.0], [[0.1, 0.5, 2.0], [1.0, 0.0, 1.0]])
        return [kiln.tensor(v, requires_grad=True) for v in values]

    compiled = kiln.compile(densities, wait=True)
    wanted = [v.tolist() for v in densities(*inputs())]
    for _ in range(3):
        assert [v.tolist() for v in compiled(*inputs())] == wanted
