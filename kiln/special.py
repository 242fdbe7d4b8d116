"""Special functions, under the names of torch.special.

What is here alone the table has as "special.name"; the rest are functions of kiln's namespace, some of them
under another name.
"""

from __future__ import annotations

from typing import Any

from kiln.ops import registry

_SAME = (
    "digamma", "erf", "erfc", "erfinv", "exp2", "expm1", "i0", "log1p", "log_softmax", "logit", "logsumexp",
    "polygamma", "round", "sinc", "softmax", "xlogy",
)  # fmt: skip
_RENAMED = {
    "expit": "sigmoid", "gammainc": "igamma", "gammaincc": "igammac", "gammaln": "lgamma",
    "multigammaln": "mvlgamma", "psi": "digamma",
}  # fmt: skip

_own, _names = registry.namespace("special")


def __getattr__(name: str) -> Any:
    return registry.function(_RENAMED.get(name, name)) if name in (*_SAME, *_RENAMED) else _own(name)


def __dir__() -> list[str]:
    return sorted({*_names(), *_SAME, *_RENAMED})
