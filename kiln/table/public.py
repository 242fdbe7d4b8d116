"""Plain functions made public: what they are called, how else, and what tests and docs know of them."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from kiln import _core
from kiln.table import record, registry
from kiln.table.callables import flags, named
from kiln.table.record import ALIASES, NOTHING_MORE, Failure, Op, Samples, Tests


class Function:
    """What tests and docs know of a public function: the part of an op's record that plain Python needs.

    Without `samples` it is for the docs alone. `reads`: it looks at values, so that it ends a recording and
    has no graph. `needs`: an optional module that it, or its derivative, calls. `differs`: from PyTorch's.
    `tests`: see `record.Tests`.
    """

    __slots__ = (
        "differentiable",
        "differs",
        "doc",
        "dtypes",
        "failures",
        "function",
        "name",
        "needs",
        "reads",
        "reference",
        "samples",
        "tests",
    )
    kind = "function"
    public = True

    def __init__(self, name: str, function: Callable[..., Any], settings: dict[str, Any]) -> None:
        self.name, self.function = name, function
        self.doc: str = settings.pop("doc")
        self.samples: Samples | None = settings.pop("samples", None)
        self.reference: Callable[..., Any] | None = settings.pop("reference", None)
        self.failures: Callable[[], list[Failure]] | None = settings.pop("failures", None)
        self.dtypes: str = settings.pop("dtypes", "all")
        self.differentiable: bool = settings.pop("differentiable", True)
        self.reads: bool = settings.pop("reads", False)
        self.needs: str = settings.pop("needs", "")
        self.differs: str = settings.pop("differs", "")
        self.tests: Tests = settings.pop("tests", NOTHING_MORE)
        assert not settings, f"{name}: unknown settings {sorted(settings)}"

    @property
    def method(self) -> bool:
        """Whether tensors have it."""
        return self.name in registry.METHODS

    def trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call on graph values."""
        return self.function(*args, **kwargs)


FACTS: dict[str, Function] = {}  # those of every public function that states any


def records() -> list[Function]:
    """Those with samples: what the harness tests besides ops. All families are imported for it."""
    registry.everything()
    return [fact for fact in FACTS.values() if fact.samples is not None]


def public(
    name: str,
    method: bool = True,
    inplace: bool = False,
    plain: Op | None = None,
    layer: bool = False,
    raw: bool = False,
    quick: bool = False,
    **settings: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a plain function the public `name` (and a method of tensors; and the in-place method `name_`).

    An in-place form calls the function with `out=` the tensor. `plain` is the op the function calls when it
    is given that op's parameters by place and nothing else: then the call stays in C++. `layer`: it is one
    of kiln.nn.functional. `raw`: it takes data, so that a NumPy integer is not made an int. `quick`: calls
    with tensors and plain ints are made by the core (native/binding/quick.cpp). `settings` are
    facts for the docs; with samples among them it is a record of the harness: see `Function`.
    """

    def make(function: Callable[..., Any]) -> Callable[..., Any]:
        space, _, short = name.rpartition(".")
        if not hasattr(function, "__kiln_name__"):
            function.__name__ = function.__qualname__ = short  # as errors and help call it
            function = _with_aliases(function)
            function.__kiln_name__ = name  # type: ignore[attr-defined]
        shown: Any = _core.Function(function, raw, *flags(function))
        if quick:
            _core.quicken(shown, name)
        written: Any = _core.Function(_in_place(name, function), False, *flags(function)) if inplace else None
        if plain is not None:
            shown = plain.handle.form(shown)
            written = written and plain.handle.form(written, True)
        registry.register(name, shown, method and not space, layer, written)
        if settings:
            FACTS[name] = Function(name, shown, {"doc": function.__doc__ or "", **settings})
        return function

    return make


def _in_place(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The in-place form of a function: its result is written into its first argument, which is returned."""

    def written(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs, out=self)

    written.__name__ = written.__qualname__ = f"{name}_"
    written.__doc__, written.__wrapped__ = record.in_place_doc(name), function  # type: ignore[attr-defined]
    written.__kiln_name__ = f"{name}_"  # type: ignore[attr-defined]
    return written


def _with_aliases(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which also takes arguments by their other names (`axis` for `dim`), if it has a dim: of
    those without one a call is too short for a layer more.
    """
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    others = {alias: name for alias, name in ALIASES.items() if name in names and alias not in names}
    if not others.keys() & {"axis", "keepdims"}:
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        for alias in others.keys() & kwargs.keys() if kwargs else ():
            if others[alias] in kwargs:
                raise TypeError(f"{name}() got multiple values for argument '{others[alias]}'")
            kwargs[others[alias]] = kwargs.pop(alias)
        return function(*args, **kwargs)

    name = call.__name__ = call.__qualname__ = function.__name__
    call.__doc__, call.__wrapped__ = function.__doc__, function  # type: ignore[attr-defined]
    return call


def alias(name: str, of: str, method: bool = True, inplace: bool = False) -> None:
    """Makes `name` another name of the public function `of`."""
    written = registry.INPLACE[of] if inplace else None
    registry.register(name, registry.FUNCTIONS[of], method, written=written)


def methods(functions: dict[str, Callable[..., Any]]) -> None:
    """Makes functions methods of tensors that are no functions of kiln's namespace."""
    for name, function in functions.items():
        plain = isinstance(function, FunctionType) and name[0] != "_"
        registry.METHODS[name] = named(name, function) if plain else function
