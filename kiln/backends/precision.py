"""How exact float32 products shall be: asked, kept, and always answered in full precision."""

from __future__ import annotations

from kiln import _core
from kiln.errors import warn

_PRECISIONS = ("highest", "high", "medium")
_IN_FULL = {"highest": "ieee", "high": "tf32", "medium": "bf16"}


class Products:
    """`backends.cuda.matmul`: what products may be computed with. Its flags are kept and change nothing.

    `allow_tf32` and the precision of `set_float32_matmul_precision` say one thing in two ways, as in PyTorch.
    """

    __slots__ = (
        "_precision", "allow_bf16_reduced_precision_reduction", "allow_fp16_accumulation",
        "allow_fp16_reduced_precision_reduction",
    )  # fmt: skip

    def __init__(self) -> None:
        self._precision = ""
        self.allow_fp16_reduced_precision_reduction = True
        self.allow_bf16_reduced_precision_reduction = True
        self.allow_fp16_accumulation = False

    @property
    def allow_tf32(self) -> bool:
        """Whether products of float32 may be of fewer digits on a GPU."""
        return self._precision in ("high", "medium")

    @allow_tf32.setter
    def allow_tf32(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise RuntimeError(f"set_allow_tf32_cublas expects a bool, but got {type(value).__name__}")
        self._precision = "high" if value else "highest"

    @property
    def fp32_precision(self) -> str:
        """The same as "none" (nobody asked), "ieee", "tf32" or "bf16"."""
        return _IN_FULL.get(self._precision, "none")

    @fp32_precision.setter
    def fp32_precision(self, value: str) -> None:
        named = {"none": "", "ieee": "highest", "tf32": "high", "bf16": "medium"}
        if value not in named:
            raise RuntimeError(f"Unknown precision: {value}")
        self._precision = named[value]


products = Products()


def get_float32_matmul_precision() -> str:
    """What `set_float32_matmul_precision` was told; "highest" before.

    >>> kiln.get_float32_matmul_precision()
    'highest'
    """
    return products._precision or "highest"


@_core.Function
def set_float32_matmul_precision(precision: str) -> None:
    """Allows products of float32 to be of fewer digits ("high", "medium") or not ("highest").

    The word is kept; products are computed in float32 whatever it says. RuntimeError for what is no text; a
    text that is no precision changes nothing and warns.

    >>> kiln.set_float32_matmul_precision("highest")
    """
    if not isinstance(precision, str):
        given = type(precision).__name__
        raise RuntimeError(f"set_float32_matmul_precision expects a str, but got {given}")
    if precision not in _PRECISIONS:
        text = f"{precision} is not one of 'highest', 'high', or 'medium'; the current precision stays"
        warn(text)
        return
    products._precision = precision
