"""A module tree's state as a flat dict of dotted names, and back.

state_dict()         pre-hooks, then _save_to_state_dict, then the children's, then hooks; ._metadata holds
versions load_state_dict()    of each module, parents first: pre-hooks and _load_from_state_dict; after its
children post-hooks

Programs override the two methods with an underscore, or register hooks, so as to read what an older program
wrote.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.errors import describe, warn
from kiln.nn.hooks import RemovableHandle
from kiln.nn.parameter import Parameter, is_lazy
from kiln.tuples import NamedTuple

EXTRA = "_extra_state"  # what stands behind a module's name in a state dict for what get_extra_state gives
HOOKS = (
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class _IncompatibleKeys(NamedTuple):
    """What a load left out: names the module has and the state lacks, and the other way round. The class has
    PyTorch's name, which libraries import.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]

    def __repr__(self) -> str:
        if not self.missing_keys and not self.unexpected_keys:
            return "<All keys matched successfully>"
        return f"_IncompatibleKeys(missing_keys={self.missing_keys}, unexpected_keys={self.unexpected_keys})"


class Problems(list[str]):
    """What does not fit, and the writes that wait until it is known that everything does."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Callable[[], None]] = []


class State:
    """What of `Module` is about its state."""

    _version: int = (
        1  # of what a class writes: a class that reads older states asks local_metadata["version"]
    )
    dump_patches = False
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Any]
    _non_persistent_buffers_set: set[str]
    _state_dict_pre_hooks: dict[int, Callable[..., Any]]
    _state_dict_hooks: dict[int, Callable[..., Any]]
    _load_state_dict_pre_hooks: dict[int, Callable[..., Any]]
    _load_state_dict_post_hooks: dict[int, Callable[..., Any]]

    def _no_state_hooks(self) -> None:
        self.__dict__.update({name: {} for name in HOOKS})

    def get_extra_state(self) -> Any:
        """What else `state_dict` shall hold of this module; a class that has some defines this and
        set_extra_state.
        """
        raise RuntimeError("get_extra_state: called of a module whose class does not define it")

    def set_extra_state(self, state: Any) -> None:
        """Take what get_extra_state gave; called by `load_state_dict`."""
        raise RuntimeError("set_extra_state: called of a module whose class does not define it")

    # -- to a dict ------------------------------------------------------------------------------------

    def state_dict(
        self,
        *args: Any,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
    ) -> dict[str, Any]:
        """Parameters and persistent buffers by dotted name: detached unless `keep_vars`, sharing memory."""
        if args:
            warn(
                "Positional args are being deprecated, use kwargs instead: state_dict(destination=, prefix=, "
                "keep_vars=)",
                FutureWarning,
            )
            given = dict(zip(("destination", "prefix", "keep_vars"), args))
            destination = given.get("destination", destination)
            prefix, keep_vars = given.get("prefix", prefix), given.get("keep_vars", keep_vars)
        if destination is None:
            destination = OrderedDict()
            destination._metadata = OrderedDict()  # type: ignore[attr-defined]
        written = {"version": self._version}
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]] = written
        for hook in list(self._state_dict_pre_hooks.values()):
            hook(self, prefix, keep_vars)
        self._save_to_state_dict(destination, prefix, keep_vars)
        for name, child in self._modules.items():
            if child is not None:
                child.state_dict(destination=destination, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        for hook in list(self._state_dict_hooks.values()):
            came = hook(self, destination, prefix, written)
            if came is not None and getattr(hook, "_from_public_api", False):
                raise RuntimeError("state_dict post-hook must return None")
            destination = destination if came is None else came
        return destination

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        """Enter the module's own part: parameters, persistent buffers, extra state."""
        for name, tensor in own_state(self).items():
            destination[prefix + name] = tensor if keep_vars else tensor.detach()
        if type(self).get_extra_state is not State.get_extra_state:
            destination[prefix + EXTRA] = self.get_extra_state()

    def register_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, prefix, keep_vars)` before the module's state is put into a dict."""
        return RemovableHandle(self._state_dict_pre_hooks, hook)

    def register_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata)` when the state of the module and of all
        below is in the dict, which the hook may change in place. RuntimeError if it returns something.
        """
        try:
            hook._from_public_api = True  # type: ignore[attr-defined]
        except AttributeError:  # a method takes no attribute
            hook = partial(hook)
            hook._from_public_api = True  # type: ignore[attr-defined]
        return RemovableHandle(self._state_dict_hooks, hook)

    def _register_state_dict_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """As register_state_dict_post_hook; what the hook returns goes on in place of the dict."""
        if getattr(hook, "_from_public_api", False):
            raise RuntimeError(
                "Cannot register the same function as the state dict post hook that was previously "
                "registered "
                "via register_state_dict_post_hook"
            )
        return RemovableHandle(self._state_dict_hooks, hook)

    # -- from a dict ----------------------------------------------------------------------------------

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> _IncompatibleKeys:
        """Copy a state_dict's values into this module (`assign`: take its tensors instead).

        Raises RuntimeError naming every missing and unexpected key (unless not `strict`) and every shape
        that differs. Nothing has changed then, unless a module of the tree has hooks of its own for loading
        or a `_load_from_state_dict`: those may ask for what was loaded before. Returns (missing_keys,
        unexpected_keys).
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"Expected state_dict to be dict-like, got {type(state_dict)}: {describe(state_dict)}."
            )
        metadata = getattr(state_dict, "_metadata", None)
        state = _without_prefixes(self, state_dict)
        if metadata is not None:
            state._metadata = metadata  # type: ignore[attr-defined]
        keys, problems = _IncompatibleKeys([], []), Problems() if _is_plain(self) else []
        _load_tree(self, state, "", metadata, assign, keys, problems)
        if strict and keys.unexpected_keys:
            named = ", ".join(f'"{k}"' for k in keys.unexpected_keys)
            problems.insert(0, f"Unexpected key(s) in state_dict: {named}. ")
        if strict and keys.missing_keys:
            named = ", ".join(f'"{k}"' for k in keys.missing_keys)
            problems.insert(0, f"Missing key(s) in state_dict: {named}. ")
        if problems:
            kind = type(self).__name__
            raise RuntimeError(f"Error(s) in loading state_dict for {kind}:\n\t" + "\n\t".join(problems))
        for write in getattr(problems, "writes", ()):
            write()
        return keys

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load the module's own part, whose names begin with `prefix`, and add to the lists what does not
        fit.
        """
        for hook in list(self._load_state_dict_pre_hooks.values()):
            hook(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        own = own_state(self)
        assign = bool(local_metadata.get("assign_to_params_buffers", False))
        writes: list[Callable[[], None]] = []
        for name, tensor in own.items():
            key = prefix + name
            if key not in state_dict:
                if strict:
                    missing_keys.append(key)
                continue
            value = state_dict[key]
            problem = _misfit(key, tensor, value)
            if problem:
                error_msgs.append(problem)
            else:
                writes.append(partial(_load_one, self, name, tensor, value, assign))
        extra = prefix + EXTRA
        if type(self).set_extra_state is not State.set_extra_state:
            if extra in state_dict:
                writes.append(partial(self.set_extra_state, state_dict[extra]))
            elif strict:
                missing_keys.append(extra)
        elif strict and extra in state_dict:
            unexpected_keys.append(extra)
        if strict:
            unexpected_keys.extend(k for k in state_dict if k != extra and _is_unknown(self, own, prefix, k))
        if isinstance(error_msgs, Problems):
            error_msgs.writes += writes
            return
        for write in writes:
            write()

    def _register_load_state_dict_pre_hook(
        self, hook: Callable[..., Any], with_module: bool = False
    ) -> RemovableHandle:
        """Call `hook([module, ]state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
        error_msgs)` before the module's own part is loaded; the dict is a copy that it may change.
        """
        return RemovableHandle(self._load_state_dict_pre_hooks, partial(hook, self) if with_module else hook)

    def register_load_state_dict_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys,
        error_msgs)` before the module's own part is loaded; the dict is a copy that it may change.
        """
        return self._register_load_state_dict_pre_hook(hook, with_module=True)

    def register_load_state_dict_post_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Call `hook(module, incompatible_keys)` when the module and all below it are loaded.

        It may change the lists `missing_keys` and `unexpected_keys` in place, of which what is left counts:
        clearing both means that nothing is amiss.
        """
        return RemovableHandle(self._load_state_dict_post_hooks, hook)


def own_state(module: State) -> dict[str, Tensor]:
    """A module's own parameters and persistent buffers by name."""
    owned: dict[str, Tensor] = {name: p for name, p in module._parameters.items() if p is not None}
    for name, buffer in module._buffers.items():
        if buffer is not None and name not in module._non_persistent_buffers_set:
            owned[name] = buffer
    return owned


