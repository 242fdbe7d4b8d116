"""Special functions, under the names of torch.special.

What is here alone comes from kiln.ops.special; the rest are functions of kiln's namespace, some of them under
another name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kiln import ops
from kiln.ops.declare import SPECIAL

_SAME = (
    "digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "i0", "log1p", "log_softmax", "logit", "logsumexp",
    "polygamma", "round", "sinc", "softmax", "xlogy",
)  # fmt: skip
_RENAMED = {
    "expit": "sigmoid", "gammainc": "igamma", "gammaincc": "igammac", "gammaln": "lgamma",
    "multigammaln": "mvlgamma", "psi": "digamma",
}  # fmt: skip

if TYPE_CHECKING:
    __getattr__: Callable[[str], Any]
globals().update(SPECIAL, **{name: ops.FUNCTIONS[_RENAMED.get(name, name)] for name in (*_SAME, *_RENAMED)})
