"""Derivatives of a function at a point, under torch.autograd.functional's names.

`func` is called with the inputs (a tensor or a tuple), on tensors of its own that share their memory: `.grad`
of the inputs does not change, nor whether they require grad. Results are tensors for a tensor and tuples for
a tuple. With `create_graph` they can be differentiated again; else they have no history. With `strict` what
does not depend on an input is an error; else its derivative is zeros. kiln.func has the same as functions of
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kiln import ops
from kiln._core import Tensor
from kiln.autograd.engine import grad
from kiln.autograd.grad_mode import enable_grad
from kiln.table.callables import hide_frames

Function = Callable[..., Any]
Inputs = Any  # a tensor or a tuple of tensors


def _as_tuple(what: str, name: str, given: Any) -> tuple[bool, tuple[Tensor, ...]]:
    """Whether tensors are given as a tuple, and the tuple; TypeError for anything else."""
    several = isinstance(given, (tuple, list))
    tensors = tuple(given) if several else (given,)
    for k, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            which = f"value at index {k}" if isinstance(given, tuple) else f"given {what}"
            raise TypeError(
                f"The {what} given to {name} must be either a Tensor or a tuple of Tensors but the {which} "
                f"has type {type(x if isinstance(given, tuple) else given)}."
            )
    return several, tensors


class _Point:
    """A function at its inputs: `xs` are the tensors it is run on, `ys` what it gave."""

    def __init__(self, name: str, func: Function, inputs: Inputs, create_graph: bool, strict: bool) -> None:
        self.name, self.func, self.create_graph, self.strict = name, func, create_graph, strict
        self.several_inputs, given = _as_tuple("inputs", name, inputs)
        self.xs = tuple(self._own(x) for x in given)
        self.several_outputs: bool = False
        self.ys: tuple[Tensor, ...] = ()

    def run(self) -> None:
        """Calls the function; what is given beside it was looked at before."""
        result = self.func(*self.xs)
        self.several_outputs, self.ys = _as_tuple("outputs of the user-provided function", self.name, result)
        for k, y in enumerate(self.ys):
            if self.strict and not y.requires_grad:
                raise RuntimeError(
                    f"Output {k} of the user-provided function does not require gradients. The outputs must "
                    "be computed in a differentiable manner from the input when running in strict mode."
                )

    def _own(self, x: Tensor) -> Any:
        if self.create_graph and x.requires_grad:
            return x.view_as(x)
        return x.detach().requires_grad_()

    def need_one_number(self) -> None:
        """RuntimeError unless the function gave one tensor of one element."""
        if self.several_outputs:
            raise RuntimeError(f"The function given to {self.name} should return a single Tensor")
        if self.ys[0].numel() != 1:
            raise RuntimeError(
                f"The Tensor returned by the function given to {self.name} should contain a single element"
            )

    def inputs_like(self, values: Sequence[Any]) -> Any:
        """One value per input, as inputs were given."""
        return tuple(values) if self.several_inputs else values[0]

    def outputs_like(self, values: Sequence[Any]) -> Any:
        """One value per output, as outputs came."""
        return tuple(values) if self.several_outputs else values[0]

    def shown(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Results with their history, or without."""
        return tuple(v if self.create_graph else v.detach() for v in values)


def _vector(name: str, v: Any, like: Sequence[Tensor], several: bool, message: str) -> tuple[Tensor, ...]:
    """The vector given for tensors, or 1 for one number; RuntimeError for wrong sizes."""
    if v is None:
        if several or like[0].numel() != 1:
            raise RuntimeError(message)
        return (ops.ones_like(like[0].detach()),)
    _, vs = _as_tuple("v", name, v)
    if len(vs) != len(like) and not several:
        raise RuntimeError("The given v should contain a single Tensor.")
    if len(vs) != len(like):
        raise RuntimeError(f"v is a tuple of invalid length: should be {len(like)} but got {len(vs)}.")
    for k, (x, y) in enumerate(zip(vs, like)):
        if tuple(x.shape) != tuple(y.shape):
            where = f"Entry {k} in " if several else ""
            raise RuntimeError(f"{where}v has invalid size: should be {y.shape} but got {x.shape}.")
    return vs


