"""`Optimizer`: groups of parameters with settings, a state per parameter, and a step.

A subclass says two things: `init_state(param, group)`, the state a parameter starts with, and
`update(group)`, one step of a group. State is made when a group is added, never inside a step: a recorded
training step has the same structure the first time as every other time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from typing import Any, TypeVar, Union, overload

from kiln._core import Tensor
from kiln.autograd import enable_grad, no_grad
from kiln.errors import describe, message, shorten

Group = dict[str, Any]
Loss = TypeVar("Loss")
Params = Union[Iterable[Tensor], Iterable[Group], Iterable[tuple[str, Tensor]]]


class Optimizer:
    """Base of the optimizers.

    `params`: tensors, (name, tensor) pairs, or dicts with "params" and settings of their own; `defaults`:
    the settings of groups that do not say. Raises ValueError for no parameters, a parameter twice, or one
    that is not a leaf; TypeError for what is not a tensor.
    """

    state: dict[Tensor, dict[str, Any]]
    param_groups: list[Group]

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        if isinstance(params, Tensor):
            hint = "pass [tensor] or model.parameters()"
            raise TypeError(
                message(type(self).__name__, "an iterable of tensors or dicts", describe(params), hint)
            )
        self.defaults = defaults
        self.state = {}
        self.param_groups = []
        given: list[Any] = list(params)
        if not given:
            raise ValueError("optimizer got an empty parameter list")
        for group in given if isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(group)

    def init_state(self, param: Tensor, group: Group) -> dict[str, Any]:
        """The state `param` starts with; none unless a subclass says."""
        return {}

    def check(self, group: Group) -> None:
        """Raise ValueError where a setting of the group is out of its range."""

    def update(self, group: Group) -> None:
        """One step of one group; runs without gradient recording."""
        raise NotImplementedError(f"{type(self).__name__} defines no update()")

    def add_param_group(self, param_group: Group) -> None:
        """Optimize more parameters, with the settings the dict gives and the defaults for the rest."""
        if not isinstance(param_group, dict):
            raise TypeError(message("add_param_group", "a dict with 'params'", describe(param_group)))
        group = {**self.defaults, **param_group}
        params = group["params"]
        if isinstance(params, set):
            raise TypeError(message("add_param_group", "parameters in an order", "a set", "pass a list"))
        params = [params] if isinstance(params, Tensor) else list(params)
        if params and all(isinstance(p, tuple) for p in params):
            group["param_names"] = [name for name, _ in params]
            params = [p for _, p in params]
        group["params"] = params
        self.check(group)
        self._check_params(params)
        for param in params:
            self.state[param] = self.init_state(param, group)
        self.param_groups.append(group)

    def _check_params(self, params: list[Any]) -> None:
        """Every parameter a leaf tensor, none twice."""
        name = type(self).__name__
        known = {id(p) for group in self.param_groups for p in group["params"]}
        for param in params:
            if not isinstance(param, Tensor):
                raise TypeError(message(name, "tensors to optimize", describe(param)))
            if not param.is_leaf:
                raise ValueError(
                    f"{name}: can't optimize a non-leaf Tensor, a {describe(param)} with history; optimize "
                    "the leaf it was computed from"
                )
            if id(param) in known:
                raise ValueError(message(name, "each parameter once", f"{describe(param)} twice"))
            known.add(id(param))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every gradient, or fill it with zeros."""
        for group in self.param_groups:
            for param in group["params"]:
                if set_to_none:
                    param.grad = None
                elif param.grad is not None:
                    param.grad = param.grad.detach()
                    param.grad.zero_()

    @overload
    def step(self) -> None: ...
    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss: ...
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; `closure` computes the loss, which is returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        try:
            with no_grad():
                for group in self.param_groups:
                    self.update(group)
        except Exception as error:
            shorten(error)
            raise
        return loss

    def state_dict(self) -> dict[str, Any]:
        """{"state": {number: state}, "param_groups": [settings and "params": [number, ...]]}.

        Parameters are numbered in order over all groups; the state's tensors are the optimizer's own.
        """
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            for param in group["params"]:
                numbers.setdefault(id(param), len(numbers))
            packed = {key: value for key, value in group.items() if key != "params"}
            groups.append({**packed, "params": [numbers[id(p)] for p in group["params"]]})
        state = {numbers[id(p)]: s for p, s in self.state.items() if s and id(p) in numbers}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take settings and state from the state_dict of an optimizer over parameters of the same shapes.

        Tensors are copied and take their parameter's dtype. Raises ValueError when groups,
        their sizes or a state's shape differ; nothing is changed then.
        """
        saved_groups = state_dict["param_groups"]
        sizes = [len(g["params"]) for g in saved_groups]
        own_sizes = [len(g["params"]) for g in self.param_groups]
        if sizes != own_sizes:
            came = f"groups of {sizes}"
            raise ValueError(message("load_state_dict", f"groups of {own_sizes} parameters", came))
        groups = []
        for own, saved in zip(self.param_groups, saved_groups, strict=True):
            settings = {k: deepcopy(v) for k, v in saved.items() if k != "params"}
            groups.append({**own, **settings, "params": own["params"]})
        state = dict(self.state)
        for own, saved in zip(groups, saved_groups, strict=True):
            for param, number in zip(own["params"], saved["params"], strict=True):
                loaded = state_dict["state"].get(number, state_dict["state"].get(str(number)))
                state[param] = self._load_state(param, own, {} if loaded is None else loaded)
        for group in groups:
            self.check(group)
        self.state, self.param_groups = state, groups

    def _load_state(self, param: Tensor, group: Group, saved: Mapping[str, Any]) -> dict[str, Any]:
        """A parameter's state: its start, overwritten by what was saved."""
        state = self.init_state(param, group)
        for name, value in saved.items():
            if value is not None:  # PyTorch saves None for a momentum buffer that was never used
                state[name] = _fitted(name, value, param) if isinstance(value, Tensor) else deepcopy(value)
        if isinstance(state.get("step"), Tensor):
            state["step"] = int(state["step"].item())
        return state

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for k, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {k}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])


def _fitted(name: str, value: Tensor, param: Tensor) -> Tensor:
    """A private copy of a saved state tensor in its parameter's dtype; a counter stays as it is."""
    if name == "step":
        return value
    if tuple(value.shape) != tuple(param.shape):
        came = f"{name}: {describe(value)}"
        raise ValueError(message("load_state_dict", f"state of shape {tuple(param.shape)}", came))
    fitted: Tensor = value.detach().to(dtype=param.dtype).clone()
    return fitted


def checked(name: str, value: Any, low: float, high: float | None = None) -> None:
    """Raise unless `value` is a Python number in [low, high) (no upper end: high None)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = "optimizer settings are Python numbers; read a tensor's with .item()"
        raise TypeError(message("optimizer", f"a number for {name}", describe(value), hint))
    if not value >= low or (high is not None and not value < high):
        expected = f"{name} >= {low:g}" if high is None else f"{name} in [{low:g}, {high:g})"
        raise ValueError(message("optimizer", expected, repr(value)))
