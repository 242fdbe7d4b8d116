"""Modules that hold modules: Sequential, ModuleList, ModuleDict."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, TypeVar, Union, cast, overload

from kiln._core import Tensor
from kiln.errors import describe, message, warn
from kiln.nn.module import Module

ListLike = TypeVar("ListLike", bound="_ModuleSequence")


class _ModuleSequence(Module):
    """What Sequential and ModuleList share: children in order, named "0", "1", ... unless given names."""

    def _held(self) -> list[Module]:
        return [cast(Module, m) for m in self._modules.values()]

    def _refill(self, held: Iterable[Module]) -> None:
        """Make `held` the children, numbered from 0: they are not registered anew."""
        numbered = {str(k): module for k, module in enumerate(held)}
        for name in list(self._modules):
            delattr(self, name)
        for name, module in numbered.items():
            self._modules[name] = module

    def _at(self, index: int) -> int:
        """`index` counted from the front; IndexError outside."""
        size, k = len(self._modules), operator.index(index)
        if not -size <= k < size:
            raise IndexError(message(type(self).__name__, f"an index within {size} modules", str(k)))
        return k % size

    def _names(self, index: int | slice) -> list[str]:
        names = list(self._modules)
        return names[index] if isinstance(index, slice) else [names[self._at(index)]]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._held())

    def __contains__(self, module: object) -> bool:
        return any(module is m for m in self._modules.values())

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self: ListLike, index: slice) -> ListLike: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._like({name: self._modules[name] for name in self._names(index)})
        return self._modules[self._names(index)[0]]

    def _like(self, held: dict[str, Any]) -> Module:
        """A new container of this type that holds `held`."""
        raise NotImplementedError

    def __setitem__(self, index: int, module: Module) -> None:
        setattr(self, self._names(index)[0], module)

    def __delitem__(self, index: int | slice) -> None:
        for name in self._names(index):
            delattr(self, name)
        self._refill(self._held())

    def append(self: ListLike, module: Module) -> ListLike:
        """Add a module at the end."""
        self.add_module(str(len(self)), module)
        return self

    def insert(self: ListLike, index: int, module: Module) -> ListLike:
        """Add a module before `index`."""
        if not isinstance(module, Module):
            raise TypeError(message("insert", "a Module", describe(module)))
        held = self._held()
        held.insert(index, module)
        self._refill(held)
        return self

    def pop(self, index: int = -1) -> Module:
        """Take the module at `index` out and give it back."""
        module = self[index]
        del self[index]
        return module


def _modules_of(other: object) -> list[Module]:
    if not isinstance(other, Sequential):
        raise ValueError(
            f"add operator supports only objects of Sequential class, but {type(other)} is given."
        )
    return list(other)


class Sequential(_ModuleSequence):
    """Runs its modules one after the other; takes modules, or one dict of named modules.

    >>> import kiln
    >>> kiln.nn.Sequential(kiln.nn.Linear(4, 2), kiln.nn.ReLU())
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
      (1): ReLU()
    )
    """

    def __init__(self, *modules: Union[Module, Mapping[str, Module]]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named: Iterable[tuple[str, Any]] = modules[0].items()
        else:
            named = ((str(k), m) for k, m in enumerate(modules))
        for name, module in named:
            self.add_module(name, module)

    def _like(self, held: dict[str, Any]) -> Sequential:
        return type(self)(OrderedDict(held))

    def extend(self, sequential: Iterable[Module]) -> Sequential:
        """Add modules at the end."""
        for module in list(sequential):
            self.append(module)
        return self

    def __add__(self, other: Sequential) -> Sequential:
        """The modules of both, numbered anew. ValueError for what is no Sequential."""
        return Sequential(*self, *_modules_of(other))

    def __iadd__(self, other: Sequential) -> Sequential:
        """Add the modules of another Sequential at the end. ValueError for what is none."""
        return self.extend(_modules_of(other))

    def __mul__(self, times: int) -> Sequential:
        """The same modules, so the same parameters, so many times over. ValueError below once."""
        return Sequential(*self._times(times))

    __rmul__ = __mul__

    def __imul__(self, times: int) -> Sequential:
        return self.extend(self._times(times)[len(self) :])

    def _times(self, times: int) -> list[Module]:
        if not isinstance(times, int):
            raise TypeError(f"unsupported operand type(s) for *: {type(self)} and {type(times)}")
        if times <= 0:
            raise ValueError(f"Non-positive multiplication factor {times} for {type(self)}")
        return self._held() * times

    def forward(self, input: Any) -> Tensor:
        for module in self._modules.values():
            input = module(input)  # type: ignore[misc]
        result: Tensor = input  # to checkers; what the last module gives
        return result


class ModuleList(_ModuleSequence):
    """A list of modules whose parameters are the model's; calling it is an error, loop over it."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add modules at the end. TypeError for what is none to iterate over."""
        if not isinstance(modules, Iterable):
            came = type(modules).__name__
            raise TypeError(f"ModuleList.extend should be called with an iterable, but got {came}")
        for module in list(modules):
            self.append(module)
        return self

    def _like(self, held: dict[str, Any]) -> ModuleList:
        return type(self)(held.values())

    def __add__(self, other: Iterable[Module]) -> ModuleList:
        return ModuleList([*self, *other])

    def __iadd__(self, other: Iterable[Module]) -> ModuleList:
        return self.extend(other)

    def _below(self) -> list[tuple[str, str]]:
        """Modules one after another that look the same are shown once: "(0-3): 4 x Linear(...)"."""
        found: list[tuple[str, str]] = []
        for text, group in groupby(super()._below(), key=lambda shown: shown[1]):
            names = [name for name, _ in group]
            many = len(names) > 1
            found.append((f"{names[0]}-{names[-1]}", f"{len(names)} x {text}") if many else (names[0], text))
        return found


class ModuleDict(Module):
    """A dict of modules whose parameters are the model's, in order of insertion."""

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __getitem__(self, key: str) -> Module:
        return cast(Module, self._modules[key])

    def __setitem__(self, key: str, module: Module) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._modules[key]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, key: object) -> bool:
        return key in self._modules

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """The modules."""
        return cast(Iterable[Module], self._modules.values())

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names with modules."""
        return cast(Iterable[tuple[str, Module]], self._modules.items())

    def pop(self, key: str) -> Module:
        """Take the module called `key` out and give it back."""
        module = self[key]
        del self[key]
        return module

    def clear(self) -> None:
        """Take every module out."""
        for key in list(self._modules):
            del self[key]

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Add named modules, replacing those of the same names."""
        pairs = modules.items() if isinstance(modules, (Mapping, ModuleDict)) else modules
        for key, module in pairs:
            self[key] = module


class Container(Module):
    """Modules by name, given as keywords: deprecated, which a FutureWarning says."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        warn(
            "`nn.Container` is deprecated. All of its functionality is now implemented in `nn.Module`. "
            "Subclass that instead.",
            FutureWarning,
        )
        for name, module in kwargs.items():
            self.add_module(name, module)
