"""Calls as PyTorch's programs write them, beside PyTorch: old constructors, memory, named results."""

from __future__ import annotations

import contextlib
import gc
import re
import warnings
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_kiln, torch

MEMORY = """
k.arange(6.).reshape(2,3).resize_(3,2)
k.arange(6.).reshape(2,3).resize_((2,2))
k.arange(6.).reshape(2,3).resize_(4,3).flatten()[:6]
k.arange(6.).reshape(3,2).t().resize_(2,3)
k.arange(6.).reshape(3,2).t().resize_(3,2)
k.arange(6.)[2:].resize_(2)
k.arange(6.)[::2].resize_(2).stride()
k.arange(6.).resize_(0)
k.arange(6.).resize_(-1)
k.ones(2,requires_grad=True).resize_(1)
(k.ones(2,requires_grad=True)*2).resize_(1)
k.from_numpy(np.ones(3)).resize_(20)
k.ones(2).resize_as_(k.ones(1,1))
k.resize_as_(k.ones(2), k.ones(1))
k.ones(2).set_(k.arange(4.)).storage_offset()
k.ones(2).set_()
k.ones(2).set_(k.arange(4.).untyped_storage(),1,(2,),(1,))
k.ones(2).set_(k.arange(4.)[2:].untyped_storage())
k.ones(2).set_(k.arange(4.).storage(),1,(2,))
k.ones(2).set_(k.arange(4.),1,(2,))
k.ones(2).set_(k.arange(4))
k.ones(2).set_(k.arange(4.).untyped_storage(),3,(2,),(1,))
k.ones(2).set_(k.arange(4).storage(),0,(2,))
k.ones(2,requires_grad=True).set_(k.arange(4.))
k.arange(4.)[1:].storage().size()
k.arange(4.)[1:].untyped_storage().size()
k.arange(4.)[1:].storage().nbytes()
k.arange(4.).storage().tolist()
k.arange(2.).untyped_storage().tolist()
k.arange(4.).storage().element_size()
k.arange(4.).untyped_storage().element_size()
k.arange(4.).storage()[1]
len(k.arange(4.).untyped_storage())
k.is_storage(k.ones(1).storage())
k.is_storage(k.ones(1))
k.ones(3)[0].detach_()
(k.ones(3,requires_grad=True)*2)[0].detach_()
k.detach_(k.ones(3,requires_grad=True)*2).requires_grad
k.detach_(k.ones(3,requires_grad=True)).requires_grad
k.ones(3,requires_grad=True).detach().detach_()
k.as_strided_(k.arange(6.),(2,),(3,),1)
"""
OLD = """
k.FloatTensor(2,3).shape
k.FloatTensor([1,2])
k.LongTensor([1.5,2])
k.FloatTensor()
k.FloatTensor(k.Size([2,3])).shape
k.FloatTensor((2,3))
k.LongTensor(3).dtype
k.FloatTensor(k.ones(2))
k.LongTensor(k.ones(2))
k.FloatTensor(3.5)
k.FloatTensor([[1,2],[3]])
k.FloatTensor(np.ones(3))
k.DoubleTensor(np.ones(3))
k.ByteTensor([1,300])
k.BoolTensor([1,0])
k.HalfTensor([1,2])
k.ShortTensor(range(3))
k.FloatTensor("a")
k.FloatTensor(-1)
k.FloatTensor(2,3.5)
k.FloatTensor(np.int64(3)).shape
k.FloatTensor([True,2.5])
isinstance(k.ones(2),k.FloatTensor)
isinstance(k.ones(2),k.LongTensor)
isinstance(k.nn.Parameter(k.ones(2)),k.FloatTensor)
issubclass(k.FloatTensor,k.Tensor)
k.FloatTensor.dtype
k.ones(2).type(k.LongTensor)
k.ones(2).type("torch.LongTensor")
k.ones(2).type("foo")
k.ones(2).type(k.Tensor)
k.ones(2).to(k.LongTensor)
k.zeros(2,dtype=str)
k.tensor([1,2],dtype=k.FloatTensor)
k.Tensor(2,3).shape
k.Tensor([1,2])
k.Tensor()
k.Tensor(k.ones(2,dtype=k.int64))
k.Tensor(k.ones(2,requires_grad=True)).requires_grad
k.Tensor(k.ones(2).untyped_storage())
k.Tensor(3,device='cpu').shape
k.Tensor(3,device='cuda').shape
k.Tensor(1,dtype=k.int32)
k.Tensor(size=(2,)).shape
k.Tensor([[],[]]).shape
k.Tensor(None)
k.Tensor(True)
k.Tensor([1,2],[3])
k.Tensor({1})
k.ones(2).new([1,2])
k.ones(2).new(2,3).shape
k.arange(2).new([1.5])
k.arange(2).new(k.ones(1))
k.typename(3)
k.typename(k.ones(1)).split(".")[1]
k.ones(1).type().split(".")[1]
k.get_device(k.ones(1))
k.get_default_device().type
k.set_default_device(None)
k.set_default_device("foo")
k.set_default_tensor_type(k.LongTensor)
k.arange(4.).apply_(lambda v: v*2)
k.arange(4.).map_(k.ones(1), lambda a,b: a+b)
k.arange(4.).map2_(k.ones(4),k.ones(4), lambda a,b,c: a+b+c)
k.ones(2,requires_grad=True).apply_(abs)
k.arange(2).apply_(lambda v: v+0.5)
k.ones(2).apply_(lambda v: "a")
k.ones(2).map_(k.ones(3), lambda a,b: a)
k.ones(2).map_(k.arange(2), lambda a,b: a)
k.arange(4).reshape(2,2).t().apply_(lambda v: v+1)
k.ones(2)[k.newaxis].shape
"""
RESULTS = """
k.frexp(k.tensor([6.,0.,-0.5])).mantissa
k.frexp(k.tensor([6.,0.,-0.5])).exponent
k.frexp(k.tensor([6.]),out=(k.empty(0),k.empty(0,dtype=k.int32)))
k.index_put_(k.zeros(3),(k.tensor([0,0]),),k.ones(2),True)
k.addmv_(k.ones(2),k.ones(2,3),k.ones(3),beta=2)
k.conj_physical_(k.ones(2))
k.conj_physical(k.ones(2),out=k.empty(0))
k.msort(k.tensor([2.,1.]),out=k.empty(0))
k.take(k.tensor([2.,1.]),k.tensor([1]),out=k.empty(0))
k.isin(k.arange(3),k.tensor([1]),out=k.empty(0,dtype=k.bool))
k.diag(k.tensor([2.,1.]),out=k.empty(0))
k.nn.functional.softshrink(k.tensor([2.,-1.,0.1]),out=k.empty(0))
k.slice_scatter(k.zeros(4),k.ones(2),0,0,None,2,out=k.empty(0))
np.array(k.ones(2)).tolist()
np.asarray(k.ones(2),dtype="float64",copy=False)
np.array(k.ones(2),dtype="int32").tolist()
np.asarray(k.ones(2).bfloat16())
"""


