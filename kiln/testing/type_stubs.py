"""The types of everything that is attached from the table, written for type checkers and editors.

    python -m kiln.testing.type_stubs FOLDER        FOLDER is kiln/_typed of the package

Modules whose names are the table's import them under TYPE_CHECKING from these files, which nothing imports at
run time. The build writes them (CMakeLists.txt), with the core that it has just linked: the table is read as
any program reads it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import kiln
from kiln.table import registry
from kiln.testing.type_forms import (
    Form,
    forms_of,
    is_public,
    layer_forms,
    own_name,
    table_functions,
    table_methods,
)

LAYERS = "kiln.nn.functional"
PACKAGE = Path(kiln.__file__).parent
# What a class or module of the table may have as a name of its own is known under another one here.
_RENAMED = "bool int float str tuple list dict type object dtype layout slice".split()
_WORD = re.compile(rf"(?<![\w.'\"])({'|'.join(_RENAMED)})\b(?!\s*[:(])")

HEAD = '''"""{text} Written by the build from the entries in kiln/ops: do not edit it."""

from builtins import bool as _bool, dict as _dict, float as _float, int as _int, list as _list
from builtins import object as _object, slice as _slice, str as _str, tuple as _tuple, type as _type
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Self, overload

from kiln._core import Node, Size, _CoreTensor, dtype as _dtype
from kiln._typed import results as _results
from kiln._typed.words import Array, Buffer, Data, Device, Dims, DType, NDArray, Number, Operand, Sizes
from kiln.device import device as _device
from kiln.layout import layout as _layout, memory_format
from kiln.ops.random.generator import Generator
from kiln.ops.views.storage import TypedStorage, UntypedStorage
'''
IMPORTS_TENSOR = "from kiln._typed.tensor import Tensor\n"

WORDS = '''"""The types that entries of the table name in short."""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy

from kiln._core import dtype
from kiln._typed.tensor import Tensor
from kiln.device import device

class Array(Protocol):
    """A NumPy array or number, or what becomes one."""

    def __array__(self) -> Any: ...

NDArray: TypeAlias = numpy.ndarray[Any, Any]
Number: TypeAlias = int | float
Operand: TypeAlias = Tensor | int | float | Array
Dims: TypeAlias = int | Sequence[int] | None
Sizes: TypeAlias = int | Sequence[int]
DType: TypeAlias = dtype | type[bool] | type[int] | type[float]
Device: TypeAlias = device | str
Data: TypeAlias = Tensor | Array | Number | list[Any] | tuple[Any, ...]
Buffer: TypeAlias = bytes | bytearray | memoryview | Array
'''


class Results:
    """The named tuples that functions give, one class for each function."""

    def __init__(self) -> None:
        self.classes: dict[str, tuple[str, ...]] = {}

    def type_of(self, name: str, form: Form) -> str:
        """A form's result as a type."""
        if not form.fields:
            return form.result
        name = name.replace(".", "_")
        self.classes[name] = form.fields
        return f"_results.{name}"

    def text(self) -> str:
        """The classes."""
        shown = [
            f"class {name}(NamedTuple):\n" + "".join(f"    {f}\n" for f in fields)
            for name, fields in sorted(self.classes.items())
        ]
        head = '"""Results with names. Written by the build: do not edit it."""\n\n'
        head += "from typing import NamedTuple\n\n" + IMPORTS_TENSOR
        return head + "\n" + "\n".join(shown)


def renamed(text: str) -> str:
    """A type under the names that it has in these files."""
    return _WORD.sub(r"_\1", text)


def declaration(
    name: str, function: Any, forms: list[Form], results: Results, first: str = "", indent: str = ""
) -> str:
    """The text of a function, or of a method whose first parameter is `first`."""
    said = inspect.cleandoc(getattr(function, "__doc__", None) or "").partition("\n\n")[0]
    said = " ".join(said.split()).replace("\\", "\\\\").replace('"', "'")
    lines = []
    for form in forms:
        result = results.type_of(own_name(name, function), form)
        if first and name.endswith("_") and result == "Tensor":
            result = "Self"
        shown = "(" + renamed(form.text(first)[1:-1]) + ")"
        if len(forms) > 1:
            lines.append("@overload")
        lines.append(f"def {name}{shown} -> {renamed(result)}:")
        lines.append(f'    """{said}"""' if said else "    ...")
    return textwrap.indent("\n".join(lines) + "\n", indent)


def module(space: str, names: dict[str, Any], results: Results) -> str:
    """A file of functions."""
    head = HEAD.format(text=f"The functions of {space} that are the table's.") + IMPORTS_TENSOR
    body = [
        declaration(name, f, layer_forms(name) if space == LAYERS else forms_of(name, f), results)
        for name, f in sorted(names.items())
        if not isinstance(f, type)
    ]
    return head + "\n" + "\n".join(body)


def core_members() -> set[str]:
    """The members of tensors that the core's own stub has."""
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    made = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "_CoreTensor")
    names = {n.name for n in made.body if isinstance(n, ast.FunctionDef)}
    return names | {n.target.id for n in made.body if isinstance(n, ast.AnnAssign)}  # type: ignore[union-attr]


def tensor(results: Results) -> str:
    """The class of tensors."""
    own = core_members()
    names = {n: f for n, f in table_methods().items() if n not in own and is_public(n)}
    body = [declaration(n, f, forms_of(n, f), results, "self", "    ") for n, f in sorted(names.items())]
    text = 'class Tensor(_CoreTensor):\n    """An array of numbers of one dtype."""\n\n'
    return HEAD.format(text="Tensors.") + "\n" + text + "\n".join(body)


def layers() -> dict[str, Any]:
    """The functions of kiln.nn.functional that are not written there."""
    functional = kiln.nn.functional
    tree = ast.parse(Path(str(functional.__file__)).read_text())
    own = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    own |= {a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    return {n: getattr(functional, n) for n in dir(functional) if is_layer(n) and n not in own}


def is_layer(name: str) -> bool:
    """Whether a name of kiln.nn.functional is the table's."""
    return is_public(name) and (name in registry.layer_names() or name.rstrip("_") in ("relu", "hardshrink"))


def files() -> dict[str, str]:
    """Every file by its name."""
    registry.everything()
    results = Results()
    special = {n: getattr(kiln.special, n) for n in dir(kiln.special)}
    found = {
        "__init__.pyi": '"""What type checkers see of the table; nothing of it is there at run time."""\n',
        "words.pyi": WORDS,
        "tensor.pyi": tensor(results),
        "functions.pyi": module("kiln", table_functions(), results),
        "linalg.pyi": module("kiln.linalg", table_functions("linalg"), results),
        "special.pyi": module("kiln.special", special, results),
        "functional.pyi": module(LAYERS, layers(), results),
    }
    return {**found, "results.pyi": results.text()}


def main(folder: Path) -> None:
    """Writes what is not there as it should be."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = files()
    for path in folder.glob("*.pyi"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