def _is_plain(module: State) -> bool:
    """Whether loading runs nobody's code but kiln's, so that all can be checked before anything is
    written.
    """
    if module._load_state_dict_pre_hooks or module._load_state_dict_post_hooks:
        return False
    loads = type(module)._load_from_state_dict
    return getattr(loads, "__module__", "").partition(".")[0] == "kiln" and all(
        _is_plain(child) for child in module._modules.values() if child is not None
    )


def _load_tree(
    module: State,
    state: dict[str, Any],
    prefix: str,
    metadata: Any,
    assign: bool,
    keys: _IncompatibleKeys,
    problems: list[str],
) -> None:
    local = {} if metadata is None else metadata.get(prefix[:-1], {})
    if assign:
        local["assign_to_params_buffers"] = assign
    module._load_from_state_dict(
        state, prefix, local, True, keys.missing_keys, keys.unexpected_keys, problems
    )
    for name, child in module._modules.items():
        if child is not None:
            below = f"{prefix}{name}."
            part = {k: v for k, v in state.items() if isinstance(k, str) and k.startswith(below)}
            _load_tree(child, part, below, metadata, assign, keys, problems)
    for hook in list(module._load_state_dict_post_hooks.values()):
        if hook(module, keys) is not None:
            raise AssertionError(
                "Hooks registered with ``register_load_state_dict_post_hook`` are not expected to return new "
                "values, if incompatible_keys need to be modified, it should be done inplace."
            )


