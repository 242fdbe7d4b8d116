"""The loss of labels without places in time: connectionist temporal classification.

A row of labels is said with a blank before, between and after them: `_ a _ b _`. alpha[s] is the
log-probability of every way to be at place s of these by now; a step stays, goes on by one, or leaves out a
blank between two labels that differ. The steps are ops, so the gradient is autograd's, of every order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import describe, message

Lengths = Union[Tensor, Sequence[int]]

_NONE = -1e30  # the logarithm of a probability of 0: infinity minus infinity would be no number
_HALVES = (_core.float16, _core.bfloat16)  # computed in float32, which has _NONE


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the log-probability of rows of labels under every way to spread them over time.

    log_probs (T, N, C), or (T, C) of one row; targets (N, S) or all rows' labels behind each other, int;
    input_lengths and target_lengths of N ints, tensor or tuple. "mean" divides each loss by its number of
    labels first. A row that cannot be said in its time has the loss infinity, 0 with `zero_infinity`, and a
    gradient of zeros. RuntimeError for lengths that do not fit and a `blank` that is no class.

    >>> import kiln
    >>> even = kiln.full((4, 1, 3), 1 / 3).log()
    >>> kiln.nn.functional.ctc_loss(even, kiln.tensor([[1, 2]]), (4,), (2,), reduction="sum")
    tensor(1.6864)
    """
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not a valid value for reduction")
    single = log_probs.ndim == 2
    inputs, counts = _checked(log_probs, input_lengths, target_lengths, blank)
    logs = log_probs.unsqueeze(1) if single else log_probs
    if logs.dtype in _HALVES:
        logs = logs.to(_core.float32)
    losses = _losses(logs, _labels(targets, counts, blank, single), inputs, counts, blank)
    losses = ops.where(losses > -0.1 * _NONE, 0.0 if zero_infinity else float("inf"), losses)
    if reduction == "sum":
        losses = losses.sum()
    elif reduction == "mean":
        losses = (losses / ops.tensor(counts).clamp(min=1).to(losses.dtype)).mean()
    elif single:
        losses = losses.squeeze(0)
    result: Tensor = losses.to(log_probs.dtype)
    return result


def _checked(logs: Tensor, inputs: Any, counts: Any, blank: int) -> tuple[list[int], list[int]]:
    """The lengths of log-probabilities and of labels, one for each row; RuntimeError if they do not fit."""
    if logs.ndim not in (2, 3) or not logs.is_floating_point():
        raise RuntimeError(message("ctc_loss", "floats of (T, N, C) or (T, C)", describe(logs)))
    times, rows, classes = logs.shape if logs.ndim == 3 else (logs.shape[0], 1, logs.shape[1])
    if not 0 <= blank < classes:
        raise RuntimeError(f"ctc_loss: blank must be in label range, [0, {classes}), got {blank}")
    inputs, counts = _lengths("input_lengths", inputs, rows), _lengths("target_lengths", counts, rows)
    if max(inputs, default=0) > times:
        raise RuntimeError(
            f"Expected input_lengths to have value at most {times}, but got value {max(inputs)} (while "
            "checking arguments for ctc_loss)"
        )
    return inputs, counts


def _lengths(name: str, given: Any, rows: int) -> list[int]:
    """Lengths as numbers, one for each row."""
    if isinstance(given, Tensor):
        if given.is_floating_point():
            raise RuntimeError(f"ctc_loss: {name} must be integral, got {describe(given)}")
        given = given.reshape(-1).tolist()
    if isinstance(given, str):
        raise TypeError(f"ctc_loss(): argument '{name}' must be tuple of ints or Tensor, not str")
    lengths = [given] if isinstance(given, int) else [int(n) for n in given]
    if len(lengths) != rows:
        raise RuntimeError(f"ctc_loss: {name} must be of size batch_size, {rows}, got {len(lengths)}")
    if min(lengths, default=0) < 0:
        raise RuntimeError(f"Expected {name} to have value at least 0, but got value {min(lengths)}")
    return lengths


def _labels(targets: Tensor, counts: list[int], blank: int, single: bool) -> Tensor:
    """Labels as (N, S), `blank` behind the last of a row."""
    if targets.is_floating_point():
        raise RuntimeError(f"ctc_loss: targets must be integral, got {describe(targets)}")
    longest = max(counts, default=0)
    if targets.ndim == 1 and not single:
        if sum(counts) != targets.shape[0]:
            expected = f"{sum(counts)} labels, the sum of target_lengths"
            raise RuntimeError(message("ctc_loss", expected, describe(targets)))
        rows = targets.split(counts)
        targets = ops.stack([ops.pad(row, (0, longest - row.shape[0])) for row in rows])
    labels = targets.reshape(len(counts), -1)
    if labels.shape[1] < longest:
        raise RuntimeError(message("ctc_loss", f"rows of {longest} labels or more", describe(targets)))
    inside = ops.arange(labels.shape[1]) < ops.tensor(counts).unsqueeze(1)
    kept: Tensor = ops.where(inside, labels, blank).to(ops.arange(0).dtype)
    return kept


def _losses(logs: Tensor, labels: Tensor, inputs: list[int], counts: list[int], blank: int) -> Tensor:
    """The loss of each row, about -_NONE where there is no way."""
    rows, size = labels.shape[0], 2 * labels.shape[1] + 1
    said = ops.full((rows, size), blank, dtype=labels.dtype)
    said[:, 1::2] = labels
    logs = logs.gather(2, said.expand(logs.shape[0], rows, size)).clamp(min=_NONE)  # (T, N, size)
    place, ends = ops.arange(size), ops.tensor(counts).unsqueeze(1) * 2
    leaps = (place % 2 == 1) & (said != ops.pad(said, (2, 0), value=blank)[:, :size])
    time = ops.tensor(inputs).unsqueeze(1)
    alpha = ops.where(place == 0, 0.0, _NONE).to(logs.dtype).expand(rows, size)  # before the first step
    for t in range(logs.shape[0]):
        by_one, by_two = (ops.pad(alpha, (k, 0), value=_NONE)[:, :size] for k in (1, 2))
        if t == 0:
            ways = ops.where(place < 2, alpha[:, :1], _NONE)
        else:
            ways = ops.logsumexp(ops.stack([alpha, by_one, ops.where(leaps, by_two, _NONE)]), 0)
        alpha = ops.where(t < time, ways + logs[t], alpha)
    last = alpha.gather(1, ends)
    before = ops.where(ends > 0, alpha.gather(1, (ends - 1).clamp(min=0)), _NONE)
    losses: Tensor = -ops.logaddexp(last, before).squeeze(1)
    return losses
