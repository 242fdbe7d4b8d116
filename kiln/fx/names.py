"""Names in a graph and in the source that is written of it: of nodes, of functions, of objects."""

from __future__ import annotations

import builtins
import keyword
import operator
import re
import sys
from collections.abc import Callable
from math import inf, nan
from types import ModuleType
from typing import Any

from kiln import _core
from kiln.device import device
from kiln.nn import shown
from kiln.table import registry

_MAGIC = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "floordiv": "{} // {}", "truediv": "{} / {}",
    "mod": "{} % {}", "pow": "{} ** {}", "lshift": "{} << {}", "rshift": "{} >> {}", "and_": "{} & {}",
    "or_": "{} | {}", "xor": "{} ^ {}", "getitem": "{}[{}]", "matmul": "{} @ {}", "eq": "{} == {}",
    "ne": "{} != {}", "lt": "{} < {}", "gt": "{} > {}", "le": "{} <= {}", "ge": "{} >= {}", "pos": "+{}",
    "invert": "~{}", "neg": "-{}",
}  # fmt: skip
# function of Python's -> how a call of it is written
INFIX: dict[Any, str] = {getattr(operator, name): text for name, text in _MAGIC.items()}
IN_PLACE: dict[Any, str] = {
    getattr(operator, f"i{name}"): text
    for name, text in {
        "add": "{} += {}", "sub": "{} -= {}", "mul": "{} *= {}", "floordiv": "{} //= {}", "mod": "{} %= {}",
        "truediv": "{} /= {}", "pow": "{} **= {}", "lshift": "{} <<= {}", "rshift": "{} >>= {}",
        "and": "{} &= {}", "or": "{} |= {}", "xor": "{} ^= {}", "matmul": "{} @= {}",
    }.items()
}  # fmt: skip


def root() -> str:
    """What kiln is called in the source: by the name that its dtypes are shown with."""
    return repr(_core.float32).partition(".")[0]


def root_module() -> ModuleType:
    """The module of that name."""
    return sys.modules[root()] if root() in sys.modules else sys.modules["kiln"]


def always_there() -> dict[str, Any]:
    """Names that written source may use without more."""
    return {
        "inf": inf, "nan": nan, "NoneType": type(None), root(): root_module(), "device": device,
    }  # fmt: skip


def snake_case(text: str) -> str:
    """`BatchNorm2d` as `batch_norm2d`, as PyTorch names nodes.

    >>> snake_case("AvgPool")
    'avg_pool'
    """
    parts: list[str] = []
    for before, c in zip(" " + text, text):
        if c.isupper() and parts and before != "_" and not before.isupper():
            parts.append("_")
        parts.append(c.lower())
    return "".join(parts)


def is_name(text: object) -> bool:
    """Whether a text may stand in source as a name."""
    return isinstance(text, str) and text.isidentifier() and not keyword.iskeyword(text)


class Namespace:
    """Names that are taken, each by one object."""

    def __init__(self) -> None:
        self._names: dict[Any, str] = {}
        self._used: set[str] = set()
        self._counts: dict[str, int] = {}

    def create_name(self, candidate: str, obj: Any = None) -> str:
        """A name like the candidate that is free and hides nothing; the same again for the same object."""
        if obj is not None and obj in self._names:
            return self._names[obj]
        candidate = re.sub("[^0-9a-zA-Z_]+", "_", candidate) or "_unnamed"
        if candidate[0].isdigit():
            candidate = f"_{candidate}"
        match = re.fullmatch(r"(.*)_(\d+)", candidate)
        base, number = (match[1], int(match[2])) if match else (candidate, 0)
        number = number or self._counts.get(base, 0)
        while candidate in self._used or self._is_illegal(candidate, obj):
            number += 1
            candidate = f"{base}_{number}"
        self._used.add(candidate)
        self._counts[base] = number
        if obj is not None:
            self._names[obj] = candidate
        return candidate

    def associate_name_with_obj(self, name: str, obj: Any) -> None:
        """Says that a name that was created is an object's."""
        self._names.setdefault(obj, name)

    def _is_illegal(self, name: str, obj: Any) -> bool:
        if keyword.iskeyword(name):
            return True
        if name in vars(builtins):
            return vars(builtins)[name] is not obj
        there = always_there()
        return (name in there and there[name] is not obj) or name in (
            "self",
            "kiln",
            "torch",
            "pytree",
            "fx_pytree",
        )


