"""Pruning: a weight is `weight_orig` times `weight_mask`, made before every forward.

A method says by `compute_mask` which entries go. The second of a parameter sees what the first has left, and
both are a PruningContainer from then on; `remove` makes what is left the parameter again.

unstructured    single entries         random_unstructured, l1_unstructured, global_unstructured
structured      slices along a dim     random_structured, ln_structured
global          all that there are     custom_from_mask
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, cast

from kiln import ops
from kiln._core import Tensor
from kiln.layout import contiguous_format
from kiln.nn.module import Module
from kiln.nn.utils.convert_parameters import parameters_to_vector
from kiln.table.callables import name_all

M = TypeVar("M", bound=Module)
Amount = int | float


class BasePruningMethod(ABC):
    """A way to choose what goes; a subclass names its PRUNING_TYPE and defines `compute_mask`."""

    PRUNING_TYPE: str
    _tensor_name: str

    def __call__(self, module: Module, inputs: Any) -> None:
        setattr(module, self._tensor_name, self.apply_mask(module))

    @abstractmethod
    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """`default_mask`, of t's shape, with zeros where entries of t are to go."""

    def apply_mask(self, module: Module) -> Tensor:
        """The masked parameter, computed from the original."""
        if getattr(self, "_tensor_name", None) is None:
            raise AssertionError(f"Module {module} has to be pruned")
        original: Tensor = getattr(module, f"{self._tensor_name}_orig")
        mask: Tensor = getattr(module, f"{self._tensor_name}_mask")
        pruned: Tensor = mask.to(dtype=original.dtype) * original
        return pruned

    @classmethod
    def apply(
        cls,
        module: Module,
        name: str,
        *args: Any,
        importance_scores: Tensor | None = None,
        **kwargs: Any,
    ) -> BasePruningMethod:
        """Prune `module.<name>` by this method, made of the other arguments; gives what does it from now on.

        The mask is computed of `importance_scores`, of the parameter's shape, or of the parameter itself. If
        that fails nothing has changed.
        """
        method: BasePruningMethod = cls(*args, **kwargs)
        method._tensor_name = name
        for number, old in _methods(module, name):
            both = old if isinstance(old, PruningContainer) else PruningContainer(old)
            both.add_pruning_method(method)
            del module._forward_pre_hooks[number]
            method = both
        tensor = getattr(module, name)
        scores = _scores(importance_scores, tensor)
        if isinstance(method, PruningContainer):
            default = getattr(module, f"{name}_mask").detach().clone()
            mask = method.compute_mask(scores, default)
        else:
            mask = method.compute_mask(scores, ops.ones_like(tensor))
            module.register_parameter(f"{name}_orig", tensor)
            del module._parameters[name]
        module.register_buffer(f"{name}_mask", mask)
        setattr(module, name, method.apply_mask(module))
        module.register_forward_pre_hook(method)
        return method

    def prune(
        self, t: Tensor, default_mask: Tensor | None = None, importance_scores: Tensor | None = None
    ) -> Tensor:
        """A tensor without what this method chooses of it, as `apply` would leave a parameter of this
        value.
        """
        scores = _scores(importance_scores, t)
        default = ops.ones_like(t) if default_mask is None else default_mask
        pruned: Tensor = t * self.compute_mask(scores, default_mask=default)
        return pruned

    def remove(self, module: Module) -> None:
        """Make the masked parameter the parameter again; it is the same object, with zeros where entries
        went.
        """
        name = self._tensor_name
        weight = self.apply_mask(module)
        original = cast(Any, module._parameters[f"{name}_orig"])
        if hasattr(module, name):
            delattr(module, name)
        original.data = weight.detach()
        del module._parameters[f"{name}_orig"]
        del module._buffers[f"{name}_mask"]
        setattr(module, name, original)


