"""The older path of `kiln.func.functional_call`."""

from __future__ import annotations

from typing import Any

from kiln.errors import warn
from kiln.func import modules
from kiln.table.callables import name_all as _name_all

__all__ = ["functional_call"]


def functional_call(
    module: Any,
    parameters_and_buffers: modules.Tensors,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    tie_weights: bool = True,
    strict: bool = False,
) -> Any:
    """`kiln.func.functional_call` of one dict, with a FutureWarning that says so."""
    warn(
        "`torch.nn.utils.stateless.functional_call` is deprecated as of PyTorch 2.0: "
        "call kiln.func.functional_call",
        FutureWarning,
    )
    return modules.functional_call(
        module, parameters_and_buffers, args, kwargs, tie_weights=tie_weights, strict=strict
    )


_name_all(globals(), __name__)
