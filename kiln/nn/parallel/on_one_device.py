"""What programs for several devices do on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kiln.absent import leave_out
from kiln.nn.module import Module


class DataParallel(Module):
    """A module on every device that there is: here one, so that a call is the module's own.

    The module is `.module`, and names in `state_dict` begin with "module.". `device_ids`, `output_device` and
    `dim` choose nothing.

    >>> import kiln
    >>> model = kiln.nn.DataParallel(kiln.nn.Linear(3, 2))
    >>> list(model.state_dict()), model(kiln.zeros(5, 3)).shape
    (['module.weight', 'module.bias'], kiln.Size([5, 2]))
    """

    def __init__(
        self,
        module: Module,
        device_ids: Sequence[Any] | None = None,
        output_device: Any = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        self.module, self.device_ids, self.dim = module, list[Any](), dim

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.module(*inputs, **kwargs)


leave_out(
    DataParallel, "gather parallel_apply replicate scatter", "there is one device; a call is the module's own"
)


def data_parallel(
    module: Module,
    inputs: Any,
    device_ids: Sequence[Any] | None = None,
    output_device: Any = None,
    dim: int = 0,
    module_kwargs: dict[str, Any] | None = None,
) -> Any:
    """A module of inputs (a tuple of arguments, or one) on every device that there is: here one."""
    given = inputs if isinstance(inputs, tuple) else () if inputs is None else (inputs,)
    return module(*given, **(module_kwargs or {}))


def parallel_apply(
    modules: Sequence[Module],
    inputs: Sequence[Any],
    kwargs_tup: Sequence[dict[str, Any]] | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Any]:
    """Each module of its inputs (a tuple of arguments, or one), one after another.

    AssertionError for other than as many inputs as modules.
    """
    named = [{} for _ in modules] if kwargs_tup is None else kwargs_tup
    if not len(modules) == len(inputs) == len(named):
        raise AssertionError(
            f"The number of modules {len(modules)} is not equal to the number of inputs {len(inputs)}"
        )
    return [data_parallel(m, x, module_kwargs=kw) for m, x, kw in zip(modules, inputs, named, strict=True)]