_NO_V_OF_OUTPUT = (
    "The vector v can only be None if the user-provided function returns a single Tensor with a single "
    "element."
)
_NO_V_OF_INPUT = (
    "The vector v can only be None if the input to the user-provided function is a single Tensor with a "
    "single element."
)


def _gradients(
    ys: Sequence[Any], xs: Sequence[Any], seeds: Sequence[Any], create: bool, batched: bool = False
) -> list[Any]:
    """The gradients of those of ys that have history, None for those of xs they do not depend on."""
    pairs = [(y, s) for y, s in zip(ys, seeds) if y is not None and y.requires_grad]
    if not pairs:
        return [None] * len(xs)
    roots, given = [y for y, _ in pairs], [s for _, s in pairs]
    return list(
        grad(
            roots,
            xs,
            given,
            retain_graph=True,
            create_graph=create,
            allow_unused=True,
            is_grads_batched=batched,
        )
    )


def _filled(found: Sequence[Any], like: Sequence[Any], strict: bool, what: str) -> list[Any]:
    """Gradients, zeros for None, which `strict` refuses; `what` says what does not depend on entry {}."""
    for k, g in enumerate(found):
        if g is None and strict:
            raise RuntimeError(what.format(k))
    return [ops.zeros_like(x.detach()) if g is None else g for g, x in zip(found, like)]


_INDEPENDENT = (
    "The output of the user-provided function is independent of input {}. This is not allowed in strict mode."
)


def _refuse_constant(point: _Point, found: Sequence[Any], what: str) -> None:
    """With strict and create_graph, derivatives must depend on the inputs."""
    for k, g in enumerate(found):
        if point.strict and point.create_graph and not g.requires_grad:
            raise RuntimeError(
                f"The {what} of the user-provided function is independent of input {k}. This is not allowed "
                "in strict mode when create_graph=True."
            )


def vjp(
    func: Function, inputs: Inputs, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), the vector v times the Jacobian): v is of the output's shape, or None for one number.

    >>> import kiln
    >>> kiln.autograd.functional.vjp(lambda x: x**2, kiln.tensor([1.0, 2.0]), kiln.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        point = _Point("vjp", func, inputs, create_graph, strict)
        point.run()
        vs = _vector("vjp", v, point.ys, point.several_outputs, _NO_V_OF_OUTPUT)
        found = _filled(_gradients(point.ys, point.xs, vs, create_graph), point.xs, strict, _INDEPENDENT)
        _refuse_constant(point, found, "jacobian")
    return point.outputs_like(point.shown(point.ys)), point.inputs_like(point.shown(found))


def jvp(
    func: Function, inputs: Inputs, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), the Jacobian times the vector v): v is of the inputs' shape, or None for one number.

    It is the derivative of the vjp, which is linear in its vector.

    >>> import kiln
    >>> kiln.autograd.functional.jvp(lambda x: x**2, kiln.tensor([1.0, 2.0]), kiln.ones(2))
    (tensor([1., 4.]), tensor([2., 4.]))
    """
    with enable_grad():
        point = _Point("jvp", func, inputs, create_graph, strict)
        vs = _vector("jvp", v, point.xs, point.several_inputs, _NO_V_OF_INPUT)
        point.run()
        seeds = [ops.zeros_like(y.detach()).requires_grad_() for y in point.ys]
        rows = _filled(_gradients(point.ys, point.xs, seeds, True), point.xs, strict, _INDEPENDENT)
        along = _filled(
            _gradients(rows, seeds, vs, create_graph),
            point.ys,
            strict,
            "The gradient with respect to the input is independent of entry {} in the grad_outputs when "
            "using the double backward trick to compute forward mode gradients. This is not allowed in "
            "strict mode.",
        )
        _refuse_constant(point, along, "jacobian")
    return point.outputs_like(point.shown(point.ys)), point.outputs_like(point.shown(along))


def _jacobian_of_number(point: _Point) -> list[Any]:
    """The gradient of a function that gave one number, with history."""
    point.need_one_number()
    found = _gradients(point.ys, point.xs, [ops.ones_like(point.ys[0].detach())], True)
    found = _filled(found, point.xs, point.strict and point.name != "hessian", _INDEPENDENT)
    for k, g in enumerate(found):
        if point.strict and not g.requires_grad:
            raise RuntimeError(
                "While computing the hessian, found that the jacobian of the user-provided function with "
                f"respect to input {k} is independent of the input. This is not allowed in strict mode. You "
                "should ensure that your function is twice differentiable and that the jacobian depends on "
                "the inputs (this would be violated by a linear function for example)."
            )
    return found


def vhp(
    func: Function, inputs: Inputs, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), the vector v times the Hessian) of a function that gives one number.

    >>> import kiln
    >>> kiln.autograd.functional.vhp(lambda x: (x**3).sum(), kiln.tensor([1.0, 2.0]), kiln.ones(2))
    (tensor(9.), tensor([ 6., 12.]))
    """
    with enable_grad():
        point = _Point("vhp", func, inputs, create_graph, strict)
        vs = _vector("vhp", v, point.xs, point.several_inputs, _NO_V_OF_INPUT)
        point.run()
        jacobian = _jacobian_of_number(point)
        found = _filled(
            _gradients(jacobian, point.xs, vs, create_graph),
            point.xs,
            strict,
            "The jacobian of the user-provided function is independent of input {}. This is not allowed in "
            "strict mode.",
        )
        _refuse_constant(point, found, "hessian")
    return point.outputs_like(point.shown(point.ys)), point.inputs_like(point.shown(found))


