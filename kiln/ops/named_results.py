"""Results with names: tuples whose fields are called, and shown, as PyTorch's are."""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from typing import Any

from kiln.ops.elementwise.arithmetic import written
from kiln.table.record import Tensor

_shown_in = "kiln"


def show_in(library: str) -> None:
    """From here on results are shown as of a library."""
    global _shown_in
    _shown_in = library


def _shown(self: Any) -> str:
    """PyTorch's text of such a result: a field a line."""
    fields = ",\n".join(f"{name}={value!r}" for name, value in zip(self._fields, self))
    return f"{_shown_in}.return_types.{type(self).__name__}(\n{fields})"


@cache
def _kind(name: str, fields: str) -> Any:
    kind: Any = namedtuple(name, fields, module="kiln.return_types")  # type: ignore[misc]
    type.__setattr__(kind, "__repr__", _shown)
    kind.__doc__ = f"What `{name}` gives."
    return kind


def named(name: str, fields: str, *values: Any) -> Any:
    """The results of the function `name`; `fields` are their names.

    >>> import kiln
    >>> kiln.max(kiln.tensor([[1, 3], [4, 2]]), 1)
    kiln.return_types.max(
    values=tensor([3, 4]),
    indices=tensor([1, 0]))
    """
    return _kind(name, fields)(*values)


def located(name: str, values: Any, indices: Tensor, out: Any = None) -> Any:
    """Elements and where they are, written into the two tensors of `out` if there are any."""
    return named(name, "values indices", *written((values, indices), out))
