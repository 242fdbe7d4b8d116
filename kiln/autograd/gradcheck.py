"""Derivatives against differences: the numerical Jacobian is the definition, the recorded one must match it.

J[i][j]     how output j moves with input i: (numel of the input, numel of the output)
slow        all of J, a column by two calls of the function, a row by one backward
fast        v . (J u) for one u of each input and one v of each output: two calls and one backward
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from kiln import ops
from kiln._core import Tensor, float64
from kiln.autograd.engine import grad
from kiln.autograd.function import Function
from kiln.errors import warn
from kiln.late import later
from kiln.table.callables import name_helpers as _name_helpers
from kiln.tuples import NamedTuple

__all__ = [
    "GradcheckError", "get_analytical_jacobian", "get_numerical_jacobian",
    "get_numerical_jacobian_wrt_specific_input", "gradcheck", "gradgradcheck",
]  # fmt: skip

Call = Callable[..., Any]
Tensors = tuple[Tensor, ...]


class GradcheckError(RuntimeError):
    """What `gradcheck` and `gradgradcheck` raise for a derivative that does not match its function."""


_new_generator = later("kiln.ops.random.generator", "Generator")


class _Options(NamedTuple):
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    dtypes: bool


def gradcheck(
    func: Call,
    inputs: Tensor | tuple[Any, ...] | list[Any],
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Check the derivatives of `func` at `inputs` against central differences of step `eps`.

    `func` takes the inputs and returns a tensor or several, of any shapes. Inputs that require grad are to
    be float64, without dims of stride 0, at a point where `func` is differentiable; they are moved in place
    and restored. Checked too: backward run twice agrees within `nondet_tol`; a gradient of zeros gives zeros;
    undefined ones are taken (`check_undefined_grad`); gradients have their inputs' dtypes
    (`check_grad_dtypes`). `fast_mode` compares one product with random vectors, of a generator of its own,
    instead of whole Jacobians. `masked` says nothing here: there are no sparse tensors. True, or
    GradcheckError (False with `raise_exception=False`). ValueError if no input requires grad, RuntimeError
    for one of stride 0, NotImplementedError for `check_forward_ad`: there is no forward mode.

    >>> import kiln
    >>> x = kiln.tensor([0.5, -1.0], dtype=kiln.float64, requires_grad=True)
    >>> kiln.autograd.gradcheck(lambda x: x.exp() * x, (x,))
    True
    >>> kiln.autograd.gradcheck(lambda x: x * x.detach(), (x,), raise_exception=False)
    False
    """
    if not (check_forward_ad or check_backward_ad):
        raise AssertionError("Expected at least one of check_forward_ad or check_backward_ad to be True")
    if check_batched_grad and not check_backward_ad:
        raise AssertionError("Setting check_batched_grad=True requires check_backward_ad to be True")
    if check_batched_forward_grad and not check_forward_ad:
        raise AssertionError("Setting check_batched_forward_grad=True requires check_forward_ad to be True")
    if check_forward_ad:
        raise NotImplementedError("gradcheck: kiln has no forward mode; leave check_forward_ad=False")
    given = inputs if isinstance(inputs, tuple) else _as_tuple(inputs)
    leaves = _differentiated(given)
    options = _Options(eps, atol, rtol, nondet_tol, check_grad_dtypes)
    try:
        outputs = _outputs(func(*given))
        (_check_fast if fast_mode else _check_slow)(func, given, leaves, outputs, options)
        for k, y in enumerate(outputs if check_batched_grad else ()):
            _check_batched(y, leaves, k)
        _check_linear(outputs, leaves)
        if check_undefined_grad:
            _check_undefined(func, given, leaves)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    func: Call,
    inputs: Tensor | tuple[Any, ...] | list[Any],
    grad_outputs: Tensor | tuple[Any, ...] | list[Any] | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Check the second derivatives of `func`: `gradcheck` of what gives its gradients, by the inputs and by
    the outputs' gradients.

    `grad_outputs` are one gradient for each output that requires grad, of its shape; without them they are
    drawn between -1 and 1 from a generator of their own, strided with `gen_non_contig_grad_outputs`. Else as
    `gradcheck`.

    >>> import kiln
    >>> x = kiln.tensor([0.5, -1.0], dtype=kiln.float64, requires_grad=True)
    >>> kiln.autograd.gradgradcheck(lambda x: x.sin() * x, x)
    True
    """
    if not (check_fwd_over_rev or check_rev_over_rev):
        raise AssertionError("Expected at least one of check_fwd_over_rev or check_rev_over_rev to be True")
    given = _as_tuple(inputs)
    if grad_outputs is None:
        generator = _generator()
        drawn = [_cotangent(y, generator, gen_non_contig_grad_outputs) for y in _outputs(func(*given))]
        grad_outputs = tuple(drawn)
    seeds = _as_tuple(grad_outputs)
    count = len(given)

    def first(*arguments: Any) -> tuple[Tensor, ...]:
        leaves = tuple(x for x in arguments[:count] if _is_leaf(x))
        outputs = _outputs(func(*arguments[:count]))
        found = grad(outputs, leaves, arguments[count:], create_graph=True, allow_unused=True)
        return tuple(g for g in found if g is not None)

    return gradcheck(
        first,
        (*given, *seeds),
        eps=eps,
        atol=atol,
        rtol=rtol,
        raise_exception=raise_exception,
        nondet_tol=nondet_tol,
        check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes,
        check_batched_grad=check_batched_grad,
        check_forward_ad=check_fwd_over_rev,
        check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode,
        masked=masked,
    )


# -- arguments ----------------------------------------------------------------------------------------------


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _is_leaf(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _outputs(result: Any) -> Tensors:
    """The tensors of a result that require grad."""
    return tuple(y for y in _as_tuple(result) if _is_leaf(y))


def _floats(result: Any) -> Tensors:
    return tuple(y for y in _as_tuple(result) if isinstance(y, Tensor) and y.dtype.is_floating_point)


def _differentiated(given: tuple[Any, ...]) -> dict[int, Tensor]:
    """The inputs that require grad by their places, checked to be what differences need."""
    leaves = {k: x for k, x in enumerate(given) if _is_leaf(x)}
    if not leaves:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of them have "
            "requires_grad=True."
        )
    for k, x in leaves.items():
        if x.dtype != float64:
            warn(
                f"Input #{k} requires gradient and is not a double precision floating point or complex. This "
                "check will likely fail if all the inputs are not of double precision floating point."
            )
        if x.numel() and any(stride == 0 and size > 1 for stride, size in zip(x.stride(), x.shape)):
            raise RuntimeError(
                f"The {k}th input has a dimension with stride 0. gradcheck only supports inputs that are "
                "non-overlapping to be able to compute the numerical gradients correctly. You should call "
                ".contiguous on the input before passing it to gradcheck."
            )
    return leaves


def _generator() -> Any:
    """Draws of the check's own: those of the program stay as they are."""
    return _new_generator().manual_seed(0)


