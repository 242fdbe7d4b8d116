"""What the core holds while Python code runs in between, and what holds what in long chains.

Programs that could end the process run in one of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from backend import kiln

if not kiln.is_kiln:
    pytest.skip("of kiln's own objects", allow_module_level=True)

from kiln import _core
from kiln.codegen.store.cache import DiskCache


def run(text: str) -> str:
    """What a process of its own prints; it must end well."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import kiln\n" + textwrap.dedent(text)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)
    return done.stdout


# -- chains: each object holds the one before -----------------------------------------------------------

CHAINS = {
    "numpy": "x = kiln.from_numpy(x.numpy())",
    "numpy slices": "x = kiln.from_numpy(x.numpy()[:])",
    "memoryview": "x = kiln.frombuffer(memoryview(x), dtype=kiln.float32)",
    "dlpack": "x = kiln.from_dlpack(x.__dlpack__())",
    "numpy and dlpack": "x = kiln.from_dlpack(kiln.from_numpy(x.numpy()))",
    "views": "x = x.view(2, 2).view(4)",
    "detached": "x = x.detach().requires_grad_()",
    "attributes": "y = kiln.zeros(4); y.before = x; x = y",
    "gradients": "y = kiln.zeros(4, requires_grad=True); y.grad = x; x = y",
    "kept gradients": "y = kiln.zeros(4, requires_grad=True) * 1; y.retain_grad(); y.grad = x; x = y",
    "hooks": "y = kiln.zeros(4, requires_grad=True); y.register_hook(lambda g, x=x: g); x = y",
    "metadata": "y = kiln.zeros(4, requires_grad=True) * 1; y.grad_fn.metadata['x'] = x; x = y",
    "functions": "x = x.requires_grad_() * 1 if x.is_leaf else kept(x)",
    "contexts": "x = Kept.apply(kiln.ones(4, requires_grad=True), x)",
}


@pytest.mark.parametrize("step", CHAINS.values(), ids=CHAINS)
def test_a_chain_of_any_length_is_freed(step: str) -> None:
    assert (
        run(f"""
        import gc, threading

        class Kept(kiln.autograd.Function):
            @staticmethod
            def forward(ctx, x, other):
                ctx.other = other
                return x * 1
            @staticmethod
            def backward(ctx, g):
                return g, None

        def kept(x):
            return Kept.apply(x, None)

        def work():
            x = kiln.zeros(4)
            for _ in range(10_000):
                {step}
            del x
            y = None
            gc.collect()
            print("freed")

        threading.stack_size(512 << 10)  # a frame a link would need more
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """)
        == "freed\n"
    )


# -- Python code in the middle of a call may replace the tensor ------------------------------------------


class Replaces:
    """A number that gives its tensor other memory when it is asked what it is."""

    def __init__(self, x: Any, value: int = 0) -> None:
        self.x, self.value = x, value

    def __index__(self) -> int:
        self.x.data = kiln.full((2, 3), 7.0)
        return self.value


@pytest.mark.parametrize("name", ["size", "stride"])
def test_a_dim_that_replaces_the_tensor(name: str) -> None:
    x = kiln.zeros(5, 4)
    assert getattr(x, name)(Replaces(x)) in (getattr(kiln.zeros(5, 4), name)(0), getattr(x, name)(0))
    assert x.tolist() == [[7.0] * 3] * 2


@pytest.mark.parametrize(
    "call", [
        lambda x: x.tolist(), lambda x: [x.shape for _ in range(3000)],
        lambda x: [x.stride() for _ in range(3000)], lambda x: [x.size() for _ in range(3000)],
    ], ids=["tolist", "shape", "stride", "size"],
)  # fmt: skip
def test_finalizers_that_replace_the_tensor(call: Any) -> None:
    """Making lists and tuples collects cycles (up to Python 3.11 in the middle of the call)."""
    import gc

    x = kiln.arange(30_000.0).reshape(300, 100).clone()

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            x.data = kiln.zeros(2)
            kept.append(kiln.zeros(300, 100))  # where the old one was

    before, kept = gc.get_threshold(), list[Any]()
    want = x.clone()
    for _ in range(40):
        Cycle()
    gc.set_threshold(1, 1, 1)
    try:
        got = call(x)
    finally:
        gc.set_threshold(*before)
    assert got == want.tolist() or set(got) <= {(300, 100), (100, 1), (2,), (1,)}


# -- integers -------------------------------------------------------------------------------------------


class Broken:
    def __index__(self) -> int:
        raise ZeroDivisionError("no number")

    def __repr__(self) -> str:
        return "broken"


