"""What to do without a name that PyTorch has and kiln has not. A leaf but for errors.py.

    kiln.fft          AttributeError: module 'kiln' has no attribute 'fft': kiln has no complex numbers
    x.cuda()          AttributeError: 'Tensor' object has no attribute 'cuda': kiln runs on the CPU; ...
    from kiln.optim import LBFGS
                      ImportError: cannot import name 'LBFGS' from 'kiln.optim': kiln's optimizers are ...

To `hasattr` such a name is not there. For other names Python itself suggests the nearest one.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from types import FrameType
from typing import Any, NoReturn

from kiln.errors import is_own

# the hint, and patterns of the names that get it; the first that fits
_HINTS = (
    (
        "kiln runs on the CPU; write x.to(device), with a device chosen by kiln.cuda.is_available()",
        "cuda xpu ipu mtia",
    ),
    (
        "kiln runs on the CPU; ask kiln.cuda.is_available() before",
        r"cuda\..+ (cudnn|miopen|mkldnn)_.+ is_(maia|mkldnn|mtia|vulkan|xla|ipu)(_available)? to_mkldnn "
        "Stream Event pin_memory is_pinned record_stream backends accelerator mps get_device_module",
    ),
    (
        "kiln has no complex numbers",
        "c(double|float|half) complex(32|64|128)? fft imag i?stft polar view_as_(complex|real)(_copy)? "
        "eig eigvals",
    ),
    (
        "kiln has no sparse tensors",
        "sparse(_.+)? (to|is)_sparse(_.+)? to_dense coalesce is_coalesced dense_dim resize_as_sparse_ "
        "(cc?ol|crow|row)_indices(_copy)? (indices|values)(_copy)? (s|ds|sp|hs|hsp)mm s(sp)?addmm",
    ),
    (
        "kiln has no quantized tensors",
        ".*quanti.+ q_.+ qscheme qu?int.+ int_repr fbgemm_.+ fused_moving_avg_obs_fake_quant "
        "choose_qparams_optimized qat intrinsic",
    ),
    ("kiln's integers are uint8, int8, int16, int32 and int64", r"u?int\d+ bits?\d*(x\d)?"),
    ("kiln's floats are float16, bfloat16, float32 and float64", "float[48]_.+"),
    (
        "kiln has no automatic mixed precision; convert the model and its input by .to(kiln.bfloat16)",
        "amp GradScaler .*autocast.*",
    ),
    (
        "kiln writes no programs that run elsewhere; kiln.compile makes functions and modules faster",
        "jit fx export package sym_.+ import_ir_.+ cond",
    ),
    (
        "kiln runs in one process",
        "distributed DistributedSampler multiprocessing is_distributed is_shared share_memory_? fork wait",
    ),
    ("kiln's results are the same bits in every run", ".*deterministic_(algorithms|debug).*"),
    ("float32 products are computed in float32", "(get|set)_float32_matmul_precision"),
    (
        "kiln's optimizers are SGD, Adam and AdamW",
        "ASGD Ada(delta|factor|grad|max) LBFGS Muon [NR]Adam RMSprop Rprop SparseAdam swa_utils",
    ),
    (
        "PyTorch removed it; kiln.linalg has its successor",
        "solve lstsq symeig matrix_rank",
    ),
    (
        "PyTorch has it, kiln has not",
        ""
        "(conv_tb|ctc_los)[cs] LinearCrossEntropy.+ linear_cross_entropy "
        "(grouped|scaled|scaled_grouped)_mm convolution airy_ai hooks grid_sampler.* "
        "affine_grid_generator native_.+ batch_norm_.+ norm_except_dim lobpcg from_file "
        "(frobenius|nuclear)_norm hash_tensor slice_inverse set_flush_denormal "
        "(get|set|init)_num_(interop_)?threads (set|is)_warn_always(_enabled)? "
        "has_(lapack|mkl|openmp|spectral) .+Storage thread_safe_generator "
        "transfer_parametrizations_and_params ChainDataset "
        "StackDataset WeightedRandomSampler default_convert get_worker_info .*DataPipe functionalize "
        "replace_all_batch_norm_modules_ set_module swap_tensors deterministic dlpack CheckpointPolicy "
        "SelectiveCheckpointContext create_selective_checkpoint_contexts as_subclass dim_order "
        "nested overrides library hub to_padded_tensor",
    ),
)
# names that classes say a hint for; modules do for every name
TENSOR = "cuda xpu pin_memory imag cfloat cdouble stft istft to_sparse to_dense coalesce dequantize"
MODULE = "cuda xpu share_memory"


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


def no_attribute(module: str, name: str) -> NoReturn:
    """Raises what Python does for a module's missing name, with a hint.

    AttributeError; ImportError where the program says `from module import name`, as Python would replace an
    AttributeError and its hint there.
    """
    text = hint(f"cuda.{name}" if module == "kiln.cuda" else name)
    from opcode import opmap

    asking: FrameType | None = sys._getframe(1)
    while asking is not None and is_own(asking):
        asking = asking.f_back
    if asking is not None and asking.f_code.co_code[asking.f_lasti] == opmap["IMPORT_FROM"]:
        raise ImportError(f"cannot import name '{name}' from '{module}'{text}", name=module)
    raise AttributeError(
        f"module '{module}' has no attribute '{name}'{text}", name=name, obj=sys.modules[module]
    )


def hint_missing(module: str) -> None:
    """Gives a module that has all its names a `__getattr__` with hints, which type checkers do not see."""

    def missing(name: str) -> NoReturn:
        no_attribute(module, name)

    vars(sys.modules[module])["__getattr__"] = missing


class Absent:
    """In the place of a method that PyTorch's class has: no object has it, and who asks is told what to do.

    Like a property, it is what the class itself shows.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        said = f"'{owner.__name__}' object has no attribute '{self.name}'{hint(self.name)}"
        raise AttributeError(said, name=self.name, obj=instance)


def leave_out(home: type, names: str) -> None:
    """Gives a class hints for methods that it has not; `dir` of an object does not show them."""
    for name in names.split():
        setattr(home, name, Absent(name))
    home.__dir__ = _present  # type: ignore[assignment]


def _present(self: object) -> list[str]:
    own = vars(self) if hasattr(self, "__dict__") else {}
    homes = type(self).__mro__

    def found(name: str) -> object:
        return next((vars(home)[name] for home in homes if name in vars(home)), None)

    return [n for n in object.__dir__(self) if n in own or not isinstance(found(n), Absent)]
