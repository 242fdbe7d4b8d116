"""`backward` and `grad`: arguments checked and completed, then one call of the core's engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Union, overload

from kiln import _core, ops
from kiln._core import Tensor
from kiln.autograd.graph import GradientEdge
from kiln.errors import describe, message, warn

# gradients of a batch of seeds, and of samples of a batch: kiln.func's, told by kiln/__init__.py
BATCHED: dict[str, Any] = {}

Key = TypeVar("Key")
Place = Union[Tensor, GradientEdge]  # where a gradient starts, or is asked for
Places = Union[Place, Sequence[Place]]
Gradients = Union[Tensor, Sequence[Union[Tensor, None]], None]

_CYCLE = (
    "Using backward() with create_graph=True will create a reference cycle between the parameter and its "
    "gradient which can cause a memory leak. We recommend using autograd.grad when creating the graph to "
    "avoid this. If you have to use this function, make sure to reset the .grad fields of your parameters to "
    "None after use to break the cycle and avoid the leak."
)


@_core.Function
def backward(
    tensors: Places,
    grad_tensors: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Gradients = None,
    inputs: Places | Mapping[Any, Place] | None = None,
) -> None:
    """Add the gradients of `tensors` to the `.grad` of the leaves they depend on (or only of `inputs`).

    `grad_tensors` holds one gradient per tensor, of its shape; None stands for 1 where the tensor has one
    element. Tensors may be GradientEdges. Of `inputs` that are no leaves `.grad` is kept: retain_grad().
    `grad_variables` is an old name of `grad_tensors`. Raises RuntimeError for a missing gradient, a wrong
    shape, no inputs, or a tensor without history; warns where `create_graph` makes a cycle.

    >>> import kiln
    >>> x = kiln.tensor([1.0, 2.0], requires_grad=True)
    >>> kiln.autograd.backward((x * x).sum())
    >>> x.grad.tolist()
    [2.0, 4.0]
    """
    keep = create_graph if retain_graph is None else retain_graph
    if create_graph:
        warn(_CYCLE)
    if isinstance(tensors, Tensor) and grad_tensors is None and inputs is None and grad_variables is None:
        _core.run_backward((tensors,), (None,), keep, create_graph, None, True)
        return
    if grad_variables is not None:
        warn("`grad_variables` is deprecated. Use `grad_tensors` instead.", FutureWarning)
        if grad_tensors is not None:
            raise RuntimeError("`grad_tensors` and `grad_variables` (deprecated) arguments both passed to "
                               "`backward()`. Please only use `grad_tensors`.")  # fmt: skip
        grad_tensors = grad_variables
    roots = _tuple(tensors)
    wanted = None if inputs is None else _inputs("backward", inputs)
    seeds = _seeds("backward", roots, grad_tensors)
    _core.run_backward(roots, seeds, keep, create_graph, wanted, True)


@overload
def grad(
    outputs: Places,
    inputs: Places,
    grad_outputs: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor, ...]: ...
@overload
def grad(
    outputs: Places,
    inputs: Mapping[Key, Place],
    grad_outputs: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> dict[Key, Tensor]: ...
@_core.Function
def grad(
    outputs: Places,
    inputs: Places | Mapping[Any, Place],
    grad_outputs: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> Any:
    """The gradients of `outputs` with respect to `inputs`, one per input; no `.grad` changes.

    An input the outputs do not depend on raises RuntimeError, or gives None under `allow_unused`, or
    zeros under `materialize_grads`. With `is_grads_batched` each of `grad_outputs` has a dim more in front, a
    batch of gradients, and so has each result: one pass computes them all. Outputs and inputs may be
    GradientEdges. A dict of inputs gives a dict.

    >>> import kiln
    >>> x = kiln.tensor(3.0, requires_grad=True)
    >>> (g,) = kiln.autograd.grad(x**2, x, create_graph=True)
    >>> kiln.autograd.grad(g, x)[0].item()
    2.0
    """
    if not only_inputs:
        warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). To accumulate "
            "gradient for other parts of the graph, please use kiln.autograd.backward.",
            FutureWarning,
        )
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "Expected allow_unused to be True or not passed when materialize_grads=True, but got: "
            "allow_unused=False."
        )
    roots, wanted = _tuple(outputs), _inputs("grad", inputs)
    for k, x in enumerate(wanted):
        if isinstance(x, Tensor) and not x.requires_grad:
            for i, root in enumerate(roots):  # of several mistakes that of the outputs is told
                if isinstance(root, Tensor) and not root.requires_grad:
                    raise RuntimeError(
                        f"element {i} of tensors does not require grad and does not have a grad_fn"
                    )
            raise RuntimeError(
                f"One of the differentiated Tensors does not require grad: inputs[{k}]; call "
                "requires_grad_() on it before the outputs are computed"
            )
    keep = create_graph if retain_graph is None else retain_graph
    count: tuple[int, ...] = ()
    if any(hasattr(type(x), "whole") for x in (*roots, *wanted, *_listed(grad_outputs))):
        seeds = _seeds("grad", roots, grad_outputs)
        found = BATCHED["samples"](roots, wanted, seeds, keep, create_graph)
    elif is_grads_batched:
        seeds, count = _batched_seeds(roots, grad_outputs)
        found = BATCHED["seeds"](roots, wanted, seeds, keep, create_graph)
    else:
        seeds = _seeds("grad", roots, grad_outputs)
        found = _core.run_backward(roots, seeds, keep, create_graph, wanted, False)
    if any(g is None for g in found):
        zeros = count if materialize_grads else None
        found = tuple(
            _of_unused(k, x, zeros, bool(allow_unused), create_graph) if g is None else g
            for k, (g, x) in enumerate(zip(found, wanted, strict=True))
        )
    return dict(zip(inputs, found, strict=True)) if isinstance(inputs, Mapping) else found


def _of_unused(
    k: int, x: Place, zeros: tuple[int, ...] | None, allowed: bool, create_graph: bool
) -> Tensor | None:
    """What stands for the gradient of input k, which the outputs do not depend on: zeros with these dims more
    in front, unless None.
    """
    if zeros is not None:
        if not isinstance(x, Tensor):
            raise RuntimeError("materialize_grads cannot be used when the given input is a GradientEdge")
        made: Tensor = ops.zeros((*zeros, *x.shape), dtype=x.dtype, requires_grad=create_graph)
        return made
    if not allowed:
        came = "" if isinstance(x, GradientEdge) else f" ({describe(x)})"
        raise RuntimeError(
            f"The differentiated Tensor at index {k}{came} appears to not have been used in the graph. Set "
            "allow_unused=True if this is the desired behavior."
        )
    return None


def deeper(thread: int, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """call(*args) on a thread of its own, with what this one has set: backward is nested so deeply that
    neither Python's count of calls nor the stack would do. `thread`: this one's number in the core.
    """
    from contextvars import copy_context  # few programs come here
    from threading import Thread

    found, context = _ModesAndHooks(), copy_context()
    results: list[Any] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            _core.work_for(thread)
            found.restore()
            results.append(context.run(call, *args))
        except BaseException as error:
            errors.append(error)

    worker = Thread(target=work)
    worker.start()
    interrupts: list[BaseException] = []
    while worker.is_alive():
        try:
            worker.join()
        except KeyboardInterrupt as interrupt:  # what it computes belongs to this thread's pass
            interrupts.append(interrupt)
    for error in (errors or interrupts)[:1]:
        raise error
    return results[0]


class _ModesAndHooks:
    """What a thread has set of modes and hooks on saved tensors."""

    def __init__(self) -> None:
        self.modes, self.hooks = _core.modes(), _core.saved_tensors_hooks()
        self.refusal = _core.refuse_saved_tensors_hooks(None)
        _core.refuse_saved_tensors_hooks(self.refusal)

    def restore(self) -> None:
        _core.set_modes(*self.modes)
        _core.set_saved_tensors_hooks(self.hooks)
        _core.refuse_saved_tensors_hooks(self.refusal)


def _tuple(tensors: Places) -> tuple[Place, ...]:
    """One tensor, or a sequence of tensors, as a tuple."""
    return (tensors,) if isinstance(tensors, (Tensor, GradientEdge)) else tuple(tensors)


def _inputs(op: str, inputs: Places | Mapping[Any, Place]) -> tuple[Place, ...]:
    """What gradients are asked for. RuntimeError for nothing, TypeError for a mapping that is no dict."""
    if isinstance(inputs, Mapping):
        if type(inputs) is not dict:
            raise TypeError(
                f"`inputs` argument to `{op}()` must be a dict, not {type(inputs).__name__}. Other Mapping "
                "types are not supported."
            )
        inputs = tuple(inputs.values())
    wanted = _tuple(inputs)
    if not wanted:
        raise RuntimeError(f"`inputs` argument to `{op}()` cannot be empty.")
    return wanted


def _listed(given: Gradients) -> tuple[Tensor | None, ...]:
    """Gradients as they were given, as a tuple."""
    return () if given is None else (given,) if isinstance(given, Tensor) else tuple(given)


def _need_one_each(op: str, roots: tuple[Place, ...], seeds: tuple[Tensor | None, ...]) -> None:
    """RuntimeError unless there is a gradient per root."""
    if len(seeds) != len(roots):
        raise RuntimeError(f"{op}: got {len(roots)} tensors and {len(seeds)} gradients, "
                           f"where {len(roots)} gradients are expected, one for each")  # fmt: skip


def _seeds(op: str, roots: tuple[Place, ...], given: Gradients) -> tuple[Tensor | None, ...]:
    """One gradient per root, of its shape; ones where none was given and the root has one element."""
    seeds = (None,) * len(roots) if given is None else _listed(given)
    for seed in seeds:
        if seed is not None and not isinstance(seed, Tensor):
            raise TypeError(f"gradients can be either Tensors or None, but got {type(seed).__name__}")
    _need_one_each(op, roots, seeds)
    return tuple(_seed(op, k, root, seed) for k, (root, seed) in enumerate(zip(roots, seeds, strict=True)))


def _batched_seeds(
    roots: tuple[Place, ...], given: Gradients
) -> tuple[tuple[Tensor | None, ...], tuple[int, ...]]:
    """A batch of gradients per root, and the size of the batch."""
    seeds = _listed(given) or (None,)
    _need_one_each("grad", roots, seeds)
    sizes = set()
    for k, (root, seed) in enumerate(zip(roots, seeds, strict=True)):
        shape, _ = _look("grad", root)
        if seed is None or seed.ndim == 0 or (shape is not None and tuple(seed.shape)[1:] != shape):
            raise RuntimeError(
                f"If `is_grads_batched=True`, we interpret the first dimension of each grad_output as the "
                f"batch dimension. The sizes of the remaining dimensions are expected to match the shape of "
                f"corresponding output, but a mismatch was detected: grad_output[{k}] is {describe(seed)} "
                f"and output[{k}] has a shape of {shape}."
            )
        sizes.add(seed.shape[0])
    if len(sizes) > 1:
        raise RuntimeError(f"grad: expected batches of one size, got sizes {sorted(sizes)}")
    return seeds, (sizes.pop(),)


def _look(op: str, root: Any) -> tuple[Any, Any]:
    """The shape and dtype of a root; None if an edge does not know them."""
    if isinstance(root, Tensor):
        return tuple(root.shape), root.dtype
    if not isinstance(root, GradientEdge):
        raise TypeError(message(op, "tensors or GradientEdges", describe(root)))
    return root.ownership_token or (None, None)


def _seed(op: str, k: int, root: Place, seed: Tensor | None) -> Tensor | None:
    """The checked gradient of root k."""
    shape, dtype = _look(op, root)
    if seed is None:
        if isinstance(root, Tensor) and not root.requires_grad:
            return None  # the engine names the tensor that has no history
        if shape is None or any(size != 1 for size in shape):
            expected = "a tensor of one element (grad can be implicitly created only for scalar outputs)"
            came = "a GradientEdge" if shape is None else f"shape {shape}"
            raise RuntimeError(message(op, expected, came, "sum it, or pass a gradient of its shape"))
        return None if isinstance(root, Tensor) else ops.ones(shape, dtype=dtype)
    if shape is not None and tuple(seed.shape) != shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{k}] has a shape of {tuple(seed.shape)} and output[{k}] has a "
            f"shape of {shape}."
        )
    return seed
