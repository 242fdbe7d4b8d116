"""`backward` and `grad`: arguments checked and completed, then one call of the core's engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

from kiln import _core, ops
from kiln._core import Tensor
from kiln.errors import describe, message

# gradients of a batch of seeds, and of samples of a batch: kiln.func's, told by kiln/__init__.py
BATCHED: dict[str, Any] = {}

Tensors = Union[Tensor, Sequence[Tensor]]
Gradients = Union[Tensor, Sequence[Union[Tensor, None]], None]


def backward(
    tensors: Tensors,
    grad_tensors: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensors | None = None,
) -> None:
    """Add the gradients of `tensors` to the `.grad` of the leaves they depend on (or only of `inputs`).

    `grad_tensors` holds one gradient per tensor, of its shape; None stands for 1 where the tensor has one
    element. Raises RuntimeError for a missing gradient, a wrong shape, or a tensor without history.

    >>> import kiln
    >>> x = kiln.tensor([1.0, 2.0], requires_grad=True)
    >>> kiln.autograd.backward((x * x).sum())
    >>> x.grad.tolist()
    [2.0, 4.0]
    """
    keep = create_graph if retain_graph is None else retain_graph
    if isinstance(tensors, Tensor) and grad_tensors is None and inputs is None:
        _core.run_backward((tensors,), (None,), keep, create_graph, None, True)
        return
    roots = _tuple(tensors)
    leaves = None if inputs is None else _tuple(inputs)
    if leaves is not None and not leaves:
        raise RuntimeError(
            message("backward", "at least one tensor in inputs", "none", "omit inputs for all")
        )
    seeds = _seeds("backward", roots, grad_tensors)
    _core.run_backward(roots, seeds, keep, create_graph, leaves, True)


def grad(
    outputs: Tensors,
    inputs: Tensors,
    grad_outputs: Gradients = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`, one per input; no `.grad` changes.

    An input the outputs do not depend on raises RuntimeError, or gives None under `allow_unused`, or
    zeros under `materialize_grads`. With `is_grads_batched` each of `grad_outputs` has a dim more in front, a
    batch of gradients, and so has each result: one pass computes them all.

    >>> import kiln
    >>> x = kiln.tensor(3.0, requires_grad=True)
    >>> (g,) = kiln.autograd.grad(x**2, x, create_graph=True)
    >>> kiln.autograd.grad(g, x)[0].item()
    2.0
    """
    if not only_inputs:
        raise NotImplementedError("grad: only_inputs=False is not supported; use backward() to fill .grad")
    if materialize_grads and allow_unused is False:
        raise ValueError("grad: expected allow_unused to be true or omitted where materialize_grads is true")
    roots, wanted = _tuple(outputs), _tuple(inputs)
    for k, x in enumerate(wanted):
        if not x.requires_grad:
            hint = "call requires_grad_() on it before the outputs are computed"
            raise RuntimeError(
                message("grad", "inputs that require grad", f"inputs[{k}] that does not", hint)
            )
    keep = create_graph if retain_graph is None else retain_graph
    count: tuple[int, ...] = ()
    if any(hasattr(type(x), "whole") for x in (*roots, *wanted, *_listed(grad_outputs))):
        seeds = _seeds("grad", roots, grad_outputs)
        found: tuple[Tensor | None, ...] = BATCHED["samples"](roots, wanted, seeds, keep, create_graph)
    elif is_grads_batched:
        seeds, count = _batched_seeds(roots, grad_outputs)
        found = BATCHED["seeds"](roots, wanted, seeds, keep, create_graph)
    else:
        seeds = _seeds("grad", roots, grad_outputs)
        found = _core.run_backward(roots, seeds, keep, create_graph, wanted, False)
    if materialize_grads:
        return tuple(
            ops.zeros((*count, *x.shape), dtype=x.dtype) if g is None else g
            for g, x in zip(found, wanted, strict=True)
        )
    if not allow_unused and any(g is None for g in found):
        k = next(k for k, g in enumerate(found) if g is None)
        came = f"inputs[{k}] ({describe(wanted[k])}), which was not used"
        hint = "pass allow_unused=True to get None for it"
        raise RuntimeError(message("grad", "inputs that the outputs depend on", came, hint))
    return found


def _tuple(tensors: Tensors) -> tuple[Tensor, ...]:
    """One tensor or a sequence of tensors, as a tuple."""
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def _listed(given: Gradients) -> tuple[Tensor | None, ...]:
    """Gradients as they were given, as a tuple."""
    return () if given is None else (given,) if isinstance(given, Tensor) else tuple(given)


def _seeds(op: str, roots: tuple[Tensor, ...], given: Gradients) -> tuple[Tensor | None, ...]:
    """One gradient per root, of its shape; ones where none was given and the root has one element."""
    if given is None:
        seeds: tuple[Tensor | None, ...] = (None,) * len(roots)
    else:
        seeds = (given,) if isinstance(given, Tensor) else tuple(given)
    if len(seeds) != len(roots):
        raise RuntimeError(message(op, f"{len(roots)} gradients, one per tensor", str(len(seeds))))
    return tuple(_seed(op, k, root, seed) for k, (root, seed) in enumerate(zip(roots, seeds, strict=True)))


def _batched_seeds(
    roots: tuple[Tensor, ...], given: Gradients
) -> tuple[tuple[Tensor | None, ...], tuple[int, ...]]:
    """A batch of gradients per root, and the size of the batch."""
    seeds = _listed(given) or (None,)
    if len(seeds) != len(roots):
        raise RuntimeError(message("grad", f"{len(roots)} gradients, one per tensor", str(len(seeds))))
    sizes = set()
    for k, (root, seed) in enumerate(zip(roots, seeds, strict=True)):
        if seed is None or tuple(seed.shape)[1:] != tuple(root.shape) or seed.ndim == 0:
            raise RuntimeError(
                f"If `is_grads_batched=True`, we interpret the first dimension of each grad_output as the "
                f"batch dimension. The sizes of the remaining dimensions are expected to match the shape of "
                f"corresponding output, but a mismatch was detected: grad_output[{k}] is {describe(seed)} "
                f"and output[{k}] has a shape of {tuple(root.shape)}."
            )
        sizes.add(seed.shape[0])
    if len(sizes) > 1:
        raise RuntimeError(f"grad: expected batches of one size, got sizes {sorted(sizes)}")
    return seeds, (sizes.pop(),)


def _seed(op: str, k: int, root: Tensor, seed: Tensor | None) -> Tensor | None:
    """The checked gradient of root k."""
    if seed is None:
        if not root.requires_grad:
            return None  # the engine names the tensor that has no history
        if root.numel() != 1:
            expected = "a tensor of one element (grad can be implicitly created only for scalar outputs)"
            raise RuntimeError(
                message(op, expected, describe(root), "sum it, or pass a gradient of its shape")
            )
        return None  # the engine starts from 1
    if not isinstance(seed, Tensor):
        raise TypeError(message(op, "gradients that are tensors or None", describe(seed)))
    if tuple(seed.shape) != tuple(root.shape):
        expected = f"gradient {k} of shape {tuple(root.shape)}, the shape of its tensor"
        raise RuntimeError(message(op, expected, describe(seed)))
    return seed
