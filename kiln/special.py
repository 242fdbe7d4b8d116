"""Special functions, under the names of torch.special.

What is here alone the table has as "special.name"; the rest are functions of kiln's namespace, some of them
under another name.
"""

from typing import TYPE_CHECKING

from kiln.table import registry

_SAME = (
    "digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "i0", "log1p", "log_softmax", "logit", "logsumexp",
    "polygamma", "round", "sinc", "softmax", "xlogy",
)  # fmt: skip
_RENAMED = {
    "expit": "sigmoid", "gammainc": "igamma", "gammaincc": "igammac", "gammaln": "lgamma",
    "multigammaln": "mvlgamma", "psi": "digamma",
}  # fmt: skip

if TYPE_CHECKING:
    from kiln._typed.special import *  # noqa: F403
else:
    __getattr__, __dir__ = registry.namespace(__name__, {**{name: name for name in _SAME}, **_RENAMED})
