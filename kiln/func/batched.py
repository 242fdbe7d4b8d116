"""`Batched`: what a mapped function sees of a tensor: one sample, standing for all of them.

    Batched(shape [n])  =  whole (a tensor of shape [B, n], or a Batched of an outer level), level

It says that it is a Tensor, but the core does not take it for one: a call of an op with one comes to
`interpret` (as calls on graph values come to `Op.trace`), is done for the whole batch by the rules, and gives
Batched again. Methods are those of the table, so calls of ordinary tensors know nothing of this.
"""

from __future__ import annotations

from math import prod
from typing import Any, NoReturn

from kiln import _core, ops
from kiln.func import rules
from kiln.func.composite import Look, batched_op
from kiln.func.levels import Level, levels
from kiln.func.rules import Operand, in_batch
from kiln.graph.graph import Value
from kiln.graph.size import Size
from kiln.late import later
from kiln.ops.creation import interop
from kiln.ops.elementwise import arithmetic
from kiln.ops.indexing import getitem
from kiln.ops.random.generator import SHARED
from kiln.ops.views import splits
from kiln.scalars.scalar import Scalar
from kiln.table import registry
from kiln.table.arguments import broadcast_shape
from kiln.table.record import INTERPRETERS, Op

_NO_ITEM = (
    "vmap: It looks like you're calling .item() on a Tensor. We don't support vmap over calling .item() on a "
    "Tensor, please try to rewrite what you're doing with other operations: a sample's number is a different "
    "one for each sample of the batch."
)
_NO_BRANCH = (
    "vmap: It looks like you're attempting to use a Tensor in some data-dependent control flow. We don't "
    "support that: the samples of a batch may not agree on the branch. Use where(condition, a, b)."
)
# what programs ask of a tensor's kind
KINDS = (
    "is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_nested is_quantized is_sparse "
    "is_sparse_csr is_vulkan is_xla is_xpu"
).split()
_NO_MEMORY = "Cannot access data pointer of Tensor that doesn't have storage: {} of a sample inside vmap"


class Batched:
    """One sample of a batch, inside a mapped function."""

    __slots__ = ("__weakref__", "level", "whole")

    def __init__(self, whole: Any, level: Level) -> None:
        self.whole, self.level = whole, level

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return _core.Tensor

    # -- what is known of a sample without computing ----------------------------------------------------

    @property
    def shape(self) -> Any:
        """The sizes of one sample."""
        return _core.Size(tuple(self.whole.shape)[1:])

    @property
    def ndim(self) -> int:
        """How many dims a sample has."""
        return int(self.whole.ndim) - 1

    def dim(self) -> int:
        """How many dims a sample has."""
        return self.ndim

    ndimension = dim

    def size(self, dim: int | None = None) -> Any:
        """The sizes of one sample, or the size of one dim."""
        return self.shape if dim is None else self.shape[dim]

    def stride(self, dim: int | None = None) -> Any:
        """The strides of one sample, or that of one dim."""
        strides = tuple(self.whole.stride())[1:]
        return strides if dim is None else strides[dim]

    def is_contiguous(self, memory_format: Any = None) -> bool:
        """Whether a sample's elements lie in memory in order."""
        expected = 1
        for size, stride in reversed(list(zip(self.shape, self.stride()))):
            if size != 1 and stride != expected:
                return self.numel() == 0
            expected *= size
        return True

    def storage_offset(self) -> int:
        """Where the first sample begins in its storage."""
        return int(self.whole.storage_offset())

    def numel(self) -> int:
        """How many elements a sample has."""
        return int(self.shape.numel())

    nelement = numel

    def element_size(self) -> int:
        """Bytes per element."""
        return int(self.whole.element_size())

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float one."""
        return bool(self.whole.dtype.is_floating_point)

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a 0-d tensor")
        return int(self.shape[0])

    def __iter__(self) -> Any:
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return iter(splits.unbind(self, 0))

    def __repr__(self) -> str:
        return f"Batched(level={self.level.number}, size={self.level.size}, whole={self.whole!r})"

    __str__ = __repr__

    # -- history ----------------------------------------------------------------------------------------

    @property
    def requires_grad(self) -> bool:
        """Whether gradients are recorded."""
        return bool(self.whole.requires_grad)

    def detach(self) -> Batched:
        """The same memory without history."""
        return Batched(self.whole.detach(), self.level)

    @property
    def data(self) -> Batched:
        """The same memory without history; writes through it are not tracked."""
        return Batched(self.whole.data, self.level)

    def requires_grad_(self, requires_grad: bool = True) -> NoReturn:
        """Not inside a mapped function."""
        raise RuntimeError(
            "You are attempting to call Tensor.requires_grad_() (or perhaps using "
            "torch.autograd.functional.* APIs) inside of a function being transformed by a functorch "
            "transform: use kiln.func.grad, vjp, jacrev or hessian there"
        )

    # -- what a sample does not have ----------------------------------------------------------------------

    def item(self) -> NoReturn:
        """A sample has no one value."""
        raise RuntimeError(_NO_ITEM)

    __float__ = __int__ = __index__ = item

    def __bool__(self) -> NoReturn:
        raise RuntimeError(_NO_BRANCH)

    def tolist(self) -> NoReturn:
        """A sample has no one value."""
        raise RuntimeError(_NO_MEMORY.format("tolist()"))

    def numpy(self, *args: Any, **kwargs: Any) -> NoReturn:
        """A sample has no memory of its own."""
        raise RuntimeError(_NO_MEMORY.format("numpy()"))

    def data_ptr(self) -> NoReturn:
        """A sample has no memory of its own."""
        raise RuntimeError(_NO_MEMORY.format("data_ptr()"))

    def __setitem__(self, key: Any, value: Any) -> None:
        getitem.setitem(self, key, value)

    def __contains__(self, element: Any) -> bool:
        return bool((self == element).any())

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """The sample in another dtype."""
        return interop.to(self, *args, **kwargs)

    def repeated(self, y: Any) -> Batched:
        """An array as one of each sample, in memory of its own."""
        full = in_batch(Operand(y, False), self.level.size)
        full = self.whole.repeated(full) if type(self.whole) is Batched else arithmetic.clone(full)
        return Batched(full, self.level)

    @staticmethod
    def outside(
        call: Any, name: str, compute: Any, derivative: Any, inputs: tuple[Any, ...]
    ) -> list[Batched]:
        """Another library's function of matrices, which takes dims in front for a batch of them."""
        level = innermost(list(inputs))
        assert level is not None
        ndim = max(x.ndim for x in inputs)
        given = [in_batch(Operand(unwrapped(x, level), _at(x, level)), level.size, ndim) for x in inputs]
        return [Batched(y, level) for y in call(name, compute, derivative, *given)]

    applied = staticmethod(later("kiln.func.custom", "applied"))  # a user's autograd.Function with samples

    def __deepcopy__(self, memo: Any) -> Any:
        return arithmetic.clone(self)


