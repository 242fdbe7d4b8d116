"""First and second derivatives exactly where a function has a kink, a tie, a pole or a limit: as PyTorch's.

Where PyTorch's second derivative is NaN, kiln's may be a number; where PyTorch has none, nothing is compared.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from backend import eager, kiln, recorded, torch

from kiln.testing.compare import to_array

INF, NAN = math.inf, math.nan
TIES = [[1.0, 3.0, 3.0, 0.0], [2.0, 2.0, 2.0, 2.0], [0.0, -1.0, 0.0, -1.0]]
ZEROS = [[0.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, -2.0, 0.0]]
REDUCTIONS = ("mean", "sum", "none")
Program = Callable[..., Any]
CASES: dict[str, tuple[Program, tuple[Any, ...]]] = {}

# case -> how kiln differs, and why
KNOWN = {
    "topk": "of equals the earlier",
    "prelu": "at 0 the second derivative is of the weight, as the first; PyTorch's is of the other branch",
    "softplus at its threshold": "the second derivative is of the curve, as the first is",
    "hardsigmoid": "PyTorch's sixth is float32's",
    "kl_div": "PyTorch's gradient by a target of 0 is NaN",
    "poisson": "PyTorch's gradient by a target of 0 is NaN",
    "var of one": "NaN throughout; PyTorch has no second derivative",
    "nanmean": "PyTorch's gradient of a mean of nothing is NaN",
    "scatter_reduce amax without self": "in PyTorch the target shares the gradient among equals",
    "scatter_reduce amin without self": "in PyTorch the target shares the gradient among equals",
}


def case(name: str, program: Program, *inputs: Any) -> None:
    assert name not in CASES, name
    CASES[name] = program, inputs


def index(k: Any, *places: int) -> Any:
    return k.tensor(list(places))


def functional(k: Any, name: str) -> Any:
    return getattr(k.nn.functional, name)


# -- ties ---------------------------------------------------------------------------------------------------

for name in ("max", "min", "median", "nanmedian", "mode"):
    case(f"{name} of rows", lambda k, x, name=name: getattr(x, name)(1)[0], TIES)
for name in ("max", "min", "median", "nanmedian", "amax", "amin"):
    case(f"{name} of all", lambda k, x, name=name: getattr(x, name)(), TIES)
for name in ("amax", "amin"):
    case(f"{name} of rows", lambda k, x, name=name: getattr(x, name)(1), TIES)
case("aminmax", lambda k, x: sum(x.aminmax(dim=1)), TIES)
for name in ("maximum", "minimum", "fmax", "fmin"):
    case(
        name,
        lambda k, x, y, name=name: getattr(k, name)(x, y),
        [1.0, 2.0, 3.0, NAN, NAN, 1.0, 0.0],
        [2.0, 2.0, 2.0, NAN, 1.0, NAN, -0.0],
    )
case("max of NaN", lambda k, x: x.max(1)[0], [[1.0, NAN, NAN]])
case("amax of NaN", lambda k, x: x.amax(1), [[1.0, NAN, NAN], [INF, INF, 1.0]])
case("topk", lambda k, x: x.topk(2, 1)[0], TIES)
case("sort", lambda k, x: x.sort(dim=1, stable=True)[0], TIES)
case("sort, descending", lambda k, x: x.sort(dim=1, descending=True, stable=True)[0], TIES)
case("msort", lambda k, x: x.msort(), TIES)
case("cummax", lambda k, x: x.cummax(1)[0], TIES)
case("cummin", lambda k, x: x.cummin(1)[0], TIES)
case("norm inf of ties", lambda k, x: x.norm(INF, 1), TIES)
for way in ("lower", "higher", "nearest", "midpoint", "linear"):
    case(f"quantile {way}", lambda k, x, way=way: x.quantile(0.4, 1, interpolation=way), TIES)
case("quantile by q", lambda k, x, q: x.quantile(q), [1.0, 3.0, 4.0, 9.0], [0.3, 0.5, 1.0])
case("nanquantile", lambda k, x: x.nanquantile(0.3, 1), [[1.0, NAN, 2.0], [3.0, 4.0, 5.0]])

# -- knees --------------------------------------------------------------------------------------------------

case("clamp", lambda k, x: x.clamp(-1.0, 1.0), [-2.0, -1.0, 0.0, 1.0, 2.0, NAN])
case("clamp, crossed", lambda k, x: x.clamp(2.0, 1.0), [0.0, 1.0, 1.5, 2.0, 3.0])
case("clamp min", lambda k, x: x.clamp(min=0.0), [-1.0, 0.0, 1.0])
case("clamp max", lambda k, x: x.clamp(max=0.0), [-1.0, 0.0, 1.0])
case(
    "clamp by tensors",
    lambda k, x, low, high: x.clamp(low, high),
    [-2.0, -1.0, 0.0, 1.0, 2.0, 0.0, 0.0],
    [-1.0] * 7,
    [1.0, 1.0, 1.0, 1.0, 1.0, -1.0, -2.0],
)
for bound in ("min", "max"):
    case(
        f"clamp {bound} tensor",
        lambda k, x, low, bound=bound: x.clamp(**{bound: low}),
        [-2.0, -1.0, 0.0, NAN],
        [-1.0, -1.0, NAN, 0.0],
    )
for name in (
    "relu6 hardtanh hardsigmoid hardshrink softshrink hardswish leaky_relu elu celu selu silu mish softplus "
    "logsigmoid tanhshrink softsign gelu relu"
).split():
    knees = [-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 100.0, -100.0, 1000.0, -1000.0]
    case(name, lambda k, x, name=name: functional(k, name)(x), knees)
    case(f"{name} at infinity", lambda k, x, name=name: functional(k, name)(x), [INF, -INF])
case("softplus at its threshold", lambda k, x: functional(k, "softplus")(x, 2.0, 1.0), [0.25, 0.5, 0.75])
case("celu 2", lambda k, x: functional(k, "celu")(x, 2.0), [-1.0, -0.0, 0.0, 1.0])
case("celu -2", lambda k, x: functional(k, "celu")(x, -2.0), [-1.0, 0.0, 1.0])
case("elu_ -1", lambda k, x: functional(k, "elu_")(x * 1, -1.0), [-1.0, 0.0, 1.0])
case("elu 2", lambda k, x: k.nn.functional.elu(x, 2.0), [-1.0, 0.0, 1.0])
case("threshold", lambda k, x: k.nn.functional.threshold(x, 1.0, 5.0), [0.0, 1.0, 2.0, NAN])
case("prelu", lambda k, x, w: k.nn.functional.prelu(x, w), [-1.0, 0.0, 1.0], [0.3])
case("leaky_relu down", lambda k, x: k.nn.functional.leaky_relu(x, -0.5), [-1.0, 0.0, 1.0])
case("glu", lambda k, x: k.nn.functional.glu(x), [1.0, 0.0, -1.0, 1000.0])

# -- functions of one number --------------------------------------------------------------------------------

for name in (
    "abs sign sgn sqrt rsqrt log log1p log2 log10 reciprocal exp sinc asin acos atanh acosh tan frac floor "
    "ceil round trunc erfinv logit expm1 square tanh sigmoid deg2rad nan_to_num cosh sinh erf erfc"
).split():
    case(name, lambda k, x, name=name: getattr(x, name)(), [-1.0, -0.0, 0.0, 1.0, 0.5, INF, -INF, NAN])
for name in ("digamma", "lgamma", "i0"):
    case(name, lambda k, x, name=name: getattr(x, name)(), [1.0, 0.5, 2.0])
case("logit within", lambda k, x: k.logit(x, 0.1), [0.0, 0.1, 0.5, 0.9, 1.0])
case("entr", lambda k, x: k.special.entr(x), [-1.0, 0.0, 1.0])
for exponent in (-1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 2):
    case(f"pow {exponent!r}", lambda k, x, n=exponent: x**n, [-1.0, 0.0, 1.0, 2.0])
case("2 to a power", lambda k, x: 2.0**x, [-1.0, 0.0, 1.0])
case("0 to a power", lambda k, x: 0.0**x, [0.0, 1.0, 2.0])

# -- of several ---------------------------------------------------------------------------------------------

BASES, POWERS = [0.0, 0.0, 0.0, 0.0, -1.0, 2.0, -2.0, 0.0], [0.0, 1.0, 2.0, -1.0, 2.0, 0.0, 0.0, 0.5]
case("pow", lambda k, x, y: x**y, BASES, POWERS)
case("float_power", lambda k, x, y: k.float_power(x, y), BASES, POWERS)
case("xlogy", lambda k, x, y: k.xlogy(x, y), [0.0, 0.0, 0.0, 1.0, 1.0], [0.0, 1.0, NAN, 0.0, 2.0])
case("xlog1py", lambda k, x, y: k.special.xlog1py(x, y), [0.0, 0.0, 1.0], [-1.0, 1.0, -1.0])
case("atan2", lambda k, x, y: k.atan2(x, y), [0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, -1.0])
case("hypot", lambda k, x, y: k.hypot(x, y), [0.0, 3.0, 0.0], [0.0, 4.0, 2.0])
case("copysign", lambda k, x, y: k.copysign(x, y), [1.0, 0.0, -0.0, -2.0, 3.0], [-1.0, -1.0, 1.0, 0.0, -0.0])
case("fmod", lambda k, x, y: k.fmod(x, y), [5.0, 6.0, -7.0], [3.0, 3.0, 2.0])
case("remainder", lambda k, x, y: k.remainder(x, y), [5.0, 6.0, -7.0], [3.0, 3.0, 2.0])
case("division", lambda k, x, y: x / y, [1.0, 0.0, 0.0], [0.0, 0.0, 1.0])
case("addcdiv", lambda k, x, y, z: k.addcdiv(x, y, z), [1.0, 1.0], [0.0, 1.0], [1.0, 0.0])
case("lerp", lambda k, x, y, w: k.lerp(x, y, w), [1.0, 2.0, 3.0], [2.0, 2.0, 2.0], [0.0, 0.5, 1.0])
case("nextafter", lambda k, x, y: k.nextafter(x, y), [1.0, 2.0, 3.0, NAN], [2.0, 2.0, 1.0, 0.0])
for name in ("logaddexp", "logaddexp2"):
    limits = [-INF, -INF, INF, 0.0, 1.0], [-INF, 0.0, 0.0, 0.0, INF]
    case(name, lambda k, x, y, name=name: getattr(k, name)(x, y), *limits)
case("where, a NaN beside", lambda k, x: k.where(x > 0, x.sqrt(), 0.0 * x), [-1.0, 0.0, 4.0])
case("where, both", lambda k, x: k.where(x > 0, x, x.log()), [1.0, 2.0, 0.5])

# -- norms and distances ------------------------------------------------------------------------------------

for p in (0, 0.5, 1, 1.5, 2, 3, INF, -INF, -1, -2):
    case(f"norm {p}", lambda k, x, p=p: x.norm(p, 1), ZEROS)
    case(f"vector_norm {p}", lambda k, x, p=p: k.linalg.vector_norm(x, p, 1), ZEROS)
for p in (0.5, 1, 1.5, 2, 3, INF):
    case(f"normalize {p}", lambda k, x, p=p: k.nn.functional.normalize(x, p), ZEROS)
    if p < INF:
        case(f"renorm {p}", lambda k, x, p=p: x.renorm(p, 0, 1.0), ZEROS)
    case(f"dist {p}, equal", lambda k, x, y, p=p: k.dist(x, y, p), [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    case(f"dist {p}", lambda k, x, y, p=p: k.dist(x, y, p), [1.0, 2.0, 3.0], [1.0, 2.0, 5.0])
    pair = [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [1.0, 5.0]]
    case(f"cdist {p}", lambda k, x, y, p=p: k.cdist(x, y, p), *pair)
    case(f"pairwise {p}", lambda k, x, y, p=p: k.nn.functional.pairwise_distance(x, y, p, eps=0.0), *pair)
    case(f"pdist {p}", lambda k, x, p=p: k.nn.functional.pdist(x, p), [[1.0, 2.0], [1.0, 2.0], [1.0, 5.0]])
case("norm of nothing but 0", lambda k, x: x.norm(), [0.0, 0.0])
case("matrix_norm", lambda k, x: k.linalg.matrix_norm(x), [[0.0, 0.0], [0.0, 0.0]])
for order in (1, -1, INF, -INF):
    case(f"matrix_norm {order}", lambda k, x, p=order: k.linalg.matrix_norm(x, p), [[1.0, -1.0], [1.0, 1.0]])
    case(f"matrix_norm {order} at 0", lambda k, x, p=order: k.linalg.matrix_norm(x, p), [[0.0, 0.0]] * 2)
cosine = lambda k, x, y: k.nn.functional.cosine_similarity(x, y)  # noqa: E731
case("cosine of zeros", cosine, [[0.0, 0.0], [1.0, 2.0]], [[0.0, 0.0], [1.0, 2.0]])
case(
    "cosine within eps",
    lambda k, x, y: k.nn.functional.cosine_similarity(x, y, eps=0.5),
    [[0.1, -0.2], [1.0, 2.0], [0.2, 0.1]],
    [[2.0, 1.0], [0.3, 0.1], [-0.1, 0.3]],
)
case("cosine with zeros", cosine, [[0.0, 0.0], [1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]])

# -- reductions and scans -----------------------------------------------------------------------------------

case("prod of rows", lambda k, x: x.prod(1), [[2.0, 0.0, 3.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0], [0.0] * 3])
case("prod of all", lambda k, x: x.prod(), [2.0, 0.0, 3.0])
case("prod, two zeros", lambda k, x: x.prod(), [0.0, 0.0, 3.0])
ROWS = [[2.0, 0.0, 3.0, 4.0], [0.0, 0.0, 3.0, 2.0], [1.0, 2.0, 3.0, 0.0], [0.0, 2.0, 0.0, 3.0]]
case("cumprod", lambda k, x: x.cumprod(1), ROWS)
for name in ("std", "var"):
    case(f"{name} of one", lambda k, x, name=name: getattr(x, name)(), [3.0])
    case(f"{name} of equals", lambda k, x, name=name: getattr(x, name)(), [3.0, 3.0])
    case(f"{name} of one, biased", lambda k, x, name=name: getattr(x, name)(correction=0), [3.0])
ENDS = [[-INF, -INF], [-INF, 0.0], [INF, 1.0], [INF, INF], [NAN, 1.0]]
case("logsumexp", lambda k, x: x.logsumexp(1), ENDS)
case("logcumsumexp", lambda k, x: x.logcumsumexp(1), [[-INF, -INF], [-INF, 0.0], [0.0, -INF], [1.0, 2.0]])
case("softmax", lambda k, x: x.softmax(1), [[-INF, 0.0], [-INF, -INF]])
case("log_softmax", lambda k, x: x.log_softmax(1), [[-INF, 0.0], [1.0, 2.0]])
for name in ("nansum", "nanmean"):
    case(name, lambda k, x, name=name: getattr(x, name)(1), [[1.0, NAN, 2.0], [NAN, NAN, NAN]])
case("layer_norm", lambda k, x: k.nn.functional.layer_norm(x, (3,)), [[1.0, 1.0, 1.0], [1.0, 2.0, 3.0]])
case("rms_norm", lambda k, x: k.nn.functional.rms_norm(x, (3,)), ZEROS)
case("corrcoef", lambda k, x: x.corrcoef(), [[1.0, 2.0, 4.0], [2.0, 5.0, 2.0]])

# -- losses -------------------------------------------------------------------------------------------------

for r in REDUCTIONS:
    for name in ("smooth_l1_loss", "huber_loss", "l1_loss", "mse_loss"):
        case(
            f"{name} {r}",
            lambda k, x, y, name=name, r=r: functional(k, name)(x, y, reduction=r),
            [0.0, 1.0, -1.0, 2.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 1.0],
        )
    for name, target in (("some", [0, -100, 1]), ("all", [-100, -100, -100])):
        case(
            f"cross_entropy {r}, {name} ignored",
            lambda k, x, t=target, r=r: k.nn.functional.cross_entropy(x, k.tensor(t), reduction=r),
            ZEROS,
        )
    case(
        f"nll_loss {r}",
        lambda k, x, r=r: k.nn.functional.nll_loss(x.log_softmax(1), k.tensor([0, 2, 1]), reduction=r),
        [[-INF, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]],
    )
    case(
        f"bce with logits {r}",
        lambda k, x, y, r=r: k.nn.functional.binary_cross_entropy_with_logits(x, y, reduction=r),
        [0.0, 1.0, 1000.0, -1000.0, 0.0],
        [0.0, 1.0, 0.0, 1.0, 0.0],
    )
    case(
        f"margins {r}",
        lambda k, x, r=r: k.nn.functional.multi_margin_loss(x, k.tensor([0, 1]), reduction=r),
        [[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]],
    )
case(
    "smooth_l1 sharp", lambda k, x, y: k.nn.functional.smooth_l1_loss(x, y, beta=0.0), [0.0, 1.0], [0.0, 0.0]
)
case(
    "huber wide",
    lambda k, x, y: k.nn.functional.huber_loss(x, y, delta=2.0),
    [0.0, 2.0, -2.0, 3.0],
    [0.0] * 4,
)
KL = [-1.0, -2.0, 0.0]
case("kl_div", lambda k, x, y: k.nn.functional.kl_div(x, y, reduction="sum"), KL, [0.0, 0.5, 1.0])
case(
    "kl_div by input", lambda k, x: k.nn.functional.kl_div(x, k.tensor([0.0, 0.5, 1.0]), reduction="sum"), KL
)
case(
    "kl_div of logarithms",
    lambda k, x, y: k.nn.functional.kl_div(x, y, log_target=True),
    KL,
    [-INF, -0.5, 0.0],
)
case("poisson", lambda k, x, y: k.nn.functional.poisson_nll_loss(x, y, full=True), [0.0, 1.0], [0.0, 3.0])
case(
    "hinge",
    lambda k, x: k.nn.functional.hinge_embedding_loss(x, k.tensor([1.0, -1.0, -1.0])),
    [1.0, 0.0, 1.0],
)
case(
    "ranking",
    lambda k, x, y: k.nn.functional.margin_ranking_loss(x, y, k.tensor([1.0, 1.0, -1.0])),
    [1.0, 2.0, 3.0],
    [1.0, 1.0, 3.0],
)
case("triplet", lambda k, *x: k.nn.functional.triplet_margin_loss(*x, swap=True), *[[[1.0, 2.0]]] * 3)
case("soft margin", lambda k, x: k.nn.functional.soft_margin_loss(x, k.tensor([1.0, -1.0])), [0.0, 1000.0])

# -- places -------------------------------------------------------------------------------------------------

case("index", lambda k, x: x[index(k, 0, 0, 2)] * x[index(k, 1, 1, 1)], [1.0, 2.0, 3.0])
case("gather", lambda k, x: x.gather(0, index(k, 0, 0, 2)) ** 2, [1.0, 2.0, 3.0])
case("index_select", lambda k, x: x.index_select(0, index(k, 0, 0, 2)) ** 2, [1.0, 2.0, 3.0])
case("take", lambda k, x: x.take(index(k, 0, 0, -1)) ** 2, [1.0, 2.0, 3.0])
case("repeat_interleave", lambda k, x: x.repeat_interleave(index(k, 2, 0, 3)) ** 2, [1.0, 2.0, 3.0])
case("unfold", lambda k, x: x.unfold(0, 3, 1) ** 2, [1.0, 2.0, 3.0, 4.0, 5.0])
case("as_strided", lambda k, x: x.as_strided((3, 3), (1, 1)) ** 2, [1.0, 2.0, 3.0, 4.0, 5.0])
case("as_strided inside", lambda k, x: x.as_strided((2, 2), (2, 1), 1) ** 2, [1.0, 2.0, 3.0, 4.0, 5.0])
case("expand", lambda k, x: x.expand(3, 2) ** 2, [[1.0, 2.0]])
case("scatter", lambda k, x, y: x.scatter(0, index(k, 1, 2), y) ** 2, [1.0, 2.0, 3.0], [4.0, 5.0])
case("scatter_add", lambda k, x, y: x.scatter_add(0, index(k, 1, 1), y) ** 2, [1.0, 2.0, 3.0], [4.0, 5.0])
case(
    "index_add", lambda k, x, y: x.index_add(0, index(k, 1, 1), y, alpha=2) ** 2, [1.0, 2.0, 3.0], [4.0, 5.0]
)
case("index_copy", lambda k, x, y: x.index_copy(0, index(k, 1, 2), y) ** 2, [1.0, 2.0, 3.0], [4.0, 5.0])
case("index_fill", lambda k, x, v: x.index_fill(0, index(k, 1, 1), v.sum()) ** 2, [1.0, 2.0, 3.0], [7.0])
case(
    "index_put",
    lambda k, x, y: x.index_put((index(k, 1, 1),), y, accumulate=True) ** 2,
    [1.0, 2.0],
    [4.0, 5.0],
)
case("masked_fill", lambda k, x, v: x.masked_fill(x > 1, v.sum()) ** 2, [1.0, 2.0, 3.0], [4.0])
case("masked_scatter", lambda k, x, y: x.masked_scatter(x > 1, y) ** 2, [1.0, 2.0, 3.0], [4.0, 5.0, 6.0])
case("masked_select", lambda k, x: x.masked_select(x > 1) ** 2, [1.0, 2.0, 3.0])
for name in ("sum", "prod", "mean", "amax", "amin"):
    for own in (True, False):
        case(
            f"scatter_reduce {name}{'' if own else ' without self'}",
            lambda k, x, y, name=name, own=own: x.scatter_reduce(
                0, index(k, 1, 1, 0, 2), y, name, include_self=own
            ),
            [1.0, 4.0, 0.0],
            [4.0, 4.0, 0.0, 0.0],
        )
for name in ("constant", "reflect", "replicate", "circular"):
    case(
        f"pad {name}", lambda k, x, name=name: k.nn.functional.pad(x, (2, 1), name) ** 2, [[[1.0, 2.0, 3.0]]]
    )
case("pad away", lambda k, x: k.nn.functional.pad(x, (-1, 1)) ** 2, [[[1.0, 2.0, 3.0]]])
case("trapezoid", lambda k, y, x: k.trapezoid(y, x), [1.0, 2.0, 3.0], [0.0, 1.0, 1.0])


# -- the comparison -----------------------------------------------------------------------------------------


def weights(k: Any, y: Any, seed: int) -> Any:
    return k.tensor(np.random.default_rng(seed).uniform(0.5, 1.5, tuple(y.shape)), dtype=y.dtype)


def derivatives(k: Any, program: Program, inputs: tuple[Any, ...]) -> list[list[Any]]:
    """The value; gradients by the inputs; gradients of those by inputs and the value's gradient, None where
    there is none.
    """
    xs = [k.tensor(x, dtype=k.float64).requires_grad_() for x in inputs]
    y = program(k, *xs)
    if not y.requires_grad:
        return [[y], [None] * len(xs), [None] * (len(xs) + 1)]
    seed = weights(k, y, 0).requires_grad_()
    first = k.autograd.grad(y, xs, seed, create_graph=True, allow_unused=True)
    smooth = [g for g in first if g is not None and g.requires_grad]
    second: Any = [None] * (len(xs) + 1)
    if smooth:
        again = [weights(k, g, 7 + i) for i, g in enumerate(smooth)]
        second = k.autograd.grad(smooth, [*xs, seed], again, allow_unused=True)
    return [[y.detach()], [g if g is None else g.detach() for g in first], list(second)]


def array(x: Any, like: Any) -> Any:
    """A gradient's values; one that is none is 0."""
    return np.zeros(tuple(like.shape)) if x is None else to_array(x)


