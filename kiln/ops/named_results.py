"""Results with names: tuples whose fields are called, and shown, as PyTorch's are."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

from kiln.ops.elementwise.arithmetic import written
from kiln.table.record import Tensor

# names of results, by their fields
_BY_FIELDS = {
    "a tau": "geqrf",
    "eigenvalues eigenvectors": "linalg_eigh",
    "hist bin_edges": "histogram histogramdd",
    "inverse info": "linalg_inv_ex",
    "mantissa exponent": "frexp",
    "min max": "aminmax",
    "result info": "linalg_solve_ex",
    "sign logabsdet": "linalg_slogdet slogdet",
    "solution cloned_coefficient": "triangular_solve",
    "solution residuals rank singular_values": "linalg_lstsq",
    "values indices": "cummax cummin kthvalue max median min mode nanmedian sort topk",
    "L info": "linalg_cholesky_ex",
    "LD pivots": "linalg_ldl_factor",
    "LD pivots info": "linalg_ldl_factor_ex",
    "LU pivots": "linalg_lu_factor",
    "LU pivots info": "_lu_with_info linalg_lu_factor_ex",
    "P L U": "linalg_lu lu_unpack",
    "Q R": "linalg_qr qr",
    "U S V": "svd",
    "U S Vh": "linalg_svd",
}
FIELDS = {name: fields for fields, names in _BY_FIELDS.items() for name in names.split()}
_shown_in = "kiln"
_kinds: dict[str, Any] = {}


def show_in(library: str) -> None:
    """From here on results are shown as of a library."""
    global _shown_in
    _shown_in = library
    for made in _kinds.values():
        made.__module__ = f"{library}.return_types"


def _shown(self: Any) -> str:
    """PyTorch's text of such a result: a field a line."""
    fields = ",\n".join(f"{name}={value!r}" for name, value in zip(self._fields, self))
    return f"{_shown_in}.return_types.{type(self).__name__}(\n{fields})"


def _made(kind: Any, *values: Any) -> Any:
    """A result of its fields, or of a sequence of them (and a dict), as PyTorch's classes are called."""
    if len(values) == 1 or (len(values) == 2 and isinstance(values[1], dict)):
        values = tuple(values[0])
    if len(values) != len(kind._fields):
        raise TypeError(
            f"{kind.__name__}() takes a {len(kind._fields)}-sequence ({len(values)}-sequence given)"
        )
    return tuple.__new__(kind, values)


def kind(name: str) -> Any:
    """The class of the results of a function, as `kiln.return_types` has it; pickles name the function."""
    if name in _kinds:
        return _kinds[name]
    made: Any = namedtuple(name, FIELDS[name], module=f"{_shown_in}.return_types")  # type: ignore[misc]
    own = {
        "__new__": _made,
        "__repr__": _shown,
        "__reduce__": lambda self: (named, (name, *self)),
        "__doc__": f"What `{name}` gives.",
    }
    for attribute, value in own.items():
        setattr(made, attribute, value)
    return _kinds.setdefault(name, made)


def named(name: str, *values: Any) -> Any:
    """The results of the function `name`.

    >>> import kiln
    >>> kiln.max(kiln.tensor([[1, 3], [4, 2]]), 1)
    kiln.return_types.max(
    values=tensor([3, 4]),
    indices=tensor([1, 0]))
    """
    return kind(name)(*values)


def located(name: str, values: Any, indices: Tensor, out: Any = None) -> Any:
    """Elements and where they are, written into the two tensors of `out` if there are any."""
    return named(name, *written((values, indices), out))