def _attach() -> None:
    """Methods and operators as tensors have them."""
    own = set(vars(Batched))
    tensor: Any = _core.Tensor
    for name in ("dtype", "grad_fn", "is_leaf", "_version", "device", "layout", "itemsize", *KINDS):
        setattr(Batched, name, _of_whole(name))
    for name in ("T", "mT", "H", "mH", "real", "where", "type_as", "cpu", "__format__"):
        setattr(Batched, name, vars(tensor)[name])
    for name, dtype in _CASTS.items():
        setattr(Batched, name, _cast(dtype))
    registry.attach(Batched, lambda function: function, lambda name: name not in own | _CASTS.keys())
    for name, function in ops.OPERATORS.items():
        setattr(Batched, f"__{name}__", _method(function))
        if name in ops.REFLECTED:
            setattr(Batched, f"__r{name}__", _reflected(function))
            setattr(Batched, f"__i{name}__", _in_place(function))
    Batched.__hash__ = object.__hash__  # type: ignore[method-assign]


_CASTS = {
    "bool": "bool", "byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64",
    "half": "float16", "bfloat16": "bfloat16", "float": "float32", "double": "float64",
}  # fmt: skip


def _of_whole(name: str) -> Any:
    return property(lambda self: getattr(self.whole, name))


def _cast(dtype: str) -> Any:
    return lambda self: self if self.dtype.name == dtype else arithmetic.convert(self, dtype)


def _method(function: Any) -> Any:
    return lambda self, *args, **kwargs: function(self, *args, **kwargs)


def _reflected(function: Any) -> Any:
    return lambda self, other: function(other, self)


def _in_place(function: Any) -> Any:
    return lambda self, other: function(self, other, out=self)


# -- calls of ops -------------------------------------------------------------------------------------------


