"""From a constraint to a transform that reaches all it allows, from numbers without one.

biject_to(constraint)      a bijection: densities can be carried over (Hamiltonian Monte Carlo)
transform_to(constraint)   not necessarily one, and simpler: for optimizers

    loc, scale = kiln.randn(2, requires_grad=True)
    Normal(loc, transform_to(Normal.arg_constraints["scale"])(scale))

A constraint of one's own is registered by its class: `@biject_to.register(MyConstraint)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kiln.distributions import constraints, transforms
from kiln.distributions.constraints import Constraint
from kiln.distributions.transforms import Transform
from kiln.table.callables import hide_frames_of_calls

__all__ = ["ConstraintRegistry", "biject_to", "transform_to"]

Factory = Callable[[Any], Transform]


class ConstraintRegistry:
    """Constraints' classes, and what makes a transform of one of them.

    >>> kiln.distributions.biject_to(kiln.distributions.constraints.positive)
    ExpTransform()
    """

    def __init__(self) -> None:
        self._registry: dict[type, Factory] = {}

    def register(self, constraint: Any, factory: Factory | None = None) -> Any:
        """Registers `factory` for a constraint's class; without one, a decorator. TypeError for what is
        none.
        """
        if factory is None:
            return lambda factory: self.register(constraint, factory)
        kind = type(constraint) if isinstance(constraint, Constraint) else constraint
        if not (isinstance(kind, type) and issubclass(kind, Constraint)):
            raise TypeError(
                f"Expected constraint to be either a Constraint subclass or instance, but got {constraint}"
            )
        self._registry[kind] = factory
        return factory

    def __call__(self, constraint: Constraint) -> Transform:
        """The transform to what `constraint` allows. NotImplementedError for a class that is not
        registered.
        """
        if type(constraint) not in self._registry:
            raise NotImplementedError(f"Cannot transform {type(constraint).__name__} constraints")
        return self._registry[type(constraint)](constraint)


hide_frames_of_calls(ConstraintRegistry)
biject_to = ConstraintRegistry()
transform_to = ConstraintRegistry()


def _both(*kinds: Any) -> Callable[[Callable[..., Transform]], Any]:
    """Registers a function of a constraint and of the registry that is asked, in both."""

    def register(make: Callable[..., Transform]) -> Any:
        for registry in (biject_to, transform_to):
            for kind in kinds:
                registry.register(kind, partial(make, registry=registry))
        return make

    return register


@_both(constraints.real)
def _real(constraint: Any, registry: ConstraintRegistry) -> Transform:
    return transforms.identity_transform


@_both(constraints.independent)
def _independent(constraint: Any, registry: ConstraintRegistry) -> Transform:
    base = registry(constraint.base_constraint)
    return transforms.IndependentTransform(base, constraint.reinterpreted_batch_ndims)


@_both(constraints.greater_than, constraints.greater_than_eq)
def _above(constraint: Any, registry: ConstraintRegistry) -> Transform:
    if constraint is constraints.positive or constraint is constraints.nonnegative:
        return transforms.ExpTransform()
    shift = transforms.AffineTransform(constraint.lower_bound, 1)
    return transforms.ComposeTransform([transforms.ExpTransform(), shift])


@_both(constraints.less_than)
def _below(constraint: Any, registry: ConstraintRegistry) -> Transform:
    turn = transforms.AffineTransform(constraint.upper_bound, -1)
    return transforms.ComposeTransform([transforms.ExpTransform(), turn])


@_both(constraints.interval, constraints.half_open_interval)
def _between(constraint: Any, registry: ConstraintRegistry) -> Transform:
    low, high = constraint.lower_bound, constraint.upper_bound
    if isinstance(low, (int, float)) and isinstance(high, (int, float)) and (low, high) == (0, 1):
        return transforms.SigmoidTransform()
    spread = transforms.AffineTransform(low, high - low)
    return transforms.ComposeTransform([transforms.SigmoidTransform(), spread])


biject_to.register(constraints.simplex, lambda constraint: transforms.StickBreakingTransform())
transform_to.register(constraints.simplex, lambda constraint: transforms.SoftmaxTransform())
transform_to.register(constraints.lower_cholesky, lambda constraint: transforms.LowerCholeskyTransform())
for _kind in (constraints.positive_definite, constraints.positive_semidefinite):
    transform_to.register(_kind, lambda constraint: transforms.PositiveDefiniteTransform())


@_both(constraints.corr_cholesky)
def _corr_cholesky(constraint: Any, registry: ConstraintRegistry) -> Transform:
    return transforms.CorrCholeskyTransform()


@_both(constraints.cat)
def _cat(constraint: Any, registry: ConstraintRegistry) -> Transform:
    parts = [registry(part) for part in constraint.cseq]
    return transforms.CatTransform(parts, constraint.dim, constraint.lengths)


@_both(constraints.stack)
def _stack(constraint: Any, registry: ConstraintRegistry) -> Transform:
    return transforms.StackTransform([registry(part) for part in constraint.cseq], constraint.dim)
