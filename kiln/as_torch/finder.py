"""How `import torch...` is answered: a finder before all others, which gives kiln's modules.

torch             a module of its own: kiln's names, PyTorch's version
torch.nn          the module kiln.nn itself
torch._tensor     what PyTorch has in a file that kiln has elsewhere (PATHS)
torch.sparse      ModuleNotFoundError with a hint of what to do
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

import kiln
from kiln import absent
from kiln.as_torch import children, classes, dtypes
from kiln.as_torch.paths import PATHS
from kiln.as_torch.version import __version__

_CORE = "_C"
_ABOVE = {name.partition(".")[0] for name in PATHS if name.count(".") == 1}


class Torch(ModuleType):
    """The module `torch`: every name of kiln's, kept once it was asked for."""

    def __getattr__(self, name: str) -> Any:
        if name in PATHS or name in _ABOVE:
            value: Any = import_module(f"torch.{name}")
        elif name in ("PyTorchFileReader", "TensorType"):  # of torch._C's names, which torch has too
            value = getattr(import_module(f"torch.{_CORE}"), name)
        else:
            value = getattr(kiln, name)
        vars(self)[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(kiln)})


class _Given:
    """Gives a module of kiln for a name of PyTorch's."""

    def __init__(self, name: str, module: str) -> None:
        self.name, self.module = name, module
        self.spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self.module)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec  # which the import system has put that of the other name in the place of
        if not hasattr(module, "__path__"):
            module.__path__ = []  # what is asked for below it comes here too, to be given or refused
        below = [name for name in PATHS if name.rpartition(".")[0] == self.name]
        for name in below:
            setattr(module, name.rpartition(".")[2], import_module(f"torch.{name}"))

    def is_package(self, name: str) -> bool:
        return "__path__" in vars(import_module(self.module))


class _TheModule:
    """Gives `torch` itself, to who drops it from sys.modules and imports it anew."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _torch(spec)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Finder:
    """Finds `torch` and what is below it, for `import` and for who asks whether it is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torch":
            return _spec()
        if fullname.startswith("kiln."):
            return _hinting(fullname, path)
        if not fullname.startswith("torch."):
            return children.found(fullname, path) if fullname in children.TOLD else None
        name = fullname.removeprefix("torch.")
        module = _module_of(name)
        if module is None:
            if _is_import():
                _not_found(fullname)
            return None
        loader: Any = _Given(name, module)
        return ModuleSpec(fullname, loader, origin=kiln.__file__, is_package=loader.is_package(fullname))

    def find_distributions(self, context: Any = None) -> Iterable[Any]:
        """What `importlib.metadata.version("torch")` reads."""
        if context is None or context.name is None or context.name.lower() == "torch":
            from kiln.as_torch.installed import Installed

            return [Installed()]
        return []


def _module_of(name: str) -> str | None:
    """The module of kiln for a name below torch; None where there is none."""
    if name in PATHS:
        return PATHS[name]
    module, parent = f"kiln.{name}", f"kiln.{name}".rpartition(".")[0]
    if module in sys.modules:
        return module
    try:
        above = import_module(parent)
    except ImportError:
        return None
    if module in sys.modules or PathFinder.find_spec(module, getattr(above, "__path__", [])) is not None:
        return module
    return None


def _is_import() -> bool:
    """Whether a finder is asked because of an import: not by `importlib.util.find_spec`."""
    return sys._getframe(3).f_code.co_name == "_find_and_load_unlocked"


def _not_found(fullname: str) -> None:
    """ModuleNotFoundError with what kiln says of the first part that it has not."""
    parts = fullname.split(".")[1:]
    paths = (".".join(parts[: k + 1]) for k in range(len(parts)))
    hints = filter(None, (absent.advice(path) for path in paths if _module_of(path) is None))
    asking = absent.asking()
    while asking is not None and asking.f_code.co_filename.startswith("<frozen importlib"):
        asking = asking.f_back
    text = next(hints, "")
    absent.note(fullname, text, asking)
    raise ModuleNotFoundError(f"No module named '{fullname}'{text}", name=fullname)


def _hinting(fullname: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """The spec of a module of kiln as Python finds it; when it has been run its missing names have hints,
    and its classes say PyTorch's paths.
    """
    spec = PathFinder.find_spec(fullname, path)
    loader: Any = None if spec is None else spec.loader
    if isinstance(loader, SourceFileLoader):
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            classes.begin()
            try:
                run(module)
                _hint(module)
            finally:
                classes.end(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _hint(module: ModuleType) -> None:
    if "__getattr__" not in vars(module) and type(module) is ModuleType:
        absent.hint_missing(module.__name__)


def _spec() -> ModuleSpec:
    loader: Any = _TheModule()
    return ModuleSpec("torch", loader, origin=kiln.__file__, is_package=True)


def _torch(spec: ModuleSpec) -> Torch:
    module = Torch("torch", kiln.__doc__)
    own: dict[str, Any] = {
        name: value
        for name, value in vars(kiln).items()
        if not name.startswith("_") and name not in PATHS and name not in _ABOVE
    }
    known = set(dir(kiln))
    own.update({n: value for n, value in dtypes.NAMES.items() if n not in known})
    own.update(finfo=dtypes.finfo, iinfo=dtypes.iinfo, _log_api_usage_once=lambda name: None)
    own.update(__version__=__version__, __file__=kiln.__file__, __path__=[], __spec__=spec)
    vars(module).update(own, torch=module)
    return module


def install() -> None:
    """From here on `import torch` gives kiln. ImportError if PyTorch itself has been imported."""
    loaded = sys.modules.get("torch")
    if isinstance(loaded, Torch):
        return
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        raise ImportError(
            f"kiln.as_torch: PyTorch itself is loaded already ({file}); import kiln.as_torch before what "
            "imports torch, or run the program by `python -m kiln program.py`",
            name="torch",
        )
    for name in [name for name in sys.modules if name.startswith("torch.")]:
        del sys.modules[name]  # what a failed import of PyTorch left
    for name, module in list(sys.modules.items()):
        if name.startswith("kiln."):
            _hint(module)
            classes.show(module)
    classes.show_core()
    sys.meta_path.insert(0, Finder())
    sys.modules["torch"] = _torch(_spec())
    classes.stand()
    children.reach()
