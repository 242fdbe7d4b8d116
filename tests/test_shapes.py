"""Creation, shapes and padding as PyTorch has them: a table of calls, and views drawn at random."""

from __future__ import annotations

import warnings
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings

import kiln

torch = pytest.importorskip("torch", reason="PyTorch, the tests' peer, is not installed")

CALLS = """
k.arange(5)
k.arange(end=5)
k.arange(start=1,end=5)
k.arange(1,5,2.)
k.arange(k.tensor(3))
k.arange(0,2.5,dtype=k.int64)
k.arange(5,0)
k.arange(5,0,-2)
k.arange(float('nan'))
k.arange(0,float('inf'))
k.arange(3,out=k.zeros(3))
k.arange(3,out=k.zeros(3),dtype=k.int64)
k.arange(3,dtype=k.float16)
k.arange(3,dtype=k.uint8)
k.arange(True)
k.range(0,2)
k.range(2,0,-1)
k.range(0,1,0.3)
k.range(0,3,dtype=k.int32)
k.range(1,0)
k.linspace(0,5,3,dtype=k.int64)
k.linspace(0,1,5)
k.linspace(k.tensor(0.),k.tensor(2.),3)
k.linspace(0,10,4,dtype=k.int32)
k.linspace(10,0,7,dtype=k.int32)
k.linspace(0,1,1)
k.linspace(0,1,0)
k.linspace(0,1,-1)
k.linspace(0,1,3,out=k.zeros(3,dtype=k.float64))
k.logspace(0,2,3)
k.logspace(0,2,3,base=2,dtype=k.int64)
k.logspace(-1,1,4,2.0)
k.logspace(0,2,-1)
k.logspace(1,1,1)
k.scalar_tensor(3)
k.scalar_tensor(3,dtype=k.int64)
k.scalar_tensor(True)
k.empty_strided((2,3),(1,2)).stride()
k.empty_strided((2,3),(1,))
k.empty_strided((0,3),(1,1)).shape
k.empty_strided((2,3),(1,2),dtype=k.int8).dtype.itemsize
k.empty_permuted((2,3),(1,0)).stride()
k.empty_permuted((2,3),(1,1))
k.empty_permuted((2,3),(0,))
k.empty_permuted((2,3,4),(2,0,1)).stride()
k.tril_indices(2,3)
k.tril_indices(3,3,-1)
k.triu_indices(3,4,1)
k.triu_indices(2,-3)
k.triu_indices(3,3,-5)
k.tril_indices(2,3,dtype=k.int32)
k.tril_indices(2,3,dtype=k.float32)
k.tril_indices(0,3)
k.hann_window(5)
k.hann_window(1)
k.hann_window(0)
k.hann_window(-1)
k.hann_window(4,dtype=k.int64)
k.hann_window(4,False)
k.hann_window(4,periodic=False,dtype=k.float64,requires_grad=True)
k.hamming_window(4,True,0.5)
k.hamming_window(4,True,0.5,0.3)
k.blackman_window(4)
k.blackman_window(7,False)
k.kaiser_window(4)
k.kaiser_window(5,True,3.)
k.kaiser_window(5,False,beta=3.)
k.bartlett_window(5)
k.bartlett_window(4,False)
k.bartlett_window(2,False)
k.hann_window(2,False)
k.hann_window(2)
k.asarray([1,2])
k.asarray([1,2],copy=False)
k.asarray(np.arange(3.),copy=False)
k.asarray(np.arange(3.),dtype=k.float32)
k.asarray(3.5)
k.asarray(k.arange(3.),requires_grad=True)
k.asarray(k.arange(3.),dtype=k.int32,copy=False)
k.zeros(2,layout=k.strided)
k.zeros(2,out=k.ones(2,dtype=k.int64))
k.zeros(2,out=k.zeros(2),dtype=k.int64)
k.zeros(size=(2,3))
k.zeros((2,3),dtype=k.bool)
k.zeros([2,0])
k.zeros(())
k.zeros(-1)
k.zeros(2.5)
k.ones(2,requires_grad=True)
k.ones(2,dtype=k.int32,requires_grad=True)
k.full((2,),1.5,out=k.zeros(2,dtype=k.int64))
k.full((2,),k.tensor(3))
k.full((2,),k.tensor(3.5))
k.full((2,2),True)
k.full((2,),300,dtype=k.uint8)
k.full((2,),2,layout=k.strided,dtype=k.float16)
k.full_like(k.zeros(2),k.tensor(3))
k.full_like(k.zeros(2,dtype=k.int64),1.5)
k.zeros_like(k.ones(2,3),dtype=k.int64,memory_format=k.preserve_format)
k.ones_like(k.zeros(2,3),requires_grad=True)
k.zeros_like(k.ones(2,3).t(),memory_format=k.contiguous_format)
k.empty(2,3,memory_format=k.contiguous_format).shape
k.empty(2,pin_memory=False).shape
k.eye(2,3)
k.eye(3,2,dtype=k.int64)
k.eye(2,out=k.zeros(2,2))
k.eye(-1)
k.eye(0)
k.zeros(3).new_tensor([1,2])
k.zeros(3).new_tensor([1,2],dtype=k.int8)
k.zeros(3).new_zeros(2,3)
k.zeros(3).new_zeros((2,3),dtype=k.int64,requires_grad=False)
k.zeros(3).new_ones(size=(2,))
k.zeros(3).new_full((2,),True)
k.zeros(3).new_full((2,),3,dtype=k.int64)
k.zeros(3,dtype=k.int64).new_empty_strided((2,2),(1,2)).stride()
k.zeros(3).new_empty((2,)).shape
k.zeros(3).new_empty(2,4).shape
k.tensor([1.,2.],requires_grad=True)
k.zeros(2).layout==k.strided
k.zeros(2).itemsize
k.zeros(2,3).nbytes
k.constant_pad_nd(k.zeros(2,dtype=k.int64),(1,1),1.5)
k.constant_pad_nd(k.zeros(2,dtype=k.bool),(1,1),2)
k.constant_pad_nd(k.zeros(2,dtype=k.uint8),(1,1),300)
k.constant_pad_nd(k.zeros(2,dtype=k.uint8),(1,1),-1)
F.pad(k.zeros(2),(1,1),value=float('nan')).isnan()
F.pad(k.arange(6.).reshape(1,2,3),(-4,2))
F.pad(k.arange(3.)[None],(2,-1),'reflect')
F.pad(k.arange(3.)[None],(-2,3),'replicate')
F.pad(k.arange(3.)[None],(1,-1),'circular')
F.pad(k.arange(3.)[None],(0,0))
F.pad(k.arange(3.)[None],())
F.pad(k.tensor(1.),())
F.pad(k.tensor(1.),(1,1))
F.pad(k.arange(24.).reshape(1,2,3,4),(1,1,1,1),'reflect')
F.pad(k.arange(24.).reshape(1,1,2,3,4),(1,1,1,1,1,1),'reflect')
F.pad(k.arange(24.).reshape(1,1,2,3,4),(1,2,1,0,1,1),'circular')
F.pad(k.arange(24.).reshape(1,1,2,3,4),(1,2,1,0,1,1),'replicate')
F.pad(k.zeros(2,3),[1,1],mode='constant',value=2)
k.combinations(k.arange(3),0)
k.combinations(k.arange(3),5)
k.combinations(k.arange(0),2)
k.diff(k.tensor([1,3,2]),n=0)
k.diff(k.tensor([1,3,2],dtype=k.uint8))
k.diff(k.tensor([True,False]))
k.diff(k.tensor([1,3]),prepend=k.tensor([1.5,2]))
k.diff(k.zeros(0))
k.diff(k.zeros(2,0),dim=0)
k.trapezoid(k.tensor([1,2,4]))
k.trapezoid(k.tensor([1,2,4],dtype=k.int32))
k.trapezoid(k.tensor([1.,2,4]),k.tensor([0.,1,3]))
k.trapezoid(k.tensor([1.]))
k.trapezoid(k.zeros(0))
k.trapezoid(k.ones(2,3),k.tensor([1.,2.]),dim=0)
k.trapezoid(k.ones(2,3),k.arange(6.).reshape(2,3))
k.trapezoid(k.ones(2,3),k.zeros(1))
k.trapezoid(k.ones(2,3),dx=k.tensor(2.))
k.trapezoid(k.zeros(2,3,dtype=k.bool))
k.gradient(k.tensor([1.,4,9]))
k.gradient(k.tensor([1.,4,9]),spacing=2)
k.gradient(k.tensor([1.,4,9]),spacing=(k.tensor([0.,1,3]),))
k.gradient(k.tensor([1.,4,9]),edge_order=2)
k.gradient(k.tensor([1.,4]))
k.gradient(k.tensor([1.,4]),edge_order=2)
k.gradient(k.tensor([1.]))
k.gradient(k.ones(2,3),dim=0)
k.gradient(k.arange(6.).reshape(2,3),spacing=[1.,2.])
k.gradient(k.arange(6.).reshape(2,3),spacing=[1.,2.],dim=1)
k.gradient(k.tensor([1,4,9]))
k.gradient(k.tensor([1,4,9,7]),spacing=2)
k.gradient(k.ones(2,3),edge_order=3)
k.gradient(k.ones(2,3),dim=(0,0))
k.gradient(k.arange(12.).reshape(3,4),dim=(1,))
k.gradient(k.arange(12.).reshape(3,4),spacing=(k.tensor([0.,1,3]),k.tensor([0.,1,3,4])),edge_order=2)
k.unravel_index(k.tensor([3,5]),(2,3))
k.unravel_index(k.tensor(4),(2,3))
k.unravel_index(k.tensor([7]),(2,3))
k.unravel_index(k.tensor([1.]),(2,3))
k.unravel_index(k.tensor([7]),6)
k.unravel_index(k.tensor([-1]),(2,3))
k.unravel_index(k.tensor([1]),(-2,3))
k.unravel_index(k.tensor([1],dtype=k.int32),6)
k.vander(k.tensor([1,2]),0)
k.vander(k.tensor([2],dtype=k.int32),3)
k.vander(k.tensor([True]),3)
k.vander(k.zeros(0))
k.trace(k.tensor([[1,2],[3,4]],dtype=k.int32))
k.trace(k.zeros(2,2,dtype=k.bool))
k.cross(k.arange(6.).reshape(2,3),k.ones(2,3),dim=-1)
k.cross(k.zeros(3,0),k.zeros(3,0)).shape
k.cross(k.arange(3.).reshape(3,1),k.ones(3,4),dim=0)
k.broadcast_shapes((2,1),3,(-1,))
k.broadcast_shapes()
k.broadcast_shapes((2,),(3,))
k.broadcast_shapes(4,(3,1),(1,1,1))
k.broadcast_tensors(k.zeros(2,3),k.zeros(4))
k.broadcast_tensors([k.zeros(2)])
k.atleast_3d(k.zeros(2),k.zeros(2,3),k.tensor(1.))
k.atleast_1d()
k.meshgrid(k.zeros(2),k.zeros(3,dtype=k.int64))
k.meshgrid(k.arange(2),k.arange(3),indexing='xy')
k.hstack([k.tensor(1.),k.tensor(2.)])
k.vstack([k.zeros(2),k.zeros(1,2)])
k.dstack([k.zeros(2,3),k.zeros(2,3,4)]).shape
k.column_stack([k.tensor(1.),k.zeros(1,2)])
k.row_stack([k.zeros(2),k.zeros(1,2)])
k.hstack([k.zeros(2),k.zeros(1,2)])
k.hstack([])
k.hstack([k.zeros(2),k.zeros(2)],out=k.ones(4))
k.block_diag()
k.block_diag(k.ones(2,2),k.tensor(3),k.tensor([1,2]))
k.block_diag(k.zeros(1,0),k.ones(2,2)).shape
k.cartesian_prod(k.arange(2),k.arange(3),k.arange(2))
k.cartesian_prod(k.tensor(1),k.arange(3))
k.repeat_interleave(k.tensor([1,2,3]),k.tensor([2]))
k.repeat_interleave(k.tensor([0,2,1]))
k.repeat_interleave(k.tensor([0,2,1]),output_size=3)
k.repeat_interleave(k.arange(6).reshape(2,3),k.tensor([1,2]),dim=0,output_size=3)
k.repeat_interleave(k.arange(6).reshape(2,3),k.tensor([1,2]),dim=0,output_size=4)
k.repeat_interleave(k.tensor(5),3)
k.repeat_interleave(k.arange(3),k.tensor([[1,1,1]]))
k.repeat_interleave(k.arange(3),k.tensor([-1,1,1]))
k.repeat_interleave(k.arange(3),2,dim=2)
k.repeat_interleave(k.zeros(0),2)
k.arange(4).repeat(2,2)
k.arange(4).repeat((2,))
k.arange(4).repeat(0)
k.tile(k.arange(4),(2,1,2))
k.tile(k.zeros(2,2),())
k.arange(6).reshape(2,3).tile(2)
k.roll(k.tensor(1),1)
k.roll(k.tensor(1),1,0)
k.roll(k.arange(6).reshape(2,3),(1,1))
k.roll(k.arange(6).reshape(2,3),-7)
k.roll(k.arange(6).reshape(2,3),(1,2),(0,0))
k.flip(k.arange(6).reshape(2,3),())
k.flip(k.tensor(3),())
k.flip(k.tensor(3),(0,))
k.arange(6).reshape(2,3).flip(0,1)
k.arange(6).reshape(2,3).flip([1])
k.rot90(k.arange(6).reshape(2,3),5,[1,0])
k.rot90(k.arange(6).reshape(2,3),-2)
k.rot90(k.zeros(2,2),1,(0,-2))
k.tril(k.ones(3,3),1)
k.triu(k.ones(2,3,3),diagonal=-1)
k.tril(k.ones(3))
k.tril(k.ones(2,2,dtype=k.bool))
k.ones(3,3).tril_(-1)
k.tril(k.full((2,2),float('nan')))
F.pixel_shuffle(k.zeros(3,2,2),2)
F.pixel_shuffle(k.arange(36.).reshape(9,2,2),3)
F.pixel_unshuffle(k.arange(36.).reshape(1,1,6,6),3)
k.channel_shuffle(k.arange(24.).reshape(1,6,2,2),3)
k.diagonal(k.zeros(2,3),5).shape
k.diag(k.zeros(1,2,3))
k.diag(k.arange(3),-2)
k.diag(k.arange(6).reshape(2,3),1)
k.diag_embed(k.arange(6).reshape(2,3),1,0,2)
k.diag_embed(k.tensor(1))
k.diagflat(k.tensor(2),2)
k.diagflat(k.arange(4).reshape(2,2),-1)
k.zeros(7,3).fill_diagonal_(1,wrap=True)
k.zeros(7,3).fill_diagonal_(1)
k.zeros(3,3,3).fill_diagonal_(1)
k.zeros(3,3,2).fill_diagonal_(1)
k.zeros(3).fill_diagonal_(1)
k.zeros(2,5).fill_diagonal_(1,wrap=True)
k.zeros(6,2).t().fill_diagonal_(3)
k.select_scatter(k.zeros(2,3),k.ones(3,dtype=k.int64),0,0)
k.slice_scatter(k.zeros(4,3),k.ones(2,3),0,-3,-1)
k.slice_scatter(k.zeros(4),k.ones(4))
k.slice_scatter(k.zeros(4),k.ones(0),0,3,2)
k.diagonal_scatter(k.zeros(2,3),k.ones(2),1)
k.diagonal_scatter(k.zeros(2,3,2),k.ones(3,2),0,0,2)
k.as_strided_scatter(k.zeros(6),k.ones(2),(2,),(3,),1)
k.as_strided_scatter(k.zeros(6),k.ones(2),(2,),(7,),1)
k.as_strided(k.arange(6),(2,2),(1,2),1)
k.zeros(2,3).t_().stride()
k.zeros(2,3,4).transpose_(0,2).shape
k.zeros(1,3).squeeze_().shape
k.zeros(3).unsqueeze_(1).shape
k.zeros(2,3).swapdims_(0,1).shape
k.arange(4).as_strided_((2,2),(1,2))
k.zeros(2,requires_grad=True).unsqueeze_(0)
k.tensor_split(k.arange(7),k.tensor([2,4]))
k.tensor_split(k.arange(7),k.tensor(3))
k.tensor_split(k.arange(7),-1)
k.arange(7).tensor_split(indices=[1,3])
k.arange(7).tensor_split(sections=2)
k.hsplit(k.arange(6).reshape(2,3),3)
k.hsplit(k.arange(6),[2,4])
k.vsplit(k.zeros(4,2),0)
k.dsplit(k.zeros(1,1,4),(1,2))
k.zeros(4,2).hsplit(1,2)
k.zeros(2,3).view(6,1).shape
k.ravel(k.arange(6).reshape(2,3).t())
k.tensor(3).ravel()
k.zeros(2,3).sum_to_size(3)
k.zeros(2,3).sum_to_size(4)
k.zeros(2,3).sum_to_size((2,1))
k.zeros(2,3).numel(), k.numel(k.zeros(2,0))
k.zeros(2,3).is_same_size(k.zeros(2,3))
k.narrow_copy(k.arange(5),0,1,2)
k.split_with_sizes(k.arange(5),[2,3])
k.slice_copy(k.arange(5),0,1,None,2)
k.unbind_copy(k.arange(4).reshape(2,2))
k.zeros(3,4).adjoint().shape
k.adjoint(k.zeros(3))
k.zeros(0).unfold(0,0,1).shape
k.arange(5).unfold(0,2,3)
k.arange(12).reshape(3,4).unfold(1,2,2).unfold(0,2,1)
k.zeros(2,3,dtype=k.int32).new_tensor(k.zeros(2))
"""


