"""kiln: a define-by-run deep-learning framework with PyTorch's names and a code generator of its own.

A name imported as itself is public: to type checkers too.
"""
# ruff: isort: skip_file

from __future__ import annotations

import gc as _gc

_collects = _gc.isenabled()
_gc.disable()  # nothing of what follows is garbage: looking for it takes a tenth of the time

import math as _math  # noqa: E402
import os as _os  # noqa: E402
import typing as _typing  # noqa: E402
from importlib import import_module as _import_module  # noqa: E402

from kiln import _core as _core  # noqa: E402

_core.set_package_folder(_os.path.dirname(__file__) + _os.sep)
_core.set_compiler("kiln.capture.service")

from kiln import autograd as autograd, ops as ops, tensor as _tensor  # noqa: E402, F401
from kiln._core import (  # noqa: E402
    Size as Size,
    Tensor as Tensor,
    bfloat16 as bfloat16,
    bool as bool,
    can_cast as can_cast,
    dtype as dtype,
    empty_cache as empty_cache,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    memory_stats as memory_stats,
    promote_types as promote_types,
    reset_peak_memory_stats as reset_peak_memory_stats,
    set_default_dtype as set_default_dtype,
    set_num_threads as set_num_threads,
    uint8 as uint8,
)
from kiln.table import registry as _registry  # noqa: E402
from kiln.autograd import (  # noqa: E402
    enable_grad as enable_grad,
    inference_mode as inference_mode,
    no_grad as no_grad,
    set_grad_enabled as set_grad_enabled,
)
from kiln.autograd.grad_mode import (  # noqa: E402
    is_grad_enabled as is_grad_enabled,
    is_inference as is_inference,
    is_inference_mode_enabled as is_inference_mode_enabled,
)
from kiln.device import (  # noqa: E402
    device as device,
    get_default_device as get_default_device,
    set_default_device as set_default_device,
)
from kiln.absent import hidden as _hidden, no_attribute as _no_attribute  # noqa: E402
from kiln.late import Beside as _Beside, later as _later  # noqa: E402
from kiln.layout import (  # noqa: E402
    channels_last as channels_last,
    channels_last_3d as channels_last_3d,
    contiguous_format as contiguous_format,
    layout as layout,
    memory_format as memory_format,
    preserve_format as preserve_format,
    strided as strided,
)

