"""What a captured program asks of tensors: what needs no values, what reads them, what is done at once."""

from __future__ import annotations

import operator
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from kiln import _core
from kiln.fx import names
from kiln.nn import Module as _Module

__all__ = [
    "AT_ONCE", "GIVE_NOTHING", "METADATA", "OF_REAL", "READS", "VIEWS", "calls_back", "sized_by_values",
    "writes",
]  # fmt: skip

# what is asked of a tensor and depends on no value: answered without a step
METADATA = frozenset(
    "size dim ndimension numel nelement stride storage_offset element_size is_contiguous is_floating_point "
    "is_complex is_signed get_device shape ndim dtype device layout requires_grad is_leaf itemsize nbytes "
    "names is_cuda is_cpu is_mps is_sparse is_quantized is_meta is_nested result_type promote_types can_cast "
    "broadcast_shapes is_tensor output_nr is_grad_enabled get_default_dtype __len__ is_same_size "
    "is_inference is_conj is_neg finfo iinfo has_names is_shared is_pinned is_sparse_csr is_xpu is_mkldnn "
    "are_deterministic_algorithms_enabled is_inference_mode_enabled is_autocast_enabled "
    "get_autocast_dtype get_num_threads is_storage typename is_anomaly_enabled".split()
)
# sizes of the result depend on values
_OF_VALUES = frozenset(
    "nonzero argwhere masked_select unique unique_consecutive bincount combinations unique_dim histogramdd "
    "pack_padded_sequence pad_packed_sequence".split()
)
# ... unless this argument, by position and name, is a number
_BY_NUMBERS = {"repeat_interleave": (1, "repeats"), "tensor_split": (1, "indices_or_sections")}
# what is done at once: it reads values
READS = frozenset(
    "backward grad item tolist equal allclose is_nonzero data_ptr to_dlpack untyped_storage storage "
    "save".split()
)
# ... or changes what no step can, and reads none
AT_ONCE = frozenset(
    "register_hook register_post_accumulate_grad_hook retain_grad requires_grad_ numpy from_numpy "
    "manual_seed seed initial_seed get_rng_state set_rng_state load share_memory_ apply_ map_ resize_ "
    "resize_as_ set_ t_ transpose_ swapaxes_ swapdims_ squeeze_ unsqueeze_ detach_ set_default_dtype "
    "set_num_threads use_deterministic_algorithms set_printoptions compile pin_memory from_dlpack".split()
)
OF_REAL = frozenset(("grad", "grad_fn", "_version", "_backward_hooks", "_grad", "_base", "names"))
VIEWS = frozenset(("T", "mT", "H", "mH", "real", "imag", "data"))
# ops that give None, or what nobody looks at
GIVE_NOTHING = ("setitem", "set_grad_enabled", "set_modes", "_assert", "_check")


def calls_back(target: Any, a: Any) -> bool:
    """Whether a call is of the program's own code, or of what is given some to call."""
    if isinstance(target, _core.Op):
        return _is_of_others(target) or _has_code(a)
    return _is_called_back(target) or _has_code(a)


def _is_called_back(target: Any) -> bool:
    if isinstance(target, (str, type, BuiltinFunctionType)):
        return False
    inner = getattr(target, "__func__", target)
    return "<locals>" in getattr(inner, "__qualname__", "") or not _is_own(inner)


_is_of_others = lru_cache(4096)(_is_called_back)  # of ops, of which there are few


def _is_own(function: Any) -> bool:
    module = getattr(function, "__module__", None) or "kiln"
    return module.partition(".")[0] in ("kiln", "builtins", "_operator", "operator")


_NO_CODE: Any = frozenset((int, float, str, bool, type(None), _core.dtype, _core.Tensor))


def _has_code(a: Any) -> bool:
    """Whether something of the program's that can be called is among arguments."""
    if type(a) in _NO_CODE or isinstance(a, _core.Tensor):
        return False
    if isinstance(a, (tuple, list)):
        return any(_has_code(x) for x in a if type(x) not in _NO_CODE)
    if isinstance(a, dict):
        return any(map(_has_code, a.values()))
    if isinstance(a, (FunctionType, MethodType, partial)):
        return not _is_own(getattr(a, "__func__", a))
    return isinstance(a, (_Module, _core.Recorder))


def writes(called: str) -> bool:
    """Whether a function's name says that it writes into its first argument: `add_`, `iadd`."""
    return (
        (called.endswith("_") and not called.endswith("__"))
        or called in ("setitem", "overwrite")
        or getattr(operator, called, None) in names.IN_PLACE
    )


_INDEXED = frozenset("getitem __getitem__ index_select take setitem __setitem__".split())
_MAY_BE_SIZED = _OF_VALUES | _INDEXED | _BY_NUMBERS.keys() | {"one_hot", "where"}


def sized_by_values(called: str, args: Any, kwargs: Any) -> bool:
    """Whether the sizes of a result depend on values: as with a mask, or with a slice to a tensor."""
    if called not in _MAY_BE_SIZED:
        return False
    if called == "one_hot":
        return bool(kwargs.get("num_classes", args[1] if len(args) > 1 else -1) == -1)
    if called in _BY_NUMBERS:
        at, name = _BY_NUMBERS[called]
        return isinstance(kwargs.get(name, args[at] if len(args) > at else args[0]), _core.Tensor)
    if called in _OF_VALUES or (called == "where" and len(args) == 1):
        return True
    if called not in _INDEXED or len(args) < 2:
        return False
    keys = args[1] if isinstance(args[1], tuple) else (args[1],)
    for k in keys:
        if isinstance(k, slice) and any(isinstance(x, _core.Tensor) for x in (k.start, k.stop, k.step)):
            return True
        if "set" not in called and isinstance(k, _core.Tensor) and k.dtype in (_core.bool, _core.uint8):
            return True
    return False