def _drawn(like: Tensor, generator: Any) -> Tensor:
    """A flat vector of length 1 for the elements of a tensor."""
    vector = ops.rand(like.numel(), dtype=like.dtype, generator=generator)
    unit: Tensor = vector / vector.norm() if like.numel() else vector
    return unit


def _cotangent(y: Tensor, generator: Any, strided: bool) -> Tensor:
    """A gradient of an output, which requires grad itself."""
    step = 2 if strided and y.ndim else 1
    shape = (*y.shape[:-1], y.shape[-1] * step) if y.ndim else ()
    drawn = ops.rand(shape, dtype=y.dtype, generator=generator) * 2 - 1
    gradient: Tensor = (drawn[..., ::step] if step > 1 else drawn).requires_grad_()
    return gradient


# -- Jacobians ----------------------------------------------------------------------------------------------


def _difference(
    func: Call, given: tuple[Any, ...], place: Tensor, by: Any, eps: float, where: str
) -> list[Tensor]:
    """The central difference of every floating-point output, flat, as the values at `place` (memory of an
    input) move by -by and by.
    """
    kept = place.clone()
    sides = []
    try:
        for moved in (kept - by, kept + by):
            place.copy_(moved)
            sides.append([y.detach().clone() for y in _floats(func(*given))])
    finally:
        place.copy_(kept)
    found = []
    for low, high in zip(*sides):
        for what, one, other in (("shape", low.shape, high.shape), ("dtype", low.dtype, high.dtype)):
            if one != other:
                raise AssertionError(
                    f"Expected `func` to return outputs with the same {what} when inputs are perturbed "
                    f"{where}by {eps}, but got:  {what}s {one} and {other}."
                )
        found.append(((high - low) / (2 * eps)).reshape(-1))
    return found


