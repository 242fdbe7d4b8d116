"""Functions that are imported when they are first called; what comes with another package; imports that a
fork or Ctrl-C cuts off.

A leaf that imports nothing of kiln.
"""

from __future__ import annotations

import _imp
import _thread
import os
import sys
from collections.abc import Callable
from importlib import _bootstrap, import_module
from typing import Any
from warnings import warn

_module_locks: dict[str, Any] = getattr(_bootstrap, "_module_locks", {})  # CPython's, by weak references


def later(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of a module that is not read until it is called: what only some programs need.

    >>> later("math", "sqrt")(4.0)
    2.0
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(module), name)(*args, **kwargs)

    return call


# Of classes that stand under another name too (kiln.as_torch): the module and name that kiln has them by.
SHOWN: dict[type, tuple[str, str]] = {}


def named(module: str, name: str) -> Any:
    """What a module has under a name, or below it: `named("kiln", "Size")`."""
    found = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


class ByName:
    """A class in a pickle, named as kiln has it, whatever name it stands under."""

    __slots__ = ("kind",)

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return named, SHOWN[self.kind]

    def __deepcopy__(self, memo: dict[int, Any]) -> ByName:
        return self


def by_name(kind: type) -> Any:
    """A class as a pickle shall name it."""
    return ByName(kind) if kind in SHOWN else kind


def itself(kind: Any) -> Any:
    """The class that `by_name` was given, from a pickle or from a copy."""
    return kind.kind if isinstance(kind, ByName) else kind


def new(kind: Any, *args: Any) -> Any:
    """An object of a class, as a pickle or a copy makes it: its state is put in afterwards."""
    kind = itself(kind)
    return kind.__new__(kind, *args)


def call(kind: Any, *args: Any) -> Any:
    """An object of a class, made by a call."""
    return itself(kind)(*args)


def names_of(package: str, module: str) -> None:
    """Gives a package the names of one of its modules, which is imported when the first of them is asked for;
    those that are not there get the hint of `kiln.absent`.
    """
    home = sys.modules[package]
    filled: list[bool] = []

    def fill() -> dict[str, Any]:
        made = import_module(module)
        names = {name: value for name, value in vars(made).items() if name[:2] != "__"}
        if not filled and not getattr(made.__spec__, "_initializing", False):
            for name, value in names.items():
                vars(home).setdefault(name, value)  # a program may have put its own there
            filled.append(True)
        return names

    def found(name: str) -> Any:
        if name[:2] != "__" or name == "__all__":  # `from package import *` takes what is there then
            # a module of the package's own first, alone: those that `module` imports ask for one another,
            # and whichever is imported first must not find itself half done
            if import_module("importlib.util").find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")
            names = fill()
            if name in names:
                return names[name]
            if not getattr(sys.modules[module].__spec__, "_initializing", False):
                import_module("kiln.absent").no_attribute(package, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=home)

    def listed() -> list[str]:
        fill()
        return sorted(vars(home))

    vars(home).update(__getattr__=found, __dir__=listed)


class Beside:
    """Imports a module of kiln's when a module of another package has been imported, or is already there."""

    def __init__(self, package: str, module: str) -> None:
        self._package, self._module = package, module
        self._looking = False
        if sys.modules.get(package):
            self._import()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The module's own spec, whose loader goes on to kiln's when it is done; None for other modules.

        Who only asks whether the package is there gets one too, and may never load it.
        """
        if name != self._package or self._looking:
            return None
        from importlib.util import find_spec

        self._looking = True
        try:
            spec: Any = find_spec(name)
        finally:
            self._looking = False
        execute = getattr(getattr(spec, "loader", None), "exec_module", None)
        if execute is not None:

            def run(module: Any) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                self._import()

            spec.loader.exec_module = run
        return spec

    def _import(self) -> None:
        try:
            import_module(self._module)
        except Exception as error:  # another version of the package: it goes on without kiln
            warn(f"{self._module} does not know this version of the package: {error!r}", stacklevel=2)


def _forget_imports() -> None:
    """In a child: modules of kiln that another thread was importing. It is not there to go on, and who asked
    for one would wait for it. They are imported anew.
    """
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "kiln" or not getattr(module.__spec__, "_initializing", False):
            continue
        reference = _module_locks.get(name)
        lock = None if reference is None else reference()
        if lock is not None and lock.owner not in (None, _thread.get_ident()):
            del sys.modules[name]
            del _module_locks[name]


def free_imports() -> None:
    """Gives back what Ctrl-C in the middle of an import left with this thread: CPython's lock of all imports,
    and those of modules of kiln. The compiling thread would wait for them, and this one for it.
    """
    while _imp.lock_held():
        try:
            _imp.release_lock()
        except RuntimeError:  # another thread is about to give it back
            break
    of_kiln = [reference() for name, reference in list(_module_locks.items()) if name.startswith("kiln.")]
    for lock in of_kiln:
        module = None if lock is None else sys.modules.get(lock.name)
        if not getattr(getattr(module, "__spec__", None), "_initializing", False):
            while lock is not None and lock.owner == _thread.get_ident():
                lock.release()


os.register_at_fork(after_in_child=_forget_imports)