if _typing.TYPE_CHECKING:  # with the functions of the table: the build writes what they take and give
    from kiln._typed.functions import *  # noqa: F403
    from kiln.amp.autocast_mode import (
        autocast as autocast,
        clear_autocast_cache as clear_autocast_cache,
        get_autocast_cpu_dtype as get_autocast_cpu_dtype,
        get_autocast_dtype as get_autocast_dtype,
        get_autocast_gpu_dtype as get_autocast_gpu_dtype,
        is_autocast_cache_enabled as is_autocast_cache_enabled,
        is_autocast_cpu_enabled as is_autocast_cpu_enabled,
        is_autocast_enabled as is_autocast_enabled,
        set_autocast_cache_enabled as set_autocast_cache_enabled,
        set_autocast_cpu_dtype as set_autocast_cpu_dtype,
        set_autocast_cpu_enabled as set_autocast_cpu_enabled,
        set_autocast_dtype as set_autocast_dtype,
        set_autocast_enabled as set_autocast_enabled,
        set_autocast_gpu_dtype as set_autocast_gpu_dtype,
    )
    from kiln import (
        amp as amp,
        accelerator as accelerator,
        array_api as array_api,
        backends as backends,
        batching as batching,
        cache as cache,
        compiler as compiler,
        cpu as cpu,
        cuda as cuda,
        datasets as datasets,
        distributions as distributions,
        distributed as distributed,
        export as export,
        func as func,
        futures as futures,
        fx as fx,
        hub as hub,
        jit as jit,
        library as library,
        linalg as linalg,
        masked as masked,
        multiprocessing as multiprocessing,
        mps as mps,
        mtia as mtia,
        nn as nn,
        onnx as onnx,
        optim as optim,
        serialization as serialization,
        overrides as overrides,
        profiler as profiler,
        quasirandom as quasirandom,
        return_types as return_types,
        signal as signal,
        storage as storage,
        testing as testing,
        types as types,
        version as version,
        xpu as xpu,
    )
    from kiln.ops.creation.dtypes import finfo as finfo, iinfo as iinfo
    from kiln.ops.random.generator import Generator as Generator, default_generator as default_generator
    from kiln.ops.creation.legacy import (
        BFloat16Tensor as BFloat16Tensor,
        BoolTensor as BoolTensor,
        ByteTensor as ByteTensor,
        CharTensor as CharTensor,
        DoubleTensor as DoubleTensor,
        FloatTensor as FloatTensor,
        HalfTensor as HalfTensor,
        IntTensor as IntTensor,
        LongTensor as LongTensor,
        ShortTensor as ShortTensor,
        set_default_tensor_type as set_default_tensor_type,
    )
    from kiln.storage import (
        BFloat16Storage as BFloat16Storage,
        BoolStorage as BoolStorage,
        ByteStorage as ByteStorage,
        CharStorage as CharStorage,
        DoubleStorage as DoubleStorage,
        FloatStorage as FloatStorage,
        HalfStorage as HalfStorage,
        IntStorage as IntStorage,
        LongStorage as LongStorage,
        ShortStorage as ShortStorage,
    )
    from kiln.ops.views.storage import TypedStorage as TypedStorage, UntypedStorage as UntypedStorage
    from kiln import random as random, special as special, utils as utils, viz as viz
    from kiln.autograd.anomaly_mode import (
        is_anomaly_check_nan_enabled as is_anomaly_check_nan_enabled,
        is_anomaly_enabled as is_anomaly_enabled,
        set_anomaly_enabled as set_anomaly_enabled,
    )
    from kiln.capture.compile import compile as compile
    from kiln.func.control_flow import cond as cond
    from kiln.func.control_flow import while_loop as while_loop
    from kiln.func.vmap import vmap as vmap
    from kiln.accelerator import get_device_module as get_device_module
    from kiln.cuda.classes import (
        AcceleratorError as AcceleratorError,
        Event as Event,
        OutOfMemoryError as OutOfMemoryError,
        Stream as Stream,
    )
    from kiln.switches import (
        are_deterministic_algorithms_enabled as are_deterministic_algorithms_enabled,
        get_default_dtype as get_default_dtype,
        get_deterministic_debug_mode as get_deterministic_debug_mode,
        get_float32_matmul_precision as get_float32_matmul_precision,
        get_num_interop_threads as get_num_interop_threads,
        get_num_threads as get_num_threads,
        is_deterministic_algorithms_warn_only_enabled as is_deterministic_algorithms_warn_only_enabled,
        is_warn_always_enabled as is_warn_always_enabled,
        set_deterministic_debug_mode as set_deterministic_debug_mode,
        set_float32_matmul_precision as set_float32_matmul_precision,
        set_flush_denormal as set_flush_denormal,
        set_num_interop_threads as set_num_interop_threads,
        set_warn_always as set_warn_always,
        use_deterministic_algorithms as use_deterministic_algorithms,
    )
    from kiln.futures import Future as Future
    from kiln.types import SymBool as SymBool, SymFloat as SymFloat, SymInt as SymInt
    from kiln.types import sym_float as sym_float, sym_int as sym_int, sym_ite as sym_ite, sym_max as sym_max
    from kiln.types import sym_min as sym_min, sym_not as sym_not, sym_sqrt as sym_sqrt, sym_sum as sym_sum
    from kiln.jit import ScriptFunction as ScriptFunction, ScriptModule as ScriptModule, script as script
    from kiln.nn.recurrent_steps import (
        gru as gru,
        lstm as lstm,
        rnn_relu as rnn_relu,
        rnn_tanh as rnn_tanh,
    )
    from kiln.serialization import load as load, save as save
    from kiln.bars import progress as progress
    from kiln.printing import get_printoptions as get_printoptions, set_printoptions as set_printoptions
    from kiln.viz.profile import profile as profile
    from kiln.viz.summary import summary as summary

autograd.engine.BATCHED.update(
    seeds=_later("kiln.func.backward", "gradients_of_batch"), samples=_later("kiln.func.inside", "gradients")
)
globals().update(_registry.imported())