def _places(x: Tensor) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(size) for size in x.shape))


def _numerical(
    func: Call, given: tuple[Any, ...], leaf: Tensor, outputs: Tensors, eps: float
) -> list[Tensor]:
    """J by one input, for every floating-point output."""
    memory = leaf.data  # its writes pass by the version that backward compares
    columns = [_difference(func, given, memory[at], eps, eps, f"on index {at} ") for at in _places(leaf)]
    if columns:
        return [ops.stack(list(column)) for column in zip(*columns)]
    return [ops.zeros(0, y.numel(), dtype=y.dtype) for y in outputs]


def _backward(output: Tensor, leaves: Tensors, seed: Tensor, options: _Options) -> list[Tensor]:
    """The gradients of an output, flat and zeros where there is none, computed twice and compared."""
    flat: list[list[Tensor]] = []
    for _ in range(2):
        found = grad(output, leaves, seed.clone(), retain_graph=True, allow_unused=True)
        for g, x in zip(found, leaves):
            if g is not None and g.shape != x.shape:
                raise GradcheckError("Analytical gradient has incorrect size")
            if g is not None and g.dtype != x.dtype and options.dtypes:
                raise GradcheckError("Gradient has dtype mismatch")
        flat.append([ops.zeros(x.numel(), dtype=x.dtype) if g is None else g.detach().clone().reshape(-1)
                     for g, x in zip(found, leaves)])  # fmt: skip
    for once, again in zip(*flat):
        if once.numel() and float((once - again).abs().max()) > options.nondet_tol:
            raise GradcheckError(
                "Backward is not reentrant, i.e., running backward with same input and grad_output multiple "
                "times gives different values, although analytical gradient matches numerical gradient. The "
                f"tolerance for nondeterminism was {options.nondet_tol}."
            )
    return flat[0]


def _analytical(output: Tensor, leaves: Tensors, options: _Options) -> list[Tensor]:
    """J of one output by every input, a row by one backward."""
    rows = []
    for k in range(output.numel()):
        seed = ops.zeros(output.numel(), dtype=output.dtype)
        seed[k] = 1
        rows.append(_backward(output, leaves, seed.reshape(output.shape), options))
    if rows:
        return [ops.stack(list(row), 1) for row in zip(*rows)]
    return [ops.zeros(x.numel(), 0, dtype=x.dtype) for x in leaves]


def _expect_one(grad_out: float, name: str) -> None:
    """ValueError unless what multiplied a Jacobian once is 1; a FutureWarning in any case."""
    warn(
        f"`{name}` is an old name that PyTorch deprecates; func.jacrev and gradcheck have what it is for",
        FutureWarning,
    )
    if grad_out != 1.0:
        raise ValueError(f"Expected grad_out to be 1.0. {name} no longer supports values of grad_out != 1.0.")


