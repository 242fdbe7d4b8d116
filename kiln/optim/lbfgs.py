"""L-BFGS: a quasi-Newton method of limited memory, with or without a line search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Union

from kiln import ops
from kiln._core import Tensor
from kiln.autograd import enable_grad, no_grad
from kiln.optim.optimizer import Loss, Optimizer, ParamsT, in_range

# constants of the Wolfe conditions: enough descent, and a slope that is small beside the first
_DESCENT, _SLOPE = 1e-4, 0.9
# what a step keeps for the next one, in the order in which it is saved
_KEPT = ("d", "t", "old_dirs", "old_stps", "ro", "H_diag", "prev_flat_grad", "prev_loss")


class LBFGS(Optimizer):
    """Steps along minus the gradient times an inverse Hessian, estimated from the last history_size changes.

    Of one group of parameters (ValueError for more), and `step` needs the closure: it is called up to
    max_eval times (None: max_iter * 5 // 4) in up to max_iter iterations. These end early where no element
    of the gradient is above tolerance_grad, or where loss and parameters change by less than
    tolerance_change. line_search_fn: "strong_wolfe" (RuntimeError for others), None goes lr of the way
    (Nocedal and Wright, 2006, algorithms 7.4, 3.5 and 3.6).
    """

    def __init__(
        self,
        params: ParamsT,
        lr: Union[float, Tensor] = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        in_range("Invalid learning rate", lr)
        defaults = {
            "lr": lr,
            "max_iter": max_iter,
            "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval,
            "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change,
            "history_size": history_size,
            "line_search_fn": line_search_fn,
        }
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    @property
    def _params(self) -> list[Tensor]:
        params: list[Tensor] = self.param_groups[0]["params"]
        return params

    @no_grad()
    def step(self, closure: Callable[[], Loss]) -> Loss:  # type: ignore[override]
        """Up to max_iter iterations; the first loss that `closure` gave is returned."""
        group, state = self.param_groups[0], self.state[self._params[0]]
        evaluate = enable_grad()(closure)
        state.setdefault("func_evals", 0)
        state.setdefault("n_iter", 0)
        kept = {key: state[key] for key in _KEPT if key in state}  # written back at the end
        first = evaluate()
        loss, evaluations, grad = float(first), 1, self._flat_grad()  # type: ignore[arg-type]
        state["func_evals"] += 1
        if _largest(grad) <= group["tolerance_grad"]:
            return first
        for iteration in range(1, group["max_iter"] + 1):
            state["n_iter"] += 1
            direction = self._direction(state, kept, grad, group["history_size"])
            old_loss = loss
            slope = grad.dot(direction).item()
            length = float(group["lr"])
            if state["n_iter"] == 1:
                length *= min(1.0, 1.0 / grad.abs().sum().item())
            kept.update(d=direction, t=length, prev_flat_grad=grad, prev_loss=loss)
            if slope > -group["tolerance_change"]:
                break
            called = 0
            if group["line_search_fn"] is not None:
                most = group["max_eval"] - evaluations
                found, called = self._search(evaluate, direction, Point(0.0, loss, grad, slope), length, most)
                loss, grad, length = found.loss, found.grad, found.length
                kept["t"] = length
            self._move(length, direction)
            if group["line_search_fn"] is None and iteration != group["max_iter"]:
                loss, grad, called = float(evaluate()), self._flat_grad(), 1  # type: ignore[arg-type]
            evaluations += called
            state["func_evals"] += called
            if (
                iteration == group["max_iter"]
                or evaluations >= group["max_eval"]
                or _largest(grad) <= group["tolerance_grad"]
                or abs(length) * _largest(direction) <= group["tolerance_change"]
                or abs(loss - old_loss) < group["tolerance_change"]
            ):
                break
        state.update((key, kept[key]) for key in _KEPT)
        return first

    def _direction(self, state: dict[str, Any], kept: dict[str, Any], grad: Tensor, size: int) -> Tensor:
        """Minus the gradient times the estimate of the inverse Hessian, to which the last change is added."""
        if state["n_iter"] == 1:
            kept.update(old_dirs=[], old_stps=[], ro=[], H_diag=1)
            return grad.neg()
        changes, steps, ro = kept["old_dirs"], kept["old_stps"], kept["ro"]
        change, step = grad - kept["prev_flat_grad"], kept["d"] * float(kept["t"])
        curvature = change.dot(step).item()
        if curvature > 1e-10:
            if len(changes) == size:
                del changes[0], steps[0], ro[0]
            changes.append(change)
            steps.append(step)
            ro.append(1.0 / curvature)
            kept["H_diag"] = curvature / change.dot(change).item()
        weights = state.setdefault("al", [None] * size)
        direction = grad.neg()
        for k in reversed(range(len(changes))):
            weights[k] = steps[k].dot(direction).item() * float(ro[k])
            direction.add_(changes[k], alpha=-weights[k])
        direction.mul_(float(kept["H_diag"]))
        for k in range(len(changes)):
            weight = changes[k].dot(direction).item() * float(ro[k])
            direction.add_(steps[k], alpha=weights[k] - weight)
        return direction

    def _search(
        self, evaluate: Callable[[], Any], direction: Tensor, start: Point, length: float, most: int
    ) -> tuple[Point, int]:
        """The point along the direction that the line search finds, and how often it evaluated."""
        group = self.param_groups[0]
        if group["line_search_fn"] != "strong_wolfe":
            raise RuntimeError("only 'strong_wolfe' is supported")
        before = [p.clone() for p in self._params]
        calls = 0

        def at(length: float) -> Point:
            nonlocal calls
            calls += 1
            self._move(length, direction)
            loss, grad = float(evaluate()), self._flat_grad()
            for param, old in zip(self._params, before, strict=True):
                param.copy_(old)
            return Point(length, loss, grad, grad.dot(direction).item())

        size, least = _largest(direction), group["tolerance_change"]
        return strong_wolfe(at, start, length, lambda width: width * size < least, most), calls

    def _flat_grad(self) -> Tensor:
        """All gradients in one vector of its own; zeros for parameters that have none."""
        flat = [ops.zeros_like(p) if p.grad is None else p.grad for p in self._params]
        made: Tensor = ops.cat([g.detach().reshape(-1) for g in flat], 0)
        return made

    def _move(self, length: float, direction: Tensor) -> None:
        """Adds length * direction to the parameters."""
        start = 0
        for param in self._params:
            end = start + param.numel()
            param.add_(direction[start:end].view(param.shape), alpha=length)
            start = end


class Point(NamedTuple):
    """A point of a line search: how far along the direction, the loss there, its gradient and its slope."""

    length: float
    loss: float
    grad: Tensor
    slope: float


def _largest(x: Tensor) -> float:
    return float(x.abs().max().item())


def cubic_minimum(one: Point, two: Point, low: float, high: float) -> float:
    """Where the cubic through two points with their slopes is least, within [low, high]; the middle of that
    where it has no minimum.
    """
    one, two = (one, two) if one.length <= two.length else (two, one)
    width = two.length - one.length
    mean = one.slope + two.slope - 3 * (two.loss - one.loss) / width
    square = mean * mean - one.slope * two.slope
    root = square**0.5 if square >= 0 else 0.0
    slopes = two.slope - one.slope + 2 * root
    if not square >= 0 or slopes == 0:
        return (low + high) / 2.0
    place = two.length - width * ((two.slope + root - mean) / slopes)
    return min(max(place, low), high)


def strong_wolfe(
    at: Callable[[float], Point], start: Point, length: float, narrow: Callable[[float], bool], most: int
) -> Point:
    """A point that satisfies the strong Wolfe conditions, or the best that `most` evaluations more find.

    `at` evaluates; a bracket of a width that is `narrow` ends the search.
    """

    def rises(point: Point) -> bool:
        return point.loss > start.loss + _DESCENT * point.length * start.slope

    def flat(point: Point) -> bool:
        return abs(point.slope) <= -_SLOPE * start.slope

    before, point = start, at(length)
    bracket, tries = [start, point], 0
    while tries < most:
        bracket = [before, point]
        if rises(point) or (tries > 1 and point.loss >= before.loss):
            break
        if flat(point):
            return point
        if point.slope >= 0:
            break
        low, high = point.length + 0.01 * (point.length - before.length), point.length * 10
        before, point = point, at(cubic_minimum(before, point, low, high))
        bracket, tries = [start, point], tries + 1
    low_place = 0 if bracket[0].loss <= bracket[1].loss else 1
    stuck = False
    while tries < most:
        low, high = sorted(p.length for p in bracket)
        if narrow(high - low):
            break
        length, stuck = _inside(cubic_minimum(bracket[0], bracket[1], low, high), low, high, stuck)
        point, tries = at(length), tries + 1
        if rises(point) or point.loss >= bracket[low_place].loss:
            bracket[1 - low_place] = point
            low_place = 0 if bracket[0].loss <= bracket[1].loss else 1
            continue
        if not flat(point) and point.slope * (bracket[1 - low_place].length - bracket[low_place].length) >= 0:
            bracket[1 - low_place] = bracket[low_place]
        bracket[low_place] = point
        if flat(point):
            break
    return bracket[low_place]


def _inside(length: float, low: float, high: float, stuck: bool) -> tuple[float, bool]:
    """A length that is not too near an end of its bracket twice, and whether it is now."""
    margin = 0.1 * (high - low)
    if min(high - length, length - low) >= margin:
        return length, False
    if not stuck and low < length < high:
        return length, True
    return (high - margin if abs(length - high) < abs(length - low) else low + margin), False
