"""What every distribution is: shapes, validation, expansion, and the names that families fill in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from kiln import ops
from kiln._core import Size, Tensor
from kiln.autograd import no_grad
from kiln.autograd.engine import grad
from kiln.distributions import constraints
from kiln.distributions.utils import lazy_property, logits_to_probs, probs_to_logits
from kiln.errors import warn
from kiln.table.arguments import expect, recorder_here

__all__ = ["Distribution", "ExponentialFamily"]

# What may stand for a sample's shape.
Shape = Sequence[int]


def checked(method: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """A method of a value, which is validated first where its distribution validates."""

    @wraps(method)
    def call(self: Any, value: Tensor) -> Tensor:
        if self._validate_args:
            self._validate_sample(value)
        return method(self, value)

    return call


class Distribution:
    """A probability distribution over tensors.

    A sample has shape `sample_shape + batch_shape + event_shape`: an event is one draw (a number, a vector, a
    matrix), the batch has one distribution each. Parameters are named by `arg_constraints`, and are tensors
    whose last dims are those of their constraint's events and whose others are the batch's; so one `expand`
    serves all.

    validate_args   whether parameters and values are checked: a ValueError says which are not valid. None: as
                    `set_default_validate_args` says, which is True but under `python -O`.
    """

    has_rsample: Any = False
    has_enumerate_support: Any = False
    _validate_args = __debug__

    @staticmethod
    def set_default_validate_args(value: bool) -> None:
        """Whether distributions made from now on check what they are given. ValueError but for a bool."""
        if value not in (True, False):
            raise ValueError(f"set_default_validate_args: expected True or False, got {value!r}")
        Distribution._validate_args = value

    def __init__(
        self, batch_shape: Shape = (), event_shape: Shape = (), validate_args: bool | None = None
    ) -> None:
        self._batch_shape = Size(batch_shape)
        self._event_shape = Size(event_shape)
        if validate_args is not None:
            self._validate_args = validate_args
        if self._validate_args:
            self._check_parameters()

    def _check_parameters(self) -> None:
        try:
            described = self.arg_constraints
        except NotImplementedError:
            described = {}
            warn(
                f"{type(self)} does not define `arg_constraints`. Please set `arg_constraints = {{}}` or "
                "initialize the distribution with `validate_args=False` to turn off validation."
            )
        for name, constraint in described.items():
            if constraints.is_dependent(constraint):
                continue  # its object alone could tell
            if name not in self.__dict__ and isinstance(getattr(type(self), name, None), lazy_property):
                continue  # follows from another
            value = getattr(self, name)

            def told(name: str = name, value: Any = value, constraint: Any = constraint) -> str:
                own, shown = self._shown(value)
                return (
                    f"Expected parameter {name} ({type(value).__name__} of shape {tuple(value.shape)}) of "
                    f"distribution {own} to satisfy the constraint {constraint!r}, but found invalid "
                    f"values{shown}"
                )

            expect(constraint.check(value), ValueError, told)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> Any:
        """The same distribution with parameters expanded (as views) to another batch shape.

        NotImplementedError for a subclass with a constructor of its own and no `expand`.

        >>> kiln.distributions.Normal(0.0, 1.0).expand([2]).loc
        tensor([0., 0.])
        """
        new = self._get_checked_instance(_family(type(self)), _instance)
        shape = Size(batch_shape)
        described = self.arg_constraints
        for name, value in self.__dict__.items():
            if name in new.__dict__:
                continue  # a subclass's `expand` has filled it
            if name in described:
                own = described[name].event_dim
                value = value.expand((*shape, *value.shape[value.ndim - own :]))
            elif isinstance(value, Distribution):
                value = value.expand(self._part_shape(name, shape))
            elif isinstance(getattr(type(self), name, None), lazy_property):
                continue  # computed again
            new.__dict__[name] = value
        new._batch_shape = shape
        new._validate_args = self._validate_args
        return new

    def _part_shape(self, name: str, batch_shape: Shape) -> Shape:
        """The batch shape of a distribution that is an attribute of one of `batch_shape`."""
        return batch_shape

    def _get_checked_instance(self, cls: type, _instance: Any = None) -> Any:
        """An empty object for `expand` to fill."""
        if _instance is not None:
            return _instance
        if type(self).__init__ is not cls.__init__:  # type: ignore[misc]
            raise NotImplementedError(
                f"Subclass {type(self).__name__} of {cls.__name__} that defines a custom __init__ method "
                "must also define a custom .expand() method."
            )
        return object.__new__(type(self))

    @property
    def batch_shape(self) -> Size:
        """The shape of parameters: a distribution each."""
        return self._batch_shape

    @property
    def event_shape(self) -> Size:
        """The shape of one draw of one distribution."""
        return self._event_shape

    @property
    def arg_constraints(self) -> Any:
        """The constraint of each parameter, by name."""
        raise NotImplementedError

    @property
    def support(self) -> Any:
        """The constraint that samples satisfy."""
        raise NotImplementedError

    @property
    def mean(self) -> Tensor:
        """The mean, of the shape of one sample."""
        raise NotImplementedError

    @property
    def mode(self) -> Tensor:
        """The most probable value."""
        raise NotImplementedError(f"{type(self)} does not implement mode")

    @property
    def variance(self) -> Tensor:
        """The variance of each element of a sample."""
        raise NotImplementedError

    @property
    def stddev(self) -> Tensor:
        """The root of the variance."""
        return self.variance.sqrt()

    def sample(self, sample_shape: Shape = ()) -> Tensor:
        """A draw, without a gradient."""
        with no_grad():
            return self.rsample(sample_shape)

    def rsample(self, sample_shape: Shape = ()) -> Tensor:
        """A draw as a differentiable function of the parameters, where `has_rsample`."""
        raise NotImplementedError

    def sample_n(self, n: int) -> Tensor:
        """n draws: `sample((n,))`, which is to be preferred."""
        warn("`sample_n(n)` will be deprecated. Use `sample((n,))` instead.", FutureWarning)
        return self.sample((n,))

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density, or of the probability, of each event of `value`."""
        raise NotImplementedError

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of what is not above `value`."""
        raise NotImplementedError

    def icdf(self, value: Tensor) -> Tensor:
        """The number below which the share `value` of all draws lies."""
        raise NotImplementedError

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All values a discrete distribution has, along a new first dim; `expand` along the batch too."""
        raise NotImplementedError

    def _enumerated(self, values: Tensor, expand: bool) -> Tensor:
        """Numbers (n,) as what `enumerate_support` gives."""
        values = values.reshape((-1, *[1] * len(self._batch_shape)))
        return values.expand((-1, *self._batch_shape)) if expand else values

    def entropy(self) -> Tensor:
        """The entropy, in nats, of the batch's shape."""
        raise NotImplementedError

    def perplexity(self) -> Tensor:
        """The exponential of the entropy."""
        return self.entropy().exp()

    def _extended_shape(self, sample_shape: Shape = ()) -> Size:
        """The shape of a sample."""
        return Size((*sample_shape, *self._batch_shape, *self._event_shape))

    def _full(self, value: float, like: Tensor) -> Tensor:
        """One number for each element of an event, where a mean or variance is NaN or infinite."""
        return ops.full(tuple(self._extended_shape()), value, dtype=like.dtype)

    def _validate_sample(self, value: Any) -> None:
        """ValueError for a value whose shape does not fit, or that is outside the support."""
        if not isinstance(value, Tensor):
            raise ValueError("The value argument to log_prob must be a Tensor")
        expected = (*self._batch_shape, *self._event_shape)
        if tuple(value.shape[value.ndim - len(self._event_shape) :]) != tuple(self._event_shape):
            raise ValueError(
                f"The right-most size of value must match event_shape: {value.shape} vs {self._event_shape}."
            )
        for size, wanted in zip(reversed(value.shape), reversed(expected)):
            if size != wanted and size != 1 and wanted != 1:
                raise ValueError(
                    "Value is not broadcastable with batch_shape+event_shape: "
                    f"{value.shape} vs {Size(expected)}."
                )
        try:
            support = self.support
        except NotImplementedError:
            warn(
                f"{type(self)} does not define `support` to enable sample validation. Please initialize the "
                "distribution with `validate_args=False` to turn off validation."
            )
            return

        def told() -> str:
            own, shown = self._shown(value)
            return (
                f"Expected value argument ({type(value).__name__} of shape {tuple(value.shape)}) to be "
                f"within the support ({support!r}) of the distribution {own}, but found invalid values{shown}"
            )

        expect(support.check(value), ValueError, told)

    def _shown(self, value: Any) -> tuple[str, str]:
        """This and a value as errors show them: without numbers where there are none."""
        return (repr(self), f":\n{value}") if recorder_here() is None else (type(self).__name__, "")

    def __repr__(self) -> str:
        held = {name: self.__dict__[name] for name in self.arg_constraints if name in self.__dict__}
        shown = [f"{name}: {x if x.numel() == 1 else x.shape}" for name, x in held.items()]
        return f"{type(self).__name__}({', '.join(shown)})"