def get_numerical_jacobian(
    fn: Call, inputs: Any, target: Any = None, eps: float = 1e-3, grad_out: float = 1.0
) -> tuple[Tensor, ...]:
    """By central differences, of the first result of `fn(inputs)`: for each input (or each of `target`) that
    requires gradients, a matrix (numel of it, numel of the result). FutureWarning: an old name.

    >>> import kiln
    >>> x = kiln.tensor([1.0, 2.0], dtype=kiln.float64, requires_grad=True)
    >>> get_numerical_jacobian(lambda inputs: inputs[0] * 3, (x,))
    (tensor([[3.0000, 0.0000],
            [0.0000, 3.0000]], dtype=kiln.float64),)
    """
    _expect_one(grad_out, "get_numerical_jacobian")
    wanted = [x for x in _as_tuple(inputs if target is None else target) if _is_leaf(x)]
    outputs = _floats(fn(inputs))
    return tuple([_numerical(fn, (inputs,), x, outputs, eps)[0] for x in wanted])


def get_numerical_jacobian_wrt_specific_input(
    fn: Call, input_idx: int, inputs: Any, outputs: Any, eps: float,
    input: Tensor | None = None, is_forward_ad: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """By central differences of `fn(*inputs)`: of each result, by one of the inputs (or by `input`)."""
    given = _as_tuple(inputs)
    by = given[input_idx] if input is None else input
    return tuple(_numerical(fn, given, by, _floats(outputs), eps))


def get_analytical_jacobian(
    inputs: Any, output: Tensor, nondet_tol: float = 0.0, grad_out: float = 1.0
) -> tuple[tuple[Tensor, ...], bool, bool, bool]:
    """By backward, a row at a time: for each input that requires gradients a matrix (numel of it, numel of
    `output`); and whether two passes agree within `nondet_tol`, whether gradients have their inputs' shapes,
    and their dtypes, as the engine sees to. FutureWarning: an old name.

    >>> import kiln
    >>> x = kiln.tensor([1.0, 2.0], requires_grad=True)
    >>> get_analytical_jacobian((x,), x * x)
    ((tensor([[2., 0.],
            [0., 4.]]),), True, True, True)
    """
    _expect_one(grad_out, "get_analytical_jacobian")
    leaves = tuple(x for x in _as_tuple(inputs) if _is_leaf(x))
    anything = _Options(0.0, 0.0, 0.0, float("inf"), False)
    once, again = (_analytical(output, leaves, anything) for _ in range(2))
    same = all(not a.numel() or float((a - b).abs().max()) <= nondet_tol for a, b in zip(once, again))
    return tuple(once), same, True, True


# -- checks -------------------------------------------------------------------------------------------------


def _check_slow(
    func: Call, given: tuple[Any, ...], leaves: dict[int, Tensor], outputs: Tensors, options: _Options
) -> None:
    """Whole Jacobians."""
    found = func(*given)
    numerical = [_numerical(func, given, x, _floats(found), options.eps) for x in leaves.values()]
    if not outputs:
        _require_constant(jacobian for row in numerical for jacobian in row)
    of = [j for j, y in enumerate(_floats(found)) if y.requires_grad]
    for j, output in zip(of, outputs):
        analytical = _analytical(output, tuple(leaves.values()), options)
        for i, a in enumerate(analytical):
            _require_close(a, numerical[i][j], options.atol, options.rtol, j, i)


def _check_fast(
    func: Call, given: tuple[Any, ...], leaves: dict[int, Tensor], outputs: Tensors, options: _Options
) -> None:
    """Products of Jacobians with one vector on either side."""
    generator = _generator()
    found = _floats(func(*given))
    us = [_drawn(x, generator) for x in leaves.values()]
    vs = {j: _drawn(y, generator) for j, y in enumerate(found) if y.requires_grad}
    moved = [
        _difference(func, given, x.data, u.reshape(x.shape) * options.eps, options.eps, "")
        for x, u in zip(leaves.values(), us)
    ]
    if not outputs:
        _require_constant(jacobian for row in moved for jacobian in row)
    for (j, v), output in zip(vs.items(), outputs):
        gradients = _backward(output, tuple(leaves.values()), v.reshape(output.shape), options)
        for i, (g, u) in enumerate(zip(gradients, us)):
            atol = options.atol * float(u.sum()) * float(v.sum())
            _require_close((g * u).sum(), (moved[i][j] * v).sum(), atol, options.rtol, j, i)


def _require_constant(differences: Iterator[Tensor]) -> None:
    if any(bool((d != 0).any()) for d in differences):
        raise GradcheckError("Numerical gradient for function expected to be zero")


def _require_close(got: Tensor, expected: Tensor, atol: float, rtol: float, output: int, leaf: int) -> None:
    """Raises a GradcheckError with both Jacobians, and where they differ most."""
    got, expected = got.double(), expected.double()
    if ops.allclose(got, expected, rtol, atol):
        return
    excess = (got - expected).abs() - rtol * expected.abs()
    worst = int(ops.nan_to_num(excess, nan=float("inf")).argmax())
    shown = [float(x.reshape(-1)[worst]) for x in (got, expected)]
    at = "" if not got.ndim else f" (d output[{worst % got.shape[1]}] / d input[{worst // got.shape[1]}])"
    raise GradcheckError(
        f"Jacobian mismatch for output {output:d} with respect to input {leaf:d},\nnumerical:{expected}\n"
        f"analytical:{got}\nworst{at}: backward gives {shown[0]!r}, differences give {shown[1]!r}"
    )


def _check_batched(output: Tensor, leaves: dict[int, Tensor], number: int) -> None:
    """`grad` of two gradients at once against one after the other."""
    generator, wanted = _generator(), tuple(leaves.values())
    seeds = [_cotangent(output, generator, False).detach() for _ in range(2)]
    single = [grad(output, wanted, g, retain_graph=True, allow_unused=True) for g in seeds]
    both = grad(output, wanted, ops.stack(seeds), retain_graph=True, allow_unused=True, is_grads_batched=True)
    for k, (got, one, other) in enumerate(zip(both, *single)):
        if (got is None) != (one is None) or (
            got is not None and not ops.allclose(got, ops.stack([one, other]))
        ):
            raise GradcheckError(
                f"gradcheck or gradgradcheck failed while testing batched gradient computation, for output "
                f"{number} and input {k}. Got:\n{got}\nExpected:\n{one} and {other}"
            )


def _check_linear(outputs: Tensors, leaves: dict[int, Tensor]) -> None:
    """Zeros as gradients give zeros."""
    if outputs:
        zeros = [ops.zeros(y.shape, dtype=y.dtype) for y in outputs]
        found = grad(outputs, tuple(leaves.values()), zeros, allow_unused=True)
        if any(g is not None and not bool((g == 0).all()) for g in found):
            raise GradcheckError("backward not multiplied by grad_output")


class _Undefined(Function):
    """The identity, whose backward gives nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        result: Tensor = x.view_as(x)
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> None:
        return None


def _warn_of_undefined() -> None:
    """Beside the error, for who did not ask for this check."""
    warn(
        "Backwards compatibility: undefined gradients are checked unless check_undefined_grad=False says not "
        "to, which some functions were not written for",
    )


def _check_undefined(func: Call, given: tuple[Any, ...], leaves: dict[int, Tensor]) -> None:
    """Undefined gradients of all outputs, and of one beside zeros, are taken and give nothing or zeros."""
    count = len(_outputs(func(*given)))
    for hidden in [set(range(count)), *({k} for k in range(count if count > 1 else 0))]:
        outputs = [_Undefined.apply(y) if k in hidden else y for k, y in enumerate(_outputs(func(*given)))]
        zeros = [ops.zeros(y.shape, dtype=y.dtype) for y in outputs]
        try:
            found = grad(outputs, tuple(leaves.values()), zeros, allow_unused=True) if outputs else ()
        except Exception as error:
            _warn_of_undefined()
            raise GradcheckError(
                "Expected backward function to handle undefined output grads (None), got "
                f"{type(error).__name__}: {error}; handle None in it, or pass check_undefined_grad=False"
            ) from error
        if any(g is not None and not bool((g == 0).all()) for g in found):
            _warn_of_undefined()
            raise GradcheckError(
                "Expected all input grads to be undefined or zero when all output grads are undefined or zero"
            )


_name_helpers(globals(), __name__)