@pytest.mark.filterwarnings("ignore")  # PyTorch's, of what the cases are there for
@pytest.mark.parametrize("way", [eager, recorded] if os.environ.get("KILN_TEST_FULL") == "1" else [eager])
@pytest.mark.parametrize("name", CASES)
def test_derivatives_are_pytorch(name: str, way: Any, answers: Any) -> None:
    """Value, first and second derivatives; a case of KNOWN differs as it says."""
    program, inputs = CASES[name]
    try:
        want = answers([derivatives, program, inputs], lambda: derivatives(torch, program, inputs))
    except (RuntimeError, NotImplementedError):  # no second derivative there
        pytest.skip("PyTorch differentiates it once")
    got = way(lambda: derivatives(kiln, program, inputs))()
    differ = []
    for order, (ours, theirs) in enumerate(zip(got, want, strict=True)):
        for k, (x, y) in enumerate(zip(ours, theirs, strict=True)):
            if x is None and y is None:
                continue
            a, b = array(x, y), array(y, x)
            close = np.isclose(a, b, 1e-9, 1e-12, equal_nan=True) | (np.isnan(b) & (order == 2))
            if a.shape != b.shape or not close.all():
                differ.append(f"order {order}, {k}: {a.ravel()}, PyTorch's {b.ravel()}")
    if name in KNOWN:
        assert differ, f"it agrees now: {KNOWN[name]}"
    else:
        assert not differ, "\n".join(differ)