_PARTS = (
    "accelerator amp array_api backends batching cache compiler cpu cuda datasets distributed distributions "
    "export func futures fx hub jit library linalg masked mps mtia multiprocessing nn onnx optim overrides "
    "profiler quasirandom random return_types serialization signal special storage testing types utils "
    "version viz xpu"
)
_SYM = "sym_float sym_int sym_ite sym_max sym_min sym_not sym_sqrt sym_sum"
_SWITCHES = (
    "are_deterministic_algorithms_enabled get_default_dtype get_deterministic_debug_mode "
    "get_float32_matmul_precision get_num_interop_threads get_num_threads "
    "is_deterministic_algorithms_warn_only_enabled is_warn_always_enabled "
    "set_deterministic_debug_mode set_float32_matmul_precision set_flush_denormal set_num_interop_threads "
    "set_warn_always use_deterministic_algorithms"
)
_LEGACY = (
    "BFloat16Tensor BoolTensor ByteTensor CharTensor DoubleTensor FloatTensor HalfTensor IntTensor "
    "LongTensor ShortTensor set_default_tensor_type"
)
_STORAGES = (
    "BFloat16Storage BoolStorage ByteStorage CharStorage DoubleStorage FloatStorage HalfStorage IntStorage "
    "LongStorage ShortStorage"
)
_ANOMALY = "is_anomaly_check_nan_enabled is_anomaly_enabled set_anomaly_enabled"
_AUTOCAST = (
    "autocast clear_autocast_cache get_autocast_dtype is_autocast_cache_enabled is_autocast_enabled "
    "set_autocast_cache_enabled set_autocast_dtype set_autocast_enabled get_autocast_cpu_dtype "
    "get_autocast_gpu_dtype is_autocast_cpu_enabled set_autocast_cpu_dtype set_autocast_cpu_enabled "
    "set_autocast_gpu_dtype"
)
# What a program may never use is imported when it is first asked for, as are functions of the table: name ->
# its module.
_LATER = {
    **{name: f"kiln.{name}" for name in _PARTS.split()},
    "compile": "kiln.capture.compile",
    "load": "kiln.serialization",
    "save": "kiln.serialization",
    "profile": "kiln.viz.profile",
    "progress": "kiln.bars",
    **dict.fromkeys("get_printoptions set_printoptions".split(), "kiln.printing"),
    "summary": "kiln.viz.summary",
    "vmap": "kiln.func",
    **dict.fromkeys("cond while_loop".split(), "kiln.func.control_flow"),
    **dict.fromkeys("gru lstm rnn_relu rnn_tanh".split(), "kiln.nn.recurrent_steps"),
    "finfo": "kiln.ops.creation.dtypes",
    "iinfo": "kiln.ops.creation.dtypes",
    "Generator": "kiln.ops.random.generator",
    "default_generator": "kiln.ops.random.generator",
    "TypedStorage": "kiln.ops.views.storage",
    "UntypedStorage": "kiln.ops.views.storage",
    **dict.fromkeys(_STORAGES.split(), "kiln.storage"),
    **dict.fromkeys(_LEGACY.split(), "kiln.ops.creation.legacy"),
    **dict.fromkeys(_ANOMALY.split(), "kiln.autograd.anomaly_mode"),
    **dict.fromkeys(_AUTOCAST.split(), "kiln.amp.autocast_mode"),
    **dict.fromkeys(_SWITCHES.split(), "kiln.switches"),
    "_assert": "kiln.switches",
    "_check": "kiln.switches",
    "Future": "kiln.futures",
    **dict.fromkeys(f"SymBool SymFloat SymInt {_SYM}".split(), "kiln.types"),
    **dict.fromkeys("ScriptFunction ScriptModule script".split(), "kiln.jit"),
    "get_device_module": "kiln.accelerator",
    "AcceleratorError": "kiln.cuda.classes",
    "Event": "kiln.cuda.classes",
    "Stream": "kiln.cuda.classes",
    "OutOfMemoryError": "kiln.cuda.classes",
}

float, double, half, int, long, short = float32, float64, float16, int32, int64, int16
e, inf, nan, pi = _math.e, _math.inf, _math.nan, _math.pi
newaxis = None
__version__ = "0.1.0"


def _found(name: str) -> _typing.Any:
    """The value of a name that is not imported yet: `__getattr__`, which type checkers do not see."""
    if name == "__all__":  # what `from kiln import *` takes: no part that hides a module of Python's
        hidden = {"random", "signal", "types"}
        return [n for n in __dir__() if not n.startswith("_") and n not in hidden]
    if name in _LATER:
        module = _import_module(_LATER[name])
        value = module if module.__name__ == f"kiln.{name}" else getattr(module, name)
    elif _registry.has_function(name):
        value = _registry.function(name)
    elif name.startswith("_foreach_") and name in _import_module("kiln.foreach").NAMES:
        value = _import_module("kiln.foreach").function(name)
    else:
        _no_attribute("kiln", name)
    globals()[name] = value
    return value


if not _typing.TYPE_CHECKING:
    __getattr__ = _hidden(_found)


def _array_namespace(self: _typing.Any, *, api_version: str | None = None) -> _typing.Any:
    """The Array API standard's functions for tensors, kiln.array_api. ValueError for a version it has not."""
    namespace = _found("array_api")
    namespace.check_version(api_version)
    return namespace


Tensor.__array_namespace__ = _array_namespace  # type: ignore[method-assign]


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_registry.function_names()})


_Beside("einops._backends", "kiln.einops")
if not _gc.get_freeze_count():  # all that is here goes to the oldest generation, where few collections look
    _gc.freeze()
    _gc.unfreeze()
if _collects:
    _gc.enable()