def hvp(
    func: Function, inputs: Inputs, v: Any = None, create_graph: bool = False, strict: bool = False
) -> tuple[Any, Any]:
    """(func(*inputs), the Hessian times the vector v) of a function that gives one number. The Hessian is
    symmetric where second derivatives are continuous: there it is `vhp`, which costs less.

    >>> import kiln
    >>> kiln.autograd.functional.hvp(lambda x: (x**3).sum(), kiln.tensor([1.0, 2.0]), kiln.ones(2))
    (tensor(9.), tensor([ 6., 12.]))
    """
    with enable_grad():
        point = _Point("hvp", func, inputs, create_graph, strict)
        vs = _vector("hvp", v, point.xs, point.several_inputs, _NO_V_OF_INPUT)
        point.run()
        jacobian = _jacobian_of_number(point)
        seeds = [ops.zeros_like(x.detach()).requires_grad_() for x in point.xs]
        rows = _filled(
            _gradients(jacobian, point.xs, seeds, True),
            point.xs,
            strict,
            "The jacobian of the user-provided function is independent of input {}. This is not allowed in "
            "strict mode.",
        )
        found = _filled(
            _gradients(rows, seeds, vs, create_graph),
            point.xs,
            strict,
            "The hessian of the user-provided function is independent of entry {} in the grad_jacobian. This "
            "is not allowed in strict mode as it prevents from using the double backward trick to replace "
            "forward mode AD.",
        )
        _refuse_constant(point, found, "hessian")
    return point.outputs_like(point.shown(point.ys)), point.inputs_like(point.shown(found))


