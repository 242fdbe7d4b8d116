"""Random numbers as a program asks for them: rand, randint, normal, bernoulli, and the filling methods.

Every function takes `generator=`, a `kiln.Generator`; none means the default one.
"""

from __future__ import annotations

from typing import Any

from kiln import _core
from kiln.errors import describe, message
from kiln.late import later
from kiln.ops.creation.constants import check_options, chosen_dtype, int_or_size, settle, sizes_given
from kiln.ops.elementwise.arithmetic import convert
from kiln.ops.random import draws as r
from kiln.ops.random.generator import reserve
from kiln.table.arguments import beside, dtype_name, expect, into, is_value, may_expect, run, type_name
from kiln.table.callables import draws
from kiln.table.kinds import FLOATS
from kiln.table.public import methods, public
from kiln.table.registry import forms

all_within = later("kiln.ops.elementwise.infinities_and_nan", "all_within")
put = later("kiln.ops.indexing.getitem", "put")

# the integers a dtype holds exactly from 0 on: from .. to, and what PyTorch's messages call it
LIMITS = {
    "bool": (0, 1, "bool"), "uint8": (0, 2**8 - 1, "unsigned char"),
    "int8": (-(2**7), 2**7 - 1, "signed char"), "int16": (-(2**15), 2**15 - 1, "short"),
    "int32": (-(2**31), 2**31 - 1, "int"), "int64": (-(2**63), 2**63 - 1, "long int"),
    "float16": (-65504, 65504, "c10::Half"),
    "bfloat16": (-(2**127), 2**127, "c10::BFloat16"), "float32": (-(2**127), 2**127, "float"),
    "float64": (-(2**1023), 2**1023, "double"),
}  # fmt: skip
LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def float_dtype(dtype: Any, default: Any, op: str) -> str:
    """The name of the float dtype chosen; PyTorch's NotImplementedError for another."""
    name = chosen_dtype(dtype, default)
    if name not in FLOATS:
        raise NotImplementedError(f"\"{op}\" not implemented for '{type_name(name)}'")
    return name


def place_for(out: Any, dtype: Any) -> Any:
    """The dtype of an array written into `out`: RuntimeError if another was asked for."""
    if out is None:
        return dtype
    if dtype is not None and dtype_name(dtype) != dtype_name(out.dtype):
        raise RuntimeError(
            f"dtype {dtype_name(dtype)} does not match dtype of out parameter ({dtype_name(out.dtype)})"
        )
    return out.dtype


def _random(op: str, values: Any, kernel: str, doc: str) -> tuple[Any, Any]:
    """rand and rand_like, or randn and randn_like: uniform in [0, 1), or normal of mean 0 and deviation 1."""

    def make(
        *size: Any,
        generator: Any = None,
        out: Any = None,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        **options: Any,
    ) -> Any:
        if not size and "size" in options:
            size = (options.pop("size"),)
        sizes = sizes_given(size, op)
        name = float_dtype(place_for(out, dtype), None, kernel)
        check_options(op, options)
        drawn = reserve(sizes, generator)
        result = run(values, 0.0, 1.0, *drawn, sizes, name, **into(out))
        return settle(result, requires_grad, device, op)

    def make_like(
        input: Any,
        *,
        generator: Any = None,
        dtype: Any = None,
        device: Any = None,
        requires_grad: bool = False,
        **options: Any,
    ) -> Any:
        sizes = tuple(input.shape)
        name = float_dtype(dtype, input.dtype, kernel)
        layout = {"memory_format": options.pop("memory_format", None)}
        check_options(f"{op}_like", options)
        result = beside(input, lambda: run(values, 0.0, 1.0, *reserve(sizes, generator), sizes, name))
        return settle(result, requires_grad, device, f"{op}_like", layout)

    text = """Random floats, {0}, {1}. NotImplementedError for a dtype that is not of floats.

    >>> kiln.{2}({3}).shape
    kiln.Size([3])
    """
    make.__doc__ = text.format(doc, "of the given sizes", op, "3")
    make_like.__doc__ = text.format(doc, "as input", f"{op}_like", "kiln.ones(3)")
    facts: dict[str, Any] = {"method": False, "dtypes": "float", "differentiable": False}
    return public(op, **facts)(draws(make)), public(f"{op}_like", **facts)(draws(make_like))


rand, rand_like = _random("rand", r.uniform_values, "check_uniform_bounds", "uniform in [0, 1)")
randn, randn_like = _random("randn", r.normal_values, "normal_kernel_cpu", "standard normal")