class PruningContainer(BasePruningMethod):
    """Several methods of one parameter, of which each sees what the ones before it have left."""

    def __init__(self, *args: BasePruningMethod) -> None:
        self._pruning_methods: tuple[BasePruningMethod, ...] = ()
        if args:
            self._tensor_name = args[0]._tensor_name
        for method in args:
            self.add_pruning_method(method)

    def add_pruning_method(self, method: BasePruningMethod) -> None:
        """Add a method of the same parameter. TypeError for something else, ValueError for another's."""
        if not isinstance(method, BasePruningMethod):
            raise TypeError(f"{type(method)} is not a BasePruningMethod subclass")
        if method._tensor_name != self._tensor_name:
            raise ValueError(
                f"Can only add pruning methods acting on the parameter named '{self._tensor_name}' to "
                f"PruningContainer {self}. Found '{method._tensor_name}'"
            )
        self._pruning_methods += (method,)

    def __len__(self) -> int:
        return len(self._pruning_methods)

    def __iter__(self) -> Iterator[BasePruningMethod]:
        return iter(self._pruning_methods)

    def __getitem__(self, index: Any) -> Any:
        return self._pruning_methods[index]

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        """The last method's mask of what `default_mask` has left, and zeros where that has some.

        AttributeError for a structured method without `dim`, ValueError for an unknown PRUNING_TYPE.
        """
        method, mask = self._pruning_methods[-1], default_mask.to(dtype=t.dtype, copy=True)
        kind = method.PRUNING_TYPE
        left: Any
        if kind == "unstructured":
            left = default_mask == 1
        elif kind == "structured":
            if not hasattr(method, "dim"):
                raise AttributeError(
                    f"Pruning methods of PRUNING_TYPE 'structured' need to have the attribute `dim` "
                    f"defined: {method}"
                )
            if not -t.ndim <= method.dim < t.ndim:
                raise IndexError(f"Index is out of bounds for tensor with dimensions {t.ndim}")
            dim = method.dim % t.ndim
            there = default_mask.sum([k for k in range(t.ndim) if k != dim]) != 0
            left = (*[slice(None)] * dim, there)
        elif kind == "global":
            left = (slice(None),) * t.ndim
        else:
            raise ValueError(f"Unrecognized PRUNING_TYPE {kind}")
        mask[left] = method.compute_mask(t[left], default_mask=default_mask[left]).to(t.dtype)
        return mask


class Identity(BasePruningMethod):
    """Nothing goes; the parameter has a mask of ones."""

    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask


