"""What entries of optimizer steps share: which way is down, samples and references in the terms of the
papers, the form that writes its results over its arguments.

    decay == "none"        weight_decay is not read
    decay == "l2"          g += weight_decay p
    decay == "decoupled"   p *= weight_decay  (the caller passes 1 - lr * weight_decay)
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from kiln._core import grad_enabled
from kiln.ops.creation.constants import filled
from kiln.table import drawn as d
from kiln.table.record import Number, Op, Samples, Sizes, Structure, composite

# Samples are of one step in the terms of the papers, from which their references compute. No term is so small
# that a sample does not show it.
LR, BETA1, BETA2, EPS, STEP = 0.3, 0.8, 0.7, 0.05, 3
DECAY = 0.2
# steps in place, which optimizers call, by the name of their op
WRITTEN: dict[str, Callable[..., Any]] = {}


def downhill(grad: Any, maximize: bool) -> Any:
    """The gradient, negated to maximize."""
    return -grad if maximize else grad


def direction(param: Any, grad: Any, weight_decay: Any, decay: str, maximize: bool) -> Any:
    """The gradient to descend along: negated to maximize, with the L2 penalty's gradient added."""
    grad = downhill(grad, maximize)
    return grad + weight_decay * param if decay == "l2" else grad


def shrunk(param: Any, weight_decay: Any, decay: str) -> Any:
    """The parameter after decoupled weight decay."""
    return param * weight_decay if decay == "decoupled" else param


def papers(
    update: Callable[..., tuple[Any, ...]], count: int, numbers: int, *flags: str
) -> Callable[..., Any]:
    """The NumPy reference of a step on `count` arrays: weight decay and maximizing, the same for all, before
    `update(np, param, grad, *others)`, which is told of `flags` by keyword.
    """

    def run(np: ModuleType, *args: Any, **kwargs: Any) -> Any:
        param, grad, *others = args[:count]
        given = dict(zip(("weight_decay", "decay"), args[count + numbers :]), **kwargs)
        if given.get("maximize", False):
            grad = np.negative(grad)
        if given.get("decay") == "l2":
            grad = np.add(grad, np.multiply(param, DECAY))
        if given.get("decay") == "decoupled":
            param = np.subtract(param, LR * DECAY * param)
        return update(np, param, grad, *others, **{flag: given.get(flag, False) for flag in flags})

    return d.reference(run)


def arrays(rng: Any, shape: tuple[int, ...], dtype: str, moments: str) -> tuple[Any, ...]:
    """A parameter, its gradient and moments ("+": no negative values)."""
    return tuple(d.array(rng, shape, dtype, 0.1 if m == "+" else -2.0, 2.0) for m in "--" + moments)


def two_samples(moments: str, numbers: tuple[Any, ...], decay: str = "l2", **flags: Any) -> Samples:
    """Steps plain and with everything: weight decay of that kind, maximizing, and `flags`."""
    weight_decay = DECAY if decay == "l2" else 1 - LR * DECAY
    return d.samples(
        lambda rng, dtype: ((*arrays(rng, (3, 5), dtype, moments), *numbers), {}),
        lambda rng, dtype: (
            (*arrays(rng, (37,), dtype, moments), *numbers, weight_decay, decay),
            {"maximize": True, **flags},
        ),
    )


@composite(
    samples=d.samples(lambda rng, dtype: ((2.5, (3, 5), dtype), {})),
    reference=d.reference(lambda np, value, sizes, dtype: np.full(sizes, value, d.held(dtype))),
    differentiable=False,
    at_once=True,
    public=False,
)
def first_state(value: Number, sizes: Sizes, dtype: Structure) -> Any:
    """A state's first array, every element `value`: made on its line where others are recorded.

    So the first step of a training program is recorded as all others are, and is one program with them.
    """
    return filled(value.graph, value, sizes, dtype)


def write_over(op: Op, *places: int) -> None:
    """Puts into WRITTEN the step that writes its results over the arguments at these places, as `name_`.

    Where gradients are recorded it is the body's ops one by one, so that they flow through the step.
    """

    def step(*args: Any) -> Any:
        written = tuple([args[k] for k in places if args[k] is not None])
        if not grad_enabled():
            return op.handle(*args, out=written)
        assert op.body is not None
        copies = [a.clone() if k in places and a is not None else a for k, a in enumerate(args)]
        news = op.body(*copies)
        for tensor, new in zip(written, news if isinstance(news, tuple) else (news,), strict=True):
            tensor.copy_(new)
        return news

    step.__name__ = step.__qualname__ = f"{op.name}_"
    step.__doc__ = f"`{op.name}` with its results written over the parameter and its moments."
    WRITTEN[op.name] = step
