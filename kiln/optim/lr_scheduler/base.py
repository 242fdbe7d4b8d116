"""What schedules share: epochs, the rates written last, states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, Union
from weakref import ref

from kiln._core import Tensor
from kiln.errors import warn
from kiln.optim.optimizer import Group, Optimizer

Rate = Union[float, Tensor]


class LRScheduler:
    """Base of the schedules: writes `get_lr()` into the groups when made (epoch 0) and at every `step()`.

    A subclass says `get_lr()`, the rates of the epoch `last_epoch`; from the present ones where that is
    possible, so that schedules chain. `last_epoch` other than -1 resumes; the groups must then hold
    "initial_lr" (KeyError). A rate that is a tensor is written in place.
    """

    _step_count: int
    _is_initial = False  # while the rates of the first epoch are written
    _get_lr_called_within_step = False  # states hold both, as PyTorch's do
    _last_lr: list[Any]

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        self.optimizer = checked_optimizer(type(self).__name__, optimizer)
        for k, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", copied(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"{type(self).__name__}: param 'initial_lr' is not specified in param_groups[{k}] when "
                    "resuming scheduler with last_epoch >= 0; load the optimizer's state_dict first"
                )
        self.base_lrs: list[Any] = [copied(group["initial_lr"]) for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        note_steps(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        """The rates of the first epoch."""
        self._step_count = 0
        self._is_initial, self._get_lr_called_within_step = True, False
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[Any]:
        """The rates of the epoch `last_epoch`, one per group. Those written last: `get_last_lr()`."""
        raise NotImplementedError(f"{type(self).__name__} defines no get_lr()")

    def get_last_lr(self) -> list[Any]:
        """The rates written last; of tensors, copies."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go to the next epoch and write its rates; call it after the optimizer's step.

        `epoch` goes to that one instead, which is deprecated (UserWarning).
        """
        if self._step_count == 1:
            warn_of_order(self.optimizer)
        self._step_count += 1
        if epoch is not None:
            warn_of_epoch()
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        """Writes the rates of the next epoch, or of the one that is given."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        closed: Callable[[], list[Any]] | None = getattr(self, "_get_closed_form_lr", None)
        self._get_lr_called_within_step = True
        try:
            rates = self.get_lr() if epoch is None or closed is None else closed()
        finally:
            self._get_lr_called_within_step = False
        self._write(rates)

    def _write(self, rates: list[Any]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            write(group, "lr", rate)
        self._last_lr = self._rates()

    def _rates(self) -> list[Any]:
        """The groups' present rates."""
        return [copied(group["lr"]) for group in self.optimizer.param_groups]

    def _present(self) -> list[Any]:
        """The same for `get_lr`, which is not for users."""
        if not self._get_lr_called_within_step:
            warn(
                "To get the last learning rate computed by the scheduler, please use `get_last_lr()`: "
                "get_lr() computes those of the next epoch",
                UserWarning,
            )
        return self._rates()

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer: numbers and lists."""
        return {name: value for name, value in self.__dict__.items() if name != "optimizer"}

    def _state_with(self, name: str, value: Any) -> dict[str, Any]:
        """That state with another form of one entry, which is its last, as in PyTorch's."""
        state = LRScheduler.state_dict(self)
        del state[name]
        return {**state, name: value}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up a saved state."""
        self.__dict__.update(state_dict)


def checked_optimizer(name: str, optimizer: Any) -> Optimizer:
    """An optimizer, or TypeError."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{name}: {type(optimizer).__name__} is not an Optimizer")
    return optimizer


def copied(value: Any) -> Any:
    """A number; of a tensor, a copy."""
    return value.clone() if isinstance(value, Tensor) else value


def write(group: Group, name: str, value: Any) -> None:
    """A setting of a group; a tensor that is there is written in place."""
    if isinstance(group[name], Tensor):
        group[name].fill_(float(value))
    else:
        group[name] = value


def per_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """A value for each group, of one for all or a list."""
    groups = len(optimizer.param_groups)
    if not isinstance(value, (list, tuple)):
        return [copied(value) for _ in range(groups)]
    if len(value) != groups:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups: {len(value)} for {groups} groups"
        )
    return [copied(one) for one in value]


# ---- functions in states: a plain function is given again, of an object its attributes are kept ----


def function_states(functions: list[Any]) -> list[Any]:
    """What a state holds of functions."""
    return [None if isinstance(f, FunctionType) else dict(vars(f)) for f in functions]


def load_functions(functions: list[Any], states: list[Any]) -> None:
    """Gives objects their saved attributes."""
    for function, state in zip(functions, states):
        if state is not None:
            vars(function).update(state)


# ---- the order of steps ----


def note_steps(optimizer: Optimizer) -> None:
    """From now on the optimizer says whether it has made a step."""
    if hasattr(optimizer.step, "_noted"):
        return
    own_step = vars(optimizer).get("step")  # which a program put there
    step, known = type(optimizer).step, ref(optimizer)

    def noted(*args: Any, **kwargs: Any) -> Any:
        own = known()
        assert own is not None
        own.__dict__["_stepped"] = True
        return step(own, *args, **kwargs) if own_step is None else own_step(*args, **kwargs)

    noted.__name__, noted.__doc__ = step.__name__, step.__doc__
    noted._noted = True  # type: ignore[attr-defined]
    optimizer.__dict__["step"] = noted


def warn_of_order(optimizer: Optimizer) -> None:
    """Warns before the second rates are written if the first were used by no step."""
    if not hasattr(optimizer.step, "_noted"):
        warn(
            "Seems like `optimizer.step()` has been overridden after learning rate scheduler initialization: "
            "make sure that it is called before `lr_scheduler.step()`",
            UserWarning,
        )
    elif not optimizer.__dict__.get("_stepped", False):
        warn(
            "Detected call of `lr_scheduler.step()` before `optimizer.step()`. The first rate of the "
            "schedule is used by no step. Call them in the opposite order",
            UserWarning,
        )


def warn_of_epoch() -> None:
    """Warns of an epoch given to a step."""
    warn(
        "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible: "
        "schedules count by themselves",
        UserWarning,
    )
