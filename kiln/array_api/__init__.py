"""The Array API standard, version 2024.12, over kiln's tensors: `xp = x.__array_namespace__()`.

Functions have the standard's names, argument forms and meaning, which in places are not those of kiln's own
(PyTorch's): `axis` and `keepdims`, 0-d arrays that promote like any other, `axis=()` that reduces nothing,
`std` over n elements, `all` that is always bool, sorts that are stable. Gradients are recorded as by kiln's.

What is absent is an AttributeError: complex dtypes, and with them `imag` and the extension `fft`; the dtypes
uint16, uint32 and uint64, so that sums of uint8 are int64. An array's `size` is PyTorch's method, no number,
and operators between arrays of different dtypes promote as PyTorch does; `xp.add(x, y)` as it says.

>>> xp = kiln.ones(2).__array_namespace__()
>>> xp.sum(xp.asarray([[1, 2], [3, 4]], dtype=xp.int8), axis=1, keepdims=True)
tensor([[3],
        [7]])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiln import _core
from kiln.array_api import common, creation, dtypes, elementwise, indexing, linalg, manipulation, reductions
from kiln.errors import describe, message

if TYPE_CHECKING:
    __getattr__: Callable[[str], Any]

__array_api_version__ = "2024.12"
_VERSIONS = ("2021.12", "2022.12", "2023.12", __array_api_version__)

e, inf, nan, pi = math.e, math.inf, math.nan, math.pi
newaxis = None


class __array_namespace_info__:
    """What the namespace has: its dtypes, devices and abilities."""

    def capabilities(self) -> dict[str, Any]:
        """What depends on the library, by the standard's names."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Any:
        """The one device there is."""
        return common.CPU

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The dtypes of numbers without one, by kind; None for complex numbers, which there are not."""
        common.check_device(device)
        return {
            "real floating": _core.get_default_dtype(),
            "complex floating": None,
            "integral": _core.int64,
            "indexing": _core.int64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """The standard's dtypes that exist here, by name: all, or those of a kind or a tuple of kinds."""
        common.check_device(device)
        found = {name: getattr(_core, name) for name in common.NAMES}
        return {name: t for name, t in found.items() if kind is None or dtypes.isdtype(t, kind)}

    def devices(self) -> list[Any]:
        """The devices an array may be on."""
        return [common.CPU]


def check_version(api_version: Any) -> None:
    """ValueError for a version of the standard that is not implemented."""
    if api_version is not None and api_version not in _VERSIONS:
        expected = f"api_version None or one of {', '.join(_VERSIONS)}"
        raise ValueError(message("__array_namespace__", expected, describe(api_version)))


def __dir__() -> list[str]:
    return sorted(n for n in globals() if not n.startswith("_") or n.startswith("__array"))


globals().update({name: getattr(_core, name) for name in (*common.NAMES, *common.BESIDE)})
for _module in (dtypes, elementwise, creation, manipulation, reductions, indexing):
    globals().update(common.public(_module))
for _name in ("matmul", "matrix_transpose", "tensordot", "vecdot"):
    globals()[_name] = getattr(linalg, _name)