def shown(x: Any) -> Any:
    """A result as plain data: dtype, shape, values to 5 digits."""
    if hasattr(x, "requires_grad"):
        flat = x.detach().to(torch.float64 if isinstance(x, torch.Tensor) else kiln.float64).reshape(-1)
        values = [round(v, 5) + 0.0 for v in flat.tolist()]
        return str(x.dtype).rpartition(".")[2], tuple(x.shape), values, x.requires_grad
    if isinstance(x, (tuple, list)):
        return tuple(map(shown, x))
    return x


def outcome(call: str, framework: Any) -> Any:
    """What the call gives, or the type of what it raises."""
    names = {"k": framework, "F": framework.nn.functional, "np": np}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return shown(eval(call, names))
        except Exception as error:
            return type(error)


@pytest.mark.parametrize("call", CALLS.split("\n")[1:-1])
def test_calls(call: str) -> None:
    """The same results and types of exceptions as PyTorch's."""
    assert repr(outcome(call, kiln)) == repr(outcome(call, torch))


# Views: each strategy draws a call that fits a shape.

Shape = tuple[int, ...]


def dims(ndim: int) -> Any:
    return st.integers(-ndim, ndim - 1)


@st.composite
def factored(draw: Any, total: int) -> list[int]:
    """Sizes whose product is `total`."""
    sizes, rest = [], total
    while rest > 1 and len(sizes) < 4:
        size = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
        sizes.append(size)
        rest //= size
    return [*sizes, rest] if total else draw(st.permutations([0, 2, 3]))