class _Unstructured(BasePruningMethod):
    """`amount` single entries go, a number or a fraction: those of the lowest marks."""

    PRUNING_TYPE = "unstructured"

    def __init__(self, amount: Amount) -> None:
        _validate_pruning_amount_init(amount)
        self.amount = amount

    def _marks(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        count = _count(self.amount, t.numel())
        mask = default_mask.clone(memory_format=contiguous_format)
        if count:
            mask.view(-1)[ops.topk(self._marks(t).reshape(-1), count, largest=False).indices] = 0
        return mask


class RandomUnstructured(_Unstructured):
    """Entries drawn at random go: `amount` of them, a number or a fraction."""

    def _marks(self, t: Tensor) -> Tensor:
        drawn: Tensor = ops.rand(*t.shape)
        return drawn


class L1Unstructured(_Unstructured):
    """The entries of the lowest absolute values go: `amount` of them, a number or a fraction."""

    def _marks(self, t: Tensor) -> Tensor:
        size: Tensor = t.detach().abs()
        return size


class _Structured(BasePruningMethod):
    """`amount` slices along `dim` go, a number or a fraction: those of the lowest marks."""

    PRUNING_TYPE = "structured"

    def __init__(self, amount: Amount, dim: int) -> None:
        _validate_pruning_amount_init(amount)
        self.amount, self.dim = amount, dim

    def _marks(self, t: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        _validate_structured_pruning(t)
        _validate_pruning_dim(t, self.dim)
        count = _count(self.amount, t.shape[self.dim])
        if not count:
            return default_mask
        gone = ops.topk(self._marks(t), count, largest=False).indices
        kept: Tensor = ops.ones_like(default_mask).index_fill(self.dim, gone, 0)
        return kept * default_mask


class RandomStructured(_Structured):
    """Slices along `dim` drawn at random go: `amount` of them, a number or a fraction."""

    def __init__(self, amount: Amount, dim: int = -1) -> None:
        super().__init__(amount, dim)

    def _marks(self, t: Tensor) -> Tensor:
        drawn: Tensor = ops.rand(t.shape[self.dim])
        return drawn


class LnStructured(_Structured):
    """The slices along `dim` of the smallest norms of order `n` go: `amount` of them, a number or a
    fraction.
    """

    def __init__(self, amount: Amount, n: float | str, dim: int = -1) -> None:
        super().__init__(amount, dim)
        self.n = n

    def _marks(self, t: Tensor) -> Tensor:
        return _compute_norm(t.detach(), self.n, self.dim)


class CustomFromMask(BasePruningMethod):
    """What a mask has zeros for goes."""

    PRUNING_TYPE = "global"

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        if default_mask.shape != self.mask.shape:
            raise AssertionError(
                f"mask shape {self.mask.shape} does not match default_mask shape {default_mask.shape}"
            )
        mask: Tensor = default_mask * self.mask.to(dtype=default_mask.dtype)
        return mask


def identity(module: M, name: str) -> M:
    """Give `module.<name>` a mask of ones; gives the module back."""
    Identity.apply(module, name)
    return module


def random_unstructured(module: M, name: str, amount: Amount) -> M:
    """Prune entries drawn at random, `amount` of them (a fraction if it is a float); gives the module back.

    TypeError or ValueError for an amount that is no count and no fraction.

    >>> import kiln
    >>> layer = kiln.nn.utils.prune.random_unstructured(kiln.nn.Linear(2, 3), "weight", amount=2)
    >>> int(layer.weight_mask.sum())
    4
    """
    RandomUnstructured.apply(module, name, amount)
    return module


def l1_unstructured(module: M, name: str, amount: Amount, importance_scores: Tensor | None = None) -> M:
    """Prune the entries of the lowest absolute values (of `importance_scores` if given), `amount` of them (a
    fraction if it is a float); gives the module back.

    >>> import kiln
    >>> layer = kiln.nn.utils.prune.l1_unstructured(kiln.nn.Linear(2, 3), "weight", amount=0.5)
    >>> sorted(layer.state_dict())
    ['bias', 'weight_mask', 'weight_orig']
    """
    L1Unstructured.apply(module, name, amount=amount, importance_scores=importance_scores)
    return module


def random_structured(module: M, name: str, amount: Amount, dim: int) -> M:
    """Prune slices along `dim` drawn at random, `amount` of them (a fraction if it is a float); gives the
    module back.
    """
    RandomStructured.apply(module, name, amount, dim)
    return module


def ln_structured(
    module: M,
    name: str,
    amount: Amount,
    n: float | str,
    dim: int,
    importance_scores: Tensor | None = None,
) -> M:
    """Prune the slices along `dim` of the smallest norms of order `n` (of `importance_scores` if given),
    `amount` of them (a fraction if it is a float); gives the module back.

    >>> import kiln
    >>> layer = kiln.nn.utils.prune.ln_structured(kiln.nn.Conv2d(5, 3, 2), "weight", amount=0.3, n=2, dim=1)
    >>> int((layer.weight_mask.sum((0, 2, 3)) == 0).sum())
    2
    """
    LnStructured.apply(module, name, amount, n, dim, importance_scores=importance_scores)
    return module


def global_unstructured(
    parameters: Iterable[tuple[Module, str]],
    pruning_method: Callable[..., BasePruningMethod],
    importance_scores: dict[tuple[Module, str], Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Prune entries of several parameters, (module, name) each, as if they were one.

    `pruning_method` is a class of PRUNING_TYPE "unstructured", made of the other arguments;
    `importance_scores` what it sees in place of some parameters. TypeError for other arguments.

    >>> import kiln
    >>> prune, net = kiln.nn.utils.prune, kiln.nn.Sequential(kiln.nn.Linear(10, 4), kiln.nn.Linear(4, 1))
    >>> weights = [(layer, "weight") for layer in net]
    >>> prune.global_unstructured(weights, pruning_method=prune.L1Unstructured, amount=10)
    >>> int(sum((layer.weight == 0).sum() for layer in net))
    10
    """
    if not isinstance(parameters, Iterable):
        raise TypeError("global_unstructured(): parameters is not an Iterable")
    scores = {} if importance_scores is None else importance_scores
    if not isinstance(scores, dict):
        raise TypeError("global_unstructured(): importance_scores must be of type dict")
    owners = list(parameters)
    tensors = [getattr(module, name) for module, name in owners]
    seen = parameters_to_vector([scores.get(owner, t) for owner, t in zip(owners, tensors, strict=True)])
    masks = [
        getattr(module, f"{name}_mask", ops.ones_like(t))
        for (module, name), t in zip(owners, tensors, strict=True)
    ]
    whole = PruningContainer()
    whole._tensor_name = "temp"
    method = pruning_method(**kwargs)
    method._tensor_name = "temp"
    if method.PRUNING_TYPE != "unstructured":
        raise TypeError(
            'Only "unstructured" PRUNING_TYPE supported for the `pruning_method`. Found method '
            f"{pruning_method} of type {method.PRUNING_TYPE}"
        )
    whole.add_pruning_method(method)
    mask = whole.compute_mask(seen, parameters_to_vector(masks))
    start = 0
    for (module, name), tensor in zip(owners, tensors, strict=True):
        stop = start + tensor.numel()
        custom_from_mask(module, name, mask[start:stop].reshape(tensor.shape))
        start = stop


def custom_from_mask(module: M, name: str, mask: Tensor) -> M:
    """Prune what a mask of the parameter's shape has zeros for; gives the module back.

    >>> import kiln
    >>> layer = kiln.nn.utils.prune.custom_from_mask(kiln.nn.Linear(5, 3), "bias", kiln.tensor([0, 1, 0]))
    >>> layer.bias_mask
    tensor([0., 1., 0.])
    """
    CustomFromMask.apply(module, name, mask)
    return module


def remove(module: M, name: str) -> M:
    """Make what pruning left of `module.<name>` the parameter again; gives the module back.

    ValueError if it is not pruned.
    """
    for number, hook in _methods(module, name):
        hook.remove(module)
        del module._forward_pre_hooks[number]
        return module
    raise ValueError(f"Parameter '{name}' of module {module} has to be pruned before pruning can be removed")


def is_pruned(module: Module) -> bool:
    """Whether a parameter of a module, or of one below it, is pruned.

    >>> import kiln
    >>> layer = kiln.nn.Linear(5, 7)
    >>> kiln.nn.utils.prune.is_pruned(layer)
    False
    >>> kiln.nn.utils.prune.is_pruned(kiln.nn.utils.prune.identity(layer, "weight"))
    True
    """
    return any(
        isinstance(hook, BasePruningMethod)
        for m in module.modules()
        for hook in m._forward_pre_hooks.values()
    )


def _methods(module: Module, name: str) -> list[tuple[int, BasePruningMethod]]:
    """What prunes a parameter, none or one, with its number among the module's hooks."""
    hooks = module._forward_pre_hooks.items()
    return [(k, h) for k, h in hooks if isinstance(h, BasePruningMethod) and h._tensor_name == name]


def _scores(scores: Tensor | None, tensor: Tensor) -> Tensor:
    if scores is not None and scores.shape != tensor.shape:
        raise AssertionError(
            f"importance_scores should have the same shape as parameter: {scores.shape}, not {tensor.shape}"
        )
    return tensor if scores is None else scores


# what follows has PyTorch's names: methods that programs define check their arguments by them


def _validate_pruning_amount_init(amount: Any) -> None:
    """TypeError for no number, ValueError for a negative one or a float above 1."""
    if not isinstance(amount, numbers.Real):
        raise TypeError(f"Invalid type for amount: {amount}. Must be int or float.")
    size: Any = amount
    if size < 0 or (not isinstance(amount, numbers.Integral) and size > 1):
        raise ValueError(
            f"amount={amount} should either be a float in the range [0, 1] or a non-negative integer"
        )


def _validate_pruning_amount(amount: Any, tensor_size: int) -> None:
    """ValueError for more entries than there are."""
    if isinstance(amount, numbers.Integral) and int(amount) > tensor_size:
        raise ValueError(
            f"amount={amount} should be smaller than the number of parameters to prune={tensor_size}"
        )


def _validate_structured_pruning(t: Tensor) -> None:
    """ValueError for a vector, which has no slices."""
    if t.ndim <= 1:
        raise ValueError(
            "Structured pruning can only be applied to multidimensional tensors. Found tensor of shape "
            f"{t.shape} with {t.ndim} dims"
        )


def _validate_pruning_dim(t: Tensor, dim: int) -> None:
    """IndexError for a dim that a tensor has not."""
    if dim >= t.ndim:
        raise IndexError(f"Invalid index {dim} for tensor of size {t.shape}")


def _compute_nparams_toprune(amount: Any, tensor_size: int) -> int:
    """How many of `tensor_size` entries an amount is."""
    return int(amount) if isinstance(amount, numbers.Integral) else round(amount * tensor_size)


def _compute_norm(t: Tensor, n: Any, dim: int) -> Tensor:
    """The norm of order `n` of each slice along `dim`: (size of dim,)."""
    norm: Tensor = ops.norm(t, n, [k for k in range(t.ndim) if k != dim % t.ndim])
    return norm


def _count(amount: Any, size: int) -> int:
    count = _compute_nparams_toprune(amount, size)
    _validate_pruning_amount(amount, size)
    return count


name_all(globals(), "kiln.nn")
