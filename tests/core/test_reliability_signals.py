"""Ctrl-C at every moment at which kiln's own Python can be interrupted.

CPython runs a signal's handler after a call, where a function begins, and where a loop goes back. At each of
these in kiln's files in turn a trace function raises KeyboardInterrupt, as a handler would. Whatever was
going on, the thread is then as it was before: nothing is being recorded, grad mode is what it was, a file is
the old or the new one.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from backend import kiln, needs_kiln

if kiln.is_kiln:
    from kiln.capture import background
    from kiln.codegen import compile as generator

pytestmark = needs_kiln

HERE = os.path.dirname(os.path.abspath(kiln.__file__)) + os.sep
AFTER = ("CALL", "RESUME", "JUMP_BACKWARD", "POP_JUMP_BACKWARD")
FULL = os.environ.get("KILN_TEST_FULL") == "1"
# Where a signal can still leave a mode switched.
KNOWN = {
    ("grad_mode.py", "__init__"),  # set_grad_enabled(False) switches when it is made, before `with` enters it
}


class Interrupt:
    """Raises KeyboardInterrupt at the n-th moment of a function at which a signal's handler may run."""

    def __init__(self, n: int) -> None:
        self.left, self.place = n, ("", "")
        self.before: dict[FrameType, int] = {}  # the instruction that a frame did last

    def run(self, work: Callable[[], Any]) -> bool:
        """Whether it came to that."""
        sys.settrace(self.enter)
        try:
            work()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
            self.before.clear()  # frames hold what they had opened
        return self.left <= 0

    def enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(HERE):
            return None
        frame.f_trace_opcodes = True
        return self.step

    def step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "opcode":
            return self.step
        before = self.before.get(frame)
        self.before[frame] = now = frame.f_code.co_code[frame.f_lasti]
        raised = dis.opname[now] == "PUSH_EXC_INFO"  # the call did not return: no handler runs before this
        if before is not None and dis.opname[before].startswith(AFTER) and not raised:
            self.left -= 1
            if self.left == 0:
                self.place = (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name)
                sys.settrace(None)
                raise KeyboardInterrupt
        return self.step


class Doubled(kiln.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0]


X = kiln.ones(3, requires_grad=True) if kiln.is_kiln else None


def _no_grad() -> None:
    with kiln.no_grad():
        kiln.split(X, 1)


def _inference() -> None:
    with kiln.inference_mode():
        kiln.split(X, 1)


def _set_grad_enabled() -> None:
    with kiln.set_grad_enabled(False):
        kiln.split(X, 1)


def _saved_hooks() -> None:
    with kiln.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        kiln.autograd.backward((X * X).sum())


def _generator() -> Any:
    yield kiln.ones(2) * 2
    yield kiln.ones(2) * 3


def works() -> dict[str, Callable[[], Any]]:
    model = kiln.nn.Sequential(kiln.nn.Linear(3, 3), kiln.nn.ReLU())
    optimizer = kiln.optim.Adam(model.parameters())
    compiled = kiln.compile(lambda x: (x * 2).tanh() + 1, wait=True)
    generator = kiln.compile(_generator)
    whole = kiln.compile(model)

    def step() -> None:
        optimizer.zero_grad()
        model(X).sum().backward()
        optimizer.step()

    return {
        "compiled": lambda: compiled(kiln.ones(3)),
        "generator": lambda: list(generator()),
        "compiled model": lambda: whole(X).sum().backward(),
        "step": step,
        "compiled step": kiln.compile(step),
        "no_grad": _no_grad,
        "no_grad as a decorator": kiln.no_grad()(lambda: kiln.split(X, 1)),
        "inference_mode": _inference,
        "set_grad_enabled": _set_grad_enabled,
        "saved_tensors_hooks": _saved_hooks,
        "function": lambda: Doubled.apply(X).sum().backward(),
        "grad": lambda: kiln.autograd.grad((X * X).sum(), X, create_graph=True),
        "vmap": lambda: kiln.vmap(lambda v: v * 2)(kiln.ones(2, 3)),
        "func.grad": lambda: kiln.func.grad(lambda v: (v * v).sum())(kiln.ones(3)),
        "transpose_": lambda: (X * 1).unsqueeze(0).t_(),
    }


def state() -> tuple[Any, ...]:
    core: Any = kiln._core
    return core.modes(), core.recording(), core.saved_tensors_hooks(), core.anomaly_enabled()


WORKS = works() if kiln.is_kiln else {}


@pytest.mark.parametrize("name", WORKS)
def test_the_thread_is_as_it_was(name: str) -> None:
    work, before, n, found = WORKS[name], state(), 1, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            work()
        while (interrupt := Interrupt(n)).run(work):
            if state() != before:
                found.append(interrupt.place)
                kiln._core.set_modes(True, False, None)
                kiln._core.set_saved_tensors_hooks(None)
            assert (kiln.ones(2) + 1).tolist() == [2.0, 2.0]
            n += 1 if FULL or n < 60 else 7
    assert state() == before and n > 1
    assert set(found) <= KNOWN, found


def test_a_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    path, n, seen = tmp_path / "file", 1, set()
    kiln.save({"x": kiln.zeros(3)}, path)
    while Interrupt(n).run(lambda: kiln.save({"x": kiln.ones(3)}, path)):
        gc.collect()  # an exception's frames hold what was open
        seen.add(kiln.load(path)["x"].tolist()[0])
        kiln.save({"x": kiln.zeros(3)}, path)
        assert os.listdir(tmp_path) == ["file"]  # what was left, if anything was, the next save removes
        n += 1
    assert seen == {0.0, 1.0}


def test_a_fork() -> None:
    """It is done all the same, and nothing stays held; CPython reports the interrupt."""
    f, n = kiln.compile(lambda x: x * 2 + 1, wait=True), 1
    f(kiln.ones(3))
    background.submit(lambda checkpoint: None, lambda: None)

    def fork() -> None:
        child = os.fork()
        if child == 0:
            sys.settrace(None)
            held = background._worker.held or generator._forking or generator._lock._is_owned()
            os._exit(1 if held or f(kiln.ones(1)).item() != 3 else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "unraisablehook", lambda error: None)
        while (interrupt := Interrupt(n)).run(fork):
            assert not generator._lock._is_owned() and not generator._forking, interrupt.place
            assert not background._worker.held, interrupt.place
            kiln.compiler.wait()
            n += 1
    assert n > 20