def interpret(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of an op, if a Batched is among its arguments; the innermost level is done first."""
    given = {name: value for name, value in kwargs.items() if name != "out"}
    out = kwargs.get("out")
    level = innermost([*args, *given.values()])
    if type(out) is Batched and (level is None or level.number <= out.level.number):
        return _written(op, out, op.handle(*_apart(out, args), **given))
    if level is None:
        return NotImplemented
    if not level.alive:
        raise RuntimeError(
            f"{op.name}: a tensor of one sample was kept after the vmap that made it returned; return it "
            "from the mapped function instead"
        )
    if out is not None:
        raise RuntimeError(
            f"vmap: {op.name}_(self, *extra_args) is not possible because there exists a Tensor `other` in "
            "extra_args that has more elements than `self`. This happened due to `other` being vmapped over "
            "but `self` not being vmapped over in a vmap. Please try to use out-of-place operators instead "
            f"of {op.name}_."
        )
    bound = op.bind(args, given)
    return _composite(op, bound, level) if op.kind == "composite" else _primitive(op, bound, level)


def innermost(values: list[Any]) -> Level | None:
    found: Level | None = None
    for x in values:
        inside = innermost(list(x)) if type(x) in (list, tuple) else x.level if type(x) is Batched else None
        if inside is not None and (found is None or inside.number > found.number):
            found = inside
    return found


def _at(x: Any, level: Level) -> bool:
    return type(x) is Batched and x.level is level


def unwrapped(x: Any, level: Level) -> Any:
    """An argument as the batch has it."""
    return x.whole if type(x) is Batched and x.level is level else x


def _primitive(op: Op, bound: list[Any], level: Level) -> Any:
    operands: list[Operand] = []
    attrs: list[Any] = []
    for param, value in zip(op.params, bound):
        if param.kind in "SZ":
            attrs.append(value)
        else:
            items = value if param.kind == "L" else [value]
            operands += [Operand(unwrapped(x, level), _at(x, level)) for x in items]
    return Batched(rules.batched(op, operands, attrs, level.size), level)


def _composite(op: Op, bound: list[Any], level: Level) -> Any:
    flags: list[Any] = []
    args: list[Any] = []
    for param, value in zip(op.params, bound):
        if param.kind == "L":
            flags.append(tuple(_at(x, level) for x in value))
            args.append([unwrapped(x, level) for x in value])
        else:
            flags.append(None if param.kind in "SZ" or value is None else _at(value, level))
            args.append(unwrapped(value, level))
    ranks = tuple(a.ndim - (f is True) if hasattr(a, "stride") else -1 for a, f in zip(args, flags))
    result = batched_op(op, Look(tuple(flags), ranks)).handle(*args)
    if isinstance(result, (tuple, list)):
        return type(result)(Batched(y, level) for y in result)
    return Batched(result, level)


def _apart(out: Batched, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments whose values a gradient may read when `out`, which may be among them, was written."""
    tensors = [x for x in args if isinstance(x, _core.Tensor)]
    if not (_core.grad_enabled() and any(x.requires_grad for x in tensors)):
        return args
    return tuple(arithmetic.clone(x) if x is out else x for x in args)


def _written(op: Op, out: Batched, result: Any) -> Batched:
    """A result written into what was given for it, which is returned."""
    if broadcast_shape(result, out, op.name) != tuple(out.shape):
        raise RuntimeError(
            f"output with shape {list(out.shape)} doesn't match the broadcast shape {list(result.shape)}"
        )
    if _at(result, out.level):
        result = in_batch(Operand(result.whole, True), out.level.size, out.ndim)
    getitem.copy_(out.whole, result)
    return out


def everywhere(x: Any, level: Level) -> Any:
    """The whole batch of a value: of one that is the same for all samples, repeated."""
    return x.whole if _at(x, level) else in_batch(Operand(x, False), level.size)


def expect_randomness() -> None:
    """RuntimeError where no random numbers are to be drawn."""
    if any(level.randomness == "error" for level in levels()):
        raise RuntimeError(
            "vmap: called random operation while in randomness error mode. Please either use the 'same' "
            "or 'different' randomness flags on vmap or perform the randomness operation out of vmap"
        )


def reserved(count: int, take: Any) -> tuple[Any, Any]:
    """(seed, position) of random numbers for every sample: the same for all, or a position for each."""
    expect_randomness()
    own = [level for level in levels() if level.randomness == "different"]
    samples = prod(level.size for level in own)
    seed, position = take(count * samples)
    for k, level in enumerate(own):
        samples //= level.size
        steps = ops.arange(level.size) * (count * samples)
        before = position if k == 0 else in_batch(Operand(position, False), level.size)
        position = Batched(steps + before, level)
    return seed, position


_attach()
SHARED.append(reserved)
_core.set_symbolic_types((Value, Scalar, Size, Batched))
INTERPRETERS.append(interpret)
