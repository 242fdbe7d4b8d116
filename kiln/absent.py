"""What to do without a name that PyTorch has and kiln has not. A leaf but for errors.py and the core.

    kiln.fft          AttributeError: module 'kiln' has no attribute 'fft': kiln has no complex numbers
    x.to_sparse()     AttributeError: 'Tensor' object has no attribute 'to_sparse': kiln has no sparse tensors
    from kiln.optim import SparseAdam
                      ImportError: cannot import name 'SparseAdam' from 'kiln.optim': kiln has no sparse ...

To `hasattr` such a name is not there. For other names Python itself suggests the nearest one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from types import FrameType
from typing import Any, NoReturn

from kiln._core import Function
from kiln.errors import is_own
from kiln.late import SHOWN

# the hint, and patterns of the names that get it; the first that fits
_HINTS = (
    (
        "kiln runs on the CPU; ask kiln.cuda.is_available() before",
        r"(cuda|xpu|mtia|mps|accelerator|backends|nn\.parallel)\..+ "
        "(cudnn|miopen|mkldnn)_.+ to_mkldnn "
        "is_(maia|mkldnn|mtia|vulkan|xla|ipu)_available record_stream",
    ),
    (
        "kiln has no complex numbers",
        r"c(double|float|half) complex(32|64|128)? fft(\..+)? imag i?stft polar "
        "view_as_(complex|real)(_copy)? eig eigvals",
    ),
    (
        "kiln has no sparse tensors",
        "sparse(_.+)? (to|is)_sparse(_.+)? coalesce is_coalesced dense_dim resize_as_sparse_ "
        "(cc?ol|crow|row)_indices(_copy)? (indices|values)(_copy)? (s|ds|sp|hs|hsp)mm s(sp)?addmm SparseAdam",
    ),
    (
        "kiln has no quantized tensors",
        ".*quanti.+ q_.+ qscheme qu?int.+ int_repr fbgemm_.+ fused_moving_avg_obs_fake_quant "
        "choose_qparams_optimized qat intrinsic",
    ),
    ("kiln's integers are uint8, int8, int16, int32 and int64", r"u?int\d+ bits?\d*(x\d)?"),
    ("kiln's floats are float16, bfloat16, float32 and float64", "float[48]_.+"),
    (
        'kiln.autocast("cpu") and kiln.amp have automatic mixed precision',
        "autocast_.+ .*autocast_(ipu|xla)_.+",
    ),
    (
        "kiln writes no programs that run elsewhere; kiln.compile makes functions and modules faster",
        r"(jit|onnx)\..+ package sym_.+ import_ir_.+",
    ),
    ("PyTorch has it, kiln has not", r"(fx|export)\..+"),
    (
        "kiln has collectives and DistributedDataParallel, not this",
        r"(distributed|numa)\..+ numa is_distributed fork wait",
    ),
    (
        "kiln has no DataPipes: the same DataLoader takes a Dataset or an IterableDataset",
        r".*DataPipe.* .*datapipes?(_.+)?(\..+)? "
        r"utils\.data\.(graph|graph_settings|backward_compatibility)(\..+)? "
        "DataChunk .+_validation(_disabled)? non_deterministic",
    ),
    (
        "kiln.compile has a compiler of its own, with what its arguments choose",
        r"(_inductor|_dynamo|_functorch|_export|_lazy|_higher_order_ops|_subclasses|compiler)(\..+)?",
    ),
    (
        "kiln's functions are not made of PyTorch's primitive ones, and have no decompositions into them",
        r"(_prims|_prims_common|_refs|_decomp|_meta_registrations|_ops)(\..+)?",
    ),
    (
        "kiln loads no extensions in C++; kiln.library and kiln.autograd.Function take functions in Python",
        r"(classes|contrib|cpp|nn\.cpp|nn\.backends|utils\.(cpp_extension|hipify|file_baton))(\..+)? "
        "ScriptClass.* compiled_with_cxx11_abi _C",
    ),
    (
        "kiln.profiler says what ran, how long and in how much memory",
        r"monitor(\..+)? profiler_(util|legacy)(\..+)?",
    ),
    (
        "kiln.nn.functional.scaled_dot_product_attention takes a mask (attn_mask) or is_causal",
        r"nn\.attention\..+",
    ),
    (
        "kiln.save and kiln.load do what their arguments say",
        r"skip_data (set|get)_(crc32_options|default_mmap_options) register_package "
        r"utils\.serialization(\..+)? .*SerializationStorageContext",
    ),
    (
        "it is for phones; kiln runs where Python does",
        r"utils\.(mobile_optimizer|bundled_inputs|model_dump|show_pickle)(\..+)? jit\.mobile(\..+)?",
    ),
    (
        "kiln has no masked tensors; kiln.masked reduces by masks",
        r"masked\.maskedtensor(\..+)? .*(M|m)asked_?(T|t)ensor",
    ),
    (
        "PyTorch removed it; kiln.linalg has its successor",
        "solve lstsq symeig matrix_rank",
    ),
    (
        "PyTorch removed it; resize_ and resize_as_ write into the tensor",
        "resize resize_as",
    ),
    ("the policy gradient's loss is -(log_prob * reward); kiln.distributions has log_prob", "reinforce"),
    ("x.storage().pickle_storage_type() names it: kiln.FloatStorage and its like", "storage_type"),
    ("kiln's tensors have no names; keep a dict of them", "name"),
    (
        "PyTorch has it, kiln has not",
        r"const_data_ptr grad_dtype index module_load volatile (conv_tb|ctc_los)[cs] __future__(\..+)? "
        "(grouped|scaled|scaled_grouped)_mm convolution airy_ai grid_sampler.* "
        "affine_grid_generator native_.+ batch_norm_.+ norm_except_dim "
        "(frobenius|nuclear)_norm hash_tensor slice_inverse init_num_threads "
        "has_(lapack|mkl|openmp|spectral) .+Storage thread_safe_generator "
        "transfer_parametrizations_and_params .*DataPipe functionalize "
        "replace_all_batch_norm_modules_ set_module swap_tensors dim_order "
        "nested to_padded_tensor "
        "backcompat backend_registration BackwardHook cmake_prefix_path config cpp_backtrace "
        "DeviceType emit_itt enable_reentrant_dispatch EnforceUnique ExecutionTraceObserver "
        "fallthrough_kernel generate_methods_for_privateuse1_backend get_capabilities get_cpp_backtrace "
        "get_ctx get_default_backend get_kernel get_overridable_functions get_testing_overrides "
        "infer_schema keep_portable_guards_unsafe keep_tensor_guards_unsafe KinetoStepTracker "
        "load_cache_artifacts load_compiled_function load_nvprof MemRecordsAcc nested_compile_region "
        "redispatch_function register_autocast register_torch_dispatch register_vmap "
        "rename_privateuse1_backend save_cache_artifacts set_default_backend set_enable_guard_collectives "
        "skip_all_guards_unsafe skip_guard_on_all_nn_modules_unsafe skip_guard_on_globals_unsafe "
        "skip_guard_on_inbuilt_nn_modules_unsafe substitute_in_graph throughput_benchmark "
        "ThroughputBenchmark triton_op unserializable_hook warn_if_has_hooks weak wrap_numpy wrap_triton",
    ),
)
# names that classes say a hint for; modules do for every name
TENSOR = (
    "imag cfloat cdouble chalf stft istft to_sparse to_sparse_coo to_sparse_csr to_sparse_csc to_sparse_bsr "
    "to_sparse_bsc coalesce is_coalesced indices values crow_indices col_indices ccol_indices row_indices "
    "sparse_dim dense_dim sparse_mask sparse_resize_ sparse_resize_and_clear_ resize_as_sparse_ smm sspaddmm "
    "to_mkldnn dequantize int_repr q_scale q_zero_point q_per_channel_scales q_per_channel_zero_points "
    "q_per_channel_axis qscheme to_padded_tensor dim_order resize resize_as solve lstsq symeig eig "
    "storage_type const_data_ptr hash_tensor slice_inverse module_load grad_dtype index name reinforce "
    "volatile record_stream is_distributed"
)


@lru_cache(maxsize=1024)
def hint(name: str) -> str:
    """What to say of a missing name after "...": ": " and a sentence; nothing if it is none of PyTorch's.

    >>> hint("view_as_real")
    ': kiln has no complex numbers'
    """
    import re

    for text, patterns in _HINTS:
        if re.fullmatch("|".join(patterns.split()), name):
            return f": {text}"
    return ""


@lru_cache(maxsize=1024)
def advice(path: str) -> str:
    """What to say of a missing name by its path below the root, `nn.modules.conv.F`, like `hint`.

    Where it is, if kiln or Python has it elsewhere; of a name that begins with _, that it is inside PyTorch.

    >>> advice("optim.sgd.Optimizer"), advice("nn.init.math")
    (': it is kiln.optim.Optimizer', ": it is Python's own; import math")
    """
    top, _, name = path.partition(".")[0], *path.rpartition(".")[1:]
    text = hint(name) or hint(path) or hint(f"{top}.{name}")
    if text or name.startswith("__"):
        return text
    place = _elsewhere(path)
    if place:
        return f": it is {place}"
    if any(part.startswith("_") for part in path.split(".")):
        return ": names that begin with _ are PyTorch's inside, and kiln is another inside; use public ones"
    from kiln.absent_names import NAMES

    return ": PyTorch has it, kiln has not" if name in NAMES.split() else ""


def _elsewhere(path: str) -> str:
    """Where a missing name is to be had: in a package around it or beside it, from Python; "" if nowhere."""
    above, _, name = path.rpartition(".")
    if above and name in _SHORT:
        return _SHORT[name]
    while above and not name.startswith("_"):
        above = above.rpartition(".")[0]
        package = f"kiln.{above}".rstrip(".")
        if name in dir(sys.modules.get(package)) and _is_kilns(vars(sys.modules[package]).get(name)):
            return f"{package}.{name}"
        for place, module in list(sys.modules.items()):
            beside = place.rpartition(".")[0] == package and not place.rpartition(".")[2].startswith("_")
            found = vars(module).get(name) if beside and module is not None else None
            if _home(found) == place:
                return f"{place}.{name}"
    if name in sys.stdlib_module_names:
        return f"Python's own; import {name}"
    for space in _PYTHONS:
        if name in getattr(sys.modules.get(space), "__all__", ()):
            return f"Python's own, {space}.{name}"
    return ""


def _is_kilns(found: Any) -> bool:
    """Whether it is a function or class of kiln's: not one that its module has imported, nor a module. None
    is what is imported later.
    """
    return found is None or _home(found).startswith("kiln")


def _home(found: Any) -> str:
    """The module that a function or class is defined in, whatever name it stands under."""
    if isinstance(found, type) and found in SHOWN:
        return SHOWN[found][0]
    return str(getattr(found, "__module__", ""))


_PYTHONS = (
    "typing collections collections.abc functools contextlib dataclasses weakref enum numbers itertools"
).split()
_SHORT = {"torch": "kiln itself", "F": "kiln.nn.functional", "np": "NumPy; import numpy as np"}


def no_attribute(module: str, name: str, path: str | None = None) -> NoReturn:
    """Raises what Python does for a module's missing name, with a hint; `path` is PyTorch's of the module.

    AttributeError; ImportError where the program says `from module import name`, as Python would replace an
    AttributeError and its hint there.
    """
    below = module.partition(".")[2] if path is None else path
    text = advice(f"{below}.{name}" if below else name)
    from opcode import opmap

    frame = asking()
    note(f"{module}.{name}", text, frame)
    if frame is not None and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"]:
        raise ImportError(f"cannot import name '{name}' from '{module}'{text}", name=module)
    raise AttributeError(
        f"module '{module}' has no attribute '{name}'{text}", name=name, obj=sys.modules[module]
    )


def refuse(name: str) -> NoReturn:
    """NotImplementedError for what has PyTorch's name and cannot be done, with its namespace's hint.

    >>> refuse("jit.trace")
    Traceback (most recent call last):
        ...
    NotImplementedError: jit.trace: kiln writes no programs that run elsewhere; kiln.compile makes ...
    """
    raise NotImplementedError(f"{name}{hint(name)}")


class Refused:
    """In the place of a function or class of PyTorch's that can only be named: a call of it is refused.

    It is what `--missing` lists, as a name that is not there.

    >>> Refused("distributed.rpc.init_rpc")("worker")
    Traceback (most recent call last):
        ...
    NotImplementedError: distributed.rpc.init_rpc: kiln has collectives and DistributedDataParallel, not this
    """

    def __init__(self, name: str) -> None:
        self.name = self.__qualname__ = name
        self.__name__ = name.rpartition(".")[2]
        self.__doc__ = f"NotImplementedError{hint(name)}."

    @Function  # which shows no lines of kiln's
    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(self.name)

    def __getitem__(self, item: Any) -> Any:  # of an annotation: `RRef[int]`
        return self

    def __or__(self, other: Any) -> Any:  # of an annotation: `RRef | None`
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<kiln.{self.name}, refused>"


def asking() -> FrameType | None:
    """The frame of the program that asks: the innermost that is not kiln's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own(frame):
        frame = frame.f_back
    return frame


