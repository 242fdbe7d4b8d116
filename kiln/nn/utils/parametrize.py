"""Parameters computed from others each time they are read: `register_parametrization` and what goes with it.

layer.weight                        a property of a class of the layer's own, "ParametrizedLinear"
layer.parametrizations.weight       a ParametrizationList: the modules that compute it, in order
    .original, or .original0, ...   what it is computed from, trained in its place
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from kiln._core import Tensor
from kiln.autograd import no_grad
from kiln.nn.containers import ModuleDict, ModuleList
from kiln.nn.module import Module
from kiln.nn.parameter import Parameter
from kiln.table.callables import name_all


class _Cache:
    """What parametrizations gave, by module and name, while any `cached` is open."""

    open = 0
    values: dict[tuple[int, str], Tensor] = {}


@contextlib.contextmanager
def cached() -> Iterator[None]:
    """A context that keeps what a parametrized tensor was when it was first read."""
    _Cache.open += 1
    try:
        yield
    finally:
        _Cache.open -= 1
        if not _Cache.open:
            _Cache.values.clear()


class ParametrizationList(ModuleList):
    """The modules that compute a parameter from `original` (or from `original0`, `original1`, ...), in order.

    What they are computed from is the last's right_inverse of `original`, and so on; a module without one has
    its result for its input. ValueError where shape or dtype change, unless `unsafe`.
    """

    def __init__(self, modules: Iterable[Module], original: Tensor, unsafe: bool = False) -> None:
        modules = list(modules)
        if not modules:
            raise ValueError("ParametrizationList requires one or more modules.")
        super().__init__(modules)
        self.unsafe = unsafe
        old = original.detach()  # what is at this place now: `original` may get other data below
        new: Any = original
        with no_grad():
            for module in reversed(modules):
                if hasattr(module, "right_inverse"):
                    with contextlib.suppress(NotImplementedError):
                        new = module.right_inverse(new)
        self.is_tensor = isinstance(new, Tensor)
        if self.is_tensor:
            if new.dtype != original.dtype:
                raise ValueError(
                    "When `right_inverse` outputs one tensor, it may not change the dtype.\n"
                    f"original.dtype: {original.dtype}\nright_inverse(original).dtype: {new.dtype}"
                )
            original.data = new.detach()
            _own(self, "original", original)
        elif isinstance(new, Sequence) and all(isinstance(part, Tensor) for part in new):
            self.ntensors = len(new)
            for k, part in enumerate(new):
                part = part.detach()
                trained = original.requires_grad
                part = Parameter(part, trained) if isinstance(original, Parameter) else part
                _own(self, f"original{k}", part)
        else:
            raise ValueError(
                "'right_inverse' must return a Tensor or a Sequence of tensors (list, tuple...). Got "
                f"{type(new)}"
            )
        if not unsafe:
            try:
                _same("parametrization", self(), old)
            except BaseException:
                original.data = old
                raise

    def _originals(self) -> list[Any]:
        names = ["original"] if self.is_tensor else [f"original{k}" for k in range(self.ntensors)]
        return [getattr(self, name) for name in names]

    @no_grad()
    def right_inverse(self, value: Tensor) -> None:
        """Make what is computed `value`, by writing its inverse over the originals."""
        new: Any = value
        for module in reversed(list(self)):
            if not hasattr(module, "right_inverse"):
                raise RuntimeError(
                    f"parametrization {type(module).__name__} does not implement right_inverse."
                )
            new = module.right_inverse(new)
        for original, part in zip(self._originals(), [new] if self.is_tensor else new, strict=True):
            _same("right_inverse", part, original)
            original.data = part.detach()

    def forward(self) -> Tensor:
        first, *rest = list(self)
        x: Tensor = first(*self._originals())
        for module in rest:
            x = module(x)
        return x


def _same(what: str, new: Any, old: Tensor) -> None:
    """ValueError unless `new` is a tensor of `old`'s shape and dtype."""
    if not isinstance(new, Tensor):
        raise ValueError(f"A parametrization must return a tensor. Got {type(new).__name__}.")
    if new.dtype != old.dtype or new.shape != old.shape:
        raise ValueError(
            f"Registering a parametrization may not change the dtype or the shape of the tensor, unless the "
            f"`unsafe` flag is enabled: {what} gave {new.dtype} of {tuple(new.shape)} for {old.dtype} of "
            f"{tuple(old.shape)}"
        )


