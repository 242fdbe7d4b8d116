"""The graph: its edges, hooks on several gradients, what becomes of the tensors that ops save."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from kiln import _core
from kiln._core import Tensor
from kiln.autograd.node import Node as Node
from kiln.late import later
from kiln.table.callables import name_helpers as _name_helpers
from kiln.tuples import NamedTuple

_weak_set = later("weakref", "WeakSet")


class GradientEdge(NamedTuple):
    """One result of a node: what a gradient can be asked for, and where backward can start.

    `ownership_token` is the (shape, dtype) of the result if the edge is a tensor's.
    """

    node: Any
    output_nr: int
    ownership_token: Any = None


def get_gradient_edge(tensor: Tensor) -> GradientEdge:
    """The edge of a tensor: `grad(loss, get_gradient_edge(x))` is `grad(loss, x)`, but keeps no memory.

    RuntimeError for a tensor that does not require gradients.

    >>> import kiln
    >>> x = kiln.ones(2, requires_grad=True)
    >>> edge = kiln.autograd.graph.get_gradient_edge(x * 3)
    >>> kiln.autograd.grad(edge, x, grad_outputs=kiln.ones(2))
    (tensor([3., 3.]),)
    """
    if not tensor.requires_grad:
        raise RuntimeError(
            "It is not possible to get the gradient edge for a Tensor that does not require gradients"
        )
    node, output_nr, _ = tensor._edge()
    return GradientEdge(node, output_nr, (tuple(tensor.shape), tensor.dtype))


class _Handles:
    """Removes several hooks at once."""

    __slots__ = ("_handles",)

    def __init__(self, handles: Iterable[Any]) -> None:
        self._handles = tuple(handles)

    def remove(self) -> None:
        """Takes the hooks out."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> _Handles:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def register_multi_grad_hook(
    tensors: Sequence[Tensor], fn: Callable[[Any], None], *, mode: str = "all"
) -> _Handles:
    """Calls `fn` on the gradients of several tensors; returns a handle with `remove()`.

    mode "all": once in every backward, with a list, when all gradients that it computes of these tensors are
    there; None stands for the others. mode "any": with the first gradient that is there. Raises ValueError
    for another mode, RuntimeError for a tensor that does not require gradients.

    >>> import kiln
    >>> a, b = kiln.ones(1, requires_grad=True), kiln.ones(1, requires_grad=True)
    >>> c, d = a * b, a * b
    >>> def show(grads):
    ...     print([g is not None for g in grads])
    >>> handle = kiln.autograd.graph.register_multi_grad_hook((a, b, c, d), show)
    >>> c.sum().backward(retain_graph=True)
    [True, True, True, False]
    >>> c.sum().backward(inputs=(a,), retain_graph=True)
    [True, False, True, False]
    """
    if mode not in ("all", "any"):
        raise ValueError(f"Expects mode to be one of ('all', 'any') but got {mode}")
    if mode == "any":
        return _any_hook(tensors, fn)
    edges = [get_gradient_edge(x) for x in tensors]
    under_way: dict[int, tuple[int, list[Tensor | None]]] = {}  # run -> gradients to come, those there

    def hook_of(k: int) -> Callable[[Tensor], None]:
        def hook(grad: Tensor) -> None:
            run = _core.current_run()
            if run not in under_way:
                under_way[run] = sum(map(_core.will_visit, edges)), [None] * len(edges)
            missing, grads = under_way[run]
            grads[k] = grad
            under_way[run] = missing - 1, grads
            if missing == 1:
                del under_way[run]
                fn(grads)

        return hook

    return _Handles([x.register_hook(hook_of(k)) for k, x in enumerate(tensors)])


def _any_hook(tensors: Sequence[Tensor], fn: Callable[[Any], None]) -> _Handles:
    """`fn` on whichever gradient of these comes first in a run."""
    last = 0  # the run it was called in

    def hook(grad: Tensor) -> None:
        nonlocal last
        if last != (run := _core.current_run()):
            last = run
            fn(grad)

    return _Handles([x.register_hook(hook) for x in tensors if x.requires_grad])


class saved_tensors_hooks(_core.HooksSwitch):
    """Inside, what an op saves is `pack(tensor)`; backward reads `unpack` of that.

    `pack` is called once for every tensor saved, in order, without recording gradients; what it returns is
    kept. `unpack` must give a tensor of the same shape, dtype and values. The innermost pair counts.
    Where hooks are, in-place changes of a saved tensor go unnoticed: they are theirs to find.

    >>> import kiln
    >>> x = kiln.tensor([1.0, 2.0], requires_grad=True)
    >>> with kiln.autograd.graph.saved_tensors_hooks(lambda t: t.tolist(), kiln.tensor):
    ...     y = x * x
    >>> y.sum().backward()
    >>> x.grad.tolist()
    [2.0, 4.0]
    """

    __slots__ = ("__weakref__", "pack_hook", "unpack_hook")

    def __init__(self, pack_hook: Callable[[Tensor], Any], unpack_hook: Callable[[Any], Tensor]) -> None:
        self.pack_hook, self.unpack_hook = pack_hook, unpack_hook