def _family(kind: type) -> type:
    """The class of this package that a user's class is derived from; of one that is its own, itself."""
    return next(
        c for c in kind.__mro__ if c.__module__.startswith(("kiln.distributions.", "torch.distributions."))
    )


class ExponentialFamily(Distribution):
    """Densities exp(t(x) . n - F(n) + k(x)) of natural parameters n, with the log normalizer F.

    A family that gives `_natural_params`, `_log_normalizer` and `_mean_carrier_measure` (the mean of k) has
    its entropy, and the divergence between two of its members, by the gradient of F (Nielsen and Nock,
    Entropies and cross-entropies of exponential families, 2010).
    """

    @property
    def _natural_params(self) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _log_normalizer(self, *natural_params: Tensor) -> Tensor:
        raise NotImplementedError

    @property
    def _mean_carrier_measure(self) -> float:
        raise NotImplementedError

    def _mean_statistics(self) -> tuple[list[Tensor], Tensor, tuple[Tensor, ...]]:
        """Natural parameters (new leaves), F of them, and its gradient, the means of t."""
        params = [p.detach().requires_grad_() for p in self._natural_params]
        normalizer = self._log_normalizer(*params)
        return params, normalizer, grad(normalizer.sum(), params, create_graph=True)

    def entropy(self) -> Tensor:
        params, result, means = self._mean_statistics()
        result = result - self._mean_carrier_measure
        for param, mean in zip(params, means):
            result = result - (param * mean).reshape((*self._batch_shape, -1)).sum(-1)
        return result


class WithProbs(Distribution):
    """Distributions given by `probs` or by `logits`, of which the other is computed when it is read.

    `_is_binary`: a number is the odds of an event by itself; else the last dim holds those of a choice.
    """

    _is_binary = True

    def _take(self, probs: Any, logits: Any) -> Any:
        """The one that is given; its name is kept. ValueError for both or none."""
        if (probs is None) == (logits is None):
            raise ValueError("Either `probs` or `logits` must be specified, but not both.")
        self._given = "logits" if probs is None else "probs"
        return logits if probs is None else probs

    @lazy_property
    def logits(self) -> Tensor:
        """Log odds, or logarithms of probabilities."""
        return probs_to_logits(self.probs, self._is_binary)

    @lazy_property
    def probs(self) -> Tensor:
        """Probabilities."""
        return logits_to_probs(self.logits, self._is_binary)

    @property
    def _param(self) -> Tensor:
        found: Tensor = getattr(self, self._given)
        return found

    @property
    def param_shape(self) -> Size:
        """The shape of `probs` or `logits`."""
        return self._param.shape