@st.composite
def views(draw: Any, shape: Shape) -> tuple[str, tuple[Any, ...]]:
    """A method that gives a view (or several) and its arguments."""
    ndim = len(shape)
    total = int(np.prod(shape))
    names = ["unsqueeze", "squeeze_all", "expand", "reshape", "view", "permute", "T"]
    if ndim:
        names += ["select", "narrow", "slice", "squeeze", "transpose", "movedim", "unbind", "split", "chunk"]
        names += ["tensor_split", "unfold", "flatten", "unflatten"]
    if ndim >= 2:
        names += ["diagonal", "diagonal", "mT"]
    name = draw(st.sampled_from(names))
    dim = draw(dims(ndim)) if ndim else 0
    size = shape[dim] if ndim else 1
    if name == "unsqueeze":
        return name, (draw(st.integers(-ndim - 1, ndim)),)
    if name in ("squeeze_all", "T", "mT"):
        return name, ()
    if name == "expand":
        lead = draw(st.lists(st.integers(0, 2), max_size=1))
        kept = [draw(st.sampled_from((2, 1, -1) if n == 1 else (n, -1))) for n in shape]
        return name, ((*lead, *kept),)
    if name in ("reshape", "view"):
        return name, (draw(factored(total)),)
    if name == "permute":
        return name, (draw(st.permutations(range(ndim))),)
    if name in ("select", "unfold"):
        if not size:
            return "squeeze_all", ()
        length = draw(st.integers(0, size))
        return (
            (name, (dim, draw(st.integers(-size, size - 1))))
            if name == "select"
            else (name, (dim, length, draw(st.integers(1, 3))))
        )
    if name in ("narrow", "slice"):
        start = draw(st.integers(0, size))
        if name == "narrow":
            return name, (dim, start, draw(st.integers(0, size - start)))
        return name, (
            dim,
            draw(st.integers(-size - 1, size + 1)),
            draw(st.integers(-size - 1, size + 1)),
            draw(st.integers(1, 3)),
        )
    if name == "squeeze":
        return name, (tuple(draw(st.sets(st.integers(0, ndim - 1)))),)
    if name in ("transpose", "movedim"):
        return name, (dim, draw(dims(ndim)))
    if name == "diagonal":
        other = draw(dims(ndim).filter(lambda k: k % ndim != dim % ndim))
        return name, (draw(st.integers(-3, 3)), dim, other)
    if name == "unbind":
        return name, (dim,)
    if name == "flatten":
        first = dim % ndim
        return name, (first, draw(st.integers(first, ndim - 1)))
    if name == "unflatten":
        return name, (dim, draw(factored(size)))
    if name == "tensor_split" and draw(st.booleans()):
        return name, (draw(st.lists(st.integers(-4, 6), max_size=3)), dim)
    return name, (draw(st.integers(1, 4)), dim)


