"""A module tree's state as a flat dict of dotted names, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.errors import describe, message
from kiln.nn.parameter import Parameter, is_lazy


class Tree(Protocol):
    """A module, as far as its state goes."""

    @property
    def _parameters(self) -> Mapping[str, Parameter | None]: ...
    @property
    def _buffers(self) -> Mapping[str, Tensor | None]: ...
    @property
    def _non_persistent(self) -> set[str]: ...
    @property
    def _modules(self) -> Mapping[str, Any]: ...
    def named_modules(self, *, remove_duplicate: bool) -> Iterable[tuple[str, Tree]]: ...


class IncompatibleKeys(NamedTuple):
    """What a load left out: names the module has and the state lacks, and the other way round."""

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


def own_state(module: Tree) -> dict[str, Tensor]:
    """A module's own parameters and persistent buffers by name."""
    owned: dict[str, Tensor] = {name: p for name, p in module._parameters.items() if p is not None}
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent:
            owned[name] = buffer
    return owned


def save_tree(module: Tree, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
    """Enter the state of `module` and of all below it, parents first."""
    for name, tensor in own_state(module).items():
        destination[prefix + name] = tensor if keep_vars else tensor.detach()
    for name, child in module._modules.items():
        if child is not None:
            child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)


def load_tree(module: Tree, state: Mapping[str, Any], strict: bool, assign: bool) -> IncompatibleKeys:
    """Load `state` into the tree: all checks are made before the first value changes."""
    if not isinstance(state, Mapping):
        raise TypeError(message("load_state_dict", "a dict of tensors", describe(state)))
    targets: dict[str, tuple[Tree, str, Tensor]] = {}
    for path, owner in module.named_modules(remove_duplicate=False):
        for name, tensor in own_state(owner).items():
            targets[f"{path}.{name}" if path else name] = (owner, name, tensor)
    state = _without_prefixes(state, targets)
    keys = IncompatibleKeys([k for k in targets if k not in state], [k for k in state if k not in targets])
    problems = _problems(targets, state, keys if strict else IncompatibleKeys([], []))
    if problems:
        kind = type(module).__name__
        raise RuntimeError(f"Error(s) in loading state_dict for {kind}:\n\t" + "\n\t".join(problems))
    for key, (owner, name, tensor) in targets.items():
        if key in state:
            _load_one(owner, name, tensor, state[key], assign)
    return keys


def _without_prefixes(state: Mapping[str, Any], targets: Mapping[str, Any]) -> Mapping[str, Any]:
    """`state` with the module's names: those of PyTorch's compiled modules have `_orig_mod.` in them."""
    meant = {}
    for key in state:
        if key not in targets and isinstance(key, str):
            name = key.replace("_orig_mod.", "")
            if name in targets and name not in state:
                meant[key] = name
    return {meant.get(key, key): value for key, value in state.items()} if meant else state


def _problems(
    targets: dict[str, tuple[Tree, str, Tensor]], state: Mapping[str, Any], keys: IncompatibleKeys
) -> list[str]:
    """One sentence for each way in which `state` does not fit."""
    problems = []
    if keys.unexpected_keys:
        named = ", ".join(f'"{k}"' for k in keys.unexpected_keys)
        problems.append(f"Unexpected key(s) in state_dict: {named}.")
    if keys.missing_keys:
        named = ", ".join(f'"{k}"' for k in keys.missing_keys)
        problems.append(f"Missing key(s) in state_dict: {named}.")
    for key, (_, _, tensor) in targets.items():
        if key not in state:
            continue
        value = state[key]
        if not isinstance(value, Tensor):
            problems.append(f'"{key}": expected a tensor, got {describe(value)}.')
        elif not is_lazy(tensor) and tuple(value.shape) != tuple(tensor.shape):
            came, wanted = tuple(value.shape), tuple(tensor.shape)
            problems.append(f"size mismatch for {key}: the state_dict has shape {came}, the model {wanted}.")
    return problems


def _load_one(owner: Tree, name: str, tensor: Tensor, value: Tensor, assign: bool) -> None:
    """Copy `value` over `tensor`, or put it in its place."""
    if is_lazy(value):
        return  # it says nothing, and is given to one that waits as well
    if is_lazy(tensor):
        tensor.materialize(value.shape)
    if not assign:
        with no_grad():
            tensor.copy_(value)
    elif isinstance(tensor, Parameter):
        setattr(
            owner, name, value if isinstance(value, Parameter) else Parameter(value, tensor.requires_grad)
        )
    else:
        setattr(owner, name, value)