def plain(result: Any) -> Any:
    """What of a result can be compared between libraries."""
    if hasattr(result, "requires_grad"):
        values = result.detach().double().numpy().round(4).tolist()
        return str(result.dtype).rpartition(".")[2], tuple(result.shape), values
    if isinstance(result, (list, tuple)):
        return [plain(x) for x in result]
    return result if isinstance(result, (bool, int, float, str, type(None))) else str(result).split(".")[-1]


def outcome(library: Any, call: str) -> Any:
    """The result of a call, or the type of its exception."""
    return outcome_in(call, {"k": library, "np": np})


def outcome_in(call: str, names: dict[str, Any]) -> Any:
    """The result of a call of these names, or the type of its exception."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return plain(eval(call, names))
        except Exception as error:
            return next(t for t in type(error).__mro__ if t.__module__ == "builtins")


@pytest.mark.parametrize("calls", [MEMORY, OLD, RESULTS], ids=["memory", "old", "results"])
def test_as_peer(calls: str, answers: Any) -> None:
    """Every line gives in both libraries the same."""
    wrong = []
    for call in calls.strip().splitlines():
        ours, theirs = answers.both(outcome, call)
        wrong += [] if repr(ours) == repr(theirs) else [f"{call}: {ours!r} against {theirs!r}"]
    assert not wrong, "\n".join(wrong)


@needs_kiln
def test_what_is_set_shares_memory() -> None:
    """set_, storages and constructors look at the memory they are given."""
    x, y = kiln.zeros(1), kiln.arange(4.0)
    x.set_(y.untyped_storage(), 1, (2,))
    x[0] = 7
    assert y.tolist() == [0.0, 7.0, 2.0, 3.0] == y.storage().tolist()
    assert kiln.FloatTensor(y.storage()).data_ptr() == y.data_ptr() == kiln.Tensor(y).data_ptr()
    z = kiln.arange(6.0)
    small = z.resize_(2)
    assert small is z and z.resize_(6).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]  # nothing was lost
    with pytest.raises(RuntimeError, match=re.escape("resize a clone()")):
        y.resize_(100)  # x looks at it
    array = np.ones(3, np.float32)
    kiln.Tensor(array)[0] = 5.0
    assert array[0] == 5.0


@needs_kiln
def test_recorded() -> None:
    """Inside a compiled region: the same values."""

    def step(x: Any, y: Any) -> Any:
        z = kiln.Tensor([1.0, 2.0]) + x
        z.resize_(1)
        w = kiln.FloatTensor(2).set_(y * 2)
        return z, w, kiln.frexp(x).exponent

    want = [t.tolist() for t in step(kiln.ones(2), kiln.arange(3.0))]
    inside = kiln.compile(step)
    for _ in range(3):
        assert [t.tolist() for t in inside(kiln.ones(2), kiln.arange(3.0))] == want


@needs_kiln
def test_a_buffer_keeps_its_memory() -> None:
    """An array made of a tensor stays what it is when the tensor is given other memory."""
    for change in ("data", "set_", "resize_"):
        x = kiln.ones(1000)
        array = x.numpy()
        if change == "data":
            x.data = kiln.zeros(1000)
        elif change == "set_":
            x.set_(kiln.zeros(1000))
        else:
            with pytest.raises(RuntimeError):
                x.resize_(2000)
        gc.collect()
        others = [kiln.full((1000,), 7.0) for _ in range(10)]
        assert (array == 1).all() and len(others) == 10


@needs_kiln
def test_object_new_makes_no_tensor() -> None:
    """A tensor without memory cannot be had."""
    with pytest.raises(TypeError, match="not safe"):
        object.__new__(kiln.Tensor)


@needs_kiln
def test_arrays_ask_for_copies() -> None:
    """NumPy's `copy`: False is memory shared, or refused where it cannot be."""
    x = kiln.ones(2)
    np.asarray(x, copy=False)[0] = 5.0
    assert x.tolist() == [5.0, 1.0]
    np.array(x, copy=True)[0] = 7.0
    assert x.tolist() == [5.0, 1.0]
    assert not np.shares_memory(x.__array__(copy=True), x.numpy())
    with pytest.raises(ValueError, match="copy=False"):
        x.__array__(np.dtype("float64"), copy=False)