def _own(module: Module, name: str, tensor: Tensor) -> None:
    if isinstance(tensor, Parameter):
        module.register_parameter(name, tensor)
    else:
        module.register_buffer(name, tensor)


def _property(name: str) -> property:
    """What reading and writing `module.<name>` do."""

    def read(module: Any) -> Tensor:
        held = module.parametrizations[name]
        if not _Cache.open:
            value: Tensor = held()
            return value
        key = id(module), name
        if key not in _Cache.values:
            _Cache.values[key] = held()
        return _Cache.values[key]

    return property(read, lambda module, value: module.parametrizations[name].right_inverse(value))


def _give_class(module: Module) -> None:
    """Give a module a class of its own, with a property for each parametrized name; without any, its old."""
    base = type_before_parametrizations(module)
    names = list(getattr(module, "parametrizations", ()))
    own = type(f"Parametrized{base.__name__}", (base,), {name: _property(name) for name in names})
    own._parametrized = base  # type: ignore[attr-defined]
    module.__class__ = own if names else base


def type_before_parametrizations(module: Module) -> type:
    """The class that a module had before it was parametrized."""
    found: type = getattr(module.__class__, "_parametrized", module.__class__)
    return found


def is_parametrized(module: Module, tensor_name: str | None = None) -> bool:
    """Whether a module has a parametrization, or one of the tensor of a name."""
    held = module.__dict__.get("parametrizations")
    if not isinstance(held, ModuleDict):
        return False
    return len(held) > 0 if tensor_name is None else tensor_name in held


def register_parametrization(
    module: Module, tensor_name: str, parametrization: Module, *, unsafe: bool = False
) -> Module:
    """From now on `module.<tensor_name>` is `parametrization(original)`; gives the module back.

    What was the parameter (or buffer) is `module.parametrizations.<tensor_name>.original`, or what the
    parametrization's `right_inverse` makes of it: a tensor, or a sequence of tensors `original0`, ...
    A second parametrization of a name is computed from the first's result. ValueError for a name the module
    does not have, and unless `unsafe` for a result of another shape or dtype.

    >>> import kiln
    >>> class Symmetric(kiln.nn.Module):
    ...     def forward(self, x):
    ...         return x.triu() + x.triu(1).t()
    >>> layer = kiln.nn.Linear(3, 3)
    >>> _ = kiln.nn.utils.parametrize.register_parametrization(layer, "weight", Symmetric())
    >>> kiln.equal(layer.weight, layer.weight.t())
    True
    """
    parametrization.train(module.training)
    if is_parametrized(module, tensor_name):
        held: Any = module.parametrizations[tensor_name]
        if not unsafe:
            now = getattr(module, tensor_name)
            _same("parametrization", parametrization(now), now)
        held.append(parametrization)
        held.unsafe |= unsafe
        return module
    if tensor_name not in module._parameters and tensor_name not in module._buffers:
        raise ValueError(
            f"Module '{module}' does not have a parameter, a buffer, or a parametrized element with name "
            f"'{tensor_name}'"
        )
    held = ParametrizationList([parametrization], getattr(module, tensor_name), unsafe)
    delattr(module, tensor_name)
    if not is_parametrized(module):
        module.parametrizations = ModuleDict()
    module.parametrizations[tensor_name] = held
    _give_class(module)
    return module


def remove_parametrizations(module: Module, tensor_name: str, leave_parametrized: bool = True) -> Module:
    """Make `module.<tensor_name>` an ordinary parameter again; gives the module back.

    Its value is what was computed, or with `leave_parametrized=False` the original. ValueError if it is not
    parametrized, or if the originals are several and are to be left.
    """
    if not is_parametrized(module, tensor_name):
        raise ValueError(f"Module {module} does not have a parametrization on {tensor_name}")
    held: Any = module.parametrizations[tensor_name]
    if not held.is_tensor and not leave_parametrized:
        raise ValueError(
            "Cannot leave unparametrized (`leave_parametrized=False`) a tensor that is parametrized in terms "
            "of a sequence of tensors."
        )
    value = getattr(module, tensor_name)
    if held.is_tensor:
        tensor = held.original
        if leave_parametrized:
            tensor.data = value.detach()
    else:
        tensor = Parameter(value) if value.requires_grad else value
    del module.parametrizations[tensor_name]
    if not len(module.parametrizations):
        del module.parametrizations
    _give_class(module)
    _own(module, tensor_name, tensor)
    return module


name_all(globals(), "kiln.nn")
