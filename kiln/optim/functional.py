"""Steps of optimizers as functions of lists, as `kiln.optim.adam.adam`: parameters, gradients and states that
the caller keeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

from kiln._core import Tensor
from kiln.optim.stepping import Stepping

Step = Callable[..., None]

# what an option is if it is not said; the others None
_OPTIONS = dict.fromkeys(
    "capturable differentiable maximize decoupled_weight_decay has_complex has_sparse_grad".split(), False
)
# settings that optimizers have in pairs
_PAIRS = {
    "betas": ("beta1", "beta2"),
    "etas": ("etaminus", "etaplus"),
    "step_sizes": ("step_size_min", "step_size_max"),
}


def form(
    kind: type[Stepping], state: str, options: str, settings: str, *, lists: str, grads: str = "grads"
) -> Step:
    """The function form of an optimizer's step: `f(params, grads, *lists, *options, **settings)`.

    `state` says the names that the lists' elements have in a state. The lists are written to: a list is empty
    where its settings need no such state, an element None where it begins.

    >>> from kiln.optim.sgd import sgd
    >>> p, buffers = kiln.ones(2), [None]
    >>> sgd([p], [kiln.ones(2)], buffers, weight_decay=0, momentum=0.9, lr=0.5, dampening=0, nesterov=False,
    ...     maximize=False)
    >>> p, buffers
    (tensor([0.5000, 0.5000]), [tensor([1., 1.])])
    """
    names = state.split()
    first = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ["params", grads, *lists.split()]]
    second = [
        Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=_OPTIONS.get(name))
        for name in options.split()
    ]
    third = [Parameter(name, Parameter.KEYWORD_ONLY) for name in settings.split()]
    signature = Signature([*first, *second, *third], return_annotation=None)

    def step(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        group = dict(bound.arguments)
        params, found = list(group["params"]), list(group.pop(grads))
        states = {name: group.pop(place) for name, place in zip(names, lists.split())}
        if not all(isinstance(count, Tensor) for count in states.get("step", ())):
            raise RuntimeError("`state_steps` argument must contain a list of singleton tensors")
        scale, infinite = group.pop("grad_scale", None), group.pop("found_inf", None)
        if not group.get("fused") and (scale is not None or infinite is not None):
            raise AssertionError("Expected grad_scale and found_inf to be None")
        if infinite is not None and infinite.item():
            return
        if scale is not None:
            found = [g / scale for g in found]
        for pair, parts in _PAIRS.items():
            if parts[0] in group:
                group[pair] = tuple(group[part] for part in parts)
        _run(kind, group, list(zip(params, found, strict=True)), states)

    step.__name__ = step.__qualname__ = kind.__name__.lower()
    step.__doc__ = f"A step of {kind.__name__} over lists: the parameters and {', '.join(names)} are written."
    step.__signature__ = signature  # type: ignore[attr-defined]
    return step


def _run(
    kind: type[Stepping], group: dict[str, Any], given: list[tuple[Tensor, Tensor]], states: dict[str, Any]
) -> None:
    """One step of a group, whose states are elements of lists."""
    optimizer = kind.__new__(kind)
    optimizer.state, optimizer._cells = defaultdict(dict), {}
    optimizer.given = lambda group: given  # type: ignore[method-assign]
    group.setdefault("decoupled_weight_decay", kind.__name__ == "AdamW")
    for k, (param, _) in enumerate(given):
        optimizer.state[param] = {name: values[k] for name, values in states.items() if len(values)}
    optimizer.update(group)
    for k, (param, _) in enumerate(given):
        for name, values in states.items():
            came = optimizer.state[param].get(name)
            if not len(values) or came is values[k]:
                continue
            if values[k] is None:
                values[k] = came
            else:  # a count of another dtype, which the step has kept beside
                values[k].copy_(came)
