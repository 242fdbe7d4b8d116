"""kiln.func: functions made of functions, under torch.func's names. See README.md."""

from kiln.absent import hint_missing as _hint_missing
from kiln.func.jacobians import hessian, jacfwd, jacrev
from kiln.func.modules import functional_call, stack_module_state
from kiln.func.transforms import grad, grad_and_value, jvp, linearize, vjp
from kiln.func.vmap import vmap
from kiln.table.callables import hide_frames

__all__ = [
    "functional_call",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "stack_module_state",
    "vjp",
    "vmap",
]

_hint_missing(__name__)
hide_frames(globals(), __all__)