INTEGERS: list[Any] = [2**31, 2**32 + 7, 2**63, -(2**63) - 1, 10**30, -1, "1", 1.5, None, Broken()]
CALLS: dict[str, Any] = {
    "set_num_threads": lambda n: kiln.set_num_threads(n),
    "next_random": lambda n: _core.next_random(n),
    "frombuffer count": lambda n: kiln.frombuffer(bytearray(8), dtype=kiln.uint8, count=n, offset=0),
    "frombuffer offset": lambda n: kiln.frombuffer(bytearray(8), dtype=kiln.uint8, count=1, offset=n),
    "size": lambda n: kiln.zeros(2).size(n),
    "stride": lambda n: kiln.zeros(2).stride(n),
    "numel": lambda n: kiln.Size([n, 2]).numel(),
    "empty": lambda n: kiln.empty(n, 2**40),
    "narrow": lambda n: kiln.zeros(4).narrow(0, n, 2),
    "item": lambda n: kiln.zeros(4)[n],
    "fill_": lambda n: kiln.zeros(4, dtype=kiln.int8).fill_(n),
    "cache limit": lambda n: kiln.cache.limit(n),
    "seed": lambda n: kiln.manual_seed(n),
}


@pytest.mark.parametrize("number", INTEGERS, ids=repr)
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_integers_are_read_or_refused(call: Any, number: Any) -> None:
    """An int is taken whole or refused: no other one by wrapping around, no SystemError."""
    limit, threads, state = kiln.cache.limit(), kiln.get_num_threads(), _core.random_state()
    try:
        call(number)
    except (TypeError, ValueError, RuntimeError, IndexError, OverflowError, ZeroDivisionError, MemoryError):
        assert kiln.get_num_threads() == threads
    finally:
        if kiln.cache.limit() != limit:  # it looks through the folder
            kiln.cache.limit(limit)
        kiln.set_num_threads(threads)
        _core.set_random_state(state[0] - (1 << 64 if state[0] >> 63 else 0), state[1])


def test_no_thread_count_but_the_one_asked_for() -> None:
    before = kiln.get_num_threads()
    for count in (2**32 + 7, 2**31, 2**32 + 1, -(2**32) + 1):
        with pytest.raises(RuntimeError, match="from 1 to 1024"):
            kiln.set_num_threads(count)
    assert kiln.get_num_threads() == before


# -- one interpreter, one module -------------------------------------------------------------------------


def test_a_subinterpreter_is_refused() -> None:
    pytest.importorskip("_xxsubinterpreters")
    for first in ("", "kiln.ones(2)"):
        assert (
            run(f"""
            import _xxsubinterpreters as interpreters
            {first}
            try:
                interpreters.run_string(interpreters.create(), "import kiln")
            except interpreters.RunFailedError as error:
                print("main interpreter" in str(error))
            print((kiln.ones(2) + 1).tolist())
        """)
            == "True\n[2.0, 2.0]\n"
        )


def test_the_core_imported_anew_is_the_same() -> None:
    assert (
        run("""
        import sys, importlib
        core = sys.modules.pop("kiln._core")
        print(importlib.import_module("kiln._core") is core, (kiln.ones(2) + 1).tolist())
    """)
        == "True [2.0, 2.0]\n"
    )


# -- what a recording's hash is made of ------------------------------------------------------------------


def test_all_bits_of_an_identity_count() -> None:
    """Functions whose identities begin alike are not taken for each other."""
    assert (
        run("""
        from kiln.capture.handle import Handle

        made = Handle.__init__
        def alike(self, *args):
            made(self, *args)
            self.short = b"the same" + self.short[8:]
        Handle.__init__ = alike

        @kiln.compile(wait=True)
        def f(x, name):
            return getattr(x, name)() + 1

        x = kiln.ones(3)
        for name in ("exp", "sin", "exp", "sin", "cos"):
            assert kiln.equal(f(x, name), getattr(x, name)() + 1), name
        print("told apart")
    """)
        == "told apart\n"
    )


# -- a descriptor that is not kiln's any more ------------------------------------------------------------


def test_a_descriptor_that_the_program_closed(tmp_path: Path) -> None:
    """Programs close all that they did not open, as daemons do, and then open their own."""
    cache = DiskCache(str(tmp_path / "cache"))
    assert cache.store(b"k" * 32, b"content")
    held = {int(name) for name in os.listdir("/proc/self/fd")}
    mine = next(n for n in held if _is(n, tmp_path / "cache" / "kernels"))
    os.close(mine)
    stranger = tmp_path / "stranger"
    stranger.mkdir(mode=0o700)
    there = os.open(stranger, os.O_RDONLY)
    assert there == mine  # the lowest free number
    try:
        assert cache.load(b"k" * 32) == b"content"
        assert cache.store(b"l" * 32, b"more") and cache.load(b"l" * 32) == b"more"
        cache.close()
        assert not os.listdir(stranger)
        os.fstat(there)  # not closed either
    finally:
        os.close(there)


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