def _is_unknown(module: State, own: Mapping[str, Any], prefix: str, key: Any) -> bool:
    """Whether `key` begins with `prefix`, and is of nothing that the module has."""
    if not isinstance(key, str) or not key.startswith(prefix):
        return not prefix
    first, dot, _ = key[len(prefix) :].partition(".")
    return first not in (module._modules if dot else own)


def _without_prefixes(module: State, state: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """A copy with the module's names: those of PyTorch's compiled modules have `_orig_mod.` in them."""
    if not any("_orig_mod." in key for key in state if isinstance(key, str)):
        return OrderedDict(state)
    targets = module.state_dict(keep_vars=True)
    meant = {}
    for key in state:
        if key not in targets and isinstance(key, str):
            name = key.replace("_orig_mod.", "")
            if name in targets and name not in state:
                meant[key] = name
    return OrderedDict((meant.get(key, key), value) for key, value in state.items())


def _misfit(key: str, tensor: Tensor, value: Any) -> str:
    """Why `value` cannot be loaded over `tensor`; nothing if it can."""
    if not isinstance(value, Tensor):
        return (
            f'While copying the parameter named "{key}", expected kiln.Tensor or Tensor-like object from '
            f"checkpoint but received {type(value)}: {describe(value)}"
        )
    if is_lazy(tensor) or tuple(value.shape) == tuple(tensor.shape):
        return ""
    return (
        f"size mismatch for {key}: copying a param with shape {value.shape} from checkpoint, the shape in "
        f"current model is {tensor.shape}."
    )


def _load_one(owner: State, name: str, tensor: Tensor, value: Tensor, assign: bool) -> None:
    """Copy `value` over `tensor`, or put it in its place."""
    if is_lazy(value):
        return  # it says nothing, and is given to one that waits as well
    if is_lazy(tensor):
        tensor.materialize(value.shape)
    if not assign:
        with no_grad():
            tensor.copy_(value)
        return
    if isinstance(tensor, Parameter):
        if isinstance(value, Parameter):
            value.requires_grad_(tensor.requires_grad)
        else:
            value = Parameter(value, tensor.requires_grad)
    setattr(owner, name, value)