def apply(x: Any, name: str, args: tuple[Any, ...], pick: int) -> Any:
    """The view; of several the one to go on with."""
    if name == "slice":
        dim, *key = args
        return x[(slice(None),) * (dim % x.ndim) + (slice(*key),)]
    if name in ("T", "mT"):
        return x.mT if name == "mT" else x.permute(tuple(range(x.ndim)[::-1]))
    result = x.squeeze() if name == "squeeze_all" else getattr(x, name)(*args)
    if not isinstance(result, (tuple, list)):
        return result
    return result[pick % len(result)] if result else x


def geometry(x: Any) -> Any:
    """Shape, offset, and strides where these say anything."""
    if x.numel() == 0:
        return tuple(x.shape)
    strides = tuple(s for s, n in zip(x.stride(), x.shape) if n != 1)
    return tuple(x.shape), strides, x.storage_offset(), x.is_contiguous()


def storage(x: Any) -> int:
    return int(x.untyped_storage().data_ptr())


@settings(max_examples=60)
@given(st.data())
def test_views(data: Any) -> None:
    """Chains of views: shapes, strides, offsets, values, gradients, and what shares memory, as PyTorch's."""
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=4)))
    count = int(np.prod(shape))
    x = kiln.arange(float(count)).reshape(shape).requires_grad_()
    x_ = torch.arange(float(count)).reshape(shape).requires_grad_()
    y, y_, trail = x, x_, []
    for _ in range(data.draw(st.integers(1, 4))):
        name, args = data.draw(views(tuple(y_.shape)))
        pick = data.draw(st.integers(0, 5))
        trail.append((name, args, pick))
        try:
            z_ = apply(y_, name, args, pick)
        except RuntimeError:  # a view across strides
            with pytest.raises(RuntimeError):
                apply(y, name, args, pick)
            continue
        y, y_ = apply(y, name, args, pick), z_
        assert geometry(y) == geometry(y_), trail
        assert y.tolist() == y_.tolist(), trail
        if count and y_.numel():
            assert (storage(y) == storage(x)) == (storage(y_) == storage(x_)), trail
    (y * y).sum().backward()
    (y_ * y_).sum().backward()
    assert x.grad.tolist() == x_.grad.tolist(), trail


shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


@given(shapes, shapes, shapes)
def test_broadcasting(a: Shape, b: Shape, c: Shape) -> None:
    """Shapes broadcast to PyTorch's, or fail where its do."""
    call = f"k.broadcast_shapes({a}, {b}, {c})"
    assert outcome(call, kiln) == outcome(call, torch)
    call = f"[x.stride() for x in k.broadcast_tensors(k.zeros({a}), k.zeros({b}))]"
    if 0 not in a + b:
        assert outcome(call, kiln) == outcome(call, torch) or 1 in a + b


@settings(max_examples=40)
@given(st.data())
def test_padding(data: Any) -> None:
    """Every mode, every number of dims, widths of both signs: values, gradients and errors as PyTorch's."""
    count = data.draw(st.integers(1, 3))
    shape = (
        *data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=2)),
        *data.draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)),
    )
    widths = data.draw(st.lists(st.integers(-1, 3), min_size=2 * count, max_size=2 * count))
    sizes = [n + a + b for n, a, b in zip(shape[::-1], widths[::2], widths[1::2])]
    assume(min(sizes) >= 1)  # PyTorch's modes differ in what they say of nothing
    mode = data.draw(st.sampled_from(("constant", "reflect", "replicate", "circular")))
    made = f"k.arange({float(np.prod(shape))}).reshape({shape}).requires_grad_()"
    padded = f"(lambda x: (x, F.pad(x, {widths}, '{mode}')))({made})"
    result = f"(lambda x, y: (y.detach(), k.autograd.grad((y * y).sum(), x)))(*{padded})"
    ours, theirs = outcome(result, kiln), outcome(result, torch)
    assert ours == theirs, (shape, widths, mode)


