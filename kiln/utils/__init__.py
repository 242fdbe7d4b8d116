"""Helpers around training: `kiln.utils.data`, `kiln.utils.checkpoint`, `kiln.utils.tensorboard`."""

from __future__ import annotations

import typing as _typing
from importlib import import_module as _import_module

from kiln.absent import hidden as _hidden
from kiln.absent import no_attribute as _no_attribute
from kiln.utils import checkpoint, data

if _typing.TYPE_CHECKING:
    from kiln.utils import _foreach_utils as _foreach_utils
    from kiln.utils import _pytree as _pytree
    from kiln.utils import benchmark as benchmark
    from kiln.utils import collect_env as collect_env
    from kiln.utils import deterministic as deterministic
    from kiln.utils import dlpack as dlpack
    from kiln.utils import flop_counter as flop_counter
    from kiln.utils import hooks as hooks
    from kiln.utils import model_zoo as model_zoo
    from kiln.utils import safetensors as safetensors
    from kiln.utils import tensorboard as tensorboard

__all__ = ["checkpoint", "data"]

_LATER = (
    "_foreach_utils", "_pytree", "benchmark", "collect_env", "deterministic", "dlpack", "flop_counter",
    "hooks", "model_zoo", "safetensors", "tensorboard",
)  # fmt: skip


def _found(name: str) -> _typing.Any:
    """`__getattr__`, which type checkers do not see."""
    if name not in _LATER:
        _no_attribute(__name__, name)
    return _import_module(f"kiln.utils.{name}")


if not _typing.TYPE_CHECKING:
    __getattr__ = _hidden(_found)
