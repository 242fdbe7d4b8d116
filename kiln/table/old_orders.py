"""Calls in an order of arguments that was before the keywords, and that old programs write.

    p.add_(-0.1, grad)            p.add_(grad, alpha=-0.1)
    p.add_(-0.1, 2)               p.add_(2, alpha=-0.1)
    p.addcdiv_(-0.1, m, v)        p.addcdiv_(m, v, value=-0.1)
    kiln.addmm(0.5, c, 2, a, b)   kiln.addmm(c, a, b, beta=0.5, alpha=2)

The ops know today's order alone. What they refuse is looked at here, and called again if it is one of these.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

from kiln._core import Tensor
from kiln.errors import warn

Orders = dict[str, tuple[str, ...]]
# the op -> orders, T a tensor and N a number; the keywords that the numbers are, in their order
_SCALED: Orders = {"TNT": ("alpha",), "TNN": ("alpha",)}
_VALUED: Orders = {"TNTT": ("value",)}
_PRODUCT: Orders = {  # as functions, and as methods
    "NTTT": ("beta",), "NTNTT": ("beta", "alpha"), "TNTT": ("beta",), "TNNTT": ("beta", "alpha"),
}  # fmt: skip
ORDERS: dict[str, Orders] = {
    **dict.fromkeys(("add", "sub", "subtract"), _SCALED),
    **dict.fromkeys(("addcmul", "addcdiv"), _VALUED),
    **dict.fromkeys(("addmm", "addmv", "addr", "addbmm", "baddbmm"), _PRODUCT),
}


def in_todays_order(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The arguments that a call in an old order means, with the warning that it is one; None for any other.

    >>> import kiln, warnings
    >>> warnings.simplefilter("ignore")
    >>> kiln.ones(1).add_(2, kiln.ones(1))
    tensor([3.])
    """
    order = "".join("T" if isinstance(x, Tensor) else "N" if _is_number(x) else "?" for x in args)
    names = ORDERS.get(name.rstrip("_"), {}).get(order)
    if names is None or any(key in kwargs for key in names):
        return None
    today = ", ".join(f"{key}=..." for key in names)
    warn(f"This overload of {name} is deprecated: numbers follow the tensors as keywords, {today}")
    numbers = [x for x in args if not isinstance(x, Tensor)]
    places = (*(x for x in args if isinstance(x, Tensor)), *numbers[len(names) :])
    return places, {**kwargs, **dict(zip(names, numbers))}


def _is_number(value: Any) -> bool:
    """NumPy's numbers too."""
    return isinstance(value, Real) and not isinstance(value, bool)