def test_recorded_views_are_views() -> None:
    """Inside a recorded function a diagonal and windows see what is written to what they view, and write
    it.
    """

    def step(x: Any) -> Any:
        y = x * 2
        y.diagonal().add_(1)
        windows = y.t().unfold(0, 2, 1)
        y.mul_(3)
        return y, windows.sum(), windows[0] + y.diagonal(1)[0]

    x = kiln.arange(9.0).reshape(3, 3)
    want = [r.tolist() for r in step(x)]
    recorded = kiln.compile(step)
    for _ in range(3):
        assert [r.tolist() for r in recorded(x)] == want


def test_as_strided_refuses_gradients_it_cannot_place() -> None:
    """Through a view that does not fill its memory the derivative by places would be wrong."""
    x = kiln.arange(6.0, requires_grad=True)
    with pytest.raises(NotImplementedError, match="contiguous"):
        (x * 1)[2:].as_strided((2,), (1,))
    y = (x * 1).reshape(2, 3).t()
    y.as_strided((2, 2), (1, 2), 1).sum().backward()
    assert x.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_views_made_in_place_share_memory() -> None:
    """`t_` and its kin change the tensor's look, not its memory; a tensor with a history refuses."""
    x = kiln.zeros(2, 3)
    view = x[0]
    assert x.t_() is x and tuple(x.shape) == (3, 2)
    x[2, 0] = 7
    assert view.tolist() == [0.0, 0.0, 7.0]
    with pytest.raises(NotImplementedError, match="history"):
        (kiln.zeros(2, 3, requires_grad=True) * 2).t_()


def test_windows_of_signals() -> None:
    """The cosine windows to float64's precision."""
    for name, args in (
        ("hann", ()),
        ("hamming", (False, 0.5, 0.4)),
        ("blackman", ()),
        ("kaiser", (True, 9.0)),
    ):
        ours = getattr(kiln, f"{name}_window")(50, *args, dtype=kiln.float64)
        theirs = getattr(torch, f"{name}_window")(50, *args, dtype=torch.float64)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-12)