# who wants to know what was asked for and is not there: told the name, its hint, and who asks
listeners: list[Callable[[str, str, FrameType], None]] = []


def note(name: str, text: str, frame: FrameType | None) -> None:
    """Tells the listeners of a name that is not there."""
    if frame is not None:
        for listener in listeners:
            listener(name, text, frame)


def hint_missing(module: str, path: str | None = None) -> None:
    """Gives a module that has all its names a `__getattr__` with hints, which type checkers do not see."""

    def missing(name: str) -> NoReturn:
        no_attribute(module, name, path)

    vars(sys.modules[module])["__getattr__"] = hidden(missing)


def hidden(getter: Callable[[str], Any]) -> Any:
    """A module's `__getattr__` whose errors show no lines of kiln's."""
    getter.__name__ = "__getattr__"  # as what captures calls of functions knows it
    return Function(getter, True)


class Absent:
    """In the place of a method that PyTorch's class has: neither the class nor its objects have it, and who
    asks is told what to do.
    """

    __slots__ = ("name", "text")

    def __init__(self, name: str, text: str | None = None) -> None:
        self.name, self.text = name, text

    def __get__(self, instance: Any, owner: type) -> Any:
        text = hint(self.name) if self.text is None else f": {self.text}"
        who = f"type object '{owner.__name__}'" if instance is None else f"'{owner.__name__}' object"
        if listeners:
            note(f"{owner.__name__}.{self.name}", text, asking())
        raise AttributeError(
            f"{who} has no attribute '{self.name}'{text}",
            name=self.name,
            obj=owner if instance is None else instance,
        )


def leave_out(home: type, names: str, text: str | None = None) -> None:
    """Gives a class hints for methods that it has not; `dir` of an object does not show them.

    `text` is what is said of them; without it, what every missing name of theirs is told.
    """
    for name in names.split():
        setattr(home, name, Absent(name, text))
    home.__dir__ = _present  # type: ignore[assignment]


def _present(self: object) -> list[str]:
    own = vars(self) if hasattr(self, "__dict__") else {}
    homes = type(self).__mro__

    def found(name: str) -> object:
        return next((vars(home)[name] for home in homes if name in vars(home)), None)

    return [n for n in object.__dir__(self) if n in own or not isinstance(found(n), Absent)]