def test_polynomials(answers: Any) -> None:
    """Degrees below 0, around where the recurrence ends, and high; inside, at and outside the ends."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-1.3, 1.3, 60), [0.0, 1.0, -1.0, 0.5]])
    degrees = rng.integers(-2, 30, 64)

    def found(k: Any, name: str, x: Any, n: Any) -> Any:
        return getattr(k.special, name)(k.tensor(x), n if isinstance(n, int) else k.tensor(n)).numpy()

    names = answers("polynomials", lambda: [n for n in dir(torch.special) if "polynomial" in n])
    assert len(names) > 10
    for name in names:
        for n in (degrees, 12):
            y, want = answers.both(found, name, x, n)
            np.testing.assert_allclose(y, want, rtol=1e-9, atol=1e-8, err_msg=name)


def test_factors(answers: Any) -> None:
    """LDL and reflections, of one matrix and of a batch."""
    pytest.importorskip("scipy")
    rng = np.random.default_rng(0)

    def factors(k: Any, a: Any, tall: Any, c: Any) -> Any:
        ld, rows = k.linalg.ldl_factor(k.tensor(a))
        packed, scales = k.geqrf(k.tensor(tall))
        ways: tuple[dict[str, bool], ...] = ({}, {"left": False}, {"transpose": True})
        multiplied = [k.ormqr(packed, scales, k.tensor(c), **how) for how in ways]
        return rows.tolist(), [ld, packed, scales, *multiplied]

    for batch in ((), (2,)):
        a, b = rng.normal(size=(*batch, 4, 4)), rng.normal(size=(*batch, 4, 2))
        a = a + np.swapaxes(a, -1, -2)
        tall, c = rng.normal(size=(*batch, 5, 3)), rng.normal(size=(*batch, 5, 5))
        (rows, ours), (order, theirs) = answers.both(factors, a, tall, c)
        assert rows == order
        for x, want in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(x.numpy(), want.numpy(), atol=1e-12)
        right = kiln.tensor(b, requires_grad=True)
        x = kiln.linalg.ldl_solve(*kiln.linalg.ldl_factor(kiln.tensor(a)), right)
        np.testing.assert_allclose(a @ x.detach().numpy(), b, atol=1e-10)
        x.sum().backward()
        np.testing.assert_allclose(a @ right.grad.numpy(), np.ones_like(b), atol=1e-10)
        assert [t.tolist() for t in kiln.lu(kiln.tensor(a), get_infos=True)] == [
            t.tolist() for t in kiln.linalg.lu_factor_ex(kiln.tensor(a))
        ]


MASKED = """
M.sum(x, 1, mask=m)
M.sum(x.long(), (0, 1), keepdim=True, mask=m)
M.prod(x, mask=m)
M.prod(x, 0, mask=m, dtype=k.float64)
M.amax(x, 1, mask=m)
M.amin(x.int(), 0, mask=m)
M.argmax(x, 1, mask=m).long()
M.argmin(x, 0, mask=m).long()
M.mean(x, 1, mask=m)
M.mean(x.long(), 1, mask=m)
M.median(x, 1, mask=m)
M.median(x.long(), 0, mask=m)
M.logsumexp(x, 1, mask=m)
M.var(x, 1, mask=m)
M.var(x, 0, False, mask=m)
M.std(x, (0, 1), correction=2, keepdim=True, mask=m)
M.softmax(x, 1, mask=m)
M.log_softmax(x, 0, mask=m)
M.softmin(x, -1, mask=m, dtype=k.float64)
M.cumsum(x, 1, mask=m)
M.cumprod(x, 0, mask=m)
M.normalize(x, 2.0, 1, mask=m)
M.norm(x, 3.0, 1, mask=m)
M.norm(x, -float("inf"), mask=m)
M.logaddexp(x, x * 2, input_mask=m, other_mask=~m)
M.sum(x, (0, 0), mask=m)
M.sum(x, 5, mask=m)
M.sum(x[0], mask=m)
M.sum(k.ones(()), mask=k.tensor(False))
M.amax(k.zeros(0, 3), 1, mask=k.tensor(False))
k.softmax(k.tensor(1.), 0)
"""
WINDOWS = """
W.bartlett(5)
W.blackman(6, sym=False)
W.cosine(5)
W.cosine(1, sym=False)
W.exponential(5, tau=3.)
W.exponential(5, center=1., sym=False)
W.exponential(5, center=1.)
W.exponential(5, tau=-1.)
W.gaussian(6, std=2.)
W.gaussian(6, std=0.)
W.general_cosine(7, a=[.3, .4, .2])
W.general_cosine(7, a=[])
W.general_hamming(7, alpha=.7)
W.hamming(8, dtype=k.float64)
W.hann(8, sym=False)
W.hann(1)
W.hann(0)
W.hann(-1)
W.hann(3, dtype=k.int64)
W.kaiser(9, beta=3.)
W.kaiser(9, beta=-3.)
W.nuttall(9, requires_grad=True).requires_grad
"""


@pytest.mark.parametrize("batch", [(), (2,)])
def test_low_ranks(batch: tuple[int, ...]) -> None:
    """What has a low rank is found again, and its principal components."""
    pytest.importorskip("scipy")
    rng = np.random.default_rng(0)
    low = kiln.tensor(rng.normal(size=(*batch, 5, 3)) @ rng.normal(size=(*batch, 3, 6)))
    u, s, v = kiln.svd_lowrank(low, q=3)
    np.testing.assert_allclose(((u * s.unsqueeze(-2)) @ v.mT).numpy(), low.numpy(), atol=1e-10)
    spread = kiln.pca_lowrank(low, q=3)[1]
    want = np.linalg.svd(low.numpy() - low.numpy().mean(-2, keepdims=True), compute_uv=False)
    np.testing.assert_allclose(spread.numpy(), want[..., :3], atol=1e-9)


def test_masked_and_windows(answers: Any) -> None:
    """Values, and gradients through the mask."""
    arrays = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32) * 3
    arrays = [arrays, np.array([[True, False, True, True], [False] * 4, [True, True, False, True]])]

    def found(k: Any, call: str, arrays: Any) -> str:
        x, m = k.tensor(arrays[0], requires_grad=True), k.tensor(arrays[1])
        names = {"k": k, "M": k.masked, "W": k.signal.windows, "x": x, "m": m}
        result = outcome_in(call, names)
        with contextlib.suppress(Exception):
            k.nan_to_num(eval(call, names), 0.0, 0.0, 0.0).sum().backward()
            result = result, plain(x.grad)
        return repr(result).replace("-0.0,", "0.0,")

    wrong = []
    for call in (MASKED + WINDOWS).strip().splitlines():
        ours, theirs = answers.both(found, call, arrays)
        wrong += [] if ours == theirs else [f"{call}: {ours} against {theirs}"]
    assert not wrong, "\n".join(wrong)


CLOSE = """
T(t([1.,2.,3.]),t([1.,2.,4.]))
T(t([1,2]),t([1,3]))
T(t(1.),t(2.))
T(1.,1.1)
T(1,2)
T(True,False)
T(None,1)
T(t([nan]),t([nan]))
T(t([nan]),t([nan]),equal_nan=True)
T(t([1.]),t([1.,2.]))
T(t([1.]),t([1]))
T(t([1.]),t([1]),check_dtype=False)
T([t([1.]),t([2.])],[t([1.]),t([3.])])
T({"a":[t(1.)]},{"a":[t(2.)]})
T({"a":t(1.)},{"b":t(2.)})
T([1.],[1.,2.])
T("a","a")
T(t([1.]),1.)
T(t([1.]),t([1.]),rtol=1e-3)
T(t([1.]),t([1.1]),rtol=1e-3,atol=1e-2)
T(t([1.]),t([1.1]),msg="foo")
T(t([1.]),t([1.1]),msg=lambda m: "bar"+m)
T(t([[1.,2.],[3.,4.]]).t(),t([[1.,3.],[2.,4.]]),check_stride=True)
T(t([0.,0.]),t([0.,1e-6]))
T(t([0.]),t([1e-4]),rtol=0,atol=0)
T(np.array([1.]),np.array([2.]))
T(t([True,False]),t([True,True]))
T(t([1.,2.]).half(),t([1.,2.01]).half())
T(t([1.,2.]).bfloat16(),t([1.,2.1]).bfloat16())
T(t([1.]).double(),t([1.+1e-6]).double())
T(t([2**62+1]),t([2**62]))
T(t([1.],requires_grad=True),t([1.]))
T(k.nn.Parameter(k.ones(1)),k.ones(1))
"""


def test_assert_close_says_what_pytorch_says(answers: Any) -> None:
    def said(k: Any, call: str) -> str:
        names = {"T": k.testing.assert_close, "t": k.tensor, "k": k, "np": np, "nan": float("nan")}
        try:
            return repr(eval(call, names))
        except (AssertionError, TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}".replace("torch.", "kiln.")

    for call in CLOSE.strip().splitlines():
        ours, theirs = answers.both(said, call)
        assert ours.startswith("TypeError") if theirs.startswith("TypeError") else ours == theirs, call


def test_embedding_bag_layer(answers: Any) -> None:
    """The layer beside PyTorch's, trained a step; its text, and what it refuses."""
    table = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)

    def trained(k: Any, table: Any, mode: str, how: dict[str, Any]) -> Any:
        layer = k.nn.EmbeddingBag.from_pretrained(k.tensor(table), freeze=False, mode=mode, **how)
        y = layer(k.tensor([0, 2, 5, 5, 1, 2]), k.tensor([0, 2, 2, 6]))
        (y * y).sum().backward()
        found = [y.detach().numpy(), layer.weight.grad.numpy(), layer.weight.detach().numpy().copy()]
        return str(layer), [*found, layer(k.tensor([[0, 2], [5, 5]])).detach().numpy()]

    for mode in ("sum", "mean", "max"):
        for how in ({}, {"padding_idx": 2}, {"include_last_offset": True}, {"max_norm": 1.0}):
            (text, ours), (wanted, theirs) = answers.both(trained, table, mode, how)
            assert text == wanted
            for y, want in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6, err_msg=f"{mode} {how}")
