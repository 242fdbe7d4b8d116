"""Every name of the table: what is registered, and which family brings what is not imported yet.

A family is a module of kiln.ops. A few are imported with kiln; any other when one of its names is first asked
for: `index.py` knows which names it registers.

A function's name is the one it has below kiln: "sort", "linalg.solve".
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Union

from kiln import _core
from kiln.absent import hidden, no_attribute
from kiln.table import index

OPS: dict[str, Any] = {}  # the record of every op, public or not
FUNCTIONS: dict[str, Any] = {}  # public functions: the op's handle where a call needs nothing else
METHODS: dict[str, Any] = {}  # methods of tensors, in-place forms included
LAYERS: dict[str, Any] = {}  # functions of kiln.nn.functional

FORMS: dict[str, tuple[str, ...]] = {}  # how functions are called whose types do not follow from the entry

INPLACE: dict[str, Any] = {}  # name -> its in-place form: the method `name_`, and for some a function

_INDEX = index.read()
# name -> the family that brings it
_FUNCTION_HOMES, _METHOD_HOMES, _LAYER_HOMES, _OP_HOMES = (
    {name: family for family, kinds in _INDEX.items() for name in kinds[kind]} for kind in range(4)
)


def register(
    name: str,
    function: Any,
    method: bool = False,
    layer: bool = False,
    written: Any = None,
    written_function: bool = False,
) -> None:
    """Makes a public function known; `written` is its in-place form, which is a function too where it needs
    the tensor alone, or `written_function`.
    """
    twice = name in FUNCTIONS and not _begins_anew(name)
    assert not twice, f"{name} twice: an op behind a function of its name is not public"
    names = {name: function, **({} if written is None else {f"{name}_": written})}
    FUNCTIONS[name] = function
    if method:
        METHODS.update(names)
    if layer:
        LAYERS.update(names)
    if written is not None:
        INPLACE[name] = written
        if written_function or places_of(function, required=True) == 1:
            FUNCTIONS[f"{name}_"] = written


def forms(name: str, *lines: str) -> None:
    """States the forms in which the function or method `name` of the entry beside it is called, for the types
    that checkers see: `testing/type_forms.py` says what may be left out.
    """
    FORMS[name] = lines


def _begins_anew(name: str) -> bool:
    """Whether the family of a name is imported again, after an import that an interrupt or an error ended."""
    module = sys.modules.get(f"kiln.ops.{_FUNCTION_HOMES.get(name)}")
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def places_of(function: Any, required: bool = False) -> int:
    """How many arguments a public function takes by place, or how many it must be given."""
    while hasattr(function, "__wrapped__"):  # of a form, of a function with aliases
        function = function.__wrapped__
    if isinstance(function, _core.Op):
        return len([p for p in function.record.params if p.default is _core.REQUIRED or not required])
    count: int = function.__code__.co_argcount - (len(function.__defaults__ or ()) if required else 0)
    return count


def _found(registered: dict[str, Any], home: dict[str, str], name: str) -> Any:
    if name not in registered and name in home:
        load(home[name])
    return registered[name]


def load(family: str) -> None:
    """Imports a family: its names are registered then."""
    import_module(f"kiln.ops.{family}")


def everything() -> None:
    """Imports every family: for what lists the table, as tests and docs do."""
    for family in index.modules():
        load(family)


def is_indexed() -> bool:
    """Whether names are known whose families are not imported."""
    return bool(_INDEX)


def function(name: str) -> Any:
    """The public function `name`. KeyError if there is none."""
    return _found(FUNCTIONS, _FUNCTION_HOMES, name)


def has_function(name: str) -> bool:
    """Whether there is a public function `name`."""
    return name in FUNCTIONS or name in _FUNCTION_HOMES


def method(name: str) -> Any:
    """The function that is the tensors' method `name`. KeyError if there is none."""
    return _found(METHODS, _METHOD_HOMES, name)


def layer(name: str) -> Any:
    """The function `name` of kiln.nn.functional. KeyError if there is none."""
    return _found(LAYERS, _LAYER_HOMES, name)


def op(name: str) -> Any:
    """The record of the op `name`. KeyError if there is none."""
    return _found(OPS, _OP_HOMES, name)


def imported() -> dict[str, Any]:
    """The functions of kiln's own namespace whose families are imported."""
    return {name: own for name, own in FUNCTIONS.items() if "." not in name}


def function_names(space: str = "") -> list[str]:
    """The public functions of a namespace below kiln ("linalg"), or of kiln's own."""
    start = f"{space}." if space else ""
    names = [n[len(start) :] for n in {**FUNCTIONS, **_FUNCTION_HOMES} if n.startswith(start)]
    return sorted(n for n in names if "." not in n)


def layer_names() -> list[str]:
    """The functions of kiln.nn.functional that are the table's."""
    return sorted({**LAYERS, **_LAYER_HOMES})


class Late:
    """A method of a family that may not be imported: asked for, the real one takes its place in the class."""

    __slots__ = ("home", "made", "name")

    def __init__(self, home: type, name: str, made: Callable[[Any], Any]) -> None:
        self.home, self.name, self.made = home, name, made

    def __get__(self, instance: Any, owner: type) -> Any:
        setattr(self.home, self.name, self.made(method(self.name)))
        return getattr(owner if instance is None else instance, self.name)


def attach(home: type, made: Callable[[Any], Any], names: Callable[[str], bool]) -> None:
    """Gives a class the table's methods, `made` of the functions; only those whose name is wanted."""
    for name, own in METHODS.items():
        if names(name):
            setattr(home, name, made(own))
    for name in _METHOD_HOMES:
        if name not in METHODS and names(name):
            setattr(home, name, Late(home, name, made))


def namespace(
    module: str, others: dict[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], Iterable[str]]]:
    """`__getattr__` and `__dir__` of a module "kiln.space" that shows the functions of one namespace, and
    `others`, which are functions of kiln under a name of their own there. `import *` takes them all.
    """
    space, others = module.removeprefix("kiln."), others or {}

    def names() -> list[str]:
        return sorted({*function_names(space), *others})

    def getter(name: str) -> Any:
        if name == "__all__":
            return [n for n in names() if not n.startswith("_")]
        full = others.get(name, f"{space}.{name}")
        if not has_function(full):
            no_attribute(module, name)
        setattr(sys.modules[module], name, function(full))
        return function(full)

    return hidden(getter), names


def _reduced(op: Any) -> Union[str, tuple[Any, ...]]:
    """How copies and pickles name an op's handle: a module kept `nn.functional.relu`, say. What is no public
    function is one thing to copies and nothing to pickles.
    """
    name: str = op.__name__
    for module in ("kiln", "kiln.nn.functional"):
        if getattr(sys.modules.get(module), name, None) is op:
            return _named, (module, name)
    return name


def _named(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


copyreg.pickle(_core.Op, _reduced)
copyreg.pickle(_core.Function, _reduced)