_OF_FUNCTIONAL = frozenset(
    "atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors cartesian_prod cdist chain_matmul "
    "einsum lu meshgrid norm split tensordot unique unique_consecutive unravel_index".split()
)
_OF_CORE = ("linalg", "special")  # where names of the core begin with that of the module
PLACES = ("", "nn.functional", "linalg", "special", "nn.init", "fx", "amp", "utils.checkpoint")


def known_place(function: Any) -> str | None:
    """Where kiln shows a function: "kiln.nn.functional.relu"."""
    name = getattr(function, "__name__", None)
    if not isinstance(name, str):
        return None
    for place in ("nn.functional", *PLACES) if name in shown.FUNCTIONAL else PLACES:
        module = sys.modules.get(f"kiln.{place}" if place else "kiln")
        try:
            found = getattr(module, name, None)
        except (ImportError, NotImplementedError):
            continue
        if found is function:
            return f"{root()}.{place}.{name}" if place else f"{root()}.{name}"
    dotted = next((text for text, f in registry.FUNCTIONS.items() if f is function), None)
    return None if dotted is None else f"{root()}.{dotted}"


def resolve(dotted: str) -> Any:
    """What a dotted name below kiln stands for; None if nothing."""
    found: Any = root_module()
    for part in dotted.split(".")[1:]:
        found = getattr(found, part, None) if is_name(part) else None
    return found


def qualified_name(function: Callable[..., Any], called: str | None = None) -> str:
    """A function's dotted name, by which it is found: "kiln.relu", "operator.add"; the one that a program
    called it by, if it is still that function's.

    >>> import kiln
    >>> qualified_name(kiln.nn.functional.softmax)
    'kiln.nn.functional.softmax'
    """
    if called is not None and resolve(called) is function:
        return called
    if getattr(builtins, getattr(function, "__name__", ""), None) is function:
        return str(function.__name__)
    known = known_place(function)
    if known is not None:
        return known
    name = getattr(function, "__qualname__", None) or getattr(function, "__name__", type(function).__name__)
    name = str(name).rpartition("<locals>.")[2]
    module = getattr(function, "__module__", None) or ""
    if module == "kiln" or module.startswith("kiln."):
        found: Any = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is function:
            return f"{root()}{module.removeprefix('kiln')}.{name}"
        return f"{module.replace('.', '_')}_{name}"
    if module == "_operator":
        module = "operator"
    return f"{module}.{name}" if module else name


def shown_name(target: Any, called: str | None = None) -> str:
    """A target as the text of a graph shows it."""
    if isinstance(target, str):
        return target
    name = qualified_name(target, called)
    if name.startswith("torch."):
        return _as_torch_shows(name)
    return f"builtins.{name}" if getattr(builtins, name, None) is target else name


def _as_torch_shows(name: str) -> str:
    """The same for PyTorch's names, some of which are of functions that it has in its core."""
    place, _, last = name.removeprefix("torch.").rpartition(".")
    if name.removeprefix("torch.") in shown.OTHERWISE:
        return f"torch.{shown.OTHERWISE[name.removeprefix('torch.')]}"
    if place in _OF_CORE:
        return f"torch._C._{place}.{place}_{last}"
    if place == "nn.functional" and last in shown.NATIVE:
        return f"torch._C._nn.{last}"
    return f"torch.functional.{last}" if not place and last in _OF_FUNCTIONAL else name


def stem(function: Any, called: str | None = None) -> str:
    """What nodes are called that call a function: "relu", "linalg_inv"."""
    known = called or known_place(function)
    if known is None:
        return str(getattr(function, "__name__", type(function).__name__))
    place, _, name = known.partition(".")[2].rpartition(".")
    if known.partition(".")[2] in shown.OTHERWISE:
        return shown.OTHERWISE[known.partition(".")[2]].rpartition(".")[2]
    return f"{place}_{name}" if place in _OF_CORE else name