def _bounds(low: Any, high: Any, dtype: str) -> None:
    """PyTorch's errors for a range of integers that is empty or that a dtype does not hold."""
    for value in (low, high):
        if not hasattr(type(value), "__index__"):
            raise TypeError(message("randint", "integers as bounds", describe(value)))
    if low >= high:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    least, most, shown = LIMITS[dtype]
    if low < least or low > most:
        raise RuntimeError(f"from is out of bounds for {shown}")
    if high - 1 > most:
        raise RuntimeError(f"to - 1 is out of bounds for {shown}")
    if not -(2**63) <= low < high <= 2**63 - 1:
        raise ValueError("Overflow when unpacking long long")


forms(
    "randint",
    "(high: int, size, *, generator=None, dtype=None, device=None, requires_grad=False, **options)",
    "(low: int, high: int, size, *, generator=None, dtype=None, device=None, requires_grad=False, **options)",
)


@public("randint", method=False, dtypes="all", differentiable=False)
@draws
def randint(
    low: Any = None,
    high: Any = None,
    size: Any = None,
    *,
    generator: Any = None,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """Random integers in [low, high), int64: `randint(high, size)` or `randint(low, high, size)`.

    RuntimeError unless low < high and the dtype holds both ends.

    >>> kiln.randint(1, (2,))
    tensor([0, 0])
    """
    if size is None:
        low, high, size = 0, low, high
    elif high is None:
        low, high = 0, low
    elif low is None:
        low = 0
    if not isinstance(size, (tuple, list)):
        raise TypeError(f"randint(): argument 'size' must be tuple of ints, not {type(size).__name__}")
    sizes = sizes_given((size,), "randint")
    name = chosen_dtype(place_for(out, dtype), "int64")
    _bounds(low, high, name)
    check_options("randint", options)
    low, high = int_or_size(low), int_or_size(high)
    result = run(r.integer_values, low, high, *reserve(sizes, generator), sizes, name, **into(out))
    known = isinstance(low, int) and isinstance(high, int) and out is None
    if known and name == "int64" and 0 <= low < high < 1 << 32:
        # a gather by them need not check them; memory of another dtype could be viewed as int64
        _core.values_below(result, high)
    return settle(result, requires_grad, device, "randint")


forms(
    "randint_like",
    "(input, high: int, *, generator=None, dtype=None, device=None, requires_grad=False, **options)",
    "(input, low: int, high: int, *, generator=None, dtype=None, device=None, requires_grad=False, "
    "**options)",
)


@public("randint_like", method=False, dtypes="all", differentiable=False)
@draws
def randint_like(
    input: Any,
    low: Any = None,
    high: Any = None,
    *,
    generator: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """Random integers in [low, high) of input's shape and dtype: `randint_like(x, high)` or `(x, low, high)`.

    RuntimeError unless low < high and the dtype holds both ends.

    >>> kiln.randint_like(kiln.ones(2), 1)
    tensor([0., 0.])
    """
    low, high = (0, low) if high is None else (0 if low is None else low, high)
    layout = {"memory_format": options.pop("memory_format", None)}
    made = chosen_dtype(dtype, input.dtype)
    given = {"generator": generator, "dtype": made, **options}
    result = beside(input, lambda: randint(low, high, tuple(input.shape), **given))
    return settle(result, requires_grad, device, "randint_like", layout)


def _is_array(x: Any) -> bool:
    return isinstance(x, _core.Tensor) or is_value(x)


def _deviation(std: Any) -> None:
    """RuntimeError for a standard deviation below 0 (or, in an array, NaN)."""
    if isinstance(std, _core.Tensor):
        expect(std >= 0, RuntimeError, "normal expects all elements of std >= 0.0")
    elif std < 0:
        raise RuntimeError(f"normal expects std >= 0.0, but found std {std}")


forms(
    "normal",
    "(mean: float | Tensor, std: float | Tensor = 1.0, *, generator=None, out=None)",
    "(mean: float, std: float, size, *, generator=None, dtype=None, device=None, requires_grad=False, "
    "**options)",
)


@public("normal", method=False, dtypes="float", differentiable=False)
@draws
def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Any = None,
    out: Any = None,
    dtype: Any = None,
    device: Any = None,
    requires_grad: bool = False,
    **options: Any,
) -> Any:
    """Normally distributed floats: of `size`, or of the shape that arrays `mean` and `std` broadcast to.

    Of the dtype of the array `mean`, else of `std`. RuntimeError for a deviation below 0.

    >>> kiln.normal(0.0, 1.0, (2,)).shape, kiln.normal(kiln.zeros(3), 2.0).shape
    (kiln.Size([2]), kiln.Size([3]))
    """
    arrays = [x for x in (mean, std) if _is_array(x)]
    if bool(arrays) == (size is not None):
        raise TypeError(message("normal", "a size, or an array of means or deviations", describe(size)))
    _deviation(std)
    check_options("normal", options)
    if not arrays:
        sizes = sizes_given((size,), "normal")
        name = float_dtype(place_for(out, dtype), None, "normal_kernel_cpu")
        drawn = reserve(sizes, generator)
        result = run(r.normal_values, float(mean), float(std), *drawn, sizes, name, **into(out))
        return settle(result, requires_grad, device, "normal")
    arrays = [x.detach() for x in arrays]
    name = float_dtype(None, arrays[0].dtype, "normal_kernel_cpu")
    sizes = tuple((arrays[0] + arrays[-1]).shape) if len(arrays) > 1 else tuple(arrays[0].shape)
    z = run(r.normal_values, 0.0, 1.0, *reserve(sizes, generator), sizes, name)
    mean, std = (convert(x.detach(), name) if _is_array(x) else x for x in (mean, std))
    result = z * std + mean
    return result if out is None else put(out, result)


def _chances(p: Any) -> None:
    """RuntimeError for probabilities outside [0, 1]."""
    if not _is_array(p):
        if not 0 <= p <= 1:
            raise RuntimeError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
        return
    float_dtype(None, p.dtype, "bernoulli_tensor_cpu_p_")
    if may_expect(p):
        text = "Expected p_in >= 0 && p_in <= 1 to be true, but got false: a chance is no more than 1"
        expect(all_within(p, 0.0, 1.0), RuntimeError, text)


@public(
    "bernoulli",
    dtypes="float",
    differentiable=False,
    differs="the result does not require gradients; PyTorch's does, of zeros",
)
@draws
def bernoulli(input: Any, p: Any = None, *, generator: Any = None, out: Any = None) -> Any:
    """1 with the probability each element of `input` states (or with probability `p`), else 0; of its shape
    and dtype.

    RuntimeError for a probability outside [0, 1].

    >>> kiln.bernoulli(kiln.zeros(2))
    tensor([0., 0.])
    """
    input = input.detach()
    _chances(input if p is None else p)
    drawn = reserve(input.shape, generator)
    if p is None:
        return r.bernoulli_values(input, *drawn, **into(out))
    result = r.chance_values(float(p), *drawn, tuple(input.shape), dtype_name(input.dtype), **into(out))
    return result


# Filled in place


def fill(input: Any, values: Any, *args: Any) -> Any:
    """values(*args) written into a tensor; recorded gradients of what was there end here."""
    if _core.grad_enabled() and input.requires_grad:
        return put(input, values(*args))
    return values(*args, out=input)


def bernoulli_(input: Any, p: Any = 0.5, *, generator: Any = None) -> Any:
    """Fills a tensor with 1 with probability `p` (a number or an array), else 0; returns it."""
    _chances(p)
    sizes = tuple(input.shape)
    if _is_array(p):
        chances = p.detach().expand(sizes)
        return put(input, r.bernoulli_values(chances, *reserve(sizes, generator)))
    drawn = reserve(sizes, generator)
    return fill(input, r.chance_values, float(p), *drawn, sizes, dtype_name(input.dtype))


def random_(input: Any, low: Any = None, high: Any = ..., *, generator: Any = None) -> Any:
    """Fills a tensor with integers: in [low, high), in [0, low), or in all its dtype holds; returns it."""
    name = dtype_name(input.dtype)
    if low is None or high is None:  # up to the largest integer all below which the dtype holds
        last = 2 ** DIGITS[name] if name in DIGITS else LIMITS[name][1]
        low, high = low or 0, min(last + 1, 2**63 - 1)
    elif high is ...:
        low, high = 0, low
    _bounds(low, high, name)
    sizes = tuple(input.shape)
    return fill(
        input, r.integer_values, int_or_size(low), int_or_size(high), *reserve(sizes, generator), sizes, name
    )


def _continuous(name: str, values: Any, kernel: str, defaults: dict[str, float], check: Any, doc: str) -> Any:
    """The method that fills a tensor with floats of a distribution of one or two numbers."""

    def method(input: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        if len(args) > len(defaults) or not kwargs.keys() <= set(list(defaults)[len(args) :]):
            raise TypeError(message(name, f"arguments {', '.join(defaults)}", f"{args} {kwargs}"))
        numbers = [float(v) for v in ({**defaults, **dict(zip(defaults, args)), **kwargs}).values()]
        dtype = dtype_name(input.dtype)
        if dtype not in FLOATS and not kernel:
            family = name.strip("_").capitalize()
            raise RuntimeError(
                f"{family} distribution is a continuous probability distribution. dtype must be a floating "
                f"point but you specified {type_name(dtype)} ({name})"
            )
        dtype = float_dtype(None, input.dtype, kernel)
        check(*numbers, dtype)
        sizes = tuple(input.shape)
        return fill(input, values, *numbers, *reserve(sizes, generator), sizes, dtype)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = doc
    return method


def _check_uniform(low: float, high: float, dtype: str) -> None:
    if low > high:
        raise RuntimeError(
            f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}"
        )
    largest = LARGEST.get(dtype, 1.7976931348623157e308)
    for what, value in (("from", low), ("to", high)):
        if not -largest <= value <= largest:
            raise RuntimeError(f"{what} is out of bounds for {LIMITS[dtype][2]}")
    if high - low > largest:
        raise RuntimeError(f"uniform_ expects to-from <= {largest} for {dtype}, got to={high} and from={low}")


def _positive(text: str, place: int) -> Any:
    def check(*numbers: Any) -> None:
        if not numbers[place] > 0:
            raise RuntimeError(f"{text}={numbers[place]}")

    return check


def geometric_(input: Any, p: float, *, generator: Any = None) -> Any:
    """Fills a tensor of numbers with trials until success of probability `p`, from 1 on; returns it.

    RuntimeError unless 0 < p < 1, NotImplementedError for bool.
    """
    if not 0 < p < 1:
        raise RuntimeError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    sizes, name = tuple(input.shape), dtype_name(input.dtype)
    if name == "bool":
        raise NotImplementedError("\"geometric_cpu\" not implemented for 'Bool'")
    return fill(input, r.geometric_values, float(p), *reserve(sizes, generator), sizes, name)


methods({
    "uniform_": _continuous(
        "uniform_", r.uniform_values, "check_uniform_bounds", {"from": 0, "to": 1}, _check_uniform,
        "Fills a tensor with uniform floats in [from, to); returns it. RuntimeError if from > to.",
    ),
    "normal_": _continuous(
        "normal_", r.normal_values, "normal_kernel_cpu", {"mean": 0, "std": 1},
        lambda mean, std, dtype: _deviation(std),
        "Fills a tensor with normally distributed floats; returns it. RuntimeError for a negative std.",
    ),
    "exponential_": _continuous(
        "exponential_", r.exponential_values, "", {"lambd": 1},
        _positive("exponential_ expects lambda > 0.0, but found lambda", 0),
        "Fills a tensor with exponentially distributed floats of rate `lambd`; returns it. RuntimeError "
        "unless it is above 0.",
    ),
    "log_normal_": _continuous(
        "log_normal_", r.log_normal_values, "log_normal_cpu", {"mean": 1, "std": 2},
        _positive("log_normal_ expects std > 0.0, but found std", 1),
        "Fills a tensor with floats whose logarithm is normally distributed; returns it. RuntimeError unless "
        "std > 0.",
    ),
    "cauchy_": _continuous(
        "cauchy_", r.cauchy_values, "", {"median": 0, "sigma": 1},
        _positive("cauchy_ expects sigma > 0.0, but found sigma", 1),
        "Fills a tensor with Cauchy distributed floats; returns it. RuntimeError unless sigma > 0.",
    ),
    "geometric_": geometric_,
    "random_": random_,
    "bernoulli_": bernoulli_,
})  # fmt: skip
# `from`, which is no name in Python, by place alone
forms("uniform_", "(input, low: float = 0, /, to: float = 1, *, generator=None)")
forms("normal_", "(input, mean: float = 0, std: float = 1, *, generator=None)")
forms("exponential_", "(input, lambd: float = 1, *, generator=None)")
forms("log_normal_", "(input, mean: float = 1, std: float = 2, *, generator=None)")
forms("cauchy_", "(input, median: float = 0, sigma: float = 1, *, generator=None)")
forms("random_", "(input, low: int | None = ..., high: int | None = ..., *, generator=None)")
forms("bernoulli_", "(input, p: float | Tensor = 0.5, *, generator=None)")
