"""`Optimizer`: groups of parameters with settings, a state per parameter, hooks; subclasses say the step.

What kiln's own optimizers share beyond that is in stepping.py.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import wraps
from itertools import chain
from typing import Any, TypeVar, Union, overload

from kiln import _core
from kiln._core import Tensor
from kiln.errors import describe, message, shorten, warn
from kiln.nn.hooks import RemovableHandle

Group = dict[str, Any]
StateDict = dict[str, Any]
Loss = TypeVar("Loss")
Function = TypeVar("Function", bound=Callable[..., Any])
ParamsT = Union[Iterable[Tensor], Iterable[Group], Iterable[tuple[str, Tensor]]]
_params_t = params_t = ParamsT  # their names in older releases of PyTorch, which libraries import

_global_optimizer_pre_hooks: dict[int, Callable[..., Any]] = OrderedDict()
_global_optimizer_post_hooks: dict[int, Callable[..., Any]] = OrderedDict()
# the kinds of hooks of one optimizer, each a dict in the attribute of that name
_HOOKS = tuple(
    f"_optimizer_{name}_hooks"
    for name in (
        "step_pre", "step_post", "state_dict_pre", "state_dict_post", "load_state_dict_pre",
        "load_state_dict_post",
    )
)  # fmt: skip


class _RequiredParameter:
    """In `defaults`: a setting without default, which every group must say."""

    def __repr__(self) -> str:
        return "<required parameter>"


required = _RequiredParameter()


def register_optimizer_step_pre_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls `hook(optimizer, args, kwargs)` before every step of every optimizer.

    It gives None, or the (args, kwargs) that the step is to be called with. The handle removes it.

    >>> handle = kiln.optim.optimizer.register_optimizer_step_pre_hook(lambda *given: print("a step"))
    >>> kiln.optim.SGD([kiln.ones(1)], lr=0.1).step()
    a step
    >>> handle.remove()
    """
    return RemovableHandle(_global_optimizer_pre_hooks, hook, False)


def register_optimizer_step_post_hook(hook: Callable[..., Any]) -> RemovableHandle:
    """Calls `hook(optimizer, args, kwargs)` after every step of every optimizer; the handle removes it."""
    return RemovableHandle(_global_optimizer_post_hooks, hook, False)


def _use_grad_for_differentiable(function: Function) -> Function:
    """A method of an optimizer that records gradients if its setting `differentiable` says so, else none."""

    @wraps(function)
    def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        mode = _core.ModeSwitch(bool(self.defaults.get("differentiable")))
        return mode.call(function, self, *args, **kwargs)  # which Ctrl-C cannot leave half way

    return step  # type: ignore[return-value]


def _get_value(value: Any) -> Any:
    """A number, also of a tensor of one element."""
    return value.item() if isinstance(value, Tensor) else value