def jacobian(
    func: Function,
    inputs: Inputs,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:
    """The Jacobian: per output and per input (tuples of tuples where there are several) a tensor of shape
    output.shape + input.shape.

    One row is computed after the other; with `vectorize` all rows of an output by one pass over the graph,
    which takes their memory at once. `strategy` "forward-mode" computes it by columns (it needs `vectorize`).

    >>> import kiln
    >>> kiln.autograd.functional.jacobian(lambda x: x**2, kiln.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    if strategy not in ("reverse-mode", "forward-mode"):
        raise AssertionError(
            'Expected strategy to be either "forward-mode" or "reverse-mode". Hint: If your function has '
            'more outputs than inputs, "forward-mode" tends to be more performant. Otherwise, prefer to use '
            '"reverse-mode".'
        )
    if strategy == "forward-mode":
        _check_forward(create_graph, strict, vectorize)
    if strict and vectorize:
        raise RuntimeError(
            "torch.autograd.functional.jacobian: `strict=True` and `vectorized=True` are not supported "
            "together. Please either set `strict=False` or `vectorize=False`."
        )
    with enable_grad():
        point = _Point("jacobian", func, inputs, create_graph, strict)
        point.run()
        if strategy == "forward-mode":
            rows = _by_columns(point)
        else:
            rows = [_rows(point, k, y, vectorize) for k, y in enumerate(point.ys)]
    return point.outputs_like([point.inputs_like(point.shown(row)) for row in rows])


def _check_forward(create_graph: bool, strict: bool, vectorize: bool) -> None:
    """What PyTorch refuses together with forward mode."""
    for name, given in (("create_graph", create_graph), ("strict", strict)):
        if given:
            raise NotImplementedError(
                f'torch.autograd.functional.jacobian: `{name}=True` and `strategy="forward-mode"` are not '
                f'supported together (yet). Please either set `{name}=False` or `strategy="reverse-mode"`.'
            )
    if not vectorize:
        raise NotImplementedError(
            "Computing Jacobian using forward-AD or forward-over-reverse Hessian is only implemented for "
            "`vectorize=True`."
        )


def _one_by_one(y: Any) -> Any:
    """For each element of y the gradient that is 1 there."""
    return ops.eye(y.numel(), dtype=y.dtype).reshape((y.numel(), *y.shape))


def _rows(point: _Point, number: int, y: Any, vectorize: bool) -> list[Any]:
    """The derivative of one output with respect to each input."""
    basis, create = _one_by_one(y), point.create_graph
    if vectorize and y.requires_grad and y.numel():
        found = _gradients([y], point.xs, [basis], create, batched=True)
    else:
        each = [_gradients([y], point.xs, [row], create) for row in basis]
        for row in each if point.strict else ():
            _refuse_independent(point, number, row)
        missing = [not each or row is None for row in (each[0] if each else point.xs)]
        columns = zip(*each) if each else [()] * len(point.xs)
        found = [None if none else ops.stack(list(c)) for none, c in zip(missing, columns)]
    return [
        ops.zeros((*y.shape, *x.shape), dtype=x.dtype) if g is None else g.reshape((*y.shape, *x.shape))
        for g, x in zip(found, point.xs)
    ]


def _refuse_independent(point: _Point, number: int, row: list[Any]) -> None:
    """RuntimeError for an input that an output, or with create_graph its derivative, does not depend on."""
    for k, g in enumerate(row):
        if g is None:
            raise RuntimeError(
                f"Output {number} of the user-provided function is independent of input {k}. This is not "
                "allowed in strict mode."
            )
        _refuse_constant(point, row[: k + 1], "jacobian")


def _by_columns(point: _Point) -> list[list[Any]]:
    """The Jacobian by the derivative of the vjp, for each element of the inputs."""
    seeds = [ops.zeros_like(y.detach()).requires_grad_() for y in point.ys]
    rows = _gradients(point.ys, point.xs, seeds, True)
    result: list[list[Any]] = [[] for _ in point.ys]
    for x, row in zip(point.xs, rows):
        found = _gradients([row], seeds, [_one_by_one(x)], False, batched=True)
        for into, g, y in zip(result, found, point.ys):
            shape = (*y.shape, *x.shape)
            into.append(
                ops.zeros(shape, dtype=y.dtype) if g is None else ops.movedim(g, 0, -1).reshape(shape)
            )
    return result


def hessian(
    func: Function,
    inputs: Inputs,
    create_graph: bool = False,
    strict: bool = False,
    vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:
    """The Hessian of a function that gives one number: a tensor of shape input.shape + input.shape, or tuples
    of tuples of them, one per pair of inputs. `vectorize` as for `jacobian`.

    >>> import kiln
    >>> kiln.autograd.functional.hessian(lambda x: (x**3).sum(), kiln.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    several, given = _as_tuple("inputs", "hessian", inputs)
    if outer_jacobian_strategy not in ("reverse-mode", "forward-mode"):
        raise AssertionError('Expected strategy to be either "forward-mode" or "reverse-mode".')
    if outer_jacobian_strategy == "forward-mode":
        _check_forward(create_graph, strict, vectorize)

    def gradient(*xs: Any) -> Any:
        point = _Point("hessian", func, tuple(xs), True, strict)
        point.run()
        return tuple(_jacobian_of_number(point))

    found = jacobian(gradient, given, create_graph, strict, vectorize, outer_jacobian_strategy)
    return found if several else found[0][0]


hide_frames(globals(), ("hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"))
