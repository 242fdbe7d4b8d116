"""Transforms, constraints and the registry between them, beside PyTorch's."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import numpy as np
import pytest
from answers import comparable
from backend import kiln
from distribution_cases import draw_again, lower, positive, positive_definite, real, share, told

from kiln.testing.compare import first_difference

draw_again(2)


def t(lib: Any, values: Any) -> Any:
    return lib.tensor(np.asarray(values).tolist(), dtype=lib.float64)


TRANSFORMS: dict[str, tuple[Any, Any]] = {
    "exp": (lambda lib, d: d.ExpTransform(), real(2, 3)),
    "inverse": (lambda lib, d: d.ExpTransform().inv, positive(2, 3)),
    "sigmoid": (lambda lib, d: d.SigmoidTransform(), real(2, 3)),
    "softplus": (lambda lib, d: d.SoftplusTransform(), real(2, 3)),
    "tanh": (lambda lib, d: d.TanhTransform(), real(2, 3)),
    "abs": (lambda lib, d: d.AbsTransform(), real(2, 3)),
    "power": (lambda lib, d: d.PowerTransform(t(lib, [2.0, -0.5, 3.0])), positive(2, 3)),
    "affine": (lambda lib, d: d.AffineTransform(1.0, -2.0), real(2, 3)),
    "affine of events": (
        lambda lib, d: d.AffineTransform(t(lib, [1.0, 2, 3]), t(lib, [-1.0, 2, 3]), event_dim=1),
        real(2, 3),
    ),
    "softmax": (lambda lib, d: d.SoftmaxTransform(), real(2, 3)),
    "stick breaking": (lambda lib, d: d.StickBreakingTransform(), real(2, 3)),
    "lower cholesky": (lambda lib, d: d.LowerCholeskyTransform(), real(2, 3, 3)),
    "positive definite": (lambda lib, d: d.PositiveDefiniteTransform(), real(2, 3, 3)),
    "correlation": (lambda lib, d: d.CorrCholeskyTransform(), real(2, 3)),
    "reshape": (lambda lib, d: d.ReshapeTransform((2, 3), (6,)), real(2, 2, 3)),
    "cumulative": (
        lambda lib, d: d.CumulativeDistributionTransform(d.Normal(t(lib, 0), t(lib, 1))),
        real(2, 3),
    ),
    "cat": (
        lambda lib, d: d.CatTransform([d.ExpTransform(), d.AffineTransform(1.0, 2.0)], -1, [2, 1]),
        real(2, 3),
    ),
    "cat of one each": (lambda lib, d: d.CatTransform([d.ExpTransform(), d.TanhTransform()]), real(2, 3)),
    "stack": (lambda lib, d: d.StackTransform([d.ExpTransform(), d.TanhTransform()]), real(2, 3)),
    "independent": (lambda lib, d: d.IndependentTransform(d.ExpTransform(), 1), real(2, 3)),
    "composed": (
        lambda lib, d: d.ComposeTransform([d.AffineTransform(0.0, 2.0), d.StickBreakingTransform()]),
        real(2, 3),
    ),
    "composed of three": (
        lambda lib, d: d.ComposeTransform(
            [d.StickBreakingTransform(), d.StickBreakingTransform().inv, d.ExpTransform()]
        ),
        real(2, 3),
    ),
    "identity": (lambda lib, d: d.identity_transform, real(2, 3)),
}


def or_error(call: Any) -> Any:
    try:
        return call()
    except (NotImplementedError, ValueError) as error:
        return type(error).__name__


def assert_same(ours: Any, theirs: Any) -> None:
    found = first_difference(comparable(ours), comparable(theirs), False, "result", 16.0)
    assert found is None, found


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str, answers: Any) -> None:
    def run(lib: Any, name: str, make: Any, values: Any) -> list[Any]:
        d = lib.distributions
        transform = make(lib, d)
        x = t(lib, values)
        y = transform(x)
        return [
            y,
            transform.inv(y),
            or_error(lambda: transform.log_abs_det_jacobian(x, y)),
            told(lib, transform),
            told(lib, transform.inv),
            [bool(transform.bijective), transform.domain.event_dim, transform.codomain.event_dim],
            [told(lib, transform.domain), told(lib, transform.codomain)] if "cat" not in name else [],
            or_error(lambda: transform.event_dim),
            [tuple(transform.forward_shape(x.shape)), tuple(transform.inverse_shape(y.shape))],
            or_error(lambda: told(lib, transform.sign).replace(", dtype=float64", "")),
        ]

    make, values = TRANSFORMS[name]
    assert_same(*answers.both(run, name, make, values))


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_cache_keeps_the_last_pair(name: str) -> None:
    make, values = TRANSFORMS[name]
    transform, x = make(kiln, kiln.distributions), t(kiln, values)
    if transform is kiln.distributions.identity_transform:
        return
    cached = transform.with_cache()
    y = cached(x)
    assert cached.inv(y) is x and cached.with_cache() is cached and transform.with_cache(0) is transform
    assert y.tolist() == transform(x).tolist()
    again = copy.deepcopy(cached)
    assert again(x).tolist() == y.tolist()
    assert transform == transform and transform.inv == transform.inv and transform != 3


def test_stretches_are_the_determinants_of_the_slopes() -> None:
    for name in ("tanh", "power", "stick breaking", "correlation", "affine of events"):
        make, values = TRANSFORMS[name]
        transform, x = make(kiln, kiln.distributions), t(kiln, values[0])

        def free(x: Any, transform: Any = transform, name: str = name) -> Any:
            y = transform(x)
            return (
                kiln.distributions.utils.tril_matrix_to_vec(y, -1)
                if name == "correlation"
                else y[: x.numel()]
            )

        slope = kiln.autograd.functional.jacobian(free, x)
        found = transform.log_abs_det_jacobian(x, transform(x)).sum()
        assert np.isclose(found, np.linalg.slogdet(slope.numpy())[1])


def test_equal_transforms() -> None:
    d = kiln.distributions
    assert d.ExpTransform() == d.ExpTransform() != d.TanhTransform()
    assert d.AffineTransform(0.0, kiln.ones(2)) == d.AffineTransform(0.0, kiln.ones(2))
    assert d.AffineTransform(0.0, 1.0) != d.AffineTransform(0.0, 2.0)
    assert d.PowerTransform(2.0) == d.PowerTransform(2.0) != d.PowerTransform(3.0)
    parts = [d.ExpTransform(), d.TanhTransform()]
    assert d.ComposeTransform(parts) == d.ComposeTransform(parts) != d.ComposeTransform(parts[:1])
    assert len({d.ExpTransform(), d.ExpTransform()}) == 2  # they are kept by identity


def test_transforms_refuse() -> None:
    d = kiln.distributions
    for call, error, match in (
        (lambda: d.ExpTransform(2), ValueError, "cache_size must be 0 or 1"),
        (lambda: d.ReshapeTransform((2,), (3,)), ValueError, "different numbers of elements"),
        (lambda: d.ReshapeTransform((2,), (2, 1)).forward_shape((3,)), ValueError, "Shape mismatch"),
        (lambda: d.CorrCholeskyTransform().forward_shape((2,)), ValueError, "not a flattened lower-diagonal"),
        (lambda: d.CorrCholeskyTransform().inverse_shape((2, 3)), ValueError, "Input is not square"),
        (lambda: d.StickBreakingTransform().forward_shape(()), ValueError, "Too few dimensions on input"),
        (lambda: d.IndependentTransform(d.ExpTransform(), 2)(kiln.ones(1)), ValueError, "Too few dimensions"),
        (lambda: d.CatTransform([d.ExpTransform()])(kiln.ones(2)), AssertionError, "must equal length"),
        (lambda: d.CorrCholeskyTransform().event_dim, ValueError, "Please use either"),
        (lambda: d.Transform()(kiln.ones(1)), NotImplementedError, None),
    ):
        with pytest.raises(error, match=match):
            call()


CONSTRAINTS: dict[str, tuple[Any, Any]] = {
    "real": (lambda lib, c: c.real, np.array([0.5, math.nan, math.inf])),
    "boolean": (lambda lib, c: c.boolean, np.array([0.0, 1.0, 0.5])),
    "positive": (lambda lib, c: c.positive, np.array([0.0, 1.0, -1.0])),
    "nonnegative": (lambda lib, c: c.nonnegative, np.array([0.0, 1.0, -1.0])),
    "greater_than": (lambda lib, c: c.greater_than(t(lib, [1.0, -2.0, 0.0])), np.array([0.0, 1.0, -1.0])),
    "greater_than_eq": (lambda lib, c: c.greater_than_eq(1.0), np.array([0.0, 1.0, -1.0])),
    "less_than": (lambda lib, c: c.less_than(1.0), np.array([0.0, 1.0, -1.0])),
    "interval": (lambda lib, c: c.interval(-1.0, 2.0), np.array([-1.0, 2.0, 2.5])),
    "half_open_interval": (lambda lib, c: c.half_open_interval(-1.0, 2.0), np.array([-1.0, 2.0, 2.5])),
    "unit_interval": (lambda lib, c: c.unit_interval, np.array([-1.0, 1.0, 0.5])),
    "integer_interval": (lambda lib, c: c.integer_interval(0, 2), np.array([2.0, 0.5, 3.0])),
    "positive_integer": (lambda lib, c: c.positive_integer, np.array([0.0, 1.0, 1.5])),
    "nonnegative_integer": (lambda lib, c: c.nonnegative_integer, np.array([0.0, -1.0, 1.5])),
    "one_hot": (lambda lib, c: c.one_hot, np.array([[0.0, 1.0], [1.0, 1.0], [0.5, 0.5]])),
    "simplex": (lambda lib, c: c.simplex, np.array([[0.0, 1.0], [1.0, 1.0], [1.5, -0.5]])),
    "multinomial": (lambda lib, c: c.multinomial(3), np.array([[0.0, 1.0], [1.0, 3.0], [2.0, -1.0]])),
    "real_vector": (lambda lib, c: c.real_vector, np.array([[0.0, 1.0], [1.0, math.nan]])),
    "independent": (lambda lib, c: c.independent(c.positive, 1), np.array([[0.0, 1.0], [1.0, 2.0]])),
    "lower_triangular": (lambda lib, c: c.lower_triangular, np.stack([lower(), real(3, 3)])),
    "lower_cholesky": (lambda lib, c: c.lower_cholesky, np.stack([lower(), -lower()])),
    "corr_cholesky": (lambda lib, c: c.corr_cholesky, np.stack([np.eye(3), lower()])),
    "square": (lambda lib, c: c.square, real(2, 3, 3)),
    "symmetric": (lambda lib, c: c.symmetric, np.stack([positive_definite(), lower()])),
    "positive_semidefinite": (
        lambda lib, c: c.positive_semidefinite,
        np.stack([positive_definite(), -np.eye(3)]),
    ),
    "positive_definite": (lambda lib, c: c.positive_definite, np.stack([positive_definite(), -np.eye(3)])),
    "cat": (lambda lib, c: c.cat([c.positive, c.real], -1, [1, 2]), real(2, 3)),
    "stack": (lambda lib, c: c.stack([c.positive, c.unit_interval]), real(2, 3)),
    "mixture": (lambda lib, c: c.MixtureSameFamilyConstraint(c.interval(t(lib, [0, 1]), 2.0)), share(2)),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints(name: str, answers: Any) -> None:
    def run(lib: Any, make: Any, values: Any) -> list[Any]:
        c = make(lib, lib.distributions.constraints)
        text = type(c).__name__ if type(c).__name__ in ("_Cat", "_Stack") else told(lib, c)
        return [c.check(t(lib, values)), text, bool(c.is_discrete), c.event_dim]

    assert_same(*answers.both(run, *CONSTRAINTS[name]))


UNCONSTRAINED = {
    **dict.fromkeys("real positive nonnegative greater_than less_than interval unit_interval".split(), (3,)),
    **dict.fromkeys("half_open_interval simplex corr_cholesky real_vector cat".split(), (2, 3)),
    **dict.fromkeys("independent stack greater_than_eq".split(), (2, 3)),
    **dict.fromkeys("lower_cholesky positive_definite positive_semidefinite boolean".split(), (2, 3, 3)),
}


@pytest.mark.parametrize("name", UNCONSTRAINED)
def test_transforms_to_what_a_constraint_allows(name: str, answers: Any) -> None:
    def run(lib: Any, make: Any, values: Any) -> list[Any]:
        found: list[Any] = []
        for registry in (lib.distributions.biject_to, lib.distributions.transform_to):
            c = make(lib, lib.distributions.constraints)
            transform = or_error(lambda registry=registry, c=c: registry(c))
            if isinstance(transform, str):
                found.append(transform)
                continue
            x = t(lib, values)
            y = transform(x)
            found += [y, bool(c.check(y).all()), transform.inv(y), bool(transform.bijective)]
        return found

    values = np.linspace(-1.0, 1.5, math.prod(UNCONSTRAINED[name])).reshape(UNCONSTRAINED[name])
    assert_same(*answers.both(run, CONSTRAINTS[name][0], values))


def test_constraints_and_transforms_of_ones_own() -> None:
    d = kiln.distributions

    class Mine(d.constraints.Constraint):  # type: ignore[name-defined, misc]
        def check(self, value: Any) -> Any:
            return value > 1

    assert repr(Mine()) == "Mine()"
    d.biject_to.register(Mine, lambda constraint: d.ExpTransform())
    assert d.biject_to(Mine()) == d.ExpTransform()
    with pytest.raises(NotImplementedError, match="Cannot transform Mine constraints"):
        d.transform_to(Mine())
    with pytest.raises(TypeError, match="Expected constraint to be either a Constraint subclass"):
        d.transform_to.register(3, d.ExpTransform)
    dependent = d.constraints.dependent(is_discrete=True)
    assert d.constraints.is_dependent(dependent) and dependent.is_discrete
    with pytest.raises(NotImplementedError, match="event_dim cannot be determined statically"):
        _ = dependent.event_dim
    with pytest.raises(ValueError, match="Cannot determine validity of dependent constraint"):
        dependent.check(kiln.ones(1))
    assert d.constraints.is_dependent(d.Uniform.support) and not d.Uniform.support.is_discrete


def test_utilities(answers: Any) -> None:
    def run(lib: Any, p: Any) -> list[Any]:
        from importlib import import_module

        u = import_module(f"{lib.__name__}.distributions.utils")
        x, m = t(lib, p), lib.arange(16.0).reshape(4, 4)
        found = [u.probs_to_logits(x), u.probs_to_logits(x, True), u.clamp_probs(lib.tensor([0.0, 1.0]))]
        found += [u.logits_to_probs(x), u.logits_to_probs(x, True), *u.broadcast_all(x, 1, lib.ones(2, 3))]
        for diag in (-3, -1, 0, 2):
            found.append(u.tril_matrix_to_vec(m, diag))
            found.append(u.vec_to_tril_matrix(found[-1], diag) if diag <= 0 else "")
        for bad in (lambda: u.tril_matrix_to_vec(m, 4), lambda: u.vec_to_tril_matrix(lib.ones(2))):
            try:
                bad()
            except ValueError as error:  # kiln's words begin with the function's name
                found.append(re.sub(r"^\w+: ", "", str(error)))
        return found

    assert_same(*answers.both(run, [0.2, 0.3, 0.5]))