class Optimizer:
    """Base of the optimizers; a subclass says `step`.

    `params`: tensors, (name, tensor) pairs, or dicts with "params" and settings of their own; `defaults`:
    the settings of groups that do not say. `state[p]` is a dict of the subclass's own, empty until its first
    step. Raises ValueError for no parameters, one in two groups, or one that is not a leaf; TypeError for
    what is not a tensor; a parameter twice in a group is a UserWarning.
    """

    OptimizerPreHook = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]  # which libraries annotate with
    OptimizerPostHook = Callable[[Any, tuple[Any, ...], dict[str, Any]], None]
    state: defaultdict[Any, Any]
    param_groups: list[Group]
    defaults: dict[str, Any]
    _optimizer_step_pre_hooks: dict[int, Callable[..., Any]]
    _optimizer_step_post_hooks: dict[int, Callable[..., Any]]
    _optimizer_state_dict_pre_hooks: dict[int, Callable[..., Any]]
    _optimizer_state_dict_post_hooks: dict[int, Callable[..., Any]]
    _optimizer_load_state_dict_pre_hooks: dict[int, Callable[..., Any]]
    _optimizer_load_state_dict_post_hooks: dict[int, Callable[..., Any]]

    def __init__(self, params: ParamsT, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self._make_hooks()
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got "
                f"{describe(params)}; pass [tensor] or model.parameters()"
            )
        self.state = defaultdict(dict)
        self.param_groups = []
        given: list[Any] = list(params)
        if not given:
            raise ValueError("optimizer got an empty parameter list")
        for group in given if isinstance(given[0], dict) else [{"params": given}]:
            self.add_param_group(group)

    def _make_hooks(self) -> None:
        for name in _HOOKS:
            self.__dict__.setdefault(name, OrderedDict())
        self._patch_step_function()

    def __getstate__(self) -> dict[str, Any]:
        return {"defaults": self.defaults, "state": self.state, "param_groups": self.param_groups}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What unpickling, copying and load_state_dict end with; a subclass may complete older states."""
        self.__dict__.update(state)
        self._make_hooks()

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for k, group in enumerate(self.param_groups):
            lines += [""] * (k > 0) + [f"Parameter Group {k}"]
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])

    # ---- groups ----

    def add_param_group(self, param_group: Group) -> None:
        """Optimize more parameters, with the settings the dict gives and the defaults for the rest.

        The dict itself becomes the group.
        """
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {describe(param_group)}")
        params = param_group["params"]
        if isinstance(params, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of "
                "tensors in sets will change between runs. Please use a list instead."
            )
        given = [params] if isinstance(params, Tensor) else list(params)
        names = [p[0] for p in given if isinstance(p, tuple)]
        if names and len(names) != len(given):
            raise ValueError(
                "all optimizer params should be with/without names. Some param names are missing"
            )
        if names:
            param_group["param_names"] = names
        param_group["params"] = [p[1] if isinstance(p, tuple) else p for p in given]
        self._check_params(param_group["params"])
        for name, default in self.defaults.items():
            if default is required and name not in param_group:
                raise ValueError(
                    f"parameter group didn't specify a value of required optimization parameter {name}"
                )
            param_group.setdefault(name, default)
        self._check_group(param_group)
        self.param_groups.append(param_group)

    def _check_params(self, params: list[Any]) -> None:
        """Every parameter a leaf tensor."""
        for param in params:
            if not isinstance(param, Tensor):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is {describe(param)}"
                )
            if not (self.defaults.get("differentiable") or param.is_leaf or param.retains_grad):
                raise ValueError(
                    f"can't optimize a non-leaf Tensor, a {describe(param)} with history; optimize the leaf "
                    "it was computed from"
                )

    def _check_group(self, group: Group) -> None:
        """No parameter twice, names in all groups or in none."""
        params = {id(p) for p in group["params"]}
        if len(params) != len(group["params"]):
            warn(
                "optimizer contains a parameter group with duplicate parameters; each is updated as often "
                "as it is there"
            )
        for other in self.param_groups:
            if ("param_names" in group) != ("param_names" in other):
                how = "with" if "param_names" in group else "without"
                raise ValueError(
                    "all optimizer param groups should be with/without names. cannot add param group "
                    f"{how} names to the optimizer"
                )
            if not params.isdisjoint(id(p) for p in other["params"]):
                raise ValueError("some parameters appear in more than one parameter group")

    # ---- steps ----

    @overload
    def step(self) -> None: ...
    @overload
    def step(self, closure: None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Loss]) -> Loss: ...
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; `closure` computes the loss, which is returned."""
        raise NotImplementedError(f"{type(self).__name__} defines no step()")

    def _patch_step_function(self) -> None:
        """The class's step calls hooks, whoever wrote it."""
        kind: Any = type(self)
        if not getattr(kind.step, "hooked", False):
            kind.step = self.profile_hook_step(kind.step)
            kind.step.hooked = True

    @staticmethod
    def profile_hook_step(function: Function) -> Function:
        """`step` with the hooks of all optimizers and of its own before and after."""

        @wraps(function)
        def step(self: Optimizer, *args: Any, **kwargs: Any) -> Any:
            given: Any = (self, *args)
            before, after = self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks
            try:
                if before or _global_optimizer_pre_hooks:
                    for hook in chain(_global_optimizer_pre_hooks.values(), before.values()):
                        given, kwargs = _new_arguments(function, hook(self, given, kwargs), given, kwargs)
                result = function(*given, **kwargs)
                if after or _global_optimizer_post_hooks:
                    for hook in chain(after.values(), _global_optimizer_post_hooks.values()):
                        hook(self, given, kwargs)
            except Exception as error:
                shorten(error)
                raise
            return result

        return step  # type: ignore[return-value]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget every gradient, or fill it with zeros."""
        for group in self.param_groups:
            for param in group["params"]:
                grad = param.grad
                if grad is None:
                    continue
                if set_to_none:
                    param.grad = None
                elif grad.grad_fn is not None or grad.requires_grad:
                    param.grad = grad = grad.detach()
                    grad.zero_()
                else:
                    grad.zero_()

    # ---- hooks ----

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(optimizer, args, kwargs)` before each step; it may give other (args, kwargs)."""
        return RemovableHandle(self._optimizer_step_pre_hooks, hook, False)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls `hook(optimizer, args, kwargs)` after each step."""
        return RemovableHandle(self._optimizer_step_post_hooks, hook, False)

    def register_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls `hook(optimizer)` before state_dict(); `prepend` puts it before the others."""
        return RemovableHandle(self._optimizer_state_dict_pre_hooks, hook, prepend)

    def register_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls `hook(optimizer, state_dict)` with what state_dict() gives; it may give another."""
        return RemovableHandle(self._optimizer_state_dict_post_hooks, hook, prepend)

    def register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls `hook(optimizer, state_dict)` with a copy before it is loaded; it may give another."""
        return RemovableHandle(self._optimizer_load_state_dict_pre_hooks, hook, prepend)

    def register_load_state_dict_post_hook(
        self, hook: Callable[..., Any], prepend: bool = False
    ) -> RemovableHandle:
        """Calls `hook(optimizer)` after load_state_dict()."""
        return RemovableHandle(self._optimizer_load_state_dict_post_hooks, hook, prepend)

    # ---- states ----

    def state_dict(self) -> StateDict:
        """{"state": {number: state}, "param_groups": [settings and "params": [number, ...]]}.

        Parameters are numbered in order over all groups; the state's tensors are the optimizer's own.
        """
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        numbers: dict[int, int] = {}
        groups, start = [], 0
        for group in self.param_groups:
            for k, param in enumerate(group["params"], start):
                numbers.setdefault(id(param), k)
            start += len(group["params"])
            packed = {key: value for key, value in group.items() if key != "params"}
            groups.append({**packed, "params": [numbers[id(p)] for p in group["params"]]})
        state = {numbers[id(k)] if isinstance(k, Tensor) else k: s for k, s in self.state.items()}
        made: StateDict = {"state": state, "param_groups": groups}
        for hook in self._optimizer_state_dict_post_hooks.values():
            came = hook(self, made)
            made = made if came is None else came
        return made

    @_core.Function
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take settings and state from the state_dict of an optimizer over parameters of the same shapes.

        Tensors are copied and take their parameter's dtype. Raises ValueError when groups,
        their sizes or a state's shape differ; nothing is changed then.
        """
        given: Any = dict(state_dict) if isinstance(state_dict, Mapping) else state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            came = hook(self, given)
            given = given if came is None else came
        if not isinstance(given, Mapping):
            raise TypeError(message("load_state_dict", "a dict", describe(state_dict)))
        for name in ("param_groups", "state"):
            if name not in given:
                raise KeyError(name)
        groups = [{k: deepcopy(v) for k, v in g.items() if k != "params"} for g in given["param_groups"]]
        places = self._matched(given["param_groups"])
        for own, new in zip(self.param_groups, groups, strict=True):
            new["params"] = own["params"]
            if "param_names" in own:
                new.setdefault("param_names", own["param_names"])
        state: defaultdict[Any, Any] = defaultdict(dict)
        for key, value in given["state"].items():
            number = int(key) if isinstance(key, str) and key.isdigit() and key not in places else key
            if number not in places:
                state[key] = value
                continue
            state[places[number]] = _fitted(places[number], None, value)
            self._check_state(places[number], state[places[number]])
        self.__setstate__({"state": state, "param_groups": groups})
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _matched(self, saved: list[Group]) -> dict[Any, Tensor]:
        """The parameters by the numbers they have in saved groups."""
        sizes = [len(g["params"]) for g in saved]
        own_sizes = [len(g["params"]) for g in self.param_groups]
        if len(sizes) != len(own_sizes):
            raise ValueError(
                "loaded state dict has a different number of parameter groups: "
                f"{len(sizes)} in the place of {len(own_sizes)}"
            )
        if sizes != own_sizes:
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's "
                f"group: groups of {sizes} parameters in the place of {own_sizes}"
            )
        numbers = chain.from_iterable(g["params"] for g in saved)
        return dict(zip(numbers, chain.from_iterable(g["params"] for g in self.param_groups)))

    def _check_state(self, param: Tensor, state: Any) -> None:
        """Raises ValueError where a loaded state cannot be the parameter's."""


def _new_arguments(function: Any, came: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a step after a hook."""
    if came is None:
        return args, kwargs
    if not isinstance(came, tuple) or len(came) != 2:
        raise RuntimeError(
            f"{function} must return None or a tuple of (new_args, new_kwargs), but got {came}."
        )
    return came


def _fitted(param: Tensor, name: Any, value: Any) -> Any:
    """A private copy of a saved state, its tensors in their parameter's dtype; a count stays as it is."""
    if isinstance(value, Tensor):
        value = value.detach()
        keeps = name == "step" or not param.dtype.is_floating_point
        return value.clone() if keeps else value.to(dtype=param.dtype, copy=True)
    if isinstance(value, Mapping):
        return {k: _fitted(param, k, v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_fitted(param, None, v) for v in value])
    return deepcopy(value)


def in_range(
    words: str, value: Any, low: float = 0.0, high: float | None = None, closed: bool = False
) -> None:
    """ValueError "words: value" unless value, a number or a tensor of one element, is at least `low` and
    below `high`, or at most that if `closed`; TypeError for others.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor lr must be 1-element, got {describe(value)}")
    elif not hasattr(value, "__float__") or isinstance(value, str):
        raise TypeError(
            message("optimizer", "a number", f"{words.removeprefix('Invalid ')}: {describe(value)}")
        )
    if not value >= low or (high is not None and not (value <= high if closed else value < high)):
        raise ValueError(f"{words}: {value}")