class save_on_cpu(saved_tensors_hooks):
    """Inside, what ops save is kept in the CPU's memory: where it is already. With `pin_memory`, in a copy.

    >>> import kiln
    >>> x = kiln.tensor([1.0, 2.0], requires_grad=True)
    >>> with kiln.autograd.graph.save_on_cpu():
    ...     y = (x * x).sum()
    >>> y.backward()
    """

    __slots__ = ()

    def __init__(self, pin_memory: bool = False, device_type: str = "cuda") -> None:
        super().__init__((lambda tensor: tensor.clone()) if pin_memory else _same, _same)


def _same(tensor: Tensor) -> Tensor:
    return tensor


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Generator[None, None, None]:
    """Inside, saved_tensors_hooks raises RuntimeError with this message; so does this where such hooks are.

    >>> import kiln
    >>> with kiln.autograd.graph.disable_saved_tensors_hooks("not here"):
    ...     with kiln.autograd.graph.save_on_cpu():
    ...         pass
    Traceback (most recent call last):
    RuntimeError: not here
    """
    if _core.saved_tensors_hooks() is not None:
        raise RuntimeError(error_message)
    found = _core.refuse_saved_tensors_hooks(error_message)
    try:
        yield
    finally:
        _core.refuse_saved_tensors_hooks(found)


class _Kept:
    """A copy of a saved tensor, which lives as long as the context it was made in."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor | None = tensor


class _AllowMutation:
    """What allow_mutation_on_saved_tensors gives: `clear()` drops what is kept."""

    def __init__(self) -> None:
        self._kept: Any = _weak_set()

    def pack(self, tensor: Tensor) -> _Kept:
        kept = _Kept(tensor.detach().clone())
        self._kept.add(kept)
        return kept

    def unpack(self, kept: _Kept) -> Tensor:
        if kept.tensor is None:
            raise AssertionError(
                "Trying to backward outside of the 'allow_mutation_on_saved_tensors' context in which the "
                "graph was originally recorded."
            )
        return kept.tensor

    def clear(self) -> None:
        """Drops what is kept: graphs made so far in the context cannot be passed any more."""
        for kept in list(self._kept):
            kept.tensor = None


@contextmanager
def allow_mutation_on_saved_tensors() -> Generator[_AllowMutation, None, None]:
    """Inside, what an op saves may be changed in place before backward, which must run inside too.

    What is saved is copied, whether it will be changed or not: a debugging help, not a way to save memory.

    >>> import kiln
    >>> with kiln.autograd.graph.allow_mutation_on_saved_tensors():
    ...     a = kiln.ones(2, requires_grad=True)
    ...     b = a.clone()
    ...     out = (b**2).sum()
    ...     _ = b.sin_()
    ...     out.backward()
    >>> a.grad
    tensor([2., 2.])
    """
    pack = (_core.saved_tensors_hooks() or (None,))[0]
    if isinstance(getattr(pack, "__self__", None), _AllowMutation):
        raise RuntimeError("allow_mutation_on_saved_tensors contexts cannot be nested")
    context = _AllowMutation()
    try:
        with saved_tensors_hooks(context.pack, context.unpack):
            yield context
    finally:
        context.clear()


def increment_version(tensor: Tensor | Iterable[Tensor]) -> None:
    """Says that the memory of a tensor, or of several, was written where kiln does not see it.

    >>> import kiln
    >>> x = kiln.zeros(2)
    >>> kiln.autograd.graph.increment_version(x)
    >>> x._version
    1
    """
    for x in (tensor,) if isinstance(tensor, Tensor) else tensor:
        _core.increment_version(x)


class _unsafe_preserve_version_counter:
    """Inside, writes to the memory of these tensors do not count: backward takes what is there.

    >>> import kiln
    >>> x = kiln.zeros(2)
    >>> with _unsafe_preserve_version_counter(x):
    ...     _ = x.add_(1)
    >>> x._version
    0
    """

    def __init__(self, tensors: Tensor | tuple[Tensor, ...]) -> None:
        self._tensors = (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)
        self._versions = [x._version for x in self._tensors]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        for x, version in zip(self._tensors, self._versions):
            _core.set_version(x, version)


_name_helpers(globals(), __name__)
