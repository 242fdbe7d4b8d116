"""Other libraries' arrays: DLPack both ways, NumPy's functions on tensors, and dtypes in every call form."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from typing import Any

import numpy as np
import pytest
from backend import kiln, needs_torch, torch

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]


def of(lib: Any, dtype: str, *shape: int) -> Any:
    return lib.ones(*shape, dtype=getattr(lib, dtype))


@needs_torch
@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_with_pytorch_shares_memory(dtype: str) -> None:
    """Both ways, contiguous or not, of every dtype: what is written on one side is seen on the other."""
    for view in (lambda x: x, lambda x: x.t(), lambda x: x[1:, ::2], lambda x: x[:, :0], lambda x: x[0, 0]):
        ours, theirs = of(kiln, dtype, 3, 4), of(torch, dtype, 3, 4)
        for source, lib in ((ours, torch), (theirs, kiln)):
            x = view(source)
            y = lib.from_dlpack(x)
            assert (tuple(y.shape), str(y.dtype).rpartition(".")[2]) == (tuple(x.shape), dtype)
            assert y.numel() < 2 or y.stride() == x.stride()
            x.zero_()
            assert not y.double().sum().item()
            y.fill_(1)
            assert x.double().sum().item() == x.numel()


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bfloat16"])
def test_dlpack_with_numpy_shares_memory(dtype: str) -> None:
    a, x = np.ones((3, 4), dtype), of(kiln, dtype, 3, 4)
    y, b = kiln.from_dlpack(a[:, 1:]), np.from_dlpack(x[:, 1:])
    a[:], x[:] = 0, 0
    assert not y.double().sum().item() and not b.astype("float64").sum()
    assert b.strides == x[:, 1:].numpy().strides and kiln.from_dlpack(a.T).stride() == (1, 4)


@needs_torch
def test_capsules() -> None:
    """A capsule is used once; both versions of the protocol are spoken."""
    x = kiln.arange(4)
    for options in ({}, {"max_version": (1, 0)}, {"max_version": (0, 8)}, {"stream": None}, {"stream": -1}):
        capsule = x.__dlpack__(**options)
        name = "dltensor_versioned" if options.get("max_version") == (1, 0) else "dltensor"
        assert f'"{name}"' in repr(capsule)
        assert kiln.from_dlpack(capsule).data_ptr() == x.data_ptr()
        with pytest.raises(RuntimeError, match="once"):
            kiln.from_dlpack(capsule)
        with pytest.raises(RuntimeError):
            torch.from_dlpack(capsule)
    assert torch.from_dlpack(kiln.to_dlpack(x)).tolist() == [0, 1, 2, 3]
    assert x.__dlpack_device__() == (1, 0) == kiln.from_dlpack(x).__dlpack_device__()
    copied = kiln.from_dlpack(x.__dlpack__(copy=True))
    assert copied.data_ptr() != x.data_ptr() and copied.tolist() == x.tolist()
    assert (
        kiln.from_dlpack(x, copy=True).data_ptr()
        != x.data_ptr()
        == kiln.from_dlpack(x, copy=False).data_ptr()
    )
    assert kiln.from_dlpack(np.arange(3), device="cpu", copy=True).tolist() == [0, 1, 2]


def test_what_dlpack_refuses() -> None:
    x = kiln.ones(2)
    for call, error in (
        (lambda: kiln.ones(2, requires_grad=True).__dlpack__(), BufferError),
        (lambda: x.__dlpack__(stream=1), BufferError),
        (lambda: x.__dlpack__(dl_device=(2, 0)), BufferError),
        (lambda: kiln.from_dlpack(3), TypeError),
        (lambda: kiln.from_dlpack(np.ones(4)[::-1]), BufferError),
        (lambda: kiln.from_dlpack(np.ones(2, complex)), BufferError),
        (lambda: kiln.from_dlpack(np.ones(2, np.uint16)), BufferError),
        (lambda: kiln.from_dlpack(np.array(["a"])), BufferError),
        (lambda: kiln.from_dlpack(np.ones(9, np.uint8)[1:].view(np.float32)), BufferError),
        (lambda: kiln.from_dlpack(np.ones(2), device="cuda"), AssertionError),
    ):
        with pytest.raises(error):
            call()


def test_read_only_memory_stays_so() -> None:
    array = np.ones(3, np.float32)
    array.flags.writeable = False
    x = kiln.from_dlpack(array)
    with pytest.raises((ValueError, RuntimeError), match="read-only"):
        x.add_(1)
    with pytest.raises(BufferError, match="read-only"):
        x.__dlpack__()
    assert not np.from_dlpack(x).flags.writeable


class Owned(np.ndarray):
    """An array that can be watched."""


@needs_torch
def test_memory_lives_as_long_as_anyone_holds_it() -> None:
    a = np.zeros(1000, np.float32).view(Owned)
    watch = weakref.ref(a)
    x = kiln.from_dlpack(a)
    view = x[10:20]
    del a, x
    gc.collect()
    assert watch() is not None and view.sum().item() == 0
    del view
    gc.collect()
    assert watch() is None
    before = kiln.memory_stats()["allocated_bytes"]
    y = torch.from_dlpack(kiln.ones(100_000))
    unused = kiln.ones(100_000).__dlpack__()
    assert kiln.memory_stats()["allocated_bytes"] >= before + 800_000 and y.sum().item() == 100_000
    del y, unused
    gc.collect()
    assert kiln.memory_stats()["allocated_bytes"] == before


def test_borrowed_memory_at_the_end_of_the_process() -> None:
    """Whoever outlives the interpreter leaves the other's memory alone."""
    code = (
        "import kiln, numpy as np, sys\n"
        "sys.kept = [np.from_dlpack(kiln.ones(9)), kiln.from_dlpack(np.ones(9)), kiln.ones(3).__dlpack__()]\n"
        "print(sum(float(k.sum()) for k in sys.kept[:2]))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "18.0", "")


def test_foreign_writes_are_seen_by_recorded_regions() -> None:
    x = kiln.ones(3)
    outside = np.from_dlpack(x)

    @kiln.compile
    def step(x: Any) -> Any:
        y = x * 2
        outside[:] = 5
        return y, x + 0

    for _ in range(4):
        outside[:] = 1
        y, z = step(x)
        assert y.tolist() == [2.0] * 3 and z.tolist() == [5.0] * 3


def test_numpy_functions() -> None:
    """As in PyTorch, a ufunc gives a tensor; what has no counterpart says so."""
    x = kiln.tensor([0.5, 1.5], requires_grad=True)
    y = np.sin(x) + np.add(1, np.multiply(np.ones(2, np.float32), x)) + np.float64(2) * x
    assert isinstance(y, kiln.Tensor) and y.dtype == kiln.float32
    y.sum().backward()
    assert x.grad is not None and np.allclose(x.grad.numpy(), np.cos(x.detach().numpy()) + 3)
    z = x.detach()
    assert isinstance(np.maximum(np.ones(2), z), kiln.Tensor) and np.greater(z, 1).tolist() == [False, True]
    for call in (lambda: np.add.reduce(z), lambda: np.spacing(z), lambda: np.add(z, 1, out=np.ones(2))):
        with pytest.raises(TypeError, match="numpy"):
            call()
    assert np.concatenate([z, z]).shape == (4,) and np.asarray(z, dtype=np.int32).tolist() == [0, 1]
    array = np.array(z)
    array[:] = 0
    assert z.tolist() == [0.5, 1.5]


RIGHT = """
to(L.float64)
to(float)
to("cpu", L.float64)
to("cpu", L.float64, True, True)
to(L.float64, True, True)
to(L.ones(1, dtype=L.int8))
to(L.ones(1, dtype=L.int8), False, True)
to(None)
to()
to("cpu")
to(device="cpu", dtype=L.int8, copy=True)
to(dtype=L.float32)
to(L.float32)
to(L.float32, copy=True)
type(L.float64)
type(dtype=L.int32)
type(L.float32)
type_as(L.ones(1, dtype=L.int16))
""".strip().split("\n")


@pytest.mark.parametrize("call", RIGHT)
def test_conversions(call: str, answers: Any) -> None:
    def converted(lib: Any, call: str) -> Any:
        x = lib.ones(2)
        y = eval(f"x.{call}", {"L": lib, "x": x})
        return str(y.dtype).rpartition(".")[2], y is x, y.data_ptr() == x.data_ptr()

    ours, theirs = answers.both(converted, call)
    assert ours == theirs


@pytest.mark.parametrize(
    "call",
    [
        "to(L.int8, L.int8)",
        "to(bad=1)",
        "to('float64')",
        "type('double')",
        "to(L.int8, dtype=L.int8)",
    ],
)
def test_wrong_conversions(call: str, answers: Any) -> None:
    def raised() -> type:
        with pytest.raises(Exception) as theirs:
            eval(f"L.ones(2).{call}", {"L": torch})
        return theirs.type

    with pytest.raises(answers(call, raised)):
        eval(f"L.ones(2).{call}", {"L": kiln})


def test_names_of_types(answers: Any) -> None:
    names = answers(DTYPES, lambda: [of(torch, dtype, 1).type() for dtype in DTYPES])
    for dtype, theirs in zip(DTYPES, names, strict=True):
        name = of(kiln, dtype, 1).type()
        assert name == theirs.replace("torch.", "kiln.")
        assert kiln.ones(2).type(name).dtype == getattr(kiln, dtype)
    with pytest.raises(AssertionError, match="^Torch not compiled with CUDA enabled: kiln runs on the CPU"):
        kiln.ones(2).to("cuda")


def test_dtypes_pickle_as_themselves() -> None:
    assert pickle.loads(pickle.dumps([kiln.float32, kiln.int8, kiln.bool])) == [
        kiln.float32,
        kiln.int8,
        kiln.bool,
    ]


def test_copies_keep_what_is_shared() -> None:
    """In one deepcopy the same tensor stays one tensor, in lists and in modules."""
    x = kiln.ones(2, requires_grad=True)
    a, b = copy.deepcopy([x, x])
    assert a is b and a is not x and a.requires_grad and a.data_ptr() != x.data_ptr()
    first, second = kiln.nn.Linear(2, 2), kiln.nn.Linear(2, 2)
    second.weight = first.weight
    model = copy.deepcopy(kiln.nn.Sequential(first, second))
    assert model[0].weight is model[1].weight and model[0].weight is not first.weight
    assert isinstance(model[0].weight, kiln.nn.Parameter) and len(list(model.parameters())) == 3
    with pytest.raises(RuntimeError, match="leaves"):
        copy.deepcopy(x * 2)


def test_copies_of_views_are_views_of_the_copy(answers: Any) -> None:
    """In one deepcopy tensors of one storage share one again, as in PyTorch, whatever they see of it."""

    def seen(lib: Any) -> list[Any]:
        x = lib.arange(6.0).requires_grad_()
        (x * x).sum().backward()
        wide = lib.ones(1).expand(3)
        views = [
            x,
            x.detach()[2:4],
            x.detach().reshape(2, 3).t(),
            x.detach().view(lib.int32),
            wide,
            lib.ones(0),
        ]
        copies = copy.deepcopy({"all": views})["all"]
        copies[1].fill_(-1)
        copies[2][0, 0] = 7
        assert copies[0].grad is not x.grad and copies[0].grad.data_ptr() != x.grad.data_ptr()
        shallow = copy.copy(views[1])
        assert shallow is not views[1] and shallow.data_ptr() == views[1].data_ptr()
        return [
            *((c.tolist(), tuple(c.shape), c.stride(), c.storage_offset(), c.requires_grad, c.is_leaf)
              for c in copies),
            *(c.untyped_storage().nbytes() for c in copies), copies[0].grad.tolist(), x.tolist(),
        ]  # fmt: skip

    ours, theirs = answers.both(seen)
    assert ours == theirs


FROMBUFFER = """
frombuffer(b"", dtype=L.uint8)
frombuffer(bytearray(4), dtype=L.uint8, count=0)
frombuffer(bytearray(4), dtype=L.uint8, offset=4)
frombuffer(bytearray(4), dtype=L.uint8, offset=-1)
frombuffer(bytearray(5), dtype=L.int16)
frombuffer(bytearray(5), dtype=L.int16, count=2)
frombuffer(bytearray(4), dtype=L.int16, count=5)
frombuffer([1], dtype=L.int16)
frombuffer(bytearray(4), dtype=L.float32, requires_grad=True)
""".strip().split("\n")


@pytest.mark.parametrize("call", FROMBUFFER)
def test_frombuffer(call: str, answers: Any) -> None:
    """Values, dtype, whether memory is shared, and the exceptions, as in PyTorch."""

    def seen(lib: Any, call: str) -> Any:
        a = np.array([1.0, 2.0])
        x = lib.ones(2)
        try:
            y = eval(f"L.{call}", {"L": lib, "a": a, "x": x})
        except Exception as error:
            return type(error)
        shares = y.data_ptr() in (a.ctypes.data, x.data_ptr())
        return y.tolist(), str(y.dtype).rpartition(".")[2], y.requires_grad, y is x, shares

    ours, theirs = answers.both(seen, call)
    assert ours == theirs
