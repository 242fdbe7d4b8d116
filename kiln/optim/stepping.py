"""`Stepping`: what optimizers share whose step is one formula for each parameter.

A subclass says `init_state(param, group)`, the state a parameter starts with, made at its first step, and
`update(group)`, one step of a group: numbers computed in Python and one op of kiln/ops/nn/optimizer_steps*.py
for each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, overload

from kiln import ops
from kiln._core import Tensor, default_dtype_name, float32, float64, grad_enabled
from kiln.autograd import enable_grad
from kiln.errors import describe, message
from kiln.ops.nn.optimizer_step_parts import WRITTEN, first_state
from kiln.optim.optimizer import Group, Loss, Optimizer, ParamsT, _use_grad_for_differentiable
from kiln.table import registry

State = dict[str, Any]


class Stepping(Optimizer):
    """Base of kiln's own optimizers but LBFGS.

    `counters` are the names of a state's 0-d tensors, `moments` of those of the parameter's shape.
    """

    counters: tuple[str, ...] = ("step",)
    moments: tuple[str, ...] = ()

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self._cells: dict[int, tuple[Tensor, memoryview]] = {}
        if defaults.get("fused"):
            if defaults.get("differentiable"):
                raise RuntimeError("`fused` does not support `differentiable`")
            if defaults.get("foreach"):
                raise RuntimeError("`fused` and `foreach` cannot be `True` together.")
        super().__init__(params, defaults)

    def init_state(self, param: Tensor, group: Group) -> State:
        """The state `param` starts with."""
        raise NotImplementedError

    def update(self, group: Group) -> None:
        """One step of one group."""
        raise NotImplementedError

    @overload
    def step(self) -> None: ...
    @overload
    def step(self, closure: None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss: ...
    @_use_grad_for_differentiable
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; `closure` computes the loss, which is returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group in self.param_groups:
            if group.get("foreach") and group.get("differentiable"):
                raise AssertionError("_foreach ops don't support autograd")
            self.update(group)
        return loss

    def given(self, group: Group) -> list[tuple[Tensor, Tensor]]:
        """(param, grad) of the parameters that have a gradient."""
        return [(param, grad) for param in group["params"] if (grad := param.grad) is not None]

    def each(self, group: Group) -> Iterator[tuple[Tensor, Tensor, State]]:
        """(param, grad, state) of the parameters that have a gradient; a first state is made."""
        for param, grad in self.given(group):
            state = self.state[param]
            if not state:
                state.update(self.init_state(param, group))
            yield param, grad, state

    def moment(self, state: State, name: str, param: Tensor) -> Tensor:
        """A state's tensor; zeros if its setting was switched on after the first step."""
        found: Tensor | None = state.get(name)
        if found is None:
            found = state[name] = begun(param)
        return found

    # ---- numbers: in Python, in double precision ----

    def numbers(self, group: Group, *names: str) -> list[Any]:
        """Settings as numbers: of tensors their values, but where gradients flow to them."""
        return [number(group[name]) for name in names]

    def cell(self, state: State, name: str) -> Any:
        """The memory of a state's tensor of one element: read and written from here as `cell[()]`, by no op,
        so that a recorded step neither waits for it nor holds its value.
        """
        tensor = state[name]
        found = self._cells.get(id(tensor))
        if found is None:
            if not isinstance(tensor, Tensor) or tensor.dtype not in (float32, float64):
                tensor = state[name] = counter(float(tensor))
            found = self._cells[id(tensor)] = tensor, memoryview(tensor.detach().reshape(()))
        return found[1]

    def count(self, state: State) -> float:
        """The number of this step."""
        cell = self.cell(state, "step")
        t: float = cell[()] + 1.0
        cell[()] = t
        return t

    # ---- loaded states ----

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._cells = {}
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
            for param in group["params"]:
                own = self.state.get(param, {})
                for name in self.counters:
                    if name in own and not isinstance(own[name], Tensor):
                        own[name] = counter(own[name])

    def shapes(self, param: Tensor) -> dict[str, tuple[int, ...]]:
        """The shapes of a state's moments by name."""
        return dict.fromkeys(self.moments, tuple(param.shape))

    def _check_state(self, param: Tensor, state: Any) -> None:
        for name, shape in self.shapes(param).items():
            value = state.get(name)
            if isinstance(value, Tensor) and value.shape != shape:
                came = f"{name}: {describe(value)}"
                raise ValueError(message("load_state_dict", f"state of shape {shape}", came))


def number(value: Any) -> Any:
    """A setting as a number; a tensor of one element is its value, or 0-d where gradients are recorded."""
    if not isinstance(value, Tensor):
        return value
    return value.reshape(()) if grad_enabled() else value.item()


def counter(value: float = 0.0) -> Tensor:
    """A 0-d tensor as states have them: float32, or float64 where that is the default dtype."""
    dtype = float64 if default_dtype_name() == "float64" else float32
    made: Tensor = ops.tensor(float(value), dtype=dtype)
    return made


def begun(param: Tensor, value: float = 0.0, shape: tuple[int, ...] | None = None) -> Tensor:
    """A state's first tensor, of the parameter's dtype and its shape or another: every element `value`."""
    sizes = tuple(param.shape) if shape is None else shape
    made: Tensor = first_state(float(value), sizes, param.dtype.name)
    return made


def written(name: str) -> Callable[..., Any]:
    """The op `name` of the table in the form that writes over the parameter and its state."""
    registry.op(name)  # brings the module that has it
    return WRITTEN[name]


def l2(weight_decay: Any) -> tuple[Any, str]:
    """The number and the kind of a weight decay whose gradient is added (see optimizer_step_parts.py)."""
    return (weight_decay, "l2") if _is_set(weight_decay) else (0.0, "none")


def decay_of(group: Group, lr: Any, weight_decay: Any) -> tuple[Any, str]:
    """The same of groups that may say `decoupled_weight_decay`."""
    if group["decoupled_weight_decay"] and _is_set(weight_decay):
        return 1 - lr * weight_decay, "decoupled"
    return l2(weight_decay)


def _is_set(weight_decay: Any) -> bool:
    return isinstance(weight_decay, Tensor) or weight_decay != 0