# the slope at NaN that PyTorch gives in the vectors of its loops, and in what is left behind them
AT_NAN = {
    "celu": (NAN, 1.0),
    "elu": (NAN, 1.0),
    "selu": (NAN, 1.0507009873554805),
    "hardswish": (NAN, 1.0),
    "softshrink": (0.0, 1.0),
    "hardshrink": (0.0, 1.0),
    "hardtanh": (0.0, 1.0),
    "relu6": (0.0, 1.0),
    "hardsigmoid": (0.0, 0.0),
    "leaky_relu": (0.01, 0.01),
    "relu": (1.0, 1.0),
}


@pytest.mark.parametrize("name", AT_NAN)
def test_slope_at_nan_is_one_of_pytorch_s(name: str, answers: Any) -> None:
    """NaN where PyTorch's value is NaN; of PyTorch's two slopes there one, at every place."""

    def slopes(k: Any, count: int) -> Any:
        x = k.full((count,), NAN, dtype=k.float64).requires_grad_()
        y = functional(k, name)(x)
        return to_array(y.detach()), to_array(k.autograd.grad(y.sum(), x)[0])

    for count, choice in ((64, 0), (1, 1)):
        value, slope = answers([slopes, count], partial(slopes, torch, count))
        np.testing.assert_array_equal(slope[0], AT_NAN[name][choice])
        ours, own = slopes(kiln, count)
        np.testing.assert_array_equal(ours, value)
        assert repr(float(own[0])) in map(repr, AT_NAN[name])
        np.testing.assert_array_equal(own, np.full(count, own[0]))


def test_known_are_cases() -> None:
    assert set(KNOWN) <= set(CASES)
